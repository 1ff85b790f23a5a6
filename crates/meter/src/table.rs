//! Plain text tables: columns as wide as their widest cell, names to the left, numbers to the right.

use std::fmt;

/// A header, rows and the alignment of each column. Rows may be shorter than the header.
#[derive(Clone, Debug, Default)]
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column headings. The first column is aligned to the left, all others to the right.
    pub fn new<S: Into<String>>(header: impl IntoIterator<Item = S>) -> Self {
        Self {
            header: header.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; cells beyond the header are dropped.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) -> &mut Self {
        let columns = self.header.len();
        self.rows
            .push(cells.into_iter().take(columns).map(Into::into).collect());
        self
    }

    /// The table in GitHub's Markdown, its columns aligned as in the plain form; ends with a newline.
    pub fn to_markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: String = (0..self.header.len())
                .map(|column| {
                    let cell = cells.get(column).map_or("", String::as_str);
                    format!(" {} |", cell.replace('|', "\\|"))
                })
                .collect();
            format!("|{cells}\n")
        };
        let rule: Vec<String> = (0..self.header.len())
            .map(|column| if column == 0 { ":---" } else { "---:" }.to_owned())
            .collect();
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        line(&self.header) + &line(&rule) + &rows
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = || std::iter::once(&self.header).chain(&self.rows);
        let widths: Vec<usize> = (0..self.header.len())
            .map(|column| {
                lines()
                    .filter_map(|cells| cells.get(column))
                    .map(|cell| cell.chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        for (index, cells) in lines().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            let mut line = String::new();
            for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                match column {
                    0 => line.push_str(&format!("{cell:<width$}")),
                    _ => line.push_str(&format!("  {cell:>width$}")),
                }
            }
            f.write_str(line.trim_end())?;
        }
        Ok(())
    }
}

/// `1234567` as `1,234,567`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligns_names_left_and_numbers_right() {
        let mut table = Table::new(["name", "n"]);
        table.row(["a", "10,000"]).row(["long name", "7"]);
        assert_eq!(
            table.to_string(),
            "name            n\na          10,000\nlong name       7"
        );
    }

    #[test]
    fn a_short_row_leaves_no_trailing_blanks() {
        let mut table = Table::new(["name", "n"]);
        table.row(["TOTAL"]);
        assert_eq!(table.to_string(), "name   n\nTOTAL");
    }

    #[test]
    fn markdown_keeps_the_alignment_and_escapes_what_would_split_a_cell() {
        let mut table = Table::new(["name", "n"]);
        table.row(["a|b", "1"]).row(["short"]);
        assert_eq!(
            table.to_markdown(),
            "| name | n |\n| :--- | ---: |\n| a\\|b | 1 |\n| short |  |\n"
        );
    }

    #[test]
    fn groups_digits_by_three() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (12_345_678, "12,345,678"),
        ];
        for (n, text) in cases {
            assert_eq!(grouped(n), text);
        }
    }
}
