//! What both sides know: ids of messages, the messages, and every limit.

#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/game.include.rs"));
}

pub use generated::game::v1::*;

/// Ids of messages; every one carries one.
pub mod id {
    /// [`Move`](super::Move)
    pub const MOVE: u16 = 1;
    /// [`Found`](super::Found)
    pub const FOUND: u16 = 2;
    /// [`Snapshot`](super::Snapshot)
    pub const SNAPSHOT: u16 = 3;
}

/// Cells from left to right. With the list of players beside them they fit into 80 columns.
pub const WIDTH: u32 = 56;
/// Cells from top to bottom.
pub const HEIGHT: u32 = 20;
/// Coins that lie around at any time.
pub const COINS: usize = 40;
/// Most players. A snapshot of as many is a message like another: a test says how long it is.
pub const PLAYERS_MAX: usize = 256;
/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 12;
/// Bytes of a player's secret.
pub const SECRET_BYTES: usize = 16;

/// Moves of one player that wait for the next ticks. Beyond them the player is not read until there is room.
pub const WAITING_MAX: usize = 16;
/// Moves that a player makes in one tick, at most: more that come are made in the next ones.
pub const MOVES_PER_TICK: usize = 4;
/// Finds that a player has not said it heard of. Beyond them it picks up nothing.
pub const UNHEARD_MAX: usize = 64;
/// Ticks after which a player without a session is gone: at 50 ms two minutes.
pub const AWAY_TICKS_MAX: u64 = 2400;
/// Messages that a player has not acknowledged. Beyond them it gets no snapshot, but that of a later tick.
pub const UNREAD_MAX: u64 = 8;

/// Whether somebody with this greeting may play.
///
/// # Errors
/// What to change.
pub fn check_join(join: &JoinView<'_>) -> Result<(), String> {
    let fits = (1..=NAME_BYTES_MAX).contains(&join.name.len());
    if !fits || !join.name.bytes().all(|it| it.is_ascii_alphanumeric()) {
        return Err(format!(
            "a name has 1 to {NAME_BYTES_MAX} letters and digits of ASCII"
        ));
    }
    match join.secret.len() {
        SECRET_BYTES => Ok(()),
        len => Err(format!("a secret has {SECRET_BYTES} bytes, not {len}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_words_and_secrets_have_their_length() {
        let check = |name, secret: &[u8]| check_join(&JoinView { name, secret });
        for good in ["a", "anna", "Bot99", "abcdefghijkl"] {
            assert_eq!(check(good, &[1; 16]), Ok(()));
        }
        for bad in ["", "two words", "\u{1b}[2J", "Jörg", "abcdefghijklm"] {
            check(bad, &[1; 16]).unwrap_err();
        }
        check("anna", &[1; 15]).unwrap_err();
        check("anna", &[]).unwrap_err();
    }
}
