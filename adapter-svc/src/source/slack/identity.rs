//! Identity of an account to which Slack posts: asked of Slack at start, and again when a payload says that the app's
//! rights have changed.

use std::time::Duration;

use shared::clock::{SharedIds, pause};
use shared::platform::slack::{SLACK, SlackAccount};
use shared::process::{Health, ShutdownSignal};
use tokio::sync::{Notify, watch};

use super::SlackBot;
use super::client::{WebCallError, identify_account};
use crate::source::port::sink::report_account;

/// Keeps an account's identity known.
pub struct IdentityKeeper {
    /// Name of the account.
    pub name: String,
    /// Account.
    pub account: SlackAccount,
    /// Client of the calls.
    pub http: reqwest::Client,
    /// Where the identity is told.
    pub known: watch::Sender<Option<SlackBot>>,
    /// Woken if the app's rights may have changed.
    pub recheck: std::sync::Arc<Notify>,
    /// State reported by `/readyz`.
    pub health: Health,
    /// Source of randomness for waits.
    pub ids: SharedIds,
}

// By hand: the account's secrets must not be printed.
impl std::fmt::Debug for IdentityKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IdentityKeeper({})", self.name)
    }
}

impl IdentityKeeper {
    /// Keeps the identity known until `shutdown`.
    pub async fn keep(self, shutdown: ShutdownSignal) {
        let (mut failures, mut renewed) = (0, self.account.token.watch());
        while !shutdown.is_requested() {
            let wait = match identify_account(&self.http, &self.name, &self.account).await {
                Ok(known) => {
                    failures = 0;
                    self.report(Ok(&format!("receiving as {}", known.shown)));
                    self.known.send_replace(Some(known.bot));
                    None
                }
                Err(error) => {
                    failures += 1;
                    let account = &self.name;
                    tracing::warn!(account, failures, %error, "failed to identify an account of Slack");
                    metrics::counter!("nexus_source_failures_total", "source" => SLACK).increment(1);
                    self.report(Err(&self.describe(&error)));
                    Some(self.wait_after(&error, failures))
                }
            };

            tokio::select! {
                () = shutdown.requested() => {}
                () = self.recheck.notified() => {}
                _ = renewed.changed() => {}
                () = async { match wait { Some(wait) => pause(wait).await, None => std::future::pending().await } } => {}
            }
        }
    }

    fn describe(&self, error: &WebCallError) -> String {
        match error {
            WebCallError::Unauthorized(_) => format!("stopped: {error}"),
            WebCallError::Limited(_) | WebCallError::Refused(_) | WebCallError::Unreachable(_) => {
                match *self.known.borrow() {
                    Some(_) => format!("receiving; failed to ask for its state: {error}"),
                    None => format!("failing: {error}"),
                }
            }
        }
    }

    fn wait_after(&self, error: &WebCallError, failures: u32) -> Duration {
        error.wait(failures, self.ids.draw_jitter())
    }

    fn report(&self, state: Result<&str, &str>) {
        report_account(&self.health, SLACK, &self.name, state);
    }
}
