//! What every door to which a platform posts must hold to, whatever the platform (`docs/contribute/source.md`): the laws of
//! [`crate::contract`], as far as somebody else decides when something comes.

use std::collections::BTreeMap;
use std::sync::Arc;

use shared::model::event::{BACKFILLED, Event};
use shared::model::time::UnixMillis;
use shared::testing::{eventually, eventually_some};

use crate::bot_api::BotApi;
use crate::door_forms::{SlackPosts, TelegramPosts, WEBHOOK_SECRET, WebhookPosts};
use crate::posts::{PostForm, Poster};
use crate::web_api::WebApi;
use crate::world::{Replica, START, World};
use crate::{slack, telegram_webhook};

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;

/// A platform that posts to `main`, as the contract uses it.
struct Door {
    form: Arc<dyn PostForm>,
    /// The content of `channels.yaml`.
    channels: String,
    /// Sections below `[adapter]`.
    sections: String,
    account: Option<PostedAccount>,
}

/// What is more of an account than of a webhook that anything may post to.
struct PostedAccount {
    channel: &'static str,
    /// What `/readyz` says once posts are taken.
    taking: &'static str,
    /// An outage after which the platform posts everything again, and a longer one, in milliseconds.
    outages: [i64; 2],
}

impl Door {
    /// Starts the replica `name`, which accepts events into `destination`.
    async fn start(&self, world: &World, name: &str, destination: &str) -> Replica {
        let toml = format!("accept = \"{destination}\"\n{}", self.sections);
        world.replica_with(name, &self.channels, &toml).await
    }

    /// As [`Self::start`], and waits until it holds the account.
    async fn replica(&self, world: &World, name: &str, destination: &str) -> Replica {
        let replica = self.start(world, name, destination).await;
        if let Some(account) = &self.account {
            replica.says(&format!("{}/main", account.channel), account.taking).await;
        }
        replica
    }

    /// The platform, which posts to all replicas of `world` in turn. What is taken must be in the stream if `is_strict`.
    fn poster(&self, world: &World, is_strict: bool) -> Poster {
        let (doors, stream) = (world.doors.clone(), is_strict.then(|| world.bus.clone()));
        Poster::start(Arc::clone(&self.form), world.clock.clone(), stream, move || {
            doors.bases()
        })
    }
}

/// Waits until `poster` has no post left, and `count` messages were taken.
async fn done(poster: &Poster, count: usize) {
    eventually("everything is taken", async || poster.is_done(count)).await;
    assert_eq!(poster.early(), Vec::<String>::new(), "taken before it was stored");
}

/// Ids and contents of `events`.
fn told(events: &[Event]) -> BTreeMap<String, String> {
    let told = events.iter().map(|event| (event.id.to_string(), event.content.clone()));
    told.collect()
}

/// Lets `poster` have the messages `from` to `to`, and adds what their events are to `expected`.
fn say(poster: &Poster, expected: &mut BTreeMap<String, String>, (from, to): (i64, i64)) {
    for number in from..=to {
        expected.insert(poster.say(number, START), format!("message {number}"));
    }
}

/// Runs the whole contract against the door that `make` opens, each law in a world of its own.
async fn check_door(make: impl AsyncFn(&World) -> Door) {
    for number in 0..5 {
        let world = World::start().await;
        let door = make(&world).await;
        match number {
            0 => repetitions_and_other_orders_are_one_event_each(&world, &door).await,
            1 => what_others_post_is_refused(&world, &door).await,
            2 => nothing_is_taken_before_it_is_durable(world, &door).await,
            3 => what_is_old_is_backfilled(&world, &door).await,
            _ => what_could_not_be_posted_is_posted_again_or_told(&world, &door).await,
        }
    }
}

async fn repetitions_and_other_orders_are_one_event_each(world: &World, door: &Door) {
    let mut expected = BTreeMap::new();
    let first = door.replica(world, "adapter-svc-0", "stream").await;
    let second = door.start(world, "adapter-svc-1", "stream").await;
    let poster = door.poster(world, true);
    poster.repeat();
    say(&poster, &mut expected, (1, 60));
    done(&poster, 60).await;

    // One of them stops while posts come, and both come back.
    say(&poster, &mut expected, (61, 90));
    first.stop().await;
    done(&poster, 90).await;
    second.stop().await;
    say(&poster, &mut expected, (91, 100));
    let first = door.replica(world, "adapter-svc-0", "stream").await;
    let second = door.start(world, "adapter-svc-1", "stream").await;
    done(&poster, 100).await;

    let events = world.stored(100).await;
    assert_eq!(told(&events), expected);
    assert!(events.iter().all(|event| event.tags.is_empty()), "{events:?}");
    first.stop().await;
    second.stop().await;
}

async fn what_others_post_is_refused(world: &World, door: &Door) {
    let replica = door.replica(world, "adapter-svc-0", "stream").await;
    let poster = door.poster(world, true);
    let statuses = poster.forge(&replica.base(), 1, START).await;
    assert!(
        !statuses.is_empty() && statuses.iter().all(|status| *status == Some(401)),
        "{statuses:?}"
    );

    // It hides no true one.
    let mut expected = BTreeMap::new();
    say(&poster, &mut expected, (1, 1));
    done(&poster, 1).await;
    assert_eq!(told(&world.stored(1).await), expected);
    replica.stop().await;
}

async fn nothing_is_taken_before_it_is_durable(mut world: World, door: &Door) {
    let mut expected = BTreeMap::new();
    let replica = door.replica(&world, "adapter-svc-0", "stream").await;
    let strict = door.poster(&world, true);
    say(&strict, &mut expected, (1, 1));
    done(&strict, 1).await;

    // The acks of JetStream do not come.
    let count = |poster: &Poster| poster.refused().values().sum::<usize>();
    let before = count(&strict);
    world.nats.kill9();
    say(&strict, &mut expected, (2, 10));
    eventually("a post is refused", async || count(&strict) > before).await;
    assert_eq!(strict.taken(), 1);
    let refused = strict.refused();
    // 0 = no answer before the platform hangs up.
    assert!(
        refused.keys().all(|status| *status == 0 || *status >= 500),
        "{refused:?}"
    );
    world.nats.restart().await;
    done(&strict, 10).await;
    replica.stop().await;

    // A replica with a disk takes posts all the same, and the stream has them later.
    let replica = door.replica(&world, "adapter-svc-1", "spool").await;
    let kept = door.poster(&world, false);
    world.nats.kill9();
    say(&kept, &mut expected, (11, 20));
    done(&kept, 10).await;
    world.nats.restart().await;
    assert_eq!(told(&world.stored(20).await), expected);
    replica.stop().await;
}

async fn what_is_old_is_backfilled(world: &World, door: &Door) {
    if door.account.is_none() {
        return;
    }
    let replica = door.replica(world, "adapter-svc-0", "stream").await;
    let poster = door.poster(world, true);
    let old = START.plus(-48 * HOUR_MS);
    (1..=300).for_each(|number| drop(poster.say(number, old)));
    let fresh = poster.say(301, START);
    done(&poster, 301).await;

    let events = world.stored(301).await;
    let fires = |event: &&Event| event.withheld_tags().all(|tag| tag != BACKFILLED);
    let firing: Vec<&str> = events.iter().filter(fires).map(|event| event.id.as_str()).collect();
    assert_eq!(firing, [fresh]);
    replica.stop().await;
}

async fn what_could_not_be_posted_is_posted_again_or_told(world: &World, door: &Door) {
    let Some(account) = &door.account else { return };
    let poster = door.poster(world, true);
    let mut at = START;
    let noted = async |at: UnixMillis| {
        eventually_some("it is noted up to when the account is complete", async || {
            let watermark = world.watermark(account.channel, "main").await;
            watermark.filter(|watermark| watermark.complete_until == at)
        })
        .await
    };
    let replica = door.replica(world, "adapter-svc-0", "stream").await;
    poster.say(1, at);
    done(&poster, 1).await;
    noted(at).await;
    replica.stop().await;

    for (outage, is_told) in account.outages.into_iter().zip([false, true]) {
        let number = if is_told { 3 } else { 2 };
        poster.say(number, at);
        if is_told {
            // The platform gives it up before a replica runs again.
            poster.forget();
        }
        at = at.plus(outage);
        world.clock.advance(outage.unsigned_abs());
        let replica = door.replica(world, "adapter-svc-0", "stream").await;
        noted(at).await;
        poster.say(number + 10, at);
        let taken = if is_told { 4 } else { 3 };
        done(&poster, taken).await;
        eventually("what was taken is stored", async || {
            of_main(world).await.len() == taken + usize::from(is_told)
        })
        .await;
        let events = of_main(world).await;
        let gaps = events.iter().filter(|event| event.id.adapter() == "gap").count();
        assert_eq!(gaps, usize::from(is_told), "{events:#?}");
        replica.stop().await;
    }
    // What was given up is in no event; the messages are, each once.
    assert_eq!(of_main(world).await.len(), 5);
}

/// The events of account `main`.
async fn of_main(world: &World) -> Vec<Event> {
    let mut events = world.events().await;
    events.retain(|event| event.account() == "main");
    events
}

#[tokio::test(flavor = "multi_thread")]
async fn the_door_of_telegram_holds_to_the_contract() {
    check_door(async |world: &World| {
        let api = BotApi::start(world.bus.clone(), world.clock.clone()).await;
        Door {
            form: Arc::new(TelegramPosts),
            channels: telegram_webhook::channels(world, &api, ", direct: open"),
            sections: String::new(),
            account: Some(PostedAccount {
                channel: "telegram",
                taking: "receiving by webhook as",
                outages: [23 * HOUR_MS, 25 * HOUR_MS],
            }),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_door_of_slack_holds_to_the_contract() {
    check_door(async |world: &World| {
        let api = WebApi::start().await;
        Door {
            form: Arc::new(SlackPosts),
            channels: slack::channels(world, &api, "direct: open"),
            sections: String::new(),
            account: Some(PostedAccount {
                channel: "slack",
                taking: "receiving as @nexus in Acme",
                outages: [4 * MINUTE_MS, 6 * MINUTE_MS],
            }),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_door_of_a_webhook_holds_to_the_contract() {
    check_door(async |world: &World| Door {
        form: Arc::new(WebhookPosts),
        channels: String::new(),
        sections: WebhookPosts::section("", &world.secret(WEBHOOK_SECRET)),
        account: None,
    })
    .await;
}
