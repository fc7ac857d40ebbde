//! Decoder of `streamGenerateContent`: events that are small answers, without a mark of the end. *Pure.*
//!
//! The first `finishReason` need not be the last event: later events are decoded like earlier ones.

use serde_json::Value;

use super::calls::Call;
use super::partial::Pieces;
use super::said::{Said, Stop};
use super::{Fault, listed, taken, usage};
use crate::llm::answer::Finish;

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
struct Open {
    candidate: u64,
    call: usize,
    pieces: Pieces,
}

/// An answer on Gemini's wire that is being decoded.
#[derive(Debug, Default)]
pub(super) struct Gemini {
    candidates: Vec<Candidate>,
    open: Option<Open>,
    /// Reason why the request was blocked, if it was.
    blocked: Option<String>,
    counted: serde_json::Map<String, Value>,
}

impl Gemini {
    pub(super) fn has_stopped(&self) -> bool {
        let stopped = self.candidates.iter().all(|candidate| candidate.stop.is_some());
        self.blocked.is_some() || (stopped && !self.candidates.is_empty())
    }

    /// Returns the reason for the stop.
    pub(super) fn stop(&self) -> Result<Stop, Fault> {
        if let Some(reason) = &self.blocked {
            return Ok(Stop {
                word: reason.clone(),
                finish: Finish::Filtered { reason: reason.clone() },
                calls: false,
            });
        }

        if !self.has_stopped() {
            return Err(Fault::Lost("the stream ended without saying why".to_owned()));
        }

        let mut stops = self.candidates.iter().filter_map(Candidate::stopped);
        let first = stops.next().unwrap_or_else(|| Stop::of(""));
        if first.is_cut() {
            return Ok(first);
        }

        Ok(stops.find(Stop::is_cut).unwrap_or(first))
    }

    pub(super) fn event(&mut self, said: &mut Said, mut event: Value) -> Result<(), Fault> {
        self.count(said, taken(&mut event, "usageMetadata"));
        let cut = self.has_stopped() && self.stop().is_ok_and(|stop| stop.is_cut());

        let error = taken(&mut event, "error");
        if !error.is_null() {
            return if cut { Ok(()) } else { Err(Fault::Said(error)) };
        }

        if let Some(reason) = event["promptFeedback"]["blockReason"].as_str() {
            let message = event["promptFeedback"]["blockReasonMessage"].as_str();
            self.blocked = Some(told(reason, message));
        }

        listed(said, taken(&mut event, "candidates"))?
            .into_iter()
            .try_for_each(|candidate| self.candidate(said, candidate))
    }

    /// Records token counts. Later counts replace earlier ones, key by key: the last event need not repeat all.
    fn count(&mut self, said: &mut Said, counted: Value) {
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

    fn candidate(&mut self, said: &mut Said, mut candidate: Value) -> Result<(), Fault> {
        if !candidate.is_object() {
            return said.unread(candidate);
        }

        // The candidates of a stream are told apart by their index.
        let index = candidate["index"].as_u64().unwrap_or(0);
        let at = match self.candidates.iter().position(|known| known.index == index) {
            Some(at) => at,
            None if self.candidates.len() == MAX_CANDIDATES => {
                return Err(Fault::Large("a number of candidates", MAX_CANDIDATES));
            }
            None => {
                self.candidates.push(Candidate {
                    index,
                    ..Candidate::default()
                });
                self.candidates.len() - 1
            }
        };

        if let Value::Array(parts) = taken(&mut taken(&mut candidate, "content"), "parts") {
            for part in parts {
                self.part(said, index, part)?;
            }
        }

        let Some(word) = candidate["finishReason"].as_str().filter(|word| !word.is_empty()) else {
            return Ok(());
        };

        // A stop that marks a cut is not replaced.
        let known = &mut self.candidates[at];
        if !known.stopped().is_some_and(|stop| stop.is_cut()) {
            said.keep(word.len())?;
            known.stop = Some(word.to_owned());
            known.message = candidate["finishMessage"].as_str().map(|message| told(message, None));
        }

        Ok(())
    }

    fn part(&mut self, said: &mut Said, candidate: u64, mut part: Value) -> Result<(), Fault> {
        let call = taken(&mut part, "functionCall");
        if call.is_object() {
            let signature = part["thoughtSignature"].as_str();
            return self.call(said, candidate, call, signature);
        }

        let Some(text) = part["text"].as_str() else {
            // A step of one of Google's own tools, which the provider needs back.
            return if part.is_object() {
                said.block(part)
            } else {
                said.unread(part)
            };
        };

        if part["thought"] == true {
            return Ok(());
        }

        said.say(text)?;

        if let Some(signature) = part["thoughtSignature"].as_str() {
            said.keep(signature.len())?;
            said.opaque.text_signature = Some(signature.to_owned());
        }

        Ok(())
    }

    /// Decodes a call, or a piece of one that has begun.
    fn call(&mut self, said: &mut Said, candidate: u64, mut call: Value, signature: Option<&str>) -> Result<(), Fault> {
        let arguments = taken(&mut call, "args");
        let pieces = taken(&mut call, "partialArgs");
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
            None => Open {
                candidate,
                call: said.begin(Call::new(id, name))?,
                pieces: Pieces::default(),
            },
        };

        // The signature must be sent back with the call, so it is stored beside it.
        if let Some(signature) = signature {
            said.keep(signature.len())?;
            if let Some(call) = said.call(open.call) {
                call.signature.get_or_insert_with(|| signature.to_owned());
            }
        }

        if !arguments.is_null() {
            said.give(open.call, arguments)?;
        }

        if let Value::Array(pieces) = pieces {
            for piece in &pieces {
                open.pieces.place(said, open.call, piece)?;
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
    fn stopped(&self) -> Option<Stop> {
        let mut stop = Stop::of(self.stop.as_deref()?);
        if let (Finish::Filtered { reason } | Finish::Other { reason }, Some(message)) =
            (&mut stop.finish, &self.message)
        {
            *reason = told(reason, Some(message));
        }
        Some(stop)
    }
}

/// Returns a reason with its sentence, shortened.
fn told(reason: &str, message: Option<&str>) -> String {
    let mut told = match message {
        Some(message) => format!("{reason}: {message}"),
        None => reason.to_owned(),
    };
    told.truncate(told.floor_char_boundary(MAX_REASON_BYTES));
    told
}
