//! A place in an object: reads fields, and knows the way to them when they are not what they should be.

use embar_meter::Verdict;
use serde_json::Value;

use crate::Error;
use crate::picture::ratios::Interval;
use crate::words;

/// A value, and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Node<'a> {
    file: &'a str,
    path: String,
    value: &'a Value,
}

impl<'a> Node<'a> {
    pub fn root(file: &'a str, value: &'a Value) -> Self {
        let path = String::new();
        Self { file, path, value }
    }

    pub fn value(&self) -> &'a Value {
        self.value
    }

    /// The field; `None` if it is missing or `null`, as what could not be measured is.
    pub fn field(&self, name: &str) -> Option<Self> {
        let value = self.value.get(name).filter(|it| !it.is_null())?;
        let path = match self.path.as_str() {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        };
        Some(Self {
            file: self.file,
            path,
            value,
        })
    }

    /// The field, which must be an object.
    pub fn object(&self, name: &str) -> Result<Option<Self>, Error> {
        let Some(field) = self.field(name) else {
            return Ok(None);
        };
        if !field.value.is_object() {
            return Err(field.wrong("an object"));
        }
        Ok(Some(field))
    }

    /// The entries of a list, each of which must be an object; none if there is no such field.
    pub fn objects(&self, name: &str) -> Result<Vec<Self>, Error> {
        let entries = self.list(name)?;
        match entries.iter().find(|it| !it.value.is_object()) {
            Some(other) => Err(other.wrong("an object")),
            None => Ok(entries),
        }
    }

    /// The entries of a list; none if there is no such field.
    pub fn list(&self, name: &str) -> Result<Vec<Self>, Error> {
        let Some(field) = self.field(name) else {
            return Ok(Vec::new());
        };
        let Value::Array(list) = field.value else {
            return Err(field.wrong("a list"));
        };
        let entry = |(index, value)| Self {
            file: self.file,
            path: format!("{}[{index}]", field.path),
            value,
        };
        Ok(list.iter().enumerate().map(entry).collect())
    }

    /// A number.
    pub fn number(&self, name: &str) -> Result<Option<f64>, Error> {
        self.field(name).map(|it| it.as_number()).transpose()
    }

    /// A number that must be there.
    pub fn needed(&self, name: &str) -> Result<f64, Error> {
        self.number(name)?
            .ok_or_else(|| self.lacks(name, "a number"))
    }

    pub fn as_number(&self) -> Result<f64, Error> {
        // The parser takes no number that is not finite.
        self.value.as_f64().ok_or_else(|| self.wrong("a number"))
    }

    /// A text.
    pub fn text(&self, name: &str) -> Result<Option<String>, Error> {
        self.field(name).map(|it| it.as_text()).transpose()
    }

    /// A text that must be there.
    pub fn needed_text(&self, name: &str) -> Result<String, Error> {
        self.text(name)?.ok_or_else(|| self.lacks(name, "a text"))
    }

    pub fn as_text(&self) -> Result<String, Error> {
        let text = self.value.as_str().map(words::clipped);
        text.ok_or_else(|| self.wrong("a text"))
    }

    /// Yes or no.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, Error> {
        let Some(field) = self.field(name) else {
            return Ok(None);
        };
        let flag = field.value.as_bool();
        flag.map(Some).ok_or_else(|| field.wrong("true or false"))
    }

    /// What a command concluded of two configurations.
    pub fn verdict(&self, name: &str) -> Result<Option<Verdict>, Error> {
        let Some(field) = self.field(name) else {
            return Ok(None);
        };
        match field.value.as_str() {
            Some("Faster") => Ok(Some(Verdict::Faster)),
            Some("Slower") => Ok(Some(Verdict::Slower)),
            Some("InsideNoise") => Ok(Some(Verdict::InsideNoise)),
            _ => Err(field.wrong("Faster, Slower or InsideNoise")),
        }
    }

    /// An interval with its estimate.
    pub fn interval(&self, name: &str) -> Result<Option<Interval>, Error> {
        let Some(of) = self.object(name)? else {
            return Ok(None);
        };
        let (one, other) = (of.needed("low")?, of.needed("high")?);
        Ok(Some(Interval {
            point: of.needed("point")?,
            low: one.min(other),
            high: one.max(other),
            level: of.number("level")?,
        }))
    }

    /// The error of a file whose values cannot be taken together.
    pub fn invalid(&self, command: &'static str, why: impl ToString) -> Error {
        Error::Invalid {
            name: self.file.to_owned(),
            command,
            why: words::clipped(&why.to_string()),
        }
    }

    /// The error of a result without figures.
    pub fn nothing(&self, why: &'static str) -> Error {
        let name = self.file.to_owned();
        Error::Nothing { name, why }
    }

    fn lacks(&self, name: &str, expected: &'static str) -> Error {
        let dot = if self.path.is_empty() { "" } else { "." };
        Error::WrongType {
            name: self.file.to_owned(),
            path: words::clipped(&format!("{}{dot}{name}", self.path)),
            expected,
            found: "missing",
        }
    }

    fn wrong(&self, expected: &'static str) -> Error {
        Error::WrongType {
            name: self.file.to_owned(),
            path: words::clipped(&self.path),
            expected,
            found: match self.value {
                Value::Null => "null",
                Value::Bool(_) => "true or false",
                Value::Number(_) => "a number",
                Value::String(_) => "a text",
                Value::Array(_) => "a list",
                Value::Object(_) => "an object",
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_name_the_way_to_the_field() {
        let value = json!({"trials": [{"mib_per_s": 1}, {"mib_per_s": "fast"}], "a": {"low": 2}});
        let root = Node::root("x.json", &value);
        let trials = root.objects("trials").expect("a list");
        assert_eq!(trials[0].number("mib_per_s").expect("a number"), Some(1.0));
        let error = trials[1].number("mib_per_s").expect_err("a text");
        assert_eq!(
            error.to_string(),
            "x.json: trials[1].mib_per_s is a text, where a number is expected"
        );
        let error = root.interval("a").expect_err("one end");
        assert_eq!(
            error.to_string(),
            "x.json: a.high is missing, where a number is expected"
        );
        assert!(root.objects("a").is_err() && root.text("trials").is_err());
        assert!(root.list("none").expect("no field").is_empty());
    }

    #[test]
    fn names_of_fields_become_neither_long_nor_control_characters() {
        let name = format!("\u{1b}[2J{}", "x".repeat(100_000));
        let value = json!({ name.as_str(): {}, "first": { name.as_str(): "x" } });
        let root = Node::root("x", &value);
        let field = root.object(&name).expect("an object").expect("there");
        let missing = field.needed("a").expect_err("nothing in it");
        let first = root.object("first").expect("an object").expect("there");
        let wrong = first.needed(&name).expect_err("a text");
        for error in [missing, wrong] {
            let error = error.to_string();
            assert!(error.len() < 600 && !error.contains('\u{1b}'), "{error}");
        }
    }

    #[test]
    fn the_ends_of_an_interval_are_in_order() {
        let value = json!({"ratio": {"point": 1, "low": 3, "high": 2}});
        let root = Node::root("x", &value);
        let interval = root.interval("ratio").expect("numbers").expect("there");
        assert_eq!((interval.low, interval.high), (2.0, 3.0));
    }
}
