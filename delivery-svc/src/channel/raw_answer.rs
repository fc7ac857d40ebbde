//! Calls of platforms whose answers must be read: the answer as it arrived, within bounds.

use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};
use shared::clock::run_for;
use shared::platform::http_answer::read_start;

use super::http::{failed_outcome, late_outcome};
use crate::attempt::CallOutcome;

/// Maximum length of the answer to a call that sends or changes, in bytes; a longer one is no platform's.
pub const ANSWER_BYTES: usize = 1_024 * 1_024;

/// Maximum length of a page of a search, in bytes: 50 messages of others with all that they embed.
pub const PAGE_BYTES: usize = 16 * 1_024 * 1_024;

/// An answer as it arrived.
#[derive(Debug)]
pub struct RawAnswer {
    /// Status.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// Body, or its beginning.
    pub body: Vec<u8>,
}

impl RawAnswer {
    /// Returns the value of the header `Retry-After`.
    #[must_use]
    pub fn retry_after(&self) -> Option<&str> {
        self.headers.get(RETRY_AFTER)?.to_str().ok()
    }

    /// Returns an answer that arrived with `retry_after` alone.
    #[cfg(test)]
    pub(super) fn with_retry_after(status: u16, retry_after: Option<&str>, body: &str) -> Self {
        let value = retry_after.map(|value| (RETRY_AFTER, value.parse().expect("a header's value")));
        Self {
            status,
            headers: value.into_iter().collect(),
            body: body.as_bytes().to_vec(),
        }
    }
}

/// Makes the call `request` and returns its answer, of which at most `bound` bytes are read, or the outcome if there was
/// none within `whole`.
///
/// # Errors
/// Returns the outcome of a call without an answer. Its description has no URL.
pub async fn call_for_answer(
    request: reqwest::RequestBuilder,
    whole: Duration,
    bound: usize,
) -> Result<RawAnswer, CallOutcome> {
    let answered = async {
        let mut response = request.send().await?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();

        let mut body = Vec::new();
        read_start(&mut response, &mut body, bound).await?;

        Ok(RawAnswer { status, headers, body })
    };

    // The answer is polled first, and time for which this process was stopped does not count: the answer may already
    // be in the socket.
    tokio::select! {
        biased;
        answered = answered => answered.map_err(failed_outcome),
        () = run_for(whole) => Err(late_outcome()),
    }
}

/// Slowest upload that is waited for, in bytes a second.
const UPLOAD_RATE: u64 = 256 * 1024;

/// Returns the maximum time of a call that sends `bytes`, if another one may take `whole`.
pub fn upload_time(whole: Duration, bytes: u64) -> Duration {
    whole + Duration::from_secs(bytes.div_ceil(UPLOAD_RATE))
}

/// Name of this program, as platforms that ask for no other form see it.
pub const USER_AGENT: &str = concat!("nexus/", env!("CARGO_PKG_VERSION"));

/// Opens a client for calls with a platform's token, which gives `user_agent` as its name.
///
/// # Errors
/// Returns the HTTP client's error if it cannot be set up, for example without TLS.
pub fn open_client(connect: Duration, user_agent: &str) -> Result<reqwest::Client, reqwest::Error> {
    reqwest::Client::builder()
        .user_agent(user_agent)
        .connect_timeout(connect)
        // The token would go to another server.
        .redirect(reqwest::redirect::Policy::none())
        .build()
}
