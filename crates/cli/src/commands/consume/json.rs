//! A message as a JSON object on one line.

use std::io::{self, Write};

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::template::Fields;
use super::text::Text;

/// Writes one message and a line feed.
pub fn write<'a, H>(out: &mut impl Write, message: &Fields<'a, H>) -> io::Result<()>
where
    H: Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
{
    serde_json::to_writer(&mut *out, &Json(message))?;
    out.write_all(b"\n")
}

struct Json<'f, 'a, H>(&'f Fields<'a, H>);

impl<'a, H> Serialize for Json<'_, 'a, H>
where
    H: Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let message = self.0;
        let mut map = serializer.serialize_map(None)?;
        if let Some(broker) = message.broker {
            map.serialize_entry("broker", &broker)?;
        }
        map.serialize_entry("offset", &message.offset)?;
        map.serialize_entry("time_ns", &message.time_ns)?;
        match message.key.map(Text::of) {
            None => map.serialize_entry("key", &())?,
            Some(Text::Plain(key)) => map.serialize_entry("key", key)?,
            Some(Text::Base64(key)) => map.serialize_entry("key_base64", &key)?,
        }
        match Text::of(message.value) {
            Text::Plain(value) => map.serialize_entry("value", value)?,
            Text::Base64(value) => map.serialize_entry("value_base64", &value)?,
        }
        map.serialize_entry("headers", &Headers(message.headers.clone()))?;
        map.end()
    }
}

struct Headers<H>(H);

impl<'a, H: Iterator<Item = (&'a [u8], &'a [u8])> + Clone> Serialize for Headers<H> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.0.clone() {
            let name = String::from_utf8_lossy(name);
            match Text::of(value) {
                Text::Plain(value) => map.serialize_entry(&name, value)?,
                Text::Base64(value) => {
                    map.serialize_entry(&name, &serde_json::json!({ "base64": value }))?
                }
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(broker: Option<u32>, key: Option<&[u8]>, value: &[u8]) -> serde_json::Value {
        let headers: [(&[u8], &[u8]); 2] = [(b"a", b"1"), (b"b", &[0xff])];
        let fields = Fields {
            key,
            value,
            broker,
            offset: 7,
            time_ns: 5,
            headers: headers.iter().copied(),
        };
        let mut out = Vec::new();
        write(&mut out, &fields).expect("memory");
        assert_eq!(out.pop(), Some(b'\n'));
        assert!(!out.contains(&b'\n'));
        serde_json::from_slice(&out).expect("JSON")
    }

    #[test]
    fn text_is_text_and_the_rest_is_base64() {
        let json = line(Some(2), None, b"a\nb");
        assert_eq!(
            (
                json["broker"].as_u64(),
                json["offset"].as_u64(),
                json["time_ns"].as_u64()
            ),
            (Some(2), Some(7), Some(5))
        );
        assert!(json["key"].is_null() && json.get("key_base64").is_none());
        assert_eq!(json["value"], "a\nb");
        assert_eq!(
            (&json["headers"]["a"], &json["headers"]["b"]["base64"]),
            (&"1".into(), &"/w==".into())
        );
        let json = line(None, Some(&[0xff]), &[0xfe]);
        assert_eq!(
            (&json["key_base64"], &json["value_base64"]),
            (&"/w==".into(), &"/g==".into())
        );
        assert!(json.get("key").is_none() && json.get("value").is_none());
        assert!(json.get("broker").is_none());
    }
}
