//! Hooks that are switched, deleted, paused and let run again; what came of it stands in the registry, the breakers, the
//! invocations and the dispatches.

use serde_json::json;
use shared::breaker::{Breaker, key_of};
use shared::model::dispatch::Dispatch;
use shared::model::hook::HookRecord;
use shared::model::invocation::{EventInvocations, HookOutcome};
use shared::wire::subject;
use shared::wire::topology::{buckets, streams};
use tests::eventually::eventually;
use tests::record::read_all;

use super::Operator;
use crate::story::PATIENCE;

/// Fires upon its channel, unless it is told to throw.
pub(super) const MOODY: &str = r#"/** @name moody
 *  @description Has its moods.
 *  @match channel=moody
 */
export default (ctx) => {
  if (ctx.event.content === "throw") throw new Error("in a bad mood");
  return { fire: true, routing: { session: "moody" },
    deliveryContext: { channel: "nats", accountId: "e2e", peerId: "ann" } };
};
"#;
/// What an operator pushes: greets everybody on its channel.
const GREET: &str = r#"/** @name Greeter
 *  @description Says hello.
 *  @match channel=greet
 */
export default () => ({ fire: true, routing: { session: "greet" },
  deliveryContext: { channel: "nats", accountId: "e2e", peerId: "ann" } });
"#;

impl Operator {
    /// What hook `hook` does with a new event that says `content` on the channel of its name; none where it is not asked.
    async fn does(&self, hook: &str, content: &str) -> (String, Option<HookOutcome>) {
        let id = self.sends(hook, content).await;
        let record = eventually("it is evaluated", PATIENCE, async || {
            let all: Vec<(u64, EventInvocations)> = read_all(&self.world.bus, streams::INVOCATIONS).await;
            let found = all.into_iter().find(|(_, record)| record.event_id.as_str() == id);
            found.ok_or_else(|| format!("{id}\n{}", self.world.logs()))
        })
        .await;
        let mut hooks = record.1.hooks.into_iter();
        (id, hooks.find(|done| done.hook_id == hook).map(|done| done.outcome))
    }

    /// Waits until hook `hook` does with an event that says `content` what `is_so`; answers that event.
    async fn comes_to(&self, hook: &str, content: &str, is_so: impl Fn(Option<&HookOutcome>) -> bool) -> String {
        eventually("the hook does so", PATIENCE, async || {
            let (id, outcome) = self.does(hook, content).await;
            if is_so(outcome.as_ref()) {
                Ok(id)
            } else {
                Err(format!("{outcome:?}"))
            }
        })
        .await
    }

    /// Waits until hook `hook` fires, and checks that its dispatch is stored.
    async fn fires(&self, hook: &str) {
        let id = self
            .comes_to(hook, "well", |done| matches!(done, Some(HookOutcome::Fired { .. })))
            .await;
        let dispatches: Vec<(u64, Dispatch)> = read_all(&self.world.bus, streams::DISPATCHES).await;
        let mut own = dispatches.iter().filter(|(_, one)| one.event_id.as_str() == id);
        assert!(own.next().is_some_and(|(_, one)| one.hook_id == hook) && own.next().is_none());
    }

    /// The registry's entry of hook `id`.
    async fn registered(&self, id: &str) -> HookRecord {
        let kv = self.world.bus.kv::<HookRecord>(buckets::HOOKS);
        let entry = kv.get(&subject::token(id)).await.expect("readable");
        entry.expect("it is registered").value
    }
}

/// A hook is pushed, looked at, switched off and on again.
pub(super) async fn switched(operator: &Operator) {
    let file = operator.world.path().join("greet.ts");
    std::fs::write(&file, GREET).expect("a file");
    operator.world.words(&["hook", "push", "greet.ts"]).await;
    operator.fires("greet").await;

    let shown = eventually("its invocations are shown", PATIENCE, async || {
        let shown = operator.world.json(&["hook", "show", "greet"]).await;
        let fired = shown["invocations"][0]["outcome"] == "fired" && shown["hook"]["trigger_count"] != 0;
        if fired { Ok(shown) } else { Err(shown.to_string()) }
    })
    .await;

    assert_eq!(
        (&shown["hook"]["status"], &shown["hook"]["name"], &shown["source"]),
        (&json!("active"), &json!("Greeter"), &json!(GREET)),
        "{shown}"
    );

    let words = operator.world.words(&["hook", "show", "greet"]).await;
    let event = shown["invocations"][0]["event_id"].as_str().expect("an event");
    for part in [
        "hook         greet (Greeter)\n",
        "status       active\n",
        "description  Says hello.\n",
        "match        channel=greet\n",
        "origin       push by operator\n",
        event,
        GREET.trim(),
    ] {
        assert!(words.contains(part), "{part}: {words}");
    }

    for hook in ["greet", "moody"] {
        let why = ["hook", "disable", hook, "--reason", "not today"];
        assert_eq!(
            operator.world.words(&why).await,
            format!("{hook} is disabled: not today\n")
        );

        let record = operator.registered(hook).await;
        assert_eq!(
            (record.enabled, record.disabled_reason.as_deref()),
            (false, Some("not today"))
        );

        let words = operator.world.words(&["hook", "show", hook]).await;
        assert!(
            words.contains("status       disabled\nreason       not today\n"),
            "{words}"
        );

        operator.comes_to(hook, "well", |done| done.is_none()).await;
        assert_eq!(
            operator.world.words(&["hook", "enable", hook]).await,
            format!("{hook} is active\n")
        );

        let record = operator.registered(hook).await;
        assert_eq!((record.enabled, record.disabled_reason), (true, None));

        operator.fires(hook).await;
    }

    let again = operator.world.json(&["hook", "enable", "greet"]).await;
    assert_eq!((&again["id"], &again["status"]), (&json!("greet"), &json!("active")));

    for action in ["show", "enable", "rm"] {
        operator
            .refused(3, &["hook", action, "nobody"], "hook nobody does not exist")
            .await;
    }

    let (_, err) = operator.fails(2, &["hook", "enable"]).await;
    assert!(err.contains("<ID>"), "{err}");
}

/// A pushed hook is deleted, keeps its history, and can be had back; a directory's stays.
pub(super) async fn removed(operator: &Operator) {
    let file = ["hook", "rm", "moody"];
    operator
        .refused(
            5,
            &file,
            "is a file in directory hooks: delete the file, or run `nexus hook disable moody`",
        )
        .await;
    assert!(operator.registered("moody").await.enabled);

    assert_eq!(
        operator.world.words(&["hook", "rm", "greet"]).await,
        "greet is deleted; its history is kept\n"
    );
    operator
        .refused(3, &["hook", "rm", "greet"], "hook greet does not exist")
        .await;

    let is_listed = async || {
        let listed = operator.world.json(&["hook", "list"]).await;
        listed
            .as_array()
            .expect("a list")
            .iter()
            .any(|hook| hook["id"] == "greet")
    };

    assert!(!is_listed().await);

    operator.comes_to("greet", "well", |done| done.is_none()).await;
    let off = operator.world.json(&["hook", "disable", "greet"]).await;
    assert_eq!(off["disabled_reason"], "deleted", "it stays so: {off}");
    assert!(!is_listed().await);

    let shown = operator.world.json(&["hook", "show", "greet"]).await;
    assert_eq!(
        (&shown["hook"]["disabled_reason"], &shown["source"]),
        (&json!("deleted"), &json!(GREET)),
        "{shown}"
    );
    assert!(operator.world.words(&["hook", "logs", "greet"]).await.contains("fired"));

    operator.world.words(&["hook", "enable", "greet"]).await;
    assert!(is_listed().await);

    operator.fires("greet").await;
    let gone = operator.world.json(&["hook", "rm", "greet"]).await;
    assert_eq!(
        (&gone["status"], &gone["disabled_reason"]),
        (&json!("disabled"), &json!("deleted"))
    );
    assert!(!operator.registered("greet").await.enabled);
}

/// A hook that keeps failing is paused, and runs again once its breaker is reset.
pub(super) async fn paused(operator: &Operator) {
    let breakers = operator.world.bus.kv::<Breaker>(buckets::BREAKERS);
    let breaker = async || breakers.get(&key_of("moody")).await.expect("readable");
    operator
        .refused(3, &["breaker", "reset", "moody"], "moody has no recorded errors")
        .await;
    let skips =
        |done: Option<&HookOutcome>| matches!(done, Some(HookOutcome::Skipped { reason }) if reason == "breaker_open");
    operator.comes_to("moody", "throw", skips).await;

    let failures = breaker().await.expect("it is stored").value.failures;
    assert_eq!(failures, 5);

    let is = async |status: &str| {
        eventually("its status says so", PATIENCE, async || {
            let shown = operator.world.json(&["hook", "show", "moody"]).await;
            if shown["hook"]["status"] == status {
                Ok(())
            } else {
                Err(shown.to_string())
            }
        })
        .await;
    };

    is("paused").await;
    let listed = operator.world.json(&["breaker", "list"]).await;
    assert_eq!(
        (&listed[0]["hook_id"], &listed[0]["circuit"]["state"]),
        (&json!("moody"), &json!("open")),
        "{listed}"
    );

    let words = operator.world.words(&["breaker", "reset", "moody"]).await;
    assert_eq!(words, "moody runs again; it had failed 5 times in a row\n");
    assert!(breaker().await.expect("it is stored").value.is_at_rest());

    operator.fires("moody").await;
    is("active").await;
    assert_eq!(operator.world.json(&["breaker", "list"]).await, json!([]));

    operator
        .refused(5, &["breaker", "reset", "moody"], "moody is not paused")
        .await;

    operator.comes_to("moody", "throw", skips).await;
    let was = operator.world.json(&["breaker", "reset", "moody"]).await;
    assert_eq!(
        (&was["hook_id"], &was["failures"], &was["circuit"]["state"]),
        (&json!("moody"), &json!(5), &json!("open"))
    );

    operator.fires("moody").await;
    operator
        .refused(3, &["breaker", "reset", "nobody"], "nobody has no recorded errors")
        .await;
}
