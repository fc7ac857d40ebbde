//! Calls of platforms whose answers must be read: the answer as it arrived, within bounds.

use std::time::Duration;

use reqwest::header::RETRY_AFTER;
use shared::clock::run_for;

use super::http::{failed_outcome, late_outcome};
use crate::attempt::CallOutcome;

/// Maximum length of an answer that is read, in bytes; a longer one is no platform's.
const MAX_ANSWER_BYTES: usize = 1_024 * 1_024;

/// An answer as it arrived.
#[derive(Debug)]
pub struct RawAnswer {
    /// Status.
    pub status: u16,
    /// Value of the header `Retry-After`.
    pub retry_after: Option<String>,
    /// Body, or its beginning.
    pub body: Vec<u8>,
}

/// Makes the call `request` and returns its answer, or the outcome if there was none within `whole`.
///
/// # Errors
/// Returns the outcome of a call without an answer. Its description has no URL.
pub async fn call_for_answer(request: reqwest::RequestBuilder, whole: Duration) -> Result<RawAnswer, CallOutcome> {
    let answered = async {
        let mut response = request.send().await?;
        let status = response.status().as_u16();
        let retry_after = response.headers().get(RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()).map(str::to_owned);

        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            let room = MAX_ANSWER_BYTES.saturating_sub(body.len());
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if room <= chunk.len() {
                break;
            }
        }

        Ok(RawAnswer {
            status,
            retry_after,
            body,
        })
    };

    // The answer is polled first, and time for which this process was stopped does not count: the answer may already
    // be in the socket.
    tokio::select! {
        biased;
        answered = answered => answered.map_err(failed_outcome),
        () = run_for(whole) => Err(late_outcome()),
    }
}

/// Opens a client for calls with a platform's token.
///
/// # Errors
/// Returns the HTTP client's error if it cannot be set up, for example without TLS.
pub fn open_client(connect: Duration) -> Result<reqwest::Client, reqwest::Error> {
    reqwest::Client::builder()
        .user_agent(concat!("nexus/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(connect)
        // The token would go to another server.
        .redirect(reqwest::redirect::Policy::none())
        .build()
}
