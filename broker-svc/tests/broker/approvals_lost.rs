//! What decides an approval is its value in KV, and nothing that a message says: forged decisions, and values that are
//! gone, older or used before.

use serde_json::json;
use shared::bus::OutgoingMessage;
use shared::model::approval::{ApprovalStatus, ConfirmationTerms, SessionDecision};
use shared::model::approval_api::{ApprovalList, ListApprovals};
use shared::model::ledger::{LedgerEntry, ToolOutcome};
use shared::model::reply::Reply;
use shared::model::time::UnixMillis;
use shared::testing::eventually;
use shared::wire::headers::Headers;
use shared::wire::subject;
use shared::wire::topology::streams;

use crate::approvals::Story;
use crate::asking::{REMOTE, Remote, allowed, gated, reason, says};
use crate::bench::{Bench, DEADLINE};

fn key(id: &str) -> String {
    format!("ask.{id}")
}

/// A turn that waits for the yes of one who may decide, and the question's id.
async fn waiting(ask: &str) -> (Story, String) {
    let mut story = Story::begin(ask).await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let id = story.suspended().await.id;
    (story, id)
}

/// The cards of the question, oldest first.
async fn cards(story: &Story) -> Vec<Reply> {
    let all = story.bench.replies().await;
    all.into_iter().filter(|reply| reply.interactive.is_some()).collect()
}

async fn payments_begun(story: &Story) -> usize {
    let entries = story.bench.entries(&story.main).await;
    let begun = |entry: &&LedgerEntry| matches!(entry, LedgerEntry::ToolStarted { .. });
    entries.iter().filter(begun).count()
}

/// Wakes the session's owner, and returns once it has given the session back.
async fn wake(story: &Story) {
    story.bench.claim(&story.main).await;
    eventually("the slot is free", async || story.bench.claims().await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_decision_on_the_sessions_subject_decides_nothing() {
    let (mut story, id) = waiting("{}").await;
    let at = UnixMillis(1);
    let (target, approval) = (story.main.clone(), id.clone());
    let told = SessionDecision { target, approval, at };
    let dispatches = subject::dispatch(&story.main);
    let forged = OutgoingMessage::new(dispatches.clone(), &told).msg_id(format!("{id}:approved"));
    story.bench.bus.publish(forged).await.expect("published");

    // One that says what was decided, and one about a session that asks nothing.
    let said = json!({
        "target": story.main, "approval": id, "at": 1,
        "decision": {"id": id, "status": "approved", "decided_by": "ann"},
    });
    let headers: Headers = [
        ("Content-Type", "application/json"),
        ("Nexus-Schema", "session_decision/1"),
    ]
    .into_iter()
    .collect();

    let said = OutgoingMessage::raw(dispatches.clone(), headers, said.to_string().into());
    story.bench.bus.publish(said).await.expect("published");
    let approval = "01JDGZX4Q8AAAAAAAAK7Q2M9PX".to_owned();
    let unknown = SessionDecision { approval, ..told };

    story
        .bench
        .bus
        .publish(OutgoingMessage::new(dispatches, &unknown))
        .await
        .expect("published");

    wake(&story).await;
    eventually("all of them are over", async || {
        let entries = story.bench.entries(&story.main).await;
        let dropped = |entry: &&LedgerEntry| matches!(entry, LedgerEntry::DispatchDropped { .. });
        entries.iter().filter(dropped).count() == 3
    })
    .await;

    assert_eq!(payments_begun(&story).await, 0);
    assert_eq!(story.stands(&id).await.status, ApprovalStatus::Pending);

    // The word of one who may decide is obeyed.
    story.says(&id, "ann", false, None).await.expect("denied");
    story.plays("model", "done", &[]).await;
    story.ends("done").await;

    assert_eq!(payments_begun(&story).await, 0);
    assert!(matches!(story.told("1-1").await, ToolOutcome::Error { error } if error.contains("denied by ann")));

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_whose_value_is_gone_is_asked_again_under_its_id_with_a_new_card() {
    let (mut story, id) = waiting("{}").await;
    story.says(&id, "cid", true, None).await.expect_err("not one of them");
    let values = story.bench.bus.kv::<ConfirmationTerms>("approvals");
    values.delete(&key(&id), None).await.expect("gone");
    wake(&story).await;
    eventually("it is asked again", async || {
        values.get(&key(&id)).await.expect("KV").is_some()
    })
    .await;

    eventually("a card is sent again", async || cards(&story).await.len() == 2).await;
    assert_eq!(payments_begun(&story).await, 0);

    let again = story.stands(&id).await;
    assert_eq!(
        (again.request.id.as_str(), again.status),
        (id.as_str(), ApprovalStatus::Pending)
    );

    story.says(&id, "ann", true, None).await.expect("approved");
    story.plays("pay", "paid", &[]).await;
    story.plays("model", "done", &[]).await;
    story.ends("done").await;
    story.becomes(&id, ApprovalStatus::Consumed).await;

    assert_eq!(payments_begun(&story).await, 1);

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_value_is_asked_anew_and_its_votes_are_void() {
    let (mut story, id) = waiting("{scope: {kind: quorum, n: 2, of: [ann, bob]}}").await;
    let values = story.bench.bus.kv::<ConfirmationTerms>("approvals");
    let older = values.get(&key(&id)).await.expect("KV").expect("asked").value;
    story.says(&id, "ann", true, None).await.expect("one of two");
    values.put(&key(&id), &older).await.expect("put back");
    wake(&story).await;
    eventually("a card is sent again", async || cards(&story).await.len() == 2).await;

    let again = story.stands(&id).await;
    assert_eq!((again.status, again.trail.votes.len()), (ApprovalStatus::Pending, 0));

    story.says(&id, "bob", true, None).await.expect("one of two");
    assert_eq!(payments_begun(&story).await, 0, "ann's yes was lost with the value");

    story.says(&id, "ann", true, None).await.expect("two of two");
    story.plays("pay", "paid", &[]).await;
    story.plays("model", "done", &[]).await;
    story.ends("done").await;
    story.becomes(&id, ApprovalStatus::Consumed).await;
    let audit: Vec<String> = story.audit(&id).await;

    assert_eq!(audit, ["asked", "voted", "asked", "voted", "approved", "consumed"]);

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_used_where_the_ledger_has_no_beginning_never_runs() {
    let (mut story, id) = waiting("{}").await;
    // As after a ledger that was put back to before the call.
    let values = story.bench.bus.kv::<ConfirmationTerms>("approvals");
    let entry = values.get(&key(&id)).await.expect("KV").expect("asked");
    let used = ConfirmationTerms {
        status: ApprovalStatus::Consumed,
        ..entry.value
    };

    values.update(&key(&id), &used, entry.revision).await.expect("written");
    story.bench.claim(&story.main).await;
    story.plays("model", "done", &[]).await;
    story.ends("done").await;

    assert_eq!(payments_begun(&story).await, 0);
    assert!(matches!(story.told("1-1").await, ToolOutcome::Unknown { .. }));

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_given_out_is_not_given_again_where_kv_is_put_back() {
    let bench = Bench::start().await;
    let (running, gate) = gated(&bench.server.url(), "b1", REMOTE).await;
    let agent = Remote::begin(bench).await;
    let id = agent.asks("t1", 60_000).await;
    says(&agent.desk, &id, true, None).await;
    let values = agent.bench.bus.kv::<ConfirmationTerms>("approvals");
    let approved = values.get(&key(&id)).await.expect("KV").expect("asked").value;

    assert_eq!(agent.gate("t1", "pay", 60_000, Some("a")).await, allowed(60_000));

    values.put(&key(&id), &approved).await.expect("put back");

    for attempt in [Some("b"), None, Some("a")] {
        let again = agent.gate("t1", "pay", 60_000, attempt).await;
        assert!(reason(&again).contains("used once"), "{again}");
    }

    agent.answers("done").await;
    eventually("the turn", async || agent.bench.completed(&agent.main).await.len() == 1).await;
    gate.stop().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_stays_in_kv_until_the_ledger_has_it() {
    let (mut story, id) = waiting("{}").await;
    let bus = story.bench.bus.clone();
    let stored = async || {
        let subject = format!("$KV.approvals.{}", key(&id));
        let stored = bus.last_on_subject("KV_approvals", &subject).await;
        stored.expect("KV").expect("a value")
    };

    let brokers = std::mem::take(&mut story.brokers);
    let desk = std::sync::Arc::clone(&brokers[0].running.broker);

    for broker in brokers {
        broker.stop().await;
    }

    crate::approvals::say_at(desk.desk(), &crate::approvals::word(&id, "ann", false, None)).await;
    assert_eq!(
        stored().await.headers.get("Nats-TTL"),
        None,
        "the owner may be away for long"
    );

    story
        .brokers
        .push(crate::approvals::serving(&story.bench.server.url(), "b2", "{}").await);
    story.plays("model", "done", &[]).await;
    story.ends("done").await;
    eventually("it may vanish", async || {
        stored().await.headers.get("Nats-TTL").is_some()
    })
    .await;

    assert_eq!(story.stands(&id).await.status, ApprovalStatus::Denied);
    assert!(
        story
            .bench
            .bus
            .stream_state(streams::AUDIT)
            .await
            .expect("AUDIT")
            .messages
            >= 2
    );

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_its_queue_has_lost_is_sent_again() {
    let mut story = Story::begin("{}").await;
    story.bench.server.stop().await;
    let deliveries = story.bench.server.copy_of(streams::DELIVERIES);
    story.bench.server.restart().await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    story.suspended().await;
    eventually("a card is sent", async || cards(&story).await.len() == 1).await;

    let card = cards(&story).await.remove(0);

    story.bench.server.stop().await;
    story.bench.server.put_back(streams::DELIVERIES, &deliveries);
    story.bench.server.restart().await;
    eventually("the card is sent again", async || cards(&story).await.len() == 1).await;

    assert_eq!(cards(&story).await.remove(0), card, "under its own id");

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_that_dispatches_has_lost_reaches_its_turn() {
    let (mut story, id) = waiting("{}").await;
    let brokers = std::mem::take(&mut story.brokers);
    let deciding = std::sync::Arc::clone(&brokers[0].running.broker);

    for broker in brokers {
        broker.stop().await;
    }

    story.bench.server.stop().await;
    let older = [streams::DISPATCHES, streams::CLAIMS].map(|stream| (stream, story.bench.server.copy_of(stream)));
    story.bench.server.restart().await;
    crate::approvals::say_at(deciding.desk(), &crate::approvals::word(&id, "ann", false, None)).await;

    // The decision, and the wake-up for it, are lost.
    story.bench.server.stop().await;

    for (stream, copy) in &older {
        story.bench.server.put_back(stream, copy);
    }

    story.bench.server.restart().await;
    story
        .brokers
        .push(crate::approvals::serving(&story.bench.server.url(), "b2", "{}").await);

    story.plays("model", "done", &[]).await;
    story.ends("done").await;
    assert_eq!(payments_begun(&story).await, 0);
    assert_eq!(story.stands(&id).await.status, ApprovalStatus::Denied);

    story.stop().await;
}

/// The approvals that `nexus approval list` shows in the state `status`.
async fn listed(story: &Story, status: ApprovalStatus) -> Vec<String> {
    let question = ListApprovals {
        status: Some(status),
        limit: 0,
    };
    let asked = story
        .bench
        .bus
        .request("nexus.svc.approval.list", Headers::new(), &question, DEADLINE);
    let list: ApprovalList = asked.await.expect("a list");
    list.approvals.into_iter().map(|one| one.request.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_that_is_over_is_not_listed_as_open_where_kv_is_put_back() {
    for (approve, ended) in [(true, ApprovalStatus::Consumed), (false, ApprovalStatus::Denied)] {
        let (mut story, id) = waiting("{}").await;
        let values = story.bench.bus.kv::<ConfirmationTerms>("approvals");
        let older = values.get(&key(&id)).await.expect("KV").expect("asked").value;
        assert_eq!(listed(&story, ApprovalStatus::Pending).await, std::slice::from_ref(&id));

        story.says(&id, "ann", approve, None).await.expect("decided");
        if approve {
            story.plays("pay", "paid", &[]).await;
        }
        story.plays("model", "done", &[]).await;
        story.ends("done").await;
        story.becomes(&id, ended).await;

        values.put(&key(&id), &older).await.expect("put back");
        assert_eq!(listed(&story, ApprovalStatus::Pending).await, [""; 0], "{ended:?}");
        assert_eq!(listed(&story, ended).await, std::slice::from_ref(&id));
        assert_eq!(story.stands(&id).await.status, ended);

        story.stop().await;
    }
}
