//! Decoder of `streamGenerateContent`: events that are small answers, without a mark of the end. *Pure.*
//!
//! The first `finishReason` need not be the last event: later events are decoded like earlier ones.

use serde_json::Value;

use super::answer_builder::{AnswerBuilder, StopSignal};
use super::calls::PartialCall;
use super::partial::PartialPieces;
use super::{DecodeFault, take_list, take_member, usage};
use crate::llm::answer::FinishReason;

/// Maximum number of alternative answers. One is requested.
const MAX_CANDIDATES: usize = 64;
/// Number of bytes shown of a reason.
const MAX_REASON_BYTES: usize = 500;

#[derive(Debug, Default)]
struct Candidate {
    index: u64,
    stop: Option<String>,
    /// Explanation of the stop, in a sentence.
    message: Option<String>,
}

/// A call whose arguments arrive in pieces.
#[derive(Debug)]
struct GeminiCall {
    candidate: u64,
    call: usize,
    pieces: PartialPieces,
}

/// An answer on Gemini's wire that is being decoded.
#[derive(Debug, Default)]
pub(super) struct GeminiDecoder {
    candidates: Vec<Candidate>,
    open: Option<GeminiCall>,
    /// Reason why the request was blocked, if it was.
    blocked: Option<String>,
    counted: serde_json::Map<String, Value>,
}

impl GeminiDecoder {
    pub(super) fn has_stopped(&self) -> bool {
        let stopped = self.candidates.iter().all(|candidate| candidate.stop.is_some());
        self.blocked.is_some() || (stopped && !self.candidates.is_empty())
    }

    /// Returns the reason for the stop.
    pub(super) fn stop(&self) -> Result<StopSignal, DecodeFault> {
        if let Some(reason) = &self.blocked {
            return Ok(StopSignal {
                word: reason.clone(),
                finish: FinishReason::Filtered { reason: reason.clone() },
                calls: false,
            });
        }

        if !self.has_stopped() {
            return Err(DecodeFault::Lost("the stream ended without a finish reason".to_owned()));
        }

        let mut stops = self.candidates.iter().filter_map(Candidate::stop_reason);
        let first = stops.next().unwrap_or_else(|| StopSignal::from_word(""));
        if first.is_cut() {
            return Ok(first);
        }

        Ok(stops.find(StopSignal::is_cut).unwrap_or(first))
    }

    pub(super) fn read_event(&mut self, said: &mut AnswerBuilder, mut event: Value) -> Result<(), DecodeFault> {
        self.count(said, take_member(&mut event, "usageMetadata"));
        let cut = self.has_stopped() && self.stop().is_ok_and(|stop| stop.is_cut());

        let error = take_member(&mut event, "error");
        if !error.is_null() {
            return if cut { Ok(()) } else { Err(DecodeFault::Said(error)) };
        }

        if let Some(reason) = event["promptFeedback"]["blockReason"].as_str() {
            let message = event["promptFeedback"]["blockReasonMessage"].as_str();
            self.blocked = Some(reason_text(reason, message));
        }

        take_list(said, take_member(&mut event, "candidates"))?
            .into_iter()
            .try_for_each(|candidate| self.read_candidate(said, candidate))
    }

    /// Records token counts. Later counts replace earlier ones, key by key: the last event need not repeat all.
    fn count(&mut self, said: &mut AnswerBuilder, counted: Value) {
        let Value::Object(counted) = counted else {
            return;
        };

        for key in [
            "promptTokenCount",
            "candidatesTokenCount",
            "thoughtsTokenCount",
            "toolUsePromptTokenCount",
            "cachedContentTokenCount",
        ] {
            if let Some(tokens) = counted.get(key).filter(|tokens| tokens.is_u64()) {
                self.counted.insert(key.to_owned(), tokens.clone());
            }
        }

        said.count(usage::gemini(&Value::Object(self.counted.clone())));
    }

    fn read_candidate(&mut self, said: &mut AnswerBuilder, mut candidate: Value) -> Result<(), DecodeFault> {
        if !candidate.is_object() {
            return said.keep_unread(candidate);
        }

        // The candidates of a stream are told apart by their index.
        let index = candidate["index"].as_u64().unwrap_or(0);
        let at = match self.candidates.iter().position(|known| known.index == index) {
            Some(at) => at,
            None if self.candidates.len() == MAX_CANDIDATES => {
                return Err(DecodeFault::Large("the number of candidates", MAX_CANDIDATES));
            }
            None => {
                self.candidates.push(Candidate {
                    index,
                    ..Candidate::default()
                });
                self.candidates.len() - 1
            }
        };

        if let Value::Array(parts) = take_member(&mut take_member(&mut candidate, "content"), "parts") {
            for part in parts {
                self.read_part(said, index, part)?;
            }
        }

        let Some(word) = candidate["finishReason"].as_str().filter(|word| !word.is_empty()) else {
            return Ok(());
        };

        // A stop that marks a cut is not replaced.
        let known = &mut self.candidates[at];
        if !known.stop_reason().is_some_and(|stop| stop.is_cut()) {
            said.count_kept(word.len())?;
            known.stop = Some(word.to_owned());
            known.message = candidate["finishMessage"]
                .as_str()
                .map(|message| reason_text(message, None));
        }

        Ok(())
    }

    fn read_part(&mut self, said: &mut AnswerBuilder, candidate: u64, mut part: Value) -> Result<(), DecodeFault> {
        let call = take_member(&mut part, "functionCall");
        if call.is_object() {
            let signature = part["thoughtSignature"].as_str();
            return self.call(said, candidate, call, signature);
        }

        let Some(text) = part["text"].as_str() else {
            // A step of one of Google's own tools, which the provider needs back.
            return if part.is_object() {
                said.keep_block(part)
            } else {
                said.keep_unread(part)
            };
        };

        if part["thought"] == true {
            return Ok(());
        }

        said.push_text(text)?;

        if let Some(signature) = part["thoughtSignature"].as_str() {
            said.count_kept(signature.len())?;
            said.opaque.text_signature = Some(signature.to_owned());
        }

        Ok(())
    }

    /// Decodes a call, or a piece of one that has begun.
    fn call(
        &mut self,
        said: &mut AnswerBuilder,
        candidate: u64,
        mut call: Value,
        signature: Option<&str>,
    ) -> Result<(), DecodeFault> {
        let arguments = take_member(&mut call, "args");
        let pieces = take_member(&mut call, "partialArgs");
        let [id, name] = ["id", "name"].map(|key| call[key].as_str().unwrap_or_default());
        let goes_on = call["willContinue"] == true;

        // A piece belongs to the open call only if nothing in it contradicts that.
        let open = self.open.take().filter(|open| {
            let same = said.calls().get(open.call).is_some_and(|known| {
                (name.is_empty() || known.name == name) && (id.is_empty() || known.id.is_empty() || known.id == id)
            });
            open.candidate == candidate && same
        });

        let mut open = match open {
            Some(open) => open,
            // A mark of the end of a call that was complete at its beginning.
            None if name.is_empty() && id.is_empty() && arguments.is_null() && pieces.is_null() => return Ok(()),
            None => GeminiCall {
                candidate,
                call: said.begin_call(PartialCall::new(id, name))?,
                pieces: PartialPieces::default(),
            },
        };

        // The signature must be sent back with the call, so it is stored beside it.
        if let Some(signature) = signature {
            said.count_kept(signature.len())?;
            if let Some(call) = said.call(open.call) {
                call.signature.get_or_insert_with(|| signature.to_owned());
            }
        }

        if !arguments.is_null() {
            said.set_arguments(open.call, arguments)?;
        }

        if let Value::Array(pieces) = pieces {
            for piece in &pieces {
                open.pieces.place_piece(said, open.call, piece)?;
            }
        }

        // Until the last piece the call is unfinished: a cut answer must not run it.
        if let Some(call) = said.call(open.call) {
            call.unfinished = goes_on || open.pieces.is_open();
        }

        if goes_on {
            self.open = Some(open);
        }

        Ok(())
    }
}

impl Candidate {
    fn stop_reason(&self) -> Option<StopSignal> {
        let mut stop = StopSignal::from_word(self.stop.as_deref()?);
        if let (FinishReason::Filtered { reason } | FinishReason::Other { reason }, Some(message)) =
            (&mut stop.finish, &self.message)
        {
            *reason = reason_text(reason, Some(message));
        }
        Some(stop)
    }
}

/// Returns a reason with its sentence, shortened.
fn reason_text(reason: &str, message: Option<&str>) -> String {
    let mut told = match message {
        Some(message) => format!("{reason}: {message}"),
        None => reason.to_owned(),
    };
    told.truncate(told.floor_char_boundary(MAX_REASON_BYTES));
    told
}
