//! Decoder of Anthropic's messages: blocks that begin, grow and end, each under its index. *Pure.*

use serde_json::{Value, json};

use super::answer_builder::{AnswerBuilder, StopSignal};
use super::calls::PartialCall;
use super::memory_bounds::{append_piece, value_weight};
use super::{DecodeFault, take_member, usage};

/// Maximum number of blocks of one answer.
const MAX_BLOCKS: usize = 1_024;

#[derive(Debug)]
enum BlockKind {
    Text,
    /// Index among the calls.
    Call(usize),
    /// A thought and its signature.
    Thinking(Value),
    /// Block of the provider's own tools, or an unknown one, with the JSON of its input as far as it arrived.
    Other(Value, String),
}

#[derive(Debug)]
struct OpenBlock {
    index: Option<u64>,
    kind: BlockKind,
}

/// An answer on Anthropic's wire that is being decoded.
#[derive(Debug, Default)]
pub(super) struct AnthropicDecoder {
    blocks: Vec<OpenBlock>,
    stop: Option<String>,
    /// Latest token counts, under the provider's keys; later counts replace earlier ones.
    counted: serde_json::Map<String, Value>,
}

impl AnthropicDecoder {
    pub(super) const fn has_stopped(&self) -> bool {
        self.stop.is_some()
    }

    /// Returns the reason for the stop. The event with it is the last before the mark of the end, and contains the
    /// usage.
    pub(super) fn stop(&self) -> Result<StopSignal, DecodeFault> {
        let word = self.stop.as_deref();
        word.map(StopSignal::from_word)
            .ok_or_else(|| DecodeFault::Lost("the stream ended without a finish reason".to_owned()))
    }

    /// Decodes one event. Returns whether it is the mark of the end.
    pub(super) fn read_event(
        &mut self,
        said: &mut AnswerBuilder,
        name: &[u8],
        mut event: Value,
    ) -> Result<bool, DecodeFault> {
        // The type may be missing: the event's name contains it too.
        let kind = take_member(&mut event, "type");
        let kind = kind.as_str().map_or_else(|| String::from_utf8_lossy(name), Into::into);
        match &*kind {
            "message_start" => {
                let message = take_member(&mut event, "message");
                self.read_message(said, message)?;
            }
            "content_block_start" => {
                let block = take_member(&mut event, "content_block");
                self.begin_block(said, event["index"].as_u64(), block)?;
            }
            "content_block_delta" => {
                let delta = take_member(&mut event, "delta");
                self.grow_block(said, event["index"].as_u64(), delta)?;
            }
            "content_block_stop" => self.finish_block(said, event["index"].as_u64())?,
            "message_delta" => {
                self.note_stop(said, &event["delta"])?;
                self.count(said, take_member(&mut event, "usage"))?;
            }
            "message_stop" => return Ok(true),
            "ping" => {}
            "message" => self.read_message(said, event)?,
            // An error after a cut answer is a consequence of the cut, which says more.
            "error" => {
                let cut = self
                    .stop
                    .as_deref()
                    .is_some_and(|word| StopSignal::from_word(word).is_cut());
                if !cut {
                    return Err(DecodeFault::Said(event));
                }
            }
            _ if !event["error"].is_null() => return Err(DecodeFault::Said(event)),
            _ => said.keep_unread(event)?,
        }

        Ok(false)
    }

    /// Decodes an answer that is no stream.
    pub(super) fn read_whole(&mut self, said: &mut AnswerBuilder, answer: Value) -> Result<(), DecodeFault> {
        if !answer["error"].is_null() {
            return Err(DecodeFault::Said(answer));
        }
        self.read_message(said, answer)
    }

    /// Decodes a message with the complete blocks in it; there are none in a stream, in which they follow.
    fn read_message(&mut self, said: &mut AnswerBuilder, mut message: Value) -> Result<(), DecodeFault> {
        if let Value::Array(blocks) = take_member(&mut message, "content") {
            for block in blocks {
                self.begin_block(said, None, block)?;
                self.finish_block(said, None)?;
            }
        }
        self.note_stop(said, &message)?;
        self.count(said, take_member(&mut message, "usage"))
    }

    fn note_stop(&mut self, said: &mut AnswerBuilder, of: &Value) -> Result<(), DecodeFault> {
        let Some(word) = of["stop_reason"].as_str().filter(|word| !word.is_empty()) else {
            return Ok(());
        };
        said.count_kept(word.len())?;
        if !self
            .stop
            .as_deref()
            .is_some_and(|word| StopSignal::from_word(word).is_cut())
        {
            self.stop = Some(word.to_owned());
        }
        Ok(())
    }

    fn count(&mut self, said: &mut AnswerBuilder, counted: Value) -> Result<(), DecodeFault> {
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

    fn begin_block(
        &mut self,
        said: &mut AnswerBuilder,
        index: Option<u64>,
        mut block: Value,
    ) -> Result<(), DecodeFault> {
        // The blocks are kept to the end of the answer, so their number must be bounded.
        if self.blocks.len() == MAX_BLOCKS {
            return Err(DecodeFault::Large("the number of blocks", MAX_BLOCKS));
        }

        let kind = match block["type"].as_str() {
            Some("text") => {
                said.push_text(block["text"].as_str().unwrap_or_default())?;
                BlockKind::Text
            }
            Some("tool_use") => {
                let [id, name] = ["id", "name"].map(|key| block[key].as_str().unwrap_or_default());
                let mut call = PartialCall::new(id, name);
                call.unfinished = true;
                let place = said.begin_call(call)?;

                // The input is empty here if it comes in pieces, and complete if it does not.
                let input = take_member(&mut block, "input");
                if !input.is_null() && input != json!({}) {
                    said.set_arguments(place, input)?;
                }

                BlockKind::Call(place)
            }
            // Thoughts are not shown, but the provider wants them back with the results of its calls.
            Some("thinking") => {
                said.count_kept(value_weight(&block))?;
                BlockKind::Thinking(block)
            }
            _ => {
                said.count_kept(value_weight(&block))?;
                BlockKind::Other(block, String::new())
            }
        };

        self.blocks.push(OpenBlock { index, kind });
        Ok(())
    }

    fn grow_block(&mut self, said: &mut AnswerBuilder, index: Option<u64>, delta: Value) -> Result<(), DecodeFault> {
        let text = |key: &str| delta[key].as_str().unwrap_or_default();
        let block = self.blocks.iter_mut().rev().find(|block| block.index == index);
        match (delta["type"].as_str(), block.map(|block| &mut block.kind)) {
            (Some("text_delta"), None | Some(BlockKind::Text)) => said.push_text(text("text")),
            (Some("input_json_delta"), Some(BlockKind::Call(place))) => {
                said.push_arguments(*place, text("partial_json"))
            }
            (Some("input_json_delta"), Some(BlockKind::Other(_, input))) => {
                said.count_kept(text("partial_json").len())?;
                append_piece(input, text("partial_json"))
            }
            (Some("input_json_delta"), None) => Err(DecodeFault::Lost("the beginning of a call is missing".to_owned())),
            (Some("thinking_delta"), Some(BlockKind::Thinking(block))) => {
                append_text(said, block, "thinking", text("thinking"))
            }
            (Some("signature_delta"), Some(BlockKind::Thinking(block))) => {
                append_text(said, block, "signature", text("signature"))
            }
            (_, None | Some(BlockKind::Text | BlockKind::Call(_) | BlockKind::Thinking(_) | BlockKind::Other(..))) => {
                said.keep_unread(delta)
            }
        }
    }

    fn finish_block(&mut self, said: &mut AnswerBuilder, index: Option<u64>) -> Result<(), DecodeFault> {
        let Some(at) = self.blocks.iter().rposition(|block| block.index == index) else {
            return Ok(());
        };
        match std::mem::replace(&mut self.blocks[at].kind, BlockKind::Text) {
            BlockKind::Text => {}
            BlockKind::Call(place) => {
                if let Some(call) = said.call(place) {
                    call.unfinished = false;
                }
            }
            BlockKind::Thinking(block) => keep_thought(said, block),
            BlockKind::Other(block, input) => keep_other(said, block, &input)?,
        }

        Ok(())
    }

    /// Ends the blocks that no event of their own has ended: thoughts are kept, a call is complete if its arguments
    /// are.
    pub(super) fn finish_rest(&mut self, said: &mut AnswerBuilder) -> Result<(), DecodeFault> {
        for block in std::mem::take(&mut self.blocks) {
            match block.kind {
                BlockKind::Text => {}
                BlockKind::Call(place) => {
                    if let Some(call) = said.call(place) {
                        call.unfinished = !call.has_arguments() || !call.is_whole_or_empty();
                    }
                }
                BlockKind::Thinking(block) => keep_thought(said, block),
                BlockKind::Other(block, input) => keep_other(said, block, &input)?,
            }
        }

        Ok(())
    }
}

fn append_text(said: &mut AnswerBuilder, block: &mut Value, key: &str, text: &str) -> Result<(), DecodeFault> {
    said.count_kept(text.len())?;
    match block.get_mut(key) {
        Some(Value::String(before)) => append_piece(before, text)?,
        _ => block[key] = Value::from(text),
    }
    Ok(())
}

/// Keeps a thought if it is signed: it can go back only in its signed form.
fn keep_thought(said: &mut AnswerBuilder, block: Value) {
    if block["signature"]
        .as_str()
        .is_some_and(|signature| !signature.is_empty())
    {
        said.opaque.blocks.push(block);
    }
}

/// Keeps a block of the provider's own tools, with its input if that came in pieces. The provider would not accept
/// back a block whose input was cut, or a value that is no block.
fn keep_other(said: &mut AnswerBuilder, mut block: Value, input: &str) -> Result<(), DecodeFault> {
    if !block["type"].is_string() {
        return said.keep_unread(block);
    }

    if !input.trim().is_empty() {
        let Ok(input) = super::parse_json(input.as_bytes(), "an input") else {
            return said.keep_unread(block);
        };
        said.count_kept(value_weight(&input))?;
        block["input"] = input;
    }

    said.opaque.blocks.push(block);
    Ok(())
}
