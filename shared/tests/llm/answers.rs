//! What comes whole is read whole, however it is cut into packets.

use serde_json::json;
use shared::llm::{AskModelError, FinishReason, JsonMode, MicroDollars, ModelRequest, TokenUsage, ToolSpec};
use shared::testing::ModelServer;
use shared::testing::model_server::{CutPoint, ScriptedAnswer, ScriptedCall, ScriptedSpeech};

use crate::world::{PROVIDERS, ask, config, model, question};

fn speech() -> ScriptedSpeech {
    ScriptedSpeech {
        text: ["Grüße", ", 世界", " 🌍 \"ende\"\n"].map(str::to_owned).to_vec(),
        calls: vec![
            ScriptedCall::new("c1", "weather", &json!({"city": "Zürich", "days": [1, 2]})),
            ScriptedCall::new("c2", "weather", &json!({"city": "東京"})),
        ],
        thought: Some("c2lnbmVkLXRob3VnaHQ=".to_owned()),
        ..ScriptedSpeech::default()
    }
}

#[tokio::test]
async fn an_answer_is_the_same_however_it_is_cut() {
    for provider in PROVIDERS {
        for cut in [
            CutPoint::Whole,
            CutPoint::Every(1),
            CutPoint::Every(3),
            CutPoint::Every(64),
        ] {
            let server = ModelServer::scripted([ScriptedAnswer::say(speech()).cut(cut)]).await;
            let model = model(config(&server, provider, 1));
            let mut heard = String::new();
            let asked = ModelRequest {
                stream: true,
                ..question("hi")
            };

            let answer = model.answer(asked, &mut |text| heard.push_str(text)).await;
            let answer = answer.unwrap_or_else(|error| panic!("{provider:?} {cut:?}: {error}"));
            assert_eq!(answer.content, speech().text.concat(), "{provider:?} {cut:?}");
            assert_eq!(heard, answer.content, "{provider:?} {cut:?}");

            let calls: Vec<_> = answer
                .tool_calls
                .iter()
                .map(|c| (c.id.as_str(), c.arguments.clone()))
                .collect();
            let expected = [
                ("c1", Ok(json!({"city": "Zürich", "days": [1, 2]}))),
                ("c2", Ok(json!({"city": "東京"}))),
            ];

            assert_eq!(calls, expected, "{provider:?} {cut:?}");
            assert_eq!(answer.finish, FinishReason::Done);

            let reasoning = if provider.1 == "anthropic" { 0 } else { 5 };
            let usage = TokenUsage {
                input: 100,
                output: 20,
                cached: 40,
                reasoning,
            };

            assert_eq!(answer.usage, usage, "{provider:?}");
            // 60 × 0.50 + 40 × 0.05 + 20 × 3.00 dollars a million.
            assert_eq!(answer.cost, Some(MicroDollars(92)), "{provider:?}");
        }
    }
}

#[tokio::test]
async fn arguments_that_are_no_json_are_a_typed_fault() {
    for provider in [PROVIDERS[0], PROVIDERS[2]] {
        for (text, detail) in [
            ("{\"city\": ", "EOF"),
            ("[1]", "expected an object"),
            ("nonsense", "expected"),
        ] {
            let call = ScriptedCall {
                id: Some("c1".to_owned()),
                name: "weather".to_owned(),
                arguments: text.to_owned(),
            };
            let server = ModelServer::scripted([ScriptedAnswer::calls([call])]).await;
            let answer = ask(&model(config(&server, provider, 1)), question("hi")).await;
            let answer = answer.expect("an answer");
            let malformed = answer.tool_calls[0].arguments.clone().expect_err("malformed");

            assert!(malformed.detail.contains(detail), "{malformed:?}");
        }
    }
}

#[tokio::test]
async fn an_answer_cut_by_the_bound_of_tokens_says_so() {
    for provider in PROVIDERS {
        let speech = ScriptedSpeech {
            text: vec!["once upon a".to_owned()],
            finish: Some("length".to_owned()),
            ..ScriptedSpeech::default()
        };
        let server = ModelServer::scripted([ScriptedAnswer::say(speech)]).await;
        let answer = ask(&model(config(&server, provider, 1)), question("hi")).await;

        assert_eq!(answer.expect("an answer").finish, FinishReason::Length, "{provider:?}");
    }
}

#[tokio::test]
async fn json_is_asked_for_by_schema_and_looked_at() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
                        "additionalProperties": false});
    for provider in PROVIDERS {
        let server = ModelServer::scripted([ScriptedAnswer::text("{\"n\": 7}"), ScriptedAnswer::text("seven")]).await;
        let model = model(config(&server, provider, 1));
        let asked = || ModelRequest {
            json: Some(JsonMode::Schema(schema.clone())),
            ..question("how many? JSON")
        };

        assert_eq!(ask(&model, asked()).await.expect("JSON").content, "{\"n\": 7}");

        let bad = ask(&model, asked()).await;
        assert!(
            matches!(bad, Err(AskModelError::BadAnswer { .. })),
            "{provider:?}: {bad:?}"
        );

        let body = server.requests()[0].body.to_string();
        assert!(
            body.contains("\"integer\""),
            "{provider:?}: the schema goes along: {body}"
        );
    }
}

#[tokio::test]
async fn tools_system_and_key_go_along() {
    for provider in PROVIDERS {
        let server = ModelServer::scripted([ScriptedAnswer::text("ok")]).await;
        let asked = ModelRequest {
            tools: vec![ToolSpec {
                name: "files__read".to_owned(),
                description: "reads".to_owned(),
                parameters: json!({"type": "object", "properties": {"path": {"type": "string"}}}),
            }],
            max_tokens: Some(77),
            ..question("what is in it?")
        };

        ask(&model(config(&server, provider, 1)), asked)
            .await
            .expect("an answer");
        let request = &server.requests()[0];
        assert_eq!(request.offered_tools(), ["files__read"], "{provider:?}");
        assert_eq!(request.last_user_text(), "what is in it?", "{provider:?}");

        let body = request.body.to_string();
        assert!(body.contains("be brief") && body.contains("77"), "{provider:?}: {body}");

        let key = ["authorization", "x-goog-api-key", "x-api-key"];
        assert!(
            key.iter().any(|name| request.headers.contains_key(*name)),
            "{provider:?}"
        );
    }
}

#[tokio::test]
async fn any_json_object_is_asked_for_as_each_provider_means_it() {
    for provider in PROVIDERS {
        let server = ModelServer::scripted([ScriptedAnswer::text(r#"{"code": "1234"}"#)]).await;
        let asked = ModelRequest {
            system: "Read the code.".to_owned(),
            json: Some(JsonMode::Object),
            ..question("Your code is 1234")
        };

        let answer = ask(&model(config(&server, provider, 1)), asked).await;
        assert_eq!(
            answer.expect("an answer").content,
            r#"{"code": "1234"}"#,
            "{provider:?}"
        );

        let body = server.requests().remove(0).body;
        let said = body.to_string();
        assert!(
            said.contains("Read the code.\\n\\nAnswer with one JSON object"),
            "{said}"
        );

        let format = match provider.1 {
            "openai" => body["response_format"] == json!({"type": "json_object"}),
            "gemini" => body["generationConfig"]["responseMimeType"] == "application/json",
            _ => !said.contains("json_schema"),
        };
        assert!(format, "{provider:?}: {said}");
    }
}

#[tokio::test]
async fn json_may_stand_in_a_code_fence() {
    for provider in PROVIDERS {
        let fenced = "```json\n{\"code\": \"1234\"}\n```\n";
        let server =
            ModelServer::scripted([ScriptedAnswer::text(fenced), ScriptedAnswer::text("```\nno JSON\n```")]).await;
        let model = model(config(&server, provider, 1));
        let asked = || ModelRequest {
            json: Some(JsonMode::Object),
            ..question("Your code is 1234")
        };

        assert_eq!(
            ask(&model, asked()).await.expect("JSON").content,
            "{\"code\": \"1234\"}"
        );

        let bad = ask(&model, asked()).await;
        assert!(
            matches!(bad, Err(AskModelError::BadAnswer { .. })),
            "{provider:?}: {bad:?}"
        );
    }
}
