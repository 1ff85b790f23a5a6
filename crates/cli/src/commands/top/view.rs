//! Draws a look: a head, the views' names, the rows of the chosen one, and a line of keys.

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
}

/// Draws it.
pub fn draw(frame: &mut Frame<'_>, scene: &Scene<'_>) {
    let [head, tabs, body, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(head_lines(scene)), head);
    frame.render_widget(Paragraph::new(tab_line(scene)), tabs);
    match scene.look {
        Some(look) if scene.choice.tab == Tab::Findings => findings(frame, body, look, scene),
        Some(look) => rows(frame, body, look, scene),
        None => {
            // The head cuts what is long.
            let text = scene.trouble.unwrap_or("looking ...");
            frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), body);
        }
    }
    frame.render_widget(Paragraph::new(foot_line(scene)), foot);
    if scene.choice.shows_help {
        help(frame);
    }
}

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

fn rows(frame: &mut Frame<'_>, area: Rect, look: &Look, scene: &Scene<'_>) {
    let sheet = Sheet::of(look, scene.choice.tab).within(area.width.into());
    if sheet.rows.is_empty() {
        let text = Paragraph::new(sheet.none).wrap(Wrap { trim: true });
        frame.render_widget(text, area);
        return;
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
    // The last row stays where it can be seen.
    let from = scene.choice.from.min(sheet.rows.len() - 1);
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
}

fn findings(frame: &mut Frame<'_>, area: Rect, look: &Look, scene: &Scene<'_>) {
    let mut lines = Vec::new();
    for line in format!("{}", embar_diagnose::picture::Picture(&look.diagnosis)).lines() {
        let is_marked = line.contains('◀');
        let style = match is_marked {
            true => color(
                scene,
                Style::new().add_modifier(Modifier::BOLD),
                Color::Yellow,
            ),
            false => Style::new(),
        };
        lines.push(Line::styled(line.to_owned(), style));
    }
    lines.push(Line::raw(""));
    for (at, finding) in look.findings().iter().enumerate() {
        let [head, evidence, remedy] = sheet::lines(at + 1, finding);
        lines.push(Line::styled(
            head,
            Style::new().add_modifier(Modifier::BOLD),
        ));
        lines.push(Line::raw(format!("   {evidence}")));
        lines.push(Line::raw(format!("   remedy: {remedy}")));
        lines.push(Line::raw(""));
    }
    for missing in look.missing() {
        lines.push(Line::raw(format!(
            "not read: {}: {}",
            missing.what, missing.why
        )));
    }
    let from = scene.choice.from.min(lines.len().saturating_sub(1)) as u16;
    let text = Paragraph::new(lines)
        .wrap(Wrap { trim: false })
        .scroll((from, 0));
    frame.render_widget(text, area);
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
    use std::time::Duration;

    use embar_diagnose::{Observed, diagnose};
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
            seconds: 1.0,
            head: 0,
            sequencer: Some(0),
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
            }],
            connections: Vec::new(),
            stages: Vec::new(),
            diagnosis: diagnose(&Observed::default()),
            cores: 2,
            busy: 0.4,
        }
    }

    fn screen(
        size: (u16, u16),
        look: Option<&Look>,
        choice: &Choice,
        trouble: Option<&str>,
    ) -> String {
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).expect("a screen");
        let scene = Scene {
            look,
            address: "127.0.0.1:9400",
            trouble,
            choice,
            colors: true,
        };
        terminal.draw(|frame| draw(frame, &scene)).expect("drawn");
        terminal.backend().to_string()
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
