//! Verifies the promises of the log with real processes, which it kills, pauses, and lets come and go.
//!
//! What it never does: reach into a broker, but through clients and the records that brokers share; or decide by a clock
//! whether a promise was kept.
//!
//! [`run`] is a whole run of `verify order`. Read [`plan`] (what is run) and [`stamp`] (messages that say who sent them),
//! then the checks, which know neither time nor processes: [`violation`], [`ranges`], [`reference_log`] (all readers see
//! the same), [`reader_check`] (what one reader must see), [`ack_check`] (what was acknowledged is at its position),
//! [`retention_model`] (what must still be there), and [`checker`], which puts them together.
//!
//! Around the checks are the processes and threads: [`publisher`] (a publishing process) and its [`record`]s,
//! [`publisher_processes`] (all of them, seen from their parent) and [`record_reader`]; [`readers`] and their
//! [`stall_detector`]; [`readback`] (what was just acknowledged is readable), [`topic_churn`] (a topic that comes and
//! goes); [`brokers`], [`faults`] and [`gaps`]; [`observed_retention`] (how full a full log is); [`own_timer`] (whether the
//! machine was too busy to tell); [`shared`] (what the threads share) and [`report`].
//!
//! [`power`] cuts the power of a run's disks, each a [`loop_disk`], and [`disk_reader`] checks what they have then.
//!
//! [`sessions`] is a check of its own, with processes of [`victims`], and so is [`claims`], with each [`claimant`]. All end
//! with [`findings`].

#![forbid(unsafe_code)]

pub mod ack_check;
mod bare_session;
pub mod brokers;
pub mod checker;
pub mod claimant;
pub mod claims;
pub mod disk_reader;
pub mod faults;
pub mod findings;
pub mod gaps;
pub mod hostile;
pub mod hostile_processes;
pub mod log_client_error;
pub mod loop_disk;
pub mod observed_retention;
pub mod own_timer;
pub mod plan;
pub mod power;
pub mod power_plan;
pub mod publisher;
pub mod publisher_processes;
pub mod ranges;
pub mod readback;
pub mod reader_check;
pub mod readers;
pub mod record;
pub mod record_reader;
pub mod reference_log;
pub mod report;
pub mod retention_model;
pub mod run;
pub mod sessions;
pub mod shared;
pub mod stall_detector;
pub mod stamp;
pub mod topic_churn;
pub mod victims;
pub mod violation;
