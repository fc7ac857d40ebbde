//! Says on the terminal of `nexus up` which accounts on platforms are not read, and why. Otherwise a wrong token would show
//! only to those who ask for it (`nexus channel list`).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use shared::bus::Bus;
use shared::clock::pause;
use shared::platform::accounts::is_platform;
use shared::process::HealthPart;
use shared::process::status::{ReplicaStatus, hear_replicas};

use super::supervise::{log_file, say};

/// Service that reads accounts.
const READER: &str = "adapter-svc";
/// Longest wait for the replicas' answers.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two looks at the beginning, and the number of those.
const FIRST_EVERY: Duration = Duration::from_secs(2);
const FIRST_LOOKS: u32 = 30;
/// Pause between two looks later.
const LATER_EVERY: Duration = Duration::from_secs(30);
/// Number of looks in a row that must find an account unwell: a call that has failed once is repeated.
const SAID_AFTER: u32 = 2;

/// Looks at the accounts again and again over `bus`, and writes their changes to the terminal and to the log in `directory`.
/// `None` = there is nothing to look at.
pub(super) async fn watch_accounts(bus: Option<Bus>, directory: &Path) -> Infallible {
    let Some(bus) = bus else {
        return std::future::pending().await;
    };

    let log = log_file(directory);
    let (mut news, mut looks) = (AccountNews::default(), 0_u32);
    loop {
        pause(if looks < FIRST_LOOKS { FIRST_EVERY } else { LATER_EVERY }).await;
        looks = looks.saturating_add(1);
        // That a process is gone is said elsewhere.
        let Ok(heard) = hear_replicas(&bus, PATIENCE).await else {
            continue;
        };
        for line in news.take(&heard.replicas) {
            say(&log, &line);
        }
    }
}

/// Decides which news of accounts are printed.
#[derive(Debug, Default)]
struct AccountNews {
    /// Number of looks in a row that found the account unwell, by account.
    unwell: BTreeMap<String, u32>,
}

impl AccountNews {
    /// Takes in the reports of `replicas`; returns the lines to print.
    fn take(&mut self, replicas: &[ReplicaStatus]) -> Vec<String> {
        let mut states: BTreeMap<&str, &HealthPart> = BTreeMap::new();
        let readers = replicas.iter().filter(|replica| replica.service == READER);
        for (name, part) in readers.flat_map(|replica| &replica.parts) {
            let is_account = name.split_once('/').is_some_and(|(channel, _)| is_platform(channel));
            // Of several replicas, one that reports a fault counts.
            let is_newer = states.get(name.as_str()).is_none_or(|known| is_well(known));
            if is_account && is_newer {
                states.insert(name, part);
            }
        }
        let lines = states.into_iter().filter_map(|(name, part)| self.note(name, part));
        lines.collect()
    }

    fn note(&mut self, name: &str, part: &HealthPart) -> Option<String> {
        let looks = self.unwell.entry(name.to_owned()).or_default();
        // The platform's text must not break the line.
        let detail = part.detail.replace(char::is_control, " ");
        if is_well(part) {
            let was_said = std::mem::take(looks) >= SAID_AFTER;
            return was_said.then(|| format!("{name}: {detail}"));
        }
        *looks = looks.saturating_add(1);
        // A part about a piece of an account has its name and a word: `slack/main token`.
        let account = name.split(' ').next().unwrap_or(name);
        (*looks == SAID_AFTER).then(|| format!("{name}: {detail}\n  `nexus channel check {account}` asks the platform"))
    }
}

fn is_well(part: &HealthPart) -> bool {
    part.ok && !part.degraded
}

#[cfg(test)]
mod tests {
    use shared::model::time::UnixMillis;

    use super::*;

    fn replica(service: &str, parts: &[(&str, bool, &str)]) -> ReplicaStatus {
        let part = |&(name, degraded, detail): &(&str, bool, &str)| {
            let part = HealthPart {
                ok: true,
                degraded,
                detail: detail.to_owned(),
            };
            (name.to_owned(), part)
        };
        ReplicaStatus {
            service: service.to_owned(),
            instance: "a".to_owned(),
            version: String::new(),
            pid: 1,
            now: UnixMillis(1),
            ready: true,
            parts: parts.iter().map(part).collect(),
            lost: None,
            metrics: BTreeMap::new(),
        }
    }

    #[test]
    fn an_account_that_stays_unwell_is_said_once_and_that_it_is_well_again() {
        let mut news = AccountNews::default();
        let refused = replica(READER, &[("telegram/main", true, "stopped: the token is not accepted")]);
        let said = "telegram/main: stopped: the token is not accepted\n  `nexus channel check telegram/main` asks the platform";
        let looks: Vec<Vec<String>> = (0..4).map(|_| news.take(std::slice::from_ref(&refused))).collect();
        assert_eq!(looks, [vec![], vec![said.to_owned()], vec![], vec![]]);

        let reads = replica(READER, &[("telegram/main", false, "polling as @x")]);
        assert_eq!(
            news.take(std::slice::from_ref(&reads)),
            ["telegram/main: polling as @x"]
        );
        assert_eq!(news.take(std::slice::from_ref(&reads)), Vec::<String>::new());
        // A single failure is not news, and neither is a look at which no replica answers.
        assert_eq!(news.take(&[refused]), Vec::<String>::new());
        assert_eq!(news.take(&[reads]), Vec::<String>::new());
        assert_eq!(news.take(&[]), Vec::<String>::new());
    }

    #[test]
    fn what_is_wrong_with_an_accounts_token_names_the_account_to_the_command() {
        let mut news = AccountNews::default();
        let failing = [replica(READER, &[("slack/main token", true, "not renewed")])];
        assert_eq!(news.take(&failing), Vec::<String>::new());
        let said = "slack/main token: not renewed\n  `nexus channel check slack/main` asks the platform";
        assert_eq!(news.take(&failing), [said]);
    }

    #[test]
    fn of_two_replicas_the_one_counts_that_says_what_is_wrong_and_other_parts_do_not() {
        let replicas = [
            replica(
                READER,
                &[("slack/main", true, "failing:\nforged"), ("spool", true, "full")],
            ),
            replica(READER, &[("slack/main", false, "another replica reads it")]),
            replica("delivery-svc", &[("discord/main", true, "no")]),
        ];
        let mut news = AccountNews::default();
        assert_eq!(news.take(&replicas), Vec::<String>::new());
        let said = news.take(&replicas);
        assert!(
            said.len() == 1 && said[0].starts_with("slack/main: failing: forged\n"),
            "{said:?}"
        );
    }
}
