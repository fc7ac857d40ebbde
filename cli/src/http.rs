//! The HTTP client of all commands.

use std::time::Duration;

use anyhow::{Context as _, Result};

/// Returns a client with time-outs.
///
/// # Errors
/// Fails if the system has no TLS or resolver for the client.
pub fn client() -> Result<reqwest::Client> {
    let builder = reqwest::Client::builder()
        .connect_timeout(Duration::from_secs(5))
        .timeout(Duration::from_secs(60));
    builder.build().context("failed to create an HTTP client")
}
