//! Consequences of a turn besides its reply: the trace is complete only once the last of them has ended.

use serde_json::json;
use ulid::Ulid;

use super::Case;
use super::samples::{self, at, chain, event_id, invocations, ledger, session, stored, turn};
use crate::model::approval::{ApprovalDecision, ApprovalRequest, ApprovalStatus, AskedIn, DeciderScope};
use crate::model::dispatch::{DeliveryContext, DispatchCause};
use crate::model::event::{Event, EventId};
use crate::model::intent::service::ProposeIntent;
use crate::model::ledger::{DropReason, LedgerCursor, LedgerEntry, ToolCall, ToolOutcome, TurnUsage};
use crate::model::receipt::ReceiptStep;
use crate::projection::AppliedRecord;
use crate::projection::api::{EventTrace, MAX_TRACE_STEPS, TraceRequest, TraceStage};
use crate::projection::given_up::GivenUp;
use crate::wire::dead_letter::DeadLetter;
use crate::wire::headers::MSG_ID;
use crate::wire::held::{HELD_LETTER, HeldKind, HeldMessage, HeldUntil, held_key};

async fn trace_with(batch: Vec<AppliedRecord>, given_up: GivenUp) -> EventTrace {
    let case = Case::with(batch).await;
    let request = TraceRequest { event_id: event_id(1) };
    case.projection.trace(request, given_up).await.unwrap()
}

async fn trace(batch: Vec<AppliedRecord>) -> EventTrace {
    trace_with(batch, GivenUp::default()).await
}

/// Returns the chain of event 1, with `entries` in its turn's ledger before the turn ends; the ledger has sequence 10
/// and up.
fn chain_with(entries: Vec<Vec<LedgerEntry>>) -> Vec<AppliedRecord> {
    let mut batch: Vec<AppliedRecord> = chain(1)
        .into_iter()
        .filter(|applied| !matches!(applied, AppliedRecord::Ledger { .. }))
        .collect();
    batch.push(ledger(10, vec![samples::started(1)]));
    let count = entries.len() as u64;
    batch.extend((11..).zip(entries).map(|(sequence, entries)| ledger(sequence, entries)));
    batch.push(ledger(11 + count, vec![samples::answered(1), samples::completed(1)]));
    batch
}

/// Asserts that every prefix of `batch` is in progress and the whole is complete. `after` is the number of messages at
/// the end that count.
async fn ends_with_its_last(batch: Vec<AppliedRecord>, after: usize) -> EventTrace {
    for cut in batch.len() - after..batch.len() {
        let told = trace(batch[..cut].to_vec()).await;
        assert!(
            !told.complete,
            "complete after {cut} of {} messages: {told:#?}",
            batch.len()
        );
    }

    let told = trace(batch).await;
    assert!(told.complete, "{told:#?}");

    told
}

fn detail(trace: &EventTrace, stage: TraceStage) -> Vec<&str> {
    let steps = trace.steps.iter().filter(|step| step.stage == stage);
    steps.map(|step| step.detail.as_str()).collect()
}

fn calls(name: &str, outcome: ToolOutcome) -> Vec<Vec<LedgerEntry>> {
    let asked = LedgerEntry::ModelAnswered {
        opaque: None,
        attachments: Vec::new(),
        model: None,
        step: 1,
        content: String::new(),
        tool_calls: vec![ToolCall {
            call: "1-1".to_owned(),
            name: name.to_owned(),
            arguments: json!({}),
        }],
        usage: TurnUsage::default(),
    };

    let started = LedgerEntry::ToolStarted {
        call: "1-1".to_owned(),
        name: name.to_owned(),
        args_hash: String::new(),
        arguments: None,
    };

    let finished = LedgerEntry::ToolFinished {
        call: "1-1".to_owned(),
        outcome,
        unseen: false,
    };
    vec![vec![asked], vec![started], vec![finished]]
}

/// Returns an event that turn `n` caused, on a channel whose events name their turn.
fn caused(channel: &str, id: &str, n: u64) -> Event {
    let mut event = Event::new(EventId::parse(id).unwrap(), channel, "default/main", at(50));
    event.metadata.insert("turn".to_owned(), json!(turn(n).to_string()));
    event.hops = 1;
    event
}

#[tokio::test]
async fn a_tool_call_is_told_and_a_turn_with_one_under_way_is_not_complete() {
    let outcome = ToolOutcome::Error {
        error: "no such file".to_owned(),
    };
    let told = ends_with_its_last(chain_with(calls("read", outcome)), 4).await;
    assert_eq!(detail(&told, TraceStage::Tool), ["read: no such file"]);
}

#[tokio::test]
async fn a_message_to_an_agent_is_followed_through_the_agent_s_own_turn() {
    let id = "agent:default:shop:01M80A4BYPJANS8A4KMNFK7P5E";
    let sent = ToolOutcome::Ok {
        result: json!({ "sent": id }),
    };
    let mut batch = chain_with(calls("send_message_to_agent", sent));

    // The other agent's turn is that of event 2, whose place the message takes.
    let mut message = caused("agent", id, 1);
    message.content = "hello".to_owned();
    batch.push(stored(20, message.clone()));

    let mut answer: Vec<AppliedRecord> = chain(2)[1..].to_vec();
    for applied in &mut answer {
        match applied {
            AppliedRecord::Invocations { sequence, record } if *sequence == 3 => record.event_id = message.id.clone(),
            AppliedRecord::Dispatch { dispatch, .. } => dispatch.event_id = message.id.clone(),
            AppliedRecord::Event { sequence, .. } => *sequence += 20,
            AppliedRecord::Invocations { .. }
            | AppliedRecord::Ledger { .. }
            | AppliedRecord::Receipt { .. }
            | AppliedRecord::Beside { .. }
            | AppliedRecord::Unreadable { .. }
            | AppliedRecord::Mark { .. } => {}
        }

        if let AppliedRecord::Ledger { sequence, .. } = applied {
            *sequence += 20;
        }
    }

    batch.extend(answer);
    let told = ends_with_its_last(batch, 7).await;
    assert_eq!(detail(&told, TraceStage::Turn).len(), 2, "{told:#?}");
    assert!(told.steps.iter().any(|step| step.id == id && step.depth == 1));
}

#[tokio::test]
async fn the_firing_of_an_intent_is_part_of_the_chain_of_the_turn_that_asked() {
    let firing = caused("timer", "timer:intent/01M80A4BYPJANS8A4KMNFK7P5E/1", 1);
    let mut batch = chain_with(Vec::new());
    batch.push(stored(20, firing.clone()));
    let told = trace(batch.clone()).await;
    assert!(!told.complete, "its event is not evaluated: {told:#?}");
    batch.push(invocations(20, firing.id, Vec::new()));
    assert!(trace(batch).await.complete);
}

#[tokio::test]
async fn events_of_other_channels_cannot_put_themselves_into_a_chain() {
    let mut batch = chain_with(Vec::new());
    batch.push(stored(20, caused("webhook", "webhook:x/1", 1)));
    let told = trace(batch).await;
    assert!(told.complete, "{told:#?}");
}

#[tokio::test]
async fn an_approval_is_told_and_under_way_until_it_is_decided() {
    let asked = LedgerEntry::ApprovalRequested {
        request: ApprovalRequest {
            id: "A1".to_owned(),
            call: "1-1".to_owned(),
            tool: "pay".to_owned(),
            arguments: json!({}),
            arguments_hash: String::new(),
            policy: "payments".to_owned(),
            approvers: Vec::new(),
            expires_at: at(99),
            asked_in: Some(Box::new(AskedIn {
                session: session(),
                turn: turn(1),
                scope: DeciderScope::Owner,
                initiator: None,
                reason: None,
                escalate_at: None,
                place: DeliveryContext::default(),
                causation: DispatchCause {
                    event: event_id(1),
                    hops: 0,
                },
                outside: None,
            })),
        },
    };

    let decided = LedgerEntry::ApprovalDecided {
        decision: ApprovalDecision {
            id: "A1".to_owned(),
            status: ApprovalStatus::Approved,
            decided_by: None,
            arguments: None,
            response: None,
        },
        sequence: None,
        cursor: None,
    };

    let batch = chain_with(vec![vec![asked], vec![decided]]);
    let pending = trace(batch[..batch.len() - 2].to_vec()).await;
    assert_eq!(detail(&pending, TraceStage::Approval), ["pay: pending"]);

    let told = ends_with_its_last(batch, 3).await;
    assert_eq!(detail(&told, TraceStage::Approval), ["pay: approved"]);
}

#[tokio::test]
async fn a_card_is_told_and_under_way_until_it_is_delivered() {
    let of_card = |sequence, step| {
        let mut told = samples::receipt(sequence, 1, step);
        if let AppliedRecord::Receipt { receipt, .. } = &mut told {
            receipt.delivery = turn(9);
        }
        told
    };

    let started = ReceiptStep::AttemptStarted {
        attempt: 1,
        part: 0,
        by: "delivery-svc-0".to_owned(),
        platform_ids: Vec::new(),
        unconfirmed: Vec::new(),
        uncounted: 0,
        plan: None,
    };
    let gave_up = ReceiptStep::GaveUp {
        attempts: 1,
        reason: "gone".to_owned(),
    };

    let mut batch = chain_with(Vec::new());
    batch.extend([of_card(90, started), of_card(91, gave_up)]);
    let told = ends_with_its_last(batch, 1).await;
    let all = detail(&told, TraceStage::Delivery);

    assert_eq!(
        all,
        [
            "delivered on webhook, attempts 1",
            "gave_up on webhook, attempts 1: gone"
        ],
        "{told:#?}"
    );
}

#[tokio::test]
async fn an_intent_that_the_scheduler_has_not_answered_for_is_under_way() {
    let id = "01M80A4BYPJANS8A4KMNFK7P5E";
    let owed: ProposeIntent = serde_json::from_value(json!({
        "id": id, "agent": "default", "session": "main", "turn": turn(1).to_string(),
        "wish": {"kind": "remind", "schedule": {"type": "after", "seconds": 60}},
        "permissions": {"level": "full"}, "delivery_context": {"channel": "webhook"},
    }))
    .expect("an intent");

    let owed = LedgerEntry::IntentOwed {
        proposal: Box::new(owed),
    };
    let mut batch = chain_with(vec![vec![owed]]);
    let told = trace(batch.clone()).await;

    assert!(
        !told.complete && detail(&told, TraceStage::Intent).len() == 1,
        "{told:#?}"
    );

    let settled = LedgerEntry::IntentSettled {
        id: id.parse().expect("a ULID"),
        note: None,
    };
    batch.push(ledger(30, vec![settled]));
    let told = trace(batch).await;
    assert!(
        told.complete && detail(&told, TraceStage::Intent).is_empty(),
        "{told:#?}"
    );
}

fn letter(stream: &str, sequence: u64, redrive: &str, headers: &[(&str, &str)]) -> DeadLetter {
    DeadLetter {
        service: "any".to_owned(),
        subject: String::new(),
        redrive_subject: redrive.to_owned(),
        stream: stream.to_owned(),
        sequence,
        headers: headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        payload: String::new(),
        reason: "keeps_failing".to_owned(),
        detail: "three times".to_owned(),
        attempts: 3,
        at: at(9),
    }
}

#[tokio::test]
async fn what_was_given_up_is_said_and_is_no_longer_waited_for() {
    let unevaluated = chain(1)[..1].to_vec();
    let mut given_up = GivenUp::default();
    given_up.take(&letter("LEDGER", 1, "nexus.dispatch.x", &[]));

    assert!(!trace_with(unevaluated.clone(), given_up.clone()).await.complete);

    given_up.take(&letter("EVENTS", 1, "nexus.event.webhook.default.x", &[]));
    let told = trace_with(unevaluated, given_up).await;
    assert!(told.complete, "{told:#?}");
    assert_eq!(detail(&told, TraceStage::DeadLetter), ["keeps_failing: three times"]);

    // A reply that no server accepted: its dead letter names the ledger.
    let undelivered = chain(1)[..4].to_vec();
    let id = turn(1).to_string();
    let mut given_up = GivenUp::default();

    given_up.take(&letter(
        "LEDGER",
        4,
        "nexus.delivery.webhook.a.b",
        &[("Nats-Msg-Id", &id)],
    ));

    let told = trace_with(undelivered, given_up).await;
    assert!(told.complete, "{told:#?}");
    assert_eq!(detail(&told, TraceStage::DeadLetter).len(), 1);
}

#[tokio::test]
async fn a_chain_that_leads_back_to_itself_ends_and_a_broad_one_is_cut_and_still_followed() {
    let mut batch = chain_with(Vec::new());
    // The turn is named as the cause of the very event that it answers.
    let mut again = caused("agent", event_id(1).as_str(), 1);
    again.metadata.insert("turn".to_owned(), json!(turn(1).to_string()));
    batch[0] = stored(1, again);

    assert!(trace(batch.clone()).await.complete);

    let many = u64::try_from(MAX_TRACE_STEPS).unwrap() + 10;
    for n in 0..many {
        let event = caused("agent", &format!("agent:a:b:{n:026}"), 1);
        batch.push(stored(100 + n, event.clone()));
        if n + 1 < many {
            batch.push(invocations(100 + n, event.id, Vec::new()));
        }
    }

    let told = trace(batch.clone()).await;
    assert!(told.cut && !told.complete, "the last one is not evaluated");
    assert_eq!(told.steps.len(), MAX_TRACE_STEPS);

    let last = EventId::parse(format!("agent:a:b:{:026}", many - 1)).unwrap();
    batch.push(invocations(100 + many, last, Vec::new()));
    let told = trace(batch).await;

    assert!(told.cut && told.complete);
}

/// The trace of `batch` where KV `held` has `wanted` of what `kind` and `id` name, or nothing.
async fn trace_held(batch: &[AppliedRecord], kind: HeldKind, id: Ulid, wanted: Option<HeldUntil>) -> EventTrace {
    let mut given_up = GivenUp::default();
    let key = held_key(kind, id);
    given_up.take_held(wanted.into_iter().map(|wanted| (key.clone(), wanted)).collect());
    trace_with(batch.to_vec(), given_up).await
}

#[tokio::test]
async fn a_dispatch_that_is_held_is_under_way_until_an_operator_has_decided() {
    let dispatch = samples::dispatch_ulid(1);
    let dropped = LedgerEntry::DispatchDropped {
        dispatch: samples::dispatch_ref(1),
        reason: DropReason::Held,
        detail: None,
        cursor: LedgerCursor::default(),
    };

    let mut batch = chain(1)[..3].to_vec();
    batch.push(ledger(10, vec![dropped]));
    let key = held_key(HeldKind::Dispatch, dispatch);

    let unasked = trace(batch.clone()).await;
    assert_eq!(
        (unasked.complete, unasked.may_be_held.as_slice()),
        (false, [key].as_slice())
    );

    let open = trace_held(&batch, HeldKind::Dispatch, dispatch, Some(HeldUntil::Decided)).await;
    assert!(!open.complete, "{open:#?}");
    assert_eq!(
        detail(&open, TraceStage::Turn),
        ["no turn: held until an operator decides (`nexus recover`)"]
    );

    for (wanted, is_complete) in [
        (Some(HeldUntil::Skip), true),
        (Some(HeldUntil::Redo), false),
        (None, true),
    ] {
        let told = trace_held(&batch, HeldKind::Dispatch, dispatch, wanted).await;
        assert_eq!(told.complete, is_complete, "{wanted:?}: {told:#?}");
    }

    // Done once more: the chain goes on with the dispatch that is published instead.
    let mut again = samples::dispatch(20, 1);
    if let AppliedRecord::Dispatch { dispatch: again, .. } = &mut again {
        again.id = HeldMessage::redone_id(dispatch);
    }
    batch.push(again);
    let told = trace_held(&batch, HeldKind::Dispatch, dispatch, Some(HeldUntil::Redo)).await;
    assert!(!told.complete, "its turn is under way: {told:#?}");
    assert_eq!(detail(&told, TraceStage::Dispatch).len(), 2);
}

#[tokio::test]
async fn a_delivery_that_is_held_is_under_way_until_an_operator_has_decided() {
    let delivery = turn(1);
    let before = chain(1)[..4].to_vec();
    let started = samples::receipt(
        80,
        1,
        ReceiptStep::AttemptStarted {
            attempt: 1,
            part: 0,
            by: "delivery-svc-0".to_owned(),
            platform_ids: Vec::new(),
            unconfirmed: Vec::new(),
            uncounted: 0,
            plan: None,
        },
    );
    let begun = [before.clone(), vec![started]].concat();

    for batch in [before, begun] {
        let unasked = trace(batch.clone()).await;
        let key = held_key(HeldKind::Delivery, delivery);
        assert_eq!(
            (unasked.complete, unasked.may_be_held.as_slice()),
            (false, [key].as_slice())
        );

        for (wanted, is_complete) in [
            (Some(HeldUntil::Decided), false),
            (Some(HeldUntil::Skip), true),
            (Some(HeldUntil::Redo), false),
            (None, false),
        ] {
            let told = trace_held(&batch, HeldKind::Delivery, delivery, wanted).await;
            assert_eq!(told.complete, is_complete, "{wanted:?}: {told:#?}");

            let says_so = detail(&told, TraceStage::Delivery)
                .iter()
                .any(|detail| detail.contains("held"));
            let is_told = wanted == Some(HeldUntil::Decided) || wanted == Some(HeldUntil::Skip);
            assert_eq!(says_so, is_told, "{wanted:?}: {told:#?}");
        }
    }
}

#[test]
fn the_letter_of_what_is_held_gives_nothing_up() {
    let mut given_up = GivenUp::default();
    given_up.take(&DeadLetter {
        service: HELD_LETTER.to_owned(),
        subject: "nexus.delivery.webhook.demo.ann".to_owned(),
        redrive_subject: "nexus.delivery.webhook.demo.ann".to_owned(),
        stream: "DELIVERIES".to_owned(),
        sequence: 1,
        headers: vec![(MSG_ID.to_owned(), turn(1).to_string())],
        payload: String::new(),
        reason: HELD_LETTER.to_owned(),
        detail: "nobody can tell".to_owned(),
        attempts: 0,
        at: at(1),
    });
    assert_eq!(given_up, GivenUp::default());
}
