//! Numbers and texts as a page shows them. A number may be anything that JSON can say, so none becomes longer than a cell.

use embar_meter::table::grouped;

use crate::secrets::without_secrets;

/// A number from which on digits say less than an exponent.
const HUGE: f64 = 1e15;
/// The most characters of a text.
const TEXT_MAX: usize = 400;
/// The most characters of a text in a picture, where none is broken into lines.
const LABEL_MAX: usize = 48;

const MIB: f64 = 1_048_576.0;

/// What stands where a number would be that is none, because those of the file are too large to be taken together.
pub(crate) const NONE: &str = "–";

/// Whole, with a comma before every third digit.
pub(crate) fn whole(value: f64) -> String {
    if !value.is_finite() {
        return NONE.into();
    }
    if value.abs() >= HUGE {
        return format!("{value:.2e}");
    }
    let sign = if value <= -0.5 { "−" } else { "" };
    format!("{sign}{}", grouped(value.abs().round() as u64))
}

/// Whole, and with its sign, since it is a difference.
pub(crate) fn signed(value: f64) -> String {
    let sign = if value >= 0.5 && value.is_finite() {
        "+"
    } else {
        ""
    };
    format!("{sign}{}", whole(value))
}

/// With as many digits as tell it from others of its size.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if !value.is_finite() || size >= 100.0 || size.fract() == 0.0 => whole(value),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 0.01 => format!("{value:.2}"),
        _ if size >= 0.0001 => format!("{value:.4}"),
        _ => format!("{value:.1e}"),
    }
}

/// 0.617 as `62 %`.
pub(crate) fn percent(share: f64) -> String {
    with_unit(whole(share * 100.0), "%")
}

/// 0.0617 as `6.2 %`.
pub(crate) fn percent_fine(share: f64) -> String {
    if !share.is_finite() || share.abs() * 100.0 >= HUGE {
        return percent(share);
    }
    with_unit(format!("{:.1}", share * 100.0), "%")
}

/// What is no number has no unit either.
fn with_unit(number: String, unit: &str) -> String {
    match number.as_str() {
        NONE => number,
        number => format!("{number} {unit}"),
    }
}

/// MiB (2^20 bytes) a second.
pub(crate) fn mib_per_s(value: f64) -> String {
    with_unit(number(value), "MiB/s")
}

/// Bytes a second in MiB.
pub(crate) fn bytes_per_s(value: f64) -> String {
    mib_per_s(value / MIB)
}

/// Bytes, with a suffix where it is exact.
pub(crate) fn bytes(value: f64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let exact = units.into_iter().find(|(_, bits)| {
        let unit = f64::from(1 << bits);
        value >= unit && value % unit == 0.0
    });
    match exact {
        Some((name, bits)) => format!("{} {name}", whole(value / f64::from(1 << bits))),
        None => with_unit(whole(value), "B"),
    }
}

/// A time, from microseconds.
pub(crate) fn micros(value: f64) -> String {
    match value.abs() {
        size if size < 1.0 => with_unit(number(value * 1e3), "ns"),
        size if size < 1e3 => with_unit(number(value), "µs"),
        size if size < 1e6 => with_unit(number(value / 1e3), "ms"),
        _ => with_unit(number(value / 1e6), "s"),
    }
}

/// The text of a field, without secrets, and at most so long as a reader reads.
pub(crate) fn clipped(text: &str) -> String {
    clip(text, TEXT_MAX)
}

/// The name of a file without the directories that it is in, which say more of its owner than of it.
pub(crate) fn file(path: &str) -> String {
    clipped(path.rsplit_once('/').map_or(path, |it| it.1))
}

/// The same for one line of a picture.
pub(crate) fn label(text: &str) -> String {
    clip(text, LABEL_MAX)
}

fn clip(text: &str, max: usize) -> String {
    // A page is handed on, and files are older than what leaves secrets out of them.
    let text = without_secrets(text);
    // Control characters have no place in HTML.
    let shown = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut clipped: String = shown.take(max).collect();
    if text.chars().nth(max).is_some() {
        clipped.pop();
        clipped.push('…');
    }
    clipped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_say_something() {
        let shown = [
            3747.87, 61.72, 4.0, 0.8387, 0.0021, 0.000_012, -0.4, -1234.0, 0.0,
        ];
        let shown = shown.map(number).join(" ");
        assert_eq!(shown, "3,748 61.7 4 0.84 0.0021 1.2e-5 -0.40 −1,234 0");
        assert_eq!(percent(0.617), "62 %");
        assert_eq!(percent_fine(0.0053), "0.5 %");
        assert_eq!(bytes_per_s(2.5 * MIB), "2.50 MiB/s");
        assert_eq!(bytes(2_097_152.0), "2 MiB");
        assert_eq!(bytes(43_690.0), "43,690 B");
        let times = [0.06, 58.4, 6529.0, 2e6].map(micros).join(" ");
        assert_eq!(times, "60 ns 58.4 µs 6.53 ms 2 s");
    }

    #[test]
    fn nothing_becomes_long() {
        let infinite = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
        let large = [f64::MAX, f64::MIN, f64::MIN_POSITIVE, 1e15, -1e-300];
        for value in large.into_iter().chain(infinite) {
            for show in [
                number,
                signed,
                whole,
                percent,
                percent_fine,
                bytes,
                micros,
                bytes_per_s,
            ] {
                let shown = show(value);
                assert!(shown.len() < 24, "{value:e}: {shown}");
                assert!(!shown.contains("inf") && !shown.contains("NaN"), "{shown}");
                assert!(value.is_finite() || shown == NONE, "{shown}");
            }
        }
        assert_eq!(label(&"ä".repeat(90)).chars().count(), LABEL_MAX);
        assert_eq!(label("a\u{0}b\nc"), "a b c");
        assert!(label(&"ä".repeat(90)).ends_with('…'));
    }
}
