//! `chat.completion.chunk` events: `data: {…}` and an empty line, `data: [DONE]` at the end, usage in a chunk of its
//! own without choices, arguments of calls in pieces. *Pure.*

use serde_json::{Value, json};

use super::script::{ScriptedCall, ScriptedSpeech};

pub(super) fn stream(speech: &ScriptedSpeech) -> Vec<u8> {
    let mut out = String::new();
    let mut choice = |delta: &Value, finish: Option<&str>| {
        let choices = json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]);
        event(&mut out, &chunk(&choices, &Value::Null));
    };

    choice(&json!({"role": "assistant", "content": "", "refusal": null}), None);

    for text in &speech.text {
        choice(&json!({"content": text}), None);
    }

    for (index, call) in speech.calls.iter().enumerate() {
        let ScriptedCall { id, name, arguments } = call;
        let id = id.clone().unwrap_or_else(|| format!("call_{index}"));
        let function = json!({"name": name, "arguments": ""});
        choice(
            &json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}),
            None,
        );

        let half = arguments.floor_char_boundary(arguments.len() / 2);
        for piece in [&arguments[..half], &arguments[half..]] {
            choice(
                &json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}),
                None,
            );
        }
    }

    choice(&json!({}), Some(speech.finish()));
    let [input, output, cached, reasoning] = speech.tokens;
    let usage = json!({
        "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output,
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": reasoning, "audio_tokens": 0}
    });

    event(&mut out, &chunk(&json!([]), &usage));
    out.push_str("data: [DONE]\n\n");

    out.into_bytes()
}

fn chunk(choices: &Value, usage: &Value) -> Value {
    json!({
        "id": "chatcmpl-test", "object": "chat.completion.chunk", "created": 1_763_769_600, "model": "test-model",
        "service_tier": "default", "system_fingerprint": "fp_test", "choices": choices, "usage": usage
    })
}

fn event(out: &mut String, data: &Value) {
    out.push_str(&format!("data: {data}\n\n"));
}
