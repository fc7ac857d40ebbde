//! A conversation that goes on after tools: ids, results and signed thoughts return as the provider wants them.

use serde_json::json;
use shared::llm::{ModelMessage, ModelRequest};
use shared::testing::ModelServer;
use shared::testing::model_server::{ScriptedAnswer, ScriptedCall, ScriptedSpeech};

use crate::world::{PROVIDERS, ask, config, model, question};

fn step(ids: bool) -> ScriptedAnswer {
    let call = |id: &str, city: &str| ScriptedCall {
        id: ids.then(|| id.to_owned()),
        ..ScriptedCall::new(id, "weather", &json!({"city": city}))
    };

    ScriptedAnswer::say(ScriptedSpeech {
        text: vec!["let me look".to_owned()],
        calls: vec![call("c1", "Bern"), call("c2", "Rom")],
        thought: Some("c2lnbmVk".to_owned()),
        ..ScriptedSpeech::default()
    })
}

#[tokio::test]
async fn results_and_signatures_return_to_the_provider() {
    for provider in PROVIDERS {
        let server = ModelServer::scripted([step(true), ScriptedAnswer::text("sunny")]).await;
        let model = model(config(&server, provider, 1));
        let first = ask(&model, question("weather?")).await.expect("calls");

        // As the ledger keeps it, and another process reads it back.
        let opaque = first.opaque.as_ref().map(ToString::to_string);
        let mut messages = vec![ModelMessage::user("weather?"), ModelMessage::from_answer(&first)];
        for (call, result) in first.tool_calls.iter().zip(["18 °C", "25 °C"]) {
            messages.push(ModelMessage::Tool {
                id: call.id.clone(),
                name: call.name.clone(),
                content: result.to_owned(),
            });
        }

        let second = ModelRequest {
            messages,
            ..question("")
        };
        assert_eq!(ask(&model, second).await.expect("an answer").content, "sunny");

        let request = &server.requests()[1];
        assert_eq!(
            request.tool_results(),
            ["18 °C", "25 °C"],
            "{provider:?}: {}",
            request.body
        );

        let body = request.body.to_string();
        assert!(
            body.contains("let me look") && body.contains("Bern"),
            "{provider:?}: {body}"
        );

        if provider.1 != "openai" {
            assert!(opaque.is_some_and(|opaque| opaque.contains("c2lnbmVk")), "{provider:?}");
            assert!(body.contains("c2lnbmVk"), "{provider:?}: {body}");
        }

        if provider.1 == "gemini" {
            let parts = &request.body["contents"][1]["parts"];
            assert_eq!(
                parts[1]["thoughtSignature"], "c2lnbmVk",
                "on the call that it came with: {parts}"
            );
            assert!(parts[2].get("thoughtSignature").is_none(), "{parts}");
        }
    }
}

#[tokio::test]
async fn calls_without_ids_are_told_apart() {
    let server = ModelServer::scripted([step(false)]).await;
    let answer = ask(&model(config(&server, PROVIDERS[1], 1)), question("weather?")).await;
    let calls = answer.expect("calls").tool_calls;
    assert_ne!(calls[0].id, calls[1].id);
}

#[tokio::test]
async fn what_another_provider_signed_is_left_out() {
    let server = ModelServer::scripted([step(true)]).await;
    let first = ask(&model(config(&server, PROVIDERS[1], 1)), question("weather?"))
        .await
        .expect("calls");
    let other = ModelServer::scripted([ScriptedAnswer::text("sunny")]).await;
    let messages = vec![
        ModelMessage::user("weather?"),
        ModelMessage::from_answer(&first),
        ModelMessage::user("well?"),
    ];

    let asked = ModelRequest {
        messages,
        ..question("")
    };
    ask(&model(config(&other, PROVIDERS[2], 1)), asked)
        .await
        .expect("an answer");

    let body = other.requests()[0].body.to_string();
    assert!(!body.contains("c2lnbmVk") && body.contains("Bern"), "{body}");
}
