//! A picture of figures with their intervals, one below the other on a logarithmic axis, as SVG.
//!
//! It is written by hand: the libraries for this put colours into attributes, and only a style
//! sheet can follow the reader's light or dark scheme in one file.

use std::fmt::Write;

/// A picture.
pub struct Chart {
    pub title: String,
    /// Says how to read it.
    pub caption: String,
    /// The numbers at which the axis has a line, with what stands below it; the first and the last
    /// are its ends.
    pub ticks: Vec<(f64, String)>,
    /// The number that all are compared with, if there is one.
    pub equal: Option<f64>,
    pub groups: Vec<Group>,
}

/// Rows that belong together.
pub struct Group {
    pub title: String,
    pub rows: Vec<Row>,
}

/// A line of figures.
pub struct Row {
    pub label: String,
    /// The ends of the line.
    pub range: Option<(f64, f64)>,
    /// At most three: a dot, a ring, a stroke.
    pub marks: Vec<f64>,
    /// The figures in words.
    pub text: String,
    pub tone: Tone,
}

/// What a row says; its colour.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Tone {
    Better,
    Worse,
    /// The comparison shows neither, or there is none.
    Even,
}

impl Tone {
    fn class(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Even => "even",
        }
    }
}

const WIDTH: f64 = 900.0;
const MARGIN: f64 = 20.0;
const PLOT_LEFT: f64 = 400.0;
const PLOT_RIGHT: f64 = 730.0;
const TEXT_LEFT: f64 = 756.0;
const HEAD: f64 = 66.0;
const GROUP: f64 = 34.0;
const ROW: f64 = 24.0;
const FOOT: f64 = 44.0;

/// Colours have a contrast of at least 4.5 to the paper, and the two that mean something differ for
/// people who see few colours.
const STYLE: &str = "\
text{font:13px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}
.title{font-size:16px;font-weight:600}.group{font-weight:600}.muted{fill:#59636e;font-size:12px}
.figures{font-size:12px;font-variant-numeric:tabular-nums}
.paper{fill:#ffffff}.grid{stroke:#d8dee4}.equal{stroke:#59636e}
.better{color:#0860ca}.worse{color:#b35900}.even{color:#59636e}
.range{stroke:currentColor;stroke-width:3;stroke-opacity:.45;stroke-linecap:round}
.dot{fill:currentColor}.ring{fill:#ffffff;stroke:currentColor;stroke-width:2}.stroke{stroke:currentColor;stroke-width:2}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}.muted{fill:#9198a1}.paper{fill:#0d1117}.grid{stroke:#30363d}.equal{stroke:#9198a1}
.better{color:#6cb6ff}.worse{color:#f0883e}.even{color:#9198a1}.ring{fill:#0d1117}
}
";

impl Chart {
    /// The picture as a file.
    pub fn to_svg(&self) -> String {
        let height = HEAD
            + self
                .groups
                .iter()
                .map(|group| GROUP + ROW * group.rows.len() as f64)
                .sum::<f64>()
            + FOOT;
        let mut svg = Svg(String::new());
        svg.line(&format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-labelledby="t d">"#
        ));
        svg.line(&format!("<title id=\"t\">{}</title>", escaped(&self.title)));
        svg.line(&format!("<desc id=\"d\">{}</desc>", escaped(&self.words())));
        svg.line(&format!("<style>\n{STYLE}</style>"));
        svg.line(&format!(
            r#"<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>"#
        ));
        svg.text("title", "start", MARGIN, 30.0, &self.title);
        svg.text("muted", "start", MARGIN, 50.0, &self.caption);
        let bottom = height - FOOT;
        for (number, label) in &self.ticks {
            let x = self.x(*number);
            let class = match self.equal == Some(*number) {
                true => "equal",
                false => "grid",
            };
            svg.stroke(class, x, HEAD, x, bottom);
            svg.text("muted", "middle", x, bottom + 20.0, label);
        }
        let mut y = HEAD;
        for group in &self.groups {
            svg.text("group", "start", MARGIN, y + 22.0, &group.title);
            y += GROUP;
            for row in &group.rows {
                self.draw_row(&mut svg, row, y + ROW / 2.0);
                y += ROW;
            }
        }
        svg.line("</svg>");
        svg.0
    }

    fn draw_row(&self, svg: &mut Svg, row: &Row, y: f64) {
        svg.text("label", "start", MARGIN + 12.0, y + 4.0, &row.label);
        svg.text("figures", "start", TEXT_LEFT, y + 4.0, &row.text);
        svg.line(&format!("<g class=\"{}\">", row.tone.class()));
        if let Some((low, high)) = row.range {
            svg.stroke("range", self.x(low), y, self.x(high), y);
        }
        for (index, number) in row.marks.iter().enumerate() {
            let x = self.x(*number);
            match index {
                0 => svg.circle("dot", x, y, 4.0),
                1 => svg.circle("ring", x, y, 4.0),
                _ => svg.stroke("stroke", x, y - 6.0, x, y + 6.0),
            }
        }
        svg.line("</g>");
    }

    /// Where a number is on the axis.
    fn x(&self, number: f64) -> f64 {
        let [first, .., last] = self.ticks.as_slice() else {
            panic!("an axis has two ends");
        };
        let share = (number / first.0).ln() / (last.0 / first.0).ln();
        PLOT_LEFT + share.clamp(0.0, 1.0) * (PLOT_RIGHT - PLOT_LEFT)
    }

    /// The picture in words, for readers that cannot see it.
    fn words(&self) -> String {
        let mut words = self.caption.clone();
        for group in &self.groups {
            let _ = write!(words, " {}:", group.title);
            let rows = group.rows.iter();
            let rows: Vec<_> = rows
                .map(|row| format!(" {}: {}", row.label, row.text))
                .collect();
            words += &rows.join(";");
            words.push('.');
        }
        words
    }
}

struct Svg(String);

impl Svg {
    fn line(&mut self, line: &str) {
        self.0 += line;
        self.0.push('\n');
    }

    fn text(&mut self, class: &str, anchor: &str, x: f64, y: f64, text: &str) {
        let text = escaped(text);
        self.line(&format!(
            r#"<text class="{class}" text-anchor="{anchor}" x="{x:.1}" y="{y:.1}">{text}</text>"#
        ));
    }

    fn stroke(&mut self, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
        self.line(&format!(
            r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        ));
    }

    fn circle(&mut self, class: &str, x: f64, y: f64, radius: f64) {
        self.line(&format!(
            r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{radius:.1}"/>"#
        ));
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::{Chart, Group, PLOT_LEFT, PLOT_RIGHT, Row, Tone};

    fn chart() -> Chart {
        let row = Row {
            label: "a & b".into(),
            range: Some((0.5, 2.0)),
            marks: vec![1.0],
            text: "1.00 [0.50, 2.00]".into(),
            tone: Tone::Even,
        };
        Chart {
            title: "a < b".into(),
            caption: "More is better.".into(),
            ticks: vec![(0.25, "1/4".into()), (1.0, "1".into()), (4.0, "4".into())],
            equal: Some(1.0),
            groups: vec![Group {
                title: "Of".into(),
                rows: vec![row],
            }],
        }
    }

    #[test]
    fn numbers_are_where_the_axis_has_them() {
        let chart = chart();
        let middle = f64::midpoint(PLOT_LEFT, PLOT_RIGHT);
        assert_eq!(chart.x(0.25), PLOT_LEFT);
        assert!((chart.x(1.0) - middle).abs() < 1e-9);
        assert_eq!([chart.x(4.0), chart.x(100.0)], [PLOT_RIGHT; 2]);
    }

    #[test]
    fn all_that_is_seen_is_said_too() {
        let svg = chart().to_svg();
        assert!(
            svg.contains("<desc id=\"d\">More is better. Of: a &amp; b: 1.00 [0.50, 2.00].</desc>")
        );
        assert!(svg.contains("a &lt; b"));
        assert!(svg.contains(r#"<line class="equal" x1="565.0""#), "{svg}");
    }
}
