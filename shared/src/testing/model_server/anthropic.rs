//! Events of Anthropic's messages: each with its name, blocks that start, grow and stop, a `ping` in between, input
//! tokens without the cached ones. *Pure.*

use serde_json::{Value, json};

use super::script::{ScriptedCall, ScriptedSpeech};

pub(super) fn stream(speech: &ScriptedSpeech) -> Vec<u8> {
    let mut out = Out::default();
    let [input, output, cached, _] = speech.tokens;
    let usage = json!({
        "input_tokens": input - cached, "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached,
        "output_tokens": 1, "service_tier": "standard"
    });

    out.event(
        "message_start",
        json!({"message": {
            "id": "msg_test", "type": "message", "role": "assistant", "model": "claude-test", "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": usage
        }}),
    );

    out.event("ping", json!({}));

    if let Some(thought) = &speech.thought {
        let half = thought.floor_char_boundary(thought.len() / 2);
        let mut deltas = vec![json!({"type": "thinking_delta", "thinking": "let me see"})];
        for piece in [&thought[..half], &thought[half..]] {
            deltas.push(json!({"type": "signature_delta", "signature": piece}));
        }
        out.block(&json!({"type": "thinking", "thinking": "", "signature": ""}), deltas);
    }

    if !speech.text.is_empty() {
        let deltas = speech
            .text
            .iter()
            .map(|text| json!({"type": "text_delta", "text": text}));
        out.block(&json!({"type": "text", "text": ""}), deltas.collect());
    }

    for (index, call) in speech.calls.iter().enumerate() {
        let ScriptedCall { id, name, arguments } = call;
        let id = id.clone().unwrap_or_else(|| format!("toolu_{index}"));
        let half = arguments.floor_char_boundary(arguments.len() / 2);
        let pieces = ["", &arguments[..half], &arguments[half..]];
        let deltas = pieces.map(|piece| json!({"type": "input_json_delta", "partial_json": piece}));
        out.block(
            &json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
            deltas.to_vec(),
        );
    }

    let stop = match speech.finish() {
        "length" => "max_tokens",
        "tool_calls" => "tool_use",
        "content_filter" => "refusal",
        _ => "end_turn",
    };

    out.event(
        "message_delta",
        json!({"delta": {"stop_reason": stop, "stop_sequence": null}, "usage": {"output_tokens": output}}),
    );
    out.event("message_stop", json!({}));

    out.text.into_bytes()
}

#[derive(Default)]
struct Out {
    text: String,
    blocks: usize,
}

impl Out {
    fn event(&mut self, name: &str, mut data: Value) {
        data["type"] = json!(name);
        self.text.push_str(&format!("event: {name}\ndata: {data}\n\n"));
    }

    fn block(&mut self, start: &Value, deltas: Vec<Value>) {
        let index = self.blocks;
        self.blocks += 1;
        self.event("content_block_start", json!({"index": index, "content_block": start}));
        for delta in deltas {
            self.event("content_block_delta", json!({"index": index, "delta": delta}));
        }
        self.event("content_block_stop", json!({"index": index}));
    }
}
