//! A world as bytes, on its way from a process to the next one.

use std::collections::VecDeque;

use anyhow::{Context, ensure};
use buffa::Message as _;

use super::{Being, World};
use crate::protocol::{Direction, Stored, World as Carried};

impl World {
    /// All of it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let players = self.beings.values().map(|being| Stored {
            player: being.player.clone().into(),
            secret: being.secret.to_vec(),
            last_taken: being.last_taken,
            waiting: being.waiting.iter().map(|it| (*it).into()).collect(),
            unheard: being.unheard.iter().copied().collect(),
            away_ticks: being.away_ticks,
        });
        let carried = Carried {
            tick: self.tick,
            random: self.random,
            next_player: self.next_player,
            players: players.collect(),
            coins: self.coins().collect(),
        };
        carried.encode_to_vec()
    }

    /// The world that these bytes are of.
    ///
    /// # Errors
    /// They are of none.
    pub fn read(bytes: &[u8]) -> anyhow::Result<Self> {
        let carried = Carried::decode_from_slice(bytes).context("it is no world")?;
        let beings = carried.players.into_iter().map(|stored| {
            let being = Being::read(stored)?;
            Ok((being.player.id, being))
        });
        let coins = carried.coins.iter().map(|it| ((it.x, it.y), it.points));
        Ok(Self {
            tick: carried.tick,
            random: carried.random,
            next_player: carried.next_player,
            beings: beings.collect::<anyhow::Result<_>>()?,
            coins: coins.collect(),
        })
    }
}

impl Being {
    fn read(stored: Stored) -> anyhow::Result<Self> {
        let player = stored.player.into_option().context("a player is missing")?;
        let secret = stored.secret.try_into();
        let known = stored.waiting.iter().map(|it| it.as_known());
        let waiting: Option<VecDeque<Direction>> = known.collect();
        ensure!(
            stored.unheard.len() as u64 <= player.finds,
            "a player has not heard of more than it found"
        );
        Ok(Self {
            player,
            secret: secret.map_err(|_| anyhow::anyhow!("a secret has another length"))?,
            last_taken: stored.last_taken,
            waiting: waiting.context("a move has no direction")?,
            unheard: stored.unheard.into(),
            away_ticks: stored.away_ticks,
        })
    }
}
