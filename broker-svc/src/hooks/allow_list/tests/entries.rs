//! Tests of the entries that may be listed, and of what a listed wildcard takes.

use shared::testing::fixture_text;

use super::*;

#[test]
fn a_wildcard_takes_no_option_that_writes_or_runs() {
    for (option, command) in [
        ("-o", "sort -o x y"),
        ("-no", "sort -no x y"),
        ("-ox", "sort -ox y"),
        ("--output=x", "sort --output=x"),
        ("--ou", "sort --ou x"),
        ("--compress-program=sh", "sort --compress-program=sh x"),
        ("--output=x", "git diff --output=x"),
        ("--output", "git log --output x"),
        ("--ext-diff", "git diff --ext-diff"),
        ("-C", "file -C -m x"),
        // `--` is the value of the option before it.
        ("-ofile", "sort -T -- -ofile x"),
    ] {
        refused(command, &CommandRejection::Option(option.to_owned()));
    }

    // An option that the operator wrote out is intended.
    let list = AllowList::from_entries(["sort -o sorted *", "rg --pre cat *"]).expect("entries");
    assert!(list.admit_command("sort -o sorted a", &place()).is_ok());
    assert!(list.admit_command("rg --pre cat x", &place()).is_ok());
    assert_eq!(
        list.admit_command("sort -o sorted -oelse", &place()),
        Err(CommandRejection::Option("-oelse".to_owned()))
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "a story or a table is read from top to bottom")]
fn a_wildcard_for_a_program_that_can_do_anything_is_a_fault() {
    for entry in [
        "git ...",
        "git * status",
        "git -C * status",
        "git push ...",
        "git rebase ...",
        "/usr/bin/git ...",
        "sed -n *",
        "sed -n * f",
        "tar ...",
        "awk *",
        "find ...",
        "xargs ...",
        "env ...",
        "ssh host *",
        "rsync ...",
        "make *",
        "npm run ...",
        "python3 ...",
        "python3.11 hooks/check.py ...",
        "sh -c *",
        "sqlite3 ...",
        "LESS ...",
        // It is unknown what these programs do with their arguments.
        "my-tool ...",
        "date ...",
        "ack ...",
        "ag ...",
        "bat ...",
        "batcat *",
        "delta ...",
        "ugrep ...",
        "ssh-agent ...",
        "setarch ...",
        "linux64 ...",
        "runcon ...",
        "numactl ...",
        "choom ...",
        "uclampset ...",
        "sg ...",
        "newgrp ...",
        "fakeroot ...",
        "faketime ...",
        "eatmydata ...",
        "xvfb-run ...",
        "dbus-run-session ...",
        "rlwrap ...",
        "unbuffer ...",
        "hyperfine ...",
        "watchexec ...",
        "systemd-inhibit ...",
        "systemd-cat ...",
        "torsocks ...",
        "chpst ...",
        "gvim ...",
        "rvim ...",
        "vimdiff ...",
        "zless ...",
        "pigz ...",
        "lz4 ...",
        "brotli ...",
        "dpkg-deb ...",
        "xmllint ...",
        "exiftool ...",
        "pdftotext ...",
        // In a directory of programs, a path names no script of the operator's own.
        "/usr/bin/my-tool ...",
        "/opt/x/libexec/tool ...",
        "node_modules/.bin/my-lint ...",
        "~/.pyenv/shims/black ...",
        "./python3 ...",
        "tools/make ...",
    ] {
        let fault = AllowList::from_entries([entry]).expect_err(entry);
        assert!(
            fault.contains("by its path") && fault.contains("unsafe: true"),
            "{fault}"
        );
    }

    for entry in [
        "git status ...",
        "git -C dir status",
        "make test",
        "tar cf x.tar dir",
        "ls ...",
        "my-tool x",
        "python3 x.py",
        "/bin/ls ...",
        "./hooks/check.sh ...",
        "hooks/check.py --for *",
        "$CLAUDE_PROJECT_DIR/.claude/check.sh ...",
        "\"$CLAUDE_PROJECT_DIR\"/check ...",
    ] {
        assert!(AllowList::from_entries([entry]).is_ok(), "{entry}");
    }

    let declared = |modes: Value| {
        let modes = serde_json::from_value(modes).expect("modes");
        let mut faults = Vec::new();
        let list = AllowList::from_declaration("m", &modes, &mut faults);
        let faults: Vec<String> = faults.iter().map(|fault| fault.key.clone()).collect();
        (list, faults)
    };

    let (list, faults) = declared(json!({"m": [{"command": "git ...", "unsafe": true}, {"command": "ls"}]}));
    assert!(faults.is_empty(), "{faults:?}");
    assert!(
        list.admit_command("git -C dir -c core.fsmonitor=x status", &place())
            .is_ok()
    );

    let (_, faults) = declared(json!({
        "m": ["git ...", {"command": "make *"}, {"command": "ls", "unsafe": 1}, {"comand": "ls"}, 7, "ls 'a"],
        "other": ["", "l* x"],
    }));
    assert_eq!(
        faults,
        [
            "allow.m[0]",
            "allow.m[1]",
            "allow.m[2]",
            "allow.m[3]",
            "allow.m[4]",
            "allow.m[5]",
            "allow.other[0]",
            "allow.other[1]"
        ]
    );
}

/// Commands that run `evil` or write, with entries that would take them: each such entry is a fault, or refuses the
/// command.
#[test]
fn no_entry_lets_a_command_run_another_or_write() {
    for entry in ["git ...", "sed -n *", "sed -n * f", "tar ..."] {
        let fault = AllowList::from_entries([entry]).expect_err(entry);
        assert!(fault.contains("unsafe: true"), "{fault}");
    }

    let list = AllowList::from_entries(["git diff ...", "git grep ...", "git log ..."]).expect("entries");
    for command in [
        "git diff --output=evil-out HEAD~1",
        "git diff --outpu=evil-out",
        "git grep -O'evil' x",
        "git grep -nOevil x",
        "git grep --open-files-in-pager=evil x",
        "git log --ext-diff",
        "git -c core.fsmonitor=evil diff",
        "git --no-pager diff",
    ] {
        assert!(list.admit_command(command, &place()).is_err(), "{command}");
    }
}

/// Commands of other people's cheat sheets, drawn by lot (`tests/data/draw-harmless-commands`), each listed as it is
/// written. An operator has to write the refused ones in another way.
#[test]
fn of_two_hundred_harmless_commands_at_most_two_are_refused() {
    let text = include_str!("../../../../tests/data/harmless-commands.txt");
    let commands: Vec<&str> = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    assert_eq!(commands.len(), 200);

    let refused: Vec<String> = commands
        .iter()
        .filter_map(|command| {
            let modes = json!({"m": [{"command": command, "unsafe": true}]});
            let mut faults = Vec::new();
            let list = AllowList::from_declaration("m", &serde_json::from_value(modes).expect("modes"), &mut faults);
            let refusal = list
                .admit_command(command, &place())
                .err()
                .map(|refusal| refusal.to_string());
            let fault = faults.first().map(ToString::to_string).or(refusal)?;
            Some(format!("{command}: {fault}"))
        })
        .collect();

    println!("refused: {} of {}: {refused:#?}", refused.len(), commands.len());
    assert!(refused.len() <= 2, "{refused:#?}");
}

/// The pairs that passed an earlier list: each entry is a fault, or refuses its command.
#[test]
fn no_pair_that_ever_got_past_does_so() {
    let Some(text) = fixture_text("repro/edges/optbypass.tsv") else {
        return;
    };
    let pairs: Vec<(&str, &str)> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('\t'))
        .collect();
    assert_eq!(pairs.len(), 13, "{pairs:?}");

    for (entry, command) in pairs {
        let admitted = AllowList::from_entries([entry]).map(|list| list.admit_command(command, &place()));
        assert!(!matches!(admitted, Ok(Ok(_))), "{entry}: {command}: {admitted:?}");

        // The operator is responsible for an unsafe entry: the command must only be readable.
        let declared = json!({"m": [{"command": entry, "unsafe": true}]});
        let modes = serde_json::from_value(declared).expect("modes");
        let mut faults = Vec::new();
        let list = AllowList::from_declaration("m", &modes, &mut faults);
        assert!(faults.is_empty(), "{faults:?}");
        assert!(list.admit_command(command, &place()).is_ok(), "{entry}: {command}");
    }
}
