use serde_json::Map;

use super::super::declared::{HookLayer, read_hook};
use super::*;

fn hook(point: &str) -> DeclaredHook {
    let map: Map<String, Value> =
        serde_json::from_value(json!({"name": "h", "hook": point, "command": "x", "blocking": true}))
            .expect("a mapping");
    read_hook(&map, "hooks[0]", &HookLayer::Global, &mut Vec::new()).expect("a hook")
}

fn said(point: &str, code: i32, stdout: &str, stderr: &str) -> Result<HookOutcome, RunHookError> {
    let exit = CommandExit {
        code: Some(code),
        stdout: stdout.to_owned(),
        stderr: stderr.to_owned(),
    };
    exit_outcome(&hook(point), &exit)
}

fn silent() -> Result<HookOutcome, RunHookError> {
    Ok(HookOutcome::default())
}

#[test]
fn exit_codes_are_an_answer_a_refusal_or_a_failure() {
    assert_eq!(said("PreToolUse", 0, "", "noise"), silent());
    assert_eq!(
        said("PreToolUse", 0, "checked\n", ""),
        silent(),
        "text that is no JSON has no effect"
    );
    assert_eq!(said("PreToolUse", 2, "", " no \n"), Ok(HookOutcome::denied("no")));
    assert_eq!(
        said("PreToolUse", 2, "", ""),
        Ok(HookOutcome::denied("hook `h` refuses"))
    );

    let failed = |error: &str| Err(RunHookError::Failed(error.to_owned()));
    assert_eq!(said("PreToolUse", 1, "", "boom"), failed("exit 1: boom"));
    assert_eq!(said("PreToolUse", 127, "out", ""), failed("exit 127: out"));
    assert!(matches!(said("PreToolUse", 0, "{\"a\":", ""), Err(RunHookError::Failed(error)) if error.contains("JSON")));
    assert_eq!(
        said("PostToolUse", 2, "", "look out"),
        Ok(context_outcome("look out".to_owned())),
        "it has run already"
    );
    assert_eq!(
        said("SessionStart", 0, "the shop is closed\n", ""),
        Ok(context_outcome("the shop is closed".to_owned()))
    );
}

#[test]
fn json_says_more_nested_or_not() {
    let nested = |specific: Value| {
        said(
            "PreToolUse",
            0,
            &json!({"hookSpecificOutput": specific}).to_string(),
            "",
        )
    };

    assert_eq!(
        nested(json!({"hookEventName": "PreToolUse", "permissionDecision": "allow"})),
        silent()
    );

    let denied = json!({"permissionDecision": "deny", "permissionDecisionReason": "not on Fridays"});
    assert_eq!(nested(denied.clone()), Ok(HookOutcome::denied("not on Fridays")));
    assert_eq!(
        said("PreToolUse", 0, &denied.to_string(), ""),
        Ok(HookOutcome::denied("not on Fridays"))
    );

    let block = json!({"decision": "block", "reason": "no"}).to_string();
    assert_eq!(said("PreToolUse", 0, &block, ""), Ok(HookOutcome::denied("no")));

    let stop = json!({"continue": false, "stopReason": "enough"}).to_string();
    assert_eq!(said("BeforeModel", 0, &stop, ""), Ok(HookOutcome::denied("enough")));

    let updated = nested(json!({"updatedInput": {"n": 2}, "additionalContext": "two"})).expect("an answer");
    assert_eq!(
        (updated.modified_args, updated.context.as_deref()),
        (Some(json!({"n": 2})), Some("two"))
    );

    let asks = nested(json!({"permissionDecision": "ask", "permissionDecisionReason": "big"})).expect("an answer");
    let ask = asks.ask.expect("it asks");
    assert_eq!(
        (ask.policy.as_str(), ask.reason.as_deref(), ask.scope),
        ("h", Some("big"), DeciderScope::default())
    );
    assert!(nested(json!({"permissionDecision": "perhaps"})).is_err());
}

#[test]
fn the_question_has_the_names_that_scripts_read() {
    let mut metadata = Map::new();
    for (key, value) in [
        ("session", "shop/main"),
        ("turn", "t1"),
        ("call", "1-1"),
        ("prompt", "pay"),
    ] {
        metadata.insert(key.to_owned(), json!(value));
    }

    let context = HookContext {
        tool_name: "pay".to_owned(),
        tool_args: json!({"n": 1}),
        tool_result: Some(json!("done")),
        agent_id: "shop".to_owned(),
        user_id: "ann".to_owned(),
        metadata,
    };

    let asked = hook_input(&hook("PostToolUse"), &context, "/srv");
    let expected = json!({
        "hook": "PostToolUse", "hook_name": "h", "hook_event_name": "PostToolUse", "session_id": "shop/main", "transcript_path": "",
        "cwd": "/srv", "permission_mode": "default", "agent_id": "shop", "user_id": "ann", "turn": "t1", "prompt": "pay",
        "tool_name": "pay", "tool_input": {"n": 1}, "tool_use_id": "1-1", "tool_response": "done"
    });

    assert_eq!(asked, expected);
}
