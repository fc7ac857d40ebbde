//! Scripted answers of the model server. *Pure.*

use serde_json::Value;

/// A tool call in an answer.
#[derive(Debug, Clone)]
pub struct ScriptedCall {
    /// Id of the call; `None` if the provider sends none (only Gemini may).
    pub id: Option<String>,
    /// Name of the tool.
    pub name: String,
    /// Arguments as text, which need not be JSON. Gemini can send only JSON.
    pub arguments: String,
}

impl ScriptedCall {
    /// Builds a call of `name` with `arguments`, with the id `id`.
    #[must_use]
    pub fn new(id: &str, name: &str, arguments: &Value) -> Self {
        Self {
            id: Some(id.to_owned()),
            name: name.to_owned(),
            arguments: arguments.to_string(),
        }
    }
}

/// One answer of a model.
#[derive(Debug, Clone)]
pub struct ScriptedSpeech {
    /// Text of the answer, in the pieces in which it is sent.
    pub text: Vec<String>,
    /// Tool calls of the answer.
    pub calls: Vec<ScriptedCall>,
    /// Reason for the stop, in OpenAI's words: `stop`, `tool_calls`, `length`, `content_filter`; `None` for the
    /// fitting one.
    pub finish: Option<String>,
    /// Numbers of tokens: input, output, cached input, reasoning output.
    pub tokens: [u64; 4],
    /// Signed thought that precedes the answer (Gemini, Anthropic).
    pub thought: Option<String>,
}

impl Default for ScriptedSpeech {
    fn default() -> Self {
        Self {
            text: Vec::new(),
            calls: Vec::new(),
            finish: None,
            tokens: [100, 20, 40, 5],
            thought: None,
        }
    }
}

impl ScriptedSpeech {
    pub(super) fn finish(&self) -> &str {
        match &self.finish {
            Some(finish) => finish,
            None if self.calls.is_empty() => "stop",
            None => "tool_calls",
        }
    }
}

/// Way in which the bytes are cut into packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CutPoint {
    /// One packet for all bytes.
    #[default]
    Whole,
    /// Packets of this many bytes: 1 cuts everywhere, within characters and line ends too.
    Every(usize),
    /// Two packets, the first with this many bytes.
    At(usize),
}

impl CutPoint {
    pub(super) fn packets(self, bytes: &[u8]) -> Vec<Vec<u8>> {
        match self {
            Self::Whole => vec![bytes.to_vec()],
            Self::Every(size) => bytes.chunks(size.max(1)).map(<[u8]>::to_vec).collect(),
            Self::At(at) => {
                let (one, two) = bytes.split_at(at.min(bytes.len()));
                vec![one.to_vec(), two.to_vec()]
            }
        }
    }
}

/// Way in which the stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AnswerEnding {
    /// The stream ends without a fault.
    #[default]
    Whole,
    /// The connection breaks after this many bytes.
    Dropped {
        /// Number of bytes that are sent.
        after: usize,
    },
    /// The body ends without an error after this many bytes, as behind a proxy that lost its upstream.
    Closed {
        /// Number of bytes that are sent.
        after: usize,
    },
    /// Everything is sent, and the connection stays open without further data.
    Held,
}

/// Response to one request.
#[derive(Debug, Clone)]
pub enum ScriptedAnswer {
    /// A model's answer, on the caller's wire.
    Say {
        /// Contents of the answer.
        speech: ScriptedSpeech,
        /// Cut of the bytes into packets.
        cut: CutPoint,
        /// Ending of the stream.
        ending: AnswerEnding,
    },
    /// Exactly these bytes as the event stream.
    Raw {
        /// Bytes of the stream.
        bytes: Vec<u8>,
        /// Cut of the bytes into packets.
        cut: CutPoint,
        /// Ending of the stream; it does not shorten the bytes.
        ending: AnswerEnding,
    },
    /// An HTTP status without an answer.
    Status {
        /// Number of the HTTP status.
        code: u16,
        /// Headers, such as `retry-after`.
        headers: Vec<(String, String)>,
        /// Body of the response.
        body: String,
    },
}

impl ScriptedAnswer {
    /// Builds an answer with a text in two pieces.
    #[must_use]
    pub fn text(text: &str) -> Self {
        let half = text.floor_char_boundary(text.len() / 2);
        let pieces = [&text[..half], &text[half..]];

        Self::say(ScriptedSpeech {
            text: pieces
                .iter()
                .filter(|p| !p.is_empty())
                .map(|p| (*p).to_owned())
                .collect(),
            ..ScriptedSpeech::default()
        })
    }

    /// Builds an answer with tool calls and no text.
    #[must_use]
    pub fn calls(calls: impl IntoIterator<Item = ScriptedCall>) -> Self {
        Self::say(ScriptedSpeech {
            calls: calls.into_iter().collect(),
            ..ScriptedSpeech::default()
        })
    }

    /// Builds an answer that is sent in one packet.
    #[must_use]
    pub const fn say(speech: ScriptedSpeech) -> Self {
        Self::Say {
            speech,
            cut: CutPoint::Whole,
            ending: AnswerEnding::Whole,
        }
    }

    /// Builds a status with an error body of the usual form.
    #[must_use]
    pub fn status(code: u16, message: &str) -> Self {
        let body = serde_json::json!({"error": {"message": message, "code": code, "type": "error"}});
        Self::Status {
            code,
            headers: Vec::new(),
            body: body.to_string(),
        }
    }

    /// Builds a response 429 with `Retry-After: {seconds}`.
    #[must_use]
    pub fn rate_limited(seconds: &str) -> Self {
        Self::Status {
            code: 429,
            headers: vec![("retry-after".to_owned(), seconds.to_owned())],
            body: r#"{"error": {"message": "slow down", "code": 429}}"#.to_owned(),
        }
    }

    /// Returns the same response, cut into other packets.
    #[must_use]
    pub fn cut(mut self, into: CutPoint) -> Self {
        match &mut self {
            Self::Say { cut, .. } | Self::Raw { cut, .. } => *cut = into,
            Self::Status { .. } => {}
        }
        self
    }

    /// Returns the same response, with another ending.
    #[must_use]
    pub fn ending(mut self, with: AnswerEnding) -> Self {
        match &mut self {
            Self::Say { ending, .. } | Self::Raw { ending, .. } => *ending = with,
            Self::Status { .. } => {}
        }
        self
    }
}
