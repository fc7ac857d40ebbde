//! What the streams hold of intents: read whole, and counted.

use std::collections::{BTreeMap, BTreeSet};

use scheduler_svc::intent::store::STREAM;
use shared::bus::{Bus, StoredMessage};
use shared::model::dispatch::Dispatch;
use shared::model::event::Event;
use shared::model::intent::{Intent, IntentRecord, firing_of};
use shared::wire::topology::streams::{AUDIT, DISPATCHES, EVENTS};
use ulid::Ulid;

/// From where on each stream is looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begins {
    pub(crate) values: u64,
    pub(crate) audit: u64,
    pub(crate) events: u64,
    pub(crate) dispatches: u64,
}

impl Begins {
    /// From now on.
    pub(crate) async fn now(bus: &Bus) -> Self {
        Self {
            values: behind(bus, STREAM).await,
            audit: behind(bus, AUDIT).await,
            events: behind(bus, EVENTS).await,
            dispatches: behind(bus, DISPATCHES).await,
        }
    }
}

async fn behind(bus: &Bus, stream: &str) -> u64 {
    bus.stream_state(stream).await.expect("the stream").last + 1
}

/// Everything in `stream` on `subject` from `from` on; none where the server does not answer.
pub(crate) async fn all(bus: &Bus, stream: &str, subject: &str, mut from: u64) -> Option<Vec<StoredMessage>> {
    let mut all = Vec::new();
    loop {
        let page = bus.read_history(stream, subject, from, 256).await.ok()?;
        let Some(last) = page.last() else { return Some(all) };
        from = last.sequence + 1;
        all.extend(page);
    }
}

/// The intents of those that are asked for under kills, as they stand.
pub(crate) async fn intents(bus: &Bus, from: u64) -> Option<BTreeMap<Ulid, Intent>> {
    let values = all(bus, STREAM, "$KV.intents.i.*.*", from).await?;
    let values = values.iter().filter_map(|stored| stored.decode::<Intent>().ok());
    let ours = values.filter(|value| value.intent.agent.starts_with("killed-"));
    Some(ours.map(|value| (value.intent.id, value)).collect())
}

/// What `AUDIT` tells of each.
pub(crate) async fn told(bus: &Bus, from: u64) -> Option<BTreeMap<Ulid, Vec<IntentRecord>>> {
    let mut told: BTreeMap<Ulid, Vec<IntentRecord>> = BTreeMap::new();
    for stored in all(bus, AUDIT, "nexus.audit.intent.*", from).await? {
        let record: IntentRecord = stored.decode().expect("a record");
        told.entry(record.intent).or_default().push(record);
    }
    Some(told)
}

/// How many events of firings there are of each.
pub(crate) async fn fired(bus: &Bus, from: u64) -> Option<BTreeMap<Ulid, usize>> {
    let mut fired = BTreeMap::new();
    for stored in all(bus, EVENTS, "nexus.ev.*.timer.>", from).await? {
        let event: Event = stored.decode().expect("an event");
        if let Some((intent, _)) = firing_of(&event.id) {
            *fired.entry(intent).or_default() += 1;
        }
    }
    Some(fired)
}

/// How many dispatches of firings there are of each; no dispatch is there twice.
pub(crate) async fn dispatched(bus: &Bus, from: u64) -> Option<BTreeMap<Ulid, usize>> {
    let (mut dispatched, mut ids) = (BTreeMap::new(), BTreeSet::new());
    for stored in all(bus, DISPATCHES, "nexus.dispatch.>", from).await? {
        let Ok(dispatch) = stored.decode::<Dispatch>() else {
            continue;
        };

        assert!(
            ids.insert(dispatch.id),
            "{} of {} twice",
            dispatch.id,
            dispatch.event_id
        );

        if let Some((intent, _)) = firing_of(&dispatch.event_id) {
            *dispatched.entry(intent).or_default() += 1;
        }
    }

    Some(dispatched)
}
