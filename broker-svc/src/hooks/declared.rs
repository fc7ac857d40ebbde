//! One declared hook: its point, the calls that it is for, and its action. *Pure.*
//!
//! Source: `docs/design/sessions.md` §7; seed 004 §3 for command hooks. An unknown key is a fault that names it, and
//! every fault of a declaration is found at once.

use serde_json::{Map, Value};
use shared::model::permission::{glob_matches, pattern_fault};
use shared::process::config::KeyFault;

use super::builtin::BuiltinHook;
use super::condition::ArgumentCondition;
use super::fault::FieldReader;
use super::outcome::HookContext;
use super::point::HookPoint;
use super::reminder::{ReminderTrigger, TurnReminder};

/// Time-out of a hook that declares none, or 0, milliseconds.
pub const DEFAULT_TIMEOUT_MS: u64 = 30_000;
/// Maximum time-out of a hook, seconds.
pub const MAX_TIMEOUT_S: u64 = 600;
/// Priority of a hook that declares none; the lowest runs first.
pub const DEFAULT_PRIORITY: i32 = 50;
/// Maximum length of a hook's name, bytes.
const MAX_NAME_BYTES: usize = 100;

/// Layer in which a hook is declared; the wider layer first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum HookLayer {
    /// For every turn.
    Global,
    /// For a persona's turns.
    Persona(String),
    /// For the turns of sessions whose `persona/session` matches.
    Session(String),
}

/// Action of a hook.
#[derive(Debug, Clone, PartialEq)]
pub enum DeclaredAction {
    /// A builtin of the broker.
    Builtin(BuiltinHook),
    /// A command of the operator's, within the allow-list.
    Command {
        /// Command line as it is written.
        command: String,
    },
    /// A TypeScript hook of hook-svc's registry.
    Script {
        /// Id of the hook in the registry.
        hook: String,
    },
    /// Text for the conversation.
    Reminder(TurnReminder),
}

/// Meaning of a hook's failure for the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// The step is denied.
    Deny,
    /// The step happens all the same.
    Allow,
}

/// One declared hook.
#[derive(Debug, Clone, PartialEq)]
pub struct DeclaredHook {
    /// Name of the hook, unique among all that may run in one turn.
    pub name: String,
    /// Point at which the hook runs.
    pub point: HookPoint,
    /// Layer in which the hook is declared.
    pub layer: HookLayer,
    /// Priority; the lowest runs first.
    pub priority: i32,
    /// Globs of the tools that the hook is for; empty = all.
    pub tools: Vec<String>,
    /// Conditions on a call's arguments; all of them must hold.
    pub when: Vec<ArgumentCondition>,
    /// Maximum run time, milliseconds.
    pub timeout_ms: u64,
    /// Whether the turn waits for the hook's outcome and acts on it.
    pub blocking: bool,
    /// Meaning of the hook's failure.
    pub on_failure: OnFailure,
    /// Action of the hook.
    pub action: DeclaredAction,
}

impl DeclaredHook {
    /// Returns whether the hook must run at `context` (`should_trigger` of seed 002 §2).
    #[must_use]
    pub fn should_trigger(&self, context: &HookContext) -> bool {
        if !self.point.is_of_a_call() {
            return true;
        }
        let tool = &context.tool_name;
        (self.tools.is_empty() || self.tools.iter().any(|pattern| glob_matches(pattern, tool)))
            && self
                .when
                .iter()
                .all(|condition| condition.holds_for(&context.tool_args))
    }

    /// Returns whether the next step waits for this hook's permission.
    #[must_use]
    pub const fn is_gate(&self) -> bool {
        self.blocking && self.point.is_gate()
    }

    /// Returns whether the hook has effects outside, or asks a human.
    #[must_use]
    pub const fn has_side_effects(&self) -> bool {
        match &self.action {
            DeclaredAction::Builtin(builtin) => builtin.has_side_effects(),
            DeclaredAction::Command { .. } | DeclaredAction::Script { .. } => true,
            DeclaredAction::Reminder(_) => false,
        }
    }

    /// Returns the sort key of the hooks of a point: priority, layer, name.
    #[must_use]
    pub fn sort_key(&self) -> (i32, HookLayer, String) {
        (self.priority, self.layer.clone(), self.name.clone())
    }

    /// Returns the hook's name among all hooks of all layers.
    #[must_use]
    pub fn key(&self) -> String {
        match &self.layer {
            HookLayer::Global => self.name.clone(),
            HookLayer::Persona(persona) => format!("{persona}:{}", self.name),
            HookLayer::Session(pattern) => format!("{pattern}:{}", self.name),
        }
    }
}

/// Reads one declaration, which is at the path `at` in its file.
pub(super) fn read_hook(
    map: &Map<String, Value>,
    at: &str,
    layer: &HookLayer,
    faults: &mut Vec<KeyFault>,
) -> Option<DeclaredHook> {
    let before = faults.len();
    let mut fields = FieldReader {
        map: map.clone(),
        at,
        faults,
    };

    // All faults are collected, so that a file is corrected in one pass.
    let point = read_point(&mut fields);
    let action = read_action(&mut fields, point);
    let given: Option<String> = fields.take("name");

    // A declaration whose action cannot be read has no default name either.
    let is_named = given.is_some() || action.is_some();
    let name = given.unwrap_or_else(|| action.as_ref().map(default_name).unwrap_or_default());
    if is_named && (name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control)) {
        fields.add_fault(
            "name",
            format!("expected 1 to {MAX_NAME_BYTES} bytes without control characters"),
        );
    }

    let priority = fields.take("priority").unwrap_or(DEFAULT_PRIORITY);
    let tools: Vec<String> = fields.take("tools").unwrap_or_default();
    for problem in tools.iter().filter_map(|pattern| pattern_fault(pattern)) {
        fields.add_fault("tools", problem);
    }

    let when = ArgumentCondition::read_all(&mut fields);
    // Points outside of a call have no tool that a condition could be about.
    if let Some(point) = point.filter(|point| !point.is_of_a_call())
        && !(tools.is_empty() && when.is_empty())
    {
        fields.add_fault("tools", format!("tools and when have no meaning at {}", point.name()));
    }

    let seconds: Option<u64> = fields.take("timeout");
    if seconds.is_some_and(|seconds| seconds > MAX_TIMEOUT_S) {
        fields.add_fault("timeout", format!("expected seconds, at most {MAX_TIMEOUT_S}"));
    }

    let timeout_ms = match seconds {
        None | Some(0) => DEFAULT_TIMEOUT_MS,
        Some(seconds) => seconds.saturating_mul(1_000),
    };
    // By default the turn waits for all hooks but commands.
    let waits = action.as_ref().is_some_and(waits_by_itself);
    let blocking = fields.take("blocking").unwrap_or(waits);
    let on_failure = on_failure(&mut fields, action.as_ref(), point, blocking);

    if let Some(DeclaredAction::Builtin(BuiltinHook::ShellAllowList { .. })) = &action
        && tools.is_empty()
    {
        fields.add_fault("tools", "required: the tools whose argument is a command line");
    }

    // Keys that no field took are misspelled.
    fields.reject_unknown("name, hook, builtin, command, script, reminder, with, trigger, tools, when, priority, timeout, blocking or on_failure");
    let (Some(point), Some(action), true) = (point, action, faults.len() == before) else {
        return None;
    };

    Some(DeclaredHook {
        name,
        point,
        layer: layer.clone(),
        priority,
        tools,
        when,
        timeout_ms,
        blocking,
        on_failure,
        action,
    })
}

fn read_point(fields: &mut FieldReader<'_>) -> Option<HookPoint> {
    let Some(name) = fields.take::<String>("hook") else {
        fields.add_fault("hook", "required: the point at which it runs");
        return None;
    };
    let point = HookPoint::from_name(&name);
    if point.is_none() {
        let names: Vec<&str> = HookPoint::ALL.iter().map(|point| point.name()).collect();
        let problem = format!("unknown point `{name}`: expected one of {}", names.join(", "));
        fields.add_fault("hook", problem);
    }

    point
}

fn read_action(fields: &mut FieldReader<'_>, point: Option<HookPoint>) -> Option<DeclaredAction> {
    let builtin: Option<String> = fields.take("builtin");
    let command: Option<String> = fields.take("command");
    let script: Option<String> = fields.take("script");
    let text: Option<String> = fields.take("reminder");
    let with: Option<Map<String, Value>> = fields.take("with");
    let trigger: Option<Value> = fields.take("trigger");

    // Nothing else can be checked if the kind is not clear.
    let kinds = [&builtin, &command, &script, &text].into_iter().flatten().count();
    if kinds != 1 {
        fields.add_fault(
            "",
            format!("expected exactly one of builtin, command, script and reminder, found {kinds}"),
        );
        return None;
    }

    if with.is_some() && builtin.is_none() {
        fields.add_fault("with", "only builtins have parameters");
    }

    if trigger.is_some() && text.is_none() {
        fields.add_fault("trigger", "only reminders have a trigger");
    }

    if let Some(name) = builtin {
        let builtin = BuiltinHook::from_declaration(&name, with.unwrap_or_default(), point, fields)?;
        return Some(DeclaredAction::Builtin(builtin));
    }

    if let Some(text) = text {
        if let Some(point) = point.filter(|point| !point.allows_injection()) {
            fields.add_fault(
                "reminder",
                format!("a reminder cannot add text to the conversation at {}", point.name()),
            );
        }

        let trigger = ReminderTrigger::from_declaration(trigger, fields)?;
        return Some(DeclaredAction::Reminder(TurnReminder { text, trigger }));
    }

    if let Some(hook) = script {
        return Some(DeclaredAction::Script { hook });
    }

    let command = command.filter(|command| !command.trim().is_empty());
    if command.is_none() {
        fields.add_fault("command", "must not be empty");
    }

    command.map(|command| DeclaredAction::Command { command })
}

/// Returns whether the turn waits for a hook by default: only a command fires without being waited for.
const fn waits_by_itself(action: &DeclaredAction) -> bool {
    match action {
        DeclaredAction::Builtin(_) | DeclaredAction::Script { .. } | DeclaredAction::Reminder(_) => true,
        DeclaredAction::Command { .. } => false,
    }
}

fn default_name(action: &DeclaredAction) -> String {
    match action {
        DeclaredAction::Builtin(builtin) => builtin.name().to_owned(),
        DeclaredAction::Command { command } => command.split_whitespace().next().unwrap_or_default().to_owned(),
        DeclaredAction::Script { hook } => hook.clone(),
        DeclaredAction::Reminder(_) => "reminder".to_owned(),
    }
}

/// Returns the meaning of a failure: a gate denies and a rewriter of results withholds the result; all others fail
/// open.
fn on_failure(
    fields: &mut FieldReader<'_>,
    action: Option<&DeclaredAction>,
    point: Option<HookPoint>,
    blocking: bool,
) -> OnFailure {
    // A gate that fails must not let the call through, and a redactor that fails must not show the result.
    let closed = point.is_some_and(|point| point.is_gate() || point == HookPoint::PostToolUse);
    let rewrites = match action {
        Some(DeclaredAction::Builtin(builtin)) => !builtin.observes_after(point),
        Some(DeclaredAction::Command { .. } | DeclaredAction::Script { .. }) => true,
        Some(DeclaredAction::Reminder(_)) | None => false,
    };

    let usual = if closed && blocking && rewrites {
        OnFailure::Deny
    } else {
        OnFailure::Allow
    };

    match fields.take::<String>("on_failure").as_deref() {
        None => usual,
        Some("deny") if closed && blocking => OnFailure::Deny,
        Some("deny") => {
            fields.add_fault(
                "on_failure",
                "only a blocking hook at pre_stream, post_stream, PreToolUse or PostToolUse can deny",
            );
            usual
        }
        Some("allow") if !matches!(action, Some(DeclaredAction::Builtin(_))) => OnFailure::Allow,
        Some("allow") => {
            fields.add_fault("on_failure", "a builtin always denies if it fails");
            usual
        }
        Some(other) => {
            fields.add_fault("on_failure", format!("`{other}` found, expected deny or allow"));
            usual
        }
    }
}
