//! Tells running servers which users there are.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::future::join_all;
use serde::Deserialize;
use shared::bus::{Bus, NatsConfig};
use shared::wire::headers::Headers;
use shared::wire::rights::BusRole;

use super::folder::{AuthFolder, credentials_path};
use crate::complain;
use crate::exit::{Exit, failure};

/// Subject on which servers take accounts' tokens.
const UPDATE: &str = "$SYS.REQ.CLAIMS.UPDATE";
/// Longest wait for a server's answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for which servers may answer what they know.
const ASKED_FOR: Duration = Duration::from_millis(900);
/// Maximum number of times that the servers are asked or told, while others tell them too.
const ROUNDS: usize = 8;

#[derive(Deserialize)]
struct UpdateAnswer {
    data: Option<TakenToken>,
    error: Option<RefusedToken>,
}

#[derive(Deserialize)]
struct TakenToken {
    code: u16,
}

#[derive(Deserialize)]
struct RefusedToken {
    description: String,
}

/// Tells the servers of `config` the accounts' tokens of `folder`. They keep them, and end the connections of users
/// that are refused from then on. Tokens from another copy of the folder stay in force. `now` is in seconds since 1970.
///
/// # Errors
/// Fails if no server answers, or if one refuses a token.
pub async fn push_accounts(folder: &mut AuthFolder, config: &NatsConfig, now: i64) -> Result<()> {
    let bus = connect(folder, config).await?;

    // Servers take the token that comes last. One that another copy pushed meanwhile is found by asking twice, some
    // time apart.
    let mut agreed = 0;
    for _ in 0..ROUNDS {
        if take_over_all(folder, &bus, now).await? {
            agreed += 1;
        } else {
            agreed = 0;
            tell(folder, &bus).await?;
        }
        if agreed == 2 {
            return Ok(());
        }
    }

    let text =
        "the servers do not agree about the accounts: somebody else may be changing them; give the command again";
    Err(failure(Exit::Unreachable, text))
}

/// Takes over what the servers of `config` know of the accounts of `folder`, without telling them anything. If none
/// can be reached, that is said, and nothing is taken over.
///
/// # Errors
/// Fails if the servers answer for other accounts, or if a file cannot be written.
pub(super) async fn ask_servers(folder: &mut AuthFolder, config: &NatsConfig, now: i64) -> Result<()> {
    match connect(folder, config).await {
        Ok(bus) => take_over_all(folder, &bus, now).await.map(drop),
        Err(error) => {
            complain!("the servers were not asked whether the users were changed elsewhere: {error:#}");
            Ok(())
        }
    }
}

async fn connect(folder: &AuthFolder, config: &NatsConfig) -> Result<Bus> {
    let credentials = credentials_path(folder.path(), BusRole::System.name());
    let config = NatsConfig {
        credentials: credentials.display().to_string(),
        ..config.clone()
    };
    Ok(Bus::connect(&config, "nexus-auth").await?)
}

/// Takes over what the servers know of all accounts. Returns whether each of them has the folder's own tokens.
async fn take_over_all(folder: &mut AuthFolder, bus: &Bus, now: i64) -> Result<bool> {
    let accounts = folder.registry().account_keys();
    let asked = accounts.iter().map(|(account, public)| async move {
        let subject = format!("$SYS.REQ.ACCOUNT.{public}.CLAIMS.LOOKUP");
        // Each server answers with its own copy, and one of them may be behind.
        let answers = bus.gather_answers(&subject, ASKED_FOR).await;
        (*account, answers)
    });

    let mut is_known = true;
    for (account, answers) in join_all(asked).await {
        let answers = answers.map_err(anyhow::Error::msg);
        let answers = answers.context("failed to ask the servers for their accounts")?;
        // A server has nothing to say of an account that it does not know.
        is_known &= !answers.is_empty();
        for answer in &answers {
            let token = std::str::from_utf8(answer).context("the server's answer cannot be read")?;
            folder.take_over(account, token, now)?;
        }
        let own = folder.registry().accounts.get(&account);
        is_known &= own.is_some_and(|own| answers.iter().all(|answer| answer == own.token.as_bytes()));
    }

    Ok(is_known)
}

/// Tells the servers every account's token.
async fn tell(folder: &AuthFolder, bus: &Bus) -> Result<()> {
    for (account, record) in &folder.registry().accounts {
        let name = account.name();
        let token = record.token.clone().into_bytes().into();
        let answer = bus.request_bytes(UPDATE, &Headers::new(), token, PATIENCE).await;
        let answer = answer.with_context(|| format!("failed to tell the servers of account {name}"))?;

        let said: UpdateAnswer =
            serde_json::from_slice(&answer.payload).context("the server's answer cannot be read")?;
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
