//! What KV and `AUDIT` say of approvals follows what happened, whoever died in between.

use std::time::Duration;

use broker_svc::approval;
use serde_json::json;
use shared::model::approval::{
    ApprovalRecord, ApprovalStatus, ApprovalTimer, ApprovalTimerPurpose, ApprovalTrail, CardReason, ConfirmationTerms,
};
use shared::model::ledger::LedgerEntry;
use shared::model::session::QueueMode;
use shared::testing::eventually;
use shared::wire::topology::{APPROVAL_TIMERS, streams};
use ulid::Ulid;

use crate::approvals::{Story, personas, say, serving, word};

fn key(id: &str) -> String {
    format!("ask.{id}")
}

/// Writes what KV says of `id`, as somebody who died right after it.
async fn write(story: &Story, id: &str, change: impl FnOnce(&mut ConfirmationTerms)) {
    let values = story.bench.bus.kv::<ConfirmationTerms>("approvals");
    let entry = values.get(&key(id)).await.expect("KV").expect("asked");
    let mut value = entry.value;
    change(&mut value);
    values.update(&key(id), &value, entry.revision).await.expect("written");
}

/// What `AUDIT` says of `id`, refusals aside.
async fn changes(story: &Story, id: &str) -> Vec<String> {
    let all = story.audit(id).await;
    all.into_iter().filter(|what| what != "refused").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_nobody_told_audit_of_is_told_once_by_whoever_finds_it() {
    let mut story = Story::begin("{}").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let id = story.suspended().await.id;

    assert_eq!(story.says(&id, "cid", true, None).await, Err(403));

    write(&story, &id, |value| {
        value.status = ApprovalStatus::Approved;
        value.decided_by = Some("ann".to_owned());
        let before = value.trail.record.take().expect("what was asked");

        value.trail.record = Some(Box::new(ApprovalRecord {
            what: "approved".to_owned(),
            n: before.n + 1,
            by: Some("ann".to_owned()),
            ..*before
        }));
    })
    .await;

    // The word that is said again, the sweeper and the turn find it at once.
    let (again, bus) = (word(&id, "ann", true, None), story.bench.bus.clone());
    let (one, other) = tokio::join!(say(&bus, &again), say(&bus, &again));
    assert!(one.is_ok() && other.is_ok(), "{one:?} {other:?}");

    story.plays("pay", "paid", &[]).await;
    story.plays("model", "done", &[]).await;
    story.ends("done").await;
    story.becomes(&id, ApprovalStatus::Consumed).await;

    assert_eq!(changes(&story, &id).await, ["asked", "approved", "consumed"]);

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_has_each_change_once_while_others_are_refused() {
    let mut story = Story::begin("{scope: {kind: quorum, n: 2, of: [ann, bob]}}").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let id = story.suspended().await.id;

    let mut words = tokio::task::JoinSet::new();
    for by in ["cid", "ann", "cid", "cid", "bob", "ann", "cid", "bob"] {
        let (bus, word) = (story.bench.bus.clone(), word(&id, by, true, None));
        words.spawn(async move { say(&bus, &word).await });
    }

    let said = words.join_all().await;
    assert_eq!(said.iter().filter(|said| **said == Err(403)).count(), 4, "{said:?}");

    story.plays("pay", "paid", &[]).await;
    story.plays("model", "done", &[]).await;
    story.ends("done").await;
    story.becomes(&id, ApprovalStatus::Consumed).await;

    assert_eq!(changes(&story, &id).await, ["asked", "voted", "approved", "consumed"]);

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_whose_call_does_not_run_is_canceled() {
    // Nobody may approve that much.
    let hooks = "
hooks:
  - hook: PreToolUse
    builtin: read_only_guard
    tools: [pay]
    when: [{argument: amount, above: 100000}]
    with: {always: true, reads: []}
";

    let mut story = Story::begin_with(&personas("{}"), hooks).await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let id = story.suspended().await.id;
    let never = json!({"step": 1, "amount": 200_000});
    story.says(&id, "ann", true, Some(never)).await.expect("taken");
    story.plays("model", "so be it", &[]).await;
    story.becomes(&id, ApprovalStatus::Canceled).await;
    story.ends("so be it").await;

    assert_eq!(changes(&story, &id).await, ["asked", "approved", "canceled"]);

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_owner_withdrew_is_withdrawn_for_people_too() {
    let mut story = Story::begin("{}").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let id = story.suspended().await.id;
    story.send(2, Some(QueueMode::Steer)).await;
    let (asked, _) = story.effect().await;

    assert_eq!(asked.name, "model");

    story.becomes(&id, ApprovalStatus::Canceled).await;
    // As by an owner that died between the ledger and KV, while its turn goes on.
    write(&story, &id, |value| value.status = ApprovalStatus::Pending).await;
    let second = serving(&story.bench.server.url(), "b2", "{}").await;
    let first = std::mem::replace(&mut story.brokers[0], second);
    first.stop().await;
    story.plays("model", "never mind", &[]).await;
    story.becomes(&id, ApprovalStatus::Canceled).await;
    story.ends("never mind").await;
    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_the_ledger_never_asked_ends_with_its_turn() {
    let mut story = Story::begin("{}").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let asked = story.suspended().await;
    story.says(&asked.id, "ann", true, None).await.expect("taken");
    let (paying, to) = story.effect().await;

    assert_eq!(paying.name, "pay");

    // As by an owner that died right after it had asked, and whose successor asked another question.
    let values = story.bench.bus.kv::<ConfirmationTerms>("approvals");
    let mut stray = story.stands(&asked.id).await;
    stray.request.id = "01JDGZX4Q8AAAAAAAAK7Q2M9PX".to_owned();
    stray.status = ApprovalStatus::Pending;
    stray.trail = ApprovalTrail::default();
    let id = stray.request.id.clone();
    values.create(&key(&id), &stray).await.expect("written");
    story.says(&id, "ann", true, None).await.expect("taken");
    story.answer(&to, "paid", &[]).await;
    story.plays("model", "done", &[]).await;

    story.ends("done").await;
    story.becomes(&id, ApprovalStatus::Canceled).await;
    eventually("the other was used", async || {
        story.stands(&asked.id).await.status == ApprovalStatus::Consumed
    })
    .await;

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_words_at_once_and_the_end_of_time_one_wins() {
    let mut story = Story::begin("{expires_ms: 3000}").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let request = story.suspended().await;
    let id = request.id;

    let mut words = tokio::task::JoinSet::new();
    for number in 0..24_u64 {
        let (bus, id) = (story.bench.bus.clone(), id.clone());
        words.spawn(async move {
            shared::clock::pause(Duration::from_millis(number * 100)).await;
            let approve = number % 2 == 0;
            (approve, say(&bus, &word(&id, "ann", approve, None)).await)
        });
    }

    let mut changed = 0;
    let mut all = Vec::new();
    while let Some(said) = words.join_next().await {
        let (approve, answer) = said.expect("a word");
        match answer {
            Ok(answer) => {
                changed += u32::from(answer.changed);
                all.push((approve, answer.status));
            }
            Err(code) => assert_eq!(code, 409),
        }
    }

    assert!(changed <= 1, "one decision: {all:?}");

    let standing = story.stands(&id).await.status;
    match standing {
        ApprovalStatus::Approved | ApprovalStatus::Consumed => {
            assert!(all.iter().all(|(approve, _)| *approve));
            story.plays("pay", "paid", &[]).await;
        }
        ApprovalStatus::Denied => assert!(all.iter().all(|(approve, _)| !*approve)),
        ApprovalStatus::Expired => assert!(all.is_empty()),
        other @ (ApprovalStatus::Pending | ApprovalStatus::Canceled | ApprovalStatus::Superseded) => {
            panic!("{other:?}")
        }
    }

    story.plays("model", "done", &[]).await;
    story.ends("done").await;
    let decided = |entry: &&LedgerEntry| matches!(entry, LedgerEntry::ApprovalDecided { .. });

    assert_eq!(story.bench.entries(&story.main).await.iter().filter(decided).count(), 1);
    assert!(story.desk().get(&id).await.expect("KV").is_some());

    story.stop().await;
}

/// Cards that say that nobody has decided for long.
async fn escalations(story: &Story) -> usize {
    let replies = story.bench.replies().await;
    let told = replies
        .iter()
        .filter(|reply| reply.content.starts_with("Still pending"));
    told.count()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_escalation_is_told_once_through_a_restart_of_the_server() {
    let mut story = Story::begin("{expires_ms: 600000, escalate_at: 0.004}").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let id = story.suspended().await.id;
    story.bench.server.restart().await;
    eventually("it is escalated", async || escalations(&story).await > 0).await;
    eventually("it is told", async || changes(&story, &id).await.len() == 2).await;

    assert_eq!(changes(&story, &id).await, ["asked", "escalated"]);

    story.says(&id, "ann", false, None).await.expect("a no");
    story.plays("model", "so be it", &[]).await;
    story.ends("so be it").await;

    assert_eq!(escalations(&story).await, 1);

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_rings_again_sends_the_card_that_a_dead_one_did_not() {
    let mut story = Story::begin("{expires_ms: 600000, escalate_at: 0.9}").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let id = story.suspended().await.id;

    write(&story, &id, |value| {
        value.trail.escalated_at = Some(value.requested_at);
        // The cards are written with the change that shows them.
        let mut card = value.trail.cards.first().expect("the card of the question").clone();
        (card.id, card.reason) = (Ulid::from_parts(9, 9), CardReason::Escalated);
        value.trail.cards.push(card);
        let before = value.trail.record.take().expect("what was asked");
        value.trail.record = Some(Box::new(ApprovalRecord {
            what: "escalated".to_owned(),
            n: before.n + 1,
            by: None,
            ..*before
        }));
    })
    .await;

    for _ in 0..2 {
        story.desk().escalate_approval(&id).await.expect("it is told");
    }

    assert_eq!(
        (escalations(&story).await, changes(&story, &id).await),
        (1, vec!["asked".to_owned(), "escalated".to_owned()])
    );

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_that_rings_before_its_question_is_stored_waits_for_it() {
    let mut story = Story::begin("{}").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let mut late = story.stands(&story.suspended().await.id).await;
    late.request.id = "01JDGZX4Q8AAAAAAAAK7Q2M9PX".to_owned();
    late.trail = ApprovalTrail::default();
    let id = late.request.id.clone();

    let timer = ApprovalTimer {
        approval: id.clone(),
        purpose: ApprovalTimerPurpose::Escalate,
    };
    let set = approval::timers::set(&story.bench.bus, &timer, late.requested_at).await;
    set.expect("it is set");
    let consumer = async || {
        let lag = story.bench.bus.consumer_lag(streams::SCHEDULES, APPROVAL_TIMERS).await;
        lag.expect("it can be asked")
    };

    eventually("it has rung", async || consumer().await.total_lag() > 0).await;
    let values = story.bench.bus.kv::<ConfirmationTerms>("approvals");
    values.create(&key(&id), &late).await.expect("written");
    eventually("it is escalated", async || {
        story.stands(&id).await.trail.escalated_at.is_some()
    })
    .await;

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_change_of_an_approval_is_told_soon_though_whoever_made_it_is_gone() {
    let mut story = Story::begin("{}").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let id = story.suspended().await.id;
    story.says(&id, "ann", false, None).await.expect("taken");
    story.plays("model", "so be it", &[]).await;
    story.ends("so be it").await;

    // Refusals stand in between, and are no changes.
    assert_eq!(story.says(&id, "cid", true, None).await, Err(403));

    write(&story, &id, |value| {
        let before = value.trail.record.take().expect("what was said");
        value.trail.record = Some(Box::new(ApprovalRecord {
            what: "canceled".to_owned(),
            n: before.n + 1,
            ..*before
        }));
    })
    .await;

    let second = serving(&story.bench.server.url(), "b2", "{}").await;
    eventually("it is told", async || {
        changes(&story, &id).await == ["asked", "denied", "canceled"]
    })
    .await;

    second.stop().await;
    story.stop().await;
}
