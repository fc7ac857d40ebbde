//! Answers drawn from a seed, and the bytes that say them on each wire, with the habits of different providers.

use serde_json::{Value, json};

/// Numbers from a seed.
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// One of `0..below`.
    pub(crate) fn below(&mut self, below: usize) -> usize {
        usize::try_from(self.next() % below.max(1) as u64).expect("below a usize")
    }
}

/// A call as it is meant.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Meant {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: Value,
}

/// An answer as it is meant.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) text: Vec<String>,
    pub(crate) calls: Vec<Meant>,
    /// Where the text of arguments is parted, in parts.
    parts: usize,
}

/// How an OpenAI look-alike numbers calls.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Numbering {
    FromZero,
    FromOne,
    Gaps,
    Huge,
    /// All 0, each call in one piece.
    AllZero,
    /// None, each call in one piece.
    Absent,
    /// None and no ids either.
    Nothing,
    /// From 0, and id and name come again with each piece.
    Repeating,
}

/// Where an OpenAI look-alike counts tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Counting {
    Apart,
    WithChoices,
    Groq,
}

impl Numbering {
    pub(crate) const ALL: [Self; 8] = [
        Self::FromZero,
        Self::FromOne,
        Self::Gaps,
        Self::Huge,
        Self::AllZero,
        Self::Absent,
        Self::Nothing,
        Self::Repeating,
    ];
}

impl Counting {
    pub(crate) const ALL: [Self; 3] = [Self::Apart, Self::WithChoices, Self::Groq];
}

impl Plan {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut draw = Draw::new(seed);
        let words = [
            "Grüße",
            ", 世界",
            " 🌍 ",
            "\"ende\"\n",
            "a\\b",
            "x",
            " data: ",
            "\u{2028}",
        ];

        let text = (0..draw.below(6)).map(|_| words[draw.below(words.len())].to_owned());
        let text = text.collect();
        let count = 1 + draw.below(3);

        let calls = (0..count).map(|place| Meant {
            id: format!("call_{seed}_{place}"),
            name: ["weather", "files__read", "pay"][draw.below(3)].to_owned(),
            arguments: match draw.below(4) {
                0 => json!({}),
                1 => json!({"city": "Zürich", "days": [1, 2, {"deep": null}]}),
                2 => json!({"text": "braces } in ] \" text \\", "n": 1.5}),
                _ => json!({"path": format!("/{}", "p".repeat(draw.below(200)))}),
            },
        });

        Self {
            text,
            calls: calls.collect(),
            parts: 1 + draw.below(4),
        }
    }

    fn pieces(&self, text: &str) -> Vec<String> {
        let letters: Vec<char> = text.chars().collect();
        let size = letters.len().div_ceil(self.parts).max(1);
        letters.chunks(size).map(|piece| piece.iter().collect()).collect()
    }

    /// Events of OpenAI's wire, without the mark of the end.
    pub(crate) fn openai(&self, numbering: Numbering, counting: Counting) -> Vec<Value> {
        let choice =
            |delta: Value, finish: Value| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
        let mut events = vec![choice(json!({"role": "assistant", "content": ""}), Value::Null)];
        for text in &self.text {
            events.push(choice(json!({ "content": text }), Value::Null));
        }

        for (place, call) in self.calls.iter().enumerate() {
            let index = match numbering {
                Numbering::FromZero | Numbering::Repeating => json!(place),
                Numbering::FromOne => json!(place + 1),
                Numbering::Gaps => json!(place * 7 + 3),
                Numbering::Huge => json!(50_000_000_u64 + place as u64),
                Numbering::AllZero => json!(0),
                Numbering::Absent | Numbering::Nothing => Value::Null,
            };

            let in_one = matches!(numbering, Numbering::AllZero | Numbering::Absent | Numbering::Nothing);
            let arguments = call.arguments.to_string();
            let pieces = if in_one {
                vec![arguments]
            } else {
                self.pieces(&arguments)
            };

            for (number, piece) in pieces.iter().enumerate() {
                let mut said = json!({"function": {"arguments": piece}});
                if !index.is_null() {
                    said["index"] = index.clone();
                }

                if number == 0 || matches!(numbering, Numbering::Repeating) {
                    said["function"]["name"] = json!(call.name);
                    said["type"] = json!("function");
                    if !matches!(numbering, Numbering::Nothing) {
                        said["id"] = json!(call.id);
                    }
                }

                events.push(choice(json!({ "tool_calls": [said] }), Value::Null));
            }
        }

        let mut last = choice(json!({}), json!("tool_calls"));
        let usage = json!({"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120});
        match counting {
            Counting::Apart => {
                events.push(last);
                events.push(json!({"choices": [], "usage": usage}));
            }
            Counting::WithChoices => {
                last["usage"] = usage;
                events.push(last);
            }
            Counting::Groq => {
                last["x_groq"] = json!({ "usage": usage });
                events.push(last);
            }
        }

        events
    }

    /// Events of Anthropic's wire.
    pub(crate) fn anthropic(&self) -> Vec<Value> {
        let mut events = vec![json!({
            "type": "message_start",
            "message": {"content": [], "usage": {"input_tokens": 100, "output_tokens": 1}}
        })];
        let mut index = 0;
        let mut block = |events: &mut Vec<Value>, start: Value, deltas: Vec<Value>| {
            events.push(json!({"type": "content_block_start", "index": index, "content_block": start}));
            for delta in deltas {
                events.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
            }
            events.push(json!({"type": "content_block_stop", "index": index}));
            index += 1;
        };

        if !self.text.is_empty() {
            let deltas = self.text.iter().map(|text| json!({"type": "text_delta", "text": text}));
            block(&mut events, json!({"type": "text", "text": ""}), deltas.collect());
        }

        for call in &self.calls {
            let pieces = self.pieces(&call.arguments.to_string());
            let deltas = pieces
                .iter()
                .map(|piece| json!({"type": "input_json_delta", "partial_json": piece}));
            let start = json!({"type": "tool_use", "id": call.id, "name": call.name, "input": {}});
            block(&mut events, start, deltas.collect());
        }

        let usage = json!({ "output_tokens": 20 });
        events.push(json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": usage}));
        events.push(json!({"type": "message_stop"}));

        events
    }

    /// Events of Gemini's wire.
    pub(crate) fn gemini(&self) -> Vec<Value> {
        let usage = json!({"promptTokenCount": 100, "candidatesTokenCount": 15, "thoughtsTokenCount": 5});
        let event = |part: Value| {
            let content = json!({"role": "model", "parts": [part]});
            json!({"candidates": [{"index": 0, "content": content}], "usageMetadata": usage})
        };

        let mut events: Vec<Value> = self.text.iter().map(|text| event(json!({ "text": text }))).collect();
        for call in &self.calls {
            let said = json!({"id": call.id, "name": call.name, "args": call.arguments});
            events.push(event(json!({ "functionCall": said })));
        }

        let mut last = event(json!({"text": ""}));
        last["candidates"][0]["finishReason"] = json!("STOP");
        events.push(last);

        events
    }
}

/// Events as the bytes of a stream, named as Anthropic names them.
pub(crate) fn stream(events: &[Value]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for event in events {
        if let Some(name) = event["type"].as_str() {
            bytes.extend_from_slice(format!("event: {name}\n").as_bytes());
        }
        bytes.extend_from_slice(format!("data: {event}\n\n").as_bytes());
    }
    bytes
}

/// The same with OpenAI's mark of the end.
pub(crate) fn marked(events: &[Value]) -> Vec<u8> {
    let mut bytes = stream(events);
    bytes.extend_from_slice(b"data: [DONE]\n\n");
    bytes
}
