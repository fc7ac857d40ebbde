//! Turns that a ledger put back to an older state has as running: what they did since then is lost with its records, and
//! is not done again. A turn that waits for a human goes on if nobody has decided.

use broker_svc::config::BrokerConfig;
use shared::clock::{Clock as _, SystemClock};
use shared::model::approval::ApprovalStatus;
use shared::model::dispatch::Dispatch;
use shared::model::ledger::{
    DispatchRef, DropReason, FinishedTurn, LedgerEntry, ToolCall, TurnDescription, TurnEnding, TurnUsage,
};
use shared::model::session::SessionRef;
use shared::testing::eventually;
use shared::wire::held::{HeldKind, HeldMessage, HeldUntil};
use shared::wire::topology::streams::LEDGER;
use tempfile::TempDir;
use ulid::Ulid;

use crate::approvals::{Story, asked, personas, serving_as, serving_with, trusted};
use crate::bench::session;

/// Runs after each turn.
const HOOKS: &str = "enabled: true\nallow: {all: ['true']}\nhooks: [{name: late, hook: Stop, command: 'true'}]";

/// Starts a broker, the only one.
pub(crate) async fn serve(story: &mut Story, name: &str) {
    let broker = serving_with(&story.bench.server.url(), name, &personas("{}"), HOOKS).await;
    story.brokers.push(broker);
}

/// As [`serve`], for a turn whose dispatch nobody makes again.
pub(crate) async fn serve_impatient(story: &mut Story, name: &str) {
    let config = BrokerConfig {
        lost_dispatch_ms: 2_000,
        ..BrokerConfig::default()
    };
    let broker = serving_as(&story.bench.server.url(), name, (&personas("{}"), HOOKS), config).await;
    story.brokers.push(broker);
}

/// Ends the brokers and the server.
pub(crate) async fn end(story: &mut Story) {
    for broker in story.brokers.drain(..) {
        broker.stop().await;
    }
    story.bench.server.stop().await;
}

/// Ends everything, copies the ledger, and starts the server again.
pub(crate) async fn copied(story: &mut Story) -> TempDir {
    end(story).await;
    let older = story.bench.server.copy_of(LEDGER);
    story.bench.server.restart().await;
    older
}

/// Has the witness see all of the ledger, ends everything, puts `older` back, and starts the server again.
pub(crate) async fn put_back(story: &mut Story, older: &TempDir) {
    let witness = story.brokers[0].running.broker.streams.ledger_witness();
    witness.check(SystemClock.now()).await.expect("kept");
    end(story).await;
    story.bench.server.put_back(LEDGER, older);
    story.bench.server.restart().await;
}

pub(crate) async fn send(story: &Story, to: &SessionRef, event: u64) -> Dispatch {
    let sent = trusted(to, event, None);
    story.bench.publish(&sent).await;
    story.bench.claim(to).await;
    sent
}

/// The question that `of` asks, once its slot is free.
async fn question(story: &Story, of: &SessionRef) -> String {
    eventually("the turn waits", async || {
        !asked(&story.bench.entries(of).await).is_empty() && story.bench.claims().await == 0
    })
    .await;
    asked(&story.bench.entries(of).await).pop().expect("a question").id
}

/// What is held.
pub(crate) async fn held(story: &Story) -> Vec<HeldMessage> {
    let held = story.bench.bus.held_bucket().entries().await.expect("readable");
    held.into_iter().map(|(_, entry)| entry.value).collect()
}

/// Waits until the ledger of `of` says that its running turn ended because it may have gone on.
pub(crate) async fn is_given_up(story: &Story, of: &SessionRef) {
    eventually("the turn is over", async || {
        let entries = story.bench.entries(of).await;
        let is_held = |entry: &LedgerEntry| {
            matches!(
                entry,
                LedgerEntry::DispatchDropped {
                    reason: DropReason::Held,
                    ..
                }
            )
        };
        let is_over = |entry: &LedgerEntry| matches!(entry, LedgerEntry::TurnInterrupted { .. });
        entries.iter().any(is_held) && entries.iter().any(is_over) && story.bench.claims().await == 0
    })
    .await;
}

/// A story with the brokers' hook, whose first turn of `of` has ended.
pub(crate) async fn begun(of: &SessionRef) -> Story {
    let mut story = Story::begin_with(&personas("{}"), HOOKS).await;
    send(&story, of, 1).await;
    story.plays("model", "hello", &[]).await;
    eventually("the first turn", async || {
        story.bench.completed(of).await.len() == 1 && story.bench.claims().await == 0
    })
    .await;
    story
}

/// Begins a turn of `of`, copies the ledger amid it, and lets broker `b2` bring the turn to its end. Returns the turn's
/// dispatch, and the copy.
pub(crate) async fn ended_behind_its_copy(story: &mut Story, of: &SessionRef) -> (Dispatch, TempDir) {
    let sent = looking(story, of, 2).await;
    let older = copied(story).await;

    serve(story, "b2").await;
    story.bench.claim(of).await;
    story.plays("look", "seen", &[]).await;
    story.plays("model", "over", &[]).await;
    eventually("the turn ends", async || {
        story.bench.completed(of).await.len() == 2 && story.bench.claims().await == 0
    })
    .await;

    (sent, older)
}

/// Publishes a message for `of`, and appends, as a broker that died did, that its turn began and that the model asks for a
/// look.
pub(crate) async fn looking(story: &Story, of: &SessionRef, event: u64) -> Dispatch {
    let sent = trusted(of, event, None);
    let sequence = story.bench.publish(&sent).await;
    let entries = story.bench.entries(of).await.into_iter();
    let mut begun = entries.filter_map(|entry| {
        let LedgerEntry::TurnStarted {
            turn,
            permissions,
            limits,
            ..
        } = entry
        else {
            return None;
        };
        Some((turn, permissions, limits))
    });
    let (parent, permissions, limits) = begun.next_back().expect("a turn");

    let started = LedgerEntry::TurnStarted {
        turn: Ulid::from_parts(sent.id.timestamp_ms(), 7),
        parent: Some(parent),
        dispatches: vec![DispatchRef {
            id: sent.id,
            sequence,
            event_id: sent.event_id.clone(),
            content: String::new(),
            stranger: None,
        }],
        permissions,
        limits,
    };
    let answered = LedgerEntry::ModelAnswered {
        step: 1,
        content: "let me look".to_owned(),
        tool_calls: vec![ToolCall {
            call: "1-1".to_owned(),
            name: "look".to_owned(),
            arguments: serde_json::json!({}),
        }],
        usage: TurnUsage::default(),
        opaque: None,
        attachments: Vec::new(),
        model: None,
    };
    story.bench.append(of, vec![started, answered]).await;

    sent
}

/// Waits until what comes is new, however old the ledger is.
async fn doubt_is_over(story: &Story) {
    let broker = &story.brokers[0].running.broker;
    let until = broker.current_era().await.expect("told").doubt_until;
    let until = until.expect("the ledger is older");
    eventually("what comes from now on is new", async || SystemClock.now() > until).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_waited_for_a_human_is_held_if_it_went_on_and_else_goes_on() {
    let (used, open) = (session("main"), session("open"));
    let mut story = Story::begin_with(&personas("{}"), HOOKS).await;
    let first = send(&story, &used, 1).await;
    story.plays("model", "I pay", &["pay"]).await;
    let used_id = question(&story, &used).await;
    send(&story, &open, 2).await;
    story.plays("model", "I pay", &["pay"]).await;
    let open_id = question(&story, &open).await;

    let older = copied(&mut story).await;
    serve(&mut story, "b2").await;
    story.says(&used_id, "operator", true, None).await.expect("taken");
    story.plays("pay", "paid", &[]).await;
    story.plays("model", "done", &[]).await;
    story.ends("done").await;
    story.becomes(&used_id, ApprovalStatus::Consumed).await;
    put_back(&mut story, &older).await;

    serve(&mut story, "b3").await;
    story.bench.claim(&used).await;
    is_given_up(&story, &used).await;
    let held = held(&story).await;
    let of = held.iter().map(|one| (one.kind, one.id, one.wanted));
    assert_eq!(
        of.collect::<Vec<_>>(),
        [(HeldKind::Dispatch, first.id, HeldUntil::Decided)]
    );

    // Nothing has followed from the other question: whoever decides it now is obeyed, and the next effect is this one's.
    story.says(&open_id, "operator", true, None).await.expect("taken");
    story.plays("pay", "paid", &[]).await;
    story.plays("model", "and two", &[]).await;
    eventually("both replies", async || story.replies().await == ["done", "and two"]).await;

    // The operator wants the held one done again: it is a new dispatch, and a human is asked anew.
    doubt_is_over(&story).await;
    let again = Dispatch {
        id: HeldMessage::redone_id(first.id),
        ..first
    };
    story.bench.publish(&again).await;
    story.bench.claim(&used).await;
    story.plays("model", "I pay again", &["pay"]).await;
    eventually("another question", async || {
        asked(&story.bench.entries(&used).await).len() == 2
    })
    .await;

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_was_at_work_is_held_and_hooks_that_were_due_do_not_run() {
    let busy = session("main");
    let mut story = begun(&busy).await;

    // A broker died under the next turn, and before the hooks of the one before.
    end(&mut story).await;
    story.bench.server.restart().await;
    let entries = story.bench.entries(&busy).await.into_iter();
    let mut completed = entries.filter_map(|entry| {
        let LedgerEntry::TurnCompleted { turn, .. } = entry else {
            return None;
        };
        Some(turn)
    });
    let due = LedgerEntry::PostHooksDue {
        finished: Box::new(FinishedTurn {
            turn: completed.next_back().expect("a turn"),
            ended: TurnEnding::Completed,
            works_for: Vec::new(),
            description: TurnDescription::default(),
            unseen: None,
        }),
    };
    story.bench.append(&busy, vec![due]).await;
    let (sent, older) = ended_behind_its_copy(&mut story, &busy).await;
    put_back(&mut story, &older).await;

    serve(&mut story, "b3").await;
    story.bench.claim(&busy).await;
    is_given_up(&story, &busy).await;
    let held: Vec<Ulid> = held(&story).await.iter().map(|one| one.id).collect();
    assert_eq!(held, [sent.id]);

    let entries = story.bench.entries(&busy).await;
    let ran = |entry: &&LedgerEntry| matches!(entry, LedgerEntry::PostHookRan { .. });
    assert_eq!(entries.iter().filter(ran).count(), 1, "after the first turn alone");
    let begun = |entry: &LedgerEntry| matches!(entry, LedgerEntry::ToolStarted { .. });
    assert!(!entries.iter().any(begun), "the call is not made");

    // What comes from now on is run: the next effect is this one's.
    doubt_is_over(&story).await;
    send(&story, &busy, 3).await;
    let effect = story.plays("model", "new", &[]).await;
    assert_eq!(effect.id, "1", "the first call of a new turn");

    story.stop().await;
}
