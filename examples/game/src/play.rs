//! A person plays: keys go out as moves, the newest snapshot is on the screen.

use std::io::{IsTerminal, stdin, stdout};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use buffa::MessageView as _;
use embar_resume::State;
use embar_session::Address;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::widgets::Paragraph;

use crate::pilot::{Eyes, Pilot, Tally, connector};
use crate::protocol::{Direction, Snapshot, SnapshotView};
use crate::view::{Scene, frame};

/// Between two looks for news, while no key is pressed.
const LOOK: Duration = Duration::from_millis(20);
/// How long the server has to take the last moves.
const FAREWELL: Duration = Duration::from_secs(2);

/// The newest snapshot, and who looks at it.
#[derive(Clone, Default)]
struct Newest(Arc<Mutex<(u32, Snapshot)>>);

impl Eyes for Newest {
    fn see(&mut self, so_far: &Tally, snapshot: &SnapshotView<'_>) {
        if let Ok(snapshot) = snapshot.to_owned_message() {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (so_far.me, snapshot);
        }
    }
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Go(Direction),
    Leave,
}

fn wish(key: KeyEvent) -> Option<Wish> {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c' | 'd') if is_control => Wish::Leave,
        KeyCode::Char('q') | KeyCode::Esc => Wish::Leave,
        KeyCode::Up | KeyCode::Char('k') => Wish::Go(Direction::DIRECTION_UP),
        KeyCode::Down | KeyCode::Char('j') => Wish::Go(Direction::DIRECTION_DOWN),
        KeyCode::Left | KeyCode::Char('h') => Wish::Go(Direction::DIRECTION_LEFT),
        KeyCode::Right | KeyCode::Char('l') => Wish::Go(Direction::DIRECTION_RIGHT),
        _ => return None,
    })
}

/// Plays until the person leaves, or the server does not let it.
pub fn run(address: &Address, name: &str) -> Result<()> {
    ensure!(
        stdin().is_terminal() && stdout().is_terminal(),
        "a person plays in a terminal: `game bots` plays without one"
    );
    let connector = connector()?;
    let newest = Newest::default();
    let mut pilot = Pilot::join(&connector, address, name, newest.clone())?;
    // It gives the terminal back also when this panics.
    let terminal = ratatui::try_init().context("cannot use this terminal");
    let played = terminal.and_then(|mut it| play(&mut it, &mut pilot, &newest));
    ratatui::restore();
    pilot.session().close();
    pilot.session().wait_until(FAREWELL, |_| false);
    played
}

fn play(terminal: &mut DefaultTerminal, pilot: &mut Pilot, newest: &Newest) -> Result<()> {
    loop {
        let status = match pilot.session().state() {
            State::Closed(ended) => bail!("the game is over: {}", ended.why),
            state if state.is_open() => "connected".to_owned(),
            _ => format!(
                "the server is away: {} moves wait",
                pilot.session().unacknowledged()
            ),
        };
        let (me, snapshot) = {
            let newest = newest.0.lock().unwrap_or_else(PoisonError::into_inner);
            newest.clone()
        };
        let text = frame(&Scene {
            snapshot: &snapshot,
            me,
            status: &status,
        });
        terminal.draw(|it| it.render_widget(Paragraph::new(text), it.area()))?;
        if !event::poll(LOOK)? {
            continue;
        }
        if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            match wish(key) {
                Some(Wish::Leave) => return Ok(()),
                // A key that finds all full is one that was not pressed.
                Some(Wish::Go(direction)) => drop(pilot.go(direction)),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_move_and_leave() {
        let press = |code| wish(KeyEvent::new(code, KeyModifiers::NONE));
        let up = Some(Wish::Go(Direction::DIRECTION_UP));
        assert_eq!((press(KeyCode::Up), press(KeyCode::Char('k'))), (up, up));
        assert_eq!(press(KeyCode::Char('q')), Some(Wish::Leave));
        assert_eq!(press(KeyCode::Char('c')), None);
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(wish(control), Some(Wish::Leave));
    }
}
