//! The built-in agent: a model and its tools, one step at a time over the turn's journal.
//!
//! The agent keeps nothing between two steps: the conversation is in the journal, so any broker asks the next
//! question. A tool call whose arguments are no JSON, or do not fit the tool's schema, gets the reason as its outcome
//! and never starts.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use shared::bus::Bus;
use shared::clock::SharedClock;
use shared::llm::{self, Ask, AskModelError, Finish, MalformedArguments, Message, SharedModel, ToolRequest, ToolSpec};
use shared::model::ledger::{ToolCall as Asked, ToolOutcome, Usage};
use shared::wire::agent::{AgentRequest, Role, ToolDescription};

use super::port::{Agent, AskedCall, Away, Call, Offer, Origin, Question, Said, Stepper};
use crate::absence::Absence;
use crate::agent::port::Line;
use crate::agent::port::{Answer, AskAgentError};
use crate::live::Live;
use crate::message_text::with_names;
use crate::personas::{Persona, Personas};
use crate::tool::arguments::find_misfit;
use crate::tool::credentials::{Credentials, References};
use crate::tool::toolbox::Toolbox;
use crate::tool::{ToolCall, failed};

/// Replacement for a message without text: a timer's, or an empty answer. Some providers refuse a conversation with an
/// empty message in it.
const WORDLESS: &str = "[no text]";

/// The agent of runner `llm`.
#[derive(Debug)]
pub struct Llm {
    model: SharedModel,
    toolbox: Toolbox,
    personas: Arc<Personas>,
    credentials: Arc<References>,
    bus: Bus,
}

impl Llm {
    /// Creates an agent that asks `model`, for `personas`.
    #[must_use]
    pub fn new(model: SharedModel, personas: Arc<Personas>, bus: Bus, clock: &SharedClock) -> Self {
        Self {
            model,
            toolbox: Toolbox::new(&bus, clock, &personas),
            credentials: Arc::new(personas.credentials.clone()),
            personas,
            bus,
        }
    }

    fn ask_of(&self, question: &Question, persona: &Persona) -> Ask {
        let request = &question.request;
        Ask {
            model: persona.model.clone(),
            system: request.system_prompt.clone(),
            messages: conversation(request, &question.so_far),
            tools: request.tools.iter().map(spec).collect(),
            max_tokens: persona.max_tokens,
            timeout: question.left,
            stream: true,
            json: None,
        }
    }
}

#[async_trait]
impl Agent for Llm {
    fn is_pure(&self) -> bool {
        false
    }

    async fn ask(
        &self,
        _request: &AgentRequest,
        _origin: &Origin,
        _timeout: Duration,
    ) -> Result<Answer, AskAgentError> {
        Err(AskAgentError::Refused {
            error: "it answers in steps".to_owned(),
            retryable: false,
        })
    }

    fn steps(&self) -> Option<&dyn Stepper> {
        Some(self)
    }
}

#[async_trait]
impl Stepper for Llm {
    async fn tools(&self, persona: &str) -> Vec<Offer> {
        let tools = self.toolbox.of(self.personas.of(persona)).await;
        let offers = tools.iter().map(|tool| Offer {
            description: tool.description().clone(),
            idempotent: tool.is_idempotent(),
        });
        offers.collect()
    }

    fn away(&self, persona: &str, name: &str) -> Option<Away> {
        self.toolbox.away(self.personas.of(persona), name)
    }

    async fn answer(
        &self,
        question: &Question,
        said: &mut (dyn for<'a> FnMut(&'a str) + Send),
    ) -> Result<Said, AskAgentError> {
        let request = &question.request;
        let ask = self.ask_of(question, self.personas.of(&request.persona));
        let delivery = &question.origin.delivery;

        let begin = || {
            Live::begin(
                self.bus.clone(),
                &request.session,
                delivery,
                request.turn,
                question.step,
            )
        };

        let live = (!question.quiet).then(begin);
        let absence = question.absence.as_ref();
        let mut hear = |text: &str| {
            absence.into_iter().for_each(Absence::over);
            said(text);
            live.iter().for_each(|live| live.say(text));
        };

        let mut failed = |error: &AskModelError| {
            if error.is_transient() {
                absence.into_iter().for_each(|absence| absence.tell(&error.to_string()));
            }
        };
        let answer = self.model.answer_telling(ask, &mut hear, &mut failed).await;
        let answer = answer.map_err(|error| fault(&error))?;

        Ok(Said {
            content: told(answer.content, &answer.finish),
            calls: answer
                .tool_calls
                .into_iter()
                .map(|call| asked(call, &request.tools))
                .collect(),
            attachments: Vec::new(),
            usage: Usage {
                tokens_in: answer.usage.input,
                tokens_out: answer.usage.output,
                cost_usd: answer.cost.map_or(0.0, llm::MicroDollars::dollars),
            },
            opaque: answer.opaque,
            model: Some(answer.model),
        })
    }

    async fn call(&self, call: Call) -> ToolOutcome {
        let persona = self.personas.of(&call.session.persona);
        let Some(tool) = self.toolbox.find(persona, &call.call.name).await else {
            return failed("not available");
        };
        metrics::counter!("nexus_broker_tool_calls_total").increment(1);
        let credentials = Credentials::of(Arc::clone(&self.credentials), &call.permissions);
        tool.call(ToolCall { call, credentials }).await
    }
}

fn spec(tool: &ToolDescription) -> ToolSpec {
    ToolSpec {
        name: tool.name.clone(),
        description: tool.description.clone(),
        parameters: tool.parameters.clone(),
    }
}

/// Returns the history and the message, then the conversation of this turn.
fn conversation(request: &AgentRequest, so_far: &[Line]) -> Vec<Message> {
    let before = request.messages.iter().map(|message| match message.role {
        Role::User => Message::user(worded(with_names(message.content.clone(), &message.attachments))),
        Role::Assistant => Message::assistant(worded(message.content.clone())),
    });
    before.chain(so_far.iter().map(line)).collect()
}

fn worded(text: String) -> String {
    if text.trim().is_empty() {
        WORDLESS.to_owned()
    } else {
        text
    }
}

fn line(line: &Line) -> Message {
    match line {
        Line::User { content } => Message::user(worded(content.clone())),
        Line::Assistant {
            content,
            tool_calls,
            opaque,
        } => Message::Assistant {
            content: content.clone(),
            tool_calls: tool_calls.iter().map(requested).collect(),
            opaque: opaque.clone(),
        },
        Line::Tool { call, name, outcome } => Message::Tool {
            id: call.clone(),
            name: name.clone(),
            content: reading(outcome),
        },
    }
}

fn requested(call: &Asked) -> ToolRequest {
    let arguments = match &call.arguments {
        Value::Object(_) => Ok(call.arguments.clone()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(MalformedArguments {
                text: String::new(),
                detail: "not kept".to_owned(),
            })
        }
    };

    ToolRequest {
        id: call.call.clone(),
        name: call.name.clone(),
        arguments,
    }
}

/// Returns an outcome as text for the model.
fn reading(outcome: &ToolOutcome) -> String {
    match outcome {
        ToolOutcome::Ok {
            result: Value::String(text),
        } => text.clone(),
        ToolOutcome::Ok { result } => result.to_string(),
        ToolOutcome::Error { error } => format!("error: {error}"),
        ToolOutcome::Skipped { reason } => format!("skipped: {reason}"),
        ToolOutcome::Unknown { reason } => format!("outcome unknown: {reason}"),
    }
}

/// Returns a call for the journal, with the reason if it must not run. The caller refuses a tool that was not
/// offered.
fn asked(call: ToolRequest, offered: &[ToolDescription]) -> AskedCall {
    let schema = offered.iter().find(|tool| tool.name == call.name);
    let (arguments, fault) = match call.arguments {
        Ok(arguments) => {
            let misfit = schema.and_then(|tool| find_misfit(&tool.parameters, &arguments));
            let fault = misfit.map(|misfit| format!("the arguments do not fit the tool's schema: {misfit}"));
            (arguments, fault)
        }
        Err(malformed) => (Value::Null, Some(malformed.to_string())),
    };

    AskedCall {
        name: call.name,
        arguments,
        fault,
    }
}

/// Returns the text, with a note if it is incomplete.
fn told(content: String, finish: &Finish) -> String {
    let note = match finish {
        Finish::Done => return content,
        Finish::Length => "[cut: the model reached its bound of tokens]".to_owned(),
        Finish::Filtered { reason } => format!("[the model's provider withheld the rest: {reason}]"),
        Finish::Other { reason } => format!("[the model stopped: {reason}]"),
    };

    if content.is_empty() {
        note
    } else {
        format!("{content} {note}")
    }
}

fn fault(error: &AskModelError) -> AskAgentError {
    match error {
        AskModelError::Silent { silent_ms } => AskAgentError::Silent(*silent_ms),
        AskModelError::TimedOut { waited_ms } => AskAgentError::Silent(*waited_ms),
        AskModelError::RateLimited { .. }
        | AskModelError::Overloaded { .. }
        | AskModelError::Unreachable { .. }
        | AskModelError::Truncated { .. }
        | AskModelError::Stopped => AskAgentError::Unreachable(error.to_string()),
        AskModelError::BadAnswer { .. } => AskAgentError::Malformed(error.to_string()),
        AskModelError::Unauthorised { .. } | AskModelError::TooLong { .. } | AskModelError::Refused { .. } => {
            AskAgentError::Refused {
                error: error.to_string(),
                retryable: false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_message_goes_without_words() {
        let said = |role: &str, content: &str| json!({"role": role, "content": content});
        let request = json!({
            "turn": "01M80A4BYPJANS8A4KMNFK7P5E", "session": {"persona": "p", "session": "s"}, "persona": "p",
            "system_prompt": "", "tools": [], "permissions": {"level": "full"}, "deadline": 0,
            "messages": [said("user", ""), said("assistant", " \n"), said("user", "hello"), said("assistant", "hi")]
        });

        let request: AgentRequest = serde_json::from_value(request).expect("a request");
        let steered = Line::User { content: String::new() };
        let expected = [
            Message::user(WORDLESS),
            Message::assistant(WORDLESS),
            Message::user("hello"),
            Message::assistant("hi"),
            Message::user(WORDLESS),
        ];

        assert_eq!(conversation(&request, &[steered]), expected);
    }
}
