//! An agent that thinks in steps, whose model and tools are the test: each asks over NATS, and the test answers.

use std::time::Duration;

use async_trait::async_trait;
use broker_svc::agent::port::TurnMessage;
use broker_svc::agent::port::{
    Agent, AskedCall, ModelAnswer, ModelCall, ModelQuestion, OfferedTool, StepAgent, ToolInvocation, TurnOrigin,
};
use broker_svc::agent::port::{AgentAnswer, AskAgentError};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;
use shared::bus::{Bus, CoreSubscription};
use shared::model::ledger::{ToolOutcome, TurnUsage};
use shared::wire::agent::{AgentRequest, ToolDescription};
use shared::wire::headers::Headers;

use crate::bench::DEADLINE;

/// Where it asks, where there is one test and one agent.
pub(crate) const SUBJECT: &str = "test.effect";
/// How long it waits for the test.
const PATIENCE: Duration = Duration::from_secs(60);

/// What it asks: an effect is about to happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Effect {
    /// `model` or the tool's name.
    pub(crate) name: String,
    /// The model call's step, or the tool call's id.
    pub(crate) id: String,
    /// What was said by people so far; of a tool its arguments.
    pub(crate) heard: Vec<String>,
    /// The model's instructions; none of a tool.
    pub(crate) prompt: String,
}

/// What the test answers: text, and tools to call.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) text: String,
    pub(crate) tools: Vec<String>,
}

/// The next effect that somebody is about to have, and where to answer.
pub(crate) async fn effect(asked: &mut CoreSubscription) -> (Effect, String) {
    let next = tokio::time::timeout(DEADLINE, asked.next());
    let question = next.await.expect("in time").expect("a question");
    let effect = serde_json::from_slice(&question.payload).expect("an effect");
    (effect, question.reply.expect("a place to answer"))
}

/// Answers an effect with `text` and `tools` to call.
pub(crate) async fn answer(bus: &Bus, to: &str, text: &str, tools: &[&str]) {
    let outcome = Outcome {
        text: text.to_owned(),
        tools: tools.iter().map(|&tool| tool.to_owned()).collect(),
    };
    let answer = serde_json::to_vec(&outcome).expect("JSON");
    bus.core_publish(to, &Headers::new(), Bytes::from(answer)).await;
}

#[derive(Debug)]
pub(crate) struct Scripted {
    pub(crate) bus: Bus,
    /// Where it asks.
    pub(crate) asks: String,
    /// Tools, and whether they are idempotent.
    pub(crate) tools: Vec<(&'static str, bool)>,
}

impl Scripted {
    async fn ask(&self, effect: Effect) -> Outcome {
        let asked = self.bus.request(&self.asks, Headers::new(), &effect, PATIENCE);
        asked.await.expect("the test answers")
    }
}

#[async_trait]
impl Agent for Scripted {
    fn is_pure(&self) -> bool {
        false
    }

    async fn answer_request(
        &self,
        _: &AgentRequest,
        _: &TurnOrigin,
        _: Duration,
    ) -> Result<AgentAnswer, AskAgentError> {
        Err(AskAgentError::NoAgent)
    }

    fn as_step_agent(&self) -> Option<&dyn StepAgent> {
        Some(self)
    }
}

#[async_trait]
impl StepAgent for Scripted {
    async fn offered_tools(&self, _: &str) -> Vec<OfferedTool> {
        let offer = |&(name, idempotent): &(&str, bool)| OfferedTool {
            description: ToolDescription {
                name: name.to_owned(),
                description: String::new(),
                parameters: json!({}),
            },
            idempotent,
        };
        self.tools.iter().map(offer).collect()
    }

    async fn ask_model(&self, question: &ModelQuestion, said: &mut (dyn for<'a> FnMut(&'a str) + Send)) -> ModelCall {
        said("thinking");
        let mut heard: Vec<String> = question.request.messages.iter().map(|m| m.content.clone()).collect();
        heard.extend(question.so_far.iter().filter_map(|line| match line {
            TurnMessage::User { content } => Some(content.clone()),
            TurnMessage::Assistant { .. } | TurnMessage::Tool { .. } => None,
        }));

        let effect = Effect {
            name: "model".to_owned(),
            id: question.step.to_string(),
            heard,
            prompt: question.request.system_prompt.clone(),
        };
        let outcome = self.ask(effect).await;
        let call = |name: String| AskedCall {
            name,
            arguments: json!({ "step": question.step, "amount": 60_000 }),
            fault: None,
        };

        let answer = ModelAnswer {
            content: outcome.text,
            calls: outcome.tools.into_iter().map(call).collect(),
            attachments: Vec::new(),
            usage: TurnUsage {
                tokens_in: 10,
                tokens_out: 1,
                cost_usd: 0.25,
            },
            opaque: None,
            model: Some("scripted".to_owned()),
        };
        ModelCall::from(Ok(answer))
    }

    async fn call(&self, call: ToolInvocation) -> ToolOutcome {
        let effect = Effect {
            name: call.call.name,
            id: call.call.call,
            heard: vec![call.call.arguments.to_string()],
            prompt: String::new(),
        };
        ToolOutcome::Ok {
            result: json!(self.ask(effect).await.text),
        }
    }
}

/// The script: three model calls, four tools.
pub(crate) fn script(effect: &Effect) -> Outcome {
    let outcome = |text: &str, tools: &[&str]| Outcome {
        text: text.to_owned(),
        tools: tools.iter().map(|&tool| tool.to_owned()).collect(),
    };
    match (effect.name.as_str(), effect.id.as_str()) {
        ("model", "1") => outcome("let me look", &["look", "pay", "look"]),
        ("model", "2") => outcome("now pay", &["pay"]),
        ("model", _) => outcome("done", &[]),
        (tool, id) => outcome(&format!("{tool} {id}"), &[]),
    }
}
