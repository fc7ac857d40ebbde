//! Decoder of OpenAI's chat completions, and of their variants in compatible servers. *Pure.*
//!
//! Compatible servers differ mainly in calls: indices that do not begin at 0 or have gaps (Anthropic's endpoint), are
//! all 0 (Google's), or are absent (Mistral); ids that repeat with each piece, or are absent; names that repeat. An
//! index only tells pieces apart.

use serde_json::Value;

use super::answer_builder::{AnswerBuilder, StopSignal};
use super::calls::PartialCall;
use super::memory_bounds::{append_piece, value_weight};
use super::{DecodeFault, take_list, take_member, usage};
use crate::llm::answer::FinishReason;
use crate::llm::usage::TokenUsage;

/// Maximum number of alternative answers. One is requested.
const MAX_CHOICES: usize = 64;
/// Number of bytes shown of a refusal.
const MAX_REFUSAL_BYTES: usize = 500;

/// One of the alternative answers; some gateways separate text and calls this way.
#[derive(Debug)]
struct Choice {
    index: u64,
    stop: Option<String>,
    /// Whether any part of it arrived: a summary of the whole adds nothing then.
    begun: bool,
}

/// Identification of the call that a piece belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CallPlace {
    choice: u64,
    /// Provider's index of the call; `None` if the provider numbers no calls.
    index: Option<u64>,
    /// Index among all calls.
    call: usize,
}

/// An answer on OpenAI's wire that is being decoded.
#[derive(Debug, Default)]
pub(super) struct OpenAi {
    choices: Vec<Choice>,
    places: Vec<CallPlace>,
    refusal: String,
}

impl OpenAi {
    /// Returns whether each answer that began has stated why it stops.
    pub(super) fn has_stopped(&self) -> bool {
        !self.choices.is_empty() && self.choices.iter().all(|choice| choice.stop.is_some())
    }

    /// Returns the reason for the stop. If the mark of the end is missing, usage must have arrived, which is the last
    /// part.
    pub(super) fn stop(&self, ended: bool, counted: bool) -> Result<StopSignal, DecodeFault> {
        if !self.has_stopped() {
            return Err(DecodeFault::Lost("the stream ended without a finish reason".to_owned()));
        }
        if !ended && !counted {
            return Err(DecodeFault::Lost("the stream ended before `[DONE]`".to_owned()));
        }
        Ok(self.stop_reason())
    }

    pub(super) fn read_event(&mut self, said: &mut AnswerBuilder, mut event: Value) -> Result<(), DecodeFault> {
        if let Some(counted) = count_usage(&event) {
            said.count(counted);
        }

        // After a stop that marks the answer as cut, an error adds nothing.
        let known = self.has_stopped() && self.stop_reason().is_cut();
        let error = take_member(&mut event, "error");
        if !error.is_null() {
            return if known { Ok(()) } else { Err(DecodeFault::Said(error)) };
        }

        take_list(said, take_member(&mut event, "choices"))?
            .into_iter()
            .try_for_each(|choice| self.read_choice(said, choice))
    }

    /// Returns the stop of the first answer that is cut, or else of the first answer.
    fn stop_reason(&self) -> StopSignal {
        let words = || self.choices.iter().filter_map(|choice| choice.stop.as_deref());
        let stops = || words().map(StopSignal::from_word);
        let mut stop = stops()
            .find(StopSignal::is_cut)
            .or_else(|| stops().next())
            .unwrap_or_else(|| StopSignal::from_word(""));

        stop.calls |= stops().any(|stop| stop.calls);

        if stop.finish == FinishReason::Done && !self.refusal.is_empty() {
            stop.finish = FinishReason::Filtered {
                reason: self.refusal.clone(),
            };
        }

        stop
    }

    fn read_choice(&mut self, said: &mut AnswerBuilder, mut choice: Value) -> Result<(), DecodeFault> {
        if !choice.is_object() {
            return said.keep_unread(choice);
        }

        let index = choice["index"].as_u64().unwrap_or(0);
        let at = match self.choices.iter().position(|choice| choice.index == index) {
            Some(at) => at,
            None if self.choices.len() == MAX_CHOICES => {
                return Err(DecodeFault::Large("the number of choices", MAX_CHOICES));
            }
            None => {
                self.choices.push(Choice {
                    index,
                    stop: None,
                    begun: false,
                });
                self.choices.len() - 1
            }
        };

        // Some servers repeat the whole message at the end of a stream: then its pieces have been read.
        let (delta, message) = (take_member(&mut choice, "delta"), take_member(&mut choice, "message"));
        if delta.is_object() {
            self.choices[at].begun = true;
            self.read_delta(said, index, delta, false)?;
        } else if message.is_object() && !self.choices[at].begun {
            self.choices[at].begun = true;
            self.read_delta(said, index, message, true)?;
        }

        // Some servers send an empty word, or none, until they stop; a stop that marks a cut is not replaced.
        if let Some(word) = choice["finish_reason"].as_str().filter(|word| !word.is_empty()) {
            said.count_kept(word.len())?;
            let stop = &mut self.choices[at].stop;
            if !stop.as_deref().is_some_and(|word| StopSignal::from_word(word).is_cut()) {
                *stop = Some(word.to_owned());
            }
        }

        Ok(())
    }

    /// Decodes one delta, or one complete message.
    fn read_delta(
        &mut self,
        said: &mut AnswerBuilder,
        choice: u64,
        mut delta: Value,
        whole: bool,
    ) -> Result<(), DecodeFault> {
        let content = take_member(&mut delta, "content");
        if let Some(text) = content.as_str() {
            said.push_text(text)?;
        } else {
            // Some servers send the content as a list of parts.
            for part in take_list(said, content)? {
                read_content_part(said, part)?;
            }
        }

        // A refusal is only shown, for which its beginning is enough.
        if let Some(refusal) = delta["refusal"].as_str() {
            let room = MAX_REFUSAL_BYTES.saturating_sub(self.refusal.len());
            self.refusal.push_str(&refusal[..refusal.floor_char_boundary(room)]);
        }

        if let Some(reasoning) = delta["reasoning_content"].as_str() {
            said.push_reasoning(reasoning)?;
        }

        if let Value::Array(details) = take_member(&mut delta, "reasoning_details") {
            details.into_iter().try_for_each(|detail| push_thought(said, detail))?;
        }

        take_list(said, take_member(&mut delta, "tool_calls"))?
            .into_iter()
            .try_for_each(|piece| self.read_piece(said, choice, piece, whole))
    }

    /// Decodes one piece of a call.
    fn read_piece(
        &mut self,
        said: &mut AnswerBuilder,
        choice: u64,
        mut piece: Value,
        whole: bool,
    ) -> Result<(), DecodeFault> {
        let mut function = take_member(&mut piece, "function");
        if !function.is_object() {
            return said.keep_unread(piece);
        }

        let arguments = take_member(&mut function, "arguments");
        let text = arguments.as_str().unwrap_or_default();
        let id = piece["id"].as_str().unwrap_or_default();
        let name = function["name"].as_str().unwrap_or_default();
        // The calls of a complete message are never pieces of earlier ones.
        let index = if whole { None } else { piece["index"].as_u64() };

        // Providers name the pieces of a call by index, by id, or not at all.
        let known = if whole {
            None
        } else {
            match self.find_call(said, choice, index, [id, name, text]) {
                KnownCall::Repeated => return Ok(()),
                KnownCall::Of(call) => Some(call),
                KnownCall::New => None,
            }
        };

        let call = match known {
            Some(call) => {
                if let Some(call) = said.call(call) {
                    fill_call(call, id, name);
                }
                call
            }
            None => {
                let call = said.begin_call(PartialCall::new(id, name))?;
                self.places.push(CallPlace { choice, index, call });
                call
            }
        };

        if let Some(text) = arguments.as_str() {
            return said.push_arguments(call, text);
        }

        if arguments.is_null() {
            return Ok(());
        }

        said.set_arguments(call, arguments)
    }

    /// Finds the call that a piece belongs to.
    fn find_call(
        &self,
        said: &AnswerBuilder,
        choice: u64,
        index: Option<u64>,
        [id, name, text]: [&str; 3],
    ) -> KnownCall {
        let here = || self.places.iter().rev().filter(|place| place.choice == choice);
        let found = match index {
            Some(_) => here().find(|place| place.index == index),
            // If calls are not numbered, an id identifies the call, and a piece with neither id nor name continues the
            // last one.
            None if !id.is_empty() => {
                here().find(|place| said.calls().get(place.call).is_some_and(|call| call.id == id))
            }
            None if name.is_empty() => here().next(),
            None => None,
        };

        let Some((place, call)) = found.and_then(|place| Some((place.call, said.calls().get(place.call)?))) else {
            return KnownCall::New;
        };

        if index.is_none() && !id.is_empty() && call.repeats_arguments(text) {
            return KnownCall::Repeated;
        }

        // With one index for all calls, the next call begins if the current one has its arguments, and the piece has
        // another id or none.
        let named = index.is_some() && !name.is_empty() && call.is_whole_or_empty();
        // A new id with the same name, before any arguments, is an id that changes with each piece.
        let other_id = !id.is_empty() && !call.id.is_empty() && id != call.id;
        let other_call = other_id && (call.has_arguments() || call.name != name);

        let without_ids = id.is_empty() && call.has_arguments() && !text.trim().is_empty();
        if named && (other_call || without_ids) {
            KnownCall::New
        } else {
            KnownCall::Of(place)
        }
    }
}

enum KnownCall {
    /// The piece begins another call.
    New,
    /// The piece continues the call at this index.
    Of(usize),
    /// The piece repeats one that arrived already.
    Repeated,
}

/// Fills in the id and the name that a call lacks.
fn fill_call(call: &mut PartialCall, id: &str, name: &str) {
    if call.id.is_empty() {
        id.clone_into(&mut call.id);
    }
    if call.name.is_empty() {
        name.clone_into(&mut call.name);
    }
}

/// Decodes a part of a content that comes in parts (Mistral).
fn read_content_part(said: &mut AnswerBuilder, part: Value) -> Result<(), DecodeFault> {
    match (part["type"].as_str(), part["text"].as_str()) {
        (Some("text"), Some(text)) => said.push_text(text),
        _ => said.keep_unread(part),
    }
}

/// Keeps OpenRouter's blocks of reasoning as they came, with the pieces of one text joined.
fn push_thought(said: &mut AnswerBuilder, detail: Value) -> Result<(), DecodeFault> {
    let text = detail["text"].as_str().unwrap_or_default();
    let joins = |last: &&mut Value| {
        let same = |key: &str| last[key] == detail[key];
        last["text"].is_string()
            && detail["type"] == "reasoning.text"
            && same("type")
            && same("index")
            && last["signature"].is_null()
    };

    // The pieces of one text come one after the other, so only the last block can grow.
    let Some(last) = said.opaque.blocks.last_mut().filter(joins) else {
        return said.keep_block(detail);
    };
    if let Some(Value::String(joined)) = last.get_mut("text") {
        append_piece(joined, text)?;
    }

    // Members that only a later piece has. A signature ends the text, see `joins`.
    for key in ["signature", "format", "id"] {
        if !detail[key].is_null() {
            last[key] = detail[key].clone();
        }
    }

    said.count_kept(value_weight(&detail))
}

/// Returns the token counts of an event, if it has any: with or without choices, at the top or in Groq's place.
fn count_usage(event: &Value) -> Option<TokenUsage> {
    let said = [event.get("usage"), event.pointer("/x_groq/usage")];
    let counted = said.into_iter().flatten().find(|usage| {
        ["prompt_tokens", "completion_tokens", "total_tokens"]
            .iter()
            .any(|key| usage[*key].is_u64())
    });
    counted.map(usage::openai)
}
