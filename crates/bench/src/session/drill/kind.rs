//! The attacks.

use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::{Deserialize, Serialize};

/// Connections that have greeted, of attacks that want many: fewer than one address may have.
const GREETED_MAX: u32 = 1000;
/// Connections of floods, where each sends as fast as it can.
const FLOOD_MAX: u32 = 16;

/// What an attacker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Attack {
    /// Connections that never say anything
    Silent,
    /// Connects and closes at once, as fast as it goes
    Churn,
    /// TLS handshakes, or halves of their first message, that are never finished
    HalfOpenTls,
    /// Greetings of which a byte comes now and then
    SlowGreeting,
    /// Floods of empty messages, which are echoed
    TinyFrames,
    /// Asks for much and reads nothing
    NoReading,
    /// A large message of which a byte comes now and then
    SlowWriter,
    /// Random bytes, in place of the greeting and behind it
    Garbage,
    /// Floods of pings
    Pings,
    /// Bodies of 16 MiB that are announced and never sent
    BigAnnouncements,
    /// Floods of questions for the figures of the server
    StatusFlood,
}

impl Attack {
    /// The name on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether the server is to speak TLS.
    pub fn is_encrypted(self) -> bool {
        self == Self::HalfOpenTls
    }

    /// How many connections it has at a time, of as many as the user grants.
    pub fn connections(self, most: u32) -> u32 {
        match self {
            Self::Silent | Self::HalfOpenTls | Self::SlowGreeting => most,
            Self::NoReading | Self::SlowWriter | Self::BigAnnouncements => most.min(GREETED_MAX),
            Self::TinyFrames | Self::Pings | Self::StatusFlood => most.min(FLOOD_MAX),
            Self::Churn | Self::Garbage => 1,
        }
    }
}

/// What a user may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// Each attack.
    All,
    /// One of them.
    One(Attack),
}

impl Chosen {
    /// The attacks of a list, each once, in the order of the list.
    pub fn attacks(list: &[Self]) -> Vec<Attack> {
        let mut attacks: Vec<Attack> = Vec::new();
        for chosen in list {
            let more = match chosen {
                Self::All => Attack::value_variants(),
                Self::One(attack) => std::slice::from_ref(attack),
            };
            for attack in more {
                if !attacks.contains(attack) {
                    attacks.push(*attack);
                }
            }
        }
        attacks
    }
}

impl ValueEnum for Chosen {
    fn value_variants<'a>() -> &'a [Self] {
        use Attack as A;
        const ALL: &[Chosen] = &[
            Chosen::One(A::Silent),
            Chosen::One(A::Churn),
            Chosen::One(A::HalfOpenTls),
            Chosen::One(A::SlowGreeting),
            Chosen::One(A::TinyFrames),
            Chosen::One(A::NoReading),
            Chosen::One(A::SlowWriter),
            Chosen::One(A::Garbage),
            Chosen::One(A::Pings),
            Chosen::One(A::BigAnnouncements),
            Chosen::One(A::StatusFlood),
            Chosen::All,
        ];
        ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::All => Some(PossibleValue::new("all").help("Each of them in turn")),
            Self::One(attack) => attack.to_possible_value(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attack_can_be_chosen_and_is_tried_once() {
        let every = Attack::value_variants();
        assert_eq!(Chosen::attacks(&[Chosen::All]), every);
        assert_eq!(Chosen::attacks(Chosen::value_variants()), every);
        let list = [Chosen::One(Attack::Pings), Chosen::All];
        let attacks = Chosen::attacks(&list);
        assert_eq!((attacks[0], attacks.len()), (Attack::Pings, every.len()));
        assert_eq!(Attack::HalfOpenTls.name(), "half-open-tls");
    }
}
