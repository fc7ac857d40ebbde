//! Sample messages as the services publish them, small and uniform.

use std::sync::Arc;

use ulid::Ulid;

use crate::model::dispatch::{DeliveryContext, Dispatch, DispatchCause, derived_ulid, dispatch_id};
use crate::model::event::{Event, EventDirection, EventId};
use crate::model::hook::HookResult;
use crate::model::invocation::{EventInvocations, HookInvocation, HookOutcome};
use crate::model::ledger::{AppendId, DispatchRef, LedgerCursor, LedgerEntry, LedgerRecord, TurnLimits, TurnUsage};
use crate::model::origin::EventOrigin;
use crate::model::permission::PermissionSet;
use crate::model::receipt::{Receipt, ReceiptStep};
use crate::model::reply::Reply;
use crate::model::session::{QueueMode, SessionRef};
use crate::model::time::UnixMillis;
use crate::projection::{AppliedRecord, FeedSource};
use crate::testing::sample;
use crate::wire::unknown::UnknownFields;

pub(super) const HOOK: &str = "default-dm-routing";

pub(super) fn event_id(n: u64) -> EventId {
    EventId::parse(format!("webhook:demo/{n}")).unwrap()
}

pub(super) fn at(n: u64) -> UnixMillis {
    UnixMillis(1_700_000_000_000 + i64::try_from(n).unwrap())
}

pub(super) fn event(n: u64) -> Event {
    let mut event = Event::new(event_id(n), "webhook", &format!("peer-{}", n % 10), at(n));
    event.origin = EventOrigin::System;
    event.from.id = "alice".to_owned();
    event.content = format!("hello number {n}");
    event.metadata.insert("is_group".to_owned(), false.into());
    event
}

/// Returns the event that a delivered part becomes.
pub(super) fn sent(n: u64) -> Event {
    let id = EventId::parse(format!("out:{}/0", turn(n))).unwrap();
    let mut event = Event::new(id, "webhook", &format!("peer-{}", n % 10), at(n));
    event.origin = EventOrigin::System;
    event.direction = EventDirection::Sent;
    event.content = format!("echo: hello number {n}");
    event.hops = 1;
    event
}

pub(super) fn stored(sequence: u64, event: Event) -> AppliedRecord {
    AppliedRecord::Event {
        sequence,
        published_at: at(sequence),
        event: Arc::new(event),
    }
}

pub(super) fn session() -> SessionRef {
    SessionRef {
        persona: "default".to_owned(),
        session: "main".to_owned(),
    }
}

pub(super) fn dispatch_ulid(n: u64) -> Ulid {
    dispatch_id(&event_id(n), at(n), HOOK)
}

pub(super) fn turn(n: u64) -> Ulid {
    derived_ulid(at(n), &["turn", &dispatch_ulid(n).to_string()])
}

fn causation(n: u64) -> DispatchCause {
    DispatchCause {
        event: event_id(n),
        hops: 0,
    }
}

fn target() -> DeliveryContext {
    DeliveryContext {
        channel: "webhook".to_owned(),
        peer_id: Some("peer".to_owned()),
        ..DeliveryContext::default()
    }
}

pub(super) fn invocations(sequence: u64, id: EventId, hooks: Vec<HookInvocation>) -> AppliedRecord {
    let record = EventInvocations {
        event_id: id,
        event_seq: sequence,
        evaluated_by: "hook-0".to_owned(),
        started_at: at(sequence),
        finished_at: at(sequence + 2),
        passed: 9,
        hooks,
        passes: Vec::new(),
        is_slim: false,
    };

    AppliedRecord::Invocations {
        sequence,
        record: Box::new(record),
    }
}

pub(super) fn fired(n: u64) -> HookInvocation {
    let outcome = HookOutcome::Fired {
        dispatch: dispatch_ulid(n),
        result: Box::new(HookResult {
            fire: true,
            ..HookResult::default()
        }),
        target: None,
    };

    HookInvocation {
        hook_id: HOOK.to_owned(),
        latency_us: 1_500,
        outcome,
        llm_calls: 0,
        llm_tokens_in: 0,
        llm_tokens_out: 0,
        llm_cost_usd: 0.0,
        search_calls: 0,
    }
}

pub(super) fn dispatch(sequence: u64, n: u64) -> AppliedRecord {
    let dispatch = Dispatch {
        id: dispatch_ulid(n),
        queue_mode: Some(QueueMode::Followup),
        delivery_context: target(),
        causation: causation(n),
        ..sample::dispatch(event_id(n), n, HOOK, session(), at(n))
    };

    AppliedRecord::Dispatch {
        sequence,
        published_at: at(sequence),
        dispatch: Box::new(dispatch),
    }
}

pub(super) fn dispatch_ref(n: u64) -> DispatchRef {
    DispatchRef {
        id: dispatch_ulid(n),
        sequence: n,
        event_id: event_id(n),
        content: format!("hello number {n}"),
        stranger: None,
    }
}

pub(super) fn started(n: u64) -> LedgerEntry {
    LedgerEntry::TurnStarted {
        turn: turn(n),
        parent: None,
        dispatches: vec![dispatch_ref(n)],
        permissions: PermissionSet::default(),
        limits: TurnLimits::default(),
    }
}

pub(super) fn answered(n: u64) -> LedgerEntry {
    let usage = TurnUsage {
        tokens_in: 10,
        tokens_out: 3,
        cost_usd: 0.0,
    };

    LedgerEntry::ModelAnswered {
        opaque: None,
        attachments: Vec::new(),
        model: None,
        step: 1,
        content: format!("echo: hello number {n}"),
        tool_calls: Vec::new(),
        usage,
    }
}

pub(super) fn completed(n: u64) -> LedgerEntry {
    let reply = Reply {
        id: turn(n),
        turn: turn(n),
        session: session(),
        delivery_context: target(),
        content: format!("echo: hello number {n}"),
        attachments: Vec::new(),
        interactive: None,
        causation: causation(n),
        action: None,
        unknown: UnknownFields::default(),
        send: None,
        failed: false,
    };

    LedgerEntry::TurnCompleted {
        turn: turn(n),
        reply: Some(Box::new(reply)),
        head: turn(n),
        cursor: LedgerCursor {
            floor: n,
            above: Vec::new(),
            ..LedgerCursor::default()
        },
    }
}

pub(super) fn ledger(sequence: u64, entries: Vec<LedgerEntry>) -> AppliedRecord {
    let append = AppendId {
        broker: "broker-0".to_owned(),
        epoch: 1,
        counter: sequence,
    };

    AppliedRecord::Ledger {
        sequence,
        subject: "nexus.ledger.default.main".to_owned(),
        session: Some(session()),
        record: Box::new(LedgerRecord {
            append,
            at: at(sequence),
            held_ms: 0,
            entries,
        }),
    }
}

pub(super) fn receipt(sequence: u64, n: u64, step: ReceiptStep) -> AppliedRecord {
    let receipt = Receipt {
        delivery: turn(n),
        session: session(),
        target: target(),
        causation: causation(n),
        at: at(sequence),
        card: false,
        changes: None,
        step,
    };

    AppliedRecord::Receipt {
        sequence,
        receipt: Box::new(receipt),
    }
}

pub(super) fn delivered() -> ReceiptStep {
    ReceiptStep::Delivered {
        attempts: 1,
        parts: 1,
        platform_ids: vec![vec!["p1".to_owned()]],
        unconfirmed: Vec::new(),
        live: None,
        plan: None,
    }
}

/// Returns the complete chain of one event, in the order in which it happens. Its sequences follow from `n`, from 1
/// on.
pub(super) fn chain(n: u64) -> Vec<AppliedRecord> {
    let (first, second) = (2 * n - 1, 2 * n);
    let out = sent(n);
    let out_id = out.id.clone();

    vec![
        stored(first, event(n)),
        invocations(first, event_id(n), vec![fired(n)]),
        dispatch(n, n),
        ledger(n, vec![started(n), answered(n), completed(n)]),
        receipt(n, n, delivered()),
        stored(second, out),
        invocations(second, out_id, Vec::new()),
    ]
}

/// Returns the messages of `source` among `all`, in order.
pub(super) fn only(all: &[AppliedRecord], source: FeedSource) -> Vec<AppliedRecord> {
    all.iter()
        .filter(|applied| applied.place().0 == source)
        .cloned()
        .collect()
}
