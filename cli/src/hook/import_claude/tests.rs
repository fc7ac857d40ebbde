//! Tests from settings to `hooks.yaml` and scripts.

use super::*;

fn import(settings: &Value) -> Import {
    Import::read(settings, ".claude/settings.json", "/srv/claude-hooks")
}

#[test]
fn a_program_is_listed_as_it_stands_and_the_rest_goes_into_a_script() {
    for command in [
        "python3 hooks/check.py --strict",
        "\"$CLAUDE_PROJECT_DIR\"/.claude/check.sh",
        "$CLAUDE_PROJECT_DIR/.claude/check.sh Bash",
        "${CLAUDE_PROJECT_DIR}/x --root=$HOME/y",
        "~/bin/notify done",
        "npx prettier --write \"src dir\"",
        "/usr/bin/env",
    ] {
        assert!(is_one_program(command), "{command}");
    }

    for command in [
        "jq -r .tool_input.command | tee -a log",
        "a && b",
        "a; b",
        "a &",
        "a > x",
        "a 2>/dev/null",
        "A=1 a",
        "cd src",
        "echo $PATH",
        "echo $HOMES",
        "echo $CLAUDE_PROJECT_DIRS",
        "echo 'it'",
        "echo *.ts",
        "ls ...",
        "a\nb",
        "a # b",
        "echo \"~/x\"",
        "a~ b",
        "a \"b",
        "test -f x || exit 2",
        "{ a; }",
        "",
    ] {
        assert!(!is_one_program(command), "{command}");
    }
}

#[test]
fn settings_become_a_hooks_file_and_what_does_not_is_told() {
    let settings = json!({
        "permissions": {"deny": ["Read(.env)"]},
        "hooks": {
            "PreToolUse": [
                {"matcher": "Bash", "hooks": [
                    {"type": "command", "command": "jq -r .tool_input.command | grep -q rm && exit 2"},
                    {"type": "command", "command": "python3 check.py", "timeout": 5},
                    {"type": "prompt", "prompt": "Is it safe?"},
                ]},
                {"matcher": "[A-Z]+", "hooks": [{"type": "command", "command": "x"}]},
            ],
            "PostToolUse": [{"matcher": "mcp__files__.*", "hooks": [
                {"type": "command", "command": "python3 check.py", "async": true, "timeout": 9_000},
                {"type": "command", "command": "x", "if": "Bash(git *)"},
            ]}],
            "SessionStart": [{"matcher": "startup|resume", "hooks": [{"type": "command", "command": "prog", "args": ["a b", "c"]}]}],
            "Stop": [{"hooks": [{"type": "command", "command": "notify"}]}],
            "UserPromptSubmit": [{"hooks": [{"type": "command", "command": "x"}]}],
        },
    });

    let import = import(&settings);
    let yaml = import.yaml(".claude/settings.json");
    for line in [
        "    - \"/srv/claude-hooks/claude-pre-tool-use-1.sh\"\n    - \"python3 check.py\"\n",
        "  - { name: \"claude-pre-tool-use-1\", hook: PreToolUse, command: \"/srv/claude-hooks/claude-pre-tool-use-1.sh\", \
         tools: [\"Bash\"], blocking: true, on_failure: allow, timeout: 60 }\n",
        "command: \"python3 check.py\", tools: [\"Bash\"], blocking: true, on_failure: allow, timeout: 5 }\n",
        "  - { name: \"claude-post-tool-use-1\", hook: PostToolUse, command: \"python3 check.py\", tools: [\"files__*\"], \
         blocking: false, timeout: 600 }\n",
        "  - { name: \"claude-stop-1\", hook: Stop, command: \"notify\", blocking: false, timeout: 60 }\n",
    ] {
        assert!(yaml.contains(line), "{line}\n{yaml}");
    }
    assert_eq!(yaml.matches("    - ").count(), 4, "each command is listed once: {yaml}");

    let scripts: Vec<(&str, &str)> = import
        .scripts
        .iter()
        .map(|script| (script.name.as_str(), script.text.as_str()))
        .collect();
    let before =
        |event: &str| format!("#!/usr/bin/env bash\n# {event} of \".claude/settings.json\", as it stands there.\n");
    let gate = before("PreToolUse") + "jq -r .tool_input.command | grep -q rm && exit 2\n";
    let start = before("SessionStart") + "prog 'a b' c\n";
    assert_eq!(
        scripts,
        [
            ("claude-pre-tool-use-1.sh", gate.as_str()),
            ("claude-session-start-1.sh", start.as_str())
        ]
    );

    assert_eq!(import.left_out.len(), 5, "{:?}", import.left_out);
    for (line, word) in import.left_out.iter().zip([
        "prompt",
        "[A-Z]+",
        "`if`",
        "UserPromptSubmit",
        "permissions.deny, 1 rules",
    ]) {
        assert!(line.contains(word), "{line}");
    }
    assert_eq!(import.tools, BTreeSet::from(["Bash".to_owned()]));
}

#[test]
fn an_import_that_leaves_something_out_writes_the_rest_and_fails() {
    let here = tempfile::tempdir().expect("a directory");
    let stop = json!({"Stop": [{"hooks": [{"type": "command", "command": "notify"}]}]});
    let guard = json!({"UserPromptSubmit": [{"hooks": [{"type": "command", "command": "x"}]}], "Stop": stop["Stop"]});

    for (name, settings, error) in [
        (
            "whole",
            json!({"hooks": stop, "permissions": {"allow": ["Read"], "deny": []}}),
            None,
        ),
        ("event", json!({"hooks": guard}), Some("1 entry was left out")),
        (
            "rules",
            json!({"hooks": stop, "permissions": {"deny": ["Read(.env)"]}}),
            Some("1 entry was left out"),
        ),
    ] {
        let file = here.path().join(format!("{name}.json"));
        std::fs::write(&file, settings.to_string()).expect("written");
        let out = here.path().join(format!("{name}.yaml"));
        let scripts = here.path().join(name);
        let options = ImportOptions {
            file,
            out: out.clone(),
            scripts,
        };
        let done = write(&Common::default(), &options);

        assert!(
            std::fs::read_to_string(&out).expect("written").contains("notify"),
            "{name}"
        );
        let said = done.err().map(|error| error.to_string());
        match error {
            None => assert_eq!(said, None),
            Some(error) => assert!(said.as_deref().unwrap_or_default().contains(error), "{name}: {said:?}"),
        }
    }
}
