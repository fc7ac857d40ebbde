//! What the model server is to answer. *Pure.*

use serde_json::Value;

/// A tool call that the model makes.
#[derive(Debug, Clone)]
pub struct Call {
    /// Its id; none = the provider sends none (only Gemini may).
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// The arguments as text, which need not be JSON. Gemini cannot say anything but JSON.
    pub arguments: String,
}

impl Call {
    /// A call of `name` with `arguments`, with the id `id`.
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
pub struct Speech {
    /// The text, in the pieces in which it comes.
    pub text: Vec<String>,
    /// The calls.
    pub calls: Vec<Call>,
    /// Why it stops, in OpenAI's words: `stop`, `tool_calls`, `length`, `content_filter`; none = as fits.
    pub finish: Option<String>,
    /// Tokens in, out, of the first cached, of the second reasoning.
    pub tokens: [u64; 4],
    /// A signed thought that goes before (Gemini, Anthropic).
    pub thought: Option<String>,
}

impl Default for Speech {
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

impl Speech {
    pub(super) fn finish(&self) -> &str {
        match &self.finish {
            Some(finish) => finish,
            None if self.calls.is_empty() => "stop",
            None => "tool_calls",
        }
    }
}

/// How the bytes are cut into packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cut {
    /// All in one.
    #[default]
    Whole,
    /// Packets of this many bytes: 1 cuts through everything, characters and line ends included.
    Every(usize),
    /// In two, after this many bytes.
    At(usize),
}

impl Cut {
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

/// How the stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ending {
    /// As it should.
    #[default]
    Whole,
    /// The connection breaks after this many bytes.
    Dropped {
        /// Bytes that come through.
        after: usize,
    },
    /// The body ends in good order after this many bytes, as behind a proxy that lost its upstream.
    Closed {
        /// Bytes that come through.
        after: usize,
    },
    /// Everything comes, and the connection stays open without a word.
    Held,
}

/// What is answered to one request.
#[derive(Debug, Clone)]
pub enum Scripted {
    /// A model's answer, on the caller's wire.
    Say {
        /// What.
        speech: Speech,
        /// In which packets.
        cut: Cut,
        /// Up to where.
        ending: Ending,
    },
    /// These very bytes as the event stream.
    Raw {
        /// What.
        bytes: Vec<u8>,
        /// In which packets.
        cut: Cut,
        /// Up to where; the bytes are not cut by it.
        ending: Ending,
    },
    /// No answer.
    Status {
        /// HTTP status.
        code: u16,
        /// Headers, such as `retry-after`.
        headers: Vec<(String, String)>,
        /// The body.
        body: String,
    },
}

impl Scripted {
    /// A text in two pieces.
    #[must_use]
    pub fn text(text: &str) -> Self {
        let half = text.floor_char_boundary(text.len() / 2);
        let pieces = [&text[..half], &text[half..]];

        Self::say(Speech {
            text: pieces
                .iter()
                .filter(|p| !p.is_empty())
                .map(|p| (*p).to_owned())
                .collect(),
            ..Speech::default()
        })
    }

    /// Tool calls, without text.
    #[must_use]
    pub fn calls(calls: impl IntoIterator<Item = Call>) -> Self {
        Self::say(Speech {
            calls: calls.into_iter().collect(),
            ..Speech::default()
        })
    }

    /// An answer in one packet.
    #[must_use]
    pub const fn say(speech: Speech) -> Self {
        Self::Say {
            speech,
            cut: Cut::Whole,
            ending: Ending::Whole,
        }
    }

    /// A status with an error body of the usual shape.
    #[must_use]
    pub fn status(code: u16, message: &str) -> Self {
        let body = serde_json::json!({"error": {"message": message, "code": code, "type": "error"}});
        Self::Status {
            code,
            headers: Vec::new(),
            body: body.to_string(),
        }
    }

    /// 429 with `Retry-After: {seconds}`.
    #[must_use]
    pub fn rate_limited(seconds: &str) -> Self {
        Self::Status {
            code: 429,
            headers: vec![("retry-after".to_owned(), seconds.to_owned())],
            body: r#"{"error": {"message": "slow down", "code": 429}}"#.to_owned(),
        }
    }

    /// The same, in other packets.
    #[must_use]
    pub fn cut(mut self, into: Cut) -> Self {
        match &mut self {
            Self::Say { cut, .. } | Self::Raw { cut, .. } => *cut = into,
            Self::Status { .. } => {}
        }
        self
    }

    /// The same, with another end.
    #[must_use]
    pub fn ending(mut self, with: Ending) -> Self {
        match &mut self {
            Self::Say { ending, .. } | Self::Raw { ending, .. } => *ending = with,
            Self::Status { .. } => {}
        }
        self
    }
}
