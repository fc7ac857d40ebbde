//! Calls of platforms by `nexus channel check`. A URL or a header may have a token, so no error is shown with either.

use std::time::Duration;

use anyhow::{Context as _, Result};
use reqwest::header::HeaderMap;
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder};
use shared::error_chain::describe_error;
use shared::platform::http_answer::{ReadBodyError, read_bounded};

/// Maximum time of a call.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// The outcome of a call that brought no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CallFault {
    /// The token is not accepted; the value is what the platform says.
    Token(String),
    /// Another answer, or none.
    Other(String),
}

/// An answer of a platform.
#[derive(Debug)]
pub(super) struct PlatformAnswer {
    /// HTTP status.
    pub(super) status: u16,
    /// Headers.
    pub(super) headers: HeaderMap,
    /// Body.
    pub(super) body: Vec<u8>,
}

/// Opens the client of all calls; `user_agent` is for the platform.
///
/// # Errors
/// Fails if no HTTP client can be made.
pub(super) fn open_client(user_agent: &str) -> Result<Client> {
    Client::builder()
        .timeout(PATIENCE)
        .user_agent(user_agent)
        // A redirect would show the token to another host.
        .redirect(Policy::none())
        .build()
        .context("failed to make an HTTP client")
}

/// Sends `request` to `platform`, whose name is for people.
///
/// # Errors
/// Returns [`CallFault::Other`] if there is no answer, or a very long one.
pub(super) async fn send_request(platform: &str, request: RequestBuilder) -> Result<PlatformAnswer, CallFault> {
    let unreachable = |error: reqwest::Error| {
        let error = error.without_url();
        CallFault::Other(format!("{platform} cannot be reached: {}", describe_error(&error)))
    };
    let mut response = request.send().await.map_err(unreachable)?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());

    let read = read_bounded(&mut response, MAX_ANSWER_BYTES).await;
    let body = read.map_err(|error| match error {
        ReadBodyError::Lost(error) => unreachable(error),
        ReadBodyError::TooLong { .. } => CallFault::Other("the answer is too long: is `base_url` right?".to_owned()),
    })?;
    Ok(PlatformAnswer { status, headers, body })
}
