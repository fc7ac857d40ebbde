//! Events straight into their stream, each until the server has it.

use std::time::Duration;

use shared::bus::{Bus, OutgoingMessage};
use shared::clock::pause;
use shared::model::event::{Event, EventId};
use shared::model::invocation::{EventInvocations, HookOutcome};
use shared::model::origin::EventOrigin;
use shared::model::time::UnixMillis;
use shared::wire::headers::MSG_ID;
use shared::wire::topology::streams::INVOCATIONS;
use tests::eventually::eventually;
use tests::record::read_all;
use tests::world::World;

use super::{Over, is_over};
use crate::kills::SETTLE;

/// Senders, each with conversations of its own.
const SENDERS: u64 = 20;
/// Conversations of one sender.
const CONVERSATIONS: u64 = 5;
/// How long a sender waits between two events.
const GAP: Duration = Duration::from_millis(250);
/// How long until an event is sent again that the server did not take.
const AGAIN: Duration = Duration::from_millis(50);
/// Events that are shown to all replicas at once.
const SHOWN: u64 = 40;

/// An event that was stored.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    /// Its id.
    pub(super) id: EventId,
    /// Its channel, which says who sees it.
    pub(super) channel: &'static str,
    peer: String,
}

impl Sent {
    fn new(number: u64, channel: &'static str, peer: String) -> Self {
        let id = EventId::parse(format!("chaos:{channel}/{peer}/{number}")).expect("valid");
        Self { id, channel, peer }
    }

    fn event(&self) -> Event {
        let mut event = Event::new(self.id.clone(), self.channel, &self.peer, UnixMillis(1_700_000_000_000));
        event.origin = EventOrigin::account(self.channel, "default");
        event
    }
}

/// Stores an event; the server knows it again by its id.
async fn store(bus: &Bus, sent: &Sent) {
    let event = sent.event();
    let out = || OutgoingMessage::event(&event, bus.trust());
    while bus.publish(out()).await.is_err() {
        pause(AGAIN).await;
    }
}

/// Sends until it is over; answers what was stored, each conversation in its order.
pub(super) async fn send(bus: Bus, over: Over) -> Vec<Sent> {
    let one = |sender: u64| {
        let (bus, over) = (bus.clone(), Over::clone(&over));
        tokio::spawn(async move {
            let channel = match sender % 10 {
                0 => "ask",
                1 => "fall",
                2 => "read",
                _ => "chaos",
            };

            let mut all = Vec::new();
            for number in 0.. {
                let sent = Sent::new(number, channel, format!("{sender}-{}", number % CONVERSATIONS));
                store(&bus, &sent).await;
                all.push(sent);

                if is_over(&over) {
                    break;
                }
                pause(GAP).await;
            }

            all
        })
    };

    let senders: Vec<_> = (0..SENDERS).map(one).collect();
    let mut all = Vec::new();
    for sender in senders {
        all.extend(sender.await.expect("a sender panicked"));
    }

    all.sort_by_key(|sent| sent.id.as_str().rsplit('/').next().and_then(|n| n.parse::<u64>().ok()));
    all
}

/// Stores `events` once more, and nobody can tell by the message that it was there before.
pub(super) async fn repeat(bus: &Bus, events: &[Sent]) {
    for sent in events {
        let event = sent.event();
        let mut out = OutgoingMessage::event(&event, bus.trust());
        out.headers.remove(MSG_ID);
        bus.publish(out).await.expect("stored");
    }
}

/// Sends events until every replica evaluates such with edit `version`; answers what was sent.
pub(super) async fn until_all_say(world: &World, version: usize) -> Vec<Sent> {
    let mut all = Vec::new();
    let mut round = 0;
    let session = format!("v-{version}");

    eventually("every replica has the last edit", SETTLE, async || {
        round += 1;
        let shown: Vec<Sent> = (0..SHOWN)
            .map(|peer| Sent::new(round, "chaos", format!("shown-{peer}")))
            .collect();
        for sent in &shown {
            store(&world.bus, sent).await;
        }

        all.extend(shown.iter().cloned());
        let records = records_of(world, &shown).await;
        let by: std::collections::BTreeSet<&str> = records.iter().map(|record| record.evaluated_by.as_str()).collect();

        let newest = records.iter().filter(|record| said(record) == Some(&session)).count();
        if by.len() == 2 && newest == shown.len() {
            Ok(())
        } else {
            Err(format!("{newest} of {SHOWN} say {session}, evaluated by {by:?}"))
        }
    })
    .await;

    all
}

/// Where the hook `edited` sent the event of `record`.
pub(super) fn said(record: &EventInvocations) -> Option<&String> {
    let edited = record.hooks.iter().find(|hook| hook.hook_id == "edited")?;
    match &edited.outcome {
        HookOutcome::Fired { result, .. } => result.routing.as_ref()?.session.as_ref(),
        HookOutcome::Passed
        | HookOutcome::Suppressed { .. }
        | HookOutcome::Skipped { .. }
        | HookOutcome::Deferred
        | HookOutcome::Failed { .. } => None,
    }
}

/// Waits for the records of `events`.
async fn records_of(world: &World, events: &[Sent]) -> Vec<EventInvocations> {
    eventually("the events are evaluated", SETTLE, async || {
        let all: Vec<(u64, EventInvocations)> = read_all(&world.bus, INVOCATIONS).await;
        let of_these = |record: &EventInvocations| events.iter().any(|sent| sent.id == record.event_id);
        let found: Vec<_> = all.into_iter().map(|(_, record)| record).filter(of_these).collect();
        if found.len() >= events.len() {
            Ok(found)
        } else {
            Err(format!(
                "{} of {} are there\n{}",
                found.len(),
                events.len(),
                world.logs()
            ))
        }
    })
    .await
}
