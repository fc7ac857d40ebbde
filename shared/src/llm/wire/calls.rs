//! Tool calls while they arrive, in pieces or complete. *Pure.*

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::memory_bounds::{append_piece, value_weight};
use super::{DecodeFault, check_value_count};
use crate::llm::answer::{FinishReason, MalformedArguments, ToolRequest};

/// Number of bytes kept of arguments that are not JSON.
const MAX_MALFORMED_BYTES: usize = 2_000;
/// Maximum number of tool requests of one answer.
pub(super) const MAX_REQUESTS: usize = 128;
/// Maximum size of the arguments of one answer's calls in memory, in bytes.
const MAX_ARGUMENTS_WEIGHT: usize = 5 * 1024 * 1024;

/// Position in a JSON text: whether an object that began in it has ended.
#[derive(Debug, Default)]
struct JsonNesting {
    depth: usize,
    quoted: bool,
    escaped: bool,
    closed: bool,
}

impl JsonNesting {
    fn scan_text(&mut self, text: &str) {
        for byte in text.bytes() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.quoted => self.escaped = true,
                b'"' => self.quoted = !self.quoted,
                b'{' | b'[' if !self.quoted => self.depth += 1,
                b'}' | b']' if !self.quoted => {
                    self.depth = self.depth.saturating_sub(1);
                    self.closed |= self.depth == 0;
                }
                _ => {}
            }
        }
    }
}

/// A call that has begun.
#[derive(Debug, Default)]
pub(super) struct PartialCall {
    /// Provider's id of the call within its answer; empty if there is none.
    pub(super) id: String,
    /// Name of the tool.
    pub(super) name: String,
    /// Arguments as text, as far as they arrived.
    text: String,
    nesting: JsonNesting,
    /// Arguments as a value, if they did not arrive as text.
    value: Option<Value>,
    /// Provider's signature of the call.
    pub(super) signature: Option<String>,
    /// Whether the provider has announced more of the call that has not arrived.
    pub(super) unfinished: bool,
    /// Reason why the call cannot be executed even if its arguments are valid.
    fault: Option<String>,
}

impl PartialCall {
    /// Builds a call of `name`.
    pub(super) fn new(id: &str, name: &str) -> Self {
        Self {
            id: id.to_owned(),
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// Appends the next piece of the arguments' text.
    pub(super) fn add(&mut self, text: &str) -> Result<(), DecodeFault> {
        self.nesting.scan_text(text);
        append_piece(&mut self.text, text)
    }

    /// Sets arguments that arrive as one value.
    pub(super) fn set_arguments(&mut self, arguments: Value) {
        self.value = Some(arguments);
    }

    /// Returns the value of the arguments that arrive in pieces.
    pub(super) fn arguments_mut(&mut self) -> &mut Value {
        self.value.get_or_insert_with(|| Value::Object(Map::new()))
    }

    /// Marks the call as not executable; the first reason is kept.
    pub(super) fn refuse_call(&mut self, why: String) {
        self.fault.get_or_insert(why);
    }

    /// Returns whether the arguments arrived completely, or none of them.
    pub(super) fn is_whole_or_empty(&self) -> bool {
        self.nesting.closed || self.value.is_some() || self.text.trim().is_empty()
    }

    /// Returns whether `text` equals its arguments so far.
    pub(super) fn repeats_arguments(&self, text: &str) -> bool {
        !text.is_empty() && self.text == text
    }

    /// Returns whether any of its arguments arrived.
    pub(super) fn has_arguments(&self) -> bool {
        self.value.is_some() || !self.text.trim().is_empty()
    }
}

/// Converts the calls to requests, in the order in which they began.
///
/// # Errors
/// Fails if a call has no name, or if the arguments are too large.
pub(super) fn into_requests(calls: Vec<PartialCall>, finish: &FinishReason) -> Result<Vec<ToolRequest>, DecodeFault> {
    let mut ids = BTreeSet::new();
    let mut held = 0;

    let mut requests = Vec::new();
    for (place, call) in calls.into_iter().enumerate() {
        if call.name.is_empty() {
            return Err(DecodeFault::Unreadable("a tool request without a name".to_owned()));
        }

        // Gemini omits ids, and compatible servers repeat them. An id of ours is not sent back as the provider's.
        let mut id = call.id.clone();
        if id.is_empty() || ids.contains(&id) {
            id = format!("call#{}#{place}", call.name);
        }

        ids.insert(id.clone());

        let name = call.name.clone();
        let arguments = whole_arguments(call, finish);
        held += arguments.as_ref().map_or(0, value_weight);

        if held > MAX_ARGUMENTS_WEIGHT {
            return Err(DecodeFault::Large("arguments of calls", MAX_ARGUMENTS_WEIGHT));
        }

        requests.push(ToolRequest { id, name, arguments });
    }

    Ok(requests)
}

/// Returns the arguments if they arrived completely and are an object. Absent arguments are an empty object, unless
/// the answer was cut.
fn whole_arguments(call: PartialCall, finish: &FinishReason) -> Result<Value, MalformedArguments> {
    let malformed = |text: &str, detail: String| {
        let text = text[..text.floor_char_boundary(MAX_MALFORMED_BYTES)].to_owned();
        Err(MalformedArguments { text, detail })
    };
    if let Some(fault) = call.fault {
        return malformed(&call.text, fault);
    }

    // A call that was cut must not run with the part of its arguments that arrived.
    if call.unfinished {
        return malformed(&call.text, "the call broke off".to_owned());
    }

    // Providers send the arguments as a value or as a text; a `null` beside a text counts as absent.
    match call.value {
        Some(Value::Object(map)) if call.text.trim().is_empty() => return Ok(Value::Object(map)),
        Some(Value::Null) | None => {}
        Some(_) => return malformed(&call.text, "expected an object".to_owned()),
    }

    if call.text.trim().is_empty() {
        return match finish {
            FinishReason::Done => Ok(Value::Object(Map::new())),
            FinishReason::Length | FinishReason::Filtered { .. } | FinishReason::Other { .. } => {
                malformed("", "the arguments broke off before they began".to_owned())
            }
        };
    }

    // Counted before the text is parsed, because parsing allocates every value.
    if let Err(limit) = check_value_count(call.text.as_bytes()) {
        return malformed(&call.text, format!("more than {limit} values"));
    }

    match serde_json::from_str::<Value>(&call.text) {
        Ok(Value::Object(map)) => Ok(Value::Object(map)),
        Ok(_) => malformed(&call.text, "expected an object".to_owned()),
        Err(error) => malformed(&call.text, error.to_string()),
    }
}
