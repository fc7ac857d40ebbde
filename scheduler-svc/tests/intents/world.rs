//! A server, and replicas of the intents' desk on it under a clock that the test moves.

use std::sync::Arc;
use std::time::Duration;

use scheduler_svc::intent::registry::KindRegistry;
use scheduler_svc::intent::requests::IntentService;
use scheduler_svc::intent::service::{IntentContext, new_desk};
use serde_json::{Value, json};
use shared::bus::{Bus, OutgoingMessage, StoredMessage};
use shared::clock::{Clock as _, SharedClock, SystemClock};
use shared::model::dispatch::{DeliveryContext, Dispatch};
use shared::model::event::{Event, EventId};
use shared::model::intent::service::{IntentAnswer, ProposeIntent};
use shared::model::intent::{Intent, IntentRecord, IntentStatus};
use shared::model::invocation::{EventInvocations, HookInvocation};
use shared::model::ledger::{AppendId, LedgerCursor, LedgerEntry, LedgerRecord};
use shared::model::order::SessionOrder;
use shared::model::origin::EventOrigin;
use shared::model::permission::{PermissionLevel, PermissionSet};
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::process::lifecycle::ShutdownSignal;
use shared::testing::nats::NatsServer;
use shared::testing::{ManualClock, SeededIds, connect_to, eventually_some, sample};
use shared::wire::subject;
use shared::wire::topology::streams::{DISPATCHES, EVENTS, LEDGER};
use ulid::Ulid;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct World {
    pub(crate) server: NatsServer,
    pub(crate) bus: Bus,
    pub(crate) clock: ManualClock,
    pub(crate) shutdown: ShutdownSignal,
    pub(crate) desks: Vec<Arc<IntentService>>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.shutdown.trigger();
    }
}

pub(crate) fn needs(bus: &Bus, clock: SharedClock, number: u64, shutdown: &ShutdownSignal) -> IntentContext {
    IntentContext {
        bus: bus.clone(),
        clock,
        ids: Arc::new(SeededIds::new(number)),
        owner: tokio::sync::watch::channel(Some("casey".to_owned())).1,
        instance: format!("scheduler-{number}"),
        shutdown: shutdown.clone(),
    }
}

impl World {
    pub(crate) async fn start(replicas: u64) -> Self {
        let (server, bus) = shared::testing::world().await;
        let clock = ManualClock::at(SystemClock.now());
        let shutdown = ShutdownSignal::default();

        let mut desks = Vec::new();
        for number in 0..replicas {
            let own = connect_to(&server.url(), &format!("replica-{number}")).await;
            let needs = needs(&own, Arc::new(clock.clone()), number, &shutdown);
            desks.push(new_desk(
                &needs,
                KindRegistry::shipped_registry().expect("the shipped kinds"),
            ));
        }

        Self {
            server,
            bus,
            clock,
            shutdown,
            desks,
        }
    }

    pub(crate) fn now(&self) -> UnixMillis {
        self.clock.now()
    }

    pub(crate) async fn propose(&self, number: u128, more: Value) -> IntentAnswer {
        self.desks[0]
            .propose_intent(proposal(number, more))
            .await
            .expect("an answer")
    }

    /// What happened to the intent, as `AUDIT` has it; checks that nothing is missing or double, and that it agrees with KV.
    ///
    /// KV is written before `AUDIT`: the record of what it says may be on its way still, and is waited for.
    pub(crate) async fn history(&self, id: Ulid) -> Vec<IntentRecord> {
        let store = &self.desks[0].clerk.store;
        let records = eventually_some("KV and AUDIT agree", || async {
            let value = store.find(None, id).await.expect("it is there").value;
            let records = store.read_history(id).await.expect("AUDIT");
            let told = records.last().map(|last| (last.n, last.to));
            (told == Some((value.n, value.status))).then_some(records)
        })
        .await;

        let numbers: Vec<u32> = records.iter().map(|record| record.n).collect();
        let expected: Vec<u32> = (1..=u32::try_from(records.len()).expect("few")).collect();
        assert_eq!(numbers, expected, "{records:#?}");

        for pair in records.windows(2) {
            assert_eq!(pair[1].from, Some(pair[0].to));
            assert!(pair[0].to.may_become(pair[1].to));
        }

        records
    }

    pub(crate) async fn ways(&self, id: Ulid) -> Vec<IntentStatus> {
        self.history(id).await.iter().map(|record| record.to).collect()
    }

    pub(crate) async fn status(&self, id: Ulid) -> IntentStatus {
        self.desks[0]
            .clerk
            .store
            .find(None, id)
            .await
            .expect("it is there")
            .value
            .status
    }

    /// What KV has of intent `number`.
    pub(crate) async fn value(&self, number: u128) -> Intent {
        let found = self.desks[0].clerk.store.find(None, ulid(number)).await;
        found.expect("it is there").value
    }

    pub(crate) async fn dispatches(&self) -> Vec<(u64, Dispatch)> {
        let stored = self
            .bus
            .read_history(DISPATCHES, "nexus.dispatch.>", 1, 1_000)
            .await
            .expect("dispatches");
        let orders = |stored: &&StoredMessage| stored.decode::<SessionOrder>().is_err();
        let dispatches = stored.iter().filter(orders);

        dispatches
            .map(|stored| (stored.sequence, stored.decode().expect("a dispatch")))
            .collect()
    }

    /// Waits for at least `count` dispatches; a server that is just back may not answer yet.
    pub(crate) async fn until_dispatches(&self, count: usize) -> Vec<(u64, Dispatch)> {
        eventually_some("the dispatches", || async {
            let last = self.bus.stream_state(DISPATCHES).await;
            if last.is_ok_and(|state| state.messages >= count as u64) {
                Some(self.dispatches().await)
            } else {
                None
            }
        })
        .await
    }

    pub(crate) async fn events(&self) -> Vec<Event> {
        let stored = self
            .bus
            .read_history(EVENTS, "nexus.ev.>", 1, 1_000)
            .await
            .expect("events");
        stored.iter().map(|stored| stored.decode().expect("an event")).collect()
    }

    /// Says `content` in the conversation of [`proposal`].
    pub(crate) async fn say(&self, source: &str, content: &str) {
        let id = EventId::parse(format!("webchat:{source}")).expect("an id");
        let mut event = Event::new(id, "webchat", "v1", self.now());
        content.clone_into(&mut event.content);
        event.origin = EventOrigin::visitor("default", "v1");
        let out = OutgoingMessage::event(&event, self.bus.trust());
        self.bus.publish(out).await.expect("published");
    }

    /// Plays the broker: the turn of `dispatch` begins.
    pub(crate) async fn begin(&self, dispatch: &Dispatch) -> Ulid {
        let turn = Ulid::from_parts(9, dispatch.id.into());
        let started = sample::turn_started(turn, dispatch);
        self.append(&dispatch.target, started).await;
        turn
    }

    /// Plays the broker: the turn of `dispatch` begins, and ends with `end`.
    pub(crate) async fn turn(&self, dispatch: &Dispatch, end: impl FnOnce(Ulid, LedgerCursor) -> LedgerEntry) {
        let turn = self.begin(dispatch).await;
        self.append(&dispatch.target, end(turn, LedgerCursor::default())).await;
    }

    /// Appends `entry` to the ledger of `session`, as the broker does.
    pub(crate) async fn append(&self, session: &SessionRef, entry: LedgerEntry) {
        let at = subject::ledger(session);
        let last = self.bus.last_on_subject(LEDGER, &at).await.expect("the ledger");
        let record = LedgerRecord {
            append: AppendId {
                broker: "b".to_owned(),
                epoch: 1,
                counter: 1,
            },
            at: self.now().max(SystemClock.now()),
            held_ms: 0,
            entries: vec![entry],
        };

        let out = OutgoingMessage::new(at, &record).expect_last(last.map_or(0, |stored| stored.sequence));
        self.bus.publish(out).await.expect("appended");
    }

    /// Plays hook-svc: the record of `event` tells of one hook.
    pub(crate) async fn evaluated(&self, event: &Event, hook: HookInvocation) {
        let place = subject::conversation(&event.channel, event.account(), &event.peer.id);
        let stored = self
            .bus
            .last_on_subject(EVENTS, &place)
            .await
            .expect("EVENTS")
            .expect("an event");

        let partition = subject::parse_event(&stored.subject).expect("a stored event").partition;
        let record = EventInvocations {
            event_id: event.id.clone(),
            event_seq: stored.sequence,
            evaluated_by: "h".to_owned(),
            started_at: self.now(),
            finished_at: self.now(),
            passed: 0,
            hooks: vec![hook],
            passes: Vec::new(),
            is_slim: false,
        };

        let out = OutgoingMessage::new(subject::invocation(partition, &event.id), &record);
        self.bus.publish(out).await.expect("recorded");
    }
}

pub(crate) fn completed(turn: Ulid, cursor: LedgerCursor) -> LedgerEntry {
    LedgerEntry::TurnCompleted {
        turn,
        reply: None,
        head: turn,
        cursor,
    }
}

pub(crate) const fn ulid(number: u128) -> Ulid {
    Ulid::from_parts(1_000, number)
}

/// A reminder in an hour, by the owner's turn; `more` lies over the wish.
#[expect(clippy::needless_pass_by_value, reason = "it is written at the place of the call")]
pub(crate) fn proposal(number: u128, more: Value) -> ProposeIntent {
    let mut wish = json!({
        "kind": "remind", "parameters": { "subject": "interview", "message": "good luck" },
        "schedule": { "type": "after", "seconds": 3_600 }, "reason": "an interview"
    });
    for (key, value) in more.as_object().cloned().unwrap_or_default() {
        wish[&key] = value;
    }

    ProposeIntent {
        id: Some(ulid(number)),
        wish: serde_json::from_value(wish).expect("a wish"),
        agent: "default".to_owned(),
        session: "main".to_owned(),
        turn: None,
        permissions: PermissionSet {
            level: PermissionLevel::Full,
            ..PermissionSet::default()
        },
        delivery_context: DeliveryContext {
            channel: "webchat".to_owned(),
            peer_id: Some("v1".to_owned()),
            ..DeliveryContext::default()
        },
        causation: None,
    }
}
