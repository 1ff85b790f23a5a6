//! The world: players on a grid who collect coins. Moves go in, a tick passes, a snapshot comes out.
//!
//! It does no I/O, reads no clock and takes its random numbers from a state of its own, so the same moves at the same
//! ticks give the same snapshots, also when the world goes to another process in between.
//!
//! What counts has numbers. A move is made once, although it may come again from a player whose server did not say
//! in time that it had it; and a find is kept until the player says that it heard of it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use crate::protocol::{
    AWAY_TICKS_MAX, COINS, Coin, Direction, HEIGHT, MOVES_PER_TICK, PLAYERS_MAX, Player,
    SECRET_BYTES, Snapshot, UNHEARD_MAX, WAITING_MAX, WIDTH,
};

mod stored;

/// Which shows that a player is who it was.
pub type Secret = [u8; SECRET_BYTES];
/// From the left, and from the top.
type Cell = (u32, u32);

/// All that there is.
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    tick: u64,
    random: u64,
    next_player: u32,
    beings: BTreeMap<u32, Being>,
    /// What they are worth.
    coins: BTreeMap<Cell, u32>,
}

/// A player, and what only the world knows of it.
#[derive(Clone, Debug, PartialEq)]
struct Being {
    player: Player,
    secret: Secret,
    /// The number of the last move that waits or was made; 0: none.
    last_taken: u64,
    waiting: VecDeque<Direction>,
    /// Points of the last finds, of which the player has not said that it heard.
    unheard: VecDeque<u32>,
    /// How long nobody has played it. `None`: somebody does.
    away_ticks: Option<u64>,
}

impl Being {
    /// The number of the last find that the player has heard of.
    fn heard(&self) -> u64 {
        self.player.finds - self.unheard.len() as u64
    }
}

/// What became of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It will be made.
    Waits,
    /// It was here before, and counts once.
    Again,
    /// Too many wait: it has to come again after the next tick.
    Full,
}

/// A move that no player who keeps to the rules can send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadMove;

impl fmt::Display for BadMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("moves are numbered one by one, and each has a direction")
    }
}

/// A coin that was picked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Find {
    /// Among all of its player's.
    pub number: u64,
    /// What it was worth.
    pub points: u32,
}

impl World {
    /// One without players. Others have the same coins if they have the same seed.
    pub fn new(seed: u64) -> Self {
        let mut world = Self {
            tick: 0,
            random: seed,
            next_player: 1,
            beings: BTreeMap::new(),
            coins: BTreeMap::new(),
        };
        world.lay_coins();
        world
    }

    /// Ticks that have passed.
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// How many players there are.
    pub fn players(&self) -> usize {
        self.beings.len()
    }

    /// Somebody plays: the player who has this secret, or a new one. True: a new one.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn enter(&mut self, name: &str, secret: &Secret) -> Result<(u32, bool), String> {
        let mut beings = self.beings.values_mut();
        if let Some(known) = beings.find(|it| it.secret == *secret) {
            known.away_ticks = None;
            return Ok((known.player.id, false));
        }
        if self.beings.values().any(|it| it.player.name == name) {
            return Err(format!("{name} plays already: take another name"));
        }
        if self.beings.len() >= PLAYERS_MAX {
            return Err(format!("{PLAYERS_MAX} play already: come back later"));
        }
        let id = self.next_player;
        self.next_player += 1;
        let (x, y) = self.any_cell();
        let player = Player {
            id,
            name: name.to_owned(),
            x,
            y,
            ..Player::default()
        };
        self.beings.insert(
            id,
            Being {
                player,
                secret: *secret,
                last_taken: 0,
                waiting: VecDeque::new(),
                unheard: VecDeque::new(),
                away_ticks: None,
            },
        );
        Ok((id, true))
    }

    /// Nobody plays it at the moment. It stays where it is, for a while.
    pub fn away(&mut self, player: u32) {
        if let Some(being) = self.beings.get_mut(&player) {
            being.away_ticks.get_or_insert(0);
        }
    }

    /// Nobody plays anybody at the moment.
    pub fn all_away(&mut self) {
        for being in self.beings.values_mut() {
            being.away_ticks.get_or_insert(0);
        }
    }

    /// It plays no more.
    pub fn leave(&mut self, player: u32) {
        self.beings.remove(&player);
    }

    /// Takes a move of this player, who has heard of its finds up to number `heard`. The first of a player may have
    /// any number, since the world before this one may be lost.
    ///
    /// # Errors
    /// It is out of order, or goes nowhere.
    pub fn take(
        &mut self,
        player: u32,
        number: u64,
        direction: Direction,
        heard: u64,
    ) -> Result<Taken, BadMove> {
        let being = self.beings.get_mut(&player).ok_or(BadMove)?;
        if number == 0 || direction == Direction::DIRECTION_UNSPECIFIED {
            return Err(BadMove);
        }
        if being.last_taken != 0 {
            if number <= being.last_taken {
                return Ok(Taken::Again);
            }
            if number - 1 != being.last_taken {
                return Err(BadMove);
            }
        }
        // Beyond what there is nothing can be heard of; it may be meant for a world that was lost.
        while being.heard() < heard && being.unheard.pop_front().is_some() {}
        if being.waiting.len() >= WAITING_MAX {
            return Ok(Taken::Full);
        }
        being.waiting.push_back(direction);
        being.last_taken = number;
        Ok(Taken::Waits)
    }

    /// Whether another move of this player can wait.
    pub fn has_room(&self, player: u32) -> bool {
        let being = self.beings.get(&player);
        being.is_some_and(|it| it.waiting.len() < WAITING_MAX)
    }

    /// A tick passes: each player makes the moves that wait, up to a limit, and picks up what lies there.
    pub fn step(&mut self) {
        self.tick += 1;
        self.beings.retain(|_, being| {
            let away = being.away_ticks.as_mut();
            away.is_none_or(|ticks| {
                *ticks += 1;
                *ticks <= AWAY_TICKS_MAX
            })
        });
        let mut order: Vec<u32> = self.beings.keys().copied().collect();
        // Of two who reach a coin in the same tick it is not always the same one who has it.
        if !order.is_empty() {
            let first = self.tick % order.len() as u64;
            order.rotate_left(usize::try_from(first).expect("an index"));
        }
        for player in order {
            if let Some(being) = self.beings.get_mut(&player) {
                being.go(&mut self.coins);
            }
        }
        self.lay_coins();
    }

    /// Finds of this player after number `from` of which it has not heard.
    pub fn finds_after(&self, player: u32, from: u64) -> impl Iterator<Item = Find> {
        let being = self.beings.get(&player).into_iter();
        let finds = being.flat_map(|it| (it.heard() + 1..).zip(&it.unheard));
        finds
            .map(|(number, &points)| Find { number, points })
            .filter(move |find| find.number > from)
    }

    /// How all things are.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            tick: self.tick,
            players: self.beings.values().map(|it| it.player.clone()).collect(),
            coins: self.coins().collect(),
        }
    }

    fn coins(&self) -> impl Iterator<Item = Coin> {
        self.coins
            .iter()
            .map(|(&(x, y), &points)| Coin { x, y, points })
    }

    /// Until there are as many as there should be.
    fn lay_coins(&mut self) {
        while self.coins.len() < COINS {
            let cell = self.any_cell();
            let points = match self.random_below(10) {
                0 => 9,
                1..=3 => 3,
                _ => 1,
            };
            self.coins.entry(cell).or_insert(points);
        }
    }

    fn any_cell(&mut self) -> Cell {
        (self.random_below(WIDTH), self.random_below(HEIGHT))
    }

    /// SplitMix64 (Steele, Lea and Flood, 2014): a state of one number, which is easily carried.
    fn random_below(&mut self, limit: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let high = (mixed >> 32) * u64::from(limit);
        u32::try_from(high >> 32).expect("less than the limit")
    }
}

impl Being {
    /// Makes the moves of one tick. Who has walls ahead stays, and has moved all the same.
    fn go(&mut self, coins: &mut BTreeMap<Cell, u32>) {
        let now = self.waiting.len().min(MOVES_PER_TICK);
        for direction in self.waiting.drain(..now) {
            let player = &mut self.player;
            match direction {
                Direction::DIRECTION_UP => player.y = player.y.saturating_sub(1),
                Direction::DIRECTION_DOWN => player.y = (player.y + 1).min(HEIGHT - 1),
                Direction::DIRECTION_LEFT => player.x = player.x.saturating_sub(1),
                Direction::DIRECTION_RIGHT => player.x = (player.x + 1).min(WIDTH - 1),
                Direction::DIRECTION_UNSPECIFIED => {}
            }
            player.moves += 1;
            if self.unheard.len() < UNHEARD_MAX
                && let Some(points) = coins.remove(&(player.x, player.y))
            {
                player.score += u64::from(points);
                player.finds += 1;
                self.unheard.push_back(points);
            }
        }
        self.player.last_move = self.last_taken - self.waiting.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use buffa::Message as _;

    use super::*;

    const ALL: [Direction; 4] = [
        Direction::DIRECTION_UP,
        Direction::DIRECTION_RIGHT,
        Direction::DIRECTION_DOWN,
        Direction::DIRECTION_LEFT,
    ];

    fn secret(of: u8) -> Secret {
        [of; SECRET_BYTES]
    }

    /// A world with one player.
    fn alone() -> (World, u32) {
        let mut world = World::new(1);
        let (anna, is_new) = world.enter("anna", &secret(1)).unwrap();
        assert!(is_new);
        (world, anna)
    }

    fn right(world: &mut World, player: u32, number: u64) -> Result<Taken, BadMove> {
        world.take(player, number, Direction::DIRECTION_RIGHT, 0)
    }

    fn the(world: &World, player: u32) -> Player {
        let all = world.snapshot().players;
        all.into_iter().find(|it| it.id == player).unwrap()
    }

    /// Ticks `ticks` times while two players wander, and goes to another process at tick `carried`.
    fn wander(world: &mut World, ticks: u64, carried: u64) -> Vec<Snapshot> {
        let anna = world.enter("anna", &secret(1)).unwrap().0;
        let ben = world.enter("ben", &secret(2)).unwrap().0;
        let tick = |number| {
            if number == carried {
                *world = World::read(&world.to_bytes()).unwrap();
            }
            let direction = ALL[(number / 7 % 4) as usize];
            world.take(anna, number, direction, 0).unwrap();
            let direction = ALL[(number / 5 % 4) as usize];
            world.take(ben, number, direction, 0).unwrap();
            world.step();
            world.snapshot()
        };
        (1..=ticks).map(tick).collect()
    }

    #[test]
    fn the_same_moves_give_the_same_snapshots_also_across_processes() {
        let stayed = wander(&mut World::new(7), 500, 0);
        let moved = wander(&mut World::new(7), 500, 251);
        assert_eq!(stayed, moved);
        let last = stayed.last().unwrap();
        assert_eq!(last.tick, 500);
        assert!(last.players.iter().any(|it| it.score > 0), "{last:?}");
        assert_ne!(stayed, wander(&mut World::new(8), 500, 0));
    }

    #[test]
    fn a_world_is_carried_with_what_waits_in_it() {
        let (mut world, anna) = alone();
        let ben = world.enter("ben", &secret(2)).unwrap().0;
        for number in 1..=9 {
            right(&mut world, anna, number).unwrap();
        }
        world.step();
        world.away(ben);
        world.step();
        world.beings.get_mut(&anna).unwrap().unheard = [1, 9].into();
        world.beings.get_mut(&anna).unwrap().player.finds = 5;
        assert_eq!(World::read(&world.to_bytes()).unwrap(), world);
        World::read(b"HTTP/1.1").unwrap_err();
        let cut = world.to_bytes();
        World::read(&cut[..cut.len() - 1]).unwrap_err();
    }

    #[test]
    fn each_move_counts_once_and_in_order() {
        let (mut world, anna) = alone();
        assert_eq!(right(&mut world, anna, 5), Ok(Taken::Waits), "any first");
        assert_eq!(right(&mut world, anna, 6), Ok(Taken::Waits));
        assert_eq!(right(&mut world, anna, 6), Ok(Taken::Again));
        assert_eq!(right(&mut world, anna, 1), Ok(Taken::Again));
        assert_eq!(right(&mut world, anna, 8), Err(BadMove), "7 is missing");
        world.step();
        assert_eq!(right(&mut world, anna, 6), Ok(Taken::Again));
        assert_eq!(right(&mut world, anna, 7), Ok(Taken::Waits));
        world.step();
        let player = the(&world, anna);
        assert_eq!((player.moves, player.last_move), (3, 7));
    }

    #[test]
    fn what_no_move_is_is_refused() {
        let (mut world, anna) = alone();
        let nowhere = Direction::DIRECTION_UNSPECIFIED;
        assert_eq!(right(&mut world, anna, 0), Err(BadMove));
        assert_eq!(world.take(anna, 1, nowhere, 0), Err(BadMove));
        assert_eq!(right(&mut world, anna + 1, 1), Err(BadMove), "nobody");
        assert_eq!(right(&mut world, anna, u64::MAX), Ok(Taken::Waits));
        assert_eq!(right(&mut world, anna, 1), Ok(Taken::Again));
    }

    #[test]
    fn a_tick_makes_few_moves_and_the_others_wait_up_to_a_limit() {
        let (mut world, anna) = alone();
        let most = WAITING_MAX as u64;
        for number in 1..=most {
            assert!(world.has_room(anna));
            assert_eq!(right(&mut world, anna, number), Ok(Taken::Waits));
        }
        assert!(!world.has_room(anna));
        assert_eq!(right(&mut world, anna, most + 1), Ok(Taken::Full));
        world.step();
        assert_eq!(the(&world, anna).moves, MOVES_PER_TICK as u64);
        assert_eq!(right(&mut world, anna, most + 1), Ok(Taken::Waits));
        while the(&world, anna).last_move <= most {
            world.step();
        }
        assert_eq!(the(&world, anna).moves, most + 1);
    }

    #[test]
    fn finds_are_told_until_they_are_heard() {
        let (mut world, anna) = alone();
        let at = the(&world, anna);
        let direction = match at.x {
            0 => Direction::DIRECTION_RIGHT,
            _ => Direction::DIRECTION_LEFT,
        };
        let mut numbers = 1..;
        let mut meets = |world: &mut World, heard| {
            let number = numbers.next().unwrap();
            let direction = match number % 2 {
                1 => direction,
                _ if at.x == 0 => Direction::DIRECTION_LEFT,
                _ => Direction::DIRECTION_RIGHT,
            };
            let there = match (number % 2, at.x) {
                (1, 0) => 1,
                (1, x) => x - 1,
                (_, x) => x,
            };
            world.coins.insert((there, at.y), 3);
            world.take(anna, number, direction, heard).unwrap();
            world.step();
        };
        let finds = |world: &World, from| -> Vec<u64> {
            world
                .finds_after(anna, from)
                .map(|find| find.number)
                .collect()
        };
        for _ in 0..3 {
            meets(&mut world, 0);
        }
        assert_eq!(finds(&world, 0), [1, 2, 3]);
        assert_eq!(finds(&world, 2), [3]);
        meets(&mut world, 2);
        assert_eq!(finds(&world, 0), [3, 4]);
        assert_eq!(the(&world, anna).score, 12);
        // Who says nothing of them picks up no more than it may leave unheard.
        for _ in 0..UNHEARD_MAX {
            meets(&mut world, 2);
        }
        assert_eq!(finds(&world, 0).len(), UNHEARD_MAX);
        assert_eq!(the(&world, anna).finds, 2 + UNHEARD_MAX as u64);
        meets(&mut world, 2 + UNHEARD_MAX as u64);
        assert_eq!(finds(&world, 0).len(), 1);
    }

    #[test]
    fn who_is_away_stays_for_a_while_and_is_found_by_its_secret() {
        let (mut world, anna) = alone();
        right(&mut world, anna, 1).unwrap();
        world.away(anna);
        for _ in 0..AWAY_TICKS_MAX {
            world.step();
        }
        assert_eq!(the(&world, anna).moves, 1, "what waited is made");
        world.enter("anna", &secret(2)).unwrap_err();
        assert_eq!(world.enter("anna", &secret(1)), Ok((anna, false)));
        world.step();
        world.away(anna);
        for _ in 0..=AWAY_TICKS_MAX {
            world.step();
        }
        assert_eq!(world.players(), 0);
        assert_eq!(world.enter("anna", &secret(1)), Ok((anna + 1, true)));
        world.leave(anna + 1);
        assert_eq!(world.players(), 0);
    }

    #[test]
    fn a_world_full_of_players_fits_into_a_message() {
        let mut world = World::new(1);
        for number in 0..PLAYERS_MAX {
            let name = format!("{number:012}");
            let mut secret = secret(0);
            secret[..8].copy_from_slice(&number.to_le_bytes());
            let id = world.enter(&name, &secret).unwrap().0;
            let player = &mut world.beings.get_mut(&id).unwrap().player;
            (player.score, player.moves) = (u64::MAX, u64::MAX);
            (player.last_move, player.finds) = (u64::MAX, u64::MAX);
        }
        let full = world.enter("anna", &secret(255)).unwrap_err();
        assert!(full.contains("256 play"), "{full}");
        let bytes = world.snapshot().encode_to_vec().len();
        assert!(bytes < 24 << 10, "{bytes}");
        let real = world.snapshot();
        assert!(real.coins.iter().all(|it| it.x < WIDTH && it.y < HEIGHT));
    }
}
