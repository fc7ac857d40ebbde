//! The built-in agent: a model and its tools, one step at a time over the turn's journal.
//!
//! The agent keeps nothing between two steps: the conversation is in the journal, so any broker asks the next
//! question. A tool call whose arguments are no JSON, or do not fit the tool's schema, gets the reason as its outcome
//! and never starts.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use shared::attachments::AttachmentStore;
use shared::bus::Bus;
use shared::clock::SharedClock;
use shared::llm::{
    self, AskModelError, FinishReason, LostAttempts, MalformedArguments, ModelMessage, ModelReply, ModelRequest,
    SharedModel, ToolRequest, ToolSpec,
};
use shared::model::ledger::{ToolCall as Asked, ToolOutcome, TurnUsage};
use shared::wire::agent::{AgentRequest, LineRole, ToolDescription};

use super::model_files::{
    ChosenFiles, FileBudget, FileKind, MessageFiles, choose_files, estimated_files, load_files, remove_kind,
};
use super::port::{
    Agent, AskedCall, ModelAnswer, ModelCall, ModelQuestion, OfferedTool, StepAgent, ToolInvocation, TurnOrigin,
    UnreachableTool,
};
use crate::agent::absence::AgentAbsence;
use crate::agent::live::LiveAnswer;
use crate::agent::message_text::{hidden_notes, with_names};
use crate::agent::personas::{Persona, Personas};
use crate::agent::port::{AgentAnswer, AskAgentError, TurnMessage};
use crate::tool::arguments::find_misfit;
use crate::tool::credentials::{SecretReferences, TurnCredentials};
use crate::tool::toolbox::Toolbox;
use crate::tool::{ToolCall, failed_outcome};

/// Replacement for a message without text: a timer's, or an empty answer. Some providers refuse a conversation with an
/// empty message in it.
const WORDLESS: &str = "[no text]";

/// The agent of runner `llm`.
#[derive(Debug)]
pub struct LlmAgent {
    model: SharedModel,
    toolbox: Toolbox,
    personas: Arc<Personas>,
    credentials: Arc<SecretReferences>,
    attachments: AttachmentStore,
    files: FileBudget,
    bus: Bus,
}

impl LlmAgent {
    /// Creates an agent that asks `model`, for `personas`.
    #[must_use]
    pub fn new(model: SharedModel, personas: Arc<Personas>, bus: Bus, clock: &SharedClock) -> Self {
        Self {
            model,
            toolbox: Toolbox::new(&bus, clock, &personas),
            credentials: Arc::new(personas.credentials.clone()),
            attachments: AttachmentStore::new(&bus, Arc::clone(clock)),
            files: FileBudget::default(),
            personas,
            bus,
        }
    }

    /// Returns the files of the messages of `question` that the model of `persona` is to get.
    fn choose_files(&self, question: &ModelQuestion, persona: &Persona) -> ChosenFiles {
        let types = self.recording_types(persona);
        let chosen = choose_files(&question.request.messages, persona.images, types);
        self.files.without_refused(model_name(persona), chosen)
    }

    /// Returns the types of recordings that the model of `persona` is to get.
    fn recording_types(&self, persona: &Persona) -> &'static [&'static str] {
        if persona.audio {
            self.model.recording_types()
        } else {
            &[]
        }
    }

    fn ask_of(question: &ModelQuestion, persona: &Persona, files: MessageFiles) -> ModelRequest {
        let request = &question.request;
        ModelRequest {
            model: persona.model.clone(),
            system: request.system_prompt.clone(),
            messages: build_messages(request, &question.so_far, files),
            tools: request.tools.iter().map(tool_spec).collect(),
            max_tokens: persona.max_tokens,
            timeout: question.left,
            stream: true,
            json: None,
        }
    }
}

#[async_trait]
impl Agent for LlmAgent {
    fn is_pure(&self) -> bool {
        false
    }

    async fn answer_request(
        &self,
        _request: &AgentRequest,
        _origin: &TurnOrigin,
        _timeout: Duration,
    ) -> Result<AgentAnswer, AskAgentError> {
        Err(AskAgentError::Refused {
            error: "a model's answer is requested step by step".to_owned(),
            retryable: false,
        })
    }

    fn as_step_agent(&self) -> Option<&dyn StepAgent> {
        Some(self)
    }
}

#[async_trait]
impl StepAgent for LlmAgent {
    async fn offered_tools(&self, persona: &str) -> Vec<OfferedTool> {
        let tools = self.toolbox.tools_of(self.personas.persona_of(persona)).await;
        let offers = tools.iter().map(|tool| OfferedTool {
            description: tool.description().clone(),
            idempotent: tool.is_idempotent(),
        });
        offers.collect()
    }

    fn unreachable_tool(&self, persona: &str, name: &str) -> Option<UnreachableTool> {
        self.toolbox.unreachable_tool(self.personas.persona_of(persona), name)
    }

    fn price_usd(&self, question: &ModelQuestion) -> Option<f64> {
        let persona = self.personas.persona_of(&question.request.persona);
        let files = estimated_files(&self.choose_files(question, persona));
        let ask = Self::ask_of(question, persona, files);
        self.model.estimate(&ask).map(llm::MicroDollars::dollars)
    }

    async fn ask_model(&self, question: &ModelQuestion, said: &mut (dyn for<'a> FnMut(&'a str) + Send)) -> ModelCall {
        let request = &question.request;
        let persona = self.personas.persona_of(&request.persona);
        let chosen = self.choose_files(question, persona);
        let room = self.files.reserve(&chosen, question.left).await;
        let types = self.recording_types(persona);
        let mut files = match &room {
            Some(_) => load_files(&self.attachments, &chosen, types, question.left).await,
            None => MessageFiles::new(),
        };
        let ask = Self::ask_of(question, persona, files.clone());
        let begin = || {
            LiveAnswer::begin_call(
                self.bus.clone(),
                &request.session,
                &question.origin,
                request.turn,
                question.step,
            )
        };

        // Hooks may still change a quiet answer, so its pieces must not be shown.
        let live = (!question.quiet).then(begin);
        let absence = question.absence.as_ref();
        let mut hear = |text: &str| {
            absence.into_iter().for_each(AgentAbsence::note_reachable);
            said(text);
            live.iter().for_each(|live| live.push_text(text));
        };

        let price = self.model.price(ask.model.as_deref());
        let mut lost = LostAttempts::new(ask.prompt_bytes(), ask.max_tokens);
        // Permanent errors end the turn; only transient ones are shown as an absence.
        let mut failed = |error: &AskModelError| {
            lost.note_failed(error);
            if error.is_transient() && *error != AskModelError::Stopped {
                absence
                    .into_iter()
                    .for_each(|absence| absence.note_unreachable(&error.to_string()));
            }
        };
        let mut answer = self.model.answer_telling(ask, &mut hear, &mut failed).await;
        let mut refused = Vec::new();
        // Not every model of a provider takes files of each kind, and none says so beforehand.
        while answer.as_ref().is_err_and(is_refusal)
            && let Some(kind) = remove_kind(&mut files)
        {
            warn_refused(&request.persona, kind);
            let ask = Self::ask_of(question, persona, files.clone());
            answer = self.model.answer_telling(ask, &mut hear, &mut failed).await;
            refused.push(kind);
        }
        if answer.is_ok() {
            let refused = refused.into_iter().map(|kind| chosen.of_kind(kind));
            refused.for_each(|files| self.files.note_refused(model_name(persona), files));
        }

        ModelCall {
            outcome: answer
                .map(|answer| model_answer(answer, &request.tools))
                .map_err(|error| to_agent_error(&error)),
            lost_usd: price.map(|price| lost.cost(&price).dollars()),
        }
    }

    async fn call(&self, call: ToolInvocation) -> ToolOutcome {
        let persona = self.personas.persona_of(&call.session.persona);
        let Some(tool) = self.toolbox.find(persona, &call.call.name).await else {
            return failed_outcome("not available");
        };
        metrics::counter!("nexus_broker_tool_calls_total").increment(1);
        let credentials = TurnCredentials::granted_by(Arc::clone(&self.credentials), &call.permissions);
        tool.call(ToolCall { call, credentials }).await
    }
}

/// Returns `answer` to a model that was offered the tools `offered`.
fn model_answer(answer: ModelReply, offered: &[ToolDescription]) -> ModelAnswer {
    ModelAnswer {
        content: with_finish_note(answer.content, &answer.finish),
        calls: answer
            .tool_calls
            .into_iter()
            .map(|call| asked_call(call, offered))
            .collect(),
        attachments: Vec::new(),
        usage: TurnUsage {
            tokens_in: answer.usage.input,
            tokens_out: answer.usage.output,
            cost_usd: answer.cost.map_or(0.0, llm::MicroDollars::dollars),
        },
        opaque: answer.opaque,
        model: Some(answer.model),
    }
}

fn tool_spec(tool: &ToolDescription) -> ToolSpec {
    ToolSpec {
        name: tool.name.clone(),
        description: tool.description.clone(),
        parameters: tool.parameters.clone(),
    }
}

/// Returns the name of the model of `persona`; empty for the one that is configured for all.
fn model_name(persona: &Persona) -> &str {
    persona.model.as_deref().unwrap_or_default()
}

/// Returns whether a model does not take a request, so that one without files may be taken.
const fn is_refusal(error: &AskModelError) -> bool {
    match error {
        AskModelError::Refused { .. } | AskModelError::TooLong { .. } => true,
        AskModelError::Unauthorised { .. }
        | AskModelError::RateLimited { .. }
        | AskModelError::Overloaded { .. }
        | AskModelError::Unreachable { .. }
        | AskModelError::Truncated { .. }
        | AskModelError::Silent { .. }
        | AskModelError::TimedOut { .. }
        | AskModelError::BadAnswer { .. }
        | AskModelError::Stopped => false,
    }
}

fn warn_refused(persona: &str, kind: FileKind) {
    let files = kind.name();
    tracing::warn!(
        persona,
        files,
        "the model refused a request with such files; asking without them"
    );
}

/// Returns the history and the message with `files`, then the conversation of this turn.
fn build_messages(request: &AgentRequest, so_far: &[TurnMessage], mut files: MessageFiles) -> Vec<ModelMessage> {
    let before = request
        .messages
        .iter()
        .enumerate()
        .map(|(index, message)| match message.role {
            LineRole::User => {
                let files = files.remove(&index).unwrap_or_default();
                let (images, recordings) = (files.images.len(), files.recordings.len());
                let text = with_names(message.content.clone(), &message.attachments);
                let content = text + &hidden_notes(&message.attachments, images, recordings);
                ModelMessage::User {
                    content: non_empty_text(content),
                    files,
                }
            }
            LineRole::Assistant => ModelMessage::assistant(non_empty_text(message.content.clone())),
        });
    let before: Vec<ModelMessage> = before.collect();
    before.into_iter().chain(so_far.iter().map(line_message)).collect()
}

fn non_empty_text(text: String) -> String {
    if text.trim().is_empty() {
        WORDLESS.to_owned()
    } else {
        text
    }
}

fn line_message(line: &TurnMessage) -> ModelMessage {
    match line {
        TurnMessage::User { content } => ModelMessage::user(non_empty_text(content.clone())),
        TurnMessage::Assistant {
            content,
            tool_calls,
            opaque,
        } => ModelMessage::Assistant {
            content: content.clone(),
            tool_calls: tool_calls.iter().map(tool_request).collect(),
            opaque: opaque.clone(),
        },
        TurnMessage::Tool { call, name, outcome } => ModelMessage::Tool {
            id: call.clone(),
            name: name.clone(),
            content: outcome_text(outcome),
        },
    }
}

fn tool_request(call: &Asked) -> ToolRequest {
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
fn outcome_text(outcome: &ToolOutcome) -> String {
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
fn asked_call(call: ToolRequest, offered: &[ToolDescription]) -> AskedCall {
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
fn with_finish_note(content: String, finish: &FinishReason) -> String {
    let note = match finish {
        FinishReason::Done => return content,
        FinishReason::Length => "[cut: the model reached its token limit]".to_owned(),
        FinishReason::Filtered { reason } => format!("[the model's provider withheld the rest: {reason}]"),
        FinishReason::Other { reason } => format!("[the model stopped: {reason}]"),
    };

    if content.is_empty() {
        note
    } else {
        format!("{content} {note}")
    }
}

fn to_agent_error(error: &AskModelError) -> AskAgentError {
    match error {
        AskModelError::Silent { silent_ms } => AskAgentError::Silent(*silent_ms),
        AskModelError::TimedOut { waited_ms } => AskAgentError::Silent(*waited_ms),
        AskModelError::RateLimited { .. }
        | AskModelError::Overloaded { .. }
        | AskModelError::Unreachable { .. }
        | AskModelError::Stopped => AskAgentError::Unreachable(error.to_string()),
        AskModelError::Truncated { .. } => AskAgentError::BrokeOff(error.to_string()),
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
        let steered = TurnMessage::User { content: String::new() };
        let expected = [
            ModelMessage::user(WORDLESS),
            ModelMessage::assistant(WORDLESS),
            ModelMessage::user("hello"),
            ModelMessage::assistant("hi"),
            ModelMessage::user(WORDLESS),
        ];

        assert_eq!(build_messages(&request, &[steered], MessageFiles::new()), expected);
    }
}
