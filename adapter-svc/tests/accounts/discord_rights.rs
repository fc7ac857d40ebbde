//! Channels that a bot may not see, people who may not write to it, and clocks that are wrong.

use std::sync::Arc;

use serde_json::json;
use shared::platform::discord::DISCORD;
use shared::testing::{ManualClock, eventually};

use crate::discord::{MAIN, OPEN, PART, channels, confirmed, events, start};
use crate::discord_api::{DiscordApi, DiscordFaults, bot_id, message, snowflake};
use crate::pairing::replies;
use crate::world::{START, World};

/// A channel of the list in which nothing was read.
const HIDDEN: &str = "1003";

fn hidden(overwrites: &serde_json::Value) -> DiscordFaults {
    DiscordFaults {
        closed_channels: vec![HIDDEN.to_owned()],
        overwrites: overwrites.clone(),
        ..DiscordFaults::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hidden_channel_is_asked_for_once_and_again_once_the_rights_change() {
    let (world, api, replica) = start(OPEN).await;
    api.set(MAIN, hidden(&json!([])));
    api.say(MAIN, 1, START);
    confirmed(&api, 1).await;
    let asked = || api.asked(MAIN).iter().filter(|channel| *channel == HIDDEN).count();

    // The bot is not told what is written there.
    let mut replica = replica;
    let later = START.plus(70_000);
    let secret = message(&snowflake(3, later), HIDDEN, "secret");
    api.with(MAIN, |bot| {
        bot.history.entry(HIDDEN.to_owned()).or_default().push(secret);
    });
    for round in 1..=3 {
        replica.stop().await;
        api.forget_sessions(MAIN);
        world.clock.advance(30_000);
        replica = world.replica("adapter-svc-0", &channels(&world, &api, OPEN)).await;
        let number = 7 + round;
        api.write(MAIN, &message(&snowflake(number, later.plus(number)), "1001", "seen"));
        eventually("the session is told and read", async || {
            let (found, gaps) = events(&world).await;
            let round = usize::try_from(round).expect("small");
            found.len() == 1 + round && gaps.len() == round
        })
        .await;
        eventually("the hidden channel is asked for", async || asked() == 1).await;
        replica.says(PART, "reading as nexus77").await;
        assert!(
            events(&world)
                .await
                .1
                .iter()
                .all(|gap| gap.contains("could not be resumed"))
        );
    }

    replica.stop().await;
    api.forget_sessions(MAIN);
    api.set(MAIN, hidden(&json!([{"id": "9", "allow": "1024"}])));
    let replica = world.replica("adapter-svc-0", &channels(&world, &api, OPEN)).await;
    eventually("it is asked for again", async || asked() == 2).await;
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_leave_no_marks_and_are_sent_no_second_code() {
    let (world, api, replica) = start("allow: [6], groups: {'*': {require_mention: false}}").await;
    let allowed = |number: i64, text: &str| {
        let mut allowed = message(&snowflake(number, START), "901", text);
        allowed["author"]["id"] = json!("6");
        allowed
    };
    let mut program = message(&snowflake(1, START), "902", "beep");
    program["author"]["bot"] = json!(true);
    api.write_directly(MAIN, &program);
    api.write_directly(MAIN, &message(&snowflake(2, START), "900", "let me in"));
    api.write_directly(MAIN, &allowed(3, "it is me"));
    confirmed(&api, 3).await;
    assert_eq!(replies(&world).await.len(), 1);
    // The code comes back as the bot's own message.
    let mut own = message(&snowflake(4, START), "900", "your code");
    own["author"] = json!({"id": bot_id(MAIN), "username": "nexus", "bot": true});
    api.write_directly(MAIN, &own);
    api.write_directly(MAIN, &allowed(5, "it is me again"));
    let marks = async || {
        let watermark = world.watermark(DISCORD, "main").await.expect("a watermark");
        watermark.position["channels"].clone()
    };
    let last: u64 = snowflake(5, START).parse().expect("an id");
    eventually("the position is written", async || marks().await["901"] == last).await;
    assert_eq!(marks().await, json!({"901": last}));
    replica.stop().await;

    // The session ends within ten minutes; the histories have everything.
    api.forget_sessions(MAIN);
    api.write_directly(MAIN, &allowed(6, "again"));
    world.clock.advance(300_000);
    let replica = world
        .replica(
            "adapter-svc-0",
            &channels(&world, &api, "allow: [6], groups: {'*': {require_mention: false}}"),
        )
        .await;
    eventually("what was missed is stored", async || {
        events(&world).await.0.iter().any(|event| event.content == "again")
    })
    .await;
    // As after a withdrawal: the same messages are read again as those of a stranger.
    replica.stop().await;
    api.forget_sessions(MAIN);
    let asked = || api.asked(MAIN).iter().filter(|channel| *channel == "901").count();
    let before = asked();
    let replica = world
        .replica(
            "adapter-svc-0",
            &channels(&world, &api, "groups: {'*': {require_mention: false}}"),
        )
        .await;
    // A page, and the end of the history.
    eventually("the history is read", async || {
        let watermark = world.watermark(DISCORD, "main").await.expect("a watermark");
        asked() >= before + 2 && watermark.position.get("pending").is_none()
    })
    .await;
    let codes = replies(&world).await;
    let of = |peer: &str| {
        let to = codes
            .iter()
            .filter(|reply| reply.delivery_context.peer_id.as_deref() == Some(peer));
        to.count()
    };
    assert_eq!((of("900"), of("902")), (1, 0));
    assert!(of("901") <= 1, "{codes:?}");
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_s_clock_that_is_days_ahead_hides_nothing() {
    let world = World::start().await;
    let vendor = Arc::new(ManualClock::at(START));
    let api = DiscordApi::start(world.bus.clone(), vendor.clone()).await;
    world.clock.advance(2 * 24 * 3_600_000);
    let text = channels(&world, &api, OPEN);
    let replica = world.replica("adapter-svc-0", &text).await;
    replica.says(PART, "reading as nexus77").await;
    replica.stop().await;

    // Written a minute later by the vendor's clock, while no session is there.
    api.forget_sessions(MAIN);
    vendor.advance(120_000);
    api.say(MAIN, 1, START.plus(60_000));
    let replica = world.replica("adapter-svc-0", &text).await;
    eventually("the message is read", async || events(&world).await.0.len() == 1).await;
    replica.stop().await;
}
