use super::*;

fn check_faults(text: &str, personas: &str, expected: &[(&str, &str)]) {
    let personas = Personas::parse(personas).expect("personas");
    let error = HookRules::parse(text, &personas).expect_err(text);
    let told: Vec<String> = error.0.iter().map(ToString::to_string).collect();

    assert_eq!(told.len(), expected.len(), "{told:#?}");

    for (key, part) in expected {
        let found = error
            .0
            .iter()
            .any(|fault| fault.key == *key && fault.problem.contains(part));
        assert!(found, "{key} … {part}: {told:#?}");
    }
}

fn names(set: &HookSet, point: HookPoint) -> Vec<&str> {
    set.at(point).map(|hook| hook.name.as_str()).collect()
}

fn session(persona: &str, session: &str) -> SessionRef {
    SessionRef {
        persona: persona.to_owned(),
        session: session.to_owned(),
    }
}

#[test]
fn nothing_declared_is_nothing() {
    let rules = HookRules::parse("", &Personas::default()).expect("an empty file");
    assert!(rules.is_empty() && !rules.commands);
    assert!(rules.hooks_of(&session("a", "main"), &[]).is_empty());
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let text = "
enabled: 'yes'
colour: red
allow: {all: ['find . ', \"grep 'x\", '* -rf', 'find *', {command: 'find *', unsafe: true}]}
hooks:
  - {hook: PreToolUse, builtin: approve}
  - {hook: before_tool, builtin: audit_log}
  - {hook: post_session, command: x, script: y}
  - {hook: PreToolUse, builtin: rate_limit, with: {calls: 0}}
  - {hook: PostToolUse, builtin: read_only_guard}
  - {hook: PreToolUse, builtin: shell_allow_list}
  - {hook: pre_tool, reminder: hi, trigger: sometimes}
  - {name: a, hook: Stop, command: x, on_failure: deny, color: red}
  - {name: b, hook: PreToolUse, builtin: audit_log, tools: x_*}
personas: {nobody: []}
sessions: {'shop/*': {read_only: false}}
";

    check_faults(
        text,
        "",
        &[
            ("enabled", "boolean"),
            ("colour", "unknown key"),
            ("allow.all[1]", "quote"),
            ("allow.all[2]", "wildcard"),
            ("allow.all[3]", "unsafe: true"),
            ("hooks[0].builtin", "unknown builtin `approve`"),
            ("hooks[1].hook", "unknown point `before_tool`"),
            ("hooks[2]", "exactly one"),
            ("hooks[3].with", "calls"),
            ("hooks[4].builtin", "only at PreToolUse"),
            ("hooks[5].tools", "required"),
            ("hooks[6].reminder", "at pre_tool"),
            ("hooks[6].trigger", "expected always"),
            ("hooks[7].on_failure", "can deny"),
            ("hooks[7].color", "unknown key"),
            ("hooks[8].tools", "list"),
            ("personas.nobody", "no such persona"),
            ("sessions.shop/*.read_only", "only restrict"),
        ],
    );

    check_faults(": [", "", &[("", "")]);
    let wrong = "personas: {shop: {runner: llm, hooks: [{hook: Stop, builtin: audit_log}]}}";
    check_faults(
        "",
        wrong,
        &[("personas.shop.hooks[0].builtin", "only at PreToolUse, PostToolUse")],
    );
}

#[test]
fn a_layer_adds_hooks_and_redefines_none() {
    let text = "
hooks: [{name: guard, hook: PreToolUse, builtin: read_only_guard}]
personas: {default: [{name: guard, hook: PreToolUse, builtin: audit_log}]}
sessions: {'*/x': {hooks: [{name: guard, hook: PreToolUse, builtin: audit_log}]}}
";
    check_faults(
        text,
        "",
        &[
            ("personas.default", "`guard` is taken"),
            ("sessions.*/x", "`guard` is taken"),
        ],
    );
}

#[test]
fn hooks_run_by_priority_then_layer_then_name() {
    let personas =
        "personas: {shop: {runner: llm, hooks: [{name: p, hook: PreToolUse, builtin: audit_log, priority: 10}]}}";
    let personas = Personas::parse(personas).expect("personas");
    let text = "
hooks:
  - {name: late, hook: PreToolUse, builtin: rate_limit, priority: 90}
  - {name: b, hook: PreToolUse, builtin: read_only_guard, priority: 10}
  - {name: a, hook: PreToolUse, builtin: audit_log, priority: 10}
  - {hook: PostToolUse, builtin: result_truncate}
sessions: {'shop/dm:*': {read_only: true, hooks: [{name: early, hook: PreToolUse, builtin: audit_log, priority: -1}]}}
";

    let rules = HookRules::parse(text, &personas).expect("rules");
    let plain = rules.hooks_of(&session("other", "dm:ann"), &[]);
    assert_eq!(names(&plain, HookPoint::PreToolUse), ["a", "b", "late"]);
    assert_eq!(names(&plain, HookPoint::PostToolUse), ["result_truncate"]);
    assert!(!plain.read_only);

    let all = rules.hooks_of(&session("shop", "dm:ann"), &[]);
    assert_eq!(names(&all, HookPoint::PreToolUse), ["early", "a", "b", "p", "late"]);
    assert!(all.read_only);

    let inherited = rules.hooks_of(
        &session("other", "main"),
        &[session("shop", "dm:ann"), session("shop", "dm:ann")],
    );
    assert_eq!(
        names(&inherited, HookPoint::PreToolUse),
        ["early", "a", "b", "p", "late"],
        "each once"
    );
    assert!(
        inherited.read_only,
        "who works for somebody is bound by what binds them"
    );
}

#[test]
fn read_only_mode_holds_where_nobody_declares_its_guard() {
    let guarded = |text: &str, name: &str| {
        let rules = HookRules::parse(text, &Personas::default()).expect("rules");
        assert!(!rules.is_empty(), "{text}");
        let set = rules.hooks_of(&session("shop", name), &[]);
        names(&set, HookPoint::PreToolUse).join(" ")
    };

    assert_eq!(guarded("read_only: true", "main"), "read_only");

    let session = "sessions: {'shop/dm:*': {read_only: true}}";
    assert_eq!(guarded(session, "dm:ann"), "read_only");
    assert_eq!(guarded(session, "main"), "", "another session");

    let own = "read_only: true\nhooks: [{name: guard, hook: PreToolUse, builtin: read_only_guard, priority: 5}]";
    assert_eq!(guarded(own, "main"), "guard");

    let part = "read_only: true\nhooks: [{name: guard, hook: PreToolUse, builtin: read_only_guard, tools: [sql_*]}]";
    assert_eq!(guarded(part, "main"), "read_only guard", "it is not shown every call");
}

#[test]
fn without_the_flag_there_are_no_command_hooks() {
    let hooks = "hooks: [{name: fmt, hook: Stop, command: 'gofmt -w .'}, {hook: PreToolUse, builtin: audit_log}]";
    let check = |text: &str, count: usize| {
        let rules = HookRules::parse(text, &Personas::default()).expect("rules");
        let set = rules.hooks_of(&session("a", "main"), &[]);
        assert_eq!(names(&set, HookPoint::PostSession).len(), count, "{text}");
        assert!(set.has_hooks(HookPoint::PreToolUse));
    };

    check(hooks, 0);
    check(&format!("enabled: false\n{hooks}"), 0);
    check(&format!("enabled: true\n{hooks}"), 1);
}

#[test]
fn the_documented_file_is_without_fault() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/in-turn-hooks.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let file = page
        .split("```yaml as=\"hooks.yaml\"\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());

    let rules = HookRules::parse(file.expect("a file"), &Personas::default()).expect("without fault");
    let set = rules.hooks_of(&session("shop", "web:group:1"), &[]);
    assert_eq!(
        names(&set, HookPoint::PreToolUse),
        [
            "log",
            "read_only_guard",
            "check",
            "payments",
            "policy",
            "rate_limit",
            "shell_allow_list"
        ]
    );

    assert!(set.read_only && set.has_hooks(HookPoint::PostSession) && set.has_hooks(HookPoint::PreSession));

    let refused = rules.all_hooks().filter_map(|hook| match &hook.action {
        DeclaredAction::Command { command } => rules
            .allow
            .admit_command(command, &CommandDirectories::here().expect("a place"))
            .err()
            .map(|refusal| format!("{command}: {refusal}")),
        DeclaredAction::Builtin(_) | DeclaredAction::Script { .. } | DeclaredAction::Reminder(_) => None,
    });

    assert_eq!(refused.collect::<Vec<_>>(), Vec::<String>::new());
}
