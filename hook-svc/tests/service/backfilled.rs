//! The first sync of an account, and a backfill: what is older than the age gate is stored and found, and answered by
//! nobody but hooks that ask for it.

use std::collections::BTreeMap;

use shared::model::event::{BACKFILLED, Event, EventDirection, EventId};
use shared::model::origin::EventOrigin;
use shared::model::time::UnixMillis;
use shared::projection::api::{SearchReply, SearchRequest};
use shared::testing::eventually;
use shared::wire::headers::Headers;
use shared::wire::topology::streams::EVENTS;

use crate::world::{DEADLINE, World};

/// Messages that an account's conversations kept.
const MESSAGES: u32 = 1_000;
/// Conversations of the account.
const CONVERSATIONS: u32 = 20;
/// One of so many messages has a bill.
const BILL_EVERY: u32 = 100;

const FIRES: &str = "export default () => ({ fire: true });\n";
/// Names a direction, but not the tag.
const FIRES_ON_RECEIVED: &str = "/** @match direction=received */\nexport default () => ({ fire: true });\n";
const READS_OLD: &str = "/** @match tag=backfilled */
export default ({ event }) => ({ fire: event.content.includes('bill'), routing: { session: 'archive' } });\n";

fn message(number: u32) -> Event {
    let conversation = format!("C{}", number % CONVERSATIONS);
    let id = EventId::parse(format!("discord:main/{conversation}/{number}")).expect("an id");
    let mut event = Event::new(
        id,
        "discord",
        &conversation,
        UnixMillis(1_700_000_000_000 + i64::from(number)),
    );
    event.account_id = Some("main".to_owned());
    event.origin = EventOrigin::account("discord", "main");
    event.from.id = format!("U{}", number % 7);
    event.content = match number % BILL_EVERY {
        0 => format!("the bill of month {number}"),
        _ => format!("good morning {number}"),
    };
    event
}

/// A message that its source read later than the age gate allows.
fn old_message(number: u32) -> Event {
    let mut event = message(number);
    event.add_tag(BACKFILLED);
    event
}

async fn find(world: &World, query: &str) -> Option<EventId> {
    let question = SearchRequest {
        query: query.to_owned(),
        ..SearchRequest::default()
    };
    let asked = world
        .bus
        .request("nexus.svc.events.search", Headers::new(), &question, DEADLINE);
    let reply: SearchReply = asked.await.ok()?;
    reply.hits.into_iter().next().map(|hit| hit.event_id)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_old_messages_are_stored_and_found_and_fire_only_hooks_that_ask_for_them() {
    let mut world = World::new(&[
        ("fires.ts", FIRES),
        ("received.ts", FIRES_ON_RECEIVED),
        ("reads-old.ts", READS_OLD),
    ])
    .await;
    let bindings = world.write_file(
        "bindings.yaml",
        "bindings: [{persona: default}, {persona: work, match: {channel: discord}}]",
    );
    world.sections = format!("bindings = \"{}\"\n", bindings.display());
    world.start("a");
    world.wait_for_members(1).await;

    let messages: Vec<Event> = (1..=MESSAGES).map(old_message).collect();
    for page in messages.chunks(100) {
        world.publish_all(page).await;
    }
    // Of one of them, whoever wrote it has thought better since.
    let edited = Event {
        direction: EventDirection::Updated,
        edited_at: Some(UnixMillis(1_700_000_100_000)),
        content: "good evening".to_owned(),
        ..old_message(1)
    };
    world.publish(&edited).await;
    world.wait_for_records(u64::from(MESSAGES) + 1).await;
    world.wait_until_acked().await;

    let stored = world.bus.stream_state(EVENTS).await.expect("its state").messages;
    assert_eq!(stored, u64::from(MESSAGES) + 1);
    let bills = MESSAGES / BILL_EVERY;
    let mut fired: BTreeMap<String, u32> = BTreeMap::new();
    for dispatch in world.dispatches().await {
        assert_eq!(dispatch.target.session, "archive");
        *fired.entry(dispatch.hook_id).or_default() += 1;
    }
    assert_eq!(fired, BTreeMap::from([("reads-old".to_owned(), bills)]));
    assert_eq!(world.orders().await, []);

    eventually("the bill is found", async || {
        find(&world, "bill month 700").await == Some(message(700).id)
    })
    .await;

    // A message that has just come is answered as ever.
    let recent = message(MESSAGES + 1);
    world.publish(&recent).await;
    world.wait_until_acked().await;
    let of_recent = world.dispatches().await.into_iter();
    let mut hooks: Vec<String> = of_recent
        .filter(|dispatch| dispatch.event_id == recent.id)
        .map(|dispatch| dispatch.hook_id)
        .collect();
    hooks.sort();
    assert_eq!(hooks, ["bindings.yaml", "fires", "received"]);
}
