use super::Case;
use super::samples::{self, chain, dispatch_ref, event_id, fired, invocations, ledger, receipt, session, turn};
use crate::model::invocation::{HookInvocation, HookOutcome};
use crate::model::ledger::{DropReason, LedgerCursor, LedgerEntry, TurnFailure};
use crate::model::receipt::{AttemptOutcome, ReceiptStep};
use crate::projection::AppliedRecord;
use crate::projection::api::{EventTrace, FindRequest, HistoryRequest, TraceRequest, TraceStage};
use crate::projection::given_up::GivenUp;

async fn trace(batch: Vec<AppliedRecord>) -> EventTrace {
    let case = Case::with(batch).await;
    case.projection
        .trace(TraceRequest { event_id: event_id(1) }, GivenUp::default())
        .await
        .unwrap()
}

fn stages(trace: &EventTrace) -> Vec<TraceStage> {
    trace.steps.iter().map(|step| step.stage).collect()
}

#[tokio::test]
async fn a_whole_chain_is_told_from_cause_to_effect() {
    let trace = trace(chain(1)).await;
    use TraceStage::{Delivery, Dispatch, Event, Hook, Sent, Turn};
    assert_eq!(stages(&trace), [Event, Hook, Dispatch, Turn, Delivery, Sent, Hook]);
    assert!(trace.complete, "{trace:#?}");
    assert_eq!(trace.event.unwrap().content, "hello number 1");
    assert_eq!(trace.steps[3].id, turn(1).to_string());
    assert_eq!(trace.steps[4].id, turn(1).to_string(), "delivery id = turn id");
    assert_eq!(trace.steps.last().unwrap().depth, 1);
    assert_eq!(trace.steps[1].took_ms, Some(1.5));
}

#[tokio::test]
async fn a_chain_is_complete_only_with_its_last_message() {
    let whole = chain(1);
    for cut in 0..whole.len() {
        let trace = trace(whole[..cut].to_vec()).await;
        assert!(
            !trace.complete,
            "complete after {cut} of {} messages: {trace:#?}",
            whole.len()
        );
        assert_eq!(trace.event.is_some(), cut > 0);
    }

    for missing in 0..whole.len() {
        let mut some = whole.clone();
        some.remove(missing);
        assert!(!trace(some).await.complete, "complete without message {missing}");
    }
}

#[tokio::test]
async fn what_is_deferred_is_under_way_until_a_later_record_says_what_it_did() {
    let deferred = HookInvocation {
        outcome: HookOutcome::Deferred,
        ..fired(1)
    };
    let passed = HookInvocation {
        hook_id: "other".to_owned(),
        ..deferred.clone()
    };

    let first = invocations(1, event_id(1), vec![deferred.clone(), passed]);
    let mut whole = chain(1);
    let made = std::mem::replace(&mut whole[1], first.clone());
    let begun = trace(whole[..2].to_vec()).await;

    assert!(!begun.complete && begun.steps[1].detail == "deferred", "{begun:#?}");

    // The first record again, late, changes nothing.
    whole.extend([made, first]);
    let mut sequences = 100..;
    for applied in &mut whole {
        if let AppliedRecord::Invocations { sequence, .. } = applied {
            *sequence = sequences.next().expect("a number");
        }
    }

    let made = trace(whole).await;
    assert!(made.complete, "{made:#?}");
    assert!(made.steps.iter().all(|step| step.detail != "deferred"), "{made:#?}");
}

#[tokio::test]
async fn a_dropped_dispatch_and_a_failed_turn_end_their_chains() {
    let cursor = LedgerCursor::default();
    let dropped = LedgerEntry::DispatchDropped {
        dispatch: dispatch_ref(1),
        reason: DropReason::Superseded,
        detail: None,
        cursor: cursor.clone(),
    };

    let mut batch = chain(1)[..3].to_vec();
    batch.push(ledger(1, vec![dropped]));
    let told = trace(batch).await;

    assert!(told.complete);
    assert!(told.steps.last().unwrap().detail.contains("superseded"));

    let failed = LedgerEntry::TurnFailed {
        turn: turn(1),
        failure: TurnFailure::NoAgent,
        reply: None,
        cursor,
    };

    let mut batch = chain(1)[..3].to_vec();
    batch.push(ledger(1, vec![samples::started(1)]));
    batch.push(ledger(2, vec![failed]));
    let told = trace(batch).await;

    assert!(told.complete);

    let step = told.steps.last().unwrap();
    assert_eq!((step.stage, step.took_ms), (TraceStage::Turn, Some(1.0)));
    assert!(step.detail.contains("no_agent"), "{}", step.detail);
}

#[tokio::test]
async fn a_copy_of_a_dispatch_does_not_hide_the_turn() {
    for reason in [
        DropReason::Duplicate,
        DropReason::Repeated,
        DropReason::HandledBefore,
        DropReason::Lost,
    ] {
        let copy = LedgerEntry::DispatchDropped {
            dispatch: dispatch_ref(1),
            reason,
            detail: None,
            cursor: LedgerCursor::default(),
        };
        let failed = LedgerEntry::TurnFailed {
            turn: turn(1),
            failure: TurnFailure::NoAgent,
            reply: None,
            cursor: LedgerCursor::default(),
        };

        let mut batch = chain(1)[..3].to_vec();
        batch.push(ledger(1, vec![samples::started(1)]));
        batch.push(ledger(2, vec![copy]));
        batch.push(ledger(3, vec![failed]));
        let told = trace(batch).await;

        assert!(told.complete, "{reason:?}");
        let step = told.steps.last().unwrap();
        assert_eq!(step.stage, TraceStage::Turn);
        assert!(step.detail.contains("no_agent"), "{reason:?}: {}", step.detail);
    }
}

#[tokio::test]
async fn retries_show_until_the_delivery_is_given_up() {
    let retry = ReceiptStep::AttemptFinished {
        attempt: 1,
        part: 0,
        platform_ids: Vec::new(),
        unconfirmed: Vec::new(),
        uncounted: 0,
        plan: None,
        outcome: AttemptOutcome::Retry {
            after_ms: 100,
            reason: "429".to_owned(),
        },
    };

    let mut batch = chain(1)[..4].to_vec();
    batch.push(receipt(1, 1, retry));
    let told = trace(batch.clone()).await;

    assert!(!told.complete);
    assert!(told.steps.last().unwrap().detail.contains("429"));

    batch.push(receipt(
        2,
        1,
        ReceiptStep::GaveUp {
            attempts: 8,
            reason: "gone".to_owned(),
        },
    ));

    let told = trace(batch).await;
    assert!(told.complete);
    assert_eq!(
        told.steps.last().unwrap().detail,
        "gave_up on webhook, attempts 8: gone"
    );
}

#[tokio::test]
async fn entries_of_a_running_turn_find_it_across_messages() {
    let call = crate::model::ledger::ToolCall {
        call: "c1".to_owned(),
        name: "web_search".to_owned(),
        arguments: serde_json::json!({"q": 1}),
    };
    let usage = crate::model::ledger::TurnUsage::default();
    let asked = LedgerEntry::ModelAnswered {
        opaque: None,
        attachments: Vec::new(),
        model: None,
        step: 1,
        content: String::new(),
        tool_calls: vec![call],
        usage,
    };

    let tool = LedgerEntry::ToolStarted {
        call: "c1".to_owned(),
        name: "web_search".to_owned(),
        args_hash: String::new(),
        arguments: None,
    };

    let outcome = crate::model::ledger::ToolOutcome::Ok {
        result: serde_json::json!("found"),
    };
    let batch = vec![
        ledger(
            1,
            vec![LedgerEntry::SessionOpened { session: session() }, samples::started(1)],
        ),
        ledger(2, vec![asked]),
        ledger(3, vec![tool]),
        ledger(
            4,
            vec![LedgerEntry::ToolFinished {
                call: "c1".to_owned(),
                outcome,
                unseen: false,
            }],
        ),
        ledger(5, vec![samples::completed(1)]),
    ];

    let case = Case::with(batch).await;
    let (turn_id, args, outcome): (String, String, String) = case
        .reader()
        .query_row("SELECT turn_id, args_json, outcome FROM agent_tool_calls", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .unwrap();

    assert_eq!((turn_id, args.as_str()), (turn(1).to_string(), r#"{"q":1}"#));
    assert!(outcome.contains("found"));
    assert_eq!(case.value::<String>("SELECT status FROM agent_turns"), "completed");
    assert_eq!(
        case.value::<Option<String>>("SELECT running FROM nexus_ledger_heads"),
        None
    );
}

#[tokio::test]
async fn a_call_whose_hooks_have_not_seen_its_end_has_ended_without_a_word_on_how() {
    let started = LedgerEntry::ToolStarted {
        call: "c1".to_owned(),
        name: "pay".to_owned(),
        args_hash: String::new(),
        arguments: None,
    };

    let unseen = LedgerEntry::ToolFinished {
        call: "c1".to_owned(),
        outcome: crate::model::ledger::ToolOutcome::Ok {
            result: serde_json::json!("a secret"),
        },
        unseen: true,
    };

    let begun = vec![LedgerEntry::SessionOpened { session: session() }, samples::started(1)];
    let case = Case::with(vec![
        ledger(1, begun),
        ledger(2, vec![started]),
        ledger(3, vec![unseen]),
    ])
    .await;

    let ended: (bool, Option<String>) = case
        .reader()
        .query_row(
            "SELECT finished_at IS NOT NULL, outcome FROM agent_tool_calls",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .unwrap();

    assert_eq!(ended, (true, None));
}

#[tokio::test]
async fn a_shortened_subject_gets_its_names_from_the_ledger() {
    let shorten = |applied: AppliedRecord| {
        let AppliedRecord::Ledger { sequence, record, .. } = applied else {
            panic!("not of the ledger: {applied:?}")
        };

        AppliedRecord::Ledger {
            sequence,
            subject: "nexus.ledger.default.x~hash".to_owned(),
            session: None,
            record,
        }
    };

    let batch = vec![
        shorten(ledger(1, vec![LedgerEntry::SessionOpened { session: session() }])),
        shorten(ledger(
            2,
            vec![samples::started(1), samples::answered(1), samples::completed(1)],
        )),
    ];

    let case = Case::with(batch).await;
    assert_eq!(
        case.value::<String>("SELECT session_id FROM agent_turns"),
        "default/main"
    );
    assert_eq!(
        case.value::<String>("SELECT group_concat(id || ' ' || persona || ' ' || tokens_in) FROM agent_sessions"),
        "default/main default 10"
    );
}

#[tokio::test]
async fn history_and_find_page_backwards() {
    let case = Case::with((1..=30).map(|n| samples::stored(n, samples::event(n))).collect()).await;
    let mut request = HistoryRequest {
        channel: "webhook".to_owned(),
        account: "default".to_owned(),
        peer: "peer-3".to_owned(),
        thread: None,
        before: None,
        limit: Some(2),
    };

    let page = case.projection.history(request.clone()).await.unwrap();
    assert_eq!(
        page.events.iter().map(|event| event.sequence).collect::<Vec<_>>(),
        [13, 23]
    );
    assert!(page.more);

    request.before = Some(13);
    let page = case.projection.history(request).await.unwrap();
    assert_eq!(page.events.iter().map(|event| event.sequence).collect::<Vec<_>>(), [3]);
    assert!(!page.more);

    let find = FindRequest {
        text: Some("NUMBER 2".to_owned()),
        limit: Some(4),
        ..FindRequest::default()
    };
    let found = case.projection.find(find.clone()).await.unwrap();
    assert_eq!(
        found.events.iter().map(|event| event.sequence).collect::<Vec<_>>(),
        [29, 28, 27, 26]
    );

    let rest = case
        .projection
        .find(FindRequest {
            before: found.next,
            limit: None,
            ..find
        })
        .await
        .unwrap();

    assert_eq!((rest.events.len(), rest.next), (7, None));

    let fired_only = FindRequest {
        id: Some(event_id(7)),
        ..FindRequest::default()
    };
    assert_eq!(
        case.projection.find(fired_only).await.unwrap().events[0].id,
        event_id(7)
    );
    assert_eq!(fired(1).hook_id, samples::HOOK);
}
