//! What a diagnosed run of Redis is: a bench's plan, servers, a span, and faults.

use std::time::Duration;

use embar_console::setting::BadSetting;
use embar_diagnose::finding::Change;
use embar_redis::Config;

use super::inject::Fault;
use crate::diagnose::fault::each_once;
use crate::redis::plan::{Operation, RedisPlan};
use crate::redis::work::Hot;

/// Who is called.
#[derive(Clone, Debug)]
pub enum Servers {
    /// Servers that run already.
    Given(Box<Config>),
    /// Servers of our own, started for each run: so many that share the slots, or one that is no cluster.
    Own(usize),
}

/// Callers to be diagnosed.
#[derive(Clone, Debug)]
pub struct RedisLoad {
    /// Callers, sizes, threads.
    pub bench: RedisPlan,
    /// What callers do.
    pub operation: Operation,
    /// Who is called.
    pub servers: Servers,
    /// How long it is looked at.
    pub span: Duration,
    /// Commands that a connection may have in flight; the client's own choice without it.
    pub max_in_flight: Option<usize>,
    /// Whether servers of our own take encrypted connections, and no others.
    pub by_tls: bool,
    /// What is injected.
    pub faults: Vec<Fault>,
}

impl RedisLoad {
    /// The plan with what its faults change in settings; what they do to servers and beside the callers is for the run.
    pub fn with_faults(mut self, faults: Vec<Fault>) -> Result<Self, BadSetting> {
        each_once(faults.iter().map(|it| it.name()))?;
        for fault in &faults {
            if fault.needs_own_servers() && matches!(self.servers, Servers::Given(_)) {
                let why = format!("{} needs servers of its own: name none", fault.name());
                return Err(BadSetting::new(&["inject"], why));
            }
            let habits = &mut self.bench.habits;
            match *fault {
                Fault::HotKey(percent) => habits.hot = Hot::Key(percent.into()),
                Fault::HotSlots(percent) => habits.hot = Hot::Slots(percent.into()),
                Fault::BusyCallers(time) => habits.computes = time,
                Fault::SlowCallers(time) => habits.sleeps = time,
                Fault::FewCallers(callers) => self.bench.callers = callers.into(),
                Fault::FullPipe(commands) => self.max_in_flight = Some(commands as usize),
                Fault::Tls => self.by_tls = true,
                // One server works all the time only where others do not take its processor.
                Fault::HeavyCommands(_) => self.servers = Servers::Own(1),
                Fault::SlowNode(_)
                | Fault::BigValue(_)
                | Fault::BlockedServer(_)
                | Fault::CpuHog(_) => {}
            }
        }
        self.faults = faults;
        self.bench.validate()?;
        Ok(self)
    }

    /// The plan with a remedy; `None` if that cannot be applied here.
    pub fn with(&self, change: &Change) -> Option<Self> {
        let mut plan = self.clone();
        match *change {
            Change::MaxInFlight(commands) => {
                plan.max_in_flight = Some(usize::try_from(commands).ok()?);
            }
            Change::Callers(callers) => plan.bench.callers = callers,
            Change::PlainConnections if plan.by_tls => plan.by_tls = false,
            _ => return None,
        }
        plan.bench.validate().ok()?;
        Some(plan)
    }
}
