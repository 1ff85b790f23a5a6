//! One file per command: its options and what it does.

pub mod bench;
pub mod broker;
pub mod consume;
pub mod data;
pub mod diagnose;
pub mod drain;
pub mod layout;
pub mod produce;
pub mod profile;
pub mod quickstart;
pub mod report;
pub mod status;
pub mod top;
pub mod topic;
pub mod up;
pub mod verify;
