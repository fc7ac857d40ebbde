//! Identification of the winner of a compare-and-set.
//!
//! A message that expects its subject's last sequence is stored for one writer only. After a timeout the writer does
//! not know whether its own try was stored, and the rejection of the second try does not show it, because another
//! writer may have written the very same payload. So each such message names its writer and the attempt in [`WRITER`],
//! and only that is compared.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::{IdSource as _, SystemIds};
use crate::wire::headers::{Headers, WRITER};

/// Returns a random name.
pub(super) fn random_name() -> String {
    SystemIds.ulid().to_string()
}

/// Returns a random id of this run of the process.
fn process_token() -> &'static str {
    static PROCESS: OnceLock<String> = OnceLock::new();
    PROCESS.get_or_init(random_name)
}

/// Number of handlers of partitions that have panicked in this process.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Returns the name of this run of the process. A panic of a partition's handler begins another run: as with the end of
/// a process, the message in hand may be the cause.
pub(super) fn run_name() -> String {
    format!("{}-{}", process_token(), PANICS.load(Ordering::Relaxed))
}

/// Notes that a partition's handler panicked.
pub(super) fn note_panic() {
    PANICS.fetch_add(1, Ordering::Relaxed);
}

/// Returns the name of this process's next attempt; no other attempt has the same name.
pub(super) fn next_attempt() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(1);
    format!("{}-{}", process_token(), COUNTER.fetch_add(1, Ordering::Relaxed))
}

/// Returns whether `headers` belong to a message that this process wrote under an expected sequence.
pub(super) fn is_of_this_process(headers: &Headers) -> bool {
    headers
        .get(WRITER)
        .and_then(|writer| writer.strip_prefix(process_token()))
        .is_some_and(|rest| rest.starts_with('-'))
}
