//! Tells running servers which users there are.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use shared::bus::{Bus, NatsConfig};
use shared::wire::headers::Headers;
use shared::wire::rights::BusRole;

use super::folder::{AuthFolder, credentials_path};
use crate::exit::{Exit, failure};

/// Subject on which servers take accounts' tokens.
const UPDATE: &str = "$SYS.REQ.CLAIMS.UPDATE";
/// Longest wait for a server's answer.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
struct Answer {
    data: Option<Taken>,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Taken {
    code: u16,
}

#[derive(Deserialize)]
struct Refusal {
    description: String,
}

/// Tells the servers of `config` the accounts' tokens of `folder`. They keep them, and end the connections of users who
/// are refused from then on.
///
/// # Errors
/// Fails if no server answers, or if one refuses a token.
pub async fn push_accounts(folder: &AuthFolder, config: &NatsConfig) -> Result<()> {
    let credentials = credentials_path(folder.path(), BusRole::System.name());
    let config = NatsConfig {
        credentials: credentials.display().to_string(),
        ..config.clone()
    };

    let bus = Bus::connect(&config, "nexus-auth").await?;
    for (account, record) in &folder.ring().accounts {
        let name = account.name();
        let token = record.token.clone().into_bytes().into();
        let answer = bus.request_bytes(UPDATE, &Headers::new(), token, PATIENCE).await;
        let answer = answer.with_context(|| format!("failed to tell the servers of account {name}"))?;

        let said: Answer = serde_json::from_slice(&answer.payload).context("the server's answer cannot be read")?;
        if said.data.is_none_or(|taken| taken.code != 200) {
            let why = said
                .error
                .map_or_else(|| "no reason".to_owned(), |error| error.description);
            let text = format!("the servers refuse the token of account {name}: {why}");
            return Err(failure(Exit::Refused, text));
        }
    }

    Ok(())
}
