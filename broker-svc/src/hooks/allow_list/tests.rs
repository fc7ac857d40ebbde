use std::path::PathBuf;

use serde_json::json;

use super::*;

mod entries;
mod properties;

/// Entries that an operator might list.
const ENTRIES: [&str; 16] = [
    "ls",
    "git status",
    "git log ...",
    "git diff ...",
    "echo ...",
    "grep * src",
    "sort ...",
    "hooks/fmt.sh -w ./*",
    "make test",
    "python3 hooks/check.py",
    "cat ~/notes",
    "printf *",
    "wc -l *.txt",
    "wc -c ...",
    "file ...",
    "\"$CLAUDE_PROJECT_DIR\"/.claude/check.sh",
];

fn list() -> AllowList {
    AllowList::from_entries(ENTRIES).expect("entries")
}

/// A place without files.
fn place() -> CommandDirectories {
    CommandDirectories {
        project: PathBuf::from("/nowhere/project"),
        home: Some(PathBuf::from("/home/ann")),
    }
}

fn passes(command: &str, words: &[&str]) {
    match list().admit_command(command, &place()) {
        Ok(plain) => assert_eq!(plain.words, words, "{command}"),
        Err(refusal) => panic!("{command}: {refusal}"),
    }
}

fn refused(command: &str, refusal: &CommandRejection) {
    assert_eq!(
        list().admit_command(command, &place()).as_ref().err(),
        Some(refusal),
        "{command}"
    );
}

#[test]
fn what_is_listed_passes() {
    passes("ls", &["ls"]);
    passes("  git\tstatus ", &["git", "status"]);
    passes("git log --oneline -n 3", &["git", "log", "--oneline", "-n", "3"]);
    passes("hooks/fmt.sh -w ./cmd", &["hooks/fmt.sh", "-w", "./cmd"]);
    passes("grep 'a|b;c&d>e$f`g(h)' src", &["grep", "a|b;c&d>e$f`g(h)", "src"]);
    passes(
        "echo \"a|b;c&d>e(f)\" \\; \\$x 'it'\\''s' \"\\$x\" a\\ b {}",
        &["echo", "a|b;c&d>e(f)", ";", "$x", "it's", "$x", "a b", "{}"],
    );

    passes("echo a2>/dev/null", &["echo", "a2"]);
    passes(
        "echo 'one\ntwo' \"three\nfour\" \"five\\\nsix\"",
        &["echo", "one\ntwo", "three\nfour", "fivesix"],
    );

    passes("wc -l a*.txt", &["wc", "-l", "a*.txt"]);
    passes("echo", &["echo"]);
    passes("echo ''", &["echo", ""]);
    passes("echo -- -out", &["echo", "--", "-out"]);
    passes("echo [ a[b", &["echo", "[", "a[b"]);
}

#[test]
fn the_variables_of_a_place_are_expanded_before_anything_is_matched() {
    passes("cat ~/notes", &["cat", "/home/ann/notes"]);
    passes("cat $HOME/notes", &["cat", "/home/ann/notes"]);

    for script in [
        "$CLAUDE_PROJECT_DIR/.claude/check.sh",
        "${CLAUDE_PROJECT_DIR}/.claude/check.sh",
        "\"$CLAUDE_PROJECT_DIR\"/.claude/check.sh",
        "\"${CLAUDE_PROJECT_DIR}/.claude/check.sh\"",
        "/nowhere/project/.claude/check.sh",
    ] {
        passes(script, &["/nowhere/project/.claude/check.sh"]);
    }

    passes("echo '$HOME' \\$HOME '~'", &["echo", "$HOME", "$HOME", "~"]);
    passes("echo a~ ~", &["echo", "a~", "/home/ann"]);

    let nowhere = CommandDirectories { home: None, ..place() };
    assert_eq!(
        list().admit_command("echo ~", &nowhere),
        Err(CommandRejection::Expansion)
    );
    assert_eq!(
        list().admit_command("cat ~/notes", &nowhere),
        Err(CommandRejection::Expansion)
    );

    let relative = CommandDirectories {
        home: Some(PathBuf::from("-rf")),
        ..place()
    };
    assert_eq!(
        list().admit_command("echo $HOME", &relative),
        Err(CommandRejection::Expansion)
    );
}

#[test]
fn outputs_go_where_a_command_says() {
    let outputs = |silent, errors| CommandRedirects { silent, errors };
    for (command, expected) in [
        ("ls", CommandRedirects::default()),
        ("ls >/dev/null", outputs(true, StderrTarget::Apart)),
        ("ls 1> /dev/null", outputs(true, StderrTarget::Apart)),
        ("ls 2>/dev/null", outputs(false, StderrTarget::Nowhere)),
        ("ls 2>&1", outputs(false, StderrTarget::WithOutput)),
        ("ls >/dev/null 2>&1", outputs(true, StderrTarget::Nowhere)),
        ("ls 2>&1 >/dev/null", outputs(true, StderrTarget::WithOutput)),
    ] {
        let plain = list()
            .admit_command(command, &place())
            .unwrap_or_else(|refusal| panic!("{command}: {refusal}"));
        assert_eq!(
            (plain.words, plain.redirects),
            (vec!["ls".to_owned()], expected),
            "{command}"
        );
    }
}

#[test]
fn a_pattern_becomes_the_names_that_are_there_and_never_an_option() {
    let files = tempfile::tempdir().expect("a directory");
    for name in [
        "b.txt",
        "a.txt",
        "-rf.txt",
        ".hidden.txt",
        "c d.txt",
        "cmd/x.go",
        "cmd/y.go",
        "lib/z.go",
    ] {
        let path = files.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        std::fs::write(path, "").expect("a file");
    }

    let place = CommandDirectories {
        project: files.path().to_path_buf(),
        home: None,
    };
    let check = |command: &str, expected: &[&str]| {
        let plain = list()
            .admit_command(command, &place)
            .unwrap_or_else(|refusal| panic!("{command}: {refusal}"));
        assert_eq!(plain.words[1..], *expected, "{command}");
    };

    check("echo *.txt", &["./-rf.txt", "a.txt", "b.txt", "c d.txt"]);
    check("echo [ab].txt ?.txt", &["a.txt", "b.txt", "a.txt", "b.txt"]);
    check("echo */?.go", &["cmd/x.go", "cmd/y.go", "lib/z.go"]);
    check("echo ./cmd/* .*", &["./cmd/x.go", "./cmd/y.go", ".hidden.txt"]);
    check("echo '*.txt' no*pe", &["*.txt", "no*pe"]);
    check("wc -l *.txt", &["-l", "./-rf.txt", "a.txt", "b.txt", "c d.txt"]);

    // An entry with literal words takes no other file.
    let refusal = list().admit_command("wc -l cmd/*", &place);
    assert_eq!(refusal, Err(CommandRejection::NoEntry));
    assert_eq!(list().admit_command("echo -*", &place), Err(CommandRejection::Pattern));

    for index in 0..=1_000 {
        std::fs::write(files.path().join(format!("lib/{index}")), "").expect("a file");
    }

    let refusal = list().admit_command("echo lib/*", &place);
    assert_eq!(refusal, Err(CommandRejection::Matches("lib/*".to_owned())));
}

#[test]
fn a_second_command_is_refused_however_it_is_joined() {
    for (operator, command) in [
        ("|", "ls | sh"),
        ("||", "ls || sh"),
        ("&&", "ls && sh"),
        (";", "ls; sh"),
        ("&", "ls & sh"),
        ("&", "ls &"),
        ("|", "ls |& sh"),
        ("&", "ls &>/dev/null"),
        (";", "ls ;; sh"),
    ] {
        refused(command, &CommandRejection::Operator(operator));
    }

    refused("ls\nsh", &CommandRejection::LineBreak);
    refused("ls \\\n -l", &CommandRejection::LineBreak);
    refused("ls\rsh", &CommandRejection::Control(13));

    for command in [
        "echo $(sh)",
        "echo \"$(sh)\"",
        "echo `sh`",
        "echo \"`sh`\"",
        "echo <(sh)",
        "echo >(sh)",
    ] {
        refused(command, &CommandRejection::Substitution);
    }

    refused("(ls)", &CommandRejection::Subshell);
    refused("{ ls; }", &CommandRejection::Brace);

    for (word, command) in [
        ("!", "! ls"),
        ("time", "time ls"),
        ("eval", "eval ls"),
        ("exec", "exec ls"),
        (".", ". ls"),
    ] {
        refused(command, &CommandRejection::Reserved(word.to_owned()));
    }
}

#[test]
fn what_cannot_be_checked_is_refused() {
    for command in [
        "echo ${HOME}",
        "echo $HOMES",
        "echo \"$PATH\"",
        "echo ${CLAUDE_PROJECT_DIR:-x}",
        "echo ${CLAUDE_PROJECT_DIR",
        "echo ~root/x",
        "echo $'-delete'",
        "echo ${X}",
        "$X",
        "echo $((1))",
        "echo $",
    ] {
        let refusal = if command.contains("$(") {
            CommandRejection::Substitution
        } else {
            CommandRejection::Expansion
        };
        refused(command, &refusal);
    }

    for command in ["echo -*", "echo -[o]", "./l? x", "* x", "[a]ls"] {
        refused(command, &CommandRejection::Pattern);
    }

    refused("echo -{exec,ls}", &CommandRejection::Brace);
    refused("ls # comment", &CommandRejection::Comment);

    for command in ["ls 'a", "ls \"a", "ls \\", "ls \"a\\\""] {
        refused(command, &CommandRejection::Quotes);
    }

    for command in ["A=1 ls", "PATH=. ls", "A+=1 ls", "A=1"] {
        refused(command, &CommandRejection::Assignment);
    }

    refused("", &CommandRejection::Empty);
    refused(" \t", &CommandRejection::Empty);
    refused(">/dev/null", &CommandRejection::Empty);
    refused("''", &CommandRejection::Reserved(String::new()));
    refused(&"x".repeat(20_000), &CommandRejection::TooLong);
}

#[test]
fn a_redirect_to_a_file_is_refused() {
    for command in [
        "ls >x",
        "ls > x",
        "ls >>x",
        "ls 2>x",
        "ls >|/dev/null",
        "ls <x",
        "ls <<E",
        "ls <<<x",
        "ls <>x",
        "ls >&x",
        "ls 2>&1x",
        "ls >&",
        "ls >&-",
        "ls >&12",
        "ls >/dev/nullx",
        "ls >/dev/null/../x",
        "ls >'/dev/null'",
        "ls <&0",
        "ls </dev/null",
        "ls >>/dev/null",
        "ls >&2",
        "ls 3>/dev/null",
        "ls 1>&1",
        "ls >",
    ] {
        refused(command, &CommandRejection::Redirect);
    }
}

#[test]
fn redirects_stand_at_the_end() {
    for command in ["2>/dev/null ls", "echo 2>&1 ls", "echo >/dev/null a"] {
        refused(command, &CommandRejection::Behind);
    }
}

#[test]
fn an_entry_takes_a_whole_command_or_nothing() {
    for command in [
        "ls -l",
        "git status --short",
        "git",
        "git push",
        "gitt status",
        "make",
        "make test all",
        "$HOME/.claude/check.sh",
        "/bin/ls",
        "LS",
        "sh",
    ] {
        refused(command, &CommandRejection::NoEntry);
    }
}

#[test]
fn wildcards_take_line_breaks_and_quotes_make_them_plain() {
    let check = |entry: &str, word: &str, expected: bool| {
        let list = AllowList::from_entries([entry]).expect("an entry");
        assert_eq!(
            list.admit_command(&format!("echo '{word}'"), &place()).is_ok(),
            expected,
            "{entry}: {word:?}"
        );
    };

    check("echo a*c", "abbc", true);
    check("echo a*c", "abbcd", false);
    check("echo a*c", "a\nc", true);
    check("echo a?c", "abc", true);
    check("echo a?c", "ac", false);
    check("echo '*'", "*", true);
    check("echo '*'", "a", false);
    check("echo \\*", "*", true);
    check("echo '$HOME'", "$HOME", true);
    check("echo \"$HOME\"", "/home/ann", true);

    check("echo ...", "a\nc", true);
}

#[test]
fn what_goes_to_a_shell_elsewhere_stands_for_itself() {
    let list = AllowList::from_entries(["ls ...", "cat ~/notes"]).expect("entries");
    for command in [
        "ls -l 'a b'",
        "ls src/*.rs",
        "cat ~/notes",
        "cat $HOME/notes",
        "ls 2>&1",
    ] {
        assert_eq!(list.admit_text(command), Ok(()), "{command}");
    }

    for (command, refusal) in [
        ("ls a$HOME", CommandRejection::Expansion),
        ("ls a~b$CLAUDE_PROJECT_DIR", CommandRejection::Expansion),
        ("ls *", CommandRejection::Pattern),
        ("ls -[l]", CommandRejection::Pattern),
        ("ls [\"-\"]ofile", CommandRejection::Pattern),
        ("ls [@-]*", CommandRejection::Pattern),
        ("ls | sh", CommandRejection::Operator("|")),
        ("cat x", CommandRejection::NoEntry),
    ] {
        assert_eq!(list.admit_text(command), Err(refusal), "{command}");
    }
}
