//! Number of workers where none is configured: one per core, and no more than the memory limit of this process's
//! container holds; and number of authors' processes that it holds beside them.

use super::author_slots::MAX_AUTHORS;

/// Files with the memory limit of the container, in bytes: control groups of version 2 and 1.
const LIMITS: [&str; 2] = [
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
];

const MIB: u64 = 1024 * 1024;

/// Memory that hook-svc itself and the two processes beside its workers are given.
const BESIDE_WORKERS: u64 = 512 * MIB;

/// Memory that each worker is given: a hot one with ten hooks holds 85 MB (measured, Bun 1.4.5).
const PER_WORKER: u64 = 160 * MIB;

/// Fewest processes of authors, also where the memory is short: hooks with one process after the other get on slowly.
const LEAST_OF_AUTHORS: usize = 4;

/// Returns the memory limit of the container in bytes, if it has one.
fn memory_limit() -> Option<u64> {
    let limits = LIMITS.iter().filter_map(|path| std::fs::read_to_string(path).ok());
    limits.filter_map(|text| text.trim().parse().ok()).min()
}

/// Returns the number of workers for this machine and container, at least 1.
#[must_use]
pub fn default_workers() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    count_workers(cores, memory_limit())
}

/// Returns how many processes of authors this container holds beside `workers` of the operators', at least 4.
#[must_use]
pub fn default_author_processes(workers: usize) -> usize {
    count_author_processes(workers, memory_limit())
}

/// Returns the number of workers on `cores` within `memory` bytes, if they are limited.
fn count_workers(cores: usize, memory: Option<u64>) -> usize {
    let fit = memory.map_or(u64::MAX, |bytes| bytes.saturating_sub(BESIDE_WORKERS) / PER_WORKER);
    cores.min(usize::try_from(fit).unwrap_or(usize::MAX)).max(1)
}

/// Returns how many processes of authors fit beside `workers` of the operators' into `memory` bytes, if they are limited. More
/// than two for each author are never wanted: one takes events, one runs suspected hooks.
fn count_author_processes(workers: usize, memory: Option<u64>) -> usize {
    let of_operators = u64::try_from(workers).unwrap_or(u64::MAX).saturating_mul(PER_WORKER);
    let fit = memory.map_or(u64::MAX, |bytes| {
        bytes.saturating_sub(BESIDE_WORKERS).saturating_sub(of_operators) / PER_WORKER
    });
    usize::try_from(fit)
        .unwrap_or(usize::MAX)
        .clamp(LEAST_OF_AUTHORS, 2 * MAX_AUTHORS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_many_cores_fills_no_small_container() {
        assert_eq!(count_workers(64, Some(2_048 * MIB)), 9);
        assert_eq!(count_workers(4, Some(2_048 * MIB)), 4);
        assert_eq!(count_workers(64, Some(256 * MIB)), 1);
        assert_eq!(count_workers(64, None), 64);
        // Version 1 has no word for "no limit", only a number beyond all memory.
        assert_eq!(count_workers(2, Some(0x7fff_ffff_ffff_f000)), 2);
    }

    #[test]
    fn authors_have_what_the_operators_leave() {
        assert_eq!(count_author_processes(1, Some(2_048 * MIB)), 8);
        assert_eq!(count_author_processes(1, Some(4_096 * MIB)), 21);
        assert_eq!(count_author_processes(9, Some(2_048 * MIB)), LEAST_OF_AUTHORS);
        assert_eq!(count_author_processes(1, Some(256 * MIB)), LEAST_OF_AUTHORS);
        assert_eq!(count_author_processes(64, None), 2 * MAX_AUTHORS);
        assert_eq!(count_author_processes(2, Some(0x7fff_ffff_ffff_f000)), 2 * MAX_AUTHORS);
    }

    /// What is hot in all processes at once, beside hook-svc and the two others (measured, Bun 1.4.5).
    #[test]
    fn all_that_may_run_at_once_fits_into_the_container_of_the_manifests() {
        let memory = 2_048 * MIB;
        for cores in [1, 2, 4, 64] {
            let workers = count_workers(cores, Some(memory));
            let processes = workers + count_author_processes(workers, Some(memory));
            let hot = 85 * MIB * u64::try_from(processes).expect("few");
            assert!(hot + BESIDE_WORKERS <= memory, "{cores} cores: {processes} processes");
        }
    }
}
