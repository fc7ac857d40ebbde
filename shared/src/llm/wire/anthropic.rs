//! Messages: blocks that begin, grow and end, each under its index. *Pure.*

use serde_json::{Value, json};

use super::calls::Call;
use super::said::{Said, Stop, lengthened, weight};
use super::{Fault, taken, usage};

/// Blocks of one answer.
const MAX_BLOCKS: usize = 1_024;

#[derive(Debug)]
enum Kind {
    Text,
    /// At this place among the calls.
    Call(usize),
    /// A thought and what it is signed with.
    Thinking(Value),
    /// Of the provider's own tools, or unknown, with the JSON of its input as far as it came.
    Other(Value, String),
}

#[derive(Debug)]
struct Block {
    index: Option<u64>,
    kind: Kind,
}

/// An answer on Anthropic's wire that is being read.
#[derive(Debug, Default)]
pub(super) struct Anthropic {
    blocks: Vec<Block>,
    stop: Option<String>,
    /// All that was counted so far, under the provider's keys; what comes later replaces what came before.
    counted: serde_json::Map<String, Value>,
}

impl Anthropic {
    pub(super) const fn has_stopped(&self) -> bool {
        self.stop.is_some()
    }

    /// Why it stopped. The event that says so is the last before the mark of the end, and tells the usage.
    pub(super) fn stop(&self) -> Result<Stop, Fault> {
        let word = self.stop.as_deref();
        word.map(Stop::of)
            .ok_or_else(|| Fault::Lost("the stream ended without saying why".to_owned()))
    }

    /// Reads one event; returns whether it is the mark of the end.
    pub(super) fn event(&mut self, said: &mut Said, name: &[u8], mut event: Value) -> Result<bool, Fault> {
        // Parted from its type: the event's name says it too.
        let kind = taken(&mut event, "type");
        let kind = kind.as_str().map_or_else(|| String::from_utf8_lossy(name), Into::into);
        match &*kind {
            "message_start" => {
                let message = taken(&mut event, "message");
                self.message(said, message)?;
            }
            "content_block_start" => {
                let block = taken(&mut event, "content_block");
                self.begin(said, event["index"].as_u64(), block)?;
            }
            "content_block_delta" => {
                let delta = taken(&mut event, "delta");
                self.grow(said, event["index"].as_u64(), delta)?;
            }
            "content_block_stop" => self.finish(said, event["index"].as_u64())?,
            "message_delta" => {
                self.stopped(said, &event["delta"])?;
                self.count(said, taken(&mut event, "usage"))?;
            }
            "message_stop" => return Ok(true),
            "ping" => {}
            "message" => self.message(said, event)?,
            "error" => {
                let cut = self.stop.as_deref().is_some_and(|word| Stop::of(word).is_cut());
                if !cut {
                    return Err(Fault::Said(event));
                }
            }
            _ if !event["error"].is_null() => return Err(Fault::Said(event)),
            _ => said.unread(event)?,
        }

        Ok(false)
    }

    /// Reads an answer that is no stream.
    pub(super) fn whole(&mut self, said: &mut Said, answer: Value) -> Result<(), Fault> {
        if !answer["error"].is_null() {
            return Err(Fault::Said(answer));
        }
        self.message(said, answer)
    }

    /// A message with the blocks that are whole in it; none in a stream, where they follow.
    fn message(&mut self, said: &mut Said, mut message: Value) -> Result<(), Fault> {
        if let Value::Array(blocks) = taken(&mut message, "content") {
            for block in blocks {
                self.begin(said, None, block)?;
                self.finish(said, None)?;
            }
        }
        self.stopped(said, &message)?;
        self.count(said, taken(&mut message, "usage"))
    }

    fn stopped(&mut self, said: &mut Said, of: &Value) -> Result<(), Fault> {
        let Some(word) = of["stop_reason"].as_str().filter(|word| !word.is_empty()) else {
            return Ok(());
        };
        said.keep(word.len())?;
        if !self.stop.as_deref().is_some_and(|word| Stop::of(word).is_cut()) {
            self.stop = Some(word.to_owned());
        }
        Ok(())
    }

    fn count(&mut self, said: &mut Said, counted: Value) -> Result<(), Fault> {
        let Value::Object(counted) = counted else {
            return Ok(());
        };

        // Only what is read is held: a stream may count as often as it likes.
        for key in [
            "input_tokens",
            "output_tokens",
            "cache_creation_input_tokens",
            "cache_read_input_tokens",
        ] {
            if let Some(tokens) = counted.get(key).filter(|tokens| tokens.is_u64()) {
                self.counted.insert(key.to_owned(), tokens.clone());
            }
        }

        if let Some(tokens) = counted
            .get("output_tokens_details")
            .map(|details| &details["thinking_tokens"])
        {
            let details = json!({ "thinking_tokens": tokens.as_u64() });
            self.counted.insert("output_tokens_details".to_owned(), details);
        }

        said.count(usage::anthropic(&Value::Object(self.counted.clone())));
        Ok(())
    }

    fn begin(&mut self, said: &mut Said, index: Option<u64>, mut block: Value) -> Result<(), Fault> {
        if self.blocks.len() == MAX_BLOCKS {
            return Err(Fault::Large("a number of blocks", MAX_BLOCKS));
        }

        let kind = match block["type"].as_str() {
            Some("text") => {
                said.say(block["text"].as_str().unwrap_or_default())?;
                Kind::Text
            }
            Some("tool_use") => {
                let [id, name] = ["id", "name"].map(|key| block[key].as_str().unwrap_or_default());
                let mut call = Call::new(id, name);
                call.unfinished = true;
                let place = said.begin(call)?;

                // Empty where it comes in pieces, and whole where it does not.
                let input = taken(&mut block, "input");
                if !input.is_null() && input != json!({}) {
                    said.give(place, input)?;
                }

                Kind::Call(place)
            }
            Some("thinking") => {
                said.keep(weight(&block))?;
                Kind::Thinking(block)
            }
            _ => {
                said.keep(weight(&block))?;
                Kind::Other(block, String::new())
            }
        };

        self.blocks.push(Block { index, kind });
        Ok(())
    }

    fn grow(&mut self, said: &mut Said, index: Option<u64>, delta: Value) -> Result<(), Fault> {
        let text = |key: &str| delta[key].as_str().unwrap_or_default();
        let block = self.blocks.iter_mut().rev().find(|block| block.index == index);
        match (delta["type"].as_str(), block.map(|block| &mut block.kind)) {
            (Some("text_delta"), None | Some(Kind::Text)) => said.say(text("text")),
            (Some("input_json_delta"), Some(Kind::Call(place))) => said.argue(*place, text("partial_json")),
            (Some("input_json_delta"), Some(Kind::Other(_, input))) => {
                said.keep(text("partial_json").len())?;
                lengthened(input, text("partial_json"))
            }
            (Some("input_json_delta"), None) => Err(Fault::Lost("the beginning of a call is missing".to_owned())),
            (Some("thinking_delta"), Some(Kind::Thinking(block))) => append(said, block, "thinking", text("thinking")),
            (Some("signature_delta"), Some(Kind::Thinking(block))) => {
                append(said, block, "signature", text("signature"))
            }
            (_, None | Some(Kind::Text | Kind::Call(_) | Kind::Thinking(_) | Kind::Other(..))) => said.unread(delta),
        }
    }

    fn finish(&mut self, said: &mut Said, index: Option<u64>) -> Result<(), Fault> {
        let Some(at) = self.blocks.iter().rposition(|block| block.index == index) else {
            return Ok(());
        };
        match std::mem::replace(&mut self.blocks[at].kind, Kind::Text) {
            Kind::Text => {}
            Kind::Call(place) => {
                if let Some(call) = said.call(place) {
                    call.unfinished = false;
                }
            }
            Kind::Thinking(block) => kept(said, block),
            Kind::Other(block, input) => other(said, block, &input)?,
        }

        Ok(())
    }

    /// What was not ended by an event of its own: thoughts are kept, a call is as whole as its arguments are.
    pub(super) fn rest(&mut self, said: &mut Said) -> Result<(), Fault> {
        for block in std::mem::take(&mut self.blocks) {
            match block.kind {
                Kind::Text => {}
                Kind::Call(place) => {
                    if let Some(call) = said.call(place) {
                        call.unfinished = !call.has_arguments() || !call.is_whole_or_empty();
                    }
                }
                Kind::Thinking(block) => kept(said, block),
                Kind::Other(block, input) => other(said, block, &input)?,
            }
        }

        Ok(())
    }
}

fn append(said: &mut Said, block: &mut Value, key: &str, text: &str) -> Result<(), Fault> {
    said.keep(text.len())?;
    match block.get_mut(key) {
        Some(Value::String(before)) => lengthened(before, text)?,
        _ => block[key] = Value::from(text),
    }
    Ok(())
}

/// A thought goes back only as it was signed.
fn kept(said: &mut Said, block: Value) {
    if block["signature"]
        .as_str()
        .is_some_and(|signature| !signature.is_empty())
    {
        said.opaque.blocks.push(block);
    }
}

/// A block of the provider's own tools, with its input where that came in pieces. One whose input was cut, and what is
/// no block at all, the provider would not take back.
fn other(said: &mut Said, mut block: Value, input: &str) -> Result<(), Fault> {
    if !block["type"].is_string() {
        return said.unread(block);
    }

    if !input.trim().is_empty() {
        let Ok(input) = super::parsed(input.as_bytes(), "an input") else {
            return said.unread(block);
        };
        said.keep(weight(&input))?;
        block["input"] = input;
    }

    said.opaque.blocks.push(block);
    Ok(())
}
