//! One partition's owner: takes its messages in order, keeps several under way, settles each when its record is stored.
//!
//! What stops a partition from being blocked: a message that cannot be read goes to the dead letters at once; one
//! that keeps failing, after some tries in place (so that its conversation's order holds and all others go on);
//! one that keeps killing its owner, after some unclean take-overs. To find the killer among the messages under
//! way, the first undone one of every ownership is noted; where it was noted before, the messages that may have
//! been under way then are handled one by one, each noted before it is tried.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use shared::bus::dead_letter::Verdict;
use shared::bus::partition::Owned;
use shared::bus::{Incoming, PublishError};
use shared::clock::pause;
use shared::model::event::Event;
use shared::process::trace;
use shared::wire::subject::{parse_event, token};
use shared::wire::topology::MAX_PAST_FLOOR;
use tokio::sync::Semaphore;
use tracing::Instrument as _;

use crate::error::HandleEventError;
use crate::evaluate::Evaluator;
use crate::gate::Gate;
use crate::inherited::Inherited;
use crate::patience::Patience;
use crate::task::Task;

/// Name of this service in dead letters.
const SERVICE: &str = "hook-svc";

/// Unclean take-overs after which a message is given up.
const MAX_UNCLEAN: u32 = 3;

/// Wait before the second try in place; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Longest wait between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// How long the owner tries to note that it ended in good order.
const NOTE: Duration = Duration::from_secs(1);

/// Handles whole partitions; shared by all of them.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) evaluator: Evaluator,
    /// Bounds the events that this replica evaluates at once.
    pub(crate) in_flight: Arc<Semaphore>,
    /// Most messages of one partition under way.
    pub(crate) per_partition: usize,
    /// How long messages under way may take to end once the partition is given back.
    pub(crate) drain: Duration,
}

/// A message to be brought to its end.
enum Work {
    Event(Box<Task>),
    /// To be given up.
    Dead(Box<(Incoming, Verdict)>),
}

impl Work {
    fn dead(incoming: Incoming, reason: &str, detail: String) -> Self {
        Self::Dead(Box::new((incoming, Verdict::new(reason, detail))))
    }
}

/// One ownership of one partition.
struct Shift {
    partition: u16,
    replay_through: u64,
    /// What former owners have left; none until it is asked for.
    inherited: Option<Inherited>,
    gate: Gate,
    /// Consumer sequences of messages under way.
    under_way: BTreeSet<u64>,
    /// The first undone message was noted.
    noted: bool,
    /// It was noted before: handle one by one what may have been under way then.
    careful: bool,
}

impl Owner {
    /// Handles `owned` until it ends.
    pub(crate) async fn own(self: Arc<Self>, mut owned: Owned) {
        let mut shift = Shift::of(&owned);
        let mut running = FuturesUnordered::new();
        let mut last = 0;
        loop {
            let free = running.len() < self.per_partition && shift.may_run_past(last);
            let incoming = tokio::select! {
                biased;
                Some(sequence) = running.next(), if !running.is_empty() => {
                    shift.under_way.remove(&sequence);
                    continue;
                }
                incoming = owned.next(), if free => incoming,
            };
            let Some(incoming) = incoming else { break };
            last = incoming.consumer_sequence;
            let work = match self.admit(&mut shift, &owned, incoming).await {
                Ok(Some(work)) => work,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(partition = shift.partition, %error, "partition is begun anew");
                    break;
                }
            };
            shift.under_way.insert(last);
            running.push(self.perform(work, last));
            if shift.careful {
                while running.next().await.is_some() {}
                shift.under_way.clear();
            }
        }
        let drained = tokio::time::timeout(self.drain, async { while running.next().await.is_some() {} });
        if drained.await.is_err() {
            tracing::warn!(
                partition = shift.partition,
                events = running.len(),
                "events under way are left to the next owner"
            );
        }
        if shift.noted {
            let cleared = tokio::time::timeout(NOTE, owned.attempt(0));
            if !matches!(cleared.await, Ok(Ok(_))) {
                tracing::debug!(partition = shift.partition, "good end of the ownership was not noted");
            }
        }
    }

    /// Reads a message and decides how it is to be handled; none where it was done before.
    async fn admit(
        &self,
        shift: &mut Shift,
        owned: &Owned,
        incoming: Incoming,
    ) -> Result<Option<Work>, HandleEventError> {
        let event = match incoming.decode::<Event>() {
            Ok(event) => event,
            Err(error) => {
                return Ok(Some(Work::dead(incoming, error.reason(), error.to_string())));
            }
        };
        if !agrees(&incoming.subject, &event) {
            let detail = format!(
                "event {}: its conversation is not that of {}",
                event.id, incoming.subject
            );
            return Ok(Some(Work::dead(incoming, "wrong_subject", detail)));
        }
        let inherited = self.inherited(shift, &incoming).await;
        let place = shift.gate.enter(&event);
        let partition = shift.partition;
        let mut task = Task {
            event,
            sequence: incoming.sequence,
            partition,
            inherited,
            marker_read: false,
            place,
            incoming,
        };
        let Some(inherited) = inherited else {
            shift.careful = false;
            return Ok(Some(Work::Event(Box::new(task))));
        };
        if shift.noted && !shift.careful {
            return Ok(Some(Work::Event(Box::new(task))));
        }
        if self.evaluator.is_done(&task, inherited).await? {
            self.evaluator.performer.meters.already_done.increment(1);
            task.incoming.ack().await;
            return Ok(None);
        }
        task.marker_read = true;
        let attempts = owned.attempt(task.sequence).await.map_err(HandleEventError::Attempt)?;
        shift.noted = true;
        shift.careful = attempts > 1;
        if attempts > MAX_UNCLEAN {
            let detail = format!(
                "event {}: its owner ended {MAX_UNCLEAN} times while it was under way",
                task.event.id
            );
            return Ok(Some(Work::dead(task.incoming, "kills_its_owner", detail)));
        }
        Ok(Some(Work::Event(Box::new(task))))
    }

    /// What a former owner may have left of `incoming`; none where it cannot have handled it.
    async fn inherited(&self, shift: &mut Shift, incoming: &Incoming) -> Option<Inherited> {
        if !shift.may_be_done(incoming) {
            return None;
        }
        if shift.inherited.is_none() {
            let (bus, projection) = (&self.evaluator.performer.bus, &self.evaluator.projection);
            shift.inherited = Some(Inherited::of_former_owners(bus, projection, shift.partition).await);
        }
        shift.inherited
    }

    /// Brings one message to its end; answers `key`.
    async fn perform(&self, work: Work, key: u64) -> u64 {
        match work {
            Work::Dead(given_up) => self.give_up(&given_up.0, &given_up.1).await,
            Work::Event(task) => self.event(*task).await,
        }
        key
    }

    async fn event(&self, task: Task) {
        // Closed only after every partition has ended.
        let Ok(_slot) = self.in_flight.acquire().await else {
            return;
        };
        let meters = &self.evaluator.performer.meters;
        let waited = self.evaluator.clock.now().since(task.incoming.published_at);
        meters.lag.record(waited.max(0) as f64 / 1_000.0);
        meters.in_flight.increment(1.0);
        let began = self.evaluator.clock.monotonic();
        let from = task.incoming.carrier();
        let span = trace::consumer_span("hook.evaluate", &from);
        span.record("event_id", task.event.id.as_str());
        let carrier = trace::carrier_of(&span, &from);
        self.try_until_done(&task, &carrier).instrument(span).await;
        meters.in_flight.decrement(1.0);
        meters
            .seconds
            .record(self.evaluator.clock.monotonic().duration_since(began).as_secs_f64());
    }

    async fn try_until_done(&self, task: &Task, carrier: &shared::wire::headers::Carrier) {
        let mut patience = Patience::default();
        let mut again = false;
        let mut wait = FIRST_PAUSE;
        loop {
            let error = match self.evaluator.handle(task, again, carrier).await {
                Ok(()) => return task.incoming.ack().await,
                Err(error) => error,
            };
            again = true;
            self.evaluator.performer.meters.again.increment(1);
            if error.is_stop() {
                return;
            }
            let ends = if error.is_absence() {
                patience.bus_was_away();
                false
            } else {
                let longest = self.evaluator.longest_timeout(&task.event);
                patience.ends(self.evaluator.clock.monotonic(), longest)
            };
            let (detail, tries) = (error.chain(), patience.tries());
            if ends {
                let detail = format!("event {}: {detail}", task.event.id);
                return self
                    .give_up(&task.incoming, &Verdict::new("keeps_failing", detail))
                    .await;
            }
            tracing::warn!(event_id = %task.event.id, tries, error = detail, "event is tried again");
            pause(wait).await;
            wait = (wait * 2).min(LONGEST_PAUSE);
        }
    }

    /// The whole message goes to the dead letters, then it is done with.
    async fn give_up(&self, incoming: &Incoming, verdict: &Verdict) {
        self.evaluator.performer.meters.dead.increment(1);
        let event_id = incoming.headers.event_id(&incoming.subject);
        let mut wait = FIRST_PAUSE;
        loop {
            let bus = &self.evaluator.performer.bus;
            let letter = bus.dead_letter(SERVICE, incoming, verdict, self.evaluator.clock.now());
            match letter.await {
                Ok(()) => break,
                // The event itself stays in its stream for ever; holding up all others would help nobody.
                Err(error @ PublishError::TooLarge { .. }) => {
                    tracing::error!(
                        event_id, sequence = incoming.sequence, %error, "dead letter is too large and not stored"
                    );
                    break;
                }
                Err(error) => {
                    tracing::error!(event_id, sequence = incoming.sequence, %error, "dead letter is not stored, trying again");
                }
            }
            pause(wait).await;
            wait = (wait * 2).min(LONGEST_PAUSE);
        }
        incoming.term().await;
    }
}

/// Whether `event` is of the conversation under whose `subject` it is stored. A publisher that may write to some
/// channels only would otherwise speak for all.
fn agrees(subject: &str, event: &Event) -> bool {
    parse_event(subject).is_some_and(|stored| {
        stored.channel == token(&event.channel)
            && stored.account == token(event.account())
            && stored.peer == token(&event.peer.id)
    })
}

impl Shift {
    fn of(owned: &Owned) -> Self {
        Self {
            partition: owned.partition,
            replay_through: owned.replay_through,
            inherited: None,
            gate: Gate::default(),
            under_way: BTreeSet::new(),
            noted: false,
            careful: false,
        }
    }

    /// Whether the message after consumer sequence `last` may be taken: a take-over repeats everything past the
    /// first undone message, so that is bounded.
    fn may_run_past(&self, last: u64) -> bool {
        self.under_way
            .first()
            .is_none_or(|first| last.saturating_sub(*first) < MAX_PAST_FLOOR.unsigned_abs())
    }

    /// Whether a former owner may have handled the message: it ran at most [`MAX_PAST_FLOOR`] messages past the stored
    /// floor, at which counting began.
    fn may_be_done(&self, incoming: &Incoming) -> bool {
        incoming.sequence <= self.replay_through && incoming.consumer_sequence <= MAX_PAST_FLOOR.unsigned_abs() + 1
    }
}

#[cfg(test)]
mod tests {
    use shared::model::event::EventId;
    use shared::model::time::UnixMillis;

    use super::*;

    #[test]
    fn an_event_is_of_the_conversation_that_its_subject_says() {
        let id = EventId::parse("webchat:1").expect("valid");
        let event = Event::new(id, "webchat", "v.1", UnixMillis(1));
        let long = Event {
            account_id: Some("a".repeat(300)),
            ..event.clone()
        };
        assert!(agrees("nexus.ev.3.webchat.default.v=2E1", &event));
        let shortened = format!("nexus.ev.3.webchat.{}.v=2E1", token(long.account()));
        assert!(agrees(&shortened, &long) && !agrees(&shortened, &event));
        for subject in [
            "nexus.ev.3.timer.default.v=2E1",
            "nexus.ev.3.webchat.other.v=2E1",
            "nexus.ev.3.webchat.default.v2",
            "nexus.event.webchat.default.v=2E1",
        ] {
            assert!(!agrees(subject, &event), "{subject}");
        }
    }
}
