//! Processor time and memory of every process of a stack and their children, from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::launch::Stack;

/// Ticks a second in `/proc/*/stat`; fixed at 100 by Linux's ABI.
const TICKS_PER_SECOND: f64 = 100.0;
/// Unit of the blocks of a file, in bytes; fixed by POSIX.
const BLOCK_BYTES: u64 = 512;
/// Beginning of the names of the processes that run hooks.
const WORKER: &str = "bun";

/// Processor time and memory that one process has used so far, or the processes of one program together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct ProcessUse {
    /// Processor time, in milliseconds, with that of children that have ended.
    pub(super) cpu_ms: f64,
    /// Resident memory, in bytes.
    pub(super) resident: u64,
}

/// Servers and services of a stack, each with its name and process id. A replica that starts later is not among them.
#[derive(Debug, Clone)]
pub(super) struct ProcessList(Vec<(String, u32)>);

impl ProcessList {
    pub(super) fn of_stack(stack: &Stack) -> Self {
        let servers = stack
            .nats
            .iter()
            .filter_map(|nats| Some(("nats-server".to_owned(), nats.pid()?)));
        let services = stack
            .services
            .iter()
            .map(|service| (service.name.to_owned(), service.pid()));

        Self(servers.chain(services).collect())
    }

    /// Returns the processor time of each server and replica with its children, in milliseconds.
    fn cpu_by_replica(&self) -> Vec<(String, f64)> {
        let with_children = |pid: u32| process_tree(pid).into_iter().map(|(_, used)| used.cpu_ms).sum();
        self.0
            .iter()
            .map(|(name, pid)| (name.clone(), with_children(*pid)))
            .collect()
    }

    /// Returns the use of the processes so far, by program: all replicas of a service together, and the workers of
    /// hooks apart from their hook-svc.
    pub(super) fn by_program(&self) -> BTreeMap<String, ProcessUse> {
        let processes = self.0.iter().flat_map(|(service, pid)| {
            let tree = process_tree(*pid);
            tree.into_iter()
                .map(move |(name, used)| (program(service, &name), used))
        });

        let mut all: BTreeMap<String, ProcessUse> = BTreeMap::new();
        for (program, used) in processes {
            let sum = all.entry(program).or_default();
            sum.cpu_ms += used.cpu_ms;
            sum.resident += used.resident;
        }

        all
    }
}

/// Returns the program under which a process named `name` below `service` is counted.
fn program(service: &str, name: &str) -> String {
    let is_worker = name.starts_with(WORKER);
    (if is_worker { WORKER } else { service }).to_owned()
}

/// Processor time of the stack's processes at the start of the measurement.
#[derive(Debug)]
pub(super) struct Meter(Vec<(String, f64)>);

impl Meter {
    pub(super) fn start(stack: &Stack) -> Self {
        Self(ProcessList::of_stack(stack).cpu_by_replica())
    }

    /// Returns the processor time since the start, in milliseconds by process.
    pub(super) fn stop(self, stack: &Stack) -> Vec<(String, f64)> {
        let before = self.0.into_iter();
        before
            .zip(ProcessList::of_stack(stack).cpu_by_replica())
            .map(|((name, before), (_, after))| (name, after - before))
            .collect()
    }
}

/// Returns process `pid` and all below it, each with its name and its use.
fn process_tree(pid: u32) -> Vec<(String, ProcessUse)> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();

    let of_threads: Vec<String> = threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .collect();
    let children = of_threads
        .iter()
        .flat_map(|text| text.split_whitespace())
        .filter_map(|child| child.parse().ok());

    std::iter::once(one_process(pid))
        .chain(children.flat_map(process_tree))
        .collect()
}

/// Returns the name of process `pid` and its use, which is zero if it has ended.
fn one_process(pid: u32) -> (String, ProcessUse) {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let (name, cpu_ms) = parse_stat(&read("stat"));
    let resident = parse_resident(&read("status"));

    (name, ProcessUse { cpu_ms, resident })
}

/// Returns name and processor time from the text of `/proc/*/stat`.
fn parse_stat(stat: &str) -> (String, f64) {
    // The name in parentheses may have any character, also parentheses.
    let (head, rest) = stat.rsplit_once(')').unwrap_or_default();
    let name = head.split_once('(').map_or("", |(_, name)| name);

    // Fields 14 to 17 of proc(5): user and system time, of the process and of its children that have ended.
    let fields = rest.split_whitespace().skip(11).take(4);
    let ticks: f64 = fields.filter_map(|field| field.parse::<f64>().ok()).sum();

    (name.to_owned(), ticks / TICKS_PER_SECOND * 1_000.0)
}

/// Returns the resident memory in bytes from the text of `/proc/*/status`; 0 for a process without memory.
fn parse_resident(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1_024
}

/// Returns the size of everything below `directory`, in bytes of the disk.
pub(super) fn disk_use(directory: &Path) -> u64 {
    // A file that is deleted meanwhile takes nothing.
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => disk_use(&entry.path()),
        Ok(found) => found.blocks() * BLOCK_BYTES,
        Err(_) => 0,
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_read_behind_any_name() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 9 0 0 0 150 50 7 3 20 0 5 0 12 34 56";
        assert_eq!(parse_stat(stat), ("a) b (c".to_owned(), 2_100.0));
        assert_eq!(parse_stat(""), (String::new(), 0.0), "a process that has ended");
    }

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(parse_resident("Name:\tx\nVmHWM:\t   9 kB\nVmRSS:\t   8 kB\n"), 8_192);
        assert_eq!(parse_resident("Name:\tkthreadd\n"), 0);
    }

    #[test]
    fn workers_of_hooks_are_counted_apart() {
        assert_eq!(program("hook-svc", "bun"), "bun");
        assert_eq!(program("hook-svc", "hook-svc"), "hook-svc");
        assert_eq!(program("broker-svc", "nexus-tether"), "broker-svc");
    }

    #[test]
    fn this_process_has_a_name_memory_and_a_child() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("started");
        let list = ProcessList(vec![("tests".to_owned(), std::process::id())]);
        let tree = process_tree(std::process::id());
        child.kill().expect("killed");
        child.wait().expect("ended");

        assert!(tree.len() > 1, "{tree:?}");
        assert!(list.by_program()["tests"].resident > 0);
    }

    #[test]
    fn a_directory_takes_what_its_files_take() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(disk_use(directory.path()), 0);
        let below = directory.path().join("a/b");
        fs::create_dir_all(&below).expect("made");
        fs::write(below.join("file"), vec![1; 100_000]).expect("written");
        assert!(disk_use(directory.path()) >= 100_000);
    }
}
