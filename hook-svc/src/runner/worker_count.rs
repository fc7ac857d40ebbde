//! Number of workers where none is configured: one per core, and no more than the memory limit of this process's
//! container holds.

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

/// Returns the number of workers for this machine and container, at least 1.
#[must_use]
pub fn default_workers() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let limits = LIMITS.iter().filter_map(|path| std::fs::read_to_string(path).ok());
    count_workers(cores, limits.filter_map(|text| text.trim().parse().ok()).min())
}

/// Returns the number of workers on `cores` within `memory` bytes, if they are limited.
fn count_workers(cores: usize, memory: Option<u64>) -> usize {
    let fit = memory.map_or(u64::MAX, |bytes| bytes.saturating_sub(BESIDE_WORKERS) / PER_WORKER);
    cores.min(usize::try_from(fit).unwrap_or(usize::MAX)).max(1)
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
}
