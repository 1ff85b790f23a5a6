//! Draws a look: a head, the views' names, the rows of the chosen one, and a line of keys.

use std::time::{Duration, Instant};

use embar_diagnose::picture::Picture;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Clear, Paragraph, Row, Table, Wrap};

use super::keys::{Choice, HELP};
use super::look::Look;
use super::sheet::{self, BETWEEN, Sheet, Tab, rate};

/// What is drawn.
pub struct Scene<'a> {
    /// The newest look; none at the beginning.
    pub look: Option<&'a Look>,
    /// Where the cluster is.
    pub address: &'a str,
    /// Since when nobody answers, in words, and why.
    pub trouble: Option<&'a str>,
    /// What the user has chosen.
    pub choice: &'a Choice,
    /// Whether it may be in colours.
    pub colors: bool,
    /// When it is drawn.
    pub now: Instant,
}

/// Draws it. The first row that is shown is at most the one that this returns, so that the last one stays in sight.
pub fn draw(frame: &mut Frame<'_>, scene: &Scene<'_>) -> usize {
    let [head, tabs, body, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(head_lines(scene)), head);
    frame.render_widget(Paragraph::new(tab_line(scene)), tabs);
    let last = match scene.look {
        Some(look) if scene.choice.tab == Tab::Findings => findings(frame, body, look, scene),
        Some(look) => rows(frame, body, look, scene),
        None => {
            // The head cuts what is long.
            let text = scene.trouble.unwrap_or("looking ...");
            frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), body);
            0
        }
    };
    frame.render_widget(Paragraph::new(foot_line(scene)), foot);
    if scene.choice.shows_help {
        help(frame);
    }
    last
}

/// A look that is older than its interval and this is said to be old: brokers that do not answer hold up the next one.
const OLD: Duration = Duration::from_secs(2);

fn head_lines(scene: &Scene<'_>) -> Vec<Line<'static>> {
    let trouble = Style::new().add_modifier(Modifier::BOLD);
    let trouble = color(scene, trouble, Color::Red);
    let mut first = vec![Span::styled(
        format!("embar {}", scene.address),
        Style::new().add_modifier(Modifier::BOLD),
    )];
    let second = match (scene.trouble, scene.look) {
        (Some(text), _) => Span::styled(text.to_owned(), trouble),
        (None, None) => Span::raw(""),
        (None, Some(look)) => {
            let [came, went, messages] = look.totals();
            Span::raw(format!(
                "in {}  out {}  {:.0} messages/s  {} cores {:.0} % busy",
                rate(came),
                rate(went),
                messages,
                look.cores,
                look.busy * 100.0
            ))
        }
    };
    if let Some(look) = scene.look {
        let (up, all) = look.answering();
        let text = format!("  {up} of {all} brokers answer, head {}", look.head);
        first.push(match up == all {
            true => Span::raw(text),
            false => Span::styled(text, trouble),
        });
    }
    if let Some(look) = scene.look {
        let age = scene.now.saturating_duration_since(look.ended);
        if age > scene.choice.interval + OLD {
            let text = format!("  seen {:.0} s ago", age.as_secs_f64());
            first.push(Span::styled(text, trouble));
        }
    }
    if scene.choice.is_paused {
        first.push(Span::raw("  held still"));
    }
    vec![Line::from(first), Line::from(second)]
}

fn tab_line(scene: &Scene<'_>) -> Line<'static> {
    let tabs = Tab::ALL.iter().enumerate().flat_map(|(at, tab)| {
        let style = match *tab == scene.choice.tab {
            true => Style::new().add_modifier(Modifier::REVERSED),
            false => Style::new(),
        };
        [
            Span::styled(format!(" {} {} ", at + 1, tab.name()), style),
            Span::raw(" "),
        ]
    });
    Line::from(tabs.collect::<Vec<_>>())
}

fn rows(frame: &mut Frame<'_>, area: Rect, look: &Look, scene: &Scene<'_>) -> usize {
    let sheet = Sheet::of(look, scene.choice.tab).within(area.width.into());
    if sheet.rows.is_empty() {
        let text = Paragraph::new(sheet.none).wrap(Wrap { trim: true });
        frame.render_widget(text, area);
        return 0;
    }
    let names = sheet.columns.iter().map(|it| it.trim_start_matches('#'));
    let widths = sheet.widths();
    let widths = widths.iter().map(|it| Constraint::Length(*it as u16));
    let cell = |at: usize, text: String| {
        let is_number = sheet.columns.get(at).is_some_and(|it| it.starts_with('#'));
        let line = Line::from(text);
        Cell::from(if is_number {
            line.right_aligned()
        } else {
            line
        })
    };
    // The columns' names take a row.
    let last = last_from(sheet.rows.len() + 1, area);
    let from = scene.choice.from.min(last);
    let shown = sheet.rows.iter().skip(from).map(|row| {
        let cells = row.iter().cloned().enumerate();
        Row::new(cells.map(|(at, text)| cell(at, text)))
    });
    let names = names
        .enumerate()
        .map(|(at, name)| cell(at, name.to_owned()));
    let header = Row::new(names).style(Style::new().add_modifier(Modifier::UNDERLINED));
    let table = Table::new(shown, widths)
        .header(header)
        .column_spacing(BETWEEN as u16);
    frame.render_widget(table, area);
    last
}

/// The first row of those that are shown when the last one is.
fn last_from(rows: usize, area: Rect) -> usize {
    rows.saturating_sub(area.height.into())
}

fn findings(frame: &mut Frame<'_>, area: Rect, look: &Look, scene: &Scene<'_>) -> usize {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut lines = Vec::new();
    for line in Picture(&look.diagnosis).to_string().lines() {
        let style = match line.contains('◀') {
            true => color(scene, bold, Color::Yellow),
            false => Style::new(),
        };
        lines.push((line.to_owned(), style));
    }
    lines.push((String::new(), Style::new()));
    for (at, finding) in look.findings().iter().enumerate() {
        let [head, evidence, remedy] = sheet::lines(at + 1, finding);
        lines.push((head, bold));
        lines.push((format!("   {evidence}"), Style::new()));
        lines.push((format!("   remedy: {remedy}"), Style::new()));
        lines.push((String::new(), Style::new()));
    }
    for missing in look.missing() {
        let text = format!("not read: {}: {}", missing.what, missing.why);
        lines.push((text, Style::new()));
    }
    // Wrapped here, so that rows of the screen are what is counted.
    let rows: Vec<Line<'_>> = lines
        .iter()
        .flat_map(|(text, style)| {
            let parts = wrapped(text, area.width.into()).into_iter();
            parts.map(|part| Line::styled(part, *style))
        })
        .collect();
    let last = last_from(rows.len(), area);
    let from = scene.choice.from.min(last);
    let shown: Vec<_> = rows.into_iter().skip(from).collect();
    frame.render_widget(Paragraph::new(shown), area);
    last
}

/// The rows of a text on a screen so wide: it breaks between words, and goes on below its first word. A word that is wider is cut.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    if Line::raw(text).width() <= width {
        return vec![text.to_owned()];
    }
    let indent = " ".repeat(text.len() - text.trim_start().len());
    let mut rows = vec![indent.clone()];
    for word in text.split_ascii_whitespace() {
        let row = rows.last_mut().expect("there is a first one");
        let is_first = *row == indent;
        let room = width.saturating_sub(Line::raw(row.as_str()).width() + usize::from(!is_first));
        if is_first {
            row.push_str(word);
        } else if Line::raw(word).width() <= room {
            row.push(' ');
            row.push_str(word);
        } else {
            rows.push(format!("{indent}{word}"));
        }
    }
    rows
}

fn foot_line(scene: &Scene<'_>) -> Line<'static> {
    let interval = scene.choice.interval.as_secs_f64();
    Line::from(format!(
        "q end  ? keys  p hold still  + - interval ({interval} s)"
    ))
}

fn help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let [_, middle, _] = Layout::horizontal([
        Constraint::Fill(1),
        Constraint::Max(44),
        Constraint::Fill(1),
    ])
    .areas(area);
    let [_, middle, _] = Layout::vertical([
        Constraint::Fill(1),
        Constraint::Max(HELP.len() as u16 + 2),
        Constraint::Fill(1),
    ])
    .areas(middle);
    let lines = HELP.map(|(keys, what)| Line::raw(format!(" {keys:<14}{what}")));
    let block = ratatui::widgets::Block::bordered().title(" keys ");
    frame.render_widget(Clear, middle);
    frame.render_widget(Paragraph::new(lines.to_vec()).block(block), middle);
}

fn color(scene: &Scene<'_>, style: Style, color: Color) -> Style {
    match scene.colors {
        true => style.fg(color),
        false => style,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use embar_diagnose::observed::Missing;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::look::{BrokerRates, BrokerRow, TopicRow};
    use super::*;

    fn look(brokers: u32) -> Look {
        let rates = BrokerRates {
            connections: 3,
            paused_connections: 1,
            bytes_in_per_s: 5e8,
            bytes_out_per_s: 0.0,
            messages_per_s: 1e6,
            batches_per_s: 250.0,
            refused_per_s: 0.0,
            log_used: Some(0.5),
            cpus: 0.7,
            uptime_s: 3.0,
        };
        Look {
            brokers: (0..brokers)
                .map(|id| BrokerRow {
                    id,
                    role: "data",
                    state: "ready",
                    address: format!("127.0.0.1:{}", 9400 + id),
                    rates: (id != 1).then_some(rates),
                })
                .collect(),
            topics: vec![TopicRow {
                name: "Ünïcode-".repeat(20),
                order: 5,
                brokers: 2,
                first: 0,
                next: u64::MAX,
                bytes: u64::MAX,
                messages_per_s: None,
                next_of: BTreeMap::new(),
            }],
            ..Look::for_tests()
        }
    }

    fn screen(
        size: (u16, u16),
        look: Option<&Look>,
        choice: &Choice,
        trouble: Option<&str>,
    ) -> String {
        let scene = Scene {
            look,
            address: "127.0.0.1:9400",
            trouble,
            choice,
            colors: true,
            now: look.map_or_else(Instant::now, |it| it.ended) + Duration::from_secs(1),
        };
        shown(size, &scene).0
    }

    fn shown(size: (u16, u16), scene: &Scene<'_>) -> (String, usize) {
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).expect("a screen");
        let mut last = 0;
        let drawn = terminal.draw(|frame| last = draw(frame, scene));
        drawn.expect("drawn");
        (terminal.backend().to_string(), last)
    }

    #[test]
    fn a_look_that_is_old_says_so() {
        let choice = Choice::new(Duration::from_secs(1));
        let look = look(1);
        let scene = |age| Scene {
            look: Some(&look),
            address: "127.0.0.1:9400",
            trouble: None,
            choice: &choice,
            colors: true,
            now: look.ended + Duration::from_secs(age),
        };
        assert!(!shown((120, 24), &scene(1)).0.contains("ago"));
        let text = shown((120, 24), &scene(9)).0;
        assert!(text.contains("seen 9 s ago"), "{text}");
    }

    #[test]
    fn rows_end_with_the_last_one_however_they_are_wrapped() {
        let mut look = look(30);
        look.diagnosis.missing = (0..20)
            .map(|at| Missing {
                what: format!("reading {at}"),
                why: "of a long reason that takes more than a row of a narrow screen".to_owned(),
            })
            .collect();
        let last_row = [(Tab::Brokers, "127.0.0.1:9429"), (Tab::Findings, "screen")];
        for (tab, text) in last_row {
            let choice = |from| Choice {
                tab,
                from,
                ..Choice::new(Duration::from_secs(1))
            };
            let size = match tab {
                Tab::Brokers => (200, 10),
                _ => (30, 10),
            };
            let shown = |from| {
                let choice = choice(from);
                let scene = Scene {
                    look: Some(&look),
                    address: "",
                    trouble: None,
                    choice: &choice,
                    colors: true,
                    now: look.ended,
                };
                shown(size, &scene)
            };
            let (end, last) = shown(usize::MAX);
            let row = end.lines().nth(8).expect("the last row of the body");
            assert!(row.contains(text), "{end}");
            assert_eq!(shown(last).0, end);
            assert_ne!(shown(last - 1).0, end, "one key moves one row");
        }
    }

    #[test]
    fn texts_break_between_words_and_go_on_below_the_first() {
        assert_eq!(wrapped("  a   b", 7), ["  a   b"], "what fits stays");
        assert_eq!(wrapped("  one two three", 9), ["  one two", "  three"]);
        assert_eq!(wrapped("abcdefgh ij", 3), ["abcdefgh", "ij"]);
        assert_eq!(wrapped("a b", 0), ["a", "b"]);
    }

    #[test]
    fn every_view_is_drawn_on_any_screen() {
        for size in [(80, 24), (40, 10), (200, 60), (1, 1), (3, 2)] {
            for brokers in [0, 1, 64] {
                let look = look(brokers);
                for tab in Tab::ALL {
                    for shows_help in [false, true] {
                        let choice = Choice {
                            tab,
                            shows_help,
                            from: 1000,
                            ..Choice::new(Duration::from_secs(1))
                        };
                        screen(size, Some(&look), &choice, None);
                    }
                }
            }
        }
    }

    #[test]
    fn the_head_says_who_answers_and_how_much_moves() {
        let choice = Choice::new(Duration::from_secs(1));
        let text = screen((120, 24), Some(&look(3)), &choice, None);
        for part in [
            "2 of 3 brokers answer",
            "in 953.67MiB/s",
            "no answer",
            "3 (1 wait)",
            "█████·····  50 %",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = screen(
            (120, 24),
            Some(&look(3)),
            &choice,
            Some("nobody answers since 3 s"),
        );
        assert!(text.contains("nobody answers since 3 s"), "{text}");
        let text = screen((120, 24), None, &choice, None);
        assert!(text.contains("looking"), "{text}");
    }

    #[test]
    fn findings_are_sentences_with_the_pipeline_above() {
        let choice = Choice {
            tab: Tab::Findings,
            ..Choice::new(Duration::from_secs(1))
        };
        let text = screen((100, 24), Some(&look(1)), &choice, None);
        assert!(
            text.contains("nothing-found") && text.contains("remedy:"),
            "{text}"
        );
        assert!(text.contains("processors"), "{text}");
    }
}
