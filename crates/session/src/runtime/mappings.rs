//! How many sessions a server or client may have at a time: each takes memory mappings, and the
//! system limits those of a process.

use std::io;

use super::settings::Settings;
use embar_transport::marks;

/// As many as one worker can have; what arrivals and listeners take is left free.
const MOST: usize = marks::SLOTS - 4096;

/// Mappings of a ring: its memory is mapped twice, back to back.
const PER_RING: usize = 2;

/// Mappings that are left to the rest of the process: its code, threads and heaps.
const RESERVE: usize = 2048;

/// Most mappings a process may have; `None` where the system does not say.
pub(super) fn limit() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok()?;
    text.trim().parse().ok()
}

/// The `max_sessions` that count.
///
/// # Errors
/// If more are asked for than `limit` has room for.
pub(super) fn carried(settings: &Settings, limit: Option<usize>) -> io::Result<usize> {
    let asked = settings.max_sessions;
    let Some(limit) = limit else {
        return Ok(asked.min(MOST));
    };
    // Who has not greeted, or is refused, has no rings. Idle rings do not count: all of them were
    // those of a session, and a new one takes them first.
    let per_session = 2 * PER_RING;
    let room = limit.saturating_sub(RESERVE) / per_session;
    if asked == usize::MAX {
        return Ok(room.min(MOST));
    }
    let asked = asked.min(MOST);
    if asked <= room {
        return Ok(asked);
    }
    let needed = asked.saturating_mul(per_session).saturating_add(RESERVE);
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!(
            "max_sessions is {asked}, but vm.max_map_count is {limit}, which has room for {room}: \
             set it to {needed} (sysctl vm.max_map_count={needed}), or lower max_sessions"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Linux has unless an administrator changes it.
    const USUAL: usize = 65_530;

    fn asking(max_sessions: usize) -> Settings {
        Settings {
            max_sessions,
            ..Settings::default()
        }
    }

    #[test]
    fn the_default_takes_half_of_the_usual_limit() {
        let settings = Settings::default();
        assert_eq!(carried(&settings, Some(USUAL)).unwrap(), 8192);
        let all = settings.max_sessions * 2 * PER_RING;
        assert!(all <= USUAL / 2 + 4, "{all}");
    }

    #[test]
    fn more_than_fits_is_an_error_that_says_what_to_set() {
        let error = carried(&asking(20_000), Some(USUAL)).unwrap_err();
        let text = error.to_string();
        let needed: usize = text
            .split("max_map_count=")
            .nth(1)
            .and_then(|rest| rest.split(')').next())
            .and_then(|number| number.parse().ok())
            .expect(&text);
        assert_eq!(carried(&asking(20_000), Some(needed)).unwrap(), 20_000);
        assert!(carried(&asking(20_000), Some(needed - 4)).is_err());
    }

    #[test]
    fn as_many_as_possible_are_as_many_as_fit() {
        let most = carried(&asking(usize::MAX), Some(USUAL)).unwrap();
        assert_eq!(carried(&asking(most), Some(USUAL)).unwrap(), most);
        assert!(carried(&asking(most + 1), Some(USUAL)).is_err());
        assert_eq!(carried(&asking(usize::MAX), None).unwrap(), MOST);
        let plenty = Some(usize::MAX);
        assert_eq!(carried(&asking(usize::MAX), plenty).unwrap(), MOST);
    }
}
