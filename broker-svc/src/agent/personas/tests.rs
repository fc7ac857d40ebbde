//! Tests with valid and invalid files of personas.

use super::*;

#[test]
fn without_a_file_everybody_is_the_echo() {
    let personas = Personas::parse("").expect("an empty file");
    assert_eq!(personas.persona_of("atlas").runner, AgentRunner::Echo);
}

#[test]
fn a_name_that_is_not_there_is_answered_by_default() {
    let text = "personas:\n  default: {runner: nats, prompt: hi}\n  bob: {runner: echo, limits: {wall_ms: 5}}\n";
    let personas = Personas::parse(text).expect("a good file");
    assert_eq!(personas.persona_of("atlas").prompt, "hi");

    assert_eq!(
        personas.persona_of("bob").limits,
        PersonaLimits {
            wall_ms: 5,
            ..PersonaLimits::default()
        }
    );
}

#[test]
fn faults_name_the_key_and_what_is_expected_there() {
    let check = |text: &str, expected: &[&str]| {
        let error = Personas::parse(text).expect_err(text).to_string();
        assert!(expected.iter().all(|part| error.contains(part)), "{error}");
    };
    check(
        "personas: {a: {runer: echo}}",
        &["personas.a", "runer", "expected one of", "`runner`"],
    );
    check(
        "personas: {a: {limits: {history_turns: 200, history_tokens: 100000}}}",
        &[
            "personas.a.limits.history_turns: expected at most 64",
            "personas.a.limits.history_tokens: expected at most 8192",
        ],
    );

    check(
        "personas: {a: {runner: eco}}",
        &["personas.a.runner", "eco", "`echo`", "`llm`"],
    );
    check(
        "personas: {a: {limits: {wall_ms: 0}}}",
        &["personas.a.limits.wall_ms", "at least 1"],
    );

    // All faults of meaning are reported at once.
    check("mcp_servers: {a: {}}", &["mcp_servers.a.command", "`url`"]);
    check("personas: {a: {mcp_servers: [b]}}", &["personas.a.mcp_servers", "`b`"]);

    let text = "credentials: {k: s3cret}\npersonas: {a: {runner: process}, b: {timezone: Mars}}";
    check(
        text,
        &["credentials.k", "personas.a.process.command", "personas.b.timezone"],
    );
}

#[test]
fn a_payment_above_the_limit_is_confirmed_and_so_is_one_that_does_not_say_how_much() {
    let text = "personas: {shop: {runner: llm, requires_confirmation: \
                    [{tools: ['pay*'], above: {amount: 50000}, ask: {policy: payments, scope: owner}}, {tools: [wipe]}, \
                    {tools: [pay_all], ask: {policy: all}}]}}";
    let personas = Personas::parse(text).expect("a good file");
    let asked = |tool: &str, arguments: Value| {
        let asks = personas.persona_of("shop").confirmations(tool, &arguments);
        asks.map(|ask| ask.policy.clone()).collect::<Vec<_>>()
    };

    assert_eq!(asked("pay", serde_json::json!({"amount": 50_000})), [""; 0]);
    assert_eq!(asked("pay", serde_json::json!({"amount": 50_000.5})), ["payments"]);

    // A second rule does not remove the first.
    assert_eq!(
        asked("pay_all", serde_json::json!({"amount": "5"})),
        ["payments", "all"]
    );
    assert_eq!(asked("pay_all", serde_json::json!({"amount": 5})), ["all"]);
    assert_eq!(asked("wipe", serde_json::json!({})), [""]);
    assert_eq!(asked("look", serde_json::json!({})), [""; 0]);

    let wrong = "personas: {shop: {requires_confirmation: [{ask: {expires_ms: 0}}]}}";
    let error = Personas::parse(wrong).expect_err("nobody could decide").to_string();
    assert!(
        error.contains("requires_confirmation[0].tools") && error.contains("expires_ms"),
        "{error}"
    );
}

#[test]
fn a_guard_that_keeps_nothing_back_is_a_fault() {
    let wrong = "permission_levels: {group: {deny: ['group:fs']}}
personas: {a: {runner: llm, tools: [' '], permissions: {tools: {deny: ['']}}, requires_confirmation: [{tools: ['pay ']}]}}";
    let error = Personas::parse(wrong).expect_err("four faults").to_string();
    for key in [
        "permission_levels.group.deny",
        "personas.a.tools",
        "personas.a.permissions.tools.deny",
        "personas.a.requires_confirmation[0].tools",
    ] {
        assert!(error.contains(key), "{key}: {error}");
    }

    let idle = |text: &str| {
        let personas = Personas::parse(text).expect("a good file");
        personas
            .idle_faults()
            .into_iter()
            .map(|fault| fault.key)
            .collect::<Vec<_>>()
    };
    let erp = "mcp_servers: {erp: {command: x}}\n";
    let persona = |runner: &str, tools: &str, pattern: &str| {
        let deny = format!("permissions: {{tools: {{deny: ['{pattern}']}}}}");
        format!("{erp}personas: {{a: {{runner: {runner}, tools: [{tools}], mcp_servers: [erp], {deny}}}}}")
    };
    for (tools, pattern, is_idle) in [
        ("'*'", "create_hook", false),
        ("'*'", "CREATE_*", false),
        ("list_hooks", "create_hook", true),
        ("'*'", "get_agent_status", false),
        ("'*'", "shell", true),
        ("", "erp__pay", false),
        ("", "*_pay", false),
        ("", "crm__*", true),
    ] {
        let found = idle(&persona("llm", tools, pattern));
        let expected: &[&str] = if is_idle {
            &["personas.a.permissions.tools.deny"]
        } else {
            &[]
        };

        assert_eq!(found, expected, "{tools} {pattern}");
        assert_eq!(idle(&persona("nats", tools, pattern)), [""; 0], "its tools are its own");
    }

    let two = "permission_levels: {group: {deny: [shell]}}\npersonas: {a: {runner: llm}, b: {runner: RUNNER}}";
    assert_eq!(idle(&two.replace("RUNNER", "llm")), ["permission_levels.group.deny"]);
    assert_eq!(idle(&two.replace("RUNNER", "process, process: {command: x}")), [""; 0]);

    let asked = "personas: {a: {runner: llm, requires_confirmation: [{tools: [create_hook, pay]}]}}";
    assert_eq!(idle(asked), ["personas.a.requires_confirmation[0].tools"]);
}

#[test]
fn a_level_that_allows_what_nobody_has_is_told() {
    let told = |text: &str| Personas::parse(text).expect("a good file").empty_levels();
    let none = told("personas: {a: {runner: llm}}");
    assert!(
        none.len() == 1 && none[0].starts_with("permission_levels.minimal: ") && none[0].contains("`web_search`"),
        "{none:?}"
    );
    assert_eq!(
        told("personas: {a: {runner: llm}, b: {runner: nats}}"),
        [""; 0],
        "it may have one of its own"
    );

    let server = "mcp_servers: {brave: {command: x}}\npersonas: {a: {runner: llm, mcp_servers: [brave]}}";
    assert_eq!(told(server), [""; 0]);
}

#[test]
fn levels_that_are_not_named_keep_their_default() {
    let personas = Personas::parse("permission_levels: {restricted: {allow: [x]}}").expect("a good file");
    let levels = personas.permission_levels.0;
    assert_eq!(levels.keys().collect::<Vec<_>>(), ["full", "minimal", "restricted"]);
}

#[test]
fn a_whole_file_is_read() {
    let text = "
credentials: {github: 'env:GITHUB_TOKEN'}
mcp_servers: {files: {command: npx, args: [x], env: {TOKEN: 'credential:github'}}, far: {url: 'https://mcp.example.com/mcp'}}
permission_levels: {restricted: {allow: ['search_*']}}
personas:
  shop:
    runner: llm
    model: gemini-3-flash-preview
    max_tokens: 2000
    prompt: You take the shop's orders.
    tools: ['search_*', list_intents]
    mcp_servers: [files, far]
    permissions: {level: restricted, tools: {allow: ['*'], deny: ['delete_*']}, credentials: [github]}
    limits: {model_calls: 8, tokens: 50000, cost_usd: 0.25}
    hooks: [{hook: PreToolUse, builtin: audit_log}]
  mine: {runner: process, process: {command: ./agent.sh, args: [-v], env: {KEY: 'env:KEY'}, directory: /tmp}}
";

    let personas = Personas::parse(text).expect("a good file");
    assert!(personas.ask_models());
    assert_eq!(personas.persona_of("shop").limits.cost_usd, Some(0.25));
    assert_eq!(
        personas
            .persona_of("mine")
            .process
            .as_ref()
            .map(|program| program.args.len()),
        Some(1)
    );
}

#[test]
fn a_limit_of_dollars_needs_the_models_price() {
    let check = |persona: &str, llm: &Value, told: &[&str]| {
        let personas = Personas::parse(&format!("personas: {{shop: {persona}}}")).expect("a good file");
        let llm = serde_json::from_value(llm.clone()).expect("a good section");
        let faults = personas.unbound_faults(&llm).into_iter().map(|fault| fault.to_string());
        assert_eq!(faults.collect::<Vec<_>>(), told, "{persona}");
    };

    let fault = "personas.shop.limits.cost_usd: a limit of 0.25 US dollars needs the model's price: `m` has no \
                     price; set `input` and `output` (US dollars per million tokens, 0 if free) in [llm.prices.\"m\"]";
    let own = serde_json::json!({"provider": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"});
    let mut priced = own.clone();
    priced["prices"] = serde_json::json!({"m": {"input": 0, "output": 0}});

    check("{runner: llm, limits: {cost_usd: 0.25}}", &own, &[fault]);
    check("{runner: llm, limits: {cost_usd: 0.25}}", &priced, &[]);
    check(
        "{runner: llm, model: m, limits: {cost_usd: 0.25}}",
        &serde_json::json!({}),
        &[fault],
    );
    check("{runner: llm, limits: {tokens: 1}}", &own, &[]);
    check("{runner: nats, limits: {cost_usd: 0.25}}", &own, &[]);
}
