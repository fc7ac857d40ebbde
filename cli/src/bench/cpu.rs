//! Processor time of every process of a stack and their children, from `/proc`.

use crate::launch::Stack;

/// Ticks a second in `/proc/*/stat`; fixed at 100 by Linux's ABI.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor time of the stack's processes at the start of the measurement.
#[derive(Debug)]
pub(super) struct Meter(Vec<(String, f64)>);

impl Meter {
    pub(super) fn start(stack: &Stack) -> Self {
        Self(used(stack))
    }

    /// Returns the processor time since the start, in milliseconds by process.
    pub(super) fn stop(self, stack: &Stack) -> Vec<(String, f64)> {
        let before = self.0.into_iter();
        before
            .zip(used(stack))
            .map(|((name, before), (_, after))| (name, after - before))
            .collect()
    }
}

fn used(stack: &Stack) -> Vec<(String, f64)> {
    let servers = stack
        .nats
        .iter()
        .filter_map(|nats| Some(("nats-server".to_owned(), nats.pid()?)));
    let services = stack
        .services
        .iter()
        .map(|service| (service.name.to_owned(), service.pid()));

    servers
        .chain(services)
        .map(|(name, pid)| (name, with_children(pid)))
        .collect()
}

fn with_children(pid: u32) -> f64 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();

    let of_threads: Vec<String> = threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .collect();
    let mut all: Vec<u32> = of_threads
        .iter()
        .flat_map(|text| text.split_whitespace())
        .chain(children.split_whitespace())
        .filter_map(|child| child.parse().ok())
        .collect();

    all.sort_unstable();
    all.dedup();

    own(pid) + all.into_iter().map(with_children).sum::<f64>()
}

fn own(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may have any character; user and system time are fields 14 and 15.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| {
        fields
            .get(index)
            .and_then(|field| field.parse::<f64>().ok())
            .unwrap_or(0.0)
    };

    (ticks(11) + ticks(12)) / TICKS_PER_SECOND * 1_000.0
}
