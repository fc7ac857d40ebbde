//! The agent of runner `nats`: a service on `nexus.agent.<persona>`, in any language with a NATS client.
//!
//! The request is `AgentRequest/1` in JSON, with the header `Nexus-Turn`, which is the same when the question is
//! repeated: an agent that had begun, or had even answered, can give the same answer again instead of working twice.

use std::time::Duration;

use async_trait::async_trait;
use shared::bus::Bus;
use shared::bus::RequestError;
use shared::clock::SharedClock;
use shared::model::ledger::TurnUsage;
use shared::wire::agent::{AgentFile, AgentReply, AgentRequest};
use shared::wire::envelope::{PayloadFormat, encode_payload};
use shared::wire::headers::{CONTENT_TYPE, Headers, SCHEMA, TURN};
use shared::wire::subject;

use super::answer_files::AnswerFiles;
use super::port::{Agent, TurnOrigin};
use crate::agent::port::{AgentAnswer, AskAgentError};

/// Agent that is asked over NATS.
#[derive(Debug, Clone)]
pub struct NatsAgent {
    bus: Bus,
    files: AnswerFiles,
}

impl NatsAgent {
    /// Creates the agent on `bus`.
    #[must_use]
    pub fn new(bus: Bus, clock: &SharedClock) -> Self {
        let files = AnswerFiles::new(&bus, clock);
        Self { bus, files }
    }
}

#[async_trait]
impl Agent for NatsAgent {
    fn is_pure(&self) -> bool {
        false
    }

    async fn answer_request(
        &self,
        request: &AgentRequest,
        origin: &TurnOrigin,
        timeout: Duration,
    ) -> Result<AgentAnswer, AskAgentError> {
        let headers: Headers = [
            (TURN, request.turn.to_string()),
            (SCHEMA, "agent_request/1".to_owned()),
            (CONTENT_TYPE, PayloadFormat::Json.content_type().to_owned()),
        ]
        .into_iter()
        .collect();

        let subject = subject::agent(&request.persona);
        let question = encode_payload(request, PayloadFormat::Json);
        match self.bus.request_bytes(&subject, &headers, question, timeout).await {
            Ok(answer) => {
                let (content, files) = read(&answer.payload)?;
                Ok(AgentAnswer {
                    content,
                    attachments: self.files.admit(files, origin).await?,
                    usage: TurnUsage::default(),
                })
            }
            Err(RequestError::NoResponder { .. }) => Err(AskAgentError::NoAgent),
            Err(RequestError::Timeout { .. }) => Err(AskAgentError::Silent(
                u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
            )),
            Err(error @ RequestError::Answer { .. }) => Err(AskAgentError::Unreachable(error.to_string())),
            Err(RequestError::Service { subject: _, code, text }) => {
                // A NATS service answers 5xx if it failed and 4xx if the question is invalid.
                Err(AskAgentError::Refused {
                    error: format!("{code}: {text}"),
                    retryable: code >= 500,
                })
            }
        }
    }
}

/// Returns the text and the files of `answer`.
fn read(answer: &[u8]) -> Result<(String, Vec<AgentFile>), AskAgentError> {
    match serde_json::from_slice(answer) {
        Ok(AgentReply::Answer { content, attachments }) => Ok((content, attachments)),
        Ok(AgentReply::Waiting { waiting }) => Err(AskAgentError::Waits(waiting)),
        Ok(AgentReply::Error { error, retryable }) => Err(AskAgentError::Refused { error, retryable }),
        Err(error) => Err(AskAgentError::Malformed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_cannot_be_read_is_told_from_silence() {
        assert!(matches!(read(b"hello"), Err(AskAgentError::Malformed(_))));
        let (content, files) =
            read(br#"{"content": "hi", "attachments": [{"media_type": "image", "data": "AAAA"}]}"#).expect("an answer");
        assert_eq!((content.as_str(), files.len()), ("hi", 1));
        assert_eq!(
            (files[0].file.media_type.as_str(), files[0].data.as_deref()),
            ("image", Some("AAAA"))
        );
        let waits = read(br#"{"waiting": "01M8"}"#);
        assert_eq!(waits, Err(AskAgentError::Waits("01M8".to_owned())));
    }
}
