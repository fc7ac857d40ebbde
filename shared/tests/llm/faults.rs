//! What providers were seen to do, at fifty places each: never a call too many, never one lost, and "done" only where
//! it was.

use serde_json::{Value, json};
use shared::llm::{FinishReason, HeardAnswer, ModelProvider, TokenUsage, WireFault};

use crate::plans::{Counting, Draw, Numbering, Plan, marked, stream};
use crate::reading::read;

const PLACES: u64 = 50;
const SIZES: [usize; 3] = [usize::MAX, 1, 64];

const COUNTED: TokenUsage = TokenUsage {
    input: 100,
    output: 20,
    cached: 0,
    reasoning: 0,
};

/// Reads `bytes` in several packets; all must be heard alike.
fn heard(provider: ModelProvider, bytes: &[u8]) -> Result<HeardAnswer, WireFault> {
    let whole = read(provider, bytes, usize::MAX);
    for size in SIZES {
        let cut = read(provider, bytes, size);
        assert_eq!(cut.is_ok(), whole.is_ok(), "{size}: {cut:?}");
        if let (Ok(cut), Ok(whole)) = (&cut, &whole) {
            assert_eq!(cut, whole, "{size}");
        }
    }
    whole
}

fn said(plan: &Plan, provider: ModelProvider, bytes: &[u8], how: &str) {
    let heard = heard(provider, bytes).unwrap_or_else(|fault| panic!("{how}: {fault}"));
    same(plan, &heard, how);
    assert_eq!(heard.finish, FinishReason::Done, "{how}");
}

fn same(plan: &Plan, heard: &HeardAnswer, how: &str) {
    assert_eq!(heard.text, plan.text.concat(), "{how}");

    let calls: Vec<_> = heard
        .calls
        .iter()
        .map(|c| (c.name.clone(), c.arguments.clone()))
        .collect();
    let meant: Vec<_> = plan
        .calls
        .iter()
        .map(|c| (c.name.clone(), Ok(c.arguments.clone())))
        .collect();

    assert_eq!(calls, meant, "{how}");

    let mut ids: Vec<&str> = heard.calls.iter().map(|call| call.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();

    assert_eq!(ids.len(), plan.calls.len(), "{how}: each call has an id of its own");
}

#[test]
fn calls_are_counted_right_however_they_are_numbered() {
    for seed in 0..PLACES {
        let plan = Plan::draw(seed);
        for numbering in Numbering::ALL {
            let bytes = marked(&plan.openai(numbering, Counting::Apart));
            said(&plan, ModelProvider::OpenAi, &bytes, &format!("{numbering:?} {seed}"));
        }
    }
}

#[test]
fn tokens_count_wherever_they_stand() {
    for seed in 0..PLACES {
        let plan = Plan::draw(seed);
        for counting in Counting::ALL {
            let bytes = marked(&plan.openai(Numbering::FromZero, counting));
            let heard = heard(ModelProvider::OpenAi, &bytes).expect("an answer");
            assert_eq!(heard.usage, COUNTED, "{counting:?} {seed}");
        }

        let mut events = plan.openai(Numbering::FromZero, Counting::WithChoices);
        let last = events.last_mut().expect("a last event");
        last["usage"] = json!({
            "prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120 + seed,
            "completion_tokens_details": {"reasoning_tokens": seed}
        });

        let heard = heard(ModelProvider::OpenAi, &marked(&events)).expect("an answer");
        assert_eq!((heard.usage.output, heard.usage.reasoning), (20 + seed, seed), "xAI");
    }
}

#[test]
fn what_gemini_says_after_its_first_stop_is_heard() {
    for seed in 0..PLACES {
        let plan = Plan::draw(seed);
        let mut events = plan.gemini();
        let mut draw = Draw::new(seed);

        // It says that it stops already here.
        let early = draw.below(events.len());
        events[early]["candidates"][0]["finishReason"] = json!("STOP");

        // And counts, or says nothing at all, at other places.
        let usage = json!({"usageMetadata": {"promptTokenCount": 100}});
        events.insert(draw.below(events.len()), usage);
        events.insert(draw.below(events.len()), json!({"responseId": "r"}));
        let bytes = stream(&events);
        let heard = heard(ModelProvider::Gemini, &bytes).expect("an answer");
        same(&plan, &heard, &format!("{seed}"));

        assert_eq!((heard.finish, heard.usage.output), (FinishReason::Done, 20), "{seed}");
    }
}

#[test]
fn a_blocked_question_says_why() {
    for seed in 0..PLACES {
        let mut events = Plan::draw(seed).gemini();
        let reason = ["SAFETY", "BLOCKLIST", "PROHIBITED_CONTENT", "OTHER"][Draw::new(seed).below(4)];
        events.truncate(0);
        events.push(json!({"promptFeedback": {"blockReason": reason}, "usageMetadata": {"promptTokenCount": 7}}));
        let heard = heard(ModelProvider::Gemini, &stream(&events)).expect("an answer");

        assert_eq!(
            heard.finish,
            FinishReason::Filtered {
                reason: reason.to_owned()
            }
        );
        assert!(heard.calls.is_empty() && heard.usage.input == 7, "{heard:?}");
    }
}

/// The pieces of an object, value by value, as Google streams arguments; text in two.
fn pieces(path: &str, value: &Value, out: &mut Vec<Value>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                pieces(&format!("{path}.{name}"), member, out);
            }
        }
        Value::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                pieces(&format!("{path}[{index}]"), element, out);
            }
        }
        Value::String(text) => {
            let (one, two) = text.split_at(text.floor_char_boundary(text.len() / 2));
            out.push(json!({"jsonPath": path, "stringValue": one, "willContinue": true}));
            out.push(json!({"jsonPath": path, "stringValue": two}));
        }
        Value::Number(_) => out.push(json!({"jsonPath": path, "numberValue": value})),
        Value::Bool(_) => out.push(json!({"jsonPath": path, "boolValue": value})),
        Value::Null => out.push(json!({"jsonPath": path, "nullValue": "NULL_VALUE"})),
    }
}

fn in_pieces(plan: &Plan) -> Vec<Value> {
    let part = |call: Value| json!({"candidates": [{"content": {"parts": [{"functionCall": call}]}}]});
    let mut events = Vec::new();
    for event in plan.gemini() {
        let call = &event["candidates"][0]["content"]["parts"][0]["functionCall"];
        if call.is_null() {
            events.push(event);
            continue;
        }

        events.push(part(
            json!({"id": call["id"], "name": call["name"], "willContinue": true}),
        ));
        let mut found = Vec::new();
        pieces("$", &call["args"], &mut found);

        for piece in found {
            events.push(part(json!({"partialArgs": [piece], "willContinue": true})));
        }

        events.push(part(json!({})));
    }

    events
}

#[test]
fn arguments_in_pieces_are_whole_or_not_carried_out() {
    for seed in 0..PLACES {
        let plan = Plan::draw(seed);
        let events = in_pieces(&plan);
        said(&plan, ModelProvider::Gemini, &stream(&events), &format!("{seed}"));

        // One of the events that carry a call is lost: that call is not carried out, and none is added.
        let ends: Vec<usize> = (0..events.len())
            .filter(|at| events[*at]["candidates"][0]["content"]["parts"][0]["functionCall"] == json!({}))
            .collect();
        let mut lost = events.clone();
        let at = ends[Draw::new(seed).below(ends.len())];
        lost.remove(at);
        let heard = heard(ModelProvider::Gemini, &stream(&lost)).expect("an answer");

        assert_eq!(heard.calls.len(), plan.calls.len(), "{seed}");

        let place = ends.iter().position(|end| *end == at).expect("its place");
        assert!(heard.calls[place].arguments.is_err(), "{seed}: {:?}", heard.calls);

        for (other, call) in heard.calls.iter().enumerate().filter(|(other, _)| *other != place) {
            assert_eq!(call.arguments, Ok(plan.calls[other].arguments.clone()), "{seed}");
        }
    }
}

#[test]
fn what_is_unknown_on_anthropics_wire_ends_and_doubles_nothing() {
    let citation = |index: &Value| {
        json!({"type": "content_block_delta", "index": index,
            "delta": {"type": "citations_delta", "citation": {"cited_text": "so it is"}}})
    };
    for seed in 0..PLACES {
        let plan = Plan::draw(seed);
        let mut draw = Draw::new(seed);
        let mut events = plan.anthropic();

        // Between the blocks, tools of its own; within them, what is no text and no arguments.
        let at = 1 + draw.below(events.len() - 3);
        let index = events[at]["index"].clone();
        events.insert(at + 1, citation(&index));
        let starts = (1..events.len()).filter(|at| events[*at]["type"] == "content_block_start");
        let starts: Vec<usize> = starts.collect();
        let at = starts[draw.below(starts.len())];

        let own = [
            json!({"type": "content_block_start", "index": 90,
                "content_block": {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}}),
            json!({"type": "content_block_delta", "index": 90,
                "delta": {"type": "input_json_delta", "partial_json": "{\"query\": \"sky\"}"}}),
            json!({"type": "content_block_stop", "index": 90}),
            json!({"type": "content_block_start", "index": 91,
                "content_block": {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}}),
            json!({"type": "content_block_stop", "index": 91}),
            json!({"type": "a_new_event", "index": 3}),
            json!({"type": "ping"}),
        ];

        events.splice(at..at, own);
        said(&plan, ModelProvider::Anthropic, &stream(&events), &format!("{seed}"));
    }
}

#[test]
fn json_in_place_of_a_stream_is_the_whole_answer() {
    for seed in 0..PLACES {
        let plan = Plan::draw(seed);
        let text = plan.text.concat();
        let calls = plan.calls.iter().map(|call| {
            json!({"id": call.id, "type": "function",
                "function": {"name": call.name, "arguments": call.arguments.to_string()}})
        });

        let calls: Value = calls.collect();
        let message = json!({"role": "assistant", "content": text, "tool_calls": calls});
        let openai = json!({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]});

        said(
            &plan,
            ModelProvider::OpenAi,
            openai.to_string().as_bytes(),
            &format!("{seed}"),
        );

        let blocks = plan
            .calls
            .iter()
            .map(|call| json!({"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}));
        let mut content = vec![json!({"type": "text", "text": text})];
        content.extend(blocks);
        let anthropic = json!({"type": "message", "content": content, "stop_reason": "tool_use"});

        said(
            &plan,
            ModelProvider::Anthropic,
            anthropic.to_string().as_bytes(),
            &format!("{seed}"),
        );

        // Gemini's is a list of what would be events.
        let gemini = Value::Array(plan.gemini()).to_string();
        said(&plan, ModelProvider::Gemini, gemini.as_bytes(), &format!("{seed}"));

        for (provider, whole) in [
            (ModelProvider::OpenAi, openai.to_string()),
            (ModelProvider::Anthropic, anthropic.to_string()),
            (ModelProvider::Gemini, gemini),
        ] {
            let cut = whole.floor_char_boundary(Draw::new(seed).below(whole.len() - 1) + 1);
            let fault = heard(provider, &whole.as_bytes()[..cut]).expect_err("it broke off");
            assert!(
                matches!(fault, WireFault::BrokeOff { .. }),
                "{provider:?} {cut}: {fault}"
            );
        }
    }
}

#[test]
fn an_answer_that_is_cut_anywhere_is_whole_or_broke_off() {
    for seed in 0..PLACES {
        let plan = Plan::draw(seed);
        let mut draw = Draw::new(seed);
        for (provider, bytes) in [
            (
                ModelProvider::OpenAi,
                marked(&plan.openai(Numbering::FromZero, Counting::Apart)),
            ),
            (ModelProvider::Anthropic, stream(&plan.anthropic())),
            (ModelProvider::Gemini, stream(&plan.gemini())),
        ] {
            for _ in 0..8 {
                let cut = draw.below(bytes.len());
                match heard(provider, &bytes[..cut]) {
                    Ok(heard) => same(&plan, &heard, &format!("{provider:?} {cut} of {}", bytes.len())),
                    Err(fault) => assert!(
                        matches!(fault, WireFault::BrokeOff { .. }),
                        "{provider:?} {cut}: {fault}"
                    ),
                }
            }
        }
    }
}

/// At the bound of tokens a call breaks off where it is: it is told, and not carried out.
#[test]
fn a_call_cut_by_the_bound_of_tokens_is_not_carried_out() {
    for seed in 0..PLACES {
        let mut plan = Plan::draw(seed);
        let last = plan.calls.last_mut().expect("a call");
        last.arguments = json!({"amount": 60_000, "to": "x".repeat(1 + Draw::new(seed).below(40))});
        let arguments = last.arguments.to_string();
        let kept = arguments[..Draw::new(seed).below(arguments.len())].to_owned();

        let mut openai = plan.openai(Numbering::FromOne, Counting::Apart);
        let begins = openai
            .iter()
            .rposition(|event| !event["choices"][0]["delta"]["tool_calls"][0]["id"].is_null());
        let begins = begins.expect("the last call");
        let mut rest = openai.split_off(begins);
        rest[0]["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] = json!(kept);
        openai.push(rest.swap_remove(0));
        openai.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}));
        cut_short(&plan, ModelProvider::OpenAi, &marked(&openai));

        let mut anthropic = plan.anthropic();
        let begins = anthropic
            .iter()
            .rposition(|event| event["type"] == "content_block_start");
        let begins = begins.expect("the last call");
        let index = anthropic[begins]["index"].clone();
        anthropic.truncate(begins + 1);

        let delta = json!({"type": "input_json_delta", "partial_json": kept});
        anthropic.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));

        if seed % 2 == 0 {
            anthropic.push(json!({"type": "content_block_stop", "index": index}));
        }

        anthropic.push(json!({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}}));
        anthropic.push(json!({"type": "message_stop"}));
        cut_short(&plan, ModelProvider::Anthropic, &stream(&anthropic));
    }
}

fn cut_short(plan: &Plan, provider: ModelProvider, bytes: &[u8]) {
    let heard = heard(provider, bytes).expect("an answer");
    assert_eq!(heard.finish, FinishReason::Length);
    assert_eq!(heard.calls.len(), plan.calls.len());
    let (last, others) = heard.calls.split_last().expect("a call");
    assert!(last.arguments.is_err(), "{provider:?}: {last:?}");
    for (call, meant) in others.iter().zip(&plan.calls) {
        assert_eq!(call.arguments, Ok(meant.arguments.clone()));
    }
}

/// An error within the stream is one, wherever it comes, and after a stop that says itself that the answer is cut it
/// adds nothing.
#[test]
fn an_error_within_the_stream_is_no_answer() {
    let error = json!({"type": "error", "error": {"type": "overloaded_error", "message": "busy", "code": 503}});
    for seed in 0..PLACES {
        let plan = Plan::draw(seed);
        let openai = plan.openai(Numbering::FromZero, Counting::Apart);
        for (provider, mut events) in [
            (ModelProvider::OpenAi, openai.clone()),
            (ModelProvider::Anthropic, plan.anthropic()),
            (ModelProvider::Gemini, plan.gemini()),
        ] {
            // The mark of the end, where it is an event, is the last that is looked at.
            let at = Draw::new(seed).below(events.len());
            events.insert(at, error.clone());
            let fault = heard(provider, &marked(&events)).expect_err("no answer");
            assert!(matches!(fault, WireFault::Said(_)), "{provider:?}: {fault}");
        }

        let mut cut = openai;
        let stop = cut
            .iter()
            .position(|event| event["choices"][0]["finish_reason"] == "tool_calls");
        cut[stop.expect("a stop")]["choices"][0]["finish_reason"] = json!("length");
        cut.push(error.clone());
        let heard = heard(ModelProvider::OpenAi, &marked(&cut)).expect("an answer");

        assert_eq!((heard.finish, heard.usage), (FinishReason::Length, COUNTED), "{seed}");
    }
}

/// It stops for tools and calls none: what it called was not understood, so the answer is not "done".
#[test]
fn a_stop_for_tools_without_a_call_is_no_answer() {
    let vanished = [
        (
            ModelProvider::OpenAi,
            marked(&[json!({"choices": [{"delta": {"content": "so"}, "finish_reason": "tool_calls"}]})]),
        ),
        (
            ModelProvider::Anthropic,
            stream(&[
                json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}),
                json!({"type": "message_stop"}),
            ]),
        ),
    ];

    for (provider, bytes) in vanished {
        let fault = heard(provider, &bytes).expect_err("no answer");
        assert!(matches!(fault, WireFault::Unreadable { .. }), "{fault}");
    }
}
