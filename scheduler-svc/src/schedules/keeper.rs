//! Keeps the records of schedules, their timers and their events consistent, on any number of replicas.

use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use shared::bus::{Bus, CasError, KvEntry, KvEvent, OutgoingMessage};
use shared::clock::{SharedClock, pause};
use shared::model::event::ParseEventIdError;
use shared::model::schedule::{ScheduleRecord, ScheduleTimer};
use shared::model::time::UnixMillis;
use shared::process::lifecycle::ShutdownSignal;
use shared::process::trace::{carrier_of, root_span};
use shared::schedule::book::ScheduleBook;
use shared::schedule::{ParseScheduleError, Schedule, zone_named};
use shared::wire::headers::{HOPS, TraceCarrier};
use shared::wire::subject;
use shared::wire::topology::streams;
use tracing::Instrument as _;

use super::decide::{ScheduleDecision, SchedulePlan, UnderWay, decide_next, fresh_last, gives_up_waiting};
use super::event;
use super::under_way::{find_out, tell_unknown};
use crate::timer::{AFTER_CONNECTION, TimerOutcome, TimerPlace, TimerStore};
use crate::timer_dispatch::OnFire;

/// Number of times that one check is repeated while other replicas write the record.
const TRIES: u32 = 32;
/// Time in which the writer of a record must execute the effects; after that, any replica does.
const BROUGHT_ABOUT_WITHIN: Duration = Duration::from_secs(2);
/// Maximum number of records that wait for that at once, on one replica; further ones wait for their old timers, or
/// for the hourly check.
const MAX_WRITTEN: usize = 10_000;
/// Pause after an error, before the next record is checked.
const REPAIR_PAUSE: Duration = Duration::from_secs(1);

/// Error of a check or a change of a schedule.
#[derive(Debug, thiserror::Error)]
pub enum KeepScheduleError {
    /// The records cannot be read.
    #[error(transparent)]
    Read(#[from] shared::bus::ReadStreamError),
    /// The record cannot be written.
    #[error(transparent)]
    Write(#[from] CasError),
    /// An event cannot be published.
    #[error(transparent)]
    Publish(#[from] shared::bus::PublishError),
    /// The timer cannot be set.
    #[error(transparent)]
    Timer(#[from] crate::timer::SetTimerError),
    /// The text of the schedule cannot be parsed.
    #[error(transparent)]
    Schedule(#[from] ParseScheduleError),
    /// The schedule's id makes no event id.
    #[error(transparent)]
    EventId(#[from] ParseEventIdError),
    /// There is no such schedule.
    #[error("no schedule `{id}`")]
    Unknown {
        /// Id of the schedule.
        id: String,
    },
    /// Other replicas write the record too often.
    #[error("schedule `{id}`: too many concurrent updates")]
    Contended {
        /// Id of the schedule.
        id: String,
    },
}

/// Keeper of the schedules.
#[derive(Debug, Clone)]
pub struct ScheduleWriter {
    bus: Bus,
    book: ScheduleBook,
    timers: TimerStore,
    clock: SharedClock,
}

/// Returns the plan of `record`, with the current data of its time zone.
///
/// # Errors
/// Returns [`ParseScheduleError`] if its text cannot be parsed.
pub fn plan_of(record: &ScheduleRecord) -> Result<SchedulePlan<'_>, ParseScheduleError> {
    Ok(SchedulePlan {
        spec: &record.spec,
        schedule: Schedule::parse(&record.spec.schedule, &record.spec.zone)?,
        zone: zone_named(&record.spec.zone)?,
    })
}

impl ScheduleWriter {
    /// Builds a keeper on `bus`, by `clock`.
    #[must_use]
    pub fn new(bus: Bus, clock: SharedClock) -> Self {
        Self {
            book: ScheduleBook::new(&bus),
            timers: TimerStore::new(bus.clone()),
            bus,
            clock,
        }
    }

    /// Store of the schedules' records.
    #[must_use]
    pub const fn schedule_book(&self) -> &ScheduleBook {
        &self.book
    }

    /// Returns the time of the keeper's clock.
    #[must_use]
    pub fn now(&self) -> UnixMillis {
        self.clock.now()
    }

    /// Checks every schedule that exists, then each one that its owner writes, and, a moment later, each one that a
    /// scheduler has written, because it may have died before it set the timer. Checks all again every `every`, and
    /// 75 s after a new connection.
    pub async fn run(&self, every: Duration, shutdown: &ShutdownSignal) {
        let mut written: FuturesUnordered<BoxFuture<'_, String>> = FuturesUnordered::new();
        let mut waits = HashSet::new();
        while !shutdown.is_requested() {
            let again = self.wait_until_due(every);
            tokio::pin!(again);
            let mut watch = self.book.kv().watch_all();

            let mut is_current = false;
            loop {
                let told = tokio::select! {
                    () = shutdown.requested() => return,
                    () = &mut again => break,
                    Some(id) = written.next(), if !written.is_empty() => {
                        waits.remove(&id);
                        self.reconcile_schedule(&id).await;
                        continue;
                    }
                    told = watch.next() => told,
                };

                match told {
                    KvEvent::Put { value, .. } if is_current && value.next.is_some() => {
                        let id = value.spec.id;
                        if waits.len() < MAX_WRITTEN && waits.insert(id.clone()) {
                            written.push(Box::pin(async move {
                                pause(BROUGHT_ABOUT_WITHIN).await;
                                id
                            }));
                        }
                    }
                    KvEvent::Put { value, .. } => self.reconcile_schedule(&value.spec.id).await,
                    KvEvent::Gone { .. } => {}
                    // Timers may be set for records that no longer exist; the existing records are checked now.
                    KvEvent::Anew => is_current = false,
                    KvEvent::Bad { key, error, .. } => tracing::warn!(key, error, "failed to read a schedule"),
                    KvEvent::Current => {
                        is_current = true;
                        tracing::debug!("checking all schedules");
                    }
                }
            }
        }
    }

    /// Waits for `rest`, or for [`AFTER_CONNECTION`] if there is a new connection meanwhile.
    async fn wait_until_due(&self, rest: Duration) {
        let mut connections = self.bus.connections();
        connections.count_from_now();
        tokio::select! {
            () = pause(rest) => return,
            () = connections.stands_anew() => {}
        }
        pause(rest.min(AFTER_CONNECTION)).await;
    }

    /// Checks `id`; an error is left to the next check.
    async fn reconcile_schedule(&self, id: &str) {
        if let Err(error) = self.advance_schedule(id, None).await {
            tracing::warn!(schedule = id, %error, "failed to check a schedule; retrying later");
            pause(REPAIR_PAUSE).await;
        }
    }

    /// Brings the schedule `id` to its state of now. `fired` is its timer, if that has fired.
    ///
    /// # Errors
    /// Returns [`KeepScheduleError`]. Effects so far are kept, and another check completes them.
    pub async fn advance_schedule(&self, id: &str, fired: Option<&ScheduleTimer>) -> Result<(), KeepScheduleError> {
        for _ in 0..TRIES {
            let Some(entry) = self.book.get(id).await? else {
                return Ok(());
            };
            let record = &entry.value;
            let own = fired.filter(|timer| timer.generation == record.generation);

            let mut now = self.clock.now();
            match own {
                // The timer is due by the server's clock, even if ours is behind.
                Some(_) => now = now.max(record.timer_due().unwrap_or(now)),
                None => self.complete_decision(record).await?,
            }

            match self.decide_record(record, now).await? {
                ScheduleDecision::Nothing | ScheduleDecision::Ask => return Ok(()),
                ScheduleDecision::Write(after) => {
                    if self.write(&entry, &after).await? {
                        return self.bring_about(&after).await;
                    }
                }
            }
        }

        Err(KeepScheduleError::Contended { id: id.to_owned() })
    }

    /// Changes the record of `id` by `change`, and executes the effects.
    ///
    /// # Errors
    /// Returns [`KeepScheduleError`], or the error of `change`.
    pub async fn change_record<E: From<KeepScheduleError>>(
        &self,
        id: &str,
        change: impl Fn(&ScheduleRecord, UnixMillis) -> Result<ScheduleRecord, E>,
    ) -> Result<ScheduleRecord, E> {
        let unread = |error| E::from(KeepScheduleError::Read(error));
        for _ in 0..TRIES {
            let entry = self.book.get(id).await.map_err(unread)?;
            let entry = entry.ok_or_else(|| KeepScheduleError::Unknown { id: id.to_owned() })?;
            self.complete_decision(&entry.value).await?;

            let after = change(&entry.value, self.clock.now())?;
            if self.write(&entry, &after).await? {
                self.bring_about(&after).await?;
                return Ok(after);
            }
        }

        Err(KeepScheduleError::Contended { id: id.to_owned() }.into())
    }

    async fn decide_record(
        &self,
        record: &ScheduleRecord,
        now: UnixMillis,
    ) -> Result<ScheduleDecision, KeepScheduleError> {
        let plan = plan_of(record)?;
        match decide_next(record, &plan, now, None) {
            ScheduleDecision::Ask => {
                let last = fresh_last(record, now);
                let last = last.map(|last| event::firing_event(&record.spec, last.nominal, last.at));
                let under_way = find_out(&self.bus, record, last.transpose()?.as_ref()).await;
                if under_way == UnderWay::Unknown {
                    tell_unknown(record);
                }

                Ok(decide_next(record, &plan, now, Some(under_way)))
            }
            ScheduleDecision::Write(after) => {
                if gives_up_waiting(record, &after, now) {
                    let id = &record.spec.id;
                    tracing::warn!(schedule = %id, "treating the last firing as ended after one hour");
                }
                Ok(ScheduleDecision::Write(after))
            }
            ScheduleDecision::Nothing => Ok(ScheduleDecision::Nothing),
        }
    }

    /// Writes the record. Returns whether it was still the one that was read.
    async fn write(&self, entry: &KvEntry<ScheduleRecord>, after: &ScheduleRecord) -> Result<bool, KeepScheduleError> {
        let key = ScheduleBook::key(&after.spec.id);
        match self.book.kv().update(&key, after, entry.revision).await {
            Ok(_) => Ok(true),
            Err(CasError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Executes the effects of a decision that another replica may have left half done. They are complete if its timer
    /// is set.
    async fn complete_decision(&self, record: &ScheduleRecord) -> Result<(), KeepScheduleError> {
        if record.timer_due().is_some() {
            let set: Option<ScheduleTimer> = self.timers.get(&TimerPlace::of_schedule(&record.spec.id)).await?;
            let stands = match set {
                Some(set) if set.generation > record.generation => !self.is_put_back(record).await?,
                Some(set) => set.generation == record.generation,
                None => false,
            };

            if stands {
                return Ok(());
            }
        }

        if self.is_published(record).await? {
            return self.set_timer(record).await;
        }

        self.bring_about(record).await
    }

    /// Returns whether the events of the last decision are stored: they are the last of the schedule's own
    /// conversation. The message ids do not show it, because the server forgets them after an hour, and a scheduler
    /// may come back later.
    async fn is_published(&self, record: &ScheduleRecord) -> Result<bool, KeepScheduleError> {
        let Some(nominal) = record.firing.last() else {
            return Ok(true);
        };
        let event = event::firing_event(&record.spec, *nominal, *nominal)?;
        let place = subject::conversation(&event.channel, event.account(), &event.peer.id);
        let stored = self.bus.last_on_subject(streams::EVENTS, &place).await?;
        let last = stored.and_then(|stored| stored.read_event(self.bus.trust()).ok());
        Ok(last.is_some_and(|last| last.id == event.id))
    }

    /// Publishes the events of the firings, then sets the timer of the next one.
    async fn bring_about(&self, record: &ScheduleRecord) -> Result<(), KeepScheduleError> {
        for nominal in &record.firing {
            self.publish(record, *nominal).await?;
        }
        self.set_timer(record).await
    }

    /// Sets, or withdraws, the timer of `record`, unless that of a later record stands.
    async fn set_timer(&self, record: &ScheduleRecord) -> Result<(), KeepScheduleError> {
        if self.try_timer(record, None).await? == TimerOutcome::Done {
            return Ok(());
        }

        let place = TimerPlace::of_schedule(&record.spec.id);
        let set: Option<ScheduleTimer> = self.timers.get(&place).await?;
        let Some(set) = set.filter(|set| set.generation > record.generation) else {
            return self.try_timer(record, None).await.map(drop);
        };

        if self.is_put_back(record).await? {
            tracing::warn!(
                schedule = %record.spec.id, generation = record.generation, set = set.generation,
                "KV schedules was restored to an earlier state: replacing the timer of the lost record"
            );
            self.try_timer(record, Some(set.generation)).await?;
        }

        Ok(())
    }

    /// Whether KV still has `record`, which a timer is ahead of: the replica that set that timer had written its record
    /// before, so that record is lost. To be asked after the timer was read.
    async fn is_put_back(&self, record: &ScheduleRecord) -> Result<bool, KeepScheduleError> {
        let standing = self.book.get(&record.spec.id).await?;
        Ok(standing.is_some_and(|standing| standing.value == *record))
    }

    /// Sets, or withdraws, the timer of `record` in place of an earlier one, or of the one of generation `lost`.
    async fn try_timer(&self, record: &ScheduleRecord, lost: Option<u64>) -> Result<TimerOutcome, KeepScheduleError> {
        let place = TimerPlace::of_schedule(&record.spec.id);
        let generation = record.generation;
        let yields = |set: &ScheduleTimer| set.generation <= generation || Some(set.generation) == lost;
        Ok(match record.timer_due() {
            Some(due) => {
                let timer = ScheduleTimer {
                    id: record.spec.id.clone(),
                    nominal: record.next.map_or(due, |next| next.nominal),
                    generation,
                };
                self.timers.set_timer(&place, due, &timer, yields).await?
            }
            None => self.timers.cancel_timer(&place, yields).await?,
        })
    }

    async fn publish(&self, record: &ScheduleRecord, nominal: UnixMillis) -> Result<(), KeepScheduleError> {
        let now = self.clock.now();
        let event = event::firing_event(&record.spec, nominal, now)?;
        let span = root_span("scheduler.schedule");
        let carrier = carrier_of(&span, &TraceCarrier::default());
        span.record("event_id", tracing::field::display(&event.id));
        let out = OutgoingMessage::event(&event, self.bus.trust())
            .header(HOPS, event.hops.to_string())
            .carrier(&carrier);
        let published = self.bus.publish(out).instrument(span).await?;

        let late_ms = now.since(nominal);
        tracing::debug!(event_id = %event.id, late_ms, duplicate = published.duplicate, "schedule fires");
        let outcome = if published.duplicate {
            "another_was_first"
        } else {
            "stored"
        };

        metrics::counter!("nexus_scheduler_firings_total", "outcome" => outcome).increment(1);
        Ok(())
    }
}

#[async_trait]
impl OnFire<ScheduleTimer> for ScheduleWriter {
    async fn handle_fired(&self, timer: &ScheduleTimer) -> anyhow::Result<()> {
        Ok(self.advance_schedule(&timer.id, Some(timer)).await?)
    }
}
