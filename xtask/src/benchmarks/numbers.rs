//! Numbers as people read them.

/// `4,581 MiB/s`
pub fn mebibytes(rate: f64) -> String {
    format!("{} MiB/s", grouped(rate))
}

/// `4.7 million`
pub fn millions(number: f64) -> String {
    match number / 1e6 {
        number if number < 10.0 => format!("{number:.1} million"),
        number => format!("{number:.0} million"),
    }
}

/// `1,234,567`
pub fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `16 KiB`
pub fn bytes(bytes: u64) -> String {
    let units = [(20, "MiB"), (10, "KiB")];
    let unit = units
        .iter()
        .find(|(bits, _)| bytes >> bits > 0 && bytes.trailing_zeros() >= *bits);
    match unit {
        Some((bits, unit)) => format!("{} {unit}", bytes >> bits),
        None => format!("{bytes} B"),
    }
}

/// The middle one, or the mean of the two in the middle.
pub fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<_> = numbers.collect();
    numbers.sort_unstable_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() % 2 {
        0 => f64::midpoint(numbers[middle - 1], numbers[middle]),
        _ => numbers[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::{bytes, grouped, median, millions};

    #[test]
    fn numbers_can_be_read() {
        assert_eq!(
            [0.4, 999.6, 1_234_567.0].map(grouped),
            ["0", "1,000", "1,234,567"]
        );
        assert_eq!(
            [4_690_944.0, 42e6].map(millions),
            ["4.7 million", "42 million"]
        );
        assert_eq!(
            [16, 1 << 10, 1536, 2 << 20].map(bytes),
            ["16 B", "1 KiB", "1536 B", "2 MiB"]
        );
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([3.0, 1.0].into_iter()), 2.0);
    }
}
