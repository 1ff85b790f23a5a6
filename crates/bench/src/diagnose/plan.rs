//! What a diagnosed run is: a bench's plan, a direction, a span, settings that other benches leave alone, and faults.

use std::time::Duration;

use embar_console::setting::BadSetting;
use embar_diagnose::finding::Change;
use embar_diagnose::observed::Flow;

use super::fault::each_once;
use super::inject::Fault;
use crate::plan::BenchPlan;

/// A load to be diagnosed.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// Sizes, brokers, threads.
    pub bench: BenchPlan,
    /// Which way the bytes go.
    pub flow: Flow,
    /// How long it is looked at.
    pub span: Duration,
    /// How long it runs before.
    pub warm_up: Duration,
    /// What is not as it would be otherwise.
    pub settings: LoadSettings,
    /// What is injected.
    pub faults: Vec<Fault>,
}

/// Settings that faults change, and remedies change back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadSettings {
    /// How long batches wait to be filled; the client's own choice without it.
    pub linger: Option<Duration>,
    /// Whether the application waits for each message's acknowledgement.
    pub waits_for_each: bool,
    /// Batches that a connection may have on their way; the client's own choice without it.
    pub batches_in_flight: Option<u32>,
    /// `SO_RCVBUF` of brokers.
    pub recv_buffer: Option<u32>,
    /// `SO_SNDBUF` of brokers.
    pub send_buffer: Option<u32>,
    /// Whether brokers leave their memory alone until it is needed.
    pub is_cold: bool,
}

impl LoadPlan {
    /// The plan with what its faults change in settings; what they do to the machine or the application is for the load.
    pub fn with_faults(mut self, faults: Vec<Fault>) -> Result<Self, BadSetting> {
        each_once(faults.iter().map(|it| it.name()))?;
        for fault in &faults {
            fault.must_act(self.flow, self.bench.transport)?;
            let settings = &mut self.settings;
            match *fault {
                Fault::SmallRcvbuf(size) => settings.recv_buffer = Some(to_u32(size)?),
                Fault::SmallSndbuf(size) => settings.send_buffer = Some(to_u32(size)?),
                Fault::SmallBatches(size) => {
                    self.bench.batch_bytes = to_u32(size)?;
                }
                Fault::LongLinger(time) => {
                    settings.linger = Some(time);
                    settings.waits_for_each = true;
                }
                Fault::FewInFlight(batches) => settings.batches_in_flight = Some(batches),
                Fault::ManyThreads(threads) => {
                    self.bench.publishers = threads;
                    self.bench.threads_per_broker = threads;
                    self.bench.network_threads = threads as u16;
                }
                Fault::ColdMemory => {
                    settings.is_cold = true;
                    self.warm_up = Duration::ZERO;
                }
                Fault::SlowSender(_)
                | Fault::SlowReader(_)
                | Fault::CpuHog(_)
                | Fault::CpuQuota(_)
                | Fault::HotBroker(_)
                | Fault::Network(_) => {}
            }
        }
        for fault in &faults {
            if let Fault::SlowSender(rate) | Fault::SlowReader(rate) = fault {
                rate.must_be_found(self.warm_up)?;
            }
        }
        self.faults = faults;
        self.bench.validate(false)?;
        Ok(self)
    }

    /// The plan with a remedy; `None` if that cannot be applied here, or is what the plan says already.
    pub fn with(&self, change: &Change) -> Option<Self> {
        let mut plan = self.clone();
        let (bench, settings) = (&mut plan.bench, &mut plan.settings);
        match *change {
            Change::ReceiveBufferTuned => settings.recv_buffer = None,
            Change::SendBufferTuned => settings.send_buffer = None,
            Change::BatchSize(bytes) => bench.batch_bytes = u32::try_from(bytes).ok()?,
            Change::Linger(seconds) => {
                settings.linger = Some(Duration::try_from_secs_f64(seconds).ok()?);
            }
            Change::BatchesInFlight(batches) => {
                settings.batches_in_flight = Some(u32::try_from(batches).ok()?);
            }
            Change::Publishers(threads) => bench.publishers = threads,
            Change::ThreadsPerBroker(threads) => bench.threads_per_broker = threads,
            Change::NetworkThreads(threads) => {
                bench.network_threads = u16::try_from(threads).ok()?;
            }
            Change::MaxInFlight(_)
            | Change::Callers(_)
            | Change::PlainConnections
            | Change::SendRing(_)
            | Change::InFlight(_)
            | Change::Workers(_)
            | Change::MessagesTogether(_) => return None,
        }
        plan.bench.validate(false).ok()?;
        let changes = plan.bench != self.bench || plan.settings != self.settings;
        changes.then_some(plan)
    }
}

fn to_u32(size: embar_console::size::Size) -> Result<u32, BadSetting> {
    let too_large = || BadSetting::new(&["inject"], format!("{size} is too large"));
    size.to_u32().ok_or_else(too_large)
}
