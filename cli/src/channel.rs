//! `nexus channel`: the accounts on platforms, and the strangers who may write to them.

mod check;
mod discord;
mod finding;
mod pairings;
mod platform_call;
mod slack;
mod state;
mod telegram;

use anyhow::{Context as _, Result};
use shared::platform::outline::{AccountOutline, outline_accounts};
use shared::process::config::CommonConfig;

use self::state::{AccountState, AccountStates};
use crate::args::{ChannelAction, Common};
use crate::connect::{connect_bus, load_document};
use crate::exit::{Exit, ExitContext as _, failure};
use crate::output::{Cell, Column, Table, View};

/// Runs the command.
///
/// # Errors
/// Fails if `channels.yaml` or a service cannot be read, or if the account or sender does not exist.
pub async fn execute(common: &Common, action: ChannelAction) -> Result<()> {
    match action {
        ChannelAction::List => list_accounts(common).await,
        ChannelAction::Show(name) => show_account(common, &AccountId::parse(&name.account)?).await,
        ChannelAction::Check(name) => check::check_account(common, &AccountId::parse(&name.account)?).await,
        ChannelAction::Pairings { account } => {
            let account = account.as_deref().map(AccountId::parse).transpose()?;
            pairings::list_pairings(common, account.as_ref()).await
        }
        ChannelAction::Pair { account, code } => {
            pairings::grant_pairing(common, AccountId::parse(&account.account)?, code).await
        }
        ChannelAction::Unpair { account, sender } => {
            pairings::withdraw_pairing(common, AccountId::parse(&account.account)?, sender).await
        }
    }
}

/// The account that a command names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AccountId {
    pub(crate) channel: String,
    pub(crate) name: String,
}

impl AccountId {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let parsed = text
            .split_once('/')
            .filter(|(channel, name)| !channel.is_empty() && !name.is_empty());
        let Some((channel, name)) = parsed else {
            let text = format!("`{text}`: expected CHANNEL/NAME, as in telegram/main");
            return Err(failure(Exit::Usage, text));
        };
        Ok(Self {
            channel: channel.to_owned(),
            name: name.to_owned(),
        })
    }
}

impl std::fmt::Display for AccountId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.channel, self.name)
    }
}

/// Returns the content of `channels.yaml`; empty if the configuration names no file.
fn read_channels_file(common: &Common) -> Result<String> {
    let (config, _) = CommonConfig::load(&load_document(common));
    let path = config.files.channels;
    if path.is_empty() {
        return Ok(String::new());
    }
    let read = std::fs::read_to_string(&path);
    read.with_context(|| format!("files.channels: failed to read {path}"))
        .exit(Exit::Usage)
}

/// Returns the accounts in `channels.yaml`.
///
/// # Errors
/// Fails if the file cannot be read.
pub(crate) fn configured_accounts(common: &Common) -> Result<Vec<AccountOutline>> {
    let read = outline_accounts(&read_channels_file(common)?);
    read.context("files.channels: not readable; see `nexus config check`")
        .exit(Exit::Usage)
}

async fn list_accounts(common: &Common) -> Result<()> {
    let configured = configured_accounts(common)?;
    let bus = connect_bus(common).await?;
    let states = AccountStates::read(&bus).await?.of_accounts(configured);

    let columns = [
        Column::id("ACCOUNT"),
        Column::text("DIRECT"),
        Column::text("GROUPS").extra(),
        Column::text("READ BY").extra(),
        Column::time("READ UNTIL"),
        Column::text("SENDS"),
        Column::prose("RECEIVES"),
    ];
    let table = Table::new(&columns).with(&states, |state| {
        [
            state.account.clone().into(),
            state.direct.into(),
            state.groups.join(", ").into(),
            state.holder.as_ref().into(),
            state.read_until.into(),
            state.sends().into(),
            state.receives().into(),
        ]
    });
    View::list(&states, table)?.show(common)
}

async fn show_account(common: &Common, id: &AccountId) -> Result<()> {
    let mut configured = configured_accounts(common)?;
    configured.retain(|one| one.channel == id.channel && one.name == id.name);
    let bus = connect_bus(common).await?;
    let states = AccountStates::read(&bus).await?.of_accounts(configured);

    let name = id.to_string();
    let Some(state) = states.into_iter().find(|state| state.account == name) else {
        let text = format!("no account `{name}`; `nexus channel list` shows those that are configured");
        return Err(failure(Exit::NotFound, text));
    };
    View::one(&state.account, &state)?
        .fields(state_fields(&state))
        .show(common)
}

/// Returns the fields about one account that people read.
fn state_fields(state: &AccountState) -> Vec<(&'static str, Cell)> {
    vec![
        ("account", state.account.clone().into()),
        ("direct", state.direct.into()),
        ("allow", state.allowed.map(|allowed| format!("{allowed} users")).into()),
        ("groups", state.groups.join(", ").into()),
        ("receives", state.receives().into()),
        ("read by", state.holder.as_ref().into()),
        ("read until", state.read_until.into()),
        ("sends", state.sends().into()),
        ("refused since", state.refused_since.into()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_a_channel_and_a_name() {
        let id = AccountId::parse("telegram/main").expect("an account");
        assert_eq!((id.channel.as_str(), id.name.as_str()), ("telegram", "main"));
        for wrong in ["telegram", "telegram/", "/main", ""] {
            let error = AccountId::parse(wrong).expect_err(wrong);
            assert_eq!(Exit::of_error(&error), Exit::Usage, "{wrong}");
        }
    }
}
