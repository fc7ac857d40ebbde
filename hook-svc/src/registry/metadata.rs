//! Parses the header of a hook file: its JSDoc block, and whether the file parses at all. *Pure.*
//!
//! Source: `docs/design/hooks.md` §1; seed 003 §9.3. The block is the file's first `/** … */` with a tag known here,
//! else its first one. Unknown tags are kept; a malformed known tag is an error that names its line, never a silent
//! default.

use oxc_allocator::Allocator;
use oxc_parser::{Parser, ParserReturn};
use oxc_span::SourceType;
use shared::model::hook::{HookMetadata, HookMode};
use shared::model::time::UnixMillis;
use shared::process::config::is_plain_name;
use shared::schedule::{admission, zone_named};

use crate::host::server_origin::{MAX_ORIGINS, ServerOrigin};
use crate::routing::prefilter::{MatchRule, ParseRuleError};

/// Longest time-out of a hook, in milliseconds.
pub const MAX_TIMEOUT_MS: u64 = 300_000;

/// Longest source of a hook, in bytes.
pub const MAX_SOURCE_BYTES: usize = 128 * 1024;

/// Longest name of a hook, in characters.
const MAX_NAME_CHARS: usize = 200;

/// Most schedules of one hook.
pub const MAX_SCHEDULES: usize = 16;

/// Most channels that one hook may need.
const MAX_NEEDED_CHANNELS: usize = 8;

/// Zone in which a schedule is checked if its hook names none: the firing times depend on the zone, their frequency
/// does not.
const ANY_ZONE: &str = "UTC";

/// Time from which the distance of firings is checked. A schedule may be over: the file stays a hook.
const SINCE: UnixMillis = UnixMillis(0);

/// Stack of the parsing thread in bytes: enough for [`MAX_SOURCE_BYTES`] of only opening brackets, for each of which
/// the parser recurses. Reserved, but not used, for any normal file.
const PARSER_STACK_BYTES: usize = 1024 * 1024 * 1024;

/// Tags that have a meaning here.
const KNOWN: [&str; 11] = [
    "name",
    "description",
    "mode",
    "priority",
    "schedule",
    "timezone",
    "timeout",
    "fallback",
    "match",
    "allow",
    "needs-channel",
];

/// Error for a file that is no valid hook.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct ParseHookError {
    /// Line of the fault, counted from 1.
    pub line: usize,
    /// Fault that was found.
    pub fault: HookFault,
}

/// Fault of a hook file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HookFault {
    /// The file is longer than allowed.
    #[error("the file has {0} bytes; at most {MAX_SOURCE_BYTES} are allowed")]
    TooLong(usize),
    /// The file is not valid TypeScript.
    #[error("{0}")]
    Syntax(String),
    /// The file has no default export to call.
    #[error("the file has no default export")]
    NoDefaultExport,
    /// A known tag has an invalid value.
    #[error("@{tag} {value:?}: expected {expected}")]
    Malformed {
        /// Name of the tag.
        tag: String,
        /// Value of the tag, as written.
        value: String,
        /// Description of valid values.
        expected: &'static str,
    },
    /// A schedule is not accepted, or a zone is unknown.
    #[error("@{tag} {value:?}: {why}")]
    Time {
        /// Name of the tag.
        tag: String,
        /// Value of the tag, as written.
        value: String,
        /// Reason for the rejection, for people.
        why: String,
    },
    /// The hook has more schedules than allowed.
    #[error("more than {MAX_SCHEDULES} @schedule tags")]
    Schedules,
    /// A tag that may occur once is repeated.
    #[error("duplicate tag @{0}")]
    Twice(String),
    /// The parser thread could not be run.
    #[error("failed to run the parser")]
    Parser,
}

/// Parses the metadata of hook `id` from its `source`.
///
/// # Errors
/// Returns [`ParseHookError`] if the source is not TypeScript, has no default export, or has a malformed known tag.
pub fn parse(id: &str, source: &str) -> Result<HookMetadata, ParseHookError> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(ParseHookError {
            line: 1,
            fault: HookFault::TooLong(source.len()),
        });
    }

    let docs = on_deep_stack(|| doc_comments(source))?;
    let has_known = |doc: &&Vec<Tag>| doc.iter().any(|tag| KNOWN.contains(&tag.name.as_str()));
    let tags = docs.iter().find(has_known).or(docs.first());

    read_metadata(id, tags.map_or(&[], Vec::as_slice))
}

/// One tag of a JSDoc block.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tag {
    line: usize,
    name: String,
    value: String,
}

// The parser recurses as deep as brackets nest and has no limit of its own.
fn on_deep_stack<T: Send>(parse: impl FnOnce() -> Result<T, ParseHookError> + Send) -> Result<T, ParseHookError> {
    let failed = || ParseHookError {
        line: 1,
        fault: HookFault::Parser,
    };

    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new()
            .name("parse-hook".to_owned())
            .stack_size(PARSER_STACK_BYTES);
        let thread = builder.spawn_scoped(scope, parse).map_err(|_| failed())?;
        thread.join().unwrap_or_else(|_| Err(failed()))
    })
}

fn doc_comments(source: &str) -> Result<Vec<Vec<Tag>>, ParseHookError> {
    let allocator = Allocator::default();
    let parsed = Parser::new(&allocator, source, SourceType::ts()).parse();
    check_syntax(source, &parsed)?;
    let comments = parsed.program.comments.iter();
    let blocks = comments.filter_map(|comment| {
        let (start, end) = (comment.span.start as usize, comment.span.end as usize);
        let body = source.get(start..end)?.strip_prefix("/**")?.strip_suffix("*/")?;
        Some(read_tags(body, line_of(source, start)))
    });

    Ok(blocks.collect())
}

fn check_syntax(source: &str, parsed: &ParserReturn<'_>) -> Result<(), ParseHookError> {
    if let Some(diagnostic) = parsed.diagnostics.errors().next() {
        let at = diagnostic.labels.first().map_or(0, |label| label.offset() as usize);
        let fault = HookFault::Syntax(diagnostic.message.to_string());
        return Err(ParseHookError {
            line: line_of(source, at),
            fault,
        });
    }

    let record = &parsed.module_record;
    let mut exports = record
        .local_export_entries
        .iter()
        .chain(&record.indirect_export_entries);

    // `export { hook as default }` is only among the exported bindings.
    if exports.any(|entry| entry.export_name.is_default()) || record.exported_bindings.contains_key("default") {
        return Ok(());
    }

    Err(ParseHookError {
        line: line_of(source, source.len()),
        fault: HookFault::NoDefaultExport,
    })
}

fn line_of(source: &str, at: usize) -> usize {
    1 + source.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count()
}

fn read_tags(body: &str, first_line: usize) -> Vec<Tag> {
    let mut tags: Vec<Tag> = Vec::new();
    let mut continues = false;
    for (offset, line) in body.lines().enumerate() {
        let line = line.trim().trim_start_matches('*').trim();
        if let Some(tag) = line.strip_prefix('@') {
            let (name, value) = tag.split_once(char::is_whitespace).unwrap_or((tag, ""));
            tags.push(Tag {
                line: first_line + offset,
                name: name.to_owned(),
                value: value.trim().to_owned(),
            });

            // Text may continue on further lines; a value such as a mode may not.
            continues = name == "description" || name == "match" || !KNOWN.contains(&name);
        } else if line.is_empty() {
            continues = false;
        } else if continues && let Some(tag) = tags.last_mut() {
            let space = if tag.value.is_empty() { "" } else { " " };
            tag.value.push_str(space);
            tag.value.push_str(line);
        }
    }

    tags
}

fn read_metadata(id: &str, tags: &[Tag]) -> Result<HookMetadata, ParseHookError> {
    let mut metadata = HookMetadata::from_name(id.to_owned());
    let mut seen = std::collections::HashSet::new();
    for tag in tags {
        let fault = |fault| ParseHookError { line: tag.line, fault };
        if tag.name != "schedule" && KNOWN.contains(&tag.name.as_str()) && !seen.insert(tag.name.as_str()) {
            return Err(fault(HookFault::Twice(tag.name.clone())));
        }

        apply(&mut metadata, tag).map_err(|expected| {
            let (tag, value) = (tag.name.clone(), tag.value.clone());
            fault(HookFault::Malformed { tag, value, expected })
        })?;
    }

    check_times(&metadata, tags)?;
    Ok(metadata)
}

/// Rejects unknown zones and schedules that are not accepted, for any order of the tags.
fn check_times(metadata: &HookMetadata, tags: &[Tag]) -> Result<(), ParseHookError> {
    // After all tags are read, because the zone may follow the schedule.
    let zone = metadata.timezone.as_deref();
    let mut schedules = 0;
    for tag in tags {
        let why = match tag.name.as_str() {
            "timezone" => zone
                .and_then(|zone| zone_named(zone).err())
                .map(|error| error.to_string()),
            "schedule" => {
                schedules += 1;
                let checked = admission::check(&tag.value, zone.unwrap_or(ANY_ZONE), SINCE);
                checked.err().map(|error| error.to_string())
            }
            _ => None,
        };

        let fault = match why {
            Some(why) => HookFault::Time {
                tag: tag.name.clone(),
                value: tag.value.clone(),
                why,
            },
            None if schedules > MAX_SCHEDULES => HookFault::Schedules,
            None => continue,
        };

        return Err(ParseHookError { line: tag.line, fault });
    }

    Ok(())
}

// Applies one tag; the error is the description of valid values.
fn apply(metadata: &mut HookMetadata, tag: &Tag) -> Result<(), &'static str> {
    let value = tag.value.as_str();
    match tag.name.as_str() {
        "name" => metadata.name = name(value)?,
        "description" => metadata.description = (!value.is_empty()).then(|| value.to_owned()),
        "mode" => {
            metadata.mode = match first_word(value) {
                "persistent" => HookMode::Persistent,
                "one-shot" => HookMode::OneShot,
                _ => return Err("`persistent` or `one-shot`"),
            }
        }
        "priority" => metadata.priority = first_word(value).parse().map_err(|_| "an integer")?,
        "timeout" => {
            metadata.timeout_ms = timeout_ms(first_word(value)).ok_or("1 ms to 5 min, as `500ms`, `10s` or `2m`")?;
        }
        "schedule" => metadata
            .schedules
            .push(schedule_text(value).ok_or("`every …`, `cron …` or `rrule …`")?),
        "timezone" => metadata.timezone = Some(time_zone(first_word(value)).ok_or("a zone such as `America/Chicago`")?),
        "fallback" => match first_word(value) {
            "" => metadata.fallback = true,
            _ => return Err("nothing after it"),
        },
        "match" => metadata.match_rule = Some(match_rule(value)?),
        "allow" => metadata.allow_net = allow_net(value)?,
        "needs-channel" => metadata.needs_channels = needs_channels(first_word(value))?,
        _ => metadata.other_tags.push((tag.name.clone(), tag.value.clone())),
    }

    Ok(())
}

// The template of the seed writes `@mode persistent   // or 'one-shot'`.
fn first_word(value: &str) -> &str {
    value.split_once("//").map_or(value, |(word, _)| word).trim()
}

fn name(value: &str) -> Result<String, &'static str> {
    if value.is_empty() || value.chars().count() > MAX_NAME_CHARS || value.chars().any(char::is_control) {
        return Err("a name of 1 to 200 characters");
    }
    Ok(value.to_owned())
}

fn timeout_ms(value: &str) -> Option<u64> {
    let digits = value.len() - value.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = value.split_at(digits);
    let unit_ms = match unit.trim() {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        _ => return None,
    };

    let millis = number.parse::<u64>().ok()?.checked_mul(unit_ms)?;
    (1..=MAX_TIMEOUT_MS).contains(&millis).then_some(millis)
}

fn schedule_text(value: &str) -> Option<String> {
    let (kind, rest) = value.split_once(char::is_whitespace)?;
    (["every", "cron", "rrule"].contains(&kind) && !rest.trim().is_empty()).then(|| value.to_owned())
}

fn time_zone(value: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '-' | '+');
    (!value.is_empty() && value.chars().all(is_plain)).then(|| value.to_owned())
}

fn allow_net(value: &str) -> Result<Vec<String>, &'static str> {
    let expected = "`net=HOST[:PORT]`, at most 16 with commas between them";
    let servers = value.strip_prefix("net=").ok_or(expected)?;
    let all = ServerOrigin::parse_all(servers).map_err(|_| expected)?;
    if all.len() > MAX_ORIGINS {
        return Err(expected);
    }
    Ok(all.iter().map(ServerOrigin::to_string).collect())
}

fn needs_channels(value: &str) -> Result<Vec<String>, &'static str> {
    let expected = "`CHANNEL` or `CHANNEL:ACCOUNT`, at most 8 with commas between them";
    let needs: Vec<String> = value.split(',').map(|need| need.trim().to_owned()).collect();

    let is_need = |need: &String| match need.split_once(':') {
        Some((channel, account)) => is_plain_name(channel) && is_plain_name(account),
        None => is_plain_name(need),
    };
    if needs.len() > MAX_NEEDED_CHANNELS || !needs.iter().all(is_need) {
        return Err(expected);
    }

    Ok(needs)
}

fn match_rule(value: &str) -> Result<String, &'static str> {
    match MatchRule::parse(value) {
        Ok(_) => Ok(value.to_owned()),
        Err(ParseRuleError::Empty | ParseRuleError::NoPair(_)) => Err("`field=value[,value…]` pairs"),
        Err(ParseRuleError::UnknownField(_)) => Err(
            "fields among channel, account, source, direction, from, role, kind, peer, parent, guild, team, thread, type, tag, content and metadata.…",
        ),
        Err(ParseRuleError::UnknownValue { expected, .. }) => Err(expected),
        Err(ParseRuleError::OpenQuote) => Err("an end to every quoted value"),
        Err(ParseRuleError::TooLong) => Err("at most 32 pairs of at most 1,000 values"),
    }
}

#[cfg(test)]
mod tests;
