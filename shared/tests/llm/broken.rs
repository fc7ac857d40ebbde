//! What does not come whole is never taken for an answer; what may be repeated is repeated.

use std::time::Duration;

use serde_json::json;
use shared::clock::{Clock as _, SystemClock};
use shared::llm::{AskModelError, ModelRequest};
use shared::testing::ModelServer;
use shared::testing::model_server::{AnswerEnding, CutPoint, ModelWire, ScriptedAnswer, ScriptedCall, ScriptedSpeech};

use crate::world::{PROVIDERS, ask, config, model, question};

/// Between two lengths at which a stream is broken, bytes; at its end, where the marks of the end are, every byte.
const STEP: usize = 61;
const EXACT_AT_END: usize = 90;

#[tokio::test]
async fn a_stream_that_breaks_anywhere_is_never_a_short_answer() {
    let speech = ScriptedSpeech {
        text: ["Grüße", ", 世界", " 🌍"].map(str::to_owned).to_vec(),
        calls: vec![ScriptedCall::new("c1", "weather", &json!({"city": "Zürich"}))],
        ..ScriptedSpeech::default()
    };

    for provider in PROVIDERS {
        let wire = [ModelWire::OpenAi, ModelWire::Gemini, ModelWire::Anthropic]
            .into_iter()
            .zip(PROVIDERS)
            .find(|(_, of)| *of == provider)
            .map(|(wire, _)| wire)
            .expect("a wire");

        let length = wire.stream(&speech).len();
        let lengths = (0..length - EXACT_AT_END)
            .step_by(STEP)
            .chain(length - EXACT_AT_END..length);
        for (at, after) in lengths.enumerate() {
            let ending = if at % 2 == 0 {
                AnswerEnding::Dropped { after }
            } else {
                AnswerEnding::Closed { after }
            };
            let server = ModelServer::scripted([ScriptedAnswer::say(speech.clone()).ending(ending)]).await;
            match ask(&model(config(&server, provider, 1)), question("hi")).await {
                Ok(answer) => {
                    assert_eq!(
                        answer.content,
                        speech.text.concat(),
                        "{provider:?} {ending:?} of {length}"
                    );
                    assert_eq!(answer.tool_calls.len(), 1, "{provider:?} {ending:?} of {length}");

                    let arguments = answer.tool_calls[0].arguments.as_ref().expect("arguments");
                    assert_eq!(
                        *arguments,
                        json!({"city": "Zürich"}),
                        "{provider:?} {ending:?} of {length}"
                    );
                }
                Err(error) => assert!(error.is_transient(), "{provider:?} {ending:?} of {length}: {error}"),
            }
        }
    }
}

#[tokio::test]
async fn a_broken_stream_is_repeated_unless_its_text_was_handed_on() {
    for provider in PROVIDERS {
        for (stream, calls) in [(false, 2), (true, 1)] {
            let broken = ScriptedAnswer::text("hello world").cut(CutPoint::Every(40));
            let broken = broken.ending(AnswerEnding::Dropped { after: 900 });
            let server = ModelServer::scripted([broken, ScriptedAnswer::text("hello world")]).await;
            let asked = ModelRequest {
                stream,
                ..question("hi")
            };

            let outcome = ask(&model(config(&server, provider, 3)), asked).await;
            assert_eq!(server.calls(), calls, "{provider:?} {stream} {outcome:?}");

            match outcome {
                Ok(answer) => assert_eq!(answer.content, "hello world"),
                Err(error) => assert!(
                    matches!(error, AskModelError::Truncated { received: 1.., .. }),
                    "{error:?}"
                ),
            }
        }
    }
}

#[tokio::test]
async fn the_wait_that_the_provider_asks_for_is_kept() {
    for provider in PROVIDERS {
        let server = ModelServer::scripted([ScriptedAnswer::rate_limited("0.3"), ScriptedAnswer::text("hello")]).await;
        let begun = SystemClock.monotonic();
        let answer = ask(&model(config(&server, provider, 3)), question("hi")).await;
        assert_eq!(answer.expect("an answer").content, "hello");
        assert!(SystemClock.monotonic().duration_since(begun) >= Duration::from_millis(300));
        assert_eq!(server.calls(), 2);
    }
}

#[tokio::test]
async fn a_wait_beyond_the_questions_time_is_not_begun() {
    let server = ModelServer::scripted([ScriptedAnswer::rate_limited("600")]).await;
    let outcome = ask(&model(config(&server, PROVIDERS[0], 3)), question("hi")).await;
    let after = Some(Duration::from_mins(10));
    assert!(
        matches!(outcome, Err(AskModelError::RateLimited { after: a, .. }) if a == after),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn what_cannot_be_mended_is_not_repeated() {
    for provider in PROVIDERS {
        let check = async |status: u16, message: &str, calls: usize| {
            let server = ModelServer::ruled({
                let scripted = ScriptedAnswer::status(status, message);
                move |_, _| scripted.clone()
            })
            .await;
            let error = ask(&model(config(&server, provider, 3)), question("hi")).await;
            assert_eq!(server.calls(), calls, "{provider:?} {status}");

            error.expect_err("no answer")
        };

        let error = check(401, "invalid x-api-key", 1).await;
        assert!(matches!(error, AskModelError::Unauthorised { .. }), "{error:?}");

        let error = check(400, "prompt is too long: 300000 tokens > 200000 maximum", 1).await;
        assert!(matches!(error, AskModelError::TooLong { .. }), "{error:?}");

        let error = check(404, "no such model", 1).await;
        assert!(matches!(error, AskModelError::Refused { status: 404, .. }), "{error:?}");

        let error = check(529, "overloaded", 3).await;
        assert!(
            matches!(error, AskModelError::Overloaded { status: 529, .. }),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn silence_and_absence_are_told_apart() {
    let speech = ScriptedSpeech {
        text: vec!["hello".to_owned()],
        ..ScriptedSpeech::default()
    };
    for (provider, wire) in PROVIDERS
        .into_iter()
        .zip([ModelWire::OpenAi, ModelWire::Gemini, ModelWire::Anthropic])
    {
        let mut half = wire.stream(&speech);
        half.truncate(half.len() / 2);
        let held = ScriptedAnswer::Raw {
            bytes: half,
            cut: CutPoint::Whole,
            ending: AnswerEnding::Held,
        };

        let server = ModelServer::scripted([held]).await;
        let mut configuration = config(&server, provider, 1);
        configuration.idle_timeout_ms = 100;
        let outcome = ask(&model(configuration.clone()), question("hi")).await;

        assert!(
            matches!(outcome, Err(AskModelError::Silent { silent_ms: 100 })),
            "{outcome:?}"
        );

        drop(server);
        let address: Vec<&str> = configuration.base_url.split('/').take(3).collect();
        let address = address.join("/");
        let outcome = ask(&model(configuration), question("hi")).await;
        let error = outcome.expect_err("nothing listens there");
        assert!(matches!(error, AskModelError::Unreachable { .. }), "{error:?}");

        // The address without its path, and no layer of the client.
        let text = error.to_string();
        let begins = format!("the model provider at {address} is unreachable: ");
        let cause = text.strip_prefix(&begins).expect(&text);
        let causes = ["Connection refused", "Connection reset"];
        assert!(causes.iter().any(|begin| cause.starts_with(begin)), "{text}");
    }
}

/// Some gateways end lines with carriage return and line feed, and a packet may end between the two.
#[tokio::test]
async fn a_line_end_cut_in_two_parts_no_event_from_its_name() {
    let speech = ScriptedSpeech {
        text: ["one", " two", " three"].map(str::to_owned).to_vec(),
        ..ScriptedSpeech::default()
    };
    let text = String::from_utf8(ModelWire::Anthropic.stream(&speech)).expect("text");
    let bytes = text.replace('\n', "\r\n").into_bytes();
    let ends = bytes
        .windows(2)
        .enumerate()
        .filter(|(_, pair)| pair == b"\r\n")
        .map(|(at, _)| at + 1);

    for at in ends.collect::<Vec<_>>() {
        let parted = ScriptedAnswer::Raw {
            bytes: bytes.clone(),
            cut: CutPoint::At(at),
            ending: AnswerEnding::Whole,
        };
        let server = ModelServer::scripted([parted]).await;
        let answer = ask(&model(config(&server, PROVIDERS[2], 1)), question("hi")).await;

        assert_eq!(answer.expect("an answer").content, "one two three", "cut at {at}");
    }
}
