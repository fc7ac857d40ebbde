//! Hooks that are written by tools and pushes: changes of their registry entries. *Pure.*
//!
//! Source: seed 003 §9.4; `docs/design/hooks.md` §1.2. An entry that came from a directory belongs to that directory:
//! it may be enabled and disabled, but not overwritten or deleted from elsewhere. A deleted entry keeps its source and
//! its history, and its name is free again.

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use shared::breaker::{Breaker, BreakerState};
use shared::model::channel::ConfiguredChannels;
use shared::model::hook::{HookMode, HookOrigin, HookRecord, HookState, HookStatus, MadeIn};
use shared::model::hook_api::{CreateHook, HookView, MAX_NAME, OPERATOR};
use shared::model::time::UnixMillis;

use crate::registry::active_hooks::{source_hash, waits_for};
use crate::registry::metadata;
use crate::registry::metadata::ParseHookError;

/// Reason for which a deleted entry is disabled.
pub const DELETED: &str = "deleted";

/// Longest id of a pushed hook, in bytes.
const MAX_ID_BYTES: usize = 256;

/// Names from `ctx` that a function's body may use directly.
const NAMES: [&str; 6] = ["event", "dbPath", "search", "llm", "now", "hook"];

/// Reason why a hook cannot be written as requested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthorHookError {
    /// The name is invalid.
    #[error("name {0:?}: expected 1 to {MAX_NAME} of a-z, 0-9 and `-`")]
    Name(String),
    /// The id is invalid.
    #[error("id {0:?}: expected parts of letters, digits, `.`, `_` and `-`, separated by `/`")]
    Id(String),
    /// The source is no valid hook.
    #[error("{0}")]
    Source(#[from] ParseHookError),
    /// Another hook has this id.
    #[error("hook {id} already exists ({origin})")]
    Taken {
        /// Id of the hook.
        id: String,
        /// Origin of the existing hook.
        origin: String,
    },
    /// The hook is a file of a directory, and cannot be deleted by a request.
    #[error("hook {id} is a file in directory {root}: delete the file, or run `nexus hook disable {id}`")]
    Filed {
        /// Id of the hook.
        id: String,
        /// Name of the directory.
        root: String,
    },
    /// No hook has this id.
    #[error("hook {0} does not exist")]
    Absent(String),
    /// The hook belongs to another author.
    #[error("hook {id} belongs to {author}; only its author and operators can change it")]
    Foreign {
        /// Id of the hook.
        id: String,
        /// Author of the hook.
        author: String,
    },
}

/// Checks whether `asked_by` may change `record`: operators may change every hook, others only their own.
///
/// # Errors
/// Returns [`AuthorHookError::Foreign`] if they may not.
pub fn may_change(record: &HookRecord, asked_by: Option<&str>) -> Result<(), AuthorHookError> {
    match asked_by {
        None | Some(OPERATOR) => Ok(()),
        Some(by) if by == record.created_by => Ok(()),
        Some(_) => Err(AuthorHookError::Foreign {
            id: record.id.clone(),
            author: record.created_by.clone(),
        }),
    }
}

/// Returns the source of the file that `request` asks for.
///
/// # Errors
/// Returns [`AuthorHookError`] if the name is invalid or the script does not make a hook.
pub fn file_of(request: &CreateHook) -> Result<String, AuthorHookError> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if request.name.is_empty() || request.name.len() > MAX_NAME || !request.name.chars().all(is_name) {
        return Err(AuthorHookError::Name(request.name.clone()));
    }

    let mode = match request.mode {
        HookMode::Persistent => "persistent",
        HookMode::OneShot => "one-shot",
    };
    let mut block = format!("/**\n * @name {}\n", request.name);

    // The description must be one line, without text that would end the comment.
    let description = request.description.replace("*/", "* /");
    let words: Vec<&str> = description.split_whitespace().collect();
    if !words.is_empty() {
        block.push_str(&format!(" * @description {}\n", words.join(" ")));
    }

    block.push_str(&format!(" * @mode {mode}\n */\n"));
    let source = match metadata::parse(&request.name, &request.script) {
        // The script is a whole file. Its own metadata is kept if it has any.
        Ok(metadata) if metadata.name == request.name && metadata.description.is_none() => block + &request.script,
        Ok(_) => request.script.clone(),
        Err(_) => block + &function_source(&request.script),
    };

    metadata::parse(&request.name, &source)?;
    Ok(source)
}

/// Returns the source of a function with `body`, in a block of its own so that the body may declare the same names.
fn function_source(body: &str) -> String {
    let mut source = "export default async function (ctx: HookContext): Promise<HookResult> {\n".to_owned();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    let named: Vec<&str> = NAMES
        .into_iter()
        .filter(|name| body.split(|c| !is_part(c)).any(|word| word == *name))
        .collect();
    if !named.is_empty() {
        source.push_str(&format!("  const {{ {} }} = ctx;\n", named.join(", ")));
    }

    source.push_str("  {\n");
    source.push_str(body.trim_end());
    source.push_str("\n  }\n  return { fire: false };\n}\n");

    source
}

/// Checks whether `id` may name a pushed hook.
///
/// # Errors
/// Returns [`AuthorHookError::Id`] if it may not.
pub fn check_id(id: &str) -> Result<(), AuthorHookError> {
    let is_part = |part: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        !part.is_empty() && !part.starts_with('.') && part.chars().all(plain)
    };
    if id.len() <= MAX_ID_BYTES && id.split('/').all(is_part) {
        Ok(())
    } else {
        Err(AuthorHookError::Id(id.to_owned()))
    }
}

/// A hook as an author wrote it.
#[derive(Debug, Clone, Copy)]
pub struct AuthoredHook<'a> {
    /// Id of the hook.
    pub id: &'a str,
    /// TypeScript source of the hook.
    pub source: &'a str,
    /// Author of the hook.
    pub created_by: &'a str,
    /// Way by which the hook came: a tool or a push.
    pub origin: &'a HookOrigin,
    /// Turn in which an agent made it, if the broker names one.
    pub made_in: Option<&'a MadeIn>,
}

/// Returns the record that `written` makes of `current`; `None` if the record already matches.
///
/// # Errors
/// Returns [`AuthorHookError`] if the source is no hook or the entry belongs to another author.
pub fn written_record(
    written: AuthoredHook<'_>,
    current: Option<&HookRecord>,
    now: UnixMillis,
) -> Result<Option<HookRecord>, AuthorHookError> {
    let metadata = metadata::parse(written.id, written.source)?;
    let content_hash = HEXLOWER.encode(&Sha256::digest(written.source.as_bytes()));

    let former = current.filter(|record| !is_deleted(record));
    if let Some(record) = former {
        if record.content_hash == content_hash && record.created_by == written.created_by && is_authored(record) {
            return Ok(None);
        }

        // A tool may only create hooks; a push may also replace hooks that were pushed or made by a tool.
        if *written.origin != HookOrigin::Pushed || !is_authored(record) {
            return Err(AuthorHookError::Taken {
                id: written.id.to_owned(),
                origin: describe_origin(&record.origin),
            });
        }
    }

    Ok(Some(HookRecord {
        id: written.id.to_owned(),
        source: written.source.to_owned(),
        content_hash,
        metadata,
        enabled: former.is_none_or(|record| record.enabled),
        origin: written.origin.clone(),
        created_by: written.created_by.to_owned(),
        // An operator's hook is not limited by a turn.
        made_in: written
            .made_in
            .filter(|_| written.created_by != OPERATOR)
            .cloned()
            .map(Box::new),
        created_at: former.map_or(now, |record| record.created_at),
        updated_at: now,
        disabled_reason: former.and_then(|record| record.disabled_reason.clone()),
        parse_error: None,
    }))
}

fn is_authored(record: &HookRecord) -> bool {
    match record.origin {
        HookOrigin::File { .. } => false,
        HookOrigin::Pushed | HookOrigin::Tool => true,
    }
}

fn describe_origin(origin: &HookOrigin) -> String {
    match origin {
        HookOrigin::File { root } => format!("a file of directory {root}"),
        HookOrigin::Pushed => "pushed".to_owned(),
        HookOrigin::Tool => "created by a tool".to_owned(),
    }
}

/// Returns whether the entry is deleted and kept only for its history.
#[must_use]
pub fn is_deleted(record: &HookRecord) -> bool {
    !record.enabled && record.disabled_reason.as_deref() == Some(DELETED)
}

/// Returns `record` as deleted.
///
/// # Errors
/// Returns [`AuthorHookError::Filed`] if it belongs to a directory: the file must be removed there.
pub fn deleted_record(record: &HookRecord) -> Result<HookRecord, AuthorHookError> {
    match &record.origin {
        HookOrigin::File { root } => Err(AuthorHookError::Filed {
            id: record.id.clone(),
            root: root.clone(),
        }),
        HookOrigin::Pushed | HookOrigin::Tool => Ok(disabled_record(record, Some(DELETED))),
    }
}

/// Returns `record` as disabled, with `reason`.
#[must_use]
pub fn disabled_record(record: &HookRecord, reason: Option<&str>) -> HookRecord {
    HookRecord {
        enabled: false,
        disabled_reason: reason.map(str::to_owned),
        ..record.clone()
    }
}

/// Returns `record` as enabled.
#[must_use]
pub fn enabled_record(record: &HookRecord) -> HookRecord {
    HookRecord {
        enabled: true,
        disabled_reason: None,
        ..record.clone()
    }
}

/// Returns whether `next` creates a new hook in place of `current`: its name is unused, or has only the history of a
/// deleted hook.
#[must_use]
pub fn begins_anew(current: Option<&HookRecord>, next: &HookRecord) -> bool {
    current.is_none_or(is_deleted) && !is_deleted(next)
}

/// Returns the state of a hook that is enabled again: it may fire, even if it is one-shot and has fired. Returns `None`
/// if the state needs no change.
#[must_use]
pub fn restarted_state(state: Option<&HookState>) -> Option<HookState> {
    let state = state?;
    let next = next_life(Some(state));
    (next != *state).then_some(next)
}

/// Returns the state of a hook that replaces a deleted one of the same name: it may fire, unless its breaker is open.
/// The caller writes it even if it is unchanged, so that a replica that still decides on the former revision gets a
/// conflict.
#[must_use]
pub fn next_life(state: Option<&HookState>) -> HookState {
    let state = state.cloned().unwrap_or_default();
    let status = match state.status {
        HookStatus::Disabled | HookStatus::Errored => HookStatus::Active,
        // The health is the breaker's, which closes if the source changes, a probe succeeds, or an operator resets it.
        health @ (HookStatus::Active | HookStatus::Degraded | HookStatus::Waiting | HookStatus::Paused) => health,
    };

    HookState {
        status,
        fired_once: None,
        ..state
    }
}

/// Returns the status that `breaker` implies for its hook at `now`.
#[must_use]
pub fn breaker_status(breaker: &Breaker, now: UnixMillis) -> HookStatus {
    match breaker.circuit {
        BreakerState::Closed if breaker.is_degraded(now) => HookStatus::Degraded,
        BreakerState::Closed => HookStatus::Active,
        BreakerState::Open { .. } | BreakerState::HalfOpen { .. } => HookStatus::Paused,
    }
}

/// Returns the hook as lists show it at `now`. The health comes from `breaker`, which decides about each call, and
/// counts only if it is of the source in force; the status in `state` is a copy of it that follows later.
#[must_use]
pub fn hook_view(
    record: &HookRecord,
    state: Option<&HookState>,
    breaker: Option<&Breaker>,
    channels: &ConfiguredChannels,
    now: UnixMillis,
) -> HookView {
    let state = state.cloned().unwrap_or_default();
    let metadata = &record.metadata;
    let waits = waits_for(record, channels);
    let own = breaker.filter(|breaker| breaker.content_hash == source_hash(record));
    let health = own.map_or(HookStatus::Active, |breaker| breaker_status(breaker, now));

    // An operator sees the first that applies: disabled, broken, waiting for a channel, and only then the health.
    let status = match state.status {
        _ if !record.enabled => HookStatus::Disabled,
        HookStatus::Disabled => HookStatus::Disabled,
        HookStatus::Active | HookStatus::Degraded | HookStatus::Waiting | HookStatus::Paused | HookStatus::Errored
            if record.parse_error.is_some() =>
        {
            HookStatus::Errored
        }
        HookStatus::Active | HookStatus::Degraded | HookStatus::Waiting | HookStatus::Paused if waits.is_some() => {
            HookStatus::Waiting
        }
        HookStatus::Active | HookStatus::Degraded | HookStatus::Waiting | HookStatus::Paused => health,
        HookStatus::Errored => HookStatus::Errored,
    };

    let reason = match status {
        HookStatus::Waiting => {
            waits.map(|need| format!("waits for channel `{need}`, which channels.yaml does not have"))
        }
        HookStatus::Active | HookStatus::Degraded | HookStatus::Paused | HookStatus::Disabled | HookStatus::Errored => {
            record.disabled_reason.clone()
        }
    };

    HookView {
        id: record.id.clone(),
        name: metadata.name.clone(),
        description: metadata.description.clone(),
        status,
        mode: metadata.mode,
        priority: metadata.priority,
        fallback: metadata.fallback,
        schedules: metadata.schedules.clone(),
        match_rule: metadata.match_rule.clone(),
        allow_net: metadata.allow_net.clone(),
        needs_channels: metadata.needs_channels.clone(),
        origin: record.origin.clone(),
        created_by: record.created_by.clone(),
        created_at: record.created_at,
        updated_at: record.updated_at,
        trigger_count: state.trigger_count,
        last_triggered: state.last_triggered,
        last_error: state.last_error,
        disabled_reason: reason,
        parse_error: record.parse_error.clone(),
    }
}

#[cfg(test)]
mod tests;
