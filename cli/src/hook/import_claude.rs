//! `nexus hook import-claude`: converts the hooks of a Claude Code settings file to a `hooks.yaml`.
//!
//! A command that is one program with plain words is listed unchanged. Every other command that needs a shell (pipes,
//! lists, redirects, other variables, patterns) goes into a script, and the script into the list: no shell reads a
//! listed command here. Source: `docs/design/trust.md` §6.

mod matcher;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use self::matcher::{Tools, tools};
use super::start::{write_file, written_view};
use crate::args::{Common, ImportOptions};
use crate::complain;
use crate::exit::{Exit, ExitContext as _, failure};

/// Claude Code's time-out of a hook without one, in seconds.
const TIMEOUT_S: u64 = 60;
/// Longest time-out in a `hooks.yaml`, in seconds.
const MAX_TIMEOUT_S: u64 = 600;
/// Events that have an in-turn point here, each with the prefix of its hooks' names.
const EVENTS: [(&str, &str); 4] = [
    ("SessionStart", "session-start"),
    ("PreToolUse", "pre-tool-use"),
    ("PostToolUse", "post-tool-use"),
    ("Stop", "stop"),
];
/// Words of shells that are not programs.
#[rustfmt::skip]
const OF_SHELLS: [&str; 59] = [
    ".", ":", "alias", "bg", "bind", "break", "builtin", "caller", "case", "cd", "command", "compgen", "complete", "continue",
    "coproc", "declare", "dirs", "disown", "do", "enable", "eval", "exec", "exit", "export", "fc", "fg", "for", "function",
    "getopts", "hash", "help", "history", "if", "in", "jobs", "let", "local", "logout", "mapfile", "popd", "pushd", "read",
    "readarray", "readonly", "return", "select", "set", "shift", "shopt", "source", "time", "times", "trap", "type",
    "typeset", "umask", "unset", "until", "while",
];

/// A script that holds a command of the settings.
#[derive(Debug, PartialEq, Eq)]
struct Script {
    name: String,
    text: String,
}

/// Result of the conversion of a settings file.
#[derive(Debug, Default)]
struct Import {
    /// Commands of the allow-list.
    allow: Vec<String>,
    /// Lines of the list of hooks.
    hooks: Vec<String>,
    scripts: Vec<Script>,
    /// Hooks and lists of permissions that are not imported, each with the reason.
    left_out: Vec<String>,
    /// Names of Claude Code's own tools in the matchers.
    tools: BTreeSet<String>,
}

/// Reads the settings file and writes the `hooks.yaml` and the scripts.
///
/// # Errors
/// Fails if the settings cannot be read, if no hook can be imported, or if a file to be written exists already; also,
/// after everything was written, if a hook or a list of permissions was left out: it may have been a guard.
pub(super) fn write(common: &Common, options: &ImportOptions) -> Result<()> {
    let source = options.file.display().to_string();
    let text = std::fs::read_to_string(&options.file).with_context(|| format!("failed to read {source}"));
    let settings = serde_json::from_str(&text.exit(Exit::Usage)?);
    let settings: Value = settings
        .with_context(|| format!("{source} is not valid JSON"))
        .exit(Exit::Usage)?;

    let folder = std::path::absolute(&options.scripts).context("failed to find the directory of the scripts")?;
    let folder = folder.to_str().filter(|path| is_plain(path));
    let Some(folder) = folder else {
        let text = "--scripts: expected a path of letters, digits, `_`, `.`, `-` and `/`";
        return Err(failure(Exit::Usage, text));
    };

    let import = Import::read(&settings, &source, folder);
    for line in &import.left_out {
        complain!("not imported: {line}");
    }
    if import.hooks.is_empty() {
        let text = format!("{source} has no hook that can be imported");
        return Err(failure(Exit::Refused, text));
    }

    // All checks come before the first write.
    let scripts: Vec<_> = import
        .scripts
        .iter()
        .map(|script| Path::new(folder).join(&script.name))
        .collect();
    let taken: Vec<String> = scripts
        .iter()
        .chain([&options.out])
        .filter(|path| path.exists())
        .map(|path| path.display().to_string())
        .collect();
    if !taken.is_empty() {
        let text = format!(
            "{} exist already; --out and --scripts name other places",
            taken.join(", ")
        );
        return Err(failure(Exit::Refused, text));
    }

    for (path, script) in scripts.iter().zip(&import.scripts) {
        write_file(path, &script.text)?;
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path, executable)
            .with_context(|| format!("failed to make {} executable", path.display()))?;
    }

    write_file(&options.out, &import.yaml(&source))?;

    if !import.tools.is_empty() {
        let names: Vec<&str> = import.tools.iter().map(String::as_str).collect();
        complain!(
            "{}: tools of Claude Code are named: {}; write how the tools of your agents are called, or these hooks see no call",
            options.out.display(),
            names.join(", ")
        );
    }

    let written: Vec<String> = scripts
        .iter()
        .chain([&options.out])
        .map(|path| path.display().to_string())
        .collect();
    let next = format!(
        "files.hooks = \"{}\" in nexus.toml; nexus config check",
        options.out.display()
    );
    written_view(&written, &next)?.show(common)?;
    check_complete(&import, options, &source)
}

/// Fails if a hook or a list of permissions was left out.
fn check_complete(import: &Import, options: &ImportOptions, source: &str) -> Result<()> {
    let entries = match import.left_out.len() {
        0 => return Ok(()),
        1 => "1 entry was".to_owned(),
        count => format!("{count} entries were"),
    };

    let out = options.out.display();
    let text =
        format!("{out} does not guard what {source} guards: {entries} left out, as listed above; write them by hand");
    Err(failure(Exit::No, text))
}

impl Import {
    /// Converts all of `settings`, which were read from `source`; the scripts go into `folder`.
    fn read(settings: &Value, source: &str, folder: &str) -> Self {
        let mut import = Self::default();
        for (event, groups) in settings["hooks"].as_object().into_iter().flatten() {
            let Some((_, name)) = EVENTS.iter().find(|(known, _)| known == event) else {
                import.left_out.push(format!("{event}: Nexus has no such hook point"));
                continue;
            };

            let hooks = groups.as_array().into_iter().flatten().flat_map(|group| {
                let hooks = group["hooks"].as_array().into_iter().flatten();
                hooks.map(move |hook| (group["matcher"].as_str().unwrap_or_default(), hook))
            });
            for (index, (matcher, hook)) in hooks.enumerate() {
                let name = format!("claude-{name}-{}", index + 1);
                if let Err(why) = import.add(event, &name, matcher, hook, (source, folder)) {
                    import.left_out.push(format!("{event}, hook {}: {why}", index + 1));
                }
            }
        }

        for list in ["deny", "ask"] {
            let rules = settings["permissions"][list].as_array().map_or(0, Vec::len);
            if rules > 0 {
                let rest = "`permissions` and `requires_confirmation` of a persona guard tools here";
                import
                    .left_out
                    .push(format!("permissions.{list}, {rules} rules: {rest}"));
            }
        }

        import
    }

    /// Adds one hook of `event`.
    ///
    /// # Errors
    /// Returns the reason, for people, if the hook cannot be imported.
    fn add(&mut self, event: &str, name: &str, matcher: &str, hook: &Value, place: (&str, &str)) -> Result<(), String> {
        let kind = hook["type"].as_str().unwrap_or("command");
        if kind != "command" {
            return Err(format!("a hook of type `{kind}`; only commands can be imported"));
        }
        if hook.get("if").is_some_and(|rule| !rule.is_null()) {
            return Err("`if` is not supported; test the call in the command".to_owned());
        }
        if hook["shell"].as_str().is_some_and(|shell| shell != "bash") {
            return Err("only commands for bash can be imported".to_owned());
        }

        let command = command(hook).ok_or("no command")?;
        let is_of_a_call = event.ends_with("ToolUse");
        let tools = match (is_of_a_call, matcher) {
            (true, matcher) => tools(matcher)?,
            (false, "" | "*") => Tools::default(),
            (false, matcher) if event == "SessionStart" && matcher.split('|').any(|one| one == "startup") => {
                Tools::default()
            }
            (false, matcher) => return Err(format!("its matcher `{matcher}` is not supported at this point")),
        };

        let mut fields = vec![format!("name: {}", json!(name)), format!("hook: {event}")];
        let listed = self.listed(&command, event, name, place);
        fields.push(format!("command: {}", json!(listed)));
        if !self.allow.contains(&listed) {
            self.allow.push(listed);
        }

        if !tools.globs.is_empty() {
            fields.push(format!("tools: {}", json!(tools.globs)));
        }
        self.tools.extend(tools.of_claude);

        let is_beside = event == "Stop" || hook["async"] == json!(true);
        fields.push(format!("blocking: {}", !is_beside));
        if is_of_a_call && !is_beside {
            fields.push("on_failure: allow".to_owned());
        }

        let seconds = hook["timeout"]
            .as_f64()
            .map_or(TIMEOUT_S, |seconds| seconds.ceil() as u64);
        fields.push(format!("timeout: {}", seconds.clamp(1, MAX_TIMEOUT_S)));
        self.hooks.push(format!("  - {{ {} }}", fields.join(", ")));

        Ok(())
    }

    /// Returns the entry of the list for `command`: the command itself, or the script that holds it.
    fn listed(&mut self, command: &str, event: &str, name: &str, (source, folder): (&str, &str)) -> String {
        if is_one_program(command) {
            return command.to_owned();
        }

        let script = format!("{name}.sh");
        let listed = format!("{folder}/{script}");
        self.scripts.push(Script {
            name: script,
            text: format!(
                "#!/usr/bin/env bash\n# {event} of {}, as it stands there.\n{command}\n",
                json!(source)
            ),
        });

        listed
    }

    /// Returns the text of the `hooks.yaml`.
    fn yaml(&self, source: &str) -> String {
        let mut text = format!(
            "# Hooks of {}, by `nexus hook import-claude`.\n# `on_failure: allow` is what Claude Code does; without it a \
             command that fails refuses the call.\nenabled: true\nallow:\n  all:\n",
            json!(source)
        );
        for command in &self.allow {
            let _ = writeln!(text, "    - {}", json!(command));
        }

        text.push_str("hooks:\n");
        for hook in &self.hooks {
            let _ = writeln!(text, "{hook}");
        }

        text
    }
}

/// Returns the command of `hook` in a shell's syntax; with `args`, the command is a program and its words.
fn command(hook: &Value) -> Option<String> {
    let command = hook["command"].as_str().filter(|command| !command.trim().is_empty())?;
    let Some(args) = hook["args"].as_array() else {
        return Some(command.trim().to_owned());
    };

    let words = args.iter().map(|word| word.as_str().map(quoted));
    let words: Vec<String> = words.collect::<Option<_>>()?;
    Some([quoted(command)].into_iter().chain(words).collect::<Vec<_>>().join(" "))
}

/// Returns `word` quoted so that a shell reads it as one word.
fn quoted(word: &str) -> String {
    if is_plain(word) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Returns whether no character of `text` has a meaning for a shell.
fn is_plain(text: &str) -> bool {
    let is_harmless = |c: char| c.is_ascii_alphanumeric() || "_./:=,@%+-".contains(c);
    !text.is_empty() && text.chars().all(is_harmless)
}

/// Returns whether the reader of the allow-list accepts `command` unchanged: one program and its words, in which only
/// the project and the home directory are expanded. A command that is wrongly rejected here goes into a script and
/// means the same there.
fn is_one_program(command: &str) -> bool {
    if command.matches('"').count() % 2 == 1 || command.contains("\"\"") {
        return false;
    }

    let mut rest = command.to_owned();
    for (name, is_whole) in [
        ("${CLAUDE_PROJECT_DIR}", true),
        ("$CLAUDE_PROJECT_DIR", false),
        ("$HOME", false),
    ] {
        while let Some(at) = rest.find(name) {
            let after = rest[at + name.len()..].chars().next();
            let goes_on = after.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
            if goes_on && !is_whole {
                return false;
            }
            rest.replace_range(at..at + name.len(), "x");
        }
    }

    // Within quotes a tilde and blanks are plain characters, for the reader of the list too.
    let unquoted = rest.replace('"', "");
    let words: Vec<&str> = unquoted.split(' ').filter(|word| !word.is_empty()).collect();
    let are_plain = words.iter().all(|word| {
        let word = word.strip_prefix("~/").unwrap_or(word);
        *word != *"..." && is_plain(word)
    });
    let is_program = words
        .first()
        .is_some_and(|name| !name.contains('=') && !OF_SHELLS.contains(name));

    are_plain && is_program && !command.contains("\"~") && command.chars().all(|c| c != '\n' && c != '\t')
}

#[cfg(test)]
mod tests;
