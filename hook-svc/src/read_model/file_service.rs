//! Lends the file of this replica's copy of the read model to replicas that have none: `nexus.svc.model.{instance}.file`
//! begins a loan, `….file_part` gives a part of the file as it was then.
//!
//! No second file is made, so a loan needs no room for one; but the log beside the file grows while it lasts. All that
//! ask at the same time read the same state. A loan has no owner: it ends when no part was read for some time.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use shared::bus::ServiceSpec;
use shared::clock::SharedClock;
use shared::error_chain::describe_error;
use shared::projection::Projection;
use shared::projection::snapshot::{FrozenFile, name_prefix};

use super::peer_api::{FilePartQuestion, FileQuestion, LentFile};

/// Error code of a loan that cannot begin now.
const UNAVAILABLE: usize = 503;

/// Error code of a part of a loan that has ended.
const ENDED: usize = 410;

/// Size of a part in bytes: below the default limit of a server.
const PART_BYTES: usize = 512 * 1024;

/// Time without a question after which a loan ends.
const UNUSED: Duration = Duration::from_secs(30);

/// Longest loan: at 8 MiB/s a file of 28 GiB is read in this time.
const LONGEST: Duration = Duration::from_hours(1);

/// Size of the log in bytes at which a loan ends, since the log cannot be shortened before.
const MAX_LOG_BYTES: u64 = 4 << 30;

/// Room in bytes that a loan leaves on the volume, beside the room for the log in the file.
const LEFT_BYTES: u64 = 64 << 20;

/// This replica's file, as others read it.
#[derive(Debug)]
pub(crate) struct FileLender {
    projection: Projection,
    clock: SharedClock,
    lent: Mutex<Option<Loan>>,
    /// Lets one loan begin at a time.
    beginning: tokio::sync::Mutex<()>,
    /// Number of loans that have begun.
    begun: AtomicU64,
}

#[derive(Debug)]
struct Loan {
    name: String,
    file: Arc<FrozenFile>,
    begun_at: Instant,
    used_at: Instant,
}

impl FileLender {
    /// Returns the lender of the file of `projection`.
    pub(crate) fn new(projection: Projection, clock: SharedClock) -> Arc<Self> {
        Arc::new(Self {
            projection,
            clock,
            lent: Mutex::default(),
            beginning: tokio::sync::Mutex::default(),
            begun: AtomicU64::new(0),
        })
    }

    /// Adds the endpoints to `spec`.
    pub(crate) fn add_endpoints(self: &Arc<Self>, spec: ServiceSpec) -> ServiceSpec {
        let (file, part) = (Arc::clone(self), Arc::clone(self));
        spec.endpoint("file", move |_: FileQuestion| {
            let lender = Arc::clone(&file);
            async move { lender.begin_loan().await }
        })
        .raw_endpoint("file_part", move |question: FilePartQuestion| {
            let lender = Arc::clone(&part);
            async move { lender.read_part(&question).await }
        })
    }

    fn lent(&self) -> MutexGuard<'_, Option<Loan>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the loan that lasts, as used now.
    fn current(&self) -> Option<LentFile> {
        let now = self.clock.monotonic();
        let mut lent = self.lent();
        let loan = lent.as_mut().filter(|loan| !loan.file.is_replaced());
        loan.map(|loan| {
            loan.used_at = now;
            described(loan)
        })
    }

    async fn begin_loan(&self) -> Result<LentFile, (usize, String)> {
        let _turn = self.beginning.lock().await;
        if let Some(lent) = self.current() {
            return Ok(lent);
        }

        let frozen = self.projection.freeze().await;
        let file = frozen.map_err(|error| (UNAVAILABLE, describe_error(&error)))?;
        // A loan of an earlier process of this name must not be taken for this one.
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{number}", self.clock.now().0);
        tracing::info!(
            bytes = file.bytes(),
            events = file.position(),
            "the read model's file is lent to another replica"
        );

        let now = self.clock.monotonic();
        let loan = Loan {
            name,
            file: Arc::new(file),
            begun_at: now,
            used_at: now,
        };
        let lent = described(&loan);
        *self.lent() = Some(loan);
        Ok(lent)
    }

    async fn read_part(&self, question: &FilePartQuestion) -> Result<Bytes, (usize, String)> {
        let now = self.clock.monotonic();
        let file = {
            let mut lent = self.lent();
            let loan = lent.as_mut().filter(|loan| loan.name == question.file);
            let loan = loan.ok_or_else(|| (ENDED, "the loan has ended".to_owned()))?;
            loan.used_at = now;
            Arc::clone(&loan.file)
        };

        let offset = question.offset;
        let read = tokio::task::spawn_blocking(move || file.read_part(offset, PART_BYTES)).await;
        let part = read.map_err(|error| (UNAVAILABLE, error.to_string()))?;
        part.map(Bytes::from).map_err(|error| (ENDED, error.to_string()))
    }

    /// Ends a loan that is not used, whose file was rebuilt, or that lasts too long for the log beside the file.
    pub(crate) fn end_old(&self) {
        let now = self.clock.monotonic();
        let mut lent = self.lent();
        let Some(loan) = &*lent else { return };

        let is_unused = now.saturating_duration_since(loan.used_at) >= UNUSED;
        let is_too_long = now.saturating_duration_since(loan.begun_at) >= LONGEST;
        let log_bytes = self.projection.log_bytes();
        let free_bytes = free_bytes(self.projection.path());
        let is_log_full = is_log_full(log_bytes, free_bytes);
        if is_too_long || is_log_full {
            tracing::warn!(
                log_bytes,
                free_bytes,
                "the loan of the read model's file is ended before it was read"
            );
        }
        if is_unused || is_too_long || is_log_full || loan.file.is_replaced() {
            *lent = None;
        }
    }
}

/// Returns whether the log must not grow further. Once the loan has ended, the log is moved into the file, which may grow by
/// as much: on a volume without that room neither could be made smaller any more.
fn is_log_full(log_bytes: u64, free_bytes: Option<u64>) -> bool {
    log_bytes >= MAX_LOG_BYTES || free_bytes.is_some_and(|free| free < log_bytes.saturating_add(LEFT_BYTES))
}

/// Returns the free bytes of the volume that `path` is on; `None` if the system does not tell.
fn free_bytes(path: &Path) -> Option<u64> {
    let volume = rustix::fs::statvfs(path).ok()?;
    Some(volume.f_bavail.saturating_mul(volume.f_frsize))
}

fn described(loan: &Loan) -> LentFile {
    LentFile {
        file: loan.name.clone(),
        format: name_prefix(),
        position: loan.file.position(),
        bytes: loan.file.bytes(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use shared::clock::SystemClock;
    use shared::projection::api::FindRequest;
    use shared::testing::eventually;

    use super::*;

    #[test]
    fn a_loan_leaves_the_room_for_moving_the_log_into_the_file() {
        let gib = |gib: u64| gib << 30;
        assert!(!is_log_full(MAX_LOG_BYTES - 1, Some(gib(5))) && is_log_full(MAX_LOG_BYTES, Some(gib(5))));
        assert!(!is_log_full(MAX_LOG_BYTES - 1, None) && is_log_full(MAX_LOG_BYTES, None));
        let needed = gib(1) + LEFT_BYTES;
        assert!(!is_log_full(gib(1), Some(needed)) && is_log_full(gib(1), Some(needed - 1)));

        let folder = tempfile::tempdir().expect("a folder");
        assert!(free_bytes(folder.path()).is_some_and(|free| free > 0));
        assert_eq!(free_bytes(&folder.path().join("absent")), None);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_file_that_was_rebuilt_is_lent_no_further() {
        let folder = tempfile::tempdir().expect("a folder");
        let projection = Projection::open(&folder.path().join("read.db")).expect("it opens");
        let lender = FileLender::new(projection.clone(), Arc::new(SystemClock));
        let first = lender.begin_loan().await.expect("a loan");
        assert_eq!(lender.begin_loan().await, Ok(first.clone()));

        // A reader finds the damage, and the writer makes another file.
        let mut opened = std::fs::OpenOptions::new();
        let mut file = opened.write(true).open(projection.path()).expect("its file");
        file.write_all(&[0xa5; 100]).expect("damaged");
        eventually("the other file is lent", async || {
            let _damaged = projection.find(FindRequest::default()).await;
            lender.begin_loan().await.is_ok_and(|lent| lent.file != first.file)
        })
        .await;

        let part = |file: &str| FilePartQuestion {
            file: file.to_owned(),
            offset: 0,
        };
        let (code, _) = lender.read_part(&part(&first.file)).await.expect_err("it has ended");
        assert_eq!(code, ENDED);
        let second = lender.begin_loan().await.expect("the other one");
        let bytes = lender.read_part(&part(&second.file)).await.expect("a part");
        assert!(bytes.starts_with(b"SQLite format 3"));
    }
}
