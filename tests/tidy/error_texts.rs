//! The texts that operators read: errors, faults of the configuration, log lines and help. Every one is listed with its
//! place below the target directory, and keeps the rules of plain
//! English that a machine can check.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use clap::CommandFactory as _;

use crate::check;
use crate::source::{Source, contains_word, root, sources};

/// Forms in the code whose literals are such texts.
const FORMS: &str = "#[error( with_context( context( anyhow!( bail!( ensure!( KeyFault::new( KeyFault::whole( \
                     persona_fault( add_fault( faults.push( failure( complain!( map_err( Finding::fault( \
                     Finding::warning( tracing::debug!( tracing::info!( tracing::warn!( tracing::error!(";
/// Words that no text has: of Rust and serde, or of a private vocabulary.
const WORDS: &str = "variant, i64, u32, u64, usize, invalid type, expected struct, serde, anew, upon, whoever, whatever, \
                     somebody, nobody, wants, comes of, is told, is expected, are expected, is no address, under way, stands, gone on";
/// Places of one machine.
const MACHINE_PATHS: &str = "/home/ /root/ /work/ /usr/local/";
/// Verbs with which a context would read like an instruction: `read the token` for `failed to read the token`.
const VERBS: &str = "ask create find list listen make open post put read remove start store write";

/// A text and its place.
struct Text {
    /// `path:line`, or the command that prints it.
    place: String,
    form: &'static str,
    text: String,
}

/// Returns the index of the character behind each `form` in `code`.
fn calls(code: &str, form: &str) -> Vec<usize> {
    let found = code.match_indices(form);
    found
        .map(|(at, form)| code[..at + form.len()].chars().count())
        .collect()
}

/// Returns the end of the call whose opening bracket ends before `at`.
fn end_of_call(code: &[char], mut at: usize) -> usize {
    let mut depth = 1;
    while depth > 0 && at < code.len() {
        match code[at] {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    at
}

/// Returns the string literals of `text` between `from` and `to`, each with its index. Their insides, and those of
/// comments, are blank in `code`.
fn literals(code: &[char], text: &[char], from: usize, to: usize) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut at = from;
    while at < to {
        if text[at] == '/' && text.get(at + 1) == Some(&'/') && code[at] == ' ' {
            at += text[at..].iter().take_while(|c| **c != '\n').count();
        } else if text[at] == '"' {
            let (begin, mut literal) = (at, String::new());
            at += 1;
            while text[at] != '"' {
                match (text[at], text[at + 1]) {
                    // A line that goes on continues at its first word.
                    ('\\', '\n') => at += 1 + text[at + 1..].iter().take_while(|c| c.is_whitespace()).count(),
                    ('\\', escaped) => {
                        literal.push(if escaped == 'n' { ' ' } else { escaped });
                        at += 2;
                    }
                    (plain, _) => {
                        literal.push(plain);
                        at += 1;
                    }
                }
            }
            found.push((begin, literal));
        }
        at += 1;
    }
    found
}

/// Returns the texts of one file, outside of its tests.
fn texts_of(source: &Source) -> Vec<Text> {
    let (code, text): (Vec<char>, Vec<char>) = (source.code.chars().collect(), source.text.chars().collect());
    let shipped: usize = source.shipped_lines().map(|(_, line)| line.len() + 1).sum();
    let mut found = BTreeMap::new();

    for form in FORMS.split(' ') {
        for opened in calls(&source.code[..shipped.min(source.code.len())], form) {
            for (at, literal) in literals(&code, &text, opened, end_of_call(&code, opened)) {
                // A key, a unit or a separator is no text.
                if literal.contains(' ') && literal.len() > 2 {
                    found.entry(at).or_insert((form, literal));
                }
            }
        }
    }

    let texts = found.into_iter().map(|(at, (form, text))| {
        let line = source.text.chars().take(at).filter(|c| *c == '\n').count() + 1;
        let place = format!("{}:{line}", source.path);
        Text { place, form, text }
    });
    texts.collect()
}

/// Returns the help of `command`, of its arguments and of the commands below it.
fn help_of(command: &clap::Command, name: &str) -> Vec<Text> {
    let mut texts: Vec<String> = command.get_about().map(ToString::to_string).into_iter().collect();
    for argument in command.get_arguments() {
        texts.extend(argument.get_help().map(ToString::to_string));
        let values = argument.get_possible_values();
        texts.extend(values.iter().filter_map(|value| Some(value.get_help()?.to_string())));
    }

    let (place, form) = (name.to_owned(), "help");
    let own = texts.into_iter().map(|text| Text {
        place: place.clone(),
        form,
        text,
    });
    let children = command.get_subcommands();
    let below = children.flat_map(|child| help_of(child, &format!("{name} {}", child.get_name())));
    own.chain(below).collect()
}

/// Returns the rule that `text` breaks.
fn broken_rule(Text { form, text, .. }: &Text) -> Option<String> {
    let lower = text.to_lowercase();
    if let Some(word) = WORDS.split(", ").find(|word| contains_word(&lower, word)) {
        return Some(format!("has `{word}`"));
    }
    if let Some(path) = MACHINE_PATHS.split(' ').find(|path| text.contains(path)) {
        return Some(format!("has the path {path}"));
    }

    let is_help = *form == "help";
    let is_context = form.ends_with("context(");
    if lower.matches("failed to ").count() > 1 {
        Some("says `failed to` twice".to_owned())
    } else if !is_help && lower.ends_with('.') && !lower.ends_with("..") {
        Some("ends in a full stop".to_owned())
    } else if is_context && VERBS.split(' ').any(|verb| text.starts_with(&format!("{verb} "))) {
        Some("reads like an instruction: expected `failed to …`".to_owned())
    } else {
        None
    }
}

#[test]
fn operators_read_plain_words() {
    let is_test = |source: &Source| source.path.starts_with("tests/") || source.path.contains("/test");
    let mut shipped = sources();
    shipped.retain(|source| source.path.contains("/src/") && !is_test(source));
    let mut texts: Vec<Text> = shipped.iter().flat_map(texts_of).collect();
    texts.extend(help_of(&cli::args::Cli::command(), "nexus"));
    assert!(texts.len() > 1_200, "only {} texts were found", texts.len());

    let mut listing = String::new();
    for Text { place, form, text } in &texts {
        writeln!(listing, "{place}\t{form}\t{text}").expect("write to a string");
    }
    let list = root().join("target/operator-texts.tsv");
    fs::create_dir_all(root().join("target")).expect("made");
    fs::write(&list, listing).expect("written");
    println!("{} texts: {}", texts.len(), list.display());

    let broken = texts.iter().filter_map(|text| {
        let rule = broken_rule(text)?;
        Some(format!("{}: {rule}: {}", text.place, text.text))
    });
    check("an operator reads plain words", broken);
}

/// A log line in JSON would have two texts under one key.
#[test]
fn no_field_of_a_log_line_hides_its_message() {
    let is_field = |part: &str| part.trim() == "message" || part.trim().starts_with("message =");
    let mut hidden = Vec::new();
    for source in sources() {
        let code: Vec<char> = source.code.chars().collect();
        for form in FORMS.split(' ').filter(|form| form.starts_with("tracing")) {
            for opened in calls(&source.code, form) {
                let call: String = code[opened..end_of_call(&code, opened)].iter().collect();
                hidden.extend(
                    call.split([',', '('])
                        .any(is_field)
                        .then(|| format!("{}: {}", source.path, call.trim())),
                );
            }
        }
    }
    check("a log line has one message", hidden);
}
