//! The backlog of the cluster, as metrics to scale on: exported alike by every replica whose copy answers, and by no other.

use std::time::Duration;

use shared::bus::partition::read_floors;
use shared::bus::{Bus, ReadStreamError};
use shared::clock::{SharedClock, pause};
use shared::error_chain::describe_error;
use shared::metric::ABSENT;
use shared::projection::{Backlog, Projection, QueryProjectionError};
use shared::wire::topology::streams::EVENTS;
use tokio::sync::watch;

use super::access::OwnCopy;
use crate::evaluation::GROUP;

/// Interval at which the backlog is counted; floors are stored as often.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// Time limit for the server's answers.
const ANSWER: Duration = Duration::from_secs(5);

/// Reason why the backlog is not known.
#[derive(Debug, thiserror::Error)]
enum CountBacklogError {
    #[error(transparent)]
    Stream(#[from] ReadStreamError),
    #[error(transparent)]
    File(#[from] QueryProjectionError),
    #[error("the floors are of another incarnation of EVENTS")]
    OtherStream,
    #[error("the server did not answer in time")]
    TimedOut,
}

/// Keeps the metrics current while `own` is a copy that answers, or that did before it fell behind, and absent otherwise;
/// never returns.
pub(crate) async fn export(bus: Bus, clock: SharedClock, own: watch::Receiver<OwnCopy>) {
    let events = metrics::gauge!("nexus_hook_backlog_events");
    let oldest = metrics::gauge!("nexus_hook_oldest_unsettled_seconds");
    loop {
        let copy = match &*own.borrow() {
            OwnCopy::Ready(projection) => Some((projection.clone(), true)),
            OwnCopy::Building(projection) => Some((projection.clone(), false)),
            OwnCopy::Undecided | OwnCopy::None => None,
        };
        let counted = match copy {
            // A flood puts a copy behind: that is when the number is needed.
            Some((projection, is_ready)) => count(&bus, &projection)
                .await
                .map(|backlog| Some(backlog).filter(|backlog| is_ready || backlog.has_caught_up)),
            None => Ok(None),
        };

        let counted = counted.unwrap_or_else(|error| {
            tracing::debug!(error = describe_error(&error), "the backlog is not known");
            None
        });
        events.set(counted.map_or(ABSENT, |backlog| backlog.events as f64));
        let age = |backlog: Backlog| backlog.oldest.map_or(0, |at| clock.now().since(at).max(0));
        oldest.set(counted.map_or(ABSENT, |backlog| age(backlog) as f64 / 1_000.0));
        pause(COUNT_EVERY).await;
    }
}

async fn count(bus: &Bus, projection: &Projection) -> Result<Backlog, CountBacklogError> {
    let asked = async { Ok::<_, ReadStreamError>((bus.stream_info(EVENTS).await?, read_floors(bus, GROUP).await?)) };
    let answered = tokio::time::timeout(ANSWER, asked).await;
    let (found, floors) = answered.map_err(|_| CountBacklogError::TimedOut)??;

    // Sequences of another life of the stream name other events; its owners replace the floors.
    if !floors.incarnation.is_empty() && floors.incarnation != found.incarnation {
        return Err(CountBacklogError::OtherStream);
    }
    Ok(projection.backlog(&floors, found.state.last).await?)
}
