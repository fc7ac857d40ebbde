//! Requests of commands to the services.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::bus::{Bus, RequestError};
use shared::wire::headers::Headers;

use crate::exit::{failure, of_status};

/// Sends `question` to `subject`, which `service` serves, and returns its response.
///
/// # Errors
/// Fails with the service's own text and the exit code of its status if it refuses, and with a hint if no replica of
/// it listens.
pub async fn call_service<Q: Serialize, A: DeserializeOwned>(
    bus: &Bus,
    service: &str,
    subject: &str,
    question: &Q,
    patience: Duration,
) -> Result<A> {
    let asked = bus.request(subject, Headers::new(), question, patience).await;
    asked.map_err(|error| explain_request(service, patience, error))
}

/// Sends `question`, which changes nothing, as [`call_service`] does: to one replica after the other, until one answers.
///
/// # Errors
/// As [`call_service`].
pub async fn ask_service<Q: Serialize, A: DeserializeOwned>(
    bus: &Bus,
    service: &str,
    subject: &str,
    question: &Q,
    patience: Duration,
) -> Result<A> {
    let asked = bus.ask(subject, question, patience).await;
    asked.map_err(|error| explain_request(service, patience, error))
}

/// Returns `error` in an operator's terms.
fn explain_request(service: &str, patience: Duration, error: RequestError) -> anyhow::Error {
    match error {
        RequestError::Service { code, text, .. } => failure(of_status(code), text),
        RequestError::NoResponder { .. } => anyhow::Error::new(error).context(format!(
            "{service} is not running on this server; start it (`nexus up`), or see `nexus status`"
        )),
        RequestError::Timeout { .. } => {
            let waited = patience.as_secs_f64();
            anyhow::Error::new(error).context(format!("{service} did not answer within {waited} s"))
        }
        RequestError::Answer { .. } => {
            anyhow::Error::new(error).context(format!("{service} sent an answer that this version cannot read"))
        }
    }
}
