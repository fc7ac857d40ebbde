use serde_json::{Map, json};

use shared::model::approval::DeciderScope;

use super::super::declared::{HookLayer, read_hook};
use super::*;

/// Returns a hook of a kind whose outcomes the test supplies.
fn hook(name: &str, more: &Value) -> Arc<DeclaredHook> {
    let mut map = Map::new();
    map.insert("name".to_owned(), json!(name));
    map.insert("hook".to_owned(), json!("PreToolUse"));
    map.insert("script".to_owned(), json!(name));
    map.extend(more.as_object().expect("a mapping").clone());
    let mut faults = Vec::new();
    let read = read_hook(&map, "hooks[0]", &HookLayer::Global, &mut faults);
    Arc::new(read.unwrap_or_else(|| panic!("{faults:?}")))
}

fn plain(name: &str) -> Arc<DeclaredHook> {
    hook(name, &json!({}))
}

fn rewrites(arguments: Value) -> Result<HookOutcome, RunHookError> {
    Ok(HookOutcome {
        modified_args: Some(arguments),
        ..HookOutcome::default()
    })
}

fn asks(scope: DeciderScope) -> Result<HookOutcome, RunHookError> {
    Ok(HookOutcome {
        ask: Some(ApprovalAsk {
            policy: "p".to_owned(),
            scope,
            expires_ms: None,
            escalate_at: None,
            reason: None,
        }),
        ..HookOutcome::default()
    })
}

/// Runs the chain of `hooks`, with `say` as their outcomes; returns the hooks that were asked, in order, and the
/// result.
fn run(
    hooks: Vec<Arc<DeclaredHook>>,
    say: impl Fn(&str, &Value) -> Result<HookOutcome, RunHookError>,
) -> (Vec<String>, GateDecision) {
    let context = HookContext {
        tool_name: "pay".to_owned(),
        tool_args: json!({"n": 1}),
        ..HookContext::default()
    };
    let mut gate = GateChain::new(hooks, context);

    let mut asked = Vec::new();
    while let Some((hook, context)) = gate.next_due() {
        asked.push(format!("{} {}", hook.name, context.tool_args["n"]));
        let said = say(&hook.name, &context.tool_args);
        gate.apply_outcome(&hook, said);
    }

    (asked, gate.into_result())
}

fn runs_with(n: i64) -> GateDecision {
    GateDecision::Run {
        arguments: json!({ "n": n }),
    }
}

fn denied(error: &str) -> GateDecision {
    GateDecision::Denied {
        error: error.to_owned(),
    }
}

#[test]
fn arguments_are_carried_forward_and_the_first_denial_ends_it() {
    let hooks = || vec![plain("a"), plain("b"), plain("c")];
    let (asked, gated) = run(hooks(), |_, _| Ok(HookOutcome::default()));
    assert_eq!((asked.len(), gated), (3, runs_with(1)));

    let (asked, gated) = run(hooks(), |name, _| match name {
        "b" => Ok(HookOutcome::denied("no")),
        _ => Ok(HookOutcome::default()),
    });
    assert_eq!((asked, gated), (vec!["a 1".to_owned(), "b 1".to_owned()], denied("no")));

    let first = |name: &str, _: &Value| {
        if name == "a" {
            rewrites(json!({"n": 2}))
        } else {
            Ok(HookOutcome::default())
        }
    };

    let (asked, gated) = run(hooks(), first);
    assert_eq!(
        (asked, gated),
        (vec!["a 1".into(), "b 2".into(), "c 2".into()], runs_with(2))
    );
}

#[test]
fn what_changes_after_a_gate_allowed_is_seen_by_the_gates_once_more() {
    let hooks = || vec![plain("a"), plain("b")];
    let last = |name: &str, _: &Value| {
        if name == "b" {
            rewrites(json!({"n": 2}))
        } else {
            Ok(HookOutcome::default())
        }
    };

    let (asked, gated) = run(hooks(), last);
    assert_eq!(
        (asked, gated),
        (
            vec!["a 1".into(), "b 1".into(), "a 2".into(), "b 2".into()],
            runs_with(2)
        )
    );

    // The gate that allowed 1 does not allow 2.
    let guarded = |name: &str, arguments: &Value| match name {
        "a" if arguments["n"] == 2 => Ok(HookOutcome::denied("2 is too much")),
        "a" => Ok(HookOutcome::default()),
        _ => rewrites(json!({"n": 2})),
    };
    assert_eq!(run(hooks(), guarded).1, denied("2 is too much"));

    let more = |name: &str, arguments: &Value| match name {
        "b" => rewrites(json!({"n": arguments["n"].as_i64().unwrap_or(0) + 1})),
        _ => Ok(HookOutcome::default()),
    };
    assert_eq!(
        run(hooks(), more).1,
        denied("hook `b` changed the arguments a second time")
    );
}

#[test]
fn a_gate_that_does_not_answer_denies_and_an_observer_does_not_count() {
    let fails = |name: &str, _: &Value| match name {
        "b" => Err(RunHookError::TimedOut(5)),
        _ => Ok(HookOutcome::default()),
    };
    let (_, gated) = run(vec![plain("a"), plain("b")], fails);
    assert_eq!(gated, denied("hook `b` could not decide: no answer within 5 ms"));

    let open = hook("b", &json!({"on_failure": "allow"}));
    assert_eq!(run(vec![plain("a"), open], fails).1, runs_with(1));

    let observer = hook("b", &json!({"blocking": false}));
    let refuses = |_: &str, _: &Value| Ok(HookOutcome::denied("no"));
    assert_eq!(run(vec![observer.clone()], refuses).1, runs_with(1));
    assert_eq!(run(vec![observer], fails).1, runs_with(1));
}

#[test]
fn humans_are_asked_last_of_the_final_arguments_and_all_whom_any_gate_wants() {
    let hooks = || vec![plain("a"), plain("b"), plain("c")];
    let quorum = || DeciderScope::Quorum {
        n: 2,
        of: vec!["ann".to_owned(), "bob".to_owned()],
    };

    let (asked, gated) = run(hooks(), |name, _| match name {
        "a" => asks(quorum()),
        "b" => asks(DeciderScope::Initiator),
        _ => rewrites(json!({"n": 2})),
    });
    assert_eq!(asked.len(), 6, "{asked:?}");

    let GateDecision::Ask { ask, arguments } = gated else {
        panic!("{gated:?}")
    };

    let of = vec![quorum(), DeciderScope::Initiator];
    assert_eq!((ask.scope, arguments), (DeciderScope::All { of }, json!({"n": 2})));

    // A denial after another hook's ask denies.
    let (_, gated) = run(hooks(), |name, _| match name {
        "a" => asks(DeciderScope::Owner),
        _ => Ok(HookOutcome::denied("no")),
    });
    assert_eq!(gated, denied("no"));
}

#[test]
fn a_hook_runs_only_where_its_tools_and_conditions_say_so() {
    let other = hook("other", &json!({"tools": ["sql_*"]}));
    let big = hook(
        "big",
        &json!({"tools": ["p*"], "when": [{"argument": "n", "above": 1}]}),
    );

    let deny = |name: &str, _: &Value| match name {
        "raise" => rewrites(json!({"n": 2})),
        _ => Ok(HookOutcome::denied("no")),
    };
    assert_eq!(run(vec![other.clone(), big.clone()], deny).1, runs_with(1));

    // The hook sees the arguments as rewritten so far, and once more if they change after it.
    assert_eq!(
        run(vec![other.clone(), plain("raise"), big.clone()], deny).1,
        denied("no")
    );
    assert_eq!(run(vec![other, big, plain("raise")], deny).1, denied("no"));
}
