//! Scripts that ask the read model: by SQL, as scripts of the older spelling do, and by `search()`.

use serde_json::{Value, json};
use shared::model::event::Event;
use shared::model::permission::PermissionLevel;
use shared::projection::api::{SearchReply, SearchRequest};
use shared::testing::eventually;
use shared::wire::headers::Headers;

use crate::world::{World, event};

/// As written for seed 003 §8: opens `dbPath` itself, joins its way from the event to the person.
const FAMILY: &str = r#"/**
 * @name Family helper
 */
import Database from 'better-sqlite3';

export default async function (ctx: HookContext): Promise<HookResult> {
  const { event, dbPath, search } = ctx;
  if (event.source_adapter !== 'webchat' || event.metadata.is_group) return { fire: false };
  const db = new Database(dbPath, { readonly: true, fileMustExist: true });
  try {
    const person = db.prepare(`
      SELECT p.canonical_name, p.relationship_type, p.is_me
      FROM event_participants ep
      JOIN person_contact_links pcl ON ep.contact_id = pcl.contact_id
      JOIN persons p ON pcl.person_id = p.id
      WHERE ep.event_id = ? AND ep.role = 'sender'
    `).get(event.id);
    if (!person || person.relationship_type !== 'family') return { fire: false };
    const earlier = db.prepare(`
      SELECT e.content FROM events e JOIN event_participants ep ON ep.event_id = e.id
      WHERE ep.contact_id = @contact AND e.timestamp < @before ORDER BY e.timestamp DESC LIMIT 5
    `).pluck().all({ contact: `${event.channel}:${event.sender_id}`, before: event.timestamp });
    const like = await search('bank code', { channels: ['webchat'], until: event.timestamp, limit: 3 });
    return {
      fire: true,
      routing: { mode: 'persona', agent_id: 'helper', queue_mode: 'followup' },
      context: { prompt: 'Help them.', extracted: { person: person.canonical_name, earlier, like } },
      disable_hook: event.content === 'that was all',
    };
  } finally {
    db.close();
  }
}
"#;

/// Whether the read model has taken in the event that is being evaluated.
const ITSELF: &str = "import Database from 'better-sqlite3';
export default ({ event, dbPath }) => {
  const db = new Database(dbPath, { readonly: true });
  const found = db.prepare('SELECT content FROM events WHERE id = ?').pluck().get(event.id);
  const words = db.prepare('SELECT rowid FROM events_fts WHERE events_fts MATCH ?').pluck().get('n' + event.content.slice(1));
  db.close();
  return { fire: found !== event.content || words === undefined, context: { extracted: { found: found ?? null } } };
};
";

const IDENTITIES: &str = "persons:\n  - {id: mom, relationship: family, addresses: {webchat: [MOM]}}\n";

async fn extracted(world: &World, event: &Event) -> Option<Value> {
    world.record(event).await;
    let dispatches = world.dispatches().await;
    let dispatch = dispatches.into_iter().find(|dispatch| dispatch.event_id == event.id)?;
    assert_eq!(dispatch.target.persona, "helper");
    dispatch.context.extracted.map(Value::Object)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_of_the_older_spelling_finds_who_writes_and_what_was_said() {
    let mut world = World::new(&[("family.ts", FAMILY)]).await;
    world.write_identities(&IDENTITIES.replace("MOM", "mom-1"));
    world.start("a");
    world.wait_for_members(1).await;
    let code = event("mom-1", 1, "the code from my bank is 4711");
    let first = world.publish(&code).await;

    assert!(first > 0);

    let seen = extracted(&world, &code).await.expect("a fire");
    assert_eq!(seen, json!({"person": "mom", "earlier": [], "like": []}));

    let again = event("mom-1", 2, "which number was it again?");
    world.publish(&again).await;
    let seen = extracted(&world, &again).await.expect("a fire");

    assert_eq!(seen["earlier"], json!(["the code from my bank is 4711"]));
    assert_eq!(seen["like"][0]["eventId"], json!(code.id.as_str()), "{seen}");

    let score = seen["like"][0]["score"].as_f64().expect("a score");
    assert!(score > 0.0 && score <= 1.0, "{seen}");

    let stranger = event("aunt", 3, "hello");
    world.publish(&stranger).await;
    assert_eq!(extracted(&world, &stranger).await, None);

    world.write_identities(&IDENTITIES.replace("MOM", "mom-1, aunt"));
    let mut number = 10;
    eventually("the links follow identities.yaml", async || {
        number += 1;
        let event = event("aunt", number, "hello again");
        world.publish(&event).await;
        extracted(&world, &event).await.is_some()
    })
    .await;

    let newest = world
        .dispatches()
        .await
        .into_iter()
        .rfind(|dispatch| dispatch.message.from == "aunt");
    let level = newest.expect("hers").permissions.level;
    assert_eq!(level, PermissionLevel::Restricted, "permissions follow it too");

    let question = SearchRequest {
        query: "bank".to_owned(),
        ..SearchRequest::default()
    };
    let asked = world.bus.request(
        "nexus.svc.events.search",
        Headers::new(),
        &question,
        crate::world::DEADLINE,
    );

    let reply: SearchReply = asked.await.expect("an answer");
    assert_eq!(reply.hits[0].event_id, code.id);

    let last = event("mom-1", 99, "that was all");
    world.publish(&last).await;
    assert!(extracted(&world, &last).await.is_some());

    let mut number = 99;
    eventually("it has disabled itself", async || {
        number += 1;
        let after = event("mom-1", number, "one more");
        world.publish(&after).await;
        extracted(&world, &after).await.is_none()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_in_the_read_model_before_a_script_can_look_for_it() {
    let world = World::with_one_replica(&[("itself.ts", ITSELF)]).await;
    let events: Vec<Event> = (1..=200)
        .map(|n| event(&format!("p{}", n % 7), n, &format!("n{n}")))
        .collect();
    for event in &events {
        world.publish(event).await;
    }

    world.wait_for_records(200).await;
    let records = world.invocations().await;
    let lagging: Vec<_> = records.iter().filter(|record| !record.hooks.is_empty()).collect();

    assert!(lagging.is_empty(), "{lagging:?}");
}

/// Begins a query upon each event, never ends it, and takes so long that somebody reads at every moment.
const READS: &str = "import Database from 'better-sqlite3';
export default async ({ event, dbPath }) => {
  const db = new Database(dbPath, { readonly: true });
  db.prepare('SELECT id FROM events').iterate().next();
  if (event.content.startsWith('x')) await new Promise((done) => setTimeout(done, 300 + 30 * (event.timestamp % 20)));
  return { fire: event.content.startsWith('last') };
};
";

#[tokio::test(flavor = "multi_thread")]
async fn readers_at_every_moment_do_not_fill_the_disk() {
    const LARGE: usize = 150_000;
    const BURST: u32 = 20;

    let mut world = World::new(&[("reads.ts", READS)]).await;
    world.start("a");
    world.wait_for_members(1).await;
    let log = world.read_model("a").with_extension("sqlite-wal");
    let size = || std::fs::metadata(&log).map_or(0, |file| file.len());
    let text = "x".repeat(LARGE);
    let mut largest = 0;

    let mut number = 0;

    // As much as makes the log grow beyond the bound, then until it is small again; those of one burst are evaluated while
    // the next one is written.
    eventually("the log has been large and is small again", async || {
        let before = number;

        for _ in 0..BURST {
            world.publish(&event(&format!("v{}", number % 60), number, &text)).await;
            number += 1;
        }

        world.wait_for_records(u64::from(before)).await;
        largest = largest.max(size());
        largest > 96 << 20 && size() < 32 << 20
    })
    .await;

    assert!(largest < 192 << 20, "{largest} bytes");

    let last = event("v1", number, "last");
    world.publish(&last).await;
    let record = world.record(&last).await;

    assert!(record.hooks.iter().any(|hook| hook.hook_id == "reads"), "{record:?}");
    assert!(world.dead_letters().await.is_empty());
}
