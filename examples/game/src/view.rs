//! A snapshot as people see it: a function from what there is to the text of one frame.

use std::cmp::Reverse;

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};

use crate::protocol::{Coin, HEIGHT, Player, Snapshot, WIDTH};

/// Players who are listed beside the grid, the best of them.
const LISTED: usize = HEIGHT as usize - 2;

/// What a frame shows.
pub struct Scene<'a> {
    pub snapshot: &'a Snapshot,
    /// Who looks.
    pub me: u32,
    /// How the connection stands.
    pub status: &'a str,
}

#[derive(Clone, Copy, PartialEq)]
struct Glyph {
    is: char,
    style: Style,
}

/// One frame: the grid in a border, beside it the best players, and a line about the one who looks.
pub fn frame(scene: &Scene<'_>) -> Text<'static> {
    let edge = format!("+{}+", "-".repeat(WIDTH as usize));
    let mut lines = vec![Line::from(edge.clone())];
    let mut list = list(scene).into_iter();
    for row in grid(scene) {
        let mut spans = vec![Span::from("|")];
        for same in row.chunk_by(|one, next| one.style == next.style) {
            let text: String = same.iter().map(|it| it.is).collect();
            spans.push(Span::styled(text, same[0].style));
        }
        spans.push(Span::from("|  "));
        spans.extend(list.next());
        lines.push(Line::from(spans));
    }
    lines.push(Line::from(edge));
    lines.push(Line::from(about(scene)));
    Text::from(lines)
}

/// What lies and stands in each cell. What a server says may be wrong: what is outside of the grid is not shown.
fn grid(scene: &Scene<'_>) -> Vec<Vec<Glyph>> {
    let empty = Glyph {
        is: ' ',
        style: Style::new(),
    };
    let mut cells = vec![vec![empty; WIDTH as usize]; HEIGHT as usize];
    let mut put = |x: u32, y: u32, glyph| {
        let row = cells.get_mut(y as usize);
        if let Some(cell) = row.and_then(|row| row.get_mut(x as usize)) {
            *cell = glyph;
        }
    };
    for it in &scene.snapshot.coins {
        put(it.x, it.y, coin(it));
    }
    for it in &scene.snapshot.players {
        put(it.x, it.y, other(it));
    }
    if let Some(it) = me(scene) {
        let style = Style::new()
            .fg(Color::Black)
            .bg(Color::Green)
            .add_modifier(Modifier::BOLD);
        put(it.x, it.y, Glyph { is: '@', style });
    }
    cells
}

fn me<'a>(scene: &Scene<'a>) -> Option<&'a Player> {
    let mut all = scene.snapshot.players.iter();
    all.find(|it| it.id == scene.me)
}

fn coin(coin: &Coin) -> Glyph {
    let (is, color) = match coin.points {
        0..=1 => ('.', Color::DarkGray),
        2..=3 => ('o', Color::Yellow),
        _ => ('$', Color::LightYellow),
    };
    let style = Style::new().fg(color);
    Glyph { is, style }
}

fn other(player: &Player) -> Glyph {
    const COLORS: [Color; 5] = [
        Color::Cyan,
        Color::Magenta,
        Color::Blue,
        Color::Red,
        Color::LightCyan,
    ];
    let first = player.name.chars().next();
    let is = first.filter(char::is_ascii_alphanumeric).unwrap_or('?');
    let color = COLORS[player.id as usize % COLORS.len()];
    let style = Style::new().fg(color);
    Glyph {
        is: is.to_ascii_uppercase(),
        style,
    }
}

/// The best first.
fn list(scene: &Scene<'_>) -> Vec<Span<'static>> {
    let mut players: Vec<_> = scene.snapshot.players.iter().collect();
    players.sort_by_key(|it| (Reverse(it.score), it.id));
    let first = players.into_iter().take(LISTED);
    first
        .map(|it| {
            let style = match it.id == scene.me {
                true => Style::new().add_modifier(Modifier::BOLD),
                false => other(it).style,
            };
            Span::styled(format!("{:<12} {:>6}", name(it), it.score), style)
        })
        .collect()
}

/// Without what a terminal obeys.
fn name(player: &Player) -> String {
    let fit = player.name.chars().filter(char::is_ascii_alphanumeric);
    fit.collect()
}

fn about(scene: &Scene<'_>) -> String {
    let (tick, players) = (scene.snapshot.tick, scene.snapshot.players.len());
    let score = me(scene).map_or(0, |it| it.score);
    let status = scene.status;
    format!("{score} points   tick {tick}, {players} players, {status}   arrows move, q leaves")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn player(id: u32, name: &str, x: u32, y: u32, score: u64) -> Player {
        Player {
            id,
            name: name.to_owned(),
            x,
            y,
            score,
            ..Player::default()
        }
    }

    fn coin(x: u32, y: u32, points: u32) -> Coin {
        Coin { x, y, points }
    }

    fn lines(snapshot: &Snapshot) -> Vec<String> {
        let scene = Scene {
            snapshot,
            me: 1,
            status: "connected",
        };
        frame(&scene)
            .lines
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_frame_shows_who_is_where_and_who_leads() {
        let snapshot = Snapshot {
            tick: 7,
            players: vec![
                player(1, "anna", 0, 0, 3),
                player(2, "ben", WIDTH - 1, HEIGHT - 1, 12),
                player(3, "carl", 0, 0, 1),
            ],
            coins: vec![coin(1, 0, 1), coin(3, 0, 9), coin(5, 1, 3)],
        };
        let lines = lines(&snapshot);
        assert_eq!(lines.len(), HEIGHT as usize + 3);
        assert!(lines[1].starts_with("|@. $  "), "{}", lines[1]);
        assert!(lines[2].starts_with("|     o "), "{}", lines[2]);
        assert!(lines[HEIGHT as usize].contains(" B|"), "{lines:#?}");
        let listed = |line: &String| line.rsplit_once("|  ").map(|it| it.1.to_owned());
        let first: Vec<_> = lines[1..4].iter().filter_map(listed).collect();
        assert_eq!(
            first,
            [
                "ben              12",
                "anna              3",
                "carl              1"
            ]
        );
        let last = lines.last().unwrap();
        assert!(
            last.starts_with("3 points   tick 7, 3 players, connected"),
            "{last}"
        );
    }

    #[test]
    fn what_a_server_makes_up_hurts_no_terminal() {
        let snapshot = Snapshot {
            players: vec![
                player(2, "\u{1b}[2Jx", 3, 0, u64::MAX),
                player(3, "", u32::MAX, u32::MAX, 0),
            ],
            coins: vec![coin(WIDTH, 0, u32::MAX), coin(0, HEIGHT, 0)],
            ..Snapshot::default()
        };
        let lines = lines(&snapshot);
        assert!(lines[1].starts_with("|   ? "), "{}", lines[1]);
        assert!(!lines.concat().contains(char::is_control));
    }

    #[test]
    fn a_crowd_fits_beside_the_grid() {
        let players = (1..200).map(|id| player(id, "bot", id % WIDTH, 1, id.into()));
        let snapshot = Snapshot {
            players: players.collect(),
            ..Snapshot::default()
        };
        let lines = lines(&snapshot);
        assert_eq!(lines.len(), HEIGHT as usize + 3);
        let widest = lines.iter().map(|it| it.len()).max().unwrap();
        assert!(widest <= 80, "{widest}");
    }
}
