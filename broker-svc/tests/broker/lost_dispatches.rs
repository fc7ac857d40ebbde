//! Dispatches that `DISPATCHES` loses under their turns: made again in time, the turn goes on, whoever is killed meanwhile;
//! else it ends, and each dispatch is held or in a dead letter.

use std::collections::BTreeSet;

use shared::bus::OutgoingMessage;
use shared::clock::{Clock as _, SystemClock};
use shared::model::approval::{ApprovalRequest, AskedIn, DeciderScope};
use shared::model::dispatch::Dispatch;
use shared::model::event::Event;
use shared::model::ledger::{DropReason, LedgerEntry};
use shared::model::session::SessionRef;
use shared::testing::eventually;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::headers::Headers;
use shared::wire::subject;
use shared::wire::topology::streams::{CLAIMS, DISPATCHES, EVENTS, LEDGER};
use ulid::Ulid;

use crate::approvals::{Story, trusted};
use crate::bench::{Bench, session};
use crate::event_search;
use crate::killed::child_of;
use crate::older_turns::{
    begun, copied, end, ended_behind_its_copy, held, is_given_up, looking, put_back, send, serve, serve_impatient,
};
use crate::stepping::{SUBJECT, answer, effect};

/// Publishes `dispatch` as hook-svc makes a lost one again. Returns its sequence.
pub(crate) async fn made_again(bench: &Bench, dispatch: &Dispatch) -> u64 {
    let out = OutgoingMessage::new(subject::dispatch(&dispatch.target), dispatch)
        .msg_id(format!("lost:0:{}", dispatch.id))
        .repeated();
    let stored = bench.bus.publish(out).await.expect("stored").sequence;
    bench.claim(&dispatch.target).await;
    stored
}

/// The dispatches of `session` that its ledger says were dropped, with the reasons.
async fn dropped(bench: &Bench, session: &SessionRef) -> Vec<(Ulid, DropReason)> {
    let entries = bench.entries(session).await.into_iter();
    let dropped = entries.filter_map(|entry| {
        let LedgerEntry::DispatchDropped { dispatch, reason, .. } = entry else {
            return None;
        };
        Some((dispatch.id, reason))
    });
    dropped.collect()
}

/// The dead letters that say that a dispatch is lost.
async fn letters(bench: &Bench) -> Vec<DeadLetter> {
    let mut letters = bench.dead_letters().await;
    letters.retain(|letter| letter.reason == "dispatch_lost");
    letters
}

/// How the stream loses its messages, and on which side of the former sequence a dispatch then is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Loss {
    /// It is emptied: sequences go on.
    Emptied,
    /// It is put back to an empty state: sequences begin again.
    PutBack,
}

/// A broker that goes on with a turn whose dispatch was made again is killed, and the claim is lost as well: the sweeper
/// of the next one must find the session. The turn ends as if nothing had happened.
async fn goes_on_after(loss: Loss) {
    let mut bench = Bench::start().await;
    bench.server.stop().await;
    let empty = bench.server.copy_of(DISPATCHES);
    bench.server.restart().await;

    // The turn's dispatch is not the first of the stream.
    let first = bench.publish(&trusted(&session("gone"), 1, None)).await;
    assert!(bench.bus.delete_message(DISPATCHES, first).await.expect("deleted"));

    let mut asked = bench.bus.core_subscribe(SUBJECT).await.expect("a subscription");
    bench.bus.flush().await.expect("it is known");
    let mut owner = child_of(&bench.server.url(), "look");
    let main = session("main");
    let sent = trusted(&main, 1, None);
    let former = bench.publish(&sent).await;
    bench.claim(&main).await;
    effect(&mut asked).await;
    owner.kill().await.expect("SIGKILL");

    match loss {
        Loss::Emptied => {
            bench.bus.purge_subject(DISPATCHES, ">").await.expect("emptied");
        }
        Loss::PutBack => {
            bench.server.stop().await;
            bench.server.put_back(DISPATCHES, &empty);
            bench.server.restart().await;
        }
    }
    bench.bus.purge_subject(CLAIMS, ">").await.expect("emptied");
    let again = made_again(&bench, &sent).await;
    assert_eq!(again < former, loss == Loss::PutBack, "{loss:?}: {again}, was {former}");

    // It goes on, and then both it and its claim are gone.
    let mut owner = child_of(&bench.server.url(), "look");
    effect(&mut asked).await;
    owner.kill().await.expect("SIGKILL");
    bench.bus.purge_subject(CLAIMS, ">").await.expect("emptied");

    let _owner = child_of(&bench.server.url(), "look");
    let (_, to) = effect(&mut asked).await;
    answer(&bench.bus, &to, "done", &[]).await;
    bench.until_replies(1).await;

    assert_eq!(bench.completed(&main).await, ["test:main/1"]);
    assert_eq!(dropped(&bench, &main).await, [], "{loss:?}");
    assert_eq!(bench.dead_letters().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_whose_dispatch_was_made_again_at_a_higher_sequence_survives_a_kill_and_lost_claims() {
    goes_on_after(Loss::Emptied).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_whose_dispatch_was_made_again_at_a_lower_sequence_survives_a_kill_and_lost_claims() {
    goes_on_after(Loss::PutBack).await;
}

/// A dispatch waits behind a turn under way, its stream loses it, and a copy comes. The owner is killed before its turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_dispatch_whose_copy_came_gets_its_turn_from_the_next_owner() {
    let bench = Bench::start().await;
    let mut asked = bench.bus.core_subscribe(SUBJECT).await.expect("a subscription");
    bench.bus.flush().await.expect("it is known");
    let mut owner = child_of(&bench.server.url(), "look");
    let main = session("main");
    let (runs, waits) = (trusted(&main, 1, None), trusted(&main, 2, None));
    bench.publish(&runs).await;
    bench.claim(&main).await;
    effect(&mut asked).await;
    bench.publish(&waits).await;

    bench.bus.purge_subject(DISPATCHES, ">").await.expect("emptied");
    for lost in [&runs, &waits] {
        made_again(&bench, lost).await;
    }

    // Unreadable messages behind the copies: the owner has read these before the first one, and has recorded what follows
    // from them with the second.
    for count in 1..=2 {
        let bad = OutgoingMessage::raw(subject::dispatch(&main), Headers::new(), format!("bad {count}").into());
        bench.bus.publish(bad).await.expect("stored");
        eventually("the owner has read on and recorded it", async || {
            let dropped = dropped(&bench, &main).await;
            let unreadable = dropped.iter().filter(|(_, reason)| *reason == DropReason::Unreadable);
            unreadable.count() == count
        })
        .await;
    }

    owner.kill().await.expect("SIGKILL");
    bench.bus.purge_subject(CLAIMS, ">").await.expect("emptied");
    let _owner = child_of(&bench.server.url(), "look");
    for text in ["one", "two"] {
        let (_, to) = effect(&mut asked).await;
        answer(&bench.bus, &to, text, &[]).await;
    }
    bench.until_replies(2).await;
    assert_eq!(bench.completed(&main).await, ["test:main/1", "test:main/2"]);
}

/// Two replicas of hook-svc have made a dispatch again that no session had read, and one look finds both.
#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_that_was_made_again_twice_gets_one_turn() {
    let bench = Bench::start().await;
    let main = session("main");
    let sent = trusted(&main, 1, None);
    for replica in ["a", "b"] {
        let out = OutgoingMessage::new(subject::dispatch(&main), &sent)
            .msg_id(format!("lost:{replica}:{}", sent.id))
            .repeated();
        bench.bus.publish(out).await.expect("stored");
    }
    bench.claim(&main).await;

    let running = bench.run("b1", "").await;
    bench.until_replies(1).await;
    eventually("the other is recognised", async || {
        dropped(&bench, &main).await == [(sent.id, DropReason::Repeated)] && bench.claims().await == 0
    })
    .await;
    assert_eq!(bench.completed(&main).await, ["test:main/1"]);
    running.stop().await;
}

/// The ledger is older, and so is `DISPATCHES`: hook-svc makes the dispatch again only after the broker has looked for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_of_an_older_ledger_waits_for_its_dispatch_and_holds_it() {
    let busy = session("main");
    let mut story = begun(&busy).await;
    end(&mut story).await;
    let dispatches = story.bench.server.copy_of(DISPATCHES);
    story.bench.server.restart().await;
    let (sent, older) = ended_behind_its_copy(&mut story, &busy).await;
    put_back(&mut story, &older).await;
    story.bench.server.stop().await;
    story.bench.server.put_back(DISPATCHES, &dispatches);
    story.bench.server.restart().await;

    serve(&mut story, "b3").await;
    story.bench.claim(&busy).await;
    let broker = std::sync::Arc::clone(&story.brokers[0].running.broker);
    eventually("the session is taken", async || broker.activity.runs_session(&busy)).await;
    made_again(&story.bench, &sent).await;
    is_given_up(&story, &busy).await;

    let held: Vec<Ulid> = held(&story).await.iter().map(|one| one.id).collect();
    assert_eq!(held, [sent.id]);
    assert_eq!(letters(&story.bench).await, []);
    story.stop().await;
}

/// Stores the event of `dispatch` and its record, as adapter-svc and hook-svc did.
async fn with_event(bench: &Bench, dispatch: &Dispatch) -> Event {
    let event = Event::new(dispatch.event_id.clone(), "test", "ada", SystemClock.now());
    let stored = event_search::send(&bench.bus, &event).await;
    event_search::note(&bench.bus, &event, &stored, Some(dispatch.id)).await;
    event
}

/// Has `EVENTS` lose `event`, and its source send it again: it gets another sequence.
async fn sent_again(bench: &Bench, event: &Event) {
    bench
        .bus
        .purge_subject(EVENTS, &subject::conversation("test", event.account(), "ada"))
        .await
        .expect("emptied");
    let out = OutgoingMessage::event(event, bench.bus.trust()).msg_id("sent again");
    bench.bus.publish(out).await.expect("stored");
}

/// Waits until the ledger of `session` says that the turn of `dispatch` ended because it is lost.
async fn is_lost(bench: &Bench, session: &SessionRef, dispatch: Ulid) {
    eventually("the turn is given up", async || {
        let entries = bench.entries(session).await;
        let is_over = |entry: &LedgerEntry| matches!(entry, LedgerEntry::TurnInterrupted { .. });
        entries.iter().any(is_over) && dropped(bench, session).await.contains(&(dispatch, DropReason::Lost))
    })
    .await;
}

/// An operator redrives a copy of the letter of `dispatch` much later, when the server has forgotten the ids: its dispatch is
/// recognised.
async fn is_redriven_once_more(story: &Story, dispatch: &Dispatch) {
    let copy = Dispatch {
        event_seq: 101,
        ..dispatch.clone()
    };
    let out = OutgoingMessage::new(subject::dispatch(&copy.target), &copy).msg_id(format!("redrive:101:{}", copy.id));
    story.bench.bus.publish(out).await.expect("stored");
    story.bench.claim(&copy.target).await;
    eventually("it is recognised", async || {
        let dropped = dropped(&story.bench, &copy.target).await;
        dropped.last() == Some(&(copy.id, DropReason::Duplicate)) && story.bench.claims().await == 0
    })
    .await;
}

/// Nobody makes the dispatches of three turns again in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_whose_dispatch_is_not_made_again_leaves_a_dead_letter_that_can_be_redriven() {
    let (late, redriven, resent) = (session("main"), session("redriven"), session("resent"));
    let mut story = begun(&late).await;
    for of in [&redriven, &resent] {
        send(&story, of, 1).await;
        story.plays("model", "hello", &[]).await;
    }
    story.bench.until_replies(3).await;
    end(&mut story).await;
    story.bench.server.restart().await;

    let first = looking(&story, &late, 2).await;
    let second = looking(&story, &redriven, 2).await;
    let third = looking(&story, &resent, 2).await;
    let moved = with_event(&story.bench, &third).await;
    sent_again(&story.bench, &moved).await;
    let event = with_event(&story.bench, &second).await;
    story.bench.bus.purge_subject(DISPATCHES, ">").await.expect("emptied");

    serve_impatient(&mut story, "b2").await;
    for of in [&late, &redriven, &resent] {
        story.bench.claim(of).await;
    }
    is_lost(&story.bench, &late, first.id).await;
    is_lost(&story.bench, &redriven, second.id).await;
    is_lost(&story.bench, &resent, third.id).await;
    eventually("the slots are free", async || story.bench.claims().await == 0).await;

    let letters = letters(&story.bench).await;
    let of = |id: Ulid| {
        let mut letters = letters.iter();
        letters
            .find(|letter| letter.detail.contains(&id.to_string()))
            .expect("a letter")
    };
    assert_eq!(letters.len(), 3);
    assert_eq!(of(first.id).redrive_subject, "", "its event has no record");
    assert!(of(first.id).detail.contains("main"), "{}", of(first.id).detail);
    for (dispatch, event) in [(&second, &event), (&third, &moved)] {
        let letter = of(dispatch.id);
        assert_eq!(letter.redrive_subject, subject::event(event));
        let stored = OutgoingMessage::event(event, story.bench.bus.trust()).payload;
        assert_eq!(letter.payload_bytes().expect("base64"), stored, "the whole event");
    }

    // hook-svc makes two again, too late: an operator decides. Nothing of their turns is done again.
    for late in [&first, &second] {
        made_again(&story.bench, late).await;
    }
    eventually("they are held", async || held(&story).await.len() == 2).await;
    let held: BTreeSet<Ulid> = held(&story).await.iter().map(|one| one.id).collect();
    assert_eq!(held, BTreeSet::from([first.id, second.id]));

    // The event of one is redriven: its hook fires once more, and the next effect is that turn's.
    let again = Dispatch {
        event_seq: 100,
        ..second
    };
    let out = OutgoingMessage::new(subject::dispatch(&redriven), &again).msg_id(format!("redrive:100:{}", again.id));
    story.bench.bus.publish(out).await.expect("stored");
    story.bench.claim(&redriven).await;
    let effect = story.plays("model", "after all", &[]).await;
    assert_eq!(effect.id, "1", "the first call of a new turn");
    let replies = story.bench.until_replies(4).await;
    assert_eq!(replies.last().map(|reply| reply.content.as_str()), Some("after all"));

    is_redriven_once_more(&story, &again).await;
    assert_eq!(story.bench.replies().await.len(), 4);
    story.stop().await;
}

/// The ledger is older, and nobody makes the dispatch of its turn again.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_of_an_older_ledger_whose_dispatch_is_gone_leaves_a_dead_letter() {
    let busy = session("main");
    let mut story = begun(&busy).await;
    end(&mut story).await;
    story.bench.server.restart().await;
    let (sent, older) = ended_behind_its_copy(&mut story, &busy).await;
    put_back(&mut story, &older).await;
    story.bench.bus.purge_subject(DISPATCHES, ">").await.expect("emptied");
    assert!(story.bench.bus.stream_state(LEDGER).await.expect("its state").messages > 0);

    serve_impatient(&mut story, "b3").await;
    story.bench.claim(&busy).await;
    is_lost(&story.bench, &busy, sent.id).await;
    let letters = letters(&story.bench).await;
    assert_eq!(letters.len(), 1);
    assert!(
        letters[0].detail.contains(&sent.id.to_string()),
        "{}",
        letters[0].detail
    );
    assert!(held(&story).await.is_empty());
    assert_eq!(story.bench.replies().await.len(), 2, "nothing is said again");

    story.stop().await;
}

/// A question that the agent of `turn` asks by itself, for the message of `dispatch`.
fn asks_outside(dispatch: &Dispatch, turn: Ulid) -> LedgerEntry {
    let asked_in = AskedIn {
        session: dispatch.target.clone(),
        turn,
        scope: DeciderScope::Owner,
        initiator: None,
        reason: None,
        escalate_at: None,
        place: dispatch.delivery_context.clone(),
        causation: dispatch.causation.clone(),
        outside: Some("hash".to_owned()),
    };
    LedgerEntry::ApprovalRequested {
        request: ApprovalRequest {
            id: Ulid::from(7_u128).to_string(),
            call: "c".to_owned(),
            tool: "pay".to_owned(),
            arguments: serde_json::json!({}),
            arguments_hash: "hash".to_owned(),
            policy: "gate".to_owned(),
            approvers: Vec::new(),
            expires_at: SystemClock.now().plus(3_600_000),
            asked_in: Some(Box::new(asked_in)),
        },
    }
}

/// The ledger is older, the dispatch of its turn is gone, and the owner that ends the turn is killed between its appends:
/// the one for the approvals that the agent asked for by itself, and the end. Then hook-svc makes the dispatch again.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_of_an_older_ledger_that_a_killed_owner_was_ending_does_not_go_on() {
    let busy = session("main");
    let mut story = begun(&busy).await;
    end(&mut story).await;
    story.bench.server.restart().await;
    let sent = looking(&story, &busy, 2).await;
    let turn = Ulid::from_parts(sent.id.timestamp_ms(), 7);
    story.bench.append(&busy, vec![asks_outside(&sent, turn)]).await;
    let older = copied(&mut story).await;

    serve(&mut story, "b2").await;
    story.bench.claim(&busy).await;
    story.plays("look", "seen", &[]).await;
    story.plays("model", "over", &[]).await;
    eventually("the turn ends", async || {
        story.bench.completed(&busy).await.len() == 2 && story.bench.claims().await == 0
    })
    .await;
    put_back(&mut story, &older).await;
    story.bench.bus.purge_subject(DISPATCHES, ">").await.expect("emptied");

    serve_impatient(&mut story, "b3").await;
    story.bench.claim(&busy).await;
    is_lost(&story.bench, &busy, sent.id).await;
    eventually("its slot is free", async || story.bench.claims().await == 0).await;
    end(&mut story).await;
    story.bench.server.restart().await;

    // As if it was killed behind its first append.
    let records = story.bench.ledger(&busy).await;
    let first = records.iter().position(|(_, record)| {
        let owned = |entry: &LedgerEntry| matches!(entry, LedgerEntry::Owned { broker, .. } if broker == "b3");
        record.entries.iter().any(owned)
    });
    let (first, behind) = records[first.expect("an owner")..].split_first().expect("a record");
    let ends = |entry: &LedgerEntry| matches!(entry, LedgerEntry::TurnInterrupted { .. });
    assert!(!first.1.entries.iter().any(ends), "the end is an append of its own");
    assert!(behind.iter().any(|(_, record)| record.entries.iter().any(ends)));
    for (sequence, _) in behind {
        assert!(
            story
                .bench
                .bus
                .delete_message(LEDGER, *sequence)
                .await
                .expect("deleted")
        );
    }

    made_again(&story.bench, &sent).await;
    serve(&mut story, "b4").await;
    story.bench.claim(&busy).await;
    is_given_up(&story, &busy).await;
    let held: Vec<Ulid> = held(&story).await.iter().map(|one| one.id).collect();
    assert_eq!(held, [sent.id]);
    assert_eq!(letters(&story.bench).await.len(), 1, "of the owner that was killed");
    let entries = story.bench.entries(&busy).await;
    let begun = |entry: &LedgerEntry| matches!(entry, LedgerEntry::ToolStarted { .. });
    assert!(!entries.iter().any(begun), "the call is not made");
    assert_eq!(story.bench.replies().await.len(), 2, "nothing is said again");

    story.stop().await;
}
