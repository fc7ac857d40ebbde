//! Discord's source: the contract of sources, and what the vendor does besides.

use std::sync::Arc;

use adapter_svc::source::discord::account_context::AccountContext;
use adapter_svc::source::discord::address_gate::AddressGate;
use adapter_svc::source::discord::client::open_http;
use adapter_svc::source::discord::gateway::DiscordSource;
use adapter_svc::source::port::Source;
use serde_json::{Value, json};
use shared::clock::SystemClock;
use shared::model::event::{Event, EventDirection, MentionForm, PlatformIds};
use shared::model::time::UnixMillis;
use shared::platform::accounts::read_platforms;
use shared::platform::discord::DISCORD;
use shared::testing::{SeededIds, eventually};
use shared::wire::dead_letter::DeadLetter;

use crate::contract::{Platform, check_source};
use crate::discord_api::{DiscordApi, DiscordFaults, FIRST_CHANNEL, GUILD, THREAD, bot_id, message, snowflake};
use crate::dropped::check_dropped;
use crate::world::{Replica, START, World};

pub(crate) const MAIN: &str = "77.main.secret";
pub(crate) const OTHER: &str = "78.other.secret";
pub(crate) const PART: &str = "discord/main";

/// The stand-in with a token for each account.
struct Discord(DiscordApi);

fn token(account: &str) -> &'static str {
    if account == "main" { MAIN } else { OTHER }
}

/// The content of `channels.yaml` for the stand-in.
pub(crate) fn channels(world: &World, api: &DiscordApi, keys: &str) -> String {
    let (main, other, address) = (world.secret(MAIN), world.secret(OTHER), &api.address);
    let base = format!("base_url: 'http://{address}/api', ws_url: 'ws://{address}/gateway'");
    format!(
        "discord: {{accounts: {{main: {{token: '{main}', {base}, {keys}}}, \
         other: {{token: '{other}', {base}, direct: open, groups: {{'*': {{require_mention: false}}}}}}}}}}"
    )
}

/// Settings with which everybody may write, and every message is for the bot.
pub(crate) const OPEN: &str = "direct: open, groups: {'*': {require_mention: false}}";

impl Platform for Discord {
    fn channel(&self) -> &'static str {
        DISCORD
    }

    fn reading(&self) -> &'static str {
        "reading as"
    }

    fn has_earlier(&self) -> bool {
        false
    }

    fn gap_end(&self, now: UnixMillis) -> UnixMillis {
        now
    }

    fn channels(&self, world: &World) -> String {
        channels(world, &self.0, OPEN)
    }

    fn source(&self, world: &World) -> Arc<dyn Source> {
        let accounts = read_platforms(&self.channels(world)).expect("sound accounts");
        Arc::new(DiscordSource::new(AccountContext {
            name: "main".to_owned(),
            account: accounts.discord.accounts["main"].clone(),
            http: open_http().expect("a client"),
            ids: Arc::new(SeededIds::new(7)),
            timer: Arc::new(SystemClock),
            clock: world.clock.clone(),
            gate: AddressGate::default(),
        }))
    }

    fn say(&self, account: &str, number: i64, at: UnixMillis) -> String {
        let (channel, id) = self.0.say(token(account), number, at);
        format!("discord:{account}/{channel}/{id}")
    }

    fn disorder(&self, account: &str) {
        let faults = DiscordFaults {
            shuffles: true,
            ..DiscordFaults::default()
        };
        self.0.set(token(account), faults);
    }

    fn set_away(&self, account: &str, is_away: bool) {
        let faults = DiscordFaults {
            is_away,
            ..DiscordFaults::default()
        };
        self.0.set(token(account), faults);
    }

    fn forget(&self, account: &str) {
        self.0.forget(token(account));
    }

    fn revoke(&self, account: &str) {
        let faults = DiscordFaults {
            is_revoked: true,
            ..DiscordFaults::default()
        };
        self.0.set(token(account), faults);
    }

    fn confirmed(&self, account: &str) -> usize {
        self.0.confirmed(token(account))
    }

    fn handed(&self, account: &str) -> usize {
        self.0.handed(token(account))
    }

    fn calls(&self, account: &str) -> u64 {
        self.0.calls(token(account))
    }

    fn early(&self, account: &str) -> Vec<String> {
        self.0.early(token(account))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_source_of_discord_holds_to_the_contract() {
    check_source(async |world: &World| Discord(DiscordApi::start(world.bus.clone(), world.clock.clone()).await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_source_of_discord_is_dropped_at_each_wait_and_loses_and_doubles_nothing() {
    check_dropped(async |world: &World| Discord(DiscordApi::start(world.bus.clone(), world.clock.clone()).await)).await;
}

/// A world, the stand-in, and a replica that reads.
pub(crate) async fn start(keys: &str) -> (World, DiscordApi, Replica) {
    let world = World::start().await;
    let api = DiscordApi::start(world.bus.clone(), world.clock.clone()).await;
    let replica = world.replica("adapter-svc-0", &channels(&world, &api, keys)).await;
    replica.says(PART, "reading as nexus77").await;
    (world, api, replica)
}

pub(crate) async fn confirmed(api: &DiscordApi, count: usize) {
    eventually("the messages are confirmed", async || api.confirmed(MAIN) >= count).await;
    assert_eq!(api.early(MAIN), Vec::<String>::new());
}

/// The events that are no gaps, and the reasons of the gaps.
pub(crate) async fn events(world: &World) -> (Vec<Event>, Vec<String>) {
    let (gaps, events): (Vec<Event>, Vec<Event>) = world
        .events()
        .await
        .into_iter()
        .partition(|event| event.id.adapter() == "gap");
    (events, gaps.into_iter().map(|gap| gap.content).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_resumed_elsewhere_whatever_ends_its_socket() {
    let (world, api, replica) = start(OPEN).await;
    for number in 1..=5 {
        api.say(MAIN, number, START);
    }
    confirmed(&api, 5).await;

    let mut said = 5;
    for faults in [
        // Asked to reconnect, closed, not ready, not answered.
        DiscordFaults {
            reconnects: 2,
            ..DiscordFaults::default()
        },
        DiscordFaults {
            closes_with: Some(4_000),
            ..DiscordFaults::default()
        },
        DiscordFaults {
            not_ready: 2,
            ..DiscordFaults::default()
        },
        DiscordFaults {
            mute: 1,
            ..DiscordFaults::default()
        },
    ] {
        let begun = api.begun(MAIN).len();
        let is_mute = faults.mute > 0;
        // The sockets of now are cut.
        api.set(
            MAIN,
            DiscordFaults {
                is_away: true,
                ..DiscordFaults::default()
            },
        );
        replica.says(PART, "failing").await;
        api.say(MAIN, said + 1, START);
        api.set(MAIN, faults);
        said += 1;
        confirmed(&api, usize::try_from(said).expect("small")).await;
        if is_mute {
            eventually("the dead socket is left", async || api.closed(MAIN).contains(&4_000)).await;
        }
        replica.says(PART, "reading as nexus77").await;
        let later = api.begun(MAIN)[begun..].to_vec();
        assert!(later.iter().all(|(_, how)| *how == "resume"), "{later:?}");
    }

    let begun = api.begun(MAIN);
    assert_eq!(
        begun.iter().filter(|(_, how)| *how == "identify").count(),
        1,
        "{begun:?}"
    );
    assert_eq!(begun[0], ("gateway".to_owned(), "identify"));
    assert!(begun.iter().any(|(path, _)| path == "resume"), "{begun:?}");
    let (found, gaps) = events(&world).await;
    assert_eq!((found.len(), gaps.len(), api.most_open(MAIN)), (9, 0, 1));
    assert!(
        api.closed(MAIN).iter().all(|code| *code == 4_000),
        "1000 and 1001 end a session"
    );
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_over_is_made_up_for_from_the_histories_page_by_page() {
    let (world, api, replica) = start(OPEN).await;
    for number in 1..=7 {
        api.say(MAIN, number, START);
    }
    let dm = message(&snowflake(8, START), "900", "a direct message");
    api.write_directly(MAIN, &dm);
    confirmed(&api, 8).await;
    world.clock.advance(60_000);
    eventually("it is noted that nothing is missing", async || {
        let watermark = world.watermark(DISCORD, "main").await.expect("a watermark");
        watermark.complete_until == START.plus(60_000)
    })
    .await;
    replica.stop().await;

    // 250 in one channel, one in a thread and one in a direct channel, while the session ends.
    api.forget_sessions(MAIN);
    let later = START.plus(70_000);
    for number in 1..=250 {
        api.say(MAIN, 7 * number, later);
    }
    api.write(MAIN, &message(&snowflake(3_000, later), THREAD, "in a thread"));
    api.write_directly(MAIN, &message(&snowflake(3_001, later), "900", "again"));
    let faults = DiscordFaults {
        refused_pages: 4,
        closed_channels: vec!["1006".to_owned()],
        ..DiscordFaults::default()
    };
    api.set(MAIN, faults);
    world.clock.advance(120_000);
    let replica = world.replica("adapter-svc-0", &channels(&world, &api, OPEN)).await;
    confirmed(&api, 260).await;
    replica.says(PART, "reading as nexus77").await;

    eventually("everything is stored", async || events(&world).await.0.len() == 260).await;
    let (found, gaps) = events(&world).await;
    // The gap of the session, and none of a channel without news.
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    assert!(gaps[0].contains("could not be resumed"));
    let thread = found
        .iter()
        .find(|event| event.content == "in a thread")
        .expect("stored");
    assert_eq!(thread.thread_id.as_deref(), Some(THREAD));
    assert_eq!(thread.peer.id, FIRST_CHANNEL.to_string());
    assert_eq!(thread.peer.guild_id.as_deref(), Some(GUILD));
    let asked = api.asked(MAIN);
    assert!(!asked.contains(&"1006".to_owned()), "{asked:?}");

    // A channel with news that may not be read is told.
    replica.stop().await;
    api.forget_sessions(MAIN);
    api.say(MAIN, 6, later.plus(1));
    let replica = world.replica("adapter-svc-0", &channels(&world, &api, OPEN)).await;
    eventually("the channel is told", async || {
        events(&world)
            .await
            .1
            .iter()
            .any(|gap| gap.contains("the history of channel 1006 cannot be read"))
    })
    .await;
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_stop_the_account_with_words_and_a_spent_number_of_sessions_is_waited_for() {
    let world = World::start().await;
    let api = DiscordApi::start(world.bus.clone(), world.clock.clone()).await;
    let faults = DiscordFaults {
        closes_with: Some(4_014),
        ..DiscordFaults::default()
    };
    api.set(MAIN, faults);
    let spent = DiscordFaults {
        has_no_starts: true,
        ..DiscordFaults::default()
    };
    api.set(OTHER, spent);
    let replica = world.replica("adapter-svc-0", &channels(&world, &api, OPEN)).await;
    replica.says(PART, "switch on MESSAGE CONTENT INTENT").await;
    replica
        .says("discord/other", "as many sessions as Discord allows")
        .await;
    assert_eq!(api.begun(OTHER), []);
    for (_, part) in replica.health.readiness().parts {
        assert!(!part.detail.contains("secret"), "{}", part.detail);
    }
    assert!(replica.health.readiness().ready);

    api.set(OTHER, DiscordFaults::default());
    replica.says("discord/other", "reading as nexus78").await;
    assert_eq!(api.begun(MAIN).len(), 1, "it is not tried again at once");
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_press_is_answered_and_what_the_bot_did_is_no_event() {
    let (world, api, replica) = start("allow: [5], groups: {'20': {}}").await;
    let id = |number: i64| snowflake(number, START);
    let own = |number: i64| {
        let mut own = message(&id(number), "1000", "mine");
        own["author"] = json!({"id": bot_id(MAIN), "username": "nexus", "bot": true});
        own
    };
    // Its own message comes back: the same, edited, and under another id.
    api.write(MAIN, &own(1));
    let mut edited = own(1);
    edited["edited_timestamp"] = json!(START.plus(5).to_rfc3339());
    api.dispatch(MAIN, "MESSAGE_UPDATE", &edited);
    api.write(MAIN, &own(2));

    let press = json!({"id": id(3), "type": 3, "token": "press-token", "channel_id": "1000", "guild_id": GUILD,
        "member": {"user": {"id": "5", "username": "ann"}}, "data": {"custom_id": "approve abc"}, "message": own(1)});
    api.dispatch(MAIN, "INTERACTION_CREATE", &press);
    eventually("the press is answered", async || !api.pressed(MAIN).is_empty()).await;
    let reaction = json!({"user_id": "5", "channel_id": "1000", "message_id": id(1), "guild_id": GUILD,
        "emoji": {"id": null, "name": "👍"}});
    api.dispatch(MAIN, "MESSAGE_REACTION_ADD", &reaction);
    let mut reply = message(&id(4), "1000", "yes");
    reply["referenced_message"] = own(1);
    reply["message_reference"] = json!({"type": 0, "message_id": id(1), "channel_id": "1000", "guild_id": GUILD});
    reply["type"] = json!(19);
    api.write(MAIN, &reply);
    let mut role = message(&id(5), "1000", "<@&500> hello");
    role["mention_roles"] = json!(["500"]);
    api.write(MAIN, &role);
    api.write(MAIN, &message(&id(6), "1000", "not for the bot"));
    let deletion = json!({"id": id(6), "channel_id": "1000", "guild_id": GUILD});
    api.dispatch(MAIN, "MESSAGE_DELETE", &deletion);
    api.dispatch(MAIN, "MESSAGE_DELETE", &deletion);

    let found = world.stored(6).await;
    let target = format!("discord:main/1000/{}", id(1));
    let of = |kind: &str| {
        let found = found
            .iter()
            .find(|event| event.content_types.iter().any(|found| found == kind));
        found.expect("an event").clone()
    };
    let press = of("press");
    assert_eq!(
        (press.target.as_deref(), press.content.as_str()),
        (Some(target.as_str()), "approve abc")
    );
    assert_eq!((press.direction, press.tags.len()), (EventDirection::Received, 0));
    let raw = press.metadata["raw"].to_string();
    assert!(!raw.contains("press-token") && !raw.contains("mine"), "{raw}");
    assert_eq!(of("reaction").target.as_deref(), Some(target.as_str()));

    let by = |content: &str| found.iter().find(|event| event.content == content).expect("an event");
    assert_eq!(by("yes").reply_to.as_deref(), Some(target.as_str()));
    assert_eq!(by("yes").mention.map(|mention| mention.how), Some(MentionForm::Reply));
    assert_eq!(
        by("<@&500> hello").mention.map(|mention| mention.how),
        Some(MentionForm::Native)
    );
    assert_eq!(by("not for the bot").direction, EventDirection::Observed);
    assert_eq!(
        PlatformIds::from_event(by("yes")).expect("ids").ids,
        [format!("1000/{}", id(4))]
    );
    assert_eq!(
        found
            .iter()
            .filter(|event| event.direction == EventDirection::Deleted)
            .count(),
        1
    );
    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_have_one_socket_and_the_other_follows() {
    let (world, api, first) = start(OPEN).await;
    let text = channels(&world, &api, OPEN);
    let second = world.replica("adapter-svc-1", &text).await;
    second.says(PART, "another replica reads it").await;
    api.say(MAIN, 1, START);
    confirmed(&api, 1).await;

    first.stop().await;
    second.says(PART, "reading as nexus77").await;
    api.say(MAIN, 2, START);
    confirmed(&api, 2).await;
    assert_eq!(api.most_open(MAIN), 1);
    let begun: Vec<&str> = api.begun(MAIN).iter().map(|(_, how)| *how).collect();
    assert_eq!(begun, ["identify", "resume"], "the session goes on elsewhere");
    world.stored(2).await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_that_nobody_can_read_is_a_dead_letter_live_and_from_a_history() {
    let (world, api, replica) = start(OPEN).await;
    let strange = |number: i64| {
        let mut strange = message(&snowflake(number, START), "1000", "strange");
        strange["timestamp"] = json!("soon");
        strange["referenced_message"] =
            json!({"id": "4", "author": {"id": bot_id(MAIN)}, "content": "approve K7Q2-M9PX"});
        strange
    };
    api.write(MAIN, &strange(1));
    api.write(MAIN, &message(&snowflake(2, START), "1000", "fine"));
    world.stored(1).await;
    replica.stop().await;

    // While the session ends.
    api.forget_sessions(MAIN);
    api.write(MAIN, &strange(3));
    api.write(MAIN, &message(&snowflake(4, START), "1000", "fine too"));
    let replica = world.replica("adapter-svc-0", &channels(&world, &api, OPEN)).await;
    eventually("both are stored", async || events(&world).await.0.len() == 2).await;
    replica.stop().await;

    let stored = world.bus.read_history("DLQ", "nexus.dlq.>", 1, 10).await.expect("read");
    let letters: Vec<DeadLetter> = stored.iter().map(|one| one.decode().expect("a letter")).collect();
    // The history has the first one too.
    assert!(letters.len() >= 2, "{letters:#?}");
    let mut kept = String::new();
    for letter in &letters {
        assert_eq!(letter.reason, "malformed");
        assert!(
            letter.detail.starts_with("discord/main: malformed MESSAGE_CREATE"),
            "{letter:?}"
        );
        kept.push_str(&String::from_utf8(letter.payload_bytes().expect("bytes")).expect("text"));
    }
    assert!(
        kept.contains(&snowflake(1, START)) && kept.contains(&snowflake(3, START)),
        "{kept}"
    );
    assert!(kept.contains("strange") && !kept.contains("K7Q2"), "{kept}");
}

#[tokio::test(flavor = "multi_thread")]
async fn content_that_is_kept_back_is_no_empty_message() {
    let (world, api, replica) = start(OPEN).await;
    api.write(MAIN, &message(&snowflake(1, START), "1000", ""));
    let found = world.stored(1).await;
    assert_eq!(found[0].metadata["intent_missing"], Value::from("MESSAGE_CONTENT"));
    assert_eq!(found[0].direction, EventDirection::Observed);
    replica.says(PART, "messages come without their content").await;
    replica.stop().await;
}
