//! Parts of an answer decoded so far, independent of the wire. *Pure.*

use serde_json::Value;

use super::Fault;
use super::calls::{Call, MAX_REQUESTS, requests};
use crate::llm::answer::{Finish, ToolRequest, Usage};
use crate::llm::opaque::Opaque;

/// Maximum text of one answer, in bytes. A longer text is not accepted.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// Maximum size of any other part that comes in pieces (the arguments of one call, one thought), in bytes.
const MAX_PIECES_BYTES: usize = 1024 * 1024;
/// Maximum size of text, calls and opaque parts of one answer together, in bytes.
const MAX_KEPT_BYTES: usize = 5 * 1024 * 1024;
/// Memory of a value besides its text, and of a list or an object besides its values, in bytes; rather too high than
/// too low.
const VALUE_BYTES: usize = 160;
const CONTAINER_BYTES: usize = 512;

/// A complete answer of any wire.
#[derive(Debug, Clone, PartialEq)]
pub struct Heard {
    /// Text of the answer.
    pub text: String,
    /// Requested calls, in the order in which they began.
    pub calls: Vec<ToolRequest>,
    /// Reason for the stop, in the provider's word.
    pub stop: String,
    /// Reason for the stop, in our terms.
    pub finish: Finish,
    /// Token counts of the answer.
    pub usage: Usage,
    /// Parts that the provider needs back, and parts that were not understood.
    pub(in crate::llm) opaque: Opaque,
}

/// Reason why a provider stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stop {
    /// Reason in the provider's word.
    pub(super) word: String,
    /// Reason in our terms.
    pub(super) finish: Finish,
    /// Whether the reason is that tools are called.
    pub(super) calls: bool,
}

impl Stop {
    /// Converts `word`, of any provider.
    pub(super) fn of(word: &str) -> Self {
        let reason = word.to_owned();
        // The words of all providers in one list: servers that imitate one of them mix them.
        let finish = match word {
            "stop" | "end_turn" | "STOP" | "COMPLETE" | "completed" | "tool_calls" | "tool_use" | "function_call"
            | "stop_sequence" | "STOP_SEQUENCE" => Finish::Done,
            "length"
            | "max_tokens"
            | "MAX_TOKENS"
            | "incomplete"
            | "model_context_window_exceeded"
            | "model_length" => Finish::Length,
            "content_filter"
            | "refusal"
            | "SAFETY"
            | "RECITATION"
            | "BLOCKLIST"
            | "PROHIBITED_CONTENT"
            | "SPII"
            | "IMAGE_SAFETY"
            | "IMAGE_PROHIBITED_CONTENT"
            | "IMAGE_RECITATION"
            | "LANGUAGE"
            | "ERROR_TOXIC" => Finish::Filtered { reason },
            _ => Finish::Other { reason },
        };

        Self {
            word: word.to_owned(),
            finish,
            calls: matches!(word, "tool_calls" | "tool_use" | "function_call"),
        }
    }

    /// Returns whether the answer is known to be incomplete.
    pub(super) fn is_cut(&self) -> bool {
        self.finish != Finish::Done
    }
}

/// Text, calls, usage and opaque parts of an answer that is being decoded.
#[derive(Debug, Default)]
pub(super) struct Said {
    text: String,
    calls: Vec<Call>,
    usage: Option<Usage>,
    pub(super) opaque: Opaque,
    kept: usize,
}

impl Said {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) const fn has_usage(&self) -> bool {
        self.usage.is_some()
    }

    /// Appends the next piece of text.
    pub(super) fn say(&mut self, text: &str) -> Result<(), Fault> {
        self.keep(text.len())?;
        grown(&mut self.text, text, MAX_ANSWER_BYTES)
    }

    /// Appends the next piece of a thought that is not signed.
    pub(super) fn reason(&mut self, text: &str) -> Result<(), Fault> {
        self.keep(text.len())?;
        lengthened(&mut self.opaque.reasoning, text)
    }

    /// Begins a call. Returns its index.
    pub(super) fn begin(&mut self, call: Call) -> Result<usize, Fault> {
        if self.calls.len() == MAX_REQUESTS {
            return Err(Fault::Large("a number of tool requests", MAX_REQUESTS));
        }
        self.keep(call.id.len() + call.name.len() + VALUE_BYTES)?;
        self.calls.push(call);
        Ok(self.calls.len() - 1)
    }

    pub(super) fn call(&mut self, place: usize) -> Option<&mut Call> {
        self.calls.get_mut(place)
    }

    pub(super) fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// Appends the next piece of a call's arguments.
    pub(super) fn argue(&mut self, place: usize, text: &str) -> Result<(), Fault> {
        self.keep(text.len())?;
        self.calls.get_mut(place).map_or(Ok(()), |call| call.add(text))
    }

    /// Sets a call's arguments that arrive as one value.
    pub(super) fn give(&mut self, place: usize, arguments: Value) -> Result<(), Fault> {
        self.keep(weight(&arguments))?;
        if let Some(call) = self.calls.get_mut(place) {
            call.give(arguments);
        }
        Ok(())
    }

    /// Keeps a part that was not understood; it has no effect.
    pub(super) fn unread(&mut self, what: Value) -> Result<(), Fault> {
        self.keep(weight(&what))?;
        self.opaque.unread.push(what);
        Ok(())
    }

    /// Keeps a part that the provider needs back before text and calls.
    pub(super) fn block(&mut self, block: Value) -> Result<(), Fault> {
        self.keep(weight(&block))?;
        self.opaque.blocks.push(block);
        Ok(())
    }

    /// Sets the token counts: the last ones are valid for the whole answer.
    pub(super) fn count(&mut self, usage: Usage) {
        self.usage = Some(usage);
    }

    /// Counts `bytes` that are kept until the end.
    pub(super) fn keep(&mut self, bytes: usize) -> Result<(), Fault> {
        self.kept = self.kept.saturating_add(bytes);
        if self.kept > MAX_KEPT_BYTES {
            return Err(Fault::Large("an answer", MAX_KEPT_BYTES));
        }
        Ok(())
    }

    /// Returns the complete answer, after the provider has stated why it stops.
    pub(super) fn heard(mut self, stop: Stop) -> Result<Heard, Fault> {
        if stop.calls && self.calls.is_empty() {
            let detail = format!("it stopped for tools (`{}`) and calls none", stop.word);
            return Err(Fault::Unreadable(detail));
        }

        let signatures = self.calls.iter_mut().enumerate();
        self.opaque.signatures = signatures
            .filter_map(|(place, call)| Some((place, call.signature.take()?)))
            .collect();

        Ok(Heard {
            calls: requests(self.calls, &stop.finish)?,
            text: self.text,
            stop: stop.word,
            finish: stop.finish,
            usage: self.usage.unwrap_or_default(),
            opaque: self.opaque,
        })
    }
}

/// Appends the next piece of a part other than the answer's text.
pub(super) fn lengthened(buffer: &mut String, piece: &str) -> Result<(), Fault> {
    grown(buffer, piece, MAX_PIECES_BYTES)
}

/// Appends `piece`, up to `limit` bytes in total. Grows by doubling, but never reserves beyond the limit.
fn grown(buffer: &mut String, piece: &str, limit: usize) -> Result<(), Fault> {
    let wanted = buffer.len() + piece.len();
    if wanted > limit {
        return Err(Fault::Large("what comes in pieces", limit));
    }

    if wanted > buffer.capacity() {
        let capacity = wanted.max(buffer.capacity() * 2).min(limit);
        buffer.reserve_exact(capacity - buffer.len());
    }

    buffer.push_str(piece);
    Ok(())
}

/// Returns the memory of a value in bytes, rather too high than too low. Values are at most as deep as their parser
/// allows: 128.
pub(super) fn weight(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => VALUE_BYTES,
        Value::String(text) => VALUE_BYTES + text.len(),
        Value::Array(values) => CONTAINER_BYTES + values.iter().map(weight).sum::<usize>(),
        Value::Object(map) => {
            let members = map.iter().map(|(name, value)| name.len() + VALUE_BYTES + weight(value));
            CONTAINER_BYTES + members.sum::<usize>()
        }
    }
}
