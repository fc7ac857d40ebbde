//! Repairs the losses of approvals if a stream is restored to an older state, emptied or recreated.
//!
//! An approval is in KV, whole. A card that `DELIVERIES` has lost is sent again, under the same ids: a card that was
//! sent before is delivered once. A decision that `DISPATCHES` has lost is not published again, because such a
//! message decides nothing anyway: its session gets a claim, and the owner that takes the claim reads the decision in
//! KV.
//!
//! Both are done if the stream may be another one: when this broker starts, when its connection is restored, and when
//! the stream's identity has changed or its last sequence has gone down.

use std::sync::Arc;
use std::time::Duration;

use shared::bus::claim;
use shared::clock::pause;
use shared::model::approval::{ApprovalStatus, ConfirmationTerms};
use shared::wire::headers::TraceCarrier;
use shared::wire::topology::streams::{DELIVERIES, DISPATCHES};

use super::store::{KeepApprovalError, ends_untold};
use crate::broker::BrokerContext;

/// Interval at which the two streams are checked.
const EVERY: Duration = Duration::from_secs(2);

/// Identity of a stream and its last sequence, as seen by one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    connection: u64,
    incarnation: String,
    created: String,
    last: u64,
}

impl Seen {
    /// Returns whether `later` is the same stream, and not restored to an older state.
    fn is_followed_by(&self, later: &Self) -> bool {
        let of = |seen: &Self| (seen.connection, seen.incarnation.clone(), seen.created.clone());
        of(self) == of(later) && self.last <= later.last
    }
}

/// Repeats the messages that the streams have lost, until shutdown is requested.
pub async fn serve(broker: Arc<BrokerContext>) {
    let mut connections = broker.bus.connections();
    let (mut deliveries, mut dispatches) = (None, None);
    loop {
        match send_lost_cards(&broker, deliveries.as_ref()).await {
            Ok(seen) => deliveries = Some(seen),
            Err(error) => tracing::debug!(%error, "failed to resend cards of open approvals; retrying"),
        }

        match wake_decided(&broker, dispatches.as_ref()).await {
            Ok(seen) => dispatches = Some(seen),
            Err(error) => tracing::debug!(%error, "failed to wake sessions of decided approvals; retrying"),
        }

        // A stream can be restored while the connection stays, so both are looked at from time to time as well.
        tokio::select! {
            () = broker.shutdown.requested() => return,
            () = connections.stands_anew() => {}
            () = pause(EVERY) => {}
        }
    }
}

/// Returns the identity of `stream` and its last sequence.
///
/// The connection number is read first: if the connection ends meanwhile, the next look sees another number.
async fn observe_stream(broker: &BrokerContext, stream: &str) -> Result<Seen, KeepApprovalError> {
    let connection = broker.bus.connection_number();
    let info = broker.bus.stream_info(stream).await?;
    Ok(Seen {
        connection,
        incarnation: info.incarnation,
        created: info.created,
        last: info.state.last,
    })
}

/// Sends the cards of all approvals again, unless `DELIVERIES` is still the stream `known`.
async fn send_lost_cards(broker: &BrokerContext, known: Option<&Seen>) -> Result<Seen, KeepApprovalError> {
    let seen = observe_stream(broker, DELIVERIES).await?;
    if !known.is_some_and(|known| known.is_followed_by(&seen)) {
        for standing in broker.desk().list_all().await? {
            broker.desk().send_again(&standing).await?;
        }
    }
    Ok(seen)
}

/// Claims the sessions of all decided approvals, unless `DISPATCHES` is still the stream `known`. A session that has
/// taken its decision already finds nothing to do.
async fn wake_decided(broker: &BrokerContext, known: Option<&Seen>) -> Result<Seen, KeepApprovalError> {
    let seen = observe_stream(broker, DISPATCHES).await?;
    if known.is_some_and(|known| known.is_followed_by(&seen)) {
        return Ok(seen);
    }

    for decided in broker
        .desk()
        .list_all()
        .await?
        .iter()
        .filter(|standing| is_told(standing))
    {
        if let Some(asked) = decided.request.asked_in.as_deref() {
            claim::publish(&broker.bus, &asked.session, &TraceCarrier::default()).await?;
        }
    }

    Ok(seen)
}

/// Returns whether the session that asked is notified of the end of `standing`.
fn is_told(standing: &ConfirmationTerms) -> bool {
    standing.status != ApprovalStatus::Pending && !ends_untold(standing.status)
}
