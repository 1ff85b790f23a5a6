//! `bench session --attack`: what honest sessions notice while somebody attacks their server.
//!
//! The server and the attacker are processes of their own; honest sessions do round trips all the time, and newcomers
//! connect again and again. Each attack has a server to itself. Its rounds are quiet, then the attack is built up, then it
//! lasts; so each round has a figure without and one with it, close together in time. All of it is on the loopback
//! interface: the honest come from 127.0.0.1, the attacker from 127.1.0.1 and those behind it, and the server counts these
//! addresses as it counts those of other machines.
//!
//! Read [`kind`] (the attacks), [`plan`] (what is measured), `child` (a process and its lines), [`server`], [`attacker`]
//! and `script` (what it sends), then `honest` (round trips and newcomers), [`measure`] (the rounds), [`report`] (what is
//! printed) and [`idle`] (what a session costs that does nothing).

pub mod attacker;
mod child;
mod honest;
pub mod idle;
pub mod kind;
pub mod measure;
pub mod plan;
pub mod report;
mod script;
pub mod server;
