//! `nexus channel check`: asks the platform itself about an account. Nothing is changed there.

use anyhow::{Context as _, Result};
use shared::platform::accounts::read_platforms;
use shared::platform::discord::DISCORD;
use shared::platform::slack::SLACK;
use shared::platform::telegram::TELEGRAM;

use super::discord::check_discord;
use super::finding::CheckFinding;
use super::slack::check_slack;
use super::telegram::check_telegram;
use super::{AccountId, read_channels_file};
use crate::args::Common;
use crate::exit::{Exit, ExitContext as _, failure};
use crate::output::View;

/// Runs the command.
///
/// # Errors
/// Fails if there is no such account, or if the account cannot work as configured.
pub(super) async fn check_account(common: &Common, id: &AccountId) -> Result<()> {
    let accounts = read_platforms(&read_channels_file(common)?);
    let accounts = accounts.context("files.channels: has faults").exit(Exit::Usage)?;
    let (telegram, discord, slack) = (
        accounts.telegram.accounts,
        accounts.discord.accounts,
        accounts.slack.accounts,
    );
    let missing = || {
        let text = format!("no account `{id}` in files.channels");
        failure(Exit::NotFound, text)
    };

    let findings = match id.channel.as_str() {
        TELEGRAM => check_telegram(telegram.get(&id.name).ok_or_else(missing)?).await?,
        DISCORD => check_discord(discord.get(&id.name).ok_or_else(missing)?).await?,
        SLACK => check_slack(slack.get(&id.name).ok_or_else(missing)?).await?,
        other => {
            let text =
                format!("accounts of `{other}` cannot be checked: only those of {TELEGRAM}, {DISCORD} and {SLACK} can");
            return Err(failure(Exit::Refused, text));
        }
    };
    show_findings(common, id, &findings)
}

fn show_findings(common: &Common, id: &AccountId, findings: &[CheckFinding]) -> Result<()> {
    let mut view = View::of(findings)?.ids(findings.iter().map(|finding| finding.what.to_owned()));
    for finding in findings {
        let mark = match (finding.ok, finding.degraded) {
            (false, _) => "BAD ",
            (true, true) => "part",
            (true, false) => "ok  ",
        };
        view = view.entry(format!("{mark} {:<10}", finding.what), &finding.detail);
    }
    view.show(common)?;

    match findings.iter().filter(|finding| !finding.ok).count() {
        0 => Ok(()),
        bad => {
            let text = format!("{id} cannot work as configured: {bad} faults");
            Err(failure(Exit::No, text))
        }
    }
}
