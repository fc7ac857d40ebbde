//! The hooks that ship in `deploy/hooks`, fed with events.

use hook_svc::registry::metadata;
use hook_svc::runner::HookSource;
use serde_json::{Value, json};
use shared::model::hook::HookMetadata;
use shared::model::time::UnixMillis;

use crate::pool::{Answer, TestPool, dm};

fn example(id: &str) -> (HookMetadata, HookSource) {
    let path = format!("{}/../deploy/hooks/{id}.ts", env!("CARGO_MANIFEST_DIR"));
    let source = std::fs::read_to_string(&path).expect(&path);
    let metadata = metadata::parse(id, &source).expect("a hook");

    let hook = HookSource {
        id: id.to_owned(),
        name: metadata.name.clone(),
        content_hash: "1".to_owned(),
        timeout_ms: metadata.timeout_ms,
        created_at: UnixMillis(0),
        created_by: "operator".to_owned(),
        sees: hook_svc::runner::HookScope::Everything,
        net: Vec::new(),
        source,
    };

    (metadata, hook)
}

/// Where `source` says that answers go: channels and accounts of its delivery contexts.
fn deliveries(source: &str) -> Vec<(String, Option<String>)> {
    let contexts = source.split("deliveryContext:").skip(1);
    let contexts = contexts.map(|rest| rest.split('}').next().unwrap_or_default());

    let field = |context: &str, name: &str| {
        let (_, value) = context.split_once(&format!("{name}: \""))?;
        Some(value.split('"').next()?.to_owned())
    };

    contexts
        .map(|context| {
            let channel = field(context, "channel").unwrap_or_else(|| panic!("no channel in `{context}`"));
            (channel, field(context, "accountId"))
        })
        .collect()
}

#[test]
fn every_shipped_hook_waits_for_the_channels_it_answers_on() {
    let mut seen = 0;
    for folder in ["hooks", "examples"] {
        let folder = format!("{}/../deploy/{folder}", env!("CARGO_MANIFEST_DIR"));
        for entry in std::fs::read_dir(&folder).expect(&folder) {
            let path = entry.expect("read").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let Some(id) = name.strip_suffix(".ts").filter(|id| !id.ends_with(".d")) else {
                continue;
            };

            let source = std::fs::read_to_string(&path).expect("read");
            let needs = metadata::parse(id, &source).expect("a hook").needs_channels;
            for (channel, account) in deliveries(&source) {
                seen += 1;
                let whole = account.map_or_else(|| channel.clone(), |account| format!("{channel}:{account}"));
                assert!(
                    needs.iter().any(|need| *need == whole || *need == channel),
                    "{id} answers on {whole} and needs {needs:?}"
                );
            }
        }
    }

    assert!(seen >= 5, "{seen} delivery contexts were found");
}

fn with(mut event: Value, field: &str, value: Value) -> Value {
    event[field] = value;
    event
}

#[tokio::test(flavor = "multi_thread")]
async fn default_dm_routing_answers_people_who_write_to_us() {
    let (metadata, hook) = example("default-dm-routing");
    assert!(metadata.fallback, "it is the catch-all");

    let pool = TestPool::start_with(vec![hook], 1).await;
    for (event, fires) in [
        (dm("webchat:1", "hello"), true),
        (dm("telegram:1", "hello"), true),
        (
            with(dm("imessage:1", ""), "attachments", json!([{"media_type": "image"}])),
            true,
        ),
        (dm("webchat:2", "  "), false),
        (with(dm("webchat:3", "hello"), "direction", json!("sent")), false),
        (with(dm("webchat:4", "hello"), "direction", json!("updated")), false),
        (
            with(dm("discord:1", "hello"), "peer", json!({"kind": "group", "id": "g"})),
            false,
        ),
        (dm("webhook:1", "{}"), false),
        (dm("timer:tick:1", "tick"), false),
    ] {
        let id = event["id"].to_string();
        let answer = pool.evaluate(event).await;
        assert_eq!(answer.order.len(), usize::from(fires), "{id}: {answer:?}");

        if fires {
            assert_eq!(
                answer.fired("default-dm-routing").routing,
                None,
                "everything by default"
            );
        }
    }

    pool.stop().await;
}

fn github(kind: &str, payload: &Value) -> Value {
    let mut event = dm("webhook:github/72d3162e", "github");
    event["metadata"] = json!({
        "source": "github", "scheme": "github", "event_type": kind, "headers": {"x-github-event": kind}, "payload": payload,
    });
    event
}

fn check(answer: &Answer, repository: &str, prompt: &str, extracted: &Value) {
    let result = answer.fired("github-webhook");
    let delivery = result.delivery_context.expect("a delivery context");
    assert_eq!(
        (delivery.channel.as_str(), delivery.account_id.as_deref()),
        ("webhook", Some("demo"))
    );
    assert_eq!(delivery.peer_id.as_deref(), Some(repository));
    assert_eq!(
        result.routing.and_then(|r| r.session),
        Some(format!("github:{repository}"))
    );

    let context = result.context.expect("context");
    let text = context.system_prompt.expect("a prompt");
    assert!(text.contains(prompt), "{text}");

    let seen = Value::Object(context.extracted.expect("extracted"));
    for (name, value) in extracted.as_object().expect("an object") {
        assert_eq!(&seen[name], value, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn github_webhook_tells_what_happened() {
    let pool = TestPool::start_with(vec![example("github-webhook").1], 1).await;
    let repository = json!({"full_name": "octo/hello"});
    let push = json!({
        "ref": "refs/heads/main", "after": "abc", "pusher": {"name": "mona"}, "repository": repository,
        "commits": [{"id": "0123456789abcdef", "message": "Fix it\n\nbody", "author": {"name": "Mona"}}], "sender": {"login": "mona"},
    });

    let commit = json!([{"id": "0123456789", "message": "Fix it", "author": "Mona"}]);
    check(
        &pool.evaluate(github("push", &push)).await,
        "octo/hello",
        "mona pushed 1 commit to main",
        &json!({"kind": "push", "sender": "mona", "commits": commit}),
    );

    let issue = json!({"action": "opened", "issue": {"number": 7, "title": "It breaks", "html_url": "u"}, "repository": repository});
    check(
        &pool.evaluate(github("issues", &issue)).await,
        "octo/hello",
        "issue #7 was opened: It breaks",
        &json!({"kind": "issues", "action": "opened", "number": 7}),
    );

    let pull = json!({"action": "closed", "number": 8, "pull_request": {"title": "Mend it", "merged": true}, "repository": repository});
    check(
        &pool.evaluate(github("pull_request", &pull)).await,
        "octo/hello",
        "pull request #8 was closed: Mend it",
        &json!({"merged": true}),
    );

    let ping = json!({"zen": "Keep it logically awesome.", "hook_id": 1, "repository": repository});
    check(
        &pool.evaluate(github("ping", &ping)).await,
        "octo/hello",
        "Keep it logically awesome.",
        &json!({"kind": "ping", "hook": 1}),
    );

    for event in [
        github("watch", &json!({"action": "started", "repository": repository})),
        with(github("push", &push), "direction", json!("sent")),
        with(
            github("push", &push),
            "metadata",
            json!({"source": "gitlab", "event_type": "push", "payload": push}),
        ),
        with(
            github("push", &push),
            "metadata",
            json!({"source": "github", "payload": 7}),
        ),
        dm("webchat:1", "push"),
    ] {
        let answer = pool.evaluate(event).await;
        assert_eq!(answer.order, [""; 0], "{answer:?}");
    }

    pool.stop().await;
}
