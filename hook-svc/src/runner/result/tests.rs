use super::*;
use proptest::prelude::*;
use serde_json::json;

fn check(value: &Value) -> Result<HookResult, String> {
    validate(&value.to_string()).map_err(|error| error.to_string())
}

fn routed(routing: HookRouting) -> HookResult {
    HookResult {
        fire: true,
        routing: Some(routing),
        ..HookResult::default()
    }
}

#[test]
fn the_unified_spelling() {
    let answer = check(&json!({
        "fire": true,
        "routing": {"persona": "atlas", "session": "main", "queueMode": "steer-backlog"},
        "permissions": {"level": "restricted", "tools": {"allow": ["web_*"], "deny": ["web_post"]}, "credentials": ["stripe"]},
        "deliveryContext": {"channel": "webhook", "accountId": "demo", "peerId": "a/b"},
        "context": {"systemPrompt": "Be brief.", "extracted": {"code": 1234}, "includeThreadHistory": false},
        "disableHook": true,
    }))
    .expect("valid");

    let routing = answer.routing.expect("routing");
    assert_eq!(
        (routing.persona.as_deref(), routing.queue_mode),
        (Some("atlas"), Some(QueueMode::SteerBacklog))
    );
    assert_eq!(
        answer.delivery_context.and_then(|context| context.peer_id).as_deref(),
        Some("a/b")
    );
    assert_eq!(
        answer.context.and_then(|context| context.include_thread_history),
        Some(false)
    );

    assert!(answer.disable_hook);
}

#[test]
fn the_older_spelling() {
    let answer = check(&json!({
        "fire": true,
        "routing": {"mode": "session", "target": "stripe", "agent_id": "atlas", "queue_mode": "queue"},
        "context": {"prompt": "Call Tyler!", "include_thread": true},
        "disable_hook": true,
    }))
    .expect("valid");

    assert_eq!(
        answer,
        HookResult {
            context: Some(HookContextPatch {
                system_prompt: Some("Call Tyler!".to_owned()),
                extracted: None,
                include_thread_history: Some(true),
                transcripts: Vec::new(),
            }),
            disable_hook: true,
            ..routed(HookRouting {
                persona: Some("atlas".to_owned()),
                session: Some("stripe".to_owned()),
                queue_mode: Some(QueueMode::Followup),
                thread: None,
            })
        }
    );
}

#[test]
fn transcripts_are_of_attachments() {
    let spoken = json!([{"index": 0, "text": "hello"}, {"index": 2, "text": ""}]);
    let answer = check(&json!({"fire": true, "context": {"transcripts": spoken}})).expect("valid");
    let read: Vec<(usize, &str)> = answer
        .transcripts()
        .iter()
        .map(|transcript| (transcript.index, transcript.text.as_str()))
        .collect();
    assert_eq!(read, [(0, "hello"), (2, "")]);

    for wrong in [
        json!({"index": -1, "text": "a"}),
        json!({"index": 0}),
        json!({"index": 0, "text": "a", "by": "b"}),
    ] {
        let told = check(&json!({"fire": true, "context": {"transcripts": [wrong]}})).expect_err("invalid");
        assert!(told.starts_with("`context.transcripts`: "), "{told}");
    }
    assert!(HookResult::default().transcripts().is_empty());
}

#[test]
fn routing_modes() {
    let thread = check(&json!({"fire": true, "routing": {"mode": "thread", "target": "t1"}}));
    assert_eq!(
        thread,
        Ok(routed(HookRouting {
            thread: Some("t1".to_owned()),
            ..HookRouting::default()
        }))
    );

    for routing in [json!({"mode": "persona"}), json!({"mode": "session"}), json!({})] {
        assert_eq!(
            check(&json!({"fire": true, "routing": routing})),
            Ok(routed(HookRouting::default())),
            "derived"
        );
    }
}

#[test]
fn a_hook_that_does_not_fire_is_not_judged_further() {
    assert_eq!(check(&json!({"fire": false, "routing": 7})), Ok(HookResult::default()));
    let leaving = check(&json!({"fire": false, "disable_hook": true})).expect("valid");
    assert!(leaving.disable_hook && !leaving.fire);
}

#[test]
fn both_spellings_may_agree_but_not_differ() {
    let both = |one: &str, other: &str| check(&json!({"fire": true, "routing": {"persona": one, "agent_id": other}}));
    assert!(both("a", "a").is_ok());
    assert_eq!(
        both("a", "b"),
        Err("`routing.persona` and `routing.agent_id` name the same field with different values".to_owned())
    );
    let same_mode = json!({"fire": true, "routing": {"queueMode": "followup", "queue_mode": "queue"}});
    assert!(check(&same_mode).is_ok(), "two names of one mode");
}

#[test]
fn what_is_wrong_is_named() {
    for (answer, message) in [
        (json!(null), "result is null, expected an object"),
        (json!([]), "result is a list, expected an object"),
        (json!("fire"), "result is a string, expected an object"),
        (json!({}), "`fire`: is missing"),
        (
            json!({"fire": "yes"}),
            "`fire`: expected a boolean, found string \"yes\"",
        ),
        (json!({"fire": true, "prompt": "x"}), "unknown field `prompt`"),
        (
            json!({"fire": true, "routing": {"agent": "x"}}),
            "unknown field `routing.agent`",
        ),
        (
            json!({"fire": true, "routing": "main"}),
            "`routing` is a string, expected an object",
        ),
        (
            json!({"fire": true, "routing": {"target": "x"}}),
            "`routing.target`: names a session or thread, so `mode` must be `session` or `thread`",
        ),
        (
            json!({"fire": true, "routing": {"mode": "session", "target": "a", "session": "b"}}),
            "`routing.session` and `routing.target` name the same field with different values",
        ),
        (
            json!({"fire": true, "routing": {"session": "a\u{0}b"}}),
            "`routing.session` holds a control character",
        ),
        (
            json!({"fire": true, "routing": {"session": ""}}),
            "`routing.session` is empty",
        ),
        (
            json!({"fire": true, "routing": {"session": "x".repeat(513)}}),
            "`routing.session` has more than 512 bytes",
        ),
        (
            json!({"fire": true, "deliveryContext": {"channel": "a\nb"}}),
            "`deliveryContext.channel` holds a control character",
        ),
        (
            json!({"fire": true, "context": {"transcripts": "hello"}}),
            "`context.transcripts`: expected a list, found string \"hello\"",
        ),
        (
            json!({"fire": true, "context": {"transcripts": [{"index": 1, "text": "a"}, {"index": 1, "text": "b"}]}}),
            "`context.transcripts`: the attachment 1 has two transcripts",
        ),
        (
            json!({"fire": true, "disableHook": true, "disable_hook": false}),
            "`disableHook` and `disable_hook` name the same field with different values",
        ),
    ] {
        assert_eq!(check(&answer), Err(message.to_owned()), "{answer}");
    }

    let mode = check(&json!({"fire": true, "routing": {"queueMode": "later"}})).expect_err("unknown mode");
    assert!(mode.starts_with("`routing.queueMode`: unknown value `later`"), "{mode}");

    let long = validate(&format!(
        "{{\"fire\":true,\"context\":{{\"prompt\":\"{}\"}}}}",
        "x".repeat(MAX_RESULT_BYTES)
    ));
    assert!(matches!(long, Err(InvalidResultError::TooLong(_))));
    assert!(matches!(validate("{\"fire\":tr"), Err(InvalidResultError::NotJson(_))));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];

    let names = prop::sample::select(vec![
        "fire",
        "routing",
        "mode",
        "target",
        "persona",
        "agent_id",
        "session",
        "queueMode",
        "queue_mode",
        "context",
        "prompt",
        "systemPrompt",
        "extracted",
        "transcripts",
        "index",
        "text",
        "deliveryContext",
        "channel",
        "permissions",
        "disableHook",
        "other",
    ]);

    leaf.prop_recursive(3, 24, 6, move |inner| {
        let fields = prop::collection::btree_map(names.clone(), inner.clone(), 0..6);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            fields.prop_map(|map| Value::Object(map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,200}") {
        let _ = validate(&text);
    }

    #[test]
    fn no_object_panics_and_what_is_valid_reads_the_same_again(value in any_json()) {
        if let Ok(answer) = validate(&value.to_string()) {
            let again = serde_json::to_string(&answer).expect("serialises");
            prop_assert_eq!(validate(&again), Ok(answer));
        }
    }
}
