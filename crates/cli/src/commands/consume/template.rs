//! Parses the text of `--format`, and prints messages in the form that it asks for.

use std::io::{self, Write};

use crate::exit;

/// One part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(Vec<u8>),
    Key,
    Value,
    Offset,
    Broker,
    Time,
    Headers,
}

/// A parsed `--format`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Part>);

/// What a template needs to know of a message.
pub struct Fields<'a, H> {
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its value.
    pub value: &'a [u8],
    /// Where it is, unless there is one order over all brokers.
    pub broker: Option<u32>,
    /// Its offset there.
    pub offset: u64,
    /// When it was appended, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Its headers: names and values.
    pub headers: H,
}

impl Template {
    /// Parses `%k %v %o %b %t %h %%` and the escapes `\n \t \r \0 \\ \xHH`.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let mut parts = Vec::new();
        let mut literal = Vec::new();
        let mut bytes = text.bytes();
        while let Some(byte) = bytes.next() {
            let part = match byte {
                b'\\' => {
                    literal.push(escape(&mut bytes).ok_or_else(|| {
                        exit::usage(format!("--format {text:?}: use \\n, \\t, \\r, \\0, \\\\ or \\xHH after a backslash"))
                    })?);
                    continue;
                }
                b'%' => match bytes.next() {
                    Some(b'k') => Part::Key,
                    Some(b'v') => Part::Value,
                    Some(b'o') => Part::Offset,
                    Some(b'b') => Part::Broker,
                    Some(b't') => Part::Time,
                    Some(b'h') => Part::Headers,
                    Some(b'%') => {
                        literal.push(b'%');
                        continue;
                    }
                    _ => {
                        return Err(exit::usage(format!(
                            "--format {text:?}: use %k, %v, %o, %b, %t, %h or %% after a percent sign"
                        )));
                    }
                },
                other => {
                    literal.push(other);
                    continue;
                }
            };
            if !literal.is_empty() {
                parts.push(Part::Literal(std::mem::take(&mut literal)));
            }
            parts.push(part);
        }
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        Ok(Self(parts))
    }

    /// Writes one message.
    pub fn write<'a, H>(&self, out: &mut impl Write, message: &Fields<'a, H>) -> io::Result<()>
    where
        H: Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    {
        for part in &self.0 {
            match part {
                Part::Literal(bytes) => out.write_all(bytes)?,
                Part::Value => out.write_all(message.value)?,
                Part::Key => out.write_all(message.key.unwrap_or_default())?,
                Part::Offset => write!(out, "{}", message.offset)?,
                Part::Broker => {
                    if let Some(broker) = message.broker {
                        write!(out, "{broker}")?;
                    }
                }
                Part::Time => write!(out, "{}", message.time_ns)?,
                Part::Headers => {
                    for (index, (name, value)) in message.headers.clone().enumerate() {
                        out.write_all(if index == 0 { b"" } else { b"," })?;
                        out.write_all(name)?;
                        out.write_all(b"=")?;
                        out.write_all(value)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn escape(bytes: &mut std::str::Bytes<'_>) -> Option<u8> {
    let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
    Some(match bytes.next()? {
        b'n' => b'\n',
        b't' => b'\t',
        b'r' => b'\r',
        b'0' => 0,
        b'\\' => b'\\',
        b'x' => (digit(bytes.next())? * 16 + digit(bytes.next())?) as u8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(format: &str, key: Option<&[u8]>) -> Vec<u8> {
        print_of(Some(2), format, key)
    }

    fn print_of(broker: Option<u32>, format: &str, key: Option<&[u8]>) -> Vec<u8> {
        let headers: [(&[u8], &[u8]); 2] = [(b"a", b"1"), (b"b", b"\xff")];
        let fields = Fields {
            key,
            value: b"val",
            broker,
            offset: 77,
            time_ns: 5,
            headers: headers.iter().copied(),
        };
        let mut out = Vec::new();
        Template::parse(format)
            .expect("valid")
            .write(&mut out, &fields)
            .expect("memory");
        out
    }

    #[test]
    fn every_field_and_escape() {
        assert_eq!(print("%v\\n", None), b"val\n");
        assert_eq!(
            print("%b:%o\\t%k=%v %t %h%%", Some(b"key")),
            b"2:77\tkey=val 5 a=1,b=\xff%"
        );
        assert_eq!(print("\\x41\\\\\\0\\r", None), b"A\\\0\r");
        assert_eq!(print("[%k]", None), b"[]");
        assert_eq!(print_of(None, "%b:%o", None), b":77");
        assert_eq!(print("grün", None), "grün".as_bytes());
    }

    #[test]
    fn what_is_unknown_is_refused_with_what_is_known() {
        for format in ["%", "%q", "a%", "\\", "\\q", "\\x4", "\\xzz"] {
            let error = Template::parse(format).expect_err(format);
            assert_eq!(exit::code(&error), exit::USAGE, "{format}");
        }
    }
}
