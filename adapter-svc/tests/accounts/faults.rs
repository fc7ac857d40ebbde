//! What goes wrong around an account: a refused token, a clock that is wrong, updates that nobody can read.

use serde_json::json;
use shared::model::event::Event;
use shared::testing::eventually;
use shared::wire::dead_letter::DeadLetter;

use crate::bot_api::{BotApi, BotFaults};
use crate::telegram::{MAIN, message};
use crate::world::{START, World};

/// Another token of the bot of [`MAIN`].
const SECOND: &str = "77:second-secret";
const DAY_MS: u64 = 24 * 3_600_000;

/// The content of `channels.yaml` with one account, whose token is `token`.
fn channels(world: &World, api: &BotApi, token: &str) -> String {
    let (token, base) = (world.secret(token), &api.base);
    format!("telegram: {{accounts: {{main: {{token: '{token}', base_url: '{base}', direct: open}}}}}}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_with_a_new_token_takes_over_from_one_whose_token_is_refused() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let old = world.replica("adapter-svc-0", &channels(&world, &api, MAIN)).await;
    api.add(MAIN, "message", &message(1, START));
    eventually("the first message is confirmed", async || api.confirmed(MAIN) == 1).await;
    let revoked = BotFaults {
        is_revoked: true,
        ..BotFaults::default()
    };
    api.set(MAIN, revoked);
    old.says("telegram/main", "stopped: the token is not accepted").await;

    // The old replica still runs, and gives the account away.
    let calls = api.polls(MAIN);
    let new = world.replica("adapter-svc-1", &channels(&world, &api, SECOND)).await;
    new.says("telegram/main", "polling as @nexus77bot").await;
    api.add(SECOND, "message", &message(2, START));
    eventually("the second message is confirmed", async || api.confirmed(SECOND) == 1).await;
    world.stored(2).await;
    assert_eq!(api.polls(MAIN), calls, "the refused token is not used");
    let part = old.health.readiness().parts["telegram/main"].clone();
    assert!(part.degraded && part.detail.starts_with("stopped"), "{part:?}");
    new.stop().await;
    old.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_a_day_ahead_tells_no_gap_and_hides_none() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let text = channels(&world, &api, MAIN);
    let replica = world.replica("adapter-svc-0", &text).await;
    api.add(MAIN, "message", &message(1, START));
    eventually("the first message is confirmed", async || api.confirmed(MAIN) == 1).await;

    // The vendor's clock goes on as before.
    api.set_ahead(i64::try_from(2 * DAY_MS).expect("small"));
    world.clock.advance(2 * DAY_MS);
    api.add(MAIN, "message", &message(2, START));
    eventually("the second message is confirmed", async || api.confirmed(MAIN) == 2).await;
    let is_gap = |event: &Event| event.id.adapter() == "gap";
    assert!(!world.stored(2).await.iter().any(is_gap));
    replica.stop().await;

    // A gap of 25 hours by the vendor's clock.
    world.clock.advance(DAY_MS + 3_600_000);
    let replica = world.replica("adapter-svc-0", &text).await;
    eventually("the gap is told", async || world.events().await.iter().any(is_gap)).await;
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_nobody_can_read_is_a_dead_letter_without_what_the_bot_said() {
    let world = World::start().await;
    let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
    let replica = world.replica("adapter-svc-0", &channels(&world, &api, MAIN)).await;
    let own = json!({"message_id": 9, "date": 1, "from": {"id": 77, "is_bot": true}, "text": "approve K7Q2-M9PX",
        "chat": {"id": 100, "type": "private"}});
    let mut strange = message(1, START);
    strange["chat"]["type"] = json!("galaxy");
    strange["reply_to_message"] = own;
    api.add(MAIN, "message", &strange);
    let mut huge = message(2, START);
    huge["chat"]["type"] = json!("galaxy");
    huge["text"] = json!("x".repeat(100_000));
    api.add(MAIN, "message", &huge);
    // This one belongs to no conversation, which is no fault.
    api.add(MAIN, "poll", &json!({"id": "1"}));
    api.add(MAIN, "message", &message(3, START));
    eventually("everything is confirmed", async || api.confirmed(MAIN) == 4).await;
    world.stored(1).await;

    let stored = world.bus.read_history("DLQ", "nexus.dlq.>", 1, 10).await.expect("read");
    let letters: Vec<DeadLetter> = stored.iter().map(|one| one.decode().expect("a letter")).collect();
    assert_eq!(letters.len(), 2, "{letters:#?}");
    for letter in &letters {
        assert_eq!(
            (letter.reason.as_str(), letter.redrive_subject.as_str()),
            ("unknown_chat", "")
        );
        assert!(
            letter.detail.starts_with("telegram/main: ") && letter.detail.contains("galaxy"),
            "{letter:?}"
        );
    }
    let payload = |letter: &DeadLetter| String::from_utf8(letter.payload_bytes().expect("bytes")).expect("text");
    let (first, second) = (payload(&letters[0]), payload(&letters[1]));
    assert!(first.contains("message 1") && !first.contains("K7Q2"), "{first}");
    assert!(second.len() < 100 && second.contains("left_out_bytes"), "{second}");
    replica.stop().await;
}
