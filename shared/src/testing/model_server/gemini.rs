//! `GenerateContentResponse` events: `data: {…}` ended by carriage returns and line feeds, no mark of the end but
//! `finishReason`, usage in every event, signatures beside text and calls. *Pure.*

use serde_json::{Value, json};

use super::script::{ScriptedCall, ScriptedSpeech};

pub(super) fn stream(speech: &ScriptedSpeech) -> Vec<u8> {
    let mut out = String::new();
    for text in &speech.text {
        event(&mut out, speech, &json!([{"text": text}]), None);
    }

    for (index, call) in speech.calls.iter().enumerate() {
        let ScriptedCall { id, name, arguments } = call;
        let args: Value = serde_json::from_str(arguments).unwrap_or(Value::Null);
        let mut part = json!({"functionCall": {"name": name, "args": args}});
        if let Some(id) = id {
            part["functionCall"]["id"] = json!(id);
        }

        // Only the first call of a step is signed.
        if index == 0
            && let Some(thought) = &speech.thought
        {
            part["thoughtSignature"] = json!(thought);
        }

        event(&mut out, speech, &json!([part]), None);
    }

    let mut last = json!({"text": ""});
    if speech.calls.is_empty()
        && let Some(thought) = &speech.thought
    {
        last["thoughtSignature"] = json!(thought);
    }

    let finish = match speech.finish() {
        "length" => "MAX_TOKENS",
        "content_filter" => "SAFETY",
        _ => "STOP",
    };
    event(&mut out, speech, &json!([last]), Some(finish));

    out.into_bytes()
}

fn event(out: &mut String, speech: &ScriptedSpeech, parts: &Value, finish: Option<&str>) {
    let [input, output, cached, reasoning] = speech.tokens;
    let mut candidate = json!({"content": {"parts": parts, "role": "model"}, "index": 0});
    if let Some(finish) = finish {
        candidate["finishReason"] = json!(finish);
    }

    let data = json!({
        "candidates": [candidate],
        // Visible and reasoning tokens are counted separately.
        "usageMetadata": {
            "promptTokenCount": input, "candidatesTokenCount": output - reasoning, "totalTokenCount": input + output,
            "cachedContentTokenCount": cached, "thoughtsTokenCount": reasoning,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": input}]
        },
        "modelVersion": "gemini-3-flash-preview", "responseId": "test"
    });

    out.push_str(&format!("data: {data}\r\n\r\n"));
}
