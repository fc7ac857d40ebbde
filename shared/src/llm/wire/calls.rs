//! Tool calls while they come, in pieces or whole. *Pure.*

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::said::{lengthened, weight};
use super::{Fault, bounded};
use crate::llm::answer::{Finish, MalformedArguments, ToolRequest};

/// What is kept of arguments that are no JSON, bytes.
const MAX_MALFORMED_BYTES: usize = 2_000;
/// Tool requests of one answer.
pub(super) const MAX_REQUESTS: usize = 128;
/// What the arguments of one answer's calls may hold as values: bytes.
const MAX_ARGUMENTS_WEIGHT: usize = 5 * 1024 * 1024;

/// Where a JSON text stands: whether an object that began in it has ended.
#[derive(Debug, Default)]
struct Nesting {
    depth: usize,
    quoted: bool,
    escaped: bool,
    closed: bool,
}

impl Nesting {
    fn over(&mut self, text: &str) {
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
pub(super) struct Call {
    /// How the provider names it within its answer; empty = not at all.
    pub(super) id: String,
    /// The tool.
    pub(super) name: String,
    /// The arguments as text, as far as they came.
    text: String,
    nesting: Nesting,
    /// The arguments as they came in one piece that is no text.
    value: Option<Value>,
    /// What the provider signed with it.
    pub(super) signature: Option<String>,
    /// The provider has said that more of it comes, and it has not come.
    pub(super) unfinished: bool,
    /// Why it cannot be carried out, whatever its arguments say.
    fault: Option<String>,
}

impl Call {
    /// A call of `name`.
    pub(super) fn new(id: &str, name: &str) -> Self {
        Self {
            id: id.to_owned(),
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// The next piece of the arguments' text.
    pub(super) fn add(&mut self, text: &str) -> Result<(), Fault> {
        self.nesting.over(text);
        lengthened(&mut self.text, text)
    }

    /// The arguments in one piece that is no text.
    pub(super) fn give(&mut self, arguments: Value) {
        self.value = Some(arguments);
    }

    /// The arguments that are being put together.
    pub(super) fn place(&mut self) -> &mut Value {
        self.value.get_or_insert_with(|| Value::Object(Map::new()))
    }

    /// The first reason why it cannot be carried out stays.
    pub(super) fn refuse(&mut self, why: String) {
        self.fault.get_or_insert(why);
    }

    /// Whether an object of arguments came whole, or nothing of it.
    pub(super) fn is_whole_or_empty(&self) -> bool {
        self.nesting.closed || self.value.is_some() || self.text.trim().is_empty()
    }

    /// Whether these are its arguments, word for word.
    pub(super) fn repeats(&self, text: &str) -> bool {
        !text.is_empty() && self.text == text
    }

    /// Whether any of its arguments came.
    pub(super) fn has_arguments(&self) -> bool {
        self.value.is_some() || !self.text.trim().is_empty()
    }
}

/// The calls as requests, in the order in which they began.
///
/// # Errors
/// A call without a name, or arguments that are too many.
pub(super) fn requests(calls: Vec<Call>, finish: &Finish) -> Result<Vec<ToolRequest>, Fault> {
    let mut ids = BTreeSet::new();
    let mut held = 0;

    let mut requests = Vec::new();
    for (place, call) in calls.into_iter().enumerate() {
        if call.name.is_empty() {
            return Err(Fault::Unreadable("a tool request without a name".to_owned()));
        }

        // Gemini leaves ids out, and look-alikes repeat them: an id of ours is not sent back as the provider's.
        let mut id = call.id.clone();
        if id.is_empty() || ids.contains(&id) {
            id = format!("call#{}#{place}", call.name);
        }

        ids.insert(id.clone());

        let name = call.name.clone();
        let arguments = arguments(call, finish);
        held += arguments.as_ref().map_or(0, weight);

        if held > MAX_ARGUMENTS_WEIGHT {
            return Err(Fault::Large("arguments of calls", MAX_ARGUMENTS_WEIGHT));
        }

        requests.push(ToolRequest { id, name, arguments });
    }

    Ok(requests)
}

/// The arguments, if they came whole and are an object. None at all are an empty object, where nothing was cut.
fn arguments(call: Call, finish: &Finish) -> Result<Value, MalformedArguments> {
    let malformed = |text: &str, detail: String| {
        let text = text[..text.floor_char_boundary(MAX_MALFORMED_BYTES)].to_owned();
        Err(MalformedArguments { text, detail })
    };
    if let Some(fault) = call.fault {
        return malformed(&call.text, fault);
    }

    if call.unfinished {
        return malformed(&call.text, "the call broke off".to_owned());
    }

    match call.value {
        Some(Value::Object(map)) if call.text.trim().is_empty() => return Ok(Value::Object(map)),
        Some(Value::Null) | None => {}
        Some(_) => return malformed(&call.text, "expected an object".to_owned()),
    }

    if call.text.trim().is_empty() {
        return match finish {
            Finish::Done => Ok(Value::Object(Map::new())),
            Finish::Length | Finish::Filtered { .. } | Finish::Other { .. } => {
                malformed("", "the arguments broke off before they began".to_owned())
            }
        };
    }

    if let Err(limit) = bounded(call.text.as_bytes()) {
        return malformed(&call.text, format!("more than {limit} values"));
    }

    match serde_json::from_str::<Value>(&call.text) {
        Ok(Value::Object(map)) => Ok(Value::Object(map)),
        Ok(_) => malformed(&call.text, "expected an object".to_owned()),
        Err(error) => malformed(&call.text, error.to_string()),
    }
}
