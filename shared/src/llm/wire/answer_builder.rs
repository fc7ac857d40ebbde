//! Parts of an answer decoded so far, independent of the wire. *Pure.*

use serde_json::Value;

use super::DecodeFault;
use super::calls::{MAX_REQUESTS, PartialCall, into_requests};
use super::memory_bounds::{VALUE_BYTES, append_bounded, append_piece, value_weight};
use crate::llm::answer::{FinishReason, ToolRequest};
use crate::llm::opaque::OpaqueBlocks;
use crate::llm::usage::TokenUsage;

/// Maximum text of one answer, in bytes. A longer text is not accepted.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// Maximum size of text, calls and opaque parts of one answer together, in bytes.
const MAX_KEPT_BYTES: usize = 5 * 1024 * 1024;
/// A complete answer of any wire.
#[derive(Debug, Clone, PartialEq)]
pub struct HeardAnswer {
    /// Text of the answer.
    pub text: String,
    /// Requested calls, in the order in which they began.
    pub calls: Vec<ToolRequest>,
    /// Reason for the stop, in the provider's word.
    pub stop: String,
    /// Reason for the stop, in our terms.
    pub finish: FinishReason,
    /// Token counts of the answer.
    pub usage: TokenUsage,
    /// Parts that the provider needs back, and parts that were not understood.
    pub(in crate::llm) opaque: OpaqueBlocks,
}

/// Reason why a provider stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StopSignal {
    /// Reason in the provider's word.
    pub(super) word: String,
    /// Reason in our terms.
    pub(super) finish: FinishReason,
    /// Whether the reason is that tools are called.
    pub(super) calls: bool,
}

impl StopSignal {
    /// Converts `word`, of any provider.
    pub(super) fn from_word(word: &str) -> Self {
        let reason = word.to_owned();
        // The words of all providers in one list: servers that imitate one of them mix them.
        let finish = match word {
            "stop" | "end_turn" | "STOP" | "COMPLETE" | "completed" | "tool_calls" | "tool_use" | "function_call"
            | "stop_sequence" | "STOP_SEQUENCE" => FinishReason::Done,
            "length"
            | "max_tokens"
            | "MAX_TOKENS"
            | "incomplete"
            | "model_context_window_exceeded"
            | "model_length" => FinishReason::Length,
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
            | "ERROR_TOXIC" => FinishReason::Filtered { reason },
            _ => FinishReason::Other { reason },
        };

        Self {
            word: word.to_owned(),
            finish,
            calls: matches!(word, "tool_calls" | "tool_use" | "function_call"),
        }
    }

    /// Returns whether the answer is known to be incomplete.
    pub(super) fn is_cut(&self) -> bool {
        self.finish != FinishReason::Done
    }
}

/// Text, calls, usage and opaque parts of an answer that is being decoded.
#[derive(Debug, Default)]
pub(super) struct AnswerBuilder {
    text: String,
    calls: Vec<PartialCall>,
    usage: Option<TokenUsage>,
    pub(super) opaque: OpaqueBlocks,
    kept: usize,
}

impl AnswerBuilder {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) const fn has_usage(&self) -> bool {
        self.usage.is_some()
    }

    /// Appends the next piece of text.
    pub(super) fn push_text(&mut self, text: &str) -> Result<(), DecodeFault> {
        self.count_kept(text.len())?;
        append_bounded(&mut self.text, text, MAX_ANSWER_BYTES)
    }

    /// Appends the next piece of a thought that is not signed.
    pub(super) fn push_reasoning(&mut self, text: &str) -> Result<(), DecodeFault> {
        self.count_kept(text.len())?;
        append_piece(&mut self.opaque.reasoning, text)
    }

    /// Begins a call. Returns its index.
    pub(super) fn begin_call(&mut self, call: PartialCall) -> Result<usize, DecodeFault> {
        if self.calls.len() == MAX_REQUESTS {
            return Err(DecodeFault::Large("the number of tool requests", MAX_REQUESTS));
        }
        self.count_kept(call.id.len() + call.name.len() + VALUE_BYTES)?;
        self.calls.push(call);
        Ok(self.calls.len() - 1)
    }

    pub(super) fn call(&mut self, place: usize) -> Option<&mut PartialCall> {
        self.calls.get_mut(place)
    }

    pub(super) fn calls(&self) -> &[PartialCall] {
        &self.calls
    }

    /// Appends the next piece of a call's arguments.
    pub(super) fn push_arguments(&mut self, place: usize, text: &str) -> Result<(), DecodeFault> {
        self.count_kept(text.len())?;
        self.calls.get_mut(place).map_or(Ok(()), |call| call.add(text))
    }

    /// Sets a call's arguments that arrive as one value.
    pub(super) fn set_arguments(&mut self, place: usize, arguments: Value) -> Result<(), DecodeFault> {
        self.count_kept(value_weight(&arguments))?;
        if let Some(call) = self.calls.get_mut(place) {
            call.set_arguments(arguments);
        }
        Ok(())
    }

    /// Keeps a part that was not understood; it has no effect.
    pub(super) fn keep_unread(&mut self, what: Value) -> Result<(), DecodeFault> {
        self.count_kept(value_weight(&what))?;
        self.opaque.unread.push(what);
        Ok(())
    }

    /// Keeps a part that the provider needs back before text and calls.
    pub(super) fn keep_block(&mut self, block: Value) -> Result<(), DecodeFault> {
        self.count_kept(value_weight(&block))?;
        self.opaque.blocks.push(block);
        Ok(())
    }

    /// Sets the token counts: the last ones are valid for the whole answer.
    pub(super) fn count(&mut self, usage: TokenUsage) {
        self.usage = Some(usage);
    }

    /// Counts `bytes` that are kept until the end.
    pub(super) fn count_kept(&mut self, bytes: usize) -> Result<(), DecodeFault> {
        self.kept = self.kept.saturating_add(bytes);
        if self.kept > MAX_KEPT_BYTES {
            return Err(DecodeFault::Large("an answer", MAX_KEPT_BYTES));
        }
        Ok(())
    }

    /// Returns the complete answer, after the provider has stated why it stops.
    pub(super) fn into_heard(mut self, stop: StopSignal) -> Result<HeardAnswer, DecodeFault> {
        if stop.calls && self.calls.is_empty() {
            let detail = format!("it stopped for tools (`{}`) and calls none", stop.word);
            return Err(DecodeFault::Unreadable(detail));
        }

        let signatures = self.calls.iter_mut().enumerate();
        self.opaque.signatures = signatures
            .filter_map(|(place, call)| Some((place, call.signature.take()?)))
            .collect();

        Ok(HeardAnswer {
            calls: into_requests(self.calls, &stop.finish)?,
            text: self.text,
            stop: stop.word,
            finish: stop.finish,
            usage: self.usage.unwrap_or_default(),
            opaque: self.opaque,
        })
    }
}
