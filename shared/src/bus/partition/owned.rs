//! An owned partition, as its handler sees it.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{PullConsumer, pull};
use futures_util::StreamExt as _;

use crate::wire::session_mark::LeaseRecord;
use crate::wire::topology::buckets;

use super::super::connect::Bus;
use super::super::error::CasError;
use super::super::kv::Kv;
use super::super::message::Incoming;
use super::Group;
use super::lease::Deadline;

/// How long the server holds a pull: longer ones of a former owner may still stand after a take-over.
const PULL_EXPIRES: Duration = Duration::from_secs(5);
/// How often an idle pull shows that it lives.
const PULL_HEARTBEAT: Duration = Duration::from_millis(1_500);

/// A partition that this replica owns until [`Owned::next`] answers none.
pub struct Owned {
    /// Which one.
    pub partition: u16,
    /// Counts up with every owner.
    pub epoch: u64,
    /// Messages up to this stream sequence may have been handled by a former owner, or by this one before the
    /// partition was begun anew: look for their done-marks.
    pub replay_through: u64,
    bus: Bus,
    attempts: Kv<LeaseRecord>,
    attempts_key: String,
    holder: String,
    deadline: Deadline,
    messages: pull::Stream,
    expected: u64,
    /// The first seconds of an ownership: a forgotten pull may have swallowed what should have come first.
    watchdog: Option<Duration>,
}

impl std::fmt::Debug for Owned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owned")
            .field("partition", &self.partition)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl Owned {
    /// The next message, in order. None = take no more: finish what is in flight and return; the partition was
    /// given to another, has to be begun anew, or the process stops.
    pub async fn next(&mut self) -> Option<Incoming> {
        let watchdog = self.watchdog;
        let patience = async move {
            match watchdog {
                Some(patience) => crate::clock::pause(patience).await,
                None => std::future::pending().await,
            }
        };
        let message = tokio::select! {
            biased;
            () = self.deadline.stop.cancelled() => return None,
            message = self.messages.next() => message,
            () = patience => {
                tracing::debug!(partition = self.partition, "nothing came since the take-over, begun anew");
                return None;
            }
        };
        self.watchdog = None;
        if !self.deadline.is_live() {
            return None;
        }
        let incoming = match message? {
            Ok(message) => Incoming::new(message)?,
            Err(error) => {
                tracing::debug!(partition = self.partition, %error, "pull is broken, begun anew");
                return None;
            }
        };
        if incoming.consumer_sequence != self.expected {
            let (found, expected) = (incoming.consumer_sequence, self.expected);
            tracing::debug!(
                partition = self.partition,
                found,
                expected,
                "a message went elsewhere, begun anew"
            );
            return None;
        }
        self.expected += 1;
        Some(incoming)
    }

    /// Whether this replica may still act on the partition.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.deadline.is_live() && !self.deadline.stop.is_cancelled()
    }

    /// Notes durably that the message at `sequence` is about to be tried, and answers how often it was: for messages
    /// up to [`Owned::replay_through`] whose handling may have killed a former owner. One write each, so only there.
    ///
    /// # Errors
    /// [`CasError`] where it cannot be noted.
    pub async fn attempt(&self, sequence: u64) -> Result<u32, CasError> {
        let before = self.attempts.get(&self.attempts_key).await?;
        let tried = before
            .as_ref()
            .filter(|entry| entry.value.in_progress == sequence)
            .map_or(0, |e| e.value.unclean);
        let record = LeaseRecord {
            holder: self.holder.clone(),
            epoch: self.epoch,
            in_progress: sequence,
            unclean: tried + 1,
            released: false,
        };
        self.attempts.put(&self.attempts_key, &record).await?;
        Ok(tried + 1)
    }

    /// The bus it came from.
    #[must_use]
    pub const fn bus(&self) -> &Bus {
        &self.bus
    }
}

/// Begins `partition` at its ack floor. `fresh`: a former owner's pull may still stand.
pub(super) async fn reset(
    bus: &Bus,
    group: &Arc<Group>,
    partition: u16,
    epoch: u64,
    fresh: bool,
    deadline: Deadline,
) -> Result<Owned, String> {
    let name = format!("{}-{partition}", group.name);
    let stream = bus
        .jetstream
        .get_stream_no_info(group.stream)
        .await
        .map_err(|error| error.to_string())?;
    stream
        .reset_consumer(&name, None)
        .await
        .map_err(|error| error.to_string())?;
    let consumer: PullConsumer = bus
        .jetstream
        .get_consumer_from_stream(&name, group.stream)
        .await
        .map_err(|error| error.to_string())?;
    let messages = consumer
        .stream()
        .max_messages_per_batch(group.batch)
        .expires(PULL_EXPIRES)
        .heartbeat(PULL_HEARTBEAT)
        .messages()
        .await
        .map_err(|error| error.to_string())?;
    let state = bus
        .stream_state(group.stream)
        .await
        .map_err(|error| error.to_string())?;
    Ok(Owned {
        partition,
        epoch,
        replay_through: state.last,
        bus: bus.clone(),
        attempts: bus.kv(buckets::ATTEMPTS),
        attempts_key: format!("attempts.{}.{partition}", group.name),
        holder: group.instance.clone(),
        deadline,
        messages,
        expected: 1,
        watchdog: fresh.then_some(PULL_EXPIRES + Duration::from_secs(1)),
    })
}
