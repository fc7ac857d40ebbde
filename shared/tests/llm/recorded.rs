//! Recorded traffic of real providers: what is read is what they sent, however it is cut.

use serde_json::{Value, json};
use shared::llm::{FinishReason, HeardAnswer, ModelProvider, ModelRequest, TokenUsage};
use shared::testing::model_server::{AnswerEnding, CutPoint, ScriptedAnswer};
use shared::testing::{ModelServer, fixture_text};

use crate::plans::{marked, stream};
use crate::reading::read;
use crate::world::{PROVIDERS, config, model, question};

/// Beside the checkout.
const CASES: &str = "fixtures/llm/cases.jsonl";
/// What the recordings hold on our three wires, at least.
const AT_LEAST: usize = 130;
const SIZES: [usize; 5] = [usize::MAX, 1, 7, 64, 4_096];

struct Turn {
    id: String,
    provider: ModelProvider,
    body: String,
    is_stream: bool,
    facts: Value,
}

/// The turns on our wires; none where the fixtures are absent.
fn turns() -> Option<Vec<Turn>> {
    let text = fixture_text(CASES)?;
    let mut turns = Vec::new();
    for line in text.lines() {
        let case: Value = serde_json::from_str(line).expect("a row is JSON");
        for turn in case["turns"].as_array().expect("turns") {
            let provider = match turn["facts"]["wire"].as_str() {
                Some("openai-chat") => ModelProvider::OpenAi,
                Some("anthropic") => ModelProvider::Anthropic,
                Some("gemini") => ModelProvider::Gemini,
                _ => continue,
            };

            turns.push(Turn {
                id: case["id"].as_str().expect("an id").to_owned(),
                provider,
                body: turn["body"].as_str().expect("a body").to_owned(),
                is_stream: turn["stream"] == true,
                facts: turn["facts"].clone(),
            });
        }
    }

    assert!(turns.len() >= AT_LEAST, "{} turns", turns.len());
    Some(turns)
}

/// The tokens of the facts, counted apart from the client.
fn tokens(provider: ModelProvider, usage: &Value) -> TokenUsage {
    let of = |path: &str| usage.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    match provider {
        ModelProvider::OpenAi => TokenUsage {
            input: of("/prompt_tokens"),
            // No recording is of a provider that counts reasoning apart.
            output: of("/completion_tokens"),
            cached: of("/prompt_tokens_details/cached_tokens"),
            reasoning: of("/completion_tokens_details/reasoning_tokens"),
        },
        ModelProvider::Anthropic => TokenUsage {
            input: of("/input_tokens") + of("/cache_creation_input_tokens") + of("/cache_read_input_tokens"),
            output: of("/output_tokens"),
            cached: of("/cache_read_input_tokens"),
            reasoning: of("/output_tokens_details/thinking_tokens"),
        },
        ModelProvider::Gemini => TokenUsage {
            input: of("/promptTokenCount") + of("/toolUsePromptTokenCount"),
            output: of("/candidatesTokenCount") + of("/thoughtsTokenCount"),
            cached: of("/cachedContentTokenCount"),
            reasoning: of("/thoughtsTokenCount"),
        },
    }
}

fn check(turn: &Turn, heard: &HeardAnswer, how: &str) {
    let (id, facts) = (&turn.id, &turn.facts);
    assert_eq!(heard.text, facts["text"].as_str().expect("text"), "{id} {how}");
    assert_eq!(heard.stop, facts["stop"].as_str().expect("a stop"), "{id} {how}");
    assert_eq!(heard.usage, tokens(turn.provider, &facts["usage"]), "{id} {how}");

    let calls = heard.calls.iter().zip(facts["tool_calls"].as_array().expect("calls"));
    assert_eq!(heard.calls.len(), calls.len(), "{id} {how}");

    for (call, fact) in calls {
        assert_eq!(call.name, fact["name"].as_str().expect("a name"), "{id} {how}");

        match (&call.arguments, fact["arguments"]["_unparsed"].as_str()) {
            (Ok(arguments), None) => assert_eq!(arguments, &fact["arguments"], "{id} {how}"),
            // It was cut by the bound of tokens: told, and not carried out.
            (Err(malformed), Some(cut)) => assert_eq!(malformed.text, cut, "{id} {how}"),
            (arguments, _) => panic!("{id} {how}: {arguments:?}"),
        }

        if let Some(own) = fact["id"].as_str() {
            assert_eq!(call.id, own, "{id} {how}");
        }
    }

    let done = matches!(
        heard.stop.as_str(),
        "stop" | "tool_calls" | "tool_use" | "end_turn" | "STOP"
    );
    let refused = matches!(&heard.finish, FinishReason::Filtered { .. });
    assert_eq!(
        heard.finish == FinishReason::Done,
        done && !refused,
        "{id} {how}: {:?}",
        heard.finish
    );
}

#[test]
fn every_recorded_answer_is_what_was_sent_however_it_is_cut() {
    for turn in turns().unwrap_or_default() {
        for size in SIZES {
            let heard = read(turn.provider, turn.body.as_bytes(), size);
            let heard = heard.unwrap_or_else(|fault| panic!("{} {size}: {fault}", turn.id));
            check(&turn, &heard, &format!("in packets of {size}"));
        }
    }
}

/// A recorded answer that was no stream, as its provider would have streamed it.
fn streamed(turn: &Turn) -> Vec<u8> {
    let body: Value = serde_json::from_str(&turn.body).expect("JSON");
    match turn.provider {
        ModelProvider::OpenAi => {
            let mut message = body["choices"][0]["message"].clone();
            let calls = message["tool_calls"].as_array_mut();
            for (index, call) in calls.into_iter().flatten().enumerate() {
                call["index"] = json!(index);
            }

            let choice = |delta: Value, finish: &Value| json!({"choices": [{"delta": delta, "finish_reason": finish}]});
            let finish = &body["choices"][0]["finish_reason"];
            let events = [
                choice(message, &Value::Null),
                choice(json!({}), finish),
                json!({"choices": [], "usage": body["usage"]}),
            ];

            marked(&events)
        }
        ModelProvider::Gemini => stream(&[body]),
        ModelProvider::Anthropic => {
            let mut events = vec![json!({"type": "message_start", "message": {"usage": body["usage"]}})];
            for (index, block) in body["content"].as_array().into_iter().flatten().enumerate() {
                events.extend(grown(index, block));
            }
            let delta = json!({"stop_reason": body["stop_reason"]});
            events.push(json!({"type": "message_delta", "delta": delta, "usage": body["usage"]}));
            events.push(json!({"type": "message_stop"}));

            stream(&events)
        }
    }
}

/// A block as it begins, grows and ends.
fn grown(index: usize, block: &Value) -> Vec<Value> {
    let mut start = block.clone();
    let mut deltas = Vec::new();
    match block["type"].as_str() {
        Some("text") => {
            start["text"] = json!("");
            deltas.push(json!({"type": "text_delta", "text": block["text"]}));
        }
        Some("tool_use" | "server_tool_use" | "mcp_tool_use") => {
            start["input"] = json!({});
            let input = block["input"].to_string();
            let (one, two) = input.split_at(input.floor_char_boundary(input.len() / 2));
            for piece in ["", one, two] {
                deltas.push(json!({"type": "input_json_delta", "partial_json": piece}));
            }
        }
        _ => {}
    }

    let mut events = vec![json!({"type": "content_block_start", "index": index, "content_block": start})];
    let grows = |delta| json!({"type": "content_block_delta", "index": index, "delta": delta});
    events.extend(deltas.into_iter().map(grows));
    events.push(json!({"type": "content_block_stop", "index": index}));

    events
}

#[test]
fn what_was_recorded_whole_is_the_same_as_a_stream() {
    for turn in turns().unwrap_or_default().iter().filter(|turn| !turn.is_stream) {
        let bytes = streamed(turn);
        for size in SIZES {
            let heard = read(turn.provider, &bytes, size);
            let heard = heard.unwrap_or_else(|fault| panic!("{} {size}: {fault}", turn.id));
            check(turn, &heard, &format!("streamed in packets of {size}"));
        }
    }
}

/// Over HTTP, as agents and hooks ask: whatever a recorded provider sends becomes the answer.
#[tokio::test]
async fn every_recorded_answer_comes_through_the_port() {
    let turns = turns().unwrap_or_default();
    for provider in PROVIDERS {
        let of_this = || turns.iter().filter(|turn| turn.provider == provider.0);
        let script = of_this().map(|turn| ScriptedAnswer::Raw {
            bytes: turn.body.clone().into_bytes(),
            cut: CutPoint::Every(64),
            ending: AnswerEnding::Whole,
        });

        let server = ModelServer::scripted(script).await;
        let model = model(config(&server, provider, 1));
        for turn in of_this() {
            let mut text = String::new();
            let asked = ModelRequest {
                stream: true,
                ..question("hi")
            };

            let answer = model.answer(asked, &mut |piece| text.push_str(piece)).await;
            let answer = answer.unwrap_or_else(|error| panic!("{}: {error}", turn.id));
            assert_eq!(text, answer.content, "{}", turn.id);

            assert_eq!(
                answer.content,
                turn.facts["text"].as_str().expect("text"),
                "{}",
                turn.id
            );
            assert_eq!(answer.usage, tokens(turn.provider, &turn.facts["usage"]), "{}", turn.id);

            let calls = turn.facts["tool_calls"].as_array().map_or(0, Vec::len);
            assert_eq!(answer.tool_calls.len(), calls, "{}", turn.id);
        }
    }
}
