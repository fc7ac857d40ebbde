//! What people do with the messages that Nexus has sent: which event it is about, as a hook finds it in the read model.

use serde_json::{Value, json};
use shared::model::dispatch::Dispatch;
use shared::model::event::{Event, EventDirection};
use shared::wire::topology::streams;
use tests::eventually::eventually;
use tests::record::read_all;
use tests::world::World;

use crate::story::PATIENCE;

/// A hook that says to which event of ours an answer, a reaction or a press belongs.
const RESOLVE: &str = r#"
/**
 * @name Resolve
 * @match channel=CHANNEL
 */
import Database from "better-sqlite3";

export default async function (ctx: HookContext): Promise<HookResult> {
  const about = ctx.event.target ?? ctx.event.reply_to ?? "";
  if (ctx.event.direction === "sent" || !about.startsWith("CHANNEL:main/")) return { fire: false };
  const db = new Database(ctx.dbPath, { readonly: true });
  const row = db
    .prepare("select event_id from platform_ids where channel = ? and account = ? and chat = ? and platform_id = ?")
    .get("CHANNEL", "main", ctx.event.peer.id, about.slice("CHANNEL:main/".length));
  db.close();
  return {
    fire: true,
    routing: { session: "resolved" },
    deliveryContext: { channel: "cli", peerId: "resolved" },
    context: { extracted: { about: row?.event_id ?? "nothing" } },
  };
}
"#;

/// The hook `resolve.ts` for `channel`.
pub(crate) fn resolve_hook(channel: &str) -> String {
    RESOLVE.replace("CHANNEL", channel)
}

/// Waits until the event of the first message that was sent on `channel` is stored; its id, and the platform's.
pub(crate) async fn sent_event(world: &World, channel: &str) -> (String, String) {
    eventually("the sent event is stored", PATIENCE, async || {
        let all: Vec<(u64, Event)> = read_all(&world.bus, streams::EVENTS).await;
        let mut events = all.iter().map(|(_, event)| event);
        let sent = events.find(|event| event.id.adapter() == "out" && event.channel == channel);
        let ids = sent.and_then(|event| {
            let platform = event.metadata.get("platform")?["ids"][0].as_str()?;
            Some((event.id.to_string(), platform.to_owned()))
        });
        ids.ok_or_else(|| format!("{all:?}\n{}", world.logs()))
    })
    .await
}

/// Waits until the hook has said `count` times that something is about the event `sent`, and never about another one.
pub(crate) async fn about_event(world: &World, sent: &str, count: usize) {
    let expected = vec![json!(sent); count];
    eventually("everything is about the sent event", PATIENCE, async || {
        let dispatches: Vec<(u64, Dispatch)> = read_all(&world.bus, streams::DISPATCHES).await;
        let about: Vec<Value> = dispatches
            .iter()
            .filter(|(_, dispatch)| dispatch.hook_id.contains("resolve"))
            .filter_map(|(_, dispatch)| dispatch.context.extracted.as_ref()?.get("about").cloned())
            .collect();
        (about == expected)
            .then_some(())
            .ok_or_else(|| format!("{about:?}, expected {sent} {count} times\n{}", world.logs()))
    })
    .await;
}

/// Waits until an edit of a message that Nexus sent on `channel` is stored, and checks that it is another version of the event of
/// that message, under which its platform's id is known.
pub(crate) async fn edit_is_of_its_message(world: &World, channel: &str) {
    let [sent, edit] = eventually("the edit is stored", PATIENCE, async || {
        let all: Vec<(u64, Event)> = read_all(&world.bus, streams::EVENTS).await;
        let mut own = all
            .iter()
            .map(|(_, event)| event)
            .filter(|event| event.id.adapter() == "out" && event.channel == channel);
        let edit = own.clone().find(|event| event.direction == EventDirection::Updated);
        let sent =
            edit.and_then(|edit| own.find(|event| event.id == edit.id && event.direction == EventDirection::Sent));
        let found = edit.zip(sent).map(|(edit, sent)| [sent.clone(), edit.clone()]);
        found.ok_or_else(|| format!("{all:?}\n{}", world.logs()))
    })
    .await;
    assert!(edit.edited_at.is_some() && edit.content != sent.content, "{edit:?}");
    assert_eq!(edit.metadata["platform"], sent.metadata["platform"], "{edit:?}");
    assert!(edit.metadata["platform"]["ids"][0].is_string(), "{edit:?}");
}
