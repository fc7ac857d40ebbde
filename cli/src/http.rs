//! The one way in which commands speak HTTP.

use std::time::Duration;

use anyhow::{Context as _, Result};

/// A client that gives up.
///
/// # Errors
/// Fails if the system has no TLS or resolver for it.
pub fn client() -> Result<reqwest::Client> {
    let builder = reqwest::Client::builder()
        .connect_timeout(Duration::from_secs(5))
        .timeout(Duration::from_secs(60));
    builder.build().context("make an HTTP client")
}
