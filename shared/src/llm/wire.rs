//! Decoding of a provider's response: three wires, one set of rules. *Pure.*
//!
//! The rules: text, calls, stop and usage are those that the provider sent, however the packets were cut. Parts that
//! are not understood are kept as opaque, and neither end nor double anything. A call can be executed only if its
//! arguments arrived completely and are an object. An answer ends with a stop; without one it broke off, however the
//! connection ended.
//!
//! For every input, a [`AnswerReader`] uses less than [`MAX_MEMORY_BYTES`]: events, text, calls and opaque parts have
//! limits, and a provider's index is a name, never a length.
//!
//! Source: `docs/design/trust.md` §8. The wires: OpenAI "chat completions, streaming" and its variants in compatible
//! servers, Anthropic "streaming messages", Google "streamGenerateContent", HTML "server-sent events".

mod answer_builder;
mod anthropic;
mod calls;
mod gemini;
mod memory_bounds;
mod openai;
mod partial;
mod sse;
mod usage;

use serde_json::Value;

use self::answer_builder::AnswerBuilder;
pub use self::answer_builder::HeardAnswer;
use self::anthropic::AnthropicDecoder;
use self::gemini::GeminiDecoder;
use self::openai::OpenAi;
use self::sse::SseEvents;
use super::config::ModelProvider;

/// Maximum memory of a reading besides its input, in bytes.
pub const MAX_MEMORY_BYTES: usize = 16 * 1024 * 1024;
/// Maximum size of one event of a stream, or of one answer that is no stream, in bytes.
pub const MAX_EVENT_BYTES: usize = 2 * 1024 * 1024;
/// Maximum number of values within one event, or within one call's arguments.
pub(super) const MAX_VALUES: usize = 8_192;

/// Reason why bytes are not an answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WireFault {
    /// The answer ended before it was complete.
    #[error("{detail} (byte {at})")]
    BrokeOff {
        /// Bytes of the body received until then.
        at: u64,
        /// Description of the missing part.
        detail: String,
    },
    /// A part exceeds its limit.
    #[error("{what} exceeds {limit} (byte {at})")]
    TooLarge {
        /// Bytes of the body received until then.
        at: u64,
        /// Name of the part.
        what: &'static str,
        /// Limit of the part: in bytes, or as a number of elements.
        limit: usize,
    },
    /// The response is complete and is not an answer.
    #[error("{detail} (byte {at})")]
    Unreadable {
        /// Bytes of the body received until then.
        at: u64,
        /// Reason why it is not an answer.
        detail: String,
    },
    /// The provider returned an error instead of an answer.
    #[error("error from the provider: {0}")]
    Said(Value),
}

/// Fault of one event, before its position is known.
#[derive(Debug)]
enum DecodeFault {
    /// The answer is incomplete; see [`WireFault::BrokeOff`].
    Lost(String),
    /// A part exceeds its limit; see [`WireFault::TooLarge`].
    Large(&'static str, usize),
    /// The event cannot be decoded; see [`WireFault::Unreadable`].
    Unreadable(String),
    /// The provider returned an error; see [`WireFault::Said`].
    Said(Value),
}

impl DecodeFault {
    fn at(self, at: u64) -> WireFault {
        match self {
            Self::Lost(detail) => WireFault::BrokeOff { at, detail },
            Self::Large(what, limit) => WireFault::TooLarge { at, what, limit },
            Self::Unreadable(detail) => WireFault::Unreadable { at, detail },
            Self::Said(error) => WireFault::Said(error),
        }
    }
}

/// Form of the body.
#[derive(Debug)]
enum BodyShape {
    /// Only white space has arrived so far.
    Unknown,
    /// A stream of server-sent events.
    Stream(SseEvents),
    /// One JSON text, although a stream was requested.
    Whole(Vec<u8>),
}

#[derive(Debug)]
enum WireDecoder {
    OpenAi(OpenAi),
    Anthropic(AnthropicDecoder),
    Gemini(GeminiDecoder),
}

/// An answer that is being decoded. After a fault it must be dropped: the text until then is not an answer.
#[derive(Debug)]
pub struct AnswerReader {
    shape: BodyShape,
    decoder: WireDecoder,
    said: AnswerBuilder,
    /// Bytes of the body so far.
    at: u64,
    /// Whether the wire's own mark of the end was read.
    ended: bool,
    /// Whether an event was read.
    begun: bool,
}

impl AnswerReader {
    /// Starts to decode an answer on `provider`'s wire.
    #[must_use]
    pub fn new(provider: ModelProvider) -> Self {
        let decoder = match provider {
            ModelProvider::OpenAi => WireDecoder::OpenAi(OpenAi::default()),
            ModelProvider::Anthropic => WireDecoder::Anthropic(AnthropicDecoder::default()),
            ModelProvider::Gemini => WireDecoder::Gemini(GeminiDecoder::default()),
        };

        Self {
            shape: BodyShape::Unknown,
            decoder,
            said: AnswerBuilder::default(),
            at: 0,
            ended: false,
            begun: false,
        }
    }

    /// Decodes the next bytes of the body. Returns the text that they added. Bytes after the mark of the end are
    /// ignored.
    ///
    /// # Errors
    /// Returns [`WireFault`] if there will be no answer.
    pub fn take(&mut self, bytes: &[u8]) -> Result<&str, WireFault> {
        let before = self.said.text().len();
        self.at += bytes.len() as u64;
        let at = self.at;
        self.read(bytes).map_err(|fault| fault.at(at))?;
        Ok(&self.said.text()[before..])
    }

    /// Whether any part of the answer was read.
    #[must_use]
    pub const fn has_begun(&self) -> bool {
        self.begun
    }

    /// Whether the wire's own mark of the end was read, so that no more bytes are needed.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether the provider has stated why it stops. Usage, and on some wires more of the answer, may still follow.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        match &self.decoder {
            WireDecoder::OpenAi(openai) => openai.has_stopped(),
            WireDecoder::Anthropic(anthropic) => anthropic.has_stopped(),
            WireDecoder::Gemini(gemini) => gemini.has_stopped(),
        }
    }

    /// Bytes of text so far.
    #[must_use]
    pub fn received_bytes(&self) -> usize {
        self.said.text().len()
    }

    /// Returns the answer after the body ended without an error, or after [`Self::has_ended`].
    ///
    /// # Errors
    /// Returns [`WireFault`] if the bytes are not a complete answer.
    pub fn finish_answer(mut self) -> Result<HeardAnswer, WireFault> {
        let at = self.at;
        self.last_words().map_err(|fault| fault.at(at))?;
        let ended = self.ended;
        let stop = match &mut self.decoder {
            WireDecoder::OpenAi(openai) => openai.stop(ended, self.said.has_usage()),
            WireDecoder::Anthropic(anthropic) => anthropic.finish_rest(&mut self.said).and_then(|()| anthropic.stop()),
            WireDecoder::Gemini(gemini) => gemini.stop(),
        };

        let stop = stop.map_err(|fault| fault.at(at))?;
        self.said.into_heard(stop).map_err(|fault| fault.at(at))
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), DecodeFault> {
        if let BodyShape::Unknown = self.shape {
            let Some(first) = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) else {
                return Ok(());
            };
            // Server-sent events never begin with a bracket.
            self.shape = match first {
                b'{' | b'[' => BodyShape::Whole(Vec::new()),
                _ => BodyShape::Stream(SseEvents::default()),
            };
        }

        match &mut self.shape {
            BodyShape::Unknown => Ok(()),
            BodyShape::Whole(body) => sse::extend_bounded(body, bytes, MAX_EVENT_BYTES),
            BodyShape::Stream(events) => {
                let (decoder, said, ended) = (&mut self.decoder, &mut self.said, &mut self.ended);
                let begun = &mut self.begun;
                events.take(bytes, &mut |name, data| {
                    *begun = true;
                    if !*ended {
                        *ended = read_event(decoder, said, name, data)?;
                    }
                    Ok(())
                })
            }
        }
    }

    /// Decodes the rest of the body that lacks its final line end.
    fn last_words(&mut self) -> Result<(), DecodeFault> {
        match std::mem::replace(&mut self.shape, BodyShape::Unknown) {
            BodyShape::Unknown => Ok(()),
            BodyShape::Whole(body) => {
                let answer = parse_json(&body, "the answer")?;
                drop(body);
                self.ended = true;
                read_whole(&mut self.decoder, &mut self.said, answer)
            }
            BodyShape::Stream(events) => {
                let Some((name, data)) = events.into_rest() else {
                    return Ok(());
                };

                if !self.ended {
                    self.ended = read_event(&mut self.decoder, &mut self.said, &name, &data)?;
                }
                Ok(())
            }
        }
    }
}

/// Decodes one event. Returns whether it is the mark of the end.
fn read_event(
    decoder: &mut WireDecoder,
    said: &mut AnswerBuilder,
    name: &[u8],
    data: &[u8],
) -> Result<bool, DecodeFault> {
    let data = data.trim_ascii();
    if data.is_empty() {
        return Ok(false);
    }

    // OpenAI's mark of the end is not JSON.
    if data == b"[DONE]" {
        return Ok(true);
    }

    for part in into_parts(parse_json(data, "an event")?) {
        match decoder {
            _ if !part.is_object() => said.keep_unread(part)?,
            WireDecoder::OpenAi(openai) => openai.read_event(said, part)?,
            WireDecoder::Anthropic(anthropic) => {
                if anthropic.read_event(said, name, part)? {
                    return Ok(true);
                }
            }
            WireDecoder::Gemini(gemini) => gemini.read_event(said, part)?,
        }
    }

    Ok(false)
}

/// Decodes an answer that came as one JSON text.
fn read_whole(decoder: &mut WireDecoder, said: &mut AnswerBuilder, answer: Value) -> Result<(), DecodeFault> {
    // Gemini without `alt=sse` sends a list of the objects that would be events.
    for part in into_parts(answer) {
        match decoder {
            WireDecoder::OpenAi(openai) => openai.read_event(said, part)?,
            WireDecoder::Anthropic(anthropic) => anthropic.read_whole(said, part)?,
            WireDecoder::Gemini(gemini) => gemini.read_event(said, part)?,
        }
    }
    Ok(())
}

/// Parses the JSON in `text`. Text that is not valid JSON was cut.
fn parse_json(text: &[u8], what: &'static str) -> Result<Value, DecodeFault> {
    check_value_count(text).map_err(|limit| DecodeFault::Large("the number of values", limit))?;
    serde_json::from_slice(text).map_err(|error| DecodeFault::Lost(format!("{what} cannot be read: {error}")))
}

/// Returns the elements of a list, or the one value.
fn into_parts(value: Value) -> Vec<Value> {
    if let Value::Array(parts) = value {
        parts
    } else {
        vec![value]
    }
}

/// Returns the elements of a list, if there is one. A value that is no list is kept as not understood.
fn take_list(said: &mut AnswerBuilder, value: Value) -> Result<Vec<Value>, DecodeFault> {
    if let Value::Array(elements) = value {
        return Ok(elements);
    }
    if !value.is_null() {
        said.keep_unread(value)?;
    }
    Ok(Vec::new())
}

/// Takes a member out of `value`; null if there is none.
fn take_member(value: &mut Value, key: &str) -> Value {
    value.get_mut(key).map(Value::take).unwrap_or_default()
}

/// Checks that the number of values within a JSON text is small enough, before any of them is allocated.
fn check_value_count(text: &[u8]) -> Result<(), usize> {
    let (mut quoted, mut escaped, mut values) = (false, false, 1_usize);
    // One bit per level, 1 within a list: commas count there, colons in objects. The parser goes 128 levels deep.
    let mut lists = 0_u128;
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'[' => {
                lists = lists << 1 | 1;
                values += 1;
            }
            b'{' => lists <<= 1,
            b']' | b'}' => lists >>= 1,
            b',' => values += usize::from(lists & 1 == 1),
            b':' => values += 1,
            _ => {}
        }
    }

    if values > MAX_VALUES { Err(MAX_VALUES) } else { Ok(()) }
}
