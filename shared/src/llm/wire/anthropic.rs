//! Decoder of Anthropic's messages: blocks that begin, grow and end, each under its index. *Pure.*

use serde_json::{Value, json};

use super::calls::Call;
use super::said::{Said, Stop, lengthened, weight};
use super::{Fault, taken, usage};

/// Maximum number of blocks of one answer.
const MAX_BLOCKS: usize = 1_024;

#[derive(Debug)]
enum Kind {
    Text,
    /// Index among the calls.
    Call(usize),
    /// A thought and its signature.
    Thinking(Value),
    /// Block of the provider's own tools, or an unknown one, with the JSON of its input as far as it arrived.
    Other(Value, String),
}

#[derive(Debug)]
struct Block {
    index: Option<u64>,
    kind: Kind,
}

/// An answer on Anthropic's wire that is being decoded.
#[derive(Debug, Default)]
pub(super) struct Anthropic {
    blocks: Vec<Block>,
    stop: Option<String>,
    /// Latest token counts, under the provider's keys; later counts replace earlier ones.
    counted: serde_json::Map<String, Value>,
}

impl Anthropic {
    pub(super) const fn has_stopped(&self) -> bool {
        self.stop.is_some()
    }

    /// Returns the reason for the stop. The event with it is the last before the mark of the end, and contains the
    /// usage.
    pub(super) fn stop(&self) -> Result<Stop, Fault> {
        let word = self.stop.as_deref();
        word.map(Stop::of)
            .ok_or_else(|| Fault::Lost("the stream ended without saying why".to_owned()))
    }

    /// Decodes one event. Returns whether it is the mark of the end.
    pub(super) fn event(&mut self, said: &mut Said, name: &[u8], mut event: Value) -> Result<bool, Fault> {
        // The type may be missing: the event's name contains it too.
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
            // An error after a cut answer is a consequence of the cut, which says more.
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

    /// Decodes an answer that is no stream.
    pub(super) fn whole(&mut self, said: &mut Said, answer: Value) -> Result<(), Fault> {
        if !answer["error"].is_null() {
            return Err(Fault::Said(answer));
        }
        self.message(said, answer)
    }

    /// Decodes a message with the complete blocks in it; there are none in a stream, in which they follow.
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

        // Only the counts that are read are kept: a stream may count as often as it likes.
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
        // The blocks are kept to the end of the answer, so their number must be bounded.
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

                // The input is empty here if it comes in pieces, and complete if it does not.
                let input = taken(&mut block, "input");
                if !input.is_null() && input != json!({}) {
                    said.give(place, input)?;
                }

                Kind::Call(place)
            }
            // Thoughts are not shown, but the provider wants them back with the results of its calls.
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

    /// Ends the blocks that no event of their own has ended: thoughts are kept, a call is complete if its arguments
    /// are.
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

/// Keeps a thought if it is signed: it can go back only in its signed form.
fn kept(said: &mut Said, block: Value) {
    if block["signature"]
        .as_str()
        .is_some_and(|signature| !signature.is_empty())
    {
        said.opaque.blocks.push(block);
    }
}

/// Keeps a block of the provider's own tools, with its input if that came in pieces. The provider would not accept
/// back a block whose input was cut, or a value that is no block.
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
