//! Cards that `DELIVERIES` has lost: put back to an older state, emptied or made anew.
//!
//! What is asked stands in KV, whole, and in no ledger: so the cards of what is open are sent again wherever the queue may
//! be another one: when this broker begins, when its connection stands anew, and when the stream is not the one that was
//! there. A card that was sent before is delivered once.

use std::sync::Arc;
use std::time::Duration;

use shared::clock::pause;
use shared::wire::topology::streams::DELIVERIES;

use super::desk::KeepApprovalError;
use crate::broker::Broker;

/// How often the queue is looked at.
const EVERY: Duration = Duration::from_secs(2);

/// Which queue was there, and how far it had come.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    connection: u64,
    incarnation: String,
    created: String,
    last: u64,
}

impl Seen {
    /// Whether `later` may be another queue, or the same one put back.
    fn is_followed_by(&self, later: &Self) -> bool {
        let of = |seen: &Self| (seen.connection, seen.incarnation.clone(), seen.created.clone());
        of(self) == of(later) && self.last <= later.last
    }
}

/// Looks until the process is asked to stop.
pub async fn serve(broker: Arc<Broker>) {
    let mut connections = broker.bus.connections();
    let mut known = None;
    loop {
        match look(&broker, known.as_ref()).await {
            Ok(seen) => known = Some(seen),
            Err(error) => tracing::debug!(%error, "cards of open approvals are not sent again yet"),
        }
        tokio::select! {
            () = broker.shutdown.requested() => return,
            () = connections.stands_anew() => {}
            () = pause(EVERY) => {}
        }
    }
}

async fn look(broker: &Broker, known: Option<&Seen>) -> Result<Seen, KeepApprovalError> {
    // One that ends meanwhile is another one for the next look.
    let connection = broker.bus.connection_number();
    let info = broker.bus.stream_info(DELIVERIES).await?;
    let seen = Seen {
        connection,
        incarnation: info.incarnation,
        created: info.created,
        last: info.state.last,
    };

    if !known.is_some_and(|known| known.is_followed_by(&seen)) {
        for standing in broker.desk().all().await? {
            broker.desk().send_again(&standing).await?;
        }
    }
    Ok(seen)
}
