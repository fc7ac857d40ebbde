//! Chat completions, and what the look-alikes make of them. *Pure.*
//!
//! Look-alikes differ in calls above all: indices that do not begin at 0 or have gaps (Anthropic's endpoint), all 0
//! (Google's), or absent (Mistral); ids that repeat with each piece, or are absent; names that repeat. An index tells
//! pieces apart, and is nothing else.

use serde_json::Value;

use super::calls::Call;
use super::said::{Said, Stop, lengthened, weight};
use super::{Fault, listed, taken, usage};
use crate::llm::answer::{Finish, Usage};

/// Answers side by side. One is asked for.
const MAX_CHOICES: usize = 64;
/// What is shown of a refusal, bytes.
const MAX_REFUSAL_BYTES: usize = 500;

/// One of the answers side by side; some gateways part text and calls so.
#[derive(Debug)]
struct Choice {
    index: u64,
    stop: Option<String>,
    /// Something of it came: a summary of the whole is no more of it.
    begun: bool,
}

/// How a piece of a call is told from another call's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    choice: u64,
    /// None: the provider numbers nothing.
    index: Option<u64>,
    /// Among all calls.
    call: usize,
}

/// An answer on OpenAI's wire that is being read.
#[derive(Debug, Default)]
pub(super) struct OpenAi {
    choices: Vec<Choice>,
    places: Vec<Place>,
    refusal: String,
}

impl OpenAi {
    /// Whether each answer that began has said why it stops.
    pub(super) fn has_stopped(&self) -> bool {
        !self.choices.is_empty() && self.choices.iter().all(|choice| choice.stop.is_some())
    }

    /// Why it stopped. Where the mark of the end is missing, usage must have come, which is the last that comes.
    pub(super) fn stop(&self, ended: bool, counted: bool) -> Result<Stop, Fault> {
        if !self.has_stopped() {
            return Err(Fault::Lost("the stream ended without saying why".to_owned()));
        }
        if !ended && !counted {
            return Err(Fault::Lost("the stream ended before its mark of the end".to_owned()));
        }
        Ok(self.stopped())
    }

    pub(super) fn event(&mut self, said: &mut Said, mut event: Value) -> Result<(), Fault> {
        if let Some(counted) = counted(&event) {
            said.count(counted);
        }

        // After a stop that says itself that the answer is cut, an error adds nothing.
        let known = self.has_stopped() && self.stopped().is_cut();
        let error = taken(&mut event, "error");
        if !error.is_null() {
            return if known { Ok(()) } else { Err(Fault::Said(error)) };
        }

        listed(said, taken(&mut event, "choices"))?
            .into_iter()
            .try_for_each(|choice| self.choice(said, choice))
    }

    /// The word of the first answer that is cut, else of the first.
    fn stopped(&self) -> Stop {
        let words = || self.choices.iter().filter_map(|choice| choice.stop.as_deref());
        let stops = || words().map(Stop::of);
        let mut stop = stops()
            .find(Stop::is_cut)
            .or_else(|| stops().next())
            .unwrap_or_else(|| Stop::of(""));

        stop.calls |= stops().any(|stop| stop.calls);

        if stop.finish == Finish::Done && !self.refusal.is_empty() {
            stop.finish = Finish::Filtered {
                reason: self.refusal.clone(),
            };
        }

        stop
    }

    fn choice(&mut self, said: &mut Said, mut choice: Value) -> Result<(), Fault> {
        if !choice.is_object() {
            return said.unread(choice);
        }

        let index = choice["index"].as_u64().unwrap_or(0);
        let at = match self.choices.iter().position(|choice| choice.index == index) {
            Some(at) => at,
            None if self.choices.len() == MAX_CHOICES => return Err(Fault::Large("a number of choices", MAX_CHOICES)),
            None => {
                self.choices.push(Choice {
                    index,
                    stop: None,
                    begun: false,
                });
                self.choices.len() - 1
            }
        };

        let (delta, message) = (taken(&mut choice, "delta"), taken(&mut choice, "message"));
        if delta.is_object() {
            self.choices[at].begun = true;
            self.said(said, index, delta, false)?;
        } else if message.is_object() && !self.choices[at].begun {
            self.choices[at].begun = true;
            self.said(said, index, message, true)?;
        }

        // Some say an empty word, or none, until they stop; a word that is cut is not taken back.
        if let Some(word) = choice["finish_reason"].as_str().filter(|word| !word.is_empty()) {
            said.keep(word.len())?;
            let stop = &mut self.choices[at].stop;
            if !stop.as_deref().is_some_and(|word| Stop::of(word).is_cut()) {
                *stop = Some(word.to_owned());
            }
        }

        Ok(())
    }

    /// One delta, or one message as a whole.
    fn said(&mut self, said: &mut Said, choice: u64, mut delta: Value, whole: bool) -> Result<(), Fault> {
        let content = taken(&mut delta, "content");
        if let Some(text) = content.as_str() {
            said.say(text)?;
        } else {
            for part in listed(said, content)? {
                spoken(said, part)?;
            }
        }

        if let Some(refusal) = delta["refusal"].as_str() {
            let room = MAX_REFUSAL_BYTES.saturating_sub(self.refusal.len());
            self.refusal.push_str(&refusal[..refusal.floor_char_boundary(room)]);
        }

        if let Some(reasoning) = delta["reasoning_content"].as_str() {
            said.reason(reasoning)?;
        }

        if let Value::Array(details) = taken(&mut delta, "reasoning_details") {
            details.into_iter().try_for_each(|detail| thought(said, detail))?;
        }

        listed(said, taken(&mut delta, "tool_calls"))?
            .into_iter()
            .try_for_each(|piece| self.piece(said, choice, piece, whole))
    }

    /// One piece of a call.
    fn piece(&mut self, said: &mut Said, choice: u64, mut piece: Value, whole: bool) -> Result<(), Fault> {
        let mut function = taken(&mut piece, "function");
        if !function.is_object() {
            return said.unread(piece);
        }

        let arguments = taken(&mut function, "arguments");
        let text = arguments.as_str().unwrap_or_default();
        let id = piece["id"].as_str().unwrap_or_default();
        let name = function["name"].as_str().unwrap_or_default();
        let index = if whole { None } else { piece["index"].as_u64() };

        let known = if whole {
            None
        } else {
            match self.known(said, choice, index, [id, name, text]) {
                Known::Repeated => return Ok(()),
                Known::Of(call) => Some(call),
                Known::New => None,
            }
        };

        let call = match known {
            Some(call) => {
                if let Some(call) = said.call(call) {
                    fill(call, id, name);
                }
                call
            }
            None => {
                let call = said.begin(Call::new(id, name))?;
                self.places.push(Place { choice, index, call });
                call
            }
        };

        if let Some(text) = arguments.as_str() {
            return said.argue(call, text);
        }

        if arguments.is_null() {
            return Ok(());
        }

        said.give(call, arguments)
    }

    /// Which call a piece belongs to.
    fn known(&self, said: &Said, choice: u64, index: Option<u64>, [id, name, text]: [&str; 3]) -> Known {
        let here = || self.places.iter().rev().filter(|place| place.choice == choice);
        let found = match index {
            Some(_) => here().find(|place| place.index == index),
            // Nothing is numbered: an id names the call, and a piece with neither id nor name goes on with the last.
            None if !id.is_empty() => {
                here().find(|place| said.calls().get(place.call).is_some_and(|call| call.id == id))
            }
            None if name.is_empty() => here().next(),
            None => None,
        };

        let Some((place, call)) = found.and_then(|place| Some((place.call, said.calls().get(place.call)?))) else {
            return Known::New;
        };

        if index.is_none() && !id.is_empty() && call.repeats(text) {
            return Known::Repeated;
        }

        // One index for all calls: the next begins where one with another id, or with none, has its arguments.
        let named = index.is_some() && !name.is_empty() && call.is_whole_or_empty();
        // Where a piece has a new id, the same name, and nothing came yet, it is an id that changes with each piece.
        let other_id = !id.is_empty() && !call.id.is_empty() && id != call.id;
        let other_call = other_id && (call.has_arguments() || call.name != name);

        let without_ids = id.is_empty() && call.has_arguments() && !text.trim().is_empty();
        if named && (other_call || without_ids) {
            Known::New
        } else {
            Known::Of(place)
        }
    }
}

enum Known {
    /// Another call.
    New,
    /// More of the call at this place.
    Of(usize),
    /// The same again.
    Repeated,
}

/// Takes what a call lacked.
fn fill(call: &mut Call, id: &str, name: &str) {
    if call.id.is_empty() {
        id.clone_into(&mut call.id);
    }
    if call.name.is_empty() {
        name.clone_into(&mut call.name);
    }
}

/// A part of a content that comes in parts (Mistral).
fn spoken(said: &mut Said, part: Value) -> Result<(), Fault> {
    match (part["type"].as_str(), part["text"].as_str()) {
        (Some("text"), Some(text)) => said.say(text),
        _ => said.unread(part),
    }
}

/// OpenRouter's blocks of reasoning return as they came, pieces of one text joined.
fn thought(said: &mut Said, detail: Value) -> Result<(), Fault> {
    let text = detail["text"].as_str().unwrap_or_default();
    let joins = |last: &&mut Value| {
        let same = |key: &str| last[key] == detail[key];
        last["text"].is_string()
            && detail["type"] == "reasoning.text"
            && same("type")
            && same("index")
            && last["signature"].is_null()
    };

    let Some(last) = said.opaque.blocks.last_mut().filter(joins) else {
        return said.block(detail);
    };
    if let Some(Value::String(joined)) = last.get_mut("text") {
        lengthened(joined, text)?;
    }

    for key in ["signature", "format", "id"] {
        if !detail[key].is_null() {
            last[key] = detail[key].clone();
        }
    }

    said.keep(weight(&detail))
}

/// The tokens of an event, where it counts any: beside choices or without, at the top or where Groq puts it.
fn counted(event: &Value) -> Option<Usage> {
    let said = [event.get("usage"), event.pointer("/x_groq/usage")];
    let counted = said.into_iter().flatten().find(|usage| {
        ["prompt_tokens", "completion_tokens", "total_tokens"]
            .iter()
            .any(|key| usage[*key].is_u64())
    });
    counted.map(usage::openai)
}
