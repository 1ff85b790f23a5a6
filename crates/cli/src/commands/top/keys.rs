//! What the keys do.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::sheet::Tab;

/// A look takes no less, and no more.
const INTERVALS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(250)..=Duration::from_secs(60);

/// What the user has chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    pub tab: Tab,
    /// The first row that is shown.
    pub from: usize,
    pub is_paused: bool,
    pub shows_help: bool,
    pub interval: Duration,
    pub is_over: bool,
}

impl Choice {
    /// At the start.
    pub fn new(interval: Duration) -> Self {
        Self {
            tab: Tab::default(),
            from: 0,
            is_paused: false,
            shows_help: false,
            interval: interval.clamp(*INTERVALS.start(), *INTERVALS.end()),
            is_over: false,
        }
    }

    /// Takes in a key.
    pub fn press(&mut self, key: KeyEvent) {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if is_control => self.is_over = true,
            KeyCode::Esc if self.shows_help => self.shows_help = false,
            KeyCode::Char('q') | KeyCode::Esc => self.is_over = true,
            KeyCode::Char('?' | 'h') => self.shows_help = !self.shows_help,
            KeyCode::Char(digit @ '1'..='5') => {
                self.turn_to(Tab::ALL[digit as usize - '1' as usize]);
            }
            KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => self.turn_to(self.tab.after(1)),
            KeyCode::BackTab | KeyCode::Left => self.turn_to(self.tab.after(Tab::ALL.len() - 1)),
            KeyCode::Down | KeyCode::Char('j') => self.from = self.from.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.from = self.from.saturating_sub(1),
            KeyCode::Home => self.from = 0,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('+') => self.set_interval(self.interval * 2),
            KeyCode::Char('-') => self.set_interval(self.interval / 2),
            _ => {}
        }
    }

    fn turn_to(&mut self, tab: Tab) {
        (self.tab, self.from) = (tab, 0);
    }

    fn set_interval(&mut self, interval: Duration) {
        self.interval = interval.clamp(*INTERVALS.start(), *INTERVALS.end());
    }
}

/// For the view of the keys.
pub const HELP: [(&str, &str); 6] = [
    ("1 to 5, Tab", "another view"),
    ("Up, Down", "other rows"),
    ("p, Space", "hold still, and go on"),
    ("+ -", "look for longer, or shorter"),
    ("?", "these keys"),
    ("q, Esc", "end"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn press(choice: &mut Choice, code: KeyCode) {
        choice.press(KeyEvent::new(code, KeyModifiers::NONE));
    }

    #[test]
    fn keys_choose_views_and_rows() {
        let mut choice = Choice::new(Duration::from_secs(1));
        press(&mut choice, KeyCode::Char('4'));
        press(&mut choice, KeyCode::Down);
        assert_eq!((choice.tab, choice.from), (Tab::Stages, 1));
        press(&mut choice, KeyCode::Tab);
        assert_eq!((choice.tab, choice.from), (Tab::Findings, 0));
        press(&mut choice, KeyCode::Tab);
        assert_eq!(choice.tab, Tab::Brokers);
        press(&mut choice, KeyCode::Up);
        assert_eq!(choice.from, 0);
        press(&mut choice, KeyCode::BackTab);
        assert_eq!(choice.tab, Tab::Findings);
        press(&mut choice, KeyCode::Char('6'));
        assert_eq!(choice.tab, Tab::Findings, "there is no sixth");
    }

    #[test]
    fn an_interval_stays_within_bounds() {
        let mut choice = Choice::new(Duration::from_nanos(1));
        assert_eq!(choice.interval, *INTERVALS.start());
        for _ in 0..20 {
            press(&mut choice, KeyCode::Char('+'));
        }
        assert_eq!(choice.interval, *INTERVALS.end());
        press(&mut choice, KeyCode::Char('-'));
        assert_eq!(choice.interval, *INTERVALS.end() / 2);
    }

    #[test]
    fn it_ends_by_q_and_by_control_c_and_escape_leaves_the_help_first() {
        let mut choice = Choice::new(Duration::from_secs(1));
        press(&mut choice, KeyCode::Char('?'));
        press(&mut choice, KeyCode::Esc);
        assert!(!choice.shows_help && !choice.is_over);
        press(&mut choice, KeyCode::Char('c'));
        assert!(!choice.is_over);
        let mut by_signal = choice.clone();
        by_signal.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        press(&mut choice, KeyCode::Char('q'));
        assert!(choice.is_over && by_signal.is_over);
    }
}
