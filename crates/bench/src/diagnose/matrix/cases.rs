//! What is injected: each fault strong, and as weak as one is that takes 10 to 20 % where there is such a strength; two at once; and none.

use embar_diagnose::Cause;

use super::Case;

/// All of them. For each set of options there is one with nothing injected, if the rate without the fault is known by it.
pub(super) const CASES: [Case; 51] = [
    nothing("nothing", &[]),
    nothing("nothing, batches of 256 KiB", &["--batch-size", "256KiB"]),
    // 64 KiB are small batches, and take some of the rate.
    Case {
        expected: &[
            Cause::MachineWall,
            Cause::NothingFound,
            Cause::BatchesTooSmall,
        ],
        ..nothing("nothing, batches of 64 KiB", SMALL)
    },
    nothing("nothing, order 5", &["-o", "5"]),
    nothing("nothing, reading", READ),
    nothing("nothing, a region of 8 GiB", LARGE_REGION),
    nothing("nothing, a region of 7 GiB", LESS_LARGE),
    fault("slow-sender=200MiB", &[], &[Cause::ApplicationTooSlow]),
    fault("slow-sender=2GiB", &[], &[Cause::ApplicationTooSlow]),
    fault("slow-sender=80%", &[], &[Cause::ApplicationTooSlow]),
    fault("slow-reader=200MiB", READ, &[Cause::SlowSubscriber]),
    fault("slow-reader=2GiB", READ, &[Cause::SlowSubscriber]),
    fault("slow-reader=80%", READ, &[Cause::SlowSubscriber]),
    fault("small-rcvbuf=43690", &[], &[Cause::ReceiveWindowTooSmall]),
    fault("small-rcvbuf=200KiB", &[], &[Cause::ReceiveWindowTooSmall]),
    fault("small-rcvbuf=448KiB", &[], &[Cause::ReceiveWindowTooSmall]),
    fault("small-sndbuf=16KiB", READ, &[Cause::SendBufferTooSmall]),
    fault("small-sndbuf=48KiB", READ, &[Cause::SendBufferTooSmall]),
    fault("small-sndbuf=160KiB", READ, &[Cause::SendBufferTooSmall]),
    fault("cpu-hog=2", &[], &[Cause::ProcessorsTakenByOthers]),
    fault("cpu-hog=1", &[], &[Cause::ProcessorsTakenByOthers]),
    fault("cpu-quota=80", &[], &[Cause::ProcessorQuota]),
    fault("cpu-quota=150", &[], &[Cause::ProcessorQuota]),
    fault("cpu-quota=175", &[], &[Cause::ProcessorQuota]),
    fault("hot-broker=90", &[], &[Cause::HotBroker]),
    fault("hot-broker=60", &[], &[Cause::HotBroker]),
    fault("small-batches=4KiB", &[], &[Cause::BatchesTooSmall]),
    fault("small-batches=16KiB", &[], &[Cause::BatchesTooSmall]),
    fault("small-batches=64KiB", &[], &[Cause::BatchesTooSmall]),
    fault("long-linger=20ms", &[], &[Cause::LingerTooLong]),
    fault("long-linger=200us", &[], &[Cause::LingerTooLong]),
    fault("long-linger=20us", &[], &[Cause::LingerTooLong]),
    fault("few-in-flight=1", SMALL, &[Cause::TooFewInFlight]),
    fault("few-in-flight=2", SMALL, &[Cause::TooFewInFlight]),
    fault("few-in-flight=4", SMALL, &[Cause::TooFewInFlight]),
    fault("many-threads=4", &[], &[Cause::MoreThreadsThanCores]),
    fault("many-threads=2", &[], &[Cause::MoreThreadsThanCores]),
    fault("net-rate=100MiB", &[], &[Cause::NetworkRateLimit]),
    fault("net-rate=1GiB", &[], &[Cause::NetworkRateLimit]),
    fault("net-delay=2ms", &[], &[Cause::NetworkDelay]),
    fault("net-delay=500us", &[], &[Cause::NetworkDelay]),
    fault("net-loss=1", &[], &[Cause::NetworkLoss]),
    fault("net-loss=0.3", &[], &[Cause::NetworkLoss]),
    fault("cold-memory", LARGE_REGION, &[Cause::ColdMemory]),
    fault("cold-memory", LESS_LARGE, &[Cause::ColdMemory]),
    fault(
        "small-rcvbuf=43690 + cpu-hog=1",
        &[],
        &[Cause::ReceiveWindowTooSmall, Cause::ProcessorsTakenByOthers],
    ),
    fault(
        "small-rcvbuf=43690 + small-batches=16KiB",
        &[],
        &[Cause::ReceiveWindowTooSmall, Cause::BatchesTooSmall],
    ),
    fault(
        "small-batches=4KiB + cpu-hog=2",
        &[],
        &[Cause::BatchesTooSmall, Cause::ProcessorsTakenByOthers],
    ),
    fault(
        "small-batches=16KiB + cpu-quota=150",
        &[],
        &[Cause::BatchesTooSmall, Cause::ProcessorQuota],
    ),
    fault(
        "many-threads=4 + cpu-hog=4",
        &[],
        &[Cause::MoreThreadsThanCores, Cause::ProcessorsTakenByOthers],
    ),
    fault(
        "slow-sender=1GiB + cpu-hog=2",
        &[],
        &[Cause::ApplicationTooSlow, Cause::ProcessorsTakenByOthers],
    ),
];

const READ: &[&str] = &["--flow", "read"];
const SMALL: &[&str] = &["--batch-size", "64KiB"];
/// Not all of it has been written when the look begins, so a part is touched for the first time meanwhile.
const LARGE_REGION: &[&str] = &["--region-size", "8GiB"];
const LESS_LARGE: &[&str] = &["--region-size", "7GiB"];

const fn nothing(injected: &'static str, options: &'static [&'static str]) -> Case {
    let expected = &[Cause::MachineWall, Cause::NothingFound];
    fault(injected, options, expected)
}

const fn fault(
    injected: &'static str,
    options: &'static [&'static str],
    expected: &'static [Cause],
) -> Case {
    Case {
        injected,
        options,
        expected,
    }
}

#[cfg(test)]
mod tests {
    use super::CASES;
    use crate::diagnose::inject::Fault;

    #[test]
    fn each_case_is_a_fault_of_the_cause_that_is_expected() {
        for case in CASES {
            let causes: Vec<_> = case
                .faults()
                .map(|it| it.parse::<Fault>().expect(it).cause())
                .collect();
            match causes.is_empty() {
                true => assert!(!case.expected[0].is_fault(), "{}", case.injected),
                false => assert_eq!(case.expected, causes, "{}", case.injected),
            }
        }
    }
}
