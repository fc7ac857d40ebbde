//! Whatever a provider sends, reading it ends in an answer or in a fault, and stays within its memory.
//!
//! One test, in a process of its own, so that what is allocated in it is what the reading holds: what the system calls
//! resident depends on the kernel's pages and on how the binary was loaded. The short form reads 20,000 streams;
//! `NEXUS_CHAOS=long` a million.

#[path = "../llm/plans.rs"]
mod plans;

use std::hint::black_box;

use crate::plans::{Counting, Draw, Numbering, Plan, marked, stream};
use peak_alloc::PeakAlloc;
use shared::llm::{AnswerReader, MAX_MEMORY_BYTES, ModelProvider};
use shared::testing::says;

/// Counts what this process has allocated.
#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

const PROVIDERS: [ModelProvider; 3] = [ModelProvider::OpenAi, ModelProvider::Anthropic, ModelProvider::Gemini];
const SHORT: u64 = 20_000;
const LONG: u64 = 1_000_000;
/// Answers that are mutated.
const PLANS: u64 = 64;
/// Most bytes of one endless stream: far more than any bound.
const ENDLESS: usize = 20 * 1024 * 1024;

/// What is put into streams where it does not belong.
const SPLINTERS: [&str; 24] = [
    "data: ",
    "\n\n",
    "\r",
    "event: message_stop\n",
    "data: [DONE]\n\n",
    "\"index\":50000000,",
    "\"index\":-1,",
    "\"index\":18446744073709551615,",
    "\"finish_reason\":\"stop\"",
    "\"stop_reason\":\"end_turn\"",
    "\"finishReason\":\"STOP\"",
    "[[[[[[[[[[[[[[[[",
    "{\"choices\":[1,null,\"x\",[],{\"delta\":[]},{\"message\":1}]}",
    "{\"candidates\":[null,{\"content\":[]},{\"content\":{\"parts\":[1,{\"functionCall\":{\"partialArgs\":[3]}}]}}]}",
    "{\"type\":\"content_block_start\",\"content_block\":7}",
    "{\"type\":\"content_block_delta\",\"delta\":null}",
    "1e999",
    "\\ud800",
    "\u{0}",
    "\"tool_calls\":[3,{\"function\":\"f\"},{\"function\":{\"arguments\":{\"a\":1}}}]",
    "\"usage\":{\"prompt_tokens\":-5,\"completion_tokens\":1e300}",
    "\"args\":[1]",
    "\"partialArgs\":[{\"jsonPath\":\"$.a[50000000]\",\"numberValue\":1}],\"willContinue\":true",
    "null",
];

/// Reads a stream whose packets `next` gives, until it has an answer or a fault; what an answer promises must hold.
fn read(provider: ModelProvider, next: &mut dyn FnMut() -> Option<Vec<u8>>) -> bool {
    let mut reading = AnswerReader::new(provider);
    let mut heard = 0;
    while let Some(packet) = next() {
        match reading.take(&packet) {
            Ok(text) => heard += text.len(),
            Err(fault) => {
                black_box(fault.to_string());
                return false;
            }
        }

        if reading.has_ended() {
            break;
        }
    }

    let Ok(answer) = reading.finish_answer() else {
        return false;
    };
    assert!(heard <= answer.text.len(), "more was heard than said");
    assert!(!answer.stop.is_empty(), "an end without a stop");

    for call in &answer.calls {
        assert!(!call.name.is_empty() && !call.id.is_empty(), "{call:?}");
        assert!(
            call.arguments.as_ref().map_or(true, |arguments| arguments.is_object()),
            "{call:?}"
        );
    }

    true
}

/// The answers whose bytes are mutated, on each wire.
fn bases() -> Vec<(ModelProvider, Vec<u8>)> {
    let of = |seed: u64| {
        let plan = Plan::draw(seed);
        let mut draw = Draw::new(seed);
        let numbering = Numbering::ALL[draw.below(Numbering::ALL.len())];
        let counting = Counting::ALL[draw.below(Counting::ALL.len())];

        [
            (ModelProvider::OpenAi, marked(&plan.openai(numbering, counting))),
            (ModelProvider::Anthropic, stream(&plan.anthropic())),
            (ModelProvider::Gemini, stream(&plan.gemini())),
        ]
    };

    (0..PLANS).flat_map(of).collect()
}

fn mutate(bytes: &mut Vec<u8>, draw: &mut Draw) {
    for _ in 0..=draw.below(4) {
        let at = draw.below(bytes.len());
        let to = (at + draw.below(120)).min(bytes.len());
        match draw.below(7) {
            0 => bytes.truncate(at.max(1)),
            1 => bytes
                .iter_mut()
                .skip(at)
                .take(1)
                .for_each(|byte| *byte ^= 1 << draw.below(8)),
            2 => drop(bytes.drain(at..to)),
            3 => {
                let again = bytes[at..to].to_vec();
                let place = draw.below(bytes.len());
                bytes.splice(place..place, again);
            }
            4 | 5 => {
                let splinter = SPLINTERS[draw.below(SPLINTERS.len())];
                bytes.splice(at..at, splinter.bytes());
            }
            _ => {
                let noise: Vec<u8> = (0..draw.below(64)).map(|_| draw.next().to_le_bytes()[0]).collect();
                bytes.splice(at..to, noise);
            }
        }

        if bytes.is_empty() {
            bytes.push(b'\n');
        }
    }
}

/// Loses, repeats and moves whole events.
fn shuffle(bytes: &[u8], draw: &mut Draw) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let mut events: Vec<&str> = text.split_inclusive("\n\n").collect();
    for _ in 0..=draw.below(3) {
        let (from, to) = (draw.below(events.len()), draw.below(events.len()));
        match draw.below(3) {
            0 if events.len() > 1 => drop(events.remove(from)),
            1 => events.insert(to, events[from]),
            _ => events.swap(from, to),
        }
    }

    events.concat().into_bytes()
}

/// A stream that never ends: its wire, what grows in it, and its packets by their number.
type Endless = (ModelProvider, &'static str, Box<dyn FnMut(usize) -> String>);
/// A kind of event of one wire: what grows by it, and the event by its number and a filling.
type Kind = (&'static str, fn(usize, &str) -> String);

/// Streams that never end by themselves; each grows one thing that is held.
#[expect(clippy::too_many_lines, reason = "a story or a table is read from top to bottom")]
fn endless() -> Vec<Endless> {
    let kept = "k".repeat(1_000);
    let event = |of: &dyn Fn(usize) -> String, number: usize| format!("data: {}\n\n", of(number));

    let mut streams: Vec<Endless> = Vec::new();
    for provider in PROVIDERS {
        streams.push((provider, "one line", Box::new(|_| "data: x".repeat(2_000))));
        streams.push((
            provider,
            "one event",
            Box::new(|_| "data: xxxxxxxxxxxxxxxx\n".repeat(600)),
        ));

        streams.push((
            provider,
            "nothing but comments",
            Box::new(|_| ": busy\n\n".repeat(1_000)),
        ));
        streams.push((provider, "one JSON text", Box::new(|_| "[0,0,0,0,0,0,0,0,".repeat(900))));
        let text = kept.clone();

        let escaped = move |number: usize| {
            if number == 0 {
                "{\"a\":\"".to_owned()
            } else {
                "\\u0041".repeat(text.len())
            }
        };

        streams.push((provider, "one escaped text", Box::new(escaped)));
        let values = "[0],".repeat(8_000);
        let large = move |_| format!("data: {{\"type\":\"x\",\"x\":[{values}0]}}\n\n");
        streams.push((provider, "large events", Box::new(large)));
    }

    let openai: [Kind; 7] = [
        ("text", |_, k| {
            format!(r#"{{"choices":[{{"delta":{{"content":"{k}\n"}}}}]}}"#)
        }),
        ("calls", |n, k| {
            format!(
                r#"{{"choices":[{{"delta":{{"tool_calls":[{{"index":{n},"id":"{n}","function":{{"name":"{k}"}}}}]}}}}]}}"#
            )
        }),
        ("arguments", |_, k| {
            format!(
                r#"{{"choices":[{{"delta":{{"tool_calls":[{{"index":0,"function":{{"name":"f","arguments":"[0,{k}"}}}}]}}}}]}}"#
            )
        }),
        ("choices", |n, _| {
            format!(r#"{{"choices":[{{"index":{n},"delta":{{}}}}]}}"#)
        }),
        ("reasoning", |_, k| {
            format!(r#"{{"choices":[{{"delta":{{"reasoning_content":"{k}"}}}}]}}"#)
        }),
        ("details", |n, k| {
            let kind = if n % 2 == 0 {
                "reasoning.text"
            } else {
                "reasoning.encrypted"
            };
            format!(
                r#"{{"choices":[{{"delta":{{"reasoning_details":[{{"type":"{kind}","text":"{k}","signature":"{n}"}}]}}}}]}}"#
            )
        }),
        ("what is unknown", |_, k| {
            format!(r#"{{"choices":[{{"delta":{{"content":{{"a":["{k}",0,0,0]}}}}}}]}}"#)
        }),
    ];

    let anthropic: [Kind; 4] = [
        ("blocks", |n, _| {
            format!(r#"{{"type":"content_block_start","index":{n},"content_block":{{"type":"text","text":""}}}}"#)
        }),
        ("thoughts", |n, k| match n {
            0 => r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking"}}"#.to_owned(),
            _ => format!(
                r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"thinking_delta","thinking":"{k}"}}}}"#
            ),
        }),
        ("an input", |n, k| match n {
            0 => r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"i","name":"n"}}"#
                .to_owned(),
            _ => format!(
                r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"input_json_delta","partial_json":"[{k}"}}}}"#
            ),
        }),
        ("events that are unknown", |n, k| {
            format!(r#"{{"type":"new","n":{n},"k":["{k}",[[[[0]]]]]}}"#)
        }),
    ];

    let gemini: [Kind; 3] = [
        ("arguments in pieces", |n, k| {
            let name = if n == 0 { r#""name":"f","# } else { "" };
            format!(
                r#"{{"candidates":[{{"content":{{"parts":[{{"functionCall":{{{name}"willContinue":true,"partialArgs":[{{"jsonPath":"$.a[{n}]","stringValue":"{k}"}}]}}}}]}}}}]}}"#
            )
        }),
        ("parts", |_, k| {
            format!(r#"{{"candidates":[{{"content":{{"parts":[{{"executableCode":{{"code":"{k}"}}}}]}}}}]}}"#)
        }),
        ("whole arguments", |_, k| {
            let values = "0,".repeat(4_000);
            format!(
                r#"{{"candidates":[{{"content":{{"parts":[{{"functionCall":{{"name":"{k}","args":{{"a":[{values}0]}}}}}}]}}}}]}}"#
            )
        }),
    ];

    let all = openai.map(|(what, of)| (ModelProvider::OpenAi, what, of)).into_iter();
    let all = all.chain(anthropic.map(|(what, of)| (ModelProvider::Anthropic, what, of)));
    for (provider, what, of) in all.chain(gemini.map(|(what, of)| (ModelProvider::Gemini, what, of))) {
        let kept = kept.clone();
        streams.push((provider, what, Box::new(move |number| event(&|n| of(n, &kept), number))));
    }

    streams
}

/// The most that has been allocated at once beyond `before`, in bytes, since this was asked last.
fn most_beyond(before: usize) -> usize {
    let most = ALLOCATED.peak_usage().saturating_sub(before);
    ALLOCATED.reset_peak_usage();
    most
}

#[test]
fn whatever_comes_ends_in_an_answer_or_a_fault_within_its_memory() {
    let count = if says("NEXUS_CHAOS", "long") { LONG } else { SHORT };
    let bases = bases();
    let before = ALLOCATED.current_usage();
    ALLOCATED.reset_peak_usage();

    let mut most = 0;

    for (provider, what, mut of) in endless() {
        let (mut number, mut sent) = (0, 0);
        let mut next = || {
            if sent >= ENDLESS {
                return None;
            }
            let packet = of(number).into_bytes();
            number += 1;
            sent += packet.len();

            Some(packet)
        };

        let answered = read(provider, &mut next);
        assert!(!answered, "{provider:?} {what}");

        let grown = most_beyond(before);
        assert!(grown <= MAX_MEMORY_BYTES, "{provider:?} {what}: {grown} bytes");

        most = most.max(grown);
    }

    let mut answers = 0_u64;
    for seed in 0..count {
        let mut draw = Draw::new(seed + 1);
        let (provider, base) = &bases[draw.below(bases.len())];
        let mut bytes = base.clone();

        // One in sixteen is noise from its first byte, one in sixteen is spoken on another wire.
        let kind = draw.below(16);
        match kind {
            0 => bytes = (0..draw.below(600)).map(|_| draw.next().to_le_bytes()[0]).collect(),
            1..8 => mutate(&mut bytes, &mut draw),
            _ => bytes = shuffle(&bytes, &mut draw),
        }

        let provider = if kind == 1 { PROVIDERS[draw.below(3)] } else { *provider };
        let mut at = 0;
        let mut next = || {
            let end = (at + 1 + draw.below(200)).min(bytes.len());
            let packet = bytes.get(at..end).filter(|packet| !packet.is_empty())?.to_vec();
            at = end;
            Some(packet)
        };

        answers += u64::from(read(provider, &mut next));
    }

    let grown = most_beyond(before);
    println!("{count} streams, {answers} answers, {grown} bytes held at most, {most} of an endless one");
    assert!(grown <= MAX_MEMORY_BYTES, "{grown} bytes");
    assert!(
        answers > count / 10,
        "the mutations spare too little: {answers} answers"
    );
}
