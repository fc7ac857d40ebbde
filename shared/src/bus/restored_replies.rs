//! Replies that may have been delivered before a restore, and wait for an operator's decision.

use std::collections::{BTreeMap, HashSet};

use ulid::Ulid;

use crate::model::receipt::{Receipt, ReceiptStep};
use crate::model::reply::Reply;
use crate::model::restore::{HOLD_KEY, HoldDecision, RestoreHold};
use crate::model::time::UnixMillis;
use crate::wire::subject;
use crate::wire::topology::{buckets, streams};

use super::connect::Bus;
use super::error::ReadStreamError;

/// Number of receipts that are read at once.
const PAGE: usize = 500;
/// Largest assumed difference between the clocks of brokers and of deliverers, in milliseconds.
const SKEW_MS: i64 = 60_000;

impl Bus {
    /// Returns the number of deliveries that wait for the operator, or `None` if no restore is undecided.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if a stream or the bucket cannot be read.
    pub async fn count_restored_replies(&self) -> Result<Option<usize>, ReadStreamError> {
        match self.kv::<RestoreHold>(buckets::RESTORE).get(HOLD_KEY).await? {
            Some(found) if found.value.decision == HoldDecision::Waiting => {
                Ok(Some(self.restored_replies(&found.value).await?.len()))
            }
            Some(_) | None => Ok(None),
        }
    }

    /// Returns the replies that wait because of `hold`: in `PARKED`, and in `DELIVERIES` on their way to it.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if a stream cannot be read.
    pub async fn restored_replies(&self, hold: &RestoreHold) -> Result<Vec<Reply>, ReadStreamError> {
        let mut replies: Vec<Reply> = Vec::new();
        for stream in [streams::PARKED, streams::DELIVERIES] {
            let state = self.stream_state(stream).await?;
            if state.messages == 0 {
                continue;
            }

            let mut sequence = state.first;
            while let Some(stored) = self.next_on_subject(stream, ">", sequence).await? {
                sequence = stored.sequence + 1;
                let Ok(reply) = stored.decode::<Reply>() else { continue };
                if hold.concerns(made_at(&reply)) && replies.iter().all(|other| other.id != reply.id) {
                    replies.push(reply);
                }
            }
        }

        let made = self.delivered_among(&replies).await?;
        replies.retain(|reply| !made.contains(&reply.id));

        Ok(replies)
    }

    /// Returns the ids of those `replies` that a receipt records as made. A broker that goes on publishes such a reply
    /// again, and the reply is not sent, whichever way the operator decides.
    async fn delivered_among(&self, replies: &[Reply]) -> Result<HashSet<Ulid>, ReadStreamError> {
        let mut since: BTreeMap<String, UnixMillis> = BTreeMap::new();
        for reply in replies {
            let oldest = since
                .entry(subject::receipt(&reply.delivery_context))
                .or_insert(UnixMillis(i64::MAX));
            *oldest = made_at(reply).plus(-SKEW_MS).min(*oldest);
        }

        let mut made = HashSet::new();
        for (subject, since) in since {
            let mut page = self.history_since(streams::RECEIPTS, &subject, since, PAGE).await?;
            while let Some(last) = page.last() {
                let receipts = page.iter().filter_map(|stored| stored.decode::<Receipt>().ok());
                let delivered = receipts.filter(|receipt| matches!(receipt.step, ReceiptStep::Delivered { .. }));
                made.extend(delivered.map(|receipt| receipt.delivery));
                page = self
                    .read_history(streams::RECEIPTS, &subject, last.sequence + 1, PAGE)
                    .await?;
            }
        }

        Ok(made)
    }
}

/// Returns the time at which the turn of `reply` was made.
fn made_at(reply: &Reply) -> UnixMillis {
    UnixMillis(i64::try_from(reply.id.timestamp_ms()).unwrap_or(i64::MAX))
}
