//! The builtins: their parameters, and the outcomes of those that need nothing from outside. *Pure.*
//!
//! Source: seed 002 §4; `docs/design/sessions.md` §7.3.

use serde::Deserialize;
use serde_json::{Map, Value};
use shared::model::approval::ApprovalAsk;
use shared::model::permission::glob_matches;
use shared::model::rate::MAX_CALLS;

use super::allow_list::AllowList;
use super::fault::FieldReader;
use super::outcome::{HookContext, HookOutcome};
use super::point::HookPoint;
use super::truncate::truncate_value;

/// Default number of characters of a result that `result_truncate` keeps.
pub const RESULT_CHARS: usize = 8_000;
/// Default globs of the tools that `read_only_guard` treats as harmless.
const READS: [&str; 5] = ["get_*", "list_*", "read_*", "search_*", "web_search"];
/// Default of `rate_limit`: number of calls, and window in seconds.
const RATE: (usize, u64) = (10, 60);

/// One builtin with its parameters.
#[derive(Debug, Clone, PartialEq)]
pub enum BuiltinHook {
    /// A human must decide first.
    ApprovalGate(Box<ApprovalAsk>),
    /// Each call is written to `AUDIT`: before it runs, or with its outcome.
    AuditLog,
    /// In read-only mode, tools that may write are refused.
    ReadOnlyGuard {
        /// Whether it refuses in every mode.
        always: bool,
        /// Globs of the tools that only read.
        reads: Vec<String>,
    },
    /// Long results are cut, and the cut is marked.
    ResultTruncate {
        /// Number of characters that are kept.
        max_chars: usize,
    },
    /// Calls of one connector by one user are limited, over all brokers.
    RateLimit {
        /// Maximum number of calls in the window.
        calls: usize,
        /// Length of the window, milliseconds.
        window_ms: u64,
    },
    /// A command line that a model wants to run must be on the allow-list, whole.
    ShellAllowList {
        /// Name of the argument with the command line.
        argument: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Guard {
    always: bool,
    reads: Vec<String>,
}

impl Default for Guard {
    fn default() -> Self {
        Self {
            always: false,
            reads: READS.map(str::to_owned).to_vec(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Cut {
    max_chars: usize,
}

impl Default for Cut {
    fn default() -> Self {
        Self {
            max_chars: RESULT_CHARS,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Rate {
    calls: usize,
    seconds: u64,
}

impl Default for Rate {
    fn default() -> Self {
        let (calls, seconds) = RATE;
        Self { calls, seconds }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Shell {
    argument: String,
}

impl Default for Shell {
    fn default() -> Self {
        Self {
            argument: "command".to_owned(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Nothing {}

/// Names of all builtins.
const NAMES: [&str; 6] = [
    "approval_gate",
    "audit_log",
    "read_only_guard",
    "result_truncate",
    "rate_limit",
    "shell_allow_list",
];

impl BuiltinHook {
    /// Returns `read_only_guard` with its default parameters.
    #[must_use]
    pub fn read_only_guard() -> Self {
        let Guard { always, reads } = Guard::default();
        Self::ReadOnlyGuard { always, reads }
    }

    /// Returns the name of the builtin in the catalogue.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::ApprovalGate(_) => NAMES[0],
            Self::AuditLog => NAMES[1],
            Self::ReadOnlyGuard { .. } => NAMES[2],
            Self::ResultTruncate { .. } => NAMES[3],
            Self::RateLimit { .. } => NAMES[4],
            Self::ShellAllowList { .. } => NAMES[5],
        }
    }

    /// Returns whether the builtin has effects outside, or asks a human.
    #[must_use]
    pub const fn has_side_effects(&self) -> bool {
        match self {
            Self::AuditLog | Self::RateLimit { .. } => true,
            Self::ApprovalGate(_)
            | Self::ReadOnlyGuard { .. }
            | Self::ResultTruncate { .. }
            | Self::ShellAllowList { .. } => false,
        }
    }

    /// Returns whether the builtin only observes at `point`, after the fact.
    #[must_use]
    pub fn observes_after(&self, point: Option<HookPoint>) -> bool {
        matches!(self, Self::AuditLog) && point != Some(HookPoint::PreToolUse)
    }

    /// Reads the builtin `name` with the parameters `with`, for `point`.
    pub(super) fn from_declaration(
        name: &str,
        with: Map<String, Value>,
        point: Option<HookPoint>,
        fields: &mut FieldReader<'_>,
    ) -> Option<Self> {
        // Some builtins need the result of the call, others must decide before it.
        let points: &[HookPoint] = match name {
            "audit_log" => &[HookPoint::PreToolUse, HookPoint::PostToolUse],
            "result_truncate" => &[HookPoint::PostToolUse],
            _ => &[HookPoint::PreToolUse],
        };

        // An unknown name is reported below, once.
        if NAMES.contains(&name)
            && let Some(point) = point.filter(|point| !points.contains(point))
        {
            let names: Vec<&str> = points.iter().map(|point| point.name()).collect();
            let problem = format!(
                "builtin {name} does not run at {}, only at {}",
                point.name(),
                names.join(", ")
            );

            fields.add_fault("builtin", problem);
        }

        let with = Value::Object(with);
        let read = match name {
            "approval_gate" => parse_ask(with, fields).map(|ask| Self::ApprovalGate(Box::new(ask))),
            "audit_log" => parse_parameters::<Nothing>(with, fields).map(|_| Self::AuditLog),
            "read_only_guard" => {
                parse_parameters(with, fields).map(|Guard { always, reads }| Self::ReadOnlyGuard { always, reads })
            }
            "result_truncate" => {
                parse_parameters(with, fields).map(|Cut { max_chars }| Self::ResultTruncate { max_chars })
            }
            "rate_limit" => parse_parameters(with, fields).map(|Rate { calls, seconds }| Self::RateLimit {
                calls,
                window_ms: seconds.saturating_mul(1_000),
            }),
            "shell_allow_list" => {
                parse_parameters(with, fields).map(|Shell { argument }| Self::ShellAllowList { argument })
            }
            other => {
                let problem = format!("unknown builtin `{other}`: expected one of {}", NAMES.join(", "));
                fields.add_fault("builtin", problem);
                None
            }
        };

        if let Some(Self::RateLimit { calls, window_ms }) = &read
            && (*calls == 0 || *calls > MAX_CALLS || *window_ms == 0)
        {
            fields.add_fault(
                "with",
                format!("expected 1 to {MAX_CALLS} calls within at least 1 second"),
            );
        }

        read
    }
}

fn parse_parameters<T: serde::de::DeserializeOwned>(with: Value, fields: &mut FieldReader<'_>) -> Option<T> {
    serde_json::from_value(with)
        .map_err(|error| fields.add_fault("with", error.to_string()))
        .ok()
}

/// Reads the question of `approval_gate`; its policy is the hook's name by default.
fn parse_ask(mut with: Value, fields: &mut FieldReader<'_>) -> Option<ApprovalAsk> {
    let name = fields
        .map
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or("approval_gate")
        .to_owned();

    if let Value::Object(with) = &mut with {
        with.entry("policy").or_insert(Value::from(name));
    }

    let ask: ApprovalAsk = parse_parameters(with, fields)?;
    for fault in ask.find_faults() {
        fields.add_fault("with", fault);
    }

    Some(ask)
}

/// Returns the outcome of `read_only_guard`.
#[must_use]
pub fn read_only(reads: &[String], context: &HookContext) -> HookOutcome {
    let tool = &context.tool_name;
    if reads.iter().any(|pattern| glob_matches(pattern, tool)) {
        return HookOutcome::default();
    }
    HookOutcome {
        side_effects: vec![format!("read_only_guard: blocked {tool}")],
        ..HookOutcome::denied(format!("read-only mode: `{tool}` may write, and was not run"))
    }
}

/// Returns the outcome of `result_truncate`.
#[must_use]
pub fn truncate_outcome(max_chars: usize, context: &HookContext) -> HookOutcome {
    let result = context.tool_result.as_ref().unwrap_or(&Value::Null);
    HookOutcome {
        modified_result: truncate_value(result, max_chars),
        ..HookOutcome::default()
    }
}

/// Returns the outcome of `shell_allow_list`.
#[must_use]
pub fn shell_outcome(argument: &str, allow: &AllowList, context: &HookContext) -> HookOutcome {
    let Some(command) = context.tool_args.get(argument).and_then(Value::as_str) else {
        return HookOutcome::denied(format!("argument `{argument}` is not a command line"));
    };
    match allow.admit_text(command) {
        Ok(()) => HookOutcome::default(),
        Err(refusal) => HookOutcome {
            side_effects: vec![format!("shell_allow_list: refused {command}")],
            ..HookOutcome::denied(format!("the command is not on the allow-list: {refusal}"))
        },
    }
}
