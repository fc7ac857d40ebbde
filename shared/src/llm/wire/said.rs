//! What was said so far, on whichever wire. *Pure.*

use serde_json::Value;

use super::Fault;
use super::calls::{Call, MAX_REQUESTS, requests};
use crate::llm::answer::{Finish, ToolRequest, Usage};
use crate::llm::opaque::Opaque;

/// Text of one answer, bytes. What is longer is no answer.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// Arguments of one call, one thought: what else comes in pieces, bytes.
const MAX_PIECES_BYTES: usize = 1024 * 1024;
/// Text, calls and what is opaque of one answer together: bytes.
const MAX_KEPT_BYTES: usize = 5 * 1024 * 1024;
/// What a value holds beside its text, and what a list or an object does beside its values: bytes, rather more than less.
const VALUE_BYTES: usize = 160;
const CONTAINER_BYTES: usize = 512;

/// A whole answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Heard {
    /// The text.
    pub text: String,
    /// What is to be done, in the order in which it began.
    pub calls: Vec<ToolRequest>,
    /// Why the provider stopped, in its word.
    pub stop: String,
    /// The same in ours.
    pub finish: Finish,
    /// Tokens.
    pub usage: Usage,
    /// What the provider must see again, and what was not understood.
    pub(in crate::llm) opaque: Opaque,
}

/// Why a provider stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stop {
    /// In its word.
    pub(super) word: String,
    /// In ours.
    pub(super) finish: Finish,
    /// It says that it calls tools.
    pub(super) calls: bool,
}

impl Stop {
    /// What `word` means, whichever provider says it.
    pub(super) fn of(word: &str) -> Self {
        let reason = word.to_owned();
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

    /// Whether the answer is known not to be whole.
    pub(super) fn is_cut(&self) -> bool {
        self.finish != Finish::Done
    }
}

/// Text, calls, usage and the opaque rest of an answer that is being read.
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

    /// The next piece of text.
    pub(super) fn say(&mut self, text: &str) -> Result<(), Fault> {
        self.keep(text.len())?;
        grown(&mut self.text, text, MAX_ANSWER_BYTES)
    }

    /// The next piece of a thought that is not signed.
    pub(super) fn reason(&mut self, text: &str) -> Result<(), Fault> {
        self.keep(text.len())?;
        lengthened(&mut self.opaque.reasoning, text)
    }

    /// Begins a call; returns its place.
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

    /// The next piece of a call's arguments.
    pub(super) fn argue(&mut self, place: usize, text: &str) -> Result<(), Fault> {
        self.keep(text.len())?;
        self.calls.get_mut(place).map_or(Ok(()), |call| call.add(text))
    }

    /// A call's arguments in one piece.
    pub(super) fn give(&mut self, place: usize, arguments: Value) -> Result<(), Fault> {
        self.keep(weight(&arguments))?;
        if let Some(call) = self.calls.get_mut(place) {
            call.give(arguments);
        }
        Ok(())
    }

    /// What was not understood. It is kept, and changes nothing.
    pub(super) fn unread(&mut self, what: Value) -> Result<(), Fault> {
        self.keep(weight(&what))?;
        self.opaque.unread.push(what);
        Ok(())
    }

    /// What the provider must see again before text and calls.
    pub(super) fn block(&mut self, block: Value) -> Result<(), Fault> {
        self.keep(weight(&block))?;
        self.opaque.blocks.push(block);
        Ok(())
    }

    /// Tokens: the last that was said counts for the whole answer.
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

    /// The whole, after the provider has said why it stops.
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

/// Appends the next piece of what is no text of the answer.
pub(super) fn lengthened(buffer: &mut String, piece: &str) -> Result<(), Fault> {
    grown(buffer, piece, MAX_PIECES_BYTES)
}

/// Appends `piece`, up to `limit` bytes in all; grows by doubling, but never reserves beyond the limit.
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

/// What a value holds in memory: bytes, rather more than less. Values are as deep as their parser allows: 128.
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
