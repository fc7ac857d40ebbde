//! Where a source hands in its events: events first, then the watermark, fenced by the account's lease.

use std::collections::BTreeMap;
use std::sync::Mutex as SyncMutex;
use std::time::Instant;

use serde_json::Value;
use shared::bus::{AccountHold, Bus, CasError, Kv, PublishError};
use shared::clock::pause;
use shared::error_chain::describe_error;
use shared::model::event::Event;
use shared::model::time::UnixMillis;
use shared::platform::policy::DirectPolicy;
use shared::process::Health;
use shared::wire::headers::TraceCarrier;
use shared::wire::topology::buckets;
use shared::wire::watermark::{SourceWatermark, watermark_key};
use tokio::sync::Mutex;

use super::event_store::{AccountEvents, SinkContext, SourceFenced, TRY_AGAIN_AFTER};
use super::{Source, SourceGap, apply_age_gate, gap_event};
use crate::hourly_allowance::HourlyAllowance;
use crate::pairing::PairingStore;
use crate::trace::EventTraces;

/// The reason why events, or the watermark behind them, cannot be stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PutEventsError {
    /// This replica does not hold the account any more. The events may be stored.
    #[error(transparent)]
    Fenced(#[from] SourceFenced),
    /// The server takes no value of this size. The events are stored.
    #[error("the watermark {key} has {bytes} bytes, which is more than the server takes; raise its `max_payload`")]
    WatermarkTooLarge {
        /// Key in KV `watermarks`.
        key: String,
        /// Size of the message, in bytes.
        bytes: usize,
    },
}

/// Events for which it is settled whether their senders may write.
#[derive(Debug)]
pub struct SettledEvents {
    events: Vec<Event>,
    /// Messages that are answered with a code.
    strangers: Vec<Event>,
    /// Traces in which the events came.
    traces: EventTraces,
}

impl SettledEvents {
    /// Returns the events, in the order in which they were given.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }
}

/// How far a source has come, in its own form.
#[derive(Debug, Clone, PartialEq)]
pub struct SourcePosition {
    /// Name of the thing that the position counts.
    pub of: String,
    /// Position.
    pub position: Value,
    /// Time up to which everything that the platform had is stored.
    pub complete_until: UnixMillis,
}

/// The sink of one account, while this replica holds it.
#[derive(Debug)]
pub struct SourceSink {
    context: SinkContext,
    channel: &'static str,
    account: String,
    direct: DirectPolicy,
    hold: AccountHold,
    watermarks: Kv<SourceWatermark>,
    /// Revision of the watermark that this sink wrote or read last.
    revision: Mutex<u64>,
    /// Dead letters of payloads that could not be read.
    letters: SyncMutex<HourlyAllowance>,
    /// Senders whose codes could not be sent, with the time.
    given_up: SyncMutex<BTreeMap<String, Instant>>,
}

impl SourceSink {
    /// Opens the sink of the account of `source`, and returns it with the watermark. The watermark is written again, so that a former
    /// holder, which may have been stopped for a while, cannot write it any more.
    ///
    /// # Errors
    /// Returns [`CasError`] if the watermark cannot be read, or if another replica has written it in the meantime.
    pub async fn open(
        context: SinkContext,
        source: &dyn Source,
        hold: AccountHold,
    ) -> Result<(Self, Option<SourceWatermark>), CasError> {
        let (channel, account) = (source.channel(), source.account());
        let watermarks: Kv<SourceWatermark> = context.bus.kv(buckets::WATERMARKS);
        let key = watermark_key(channel, account);
        let (found, mut revision) = watermarks.find(&key).await?;

        let found = found.map(|watermark| SourceWatermark {
            by: context.run.to_string(),
            ..watermark
        });
        if let Some(watermark) = &found {
            revision = watermarks.update(&key, watermark, revision).await?;
        }

        let sink = Self {
            context,
            channel,
            account: account.to_owned(),
            direct: source.direct_policy(),
            hold,
            watermarks,
            revision: Mutex::new(revision),
            letters: SyncMutex::default(),
            given_up: SyncMutex::default(),
        };
        Ok((sink, found))
    }

    /// Returns whether this replica may still read from the account. To be asked before each call of the platform.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold.is_live()
    }

    /// Returns the rule for users that write to the account directly.
    pub(super) const fn direct(&self) -> DirectPolicy {
        self.direct
    }

    /// Returns the names of channel and account.
    pub(super) fn names(&self) -> (&'static str, &str) {
        (self.channel, &self.account)
    }

    /// Returns the bus of the process.
    pub(crate) const fn bus(&self) -> &Bus {
        &self.context.bus
    }

    /// Returns how many payloads became dead letters.
    pub(super) const fn letters(&self) -> &SyncMutex<HourlyAllowance> {
        &self.letters
    }

    /// Returns the senders whose codes could not be sent.
    pub(super) const fn given_up(&self) -> &SyncMutex<BTreeMap<String, Instant>> {
        &self.given_up
    }

    /// Returns the reading of the monotonic clock.
    pub(super) fn monotonic(&self) -> Instant {
        self.context.clock.monotonic()
    }

    /// Returns the pairings of all accounts.
    pub(super) const fn pairings(&self) -> &PairingStore {
        &self.context.pairings
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> UnixMillis {
        self.context.clock.now()
    }

    /// Waits until JetStream has all of `events`, and then writes the watermark. When it returns, the source may confirm
    /// them to the platform. Strangers among the senders get a code, if the account pairs.
    ///
    /// # Errors
    /// Returns [`PutEventsError`] if this replica does not hold the account any more, or the watermark is too large.
    pub async fn put(&self, events: Vec<Event>, position: SourcePosition) -> Result<(), PutEventsError> {
        let settled = self.settle(events).await?;
        self.put_settled(settled, &[], position).await
    }

    /// As [`SourceSink::put`], with the trace in which each of the events came.
    ///
    /// # Errors
    /// Returns the error of [`SourceSink::put`].
    pub async fn put_traced(
        &self,
        traced: Vec<(Event, TraceCarrier)>,
        position: SourcePosition,
    ) -> Result<(), PutEventsError> {
        let (events, carriers): (Vec<Event>, Vec<TraceCarrier>) = traced.into_iter().unzip();
        let mut settled = self.settle(events).await?;
        settled.traces = EventTraces::of_events(&settled.events, carriers);
        self.put_settled(settled, &[], position).await
    }

    /// Tags `events` that are old, and lets in those whose senders are paired, so that a source can tell before it makes its
    /// position. To be stored with [`SourceSink::put_settled`].
    ///
    /// # Errors
    /// Returns [`SourceFenced`] if this replica does not hold the account any more.
    pub async fn settle(&self, mut events: Vec<Event>) -> Result<SettledEvents, SourceFenced> {
        Box::pin(self.follow_changes(&mut events)).await?;
        for event in &mut events {
            apply_age_gate(event, self.context.age_gate_ms);
        }
        let strangers = self.let_paired_in(&mut events).await?;
        self.store_of().fetch_files(&mut events, || self.is_held()).await?;
        Ok(SettledEvents {
            events,
            strangers,
            traces: EventTraces::default(),
        })
    }

    /// Returns where the account's events are stored.
    fn store_of(&self) -> AccountEvents<'_> {
        AccountEvents {
            context: &self.context,
            channel: self.channel,
            account: &self.account,
        }
    }

    /// As [`SourceSink::put`], with events that are settled, and the events of `gaps`.
    ///
    /// # Errors
    /// Returns the error of [`SourceSink::put`].
    pub async fn put_settled(
        &self,
        settled: SettledEvents,
        gaps: &[SourceGap],
        position: SourcePosition,
    ) -> Result<(), PutEventsError> {
        let SettledEvents {
            mut events,
            strangers,
            traces,
        } = settled;
        Box::pin(self.replace_late_parts(&mut events)).await?;
        events.extend(gaps.iter().filter_map(|gap| self.tell_gap(gap)));
        let merged = Self::merged_among(&events);
        self.store_of().store(events, &traces, || self.is_held()).await?;
        Box::pin(self.note_merged(&merged)).await?;
        self.offer_codes(&strangers).await?;
        self.write_watermark(position).await
    }

    /// Stores the event of a gap, and then the watermark.
    ///
    /// # Errors
    /// Returns the error of [`SourceSink::put`].
    pub async fn gap(&self, gap: &SourceGap, position: SourcePosition) -> Result<(), PutEventsError> {
        let settled = self.settle(Vec::new()).await?;
        self.put_settled(settled, std::slice::from_ref(gap), position).await
    }

    /// Counts and logs `gap`, and returns its event.
    fn tell_gap(&self, gap: &SourceGap) -> Option<Event> {
        tracing::warn!(
            channel = self.channel,
            account = self.account,
            reason = gap.reason,
            "events were lost"
        );
        metrics::counter!("nexus_source_gaps_total", "source" => self.channel).increment(1);
        let event = gap_event(self.channel, &self.account, gap, self.now());
        // Names of accounts are short; the watermark goes on in any case.
        event
            .inspect_err(|error| tracing::error!(%error, "failed to store a gap"))
            .ok()
            .map(|mut event| {
                apply_age_gate(&mut event, self.context.age_gate_ms);
                event
            })
    }

    /// Reports the account's state to `/readyz`: sound, or `degraded` with the fault. One account never makes the
    /// process unready, because others and other sources go on.
    pub fn report(&self, state: Result<&str, &str>) {
        report_account(&self.context.health, self.channel, &self.account, state);
    }

    async fn write_watermark(&self, position: SourcePosition) -> Result<(), PutEventsError> {
        let SourcePosition {
            of,
            position,
            complete_until,
        } = position;
        let watermark = SourceWatermark {
            of,
            position,
            complete_until,
            by: self.context.run.to_string(),
        };

        let key = watermark_key(self.channel, &self.account);
        let mut revision = self.revision.lock().await;
        while self.is_held() {
            let written = match *revision {
                0 => self.watermarks.create(&key, &watermark).await,
                known => self.watermarks.update(&key, &watermark, known).await,
            };
            match written {
                Ok(written) => {
                    *revision = written;
                    return Ok(());
                }
                // Another replica has opened the account, or the bucket was restored: it is read again.
                Err(CasError::Conflict { .. }) => return Err(SourceFenced.into()),
                Err(CasError::Publish(PublishError::TooLarge { size, .. })) => {
                    return Err(PutEventsError::WatermarkTooLarge { key, bytes: size });
                }
                Err(error @ (CasError::Publish(_) | CasError::Read(_))) => {
                    tracing::warn!(
                        key,
                        error = describe_error(&error),
                        "failed to write a watermark; retrying"
                    );
                    pause(TRY_AGAIN_AFTER).await;
                }
            }
        }

        Err(SourceFenced.into())
    }
}

/// Reports the state of `account` on `channel`: sound, or degraded with the fault.
pub(crate) fn report_account(health: &Health, channel: &str, account: &str, state: Result<&str, &str>) {
    let part = format!("{channel}/{account}");
    match state {
        Ok(detail) => health.set(&part, true, detail),
        Err(detail) => health.set_degraded(&part, detail),
    }
}
