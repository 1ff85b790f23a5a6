//! Where a result is from, and with which settings it came about.

use serde_json::Value;

use super::node::Node;
use crate::Error;
use crate::input::Origin;
use crate::section::{Block, Fact};
use crate::words;

/// What was recorded with a result.
pub(super) fn facts(file: &str, origin: &Origin) -> Vec<Fact> {
    let text = |name: &str, value: &Option<String>| Some(Fact::new(name, value.clone()?));
    let code = |name: &str, value: &Option<String>| Some(Fact::code(name, value.clone()?));
    let known = [
        code("command", &origin.command),
        text("date", &origin.date),
        text("machine", &origin.machine),
        code("commit", &origin.commit),
        text("note", &origin.note),
    ];
    let mut facts: Vec<Fact> = known.into_iter().flatten().collect();
    facts.push(Fact::new("file", file));
    facts
}

/// The settings of a bench, under a heading; nothing if there are none.
pub(super) fn settings(root: &Node<'_>) -> Result<Vec<Block>, Error> {
    settings_of(root, "config")
}

/// The same of a bench that calls them otherwise.
pub(super) fn settings_of(root: &Node<'_>, field: &str) -> Result<Vec<Block>, Error> {
    let Some(config) = root.object(field)? else {
        return Ok(Vec::new());
    };
    let Value::Object(fields) = config.value() else {
        return Ok(Vec::new());
    };
    let facts: Vec<Fact> = fields
        .iter()
        .filter_map(|(name, value)| Some(Fact::new(in_words(name), shown(name, value)?)))
        .collect();
    if facts.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![Block::Heading("Settings".into()), Block::Facts(facts)])
}

/// What it ran on; nothing if it does not say.
pub(super) fn environment(root: &Node<'_>) -> Result<Vec<Block>, Error> {
    let Some(environment) = root.object("environment")? else {
        return Ok(Vec::new());
    };
    let Value::Object(fields) = environment.value() else {
        return Ok(Vec::new());
    };
    let backing = environment.object("backing")?;
    let backing = backing.as_ref().and_then(|it| it.value().as_object());
    let named = |name: &str, value| Some(Fact::new(in_words(name), shown(name, value)?));
    let own = fields.iter().filter_map(|(name, value)| named(name, value));
    let regions = backing.into_iter().flatten().filter_map(|(name, value)| {
        named(name, value).map(|fact| Fact {
            name: format!("regions, {}", fact.name),
            ..fact
        })
    });
    let facts: Vec<Fact> = own.chain(regions).collect();
    Ok(match facts.is_empty() {
        true => Vec::new(),
        false => vec![Block::More("Environment".into(), facts)],
    })
}

/// `batch_bytes` as `batch`: the unit stands with the number.
fn in_words(name: &str) -> String {
    let units = ["_bytes", "_us", "_s"];
    let bare = units.iter().find_map(|unit| name.strip_suffix(unit));
    words::label(&bare.unwrap_or(name).replace('_', " "))
}

fn shown(name: &str, value: &Value) -> Option<String> {
    Some(match value {
        Value::Number(number) => {
            let number = number.as_f64()?;
            match name.rsplit_once('_').map(|it| it.1) {
                Some("bytes") => words::bytes(number),
                Some("us") => words::micros(number),
                Some("s") => words::micros(number * 1e6),
                _ => words::number(number),
            }
        }
        Value::String(text) => words::clipped(text),
        Value::Bool(flag) => if *flag { "yes" } else { "no" }.to_owned(),
        Value::Array(list) => {
            let shown: Vec<String> = list.iter().filter_map(|it| shown(name, it)).collect();
            words::clipped(&shown.join(", "))
        }
        Value::Null | Value::Object(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_have_their_units() {
        let value = json!({"config": {"batch_bytes": 2_097_152, "spin_us": 0, "duration_s": 2,
            "orders": [0, 5], "order": 0, "receive": "direct", "walls_only": false, "x": {"y": 1}}});
        let blocks = settings(&Node::root("x", &value)).expect("settings");
        let Block::Facts(facts) = &blocks[1] else {
            panic!("{blocks:?}");
        };
        let mut shown: Vec<String> = facts
            .iter()
            .map(|it| format!("{}={}", it.name, it.value))
            .collect();
        shown.sort();
        assert_eq!(
            shown.join("; "),
            "batch=2 MiB; duration=2 s; order=0; orders=0, 5; receive=direct; spin=0 ns; walls only=no"
        );
    }
}
