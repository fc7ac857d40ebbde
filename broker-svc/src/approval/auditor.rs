//! Adds records of approvals that are missing in `AUDIT` because the process that wrote the change died or the server
//! was away. The next change of an approval writes the record of the change before it; the last change has no next
//! one.
//!
//! Every broker follows the bucket and checks a moment after each change whether its record is there, which is one
//! read. A missing record is appended behind the record before it, so that several brokers append it once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shared::bus::KvEvent;
use shared::clock::pause;
use shared::model::approval::ConfirmationTerms;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::broker::BrokerContext;

/// Time that the process that wrote a change has to write its record.
const GRACE: Duration = Duration::from_secs(2);
/// Wait before a record that could not be written is tried again.
const AGAIN: Duration = Duration::from_secs(2);
/// Maximum number of changes that wait for their check; beyond that the bucket is read more slowly.
const MAX_WAITING: usize = 1_024;

/// Checks changes until shutdown is requested.
pub async fn serve(broker: Arc<BrokerContext>) {
    let (changes, changed) = channel(MAX_WAITING);
    let stop = broker.shutdown.clone();
    tokio::select! {
        () = stop.requested() => {}
        () = follow_approvals(&broker, changes) => {}
        () = audit_overdue(&broker, changed) => {}
    }
}

async fn follow_approvals(broker: &BrokerContext, changes: Sender<ConfirmationTerms>) {
    let mut watch = broker.desk().watch_approvals();
    loop {
        if let KvEvent::Put { value, .. } = watch.next().await
            && value.trail.record.is_some()
            && changes.send(value).await.is_err()
        {
            return;
        }
    }
}

async fn audit_overdue(broker: &BrokerContext, mut changed: Receiver<ConfirmationTerms>) {
    let mut waiting: VecDeque<(Instant, ConfirmationTerms)> = VecDeque::new();
    loop {
        let due = waiting
            .front()
            .map(|(due, _)| due.saturating_duration_since(broker.clock.monotonic()));
        tokio::select! {
            // While many wait, further changes stay in the channel, and the bucket is read more slowly.
            change = changed.recv(), if waiting.len() < MAX_WAITING => {
                let Some(change) = change else { return };
                // The process that made the change writes its record itself; it gets the time to do so.
                waiting.push_back((broker.clock.monotonic() + GRACE, change));
            }
            () = pause(due.unwrap_or(GRACE)), if due.is_some() => {
                let Some((_, change)) = waiting.pop_front() else { continue };
                if let Err(error) = broker.desk().see_to_audit(&change).await {
                    tracing::warn!(approval = change.request.id, %error, "failed to write an approval's record to AUDIT; retrying");
                    waiting.push_back((broker.clock.monotonic() + AGAIN, change));
                }
            }
        }
    }
}
