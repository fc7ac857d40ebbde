//! One declared hook: its point, the calls that it is for, and its action. *Pure.*
//!
//! Source: `docs/design/sessions.md` §7; seed 004 §3 for command hooks. An unknown key is a fault that names it, and
//! every fault of a declaration is found at once.

use serde_json::{Map, Value};
use shared::model::permission::{glob, pattern_fault};
use shared::process::config::KeyFault;

use super::builtin::Builtin;
use super::condition::Condition;
use super::fault::Fields;
use super::outcome::HookContext;
use super::point::Point;
use super::reminder::{Reminder, Trigger};

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
pub enum Layer {
    /// For every turn.
    Global,
    /// For a persona's turns.
    Persona(String),
    /// For the turns of sessions whose `persona/session` matches.
    Session(String),
}

/// Action of a hook.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// A builtin of the broker.
    Builtin(Builtin),
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
    Reminder(Reminder),
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
pub struct Hook {
    /// Name of the hook, unique among all that may run in one turn.
    pub name: String,
    /// Point at which the hook runs.
    pub point: Point,
    /// Layer in which the hook is declared.
    pub layer: Layer,
    /// Priority; the lowest runs first.
    pub priority: i32,
    /// Globs of the tools that the hook is for; empty = all.
    pub tools: Vec<String>,
    /// Conditions on a call's arguments; all of them must hold.
    pub when: Vec<Condition>,
    /// Maximum run time, milliseconds.
    pub timeout_ms: u64,
    /// Whether the turn waits for the hook's outcome and acts on it.
    pub blocking: bool,
    /// Meaning of the hook's failure.
    pub on_failure: OnFailure,
    /// Action of the hook.
    pub action: Action,
}

impl Hook {
    /// Returns whether the hook must run at `context` (`should_trigger` of seed 002 §2).
    #[must_use]
    pub fn should_trigger(&self, context: &HookContext) -> bool {
        if !self.point.is_of_a_call() {
            return true;
        }
        let tool = &context.tool_name;
        (self.tools.is_empty() || self.tools.iter().any(|pattern| glob(pattern, tool)))
            && self.when.iter().all(|condition| condition.holds(&context.tool_args))
    }

    /// Returns whether the next step waits for this hook's permission.
    #[must_use]
    pub const fn is_gate(&self) -> bool {
        self.blocking && self.point.is_gate()
    }

    /// Returns whether the hook has effects outside, or asks a human.
    #[must_use]
    pub const fn acts(&self) -> bool {
        match &self.action {
            Action::Builtin(builtin) => builtin.acts(),
            Action::Command { .. } | Action::Script { .. } => true,
            Action::Reminder(_) => false,
        }
    }

    /// Returns the sort key of the hooks of a point: priority, layer, name.
    #[must_use]
    pub fn order(&self) -> (i32, Layer, String) {
        (self.priority, self.layer.clone(), self.name.clone())
    }

    /// Returns the hook's name among all hooks of all layers.
    #[must_use]
    pub fn key(&self) -> String {
        match &self.layer {
            Layer::Global => self.name.clone(),
            Layer::Persona(persona) => format!("{persona}:{}", self.name),
            Layer::Session(pattern) => format!("{pattern}:{}", self.name),
        }
    }
}

/// Reads one declaration, which is at the path `at` in its file.
pub(super) fn declared(map: &Map<String, Value>, at: &str, layer: &Layer, faults: &mut Vec<KeyFault>) -> Option<Hook> {
    let before = faults.len();
    let mut fields = Fields {
        map: map.clone(),
        at,
        faults,
    };

    // All faults are collected, so that a file is corrected in one pass.
    let point = point(&mut fields);
    let action = action(&mut fields, point);
    let given: Option<String> = fields.take("name");

    // A declaration whose action cannot be read has no default name either.
    let is_named = given.is_some() || action.is_some();
    let name = given.unwrap_or_else(|| action.as_ref().map(default_name).unwrap_or_default());
    if is_named && (name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control)) {
        fields.wrong(
            "name",
            format!("expected 1 to {MAX_NAME_BYTES} bytes without control characters"),
        );
    }

    let priority = fields.take("priority").unwrap_or(DEFAULT_PRIORITY);
    let tools: Vec<String> = fields.take("tools").unwrap_or_default();
    for problem in tools.iter().filter_map(|pattern| pattern_fault(pattern)) {
        fields.wrong("tools", problem);
    }

    let when = Condition::all(&mut fields);
    // Points outside of a call have no tool that a condition could be about.
    if let Some(point) = point.filter(|point| !point.is_of_a_call())
        && !(tools.is_empty() && when.is_empty())
    {
        fields.wrong("tools", format!("tools and when have no meaning at {}", point.name()));
    }

    let seconds: Option<u64> = fields.take("timeout");
    if seconds.is_some_and(|seconds| seconds > MAX_TIMEOUT_S) {
        fields.wrong("timeout", format!("expected seconds, at most {MAX_TIMEOUT_S}"));
    }

    let timeout_ms = match seconds {
        None | Some(0) => DEFAULT_TIMEOUT_MS,
        Some(seconds) => seconds.saturating_mul(1_000),
    };
    // By default the turn waits for all hooks but commands.
    let waits = action.as_ref().is_some_and(waits_by_itself);
    let blocking = fields.take("blocking").unwrap_or(waits);
    let on_failure = on_failure(&mut fields, action.as_ref(), point, blocking);

    if let Some(Action::Builtin(Builtin::ShellAllowList { .. })) = &action
        && tools.is_empty()
    {
        fields.wrong("tools", "required: the tools whose argument is a command line");
    }

    // Keys that no field took are misspelled.
    fields.finish("name, hook, builtin, command, script, reminder, with, trigger, tools, when, priority, timeout, blocking or on_failure");
    let (Some(point), Some(action), true) = (point, action, faults.len() == before) else {
        return None;
    };

    Some(Hook {
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

fn point(fields: &mut Fields<'_>) -> Option<Point> {
    let Some(name) = fields.take::<String>("hook") else {
        fields.wrong("hook", "required: the point at which it runs");
        return None;
    };
    let point = Point::of(&name);
    if point.is_none() {
        let names: Vec<&str> = Point::ALL.iter().map(|point| point.name()).collect();
        let problem = format!("there is no point `{name}`, expected one of {}", names.join(", "));
        fields.wrong("hook", problem);
    }

    point
}

fn action(fields: &mut Fields<'_>, point: Option<Point>) -> Option<Action> {
    let builtin: Option<String> = fields.take("builtin");
    let command: Option<String> = fields.take("command");
    let script: Option<String> = fields.take("script");
    let text: Option<String> = fields.take("reminder");
    let with: Option<Map<String, Value>> = fields.take("with");
    let trigger: Option<Value> = fields.take("trigger");

    // Nothing else can be checked if the kind is not clear.
    let kinds = [&builtin, &command, &script, &text].into_iter().flatten().count();
    if kinds != 1 {
        fields.wrong(
            "",
            format!("expected exactly one of builtin, command, script and reminder, found {kinds}"),
        );
        return None;
    }

    if with.is_some() && builtin.is_none() {
        fields.wrong("with", "only builtins have parameters");
    }

    if trigger.is_some() && text.is_none() {
        fields.wrong("trigger", "only reminders have a trigger");
    }

    if let Some(name) = builtin {
        let builtin = Builtin::declared(&name, with.unwrap_or_default(), point, fields)?;
        return Some(Action::Builtin(builtin));
    }

    if let Some(text) = text {
        if let Some(point) = point.filter(|point| !point.injects()) {
            fields.wrong(
                "reminder",
                format!("a reminder cannot add text to the conversation at {}", point.name()),
            );
        }

        let trigger = Trigger::declared(trigger, fields)?;
        return Some(Action::Reminder(Reminder { text, trigger }));
    }

    if let Some(hook) = script {
        return Some(Action::Script { hook });
    }

    let command = command.filter(|command| !command.trim().is_empty());
    if command.is_none() {
        fields.wrong("command", "must not be empty");
    }

    command.map(|command| Action::Command { command })
}

/// Returns whether the turn waits for a hook by default: only a command fires without being waited for.
const fn waits_by_itself(action: &Action) -> bool {
    match action {
        Action::Builtin(_) | Action::Script { .. } | Action::Reminder(_) => true,
        Action::Command { .. } => false,
    }
}

fn default_name(action: &Action) -> String {
    match action {
        Action::Builtin(builtin) => builtin.name().to_owned(),
        Action::Command { command } => command.split_whitespace().next().unwrap_or_default().to_owned(),
        Action::Script { hook } => hook.clone(),
        Action::Reminder(_) => "reminder".to_owned(),
    }
}

/// Returns the meaning of a failure: a gate denies and a rewriter of results withholds the result; all others fail
/// open.
fn on_failure(fields: &mut Fields<'_>, action: Option<&Action>, point: Option<Point>, blocking: bool) -> OnFailure {
    // A gate that fails must not let the call through, and a redactor that fails must not show the result.
    let closed = point.is_some_and(|point| point.is_gate() || point == Point::PostToolUse);
    let rewrites = match action {
        Some(Action::Builtin(builtin)) => !builtin.observes_after(point),
        Some(Action::Command { .. } | Action::Script { .. }) => true,
        Some(Action::Reminder(_)) | None => false,
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
            fields.wrong(
                "on_failure",
                "only a blocking hook at pre_stream, post_stream, PreToolUse or PostToolUse can deny",
            );
            usual
        }
        Some("allow") if !matches!(action, Some(Action::Builtin(_))) => OnFailure::Allow,
        Some("allow") => {
            fields.wrong("on_failure", "a builtin always denies if it fails");
            usual
        }
        Some(other) => {
            fields.wrong("on_failure", format!("`{other}` found, expected deny or allow"));
            usual
        }
    }
}
