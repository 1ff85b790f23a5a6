//! What an object is of, by its fields, and what is in it. Fields that are missing are left out of the page, because recorded
//! results keep only some; fields of another type are errors.

mod comparison;
mod diagnosis;
mod latency;
mod matrix;
mod metering;
mod node;
mod origin;
mod redis;
mod scale;
mod sessions;
mod shared;
mod throughput;
mod walls;

use serde_json::Value;

use crate::Error;
use crate::input::Object;
use crate::section::Section;
use crate::words;
use node::Node;

/// The section of one object.
pub(crate) fn section(name: &str, object: &Object) -> Result<Section, Error> {
    let root = Node::root(name, &object.value);
    let Some(kind) = Kind::of(&object.value) else {
        return Err(Error::Unknown {
            name: name.to_owned(),
        });
    };
    let mut section = match kind {
        Kind::Diagnosis => diagnosis::reported(&root)?,
        Kind::Observed => diagnosis::observed(&root)?,
        Kind::Matrix => matrix::section(&root)?,
        Kind::Walls => walls::section(&root)?,
        Kind::Latency => latency::section(&root)?,
        Kind::Comparison => comparison::section(&root)?,
        Kind::Metering => metering::section(&root)?,
        Kind::Sessions => sessions::section(&root)?,
        Kind::Scale => scale::section(&root)?,
        Kind::Redis => redis::section(&root)?,
        Kind::Throughput => {
            throughput::section(&root, throughput::Bench::of(&root, &object.origin)?)?
        }
    };
    section.file = words::file(name);
    section.origin = origin::facts(&section.file, &object.origin);
    Ok(section)
}

/// What may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Diagnosis,
    Observed,
    Matrix,
    Walls,
    Latency,
    Comparison,
    Metering,
    Sessions,
    Scale,
    Redis,
    Throughput,
}

impl Kind {
    /// By the fields that no other kind has.
    fn of(value: &Value) -> Option<Self> {
        let has = |field: &str| value.get(field).is_some();
        // Of a list: whether its first entry has this field.
        let in_first = |list: &str, field: &str| {
            let first = value.get(list).and_then(|it| it.get(0));
            first.is_some_and(|it| it.get(field).is_some())
        };
        let bench = value.get("bench").and_then(Value::as_str);
        let kind = match bench {
            Some("walls") => Self::Walls,
            Some("latency") => Self::Latency,
            Some(_) if has("configurations") => Self::Comparison,
            Some("metering") => Self::Metering,
            Some("session" | "session wall") => Self::Sessions,
            Some("scale") => Self::Scale,
            Some("publish" | "read" | "e2e") => Self::Throughput,
            Some(_) => return None,
            None if has("findings") && has("limits") => Self::Diagnosis,
            None if has("machine") && has("brokers") && has("connections") => Self::Observed,
            None if has("machine") && (has("nodes") || has("way")) => Self::Observed,
            None if in_first("rows", "injected") => Self::Matrix,
            None if in_first("rows", "wall") || in_first("times", "wall") => Self::Walls,
            None if in_first("alone", "latency_us") => Self::Latency,
            None if has("comparisons") && has("configurations") => Self::Comparison,
            None if has("comparisons") && has("median") => Self::Sessions,
            None if has("metering_cost") => Self::Metering,
            None if in_first("curves", "points") => Self::Scale,
            None if in_first("operations", "ops_per_s") => Self::Redis,
            None if has("median_mib_per_s") => Self::Throughput,
            None if in_first("trials", "mib_per_s") || in_first("trials", "latency_us") => {
                Self::Throughput
            }
            None => return None,
        };
        Some(kind)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_are_told_by_their_fields() {
        let kinds = [
            (json!({"findings": [], "limits": {}}), Some(Kind::Diagnosis)),
            (json!({"machine": {}, "nodes": []}), Some(Kind::Observed)),
            (json!({"machine": {}, "way": "echo"}), Some(Kind::Observed)),
            (json!({"rows": [{"injected": ""}]}), Some(Kind::Matrix)),
            (json!({"bench": "walls"}), Some(Kind::Walls)),
            (json!({"times": [{"wall": ""}]}), Some(Kind::Walls)),
            (json!({"alone": [{"latency_us": {}}]}), Some(Kind::Latency)),
            (
                json!({"comparisons": [], "configurations": []}),
                Some(Kind::Comparison),
            ),
            (json!({"bench": "read"}), Some(Kind::Throughput)),
            (
                json!({"trials": [{"latency_us": 1}]}),
                Some(Kind::Throughput),
            ),
            (json!({"bench": "session"}), Some(Kind::Sessions)),
            (
                json!({"comparisons": [], "median": {}}),
                Some(Kind::Sessions),
            ),
            (json!({"metering_cost": {}}), Some(Kind::Metering)),
            (json!({"curves": [{"points": []}]}), Some(Kind::Scale)),
            (json!({"operations": [{"ops_per_s": 1}]}), Some(Kind::Redis)),
            (json!({"bench": "another", "comparisons": []}), None),
            (json!({"bench": 7}), None),
            (json!({"rows": {}}), None),
            (json!([]), None),
            (json!(null), None),
        ];
        for (value, kind) in kinds {
            assert_eq!(Kind::of(&value), kind, "{value}");
        }
    }
}
