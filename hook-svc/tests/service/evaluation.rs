//! Event → hooks → dispatches, claims, records.

use serde_json::json;
use shared::bus::OutgoingMessage;
use shared::model::event::{EventDirection, EventId, FROM_BOT};
use shared::model::invocation::HookOutcome;
use shared::model::origin::EventOrigin;
use shared::model::permission::PermissionLevel;
use shared::projection::api::{EventTrace, FindReply};
use shared::testing::eventually;
use shared::wire::headers::Headers;
use shared::wire::session_mark::SessionClaim;
use shared::wire::topology::streams::CLAIMS;

use crate::world::{World, event, of};

const ECHO: &str = "/** @name Echo\n * @priority 80 */
export default async ({ event }) => ({ fire: event.content.startsWith('echo'), context: { extracted: { n: event.content.length } } });\n";

const SILENT: &str = "export default () => ({ fire: false });\n";

const FALLBACK: &str = "/** @fallback */\nexport default () => ({ fire: true, routing: { persona: 'helper' } });\n";

const BROKEN: &str = "export default () => { throw new Error('out of coffee'); };\n";

/// Fires late for events that say so.
const SLOW: &str = "export default async ({ event }) => {
  await new Promise((done) => setTimeout(done, Number(event.content) || 0));
  return { fire: true, routing: { session: 'slow' } };
};\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_fire_becomes_a_dispatch_a_claim_and_a_record() {
    let world = World::with_one_replica(&[("echo.ts", ECHO), ("silent.ts", SILENT), ("broken.ts", BROKEN)]).await;
    let event = event("v1", 1, "echo please");
    let sequence = world.publish(&event).await;
    let record = world.record(&event).await;

    assert_eq!(
        (record.event_seq, record.evaluated_by.as_str(), record.passed),
        (sequence, "a", 1)
    );

    let HookOutcome::Failed { error, .. } = &of(&record, "broken").outcome else {
        panic!("{record:?}")
    };
    assert!(error.contains("out of coffee"), "{error}");

    let HookOutcome::Fired { dispatch: id, .. } = &of(&record, "echo").outcome else {
        panic!("{record:?}")
    };

    let dispatches = world.dispatches().await;
    let [dispatch] = dispatches.as_slice() else {
        panic!("{dispatches:?}")
    };

    assert_eq!(
        (dispatch.id, dispatch.event_seq, dispatch.priority),
        (*id, sequence, 80)
    );
    assert_eq!(dispatch.target.to_string(), "default/webchat:dm:v1");
    assert_eq!(dispatch.permissions.level, PermissionLevel::Minimal);
    assert_eq!(
        dispatch.context.extracted.as_ref().map(|found| json!(found)),
        Some(json!({"n": 11}))
    );

    let claims: Vec<SessionClaim> = world.all(CLAIMS).await;
    assert_eq!(
        claims.iter().map(|claim| claim.session.to_string()).collect::<Vec<_>>(),
        ["default/webchat:dm:v1"]
    );

    world.wait_until_acked().await;
}

/// The first dispatch may be lost while the server still remembers its message id.
#[tokio::test(flavor = "multi_thread")]
async fn a_redriven_event_makes_its_dispatch_again_and_has_a_record_of_its_own() {
    let world = World::with_one_replica(&[("echo.ts", ECHO)]).await;
    let event = event("v1", 1, "echo please");
    world.publish(&event).await;
    world.record(&event).await;

    let out = OutgoingMessage::event(&event, world.bus.trust()).msg_id("redrive:1:x");
    let again = world.bus.publish(out).await.expect("stored").sequence;
    eventually("it has its record", async || {
        let records = world.invocations().await;
        records.iter().any(|record| record.event_seq == again)
    })
    .await;

    let dispatches = world.dispatches().await;
    let [first, second] = dispatches.as_slice() else {
        panic!("{dispatches:?}")
    };
    assert_eq!((first.id, second.event_seq), (second.id, again));
    world.wait_until_acked().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fallback_fires_only_where_nobody_else_routed() {
    let world = World::with_one_replica(&[("echo.ts", ECHO), ("fallback.ts", FALLBACK)]).await;
    let (routed, other) = (event("v1", 1, "echo"), event("v1", 2, "anything else"));
    world.publish(&routed).await;
    world.publish(&other).await;
    let record = world.record(&routed).await;
    let suppressed = HookOutcome::Suppressed {
        reason: "routed_by_another".to_owned(),
    };

    assert_eq!(of(&record, "fallback").outcome, suppressed);

    let record = world.record(&other).await;
    assert!(
        matches!(of(&record, "fallback").outcome, HookOutcome::Fired { .. }),
        "{record:?}"
    );

    let personas: Vec<_> = world
        .dispatches()
        .await
        .into_iter()
        .map(|dispatch| dispatch.target.persona)
        .collect();

    assert_eq!(personas, ["default", "helper"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_hook_keeps_the_order_of_its_conversation_and_delays_nobody_else() {
    let world = World::with_one_replica(&[("slow.ts", SLOW), ("quick.ts", FALLBACK_FREE)]).await;
    for (number, wait) in [(1, "7000"), (2, "0"), (3, "1500"), (4, "0")] {
        world.publish(&event("v1", number, wait)).await;
    }

    eventually("the quick hook's dispatches", async || {
        world
            .dispatches()
            .await
            .iter()
            .filter(|dispatch| dispatch.hook_id == "quick")
            .count()
            == 4
    })
    .await;

    world.wait_for_records(4).await;
    let dispatches = world.dispatches().await;
    for hook in ["slow", "quick"] {
        let order: Vec<_> = dispatches
            .iter()
            .filter(|d| d.hook_id == hook)
            .map(|d| d.event_seq)
            .collect();
        assert_eq!(order, [1, 2, 3, 4], "{hook}");
    }

    let first_slow = dispatches.iter().position(|dispatch| dispatch.hook_id == "slow");
    assert_eq!(first_slow, Some(4), "the quick hook's dispatches all came first");
}

/// Fires at once, always.
const FALLBACK_FREE: &str = "export default () => ({ fire: true, routing: { session: 'quick' } });\n";

#[tokio::test(flavor = "multi_thread")]
async fn an_event_too_deep_in_its_chain_leads_to_nothing() {
    let world = World::with_one_replica(&[("echo.ts", ECHO)]).await;
    let mut deep = event("v1", 1, "echo");
    deep.hops = 8;
    world.publish(&deep).await;
    let record = world.record(&deep).await;
    let suppressed = HookOutcome::Suppressed {
        reason: "too_many_hops".to_owned(),
    };

    assert_eq!(of(&record, "echo").outcome, suppressed);
    assert!(world.dispatches().await.is_empty());
}

/// Answers other bots where they write.
const ANSWERS_BOTS: &str = "/** @match tag=from_bot */\nexport default () => ({ fire: true });\n";

#[tokio::test(flavor = "multi_thread")]
async fn another_bot_that_answers_each_answer_is_answered_ten_times_in_a_minute() {
    let world = World::with_one_replica(&[("bots.ts", ANSWERS_BOTS)]).await;
    let of_bot = |peer: &str, number: u32| {
        let mut event = event(peer, number, "and you?");
        event.add_tag(FROM_BOT);
        event
    };
    let sent = |number: u32| {
        let mut event = event("v1", number, "fine");
        event.id = EventId::parse(format!("out:01HV0000000000000000000000/{number}")).expect("an id");
        event.origin = EventOrigin::System;
        event.direction = EventDirection::Sent;
        event
    };
    for number in 1..=12 {
        world.publish(&of_bot("v1", number)).await;
        world.publish(&sent(number)).await;
    }
    // A bot that writes as much at once, and has read no answer, is answered each time.
    for number in 1..=12 {
        world.publish(&of_bot("v2", number)).await;
    }
    for peer in ["v1", "v2"] {
        for number in 1..=12 {
            world.record(&of_bot(peer, number)).await;
        }
    }
    let answered = world.dispatches().await;
    let count = |peer: &str| {
        answered
            .iter()
            .filter(|d| d.event_id.as_str().starts_with(peer))
            .count()
    };
    assert_eq!((count("webchat:v1/"), count("webchat:v2/")), (10, 12));

    let suppressed = HookOutcome::Suppressed {
        reason: "too_many_bot_answers".to_owned(),
    };
    for number in [11, 12] {
        let record = world.record(&of_bot("v1", number)).await;
        assert_eq!(of(&record, "bots").outcome, suppressed, "{number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_a_known_item_is_recorded_and_shown_to_nobody() {
    let world = World::with_one_replica(&[("echo.ts", ECHO)]).await;
    let first = event("v1", 1, "echo");
    world.publish(&first).await;
    world.wait_for_records(1).await;
    let mut changed = first.clone();
    changed.direction = EventDirection::Updated;
    changed.content = "echo, edited".to_owned();
    world.publish(&changed).await;
    world.wait_for_records(2).await;

    assert_eq!(world.dispatches().await.len(), 1);

    world.wait_until_acked().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_read_model_answers_over_the_bus() {
    let world = World::with_one_replica(&[("echo.ts", ECHO)]).await;
    let event = event("v1", 1, "echo");
    world.publish(&event).await;
    world.record(&event).await;
    let ask = std::time::Duration::from_secs(5);

    eventually("the trace has the dispatch", async || {
        let question = json!({"event_id": event.id});
        let trace: EventTrace = world
            .bus
            .request("nexus.svc.events.trace", Headers::new(), &question, ask)
            .await
            .expect("answered");

        trace
            .steps
            .iter()
            .any(|step| step.detail.contains("default/webchat:dm:v1"))
    })
    .await;

    let question = json!({"channel": "webchat", "text": "ECHO"});
    let found: FindReply = world
        .bus
        .request("nexus.svc.events.find", Headers::new(), &question, ask)
        .await
        .expect("answered");

    assert_eq!(found.events.iter().map(|row| &row.id).collect::<Vec<_>>(), [&event.id]);
}
