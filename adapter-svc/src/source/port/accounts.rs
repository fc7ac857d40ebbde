//! The accounts that this replica reads: a lease and a task for each.

use std::sync::Arc;
use std::time::Duration;

use shared::bus::{AccountHold, AccountLease, AccountLeases};
use shared::clock::pause;
use shared::error_chain::describe_error;
use shared::process::ShutdownSignal;
use tokio::task::{JoinHandle, JoinSet};

use super::event_store::SinkContext;
use super::sink::{SourceSink, report_account};
use super::{Source, SourceEnd};

/// Interval in which a lease that another replica holds is asked for.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// Interval in which it is looked whether a lease is still held.
const LOOK_EVERY: Duration = Duration::from_millis(900);
/// Wait before a source is run again that was fenced, or that panicked.
const RUN_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// Starts a task for each of `sources`, which competes for its account with the other replicas. `instance` is the name
/// of this replica. The tasks end at `shutdown`.
#[must_use]
pub fn start_sources(
    sources: Vec<Arc<dyn Source>>,
    context: &SinkContext,
    instance: &str,
    shutdown: &ShutdownSignal,
) -> Vec<JoinHandle<()>> {
    if sources.is_empty() {
        return Vec::new();
    }

    let leases = AccountLeases::watch(&context.bus, instance.to_owned(), Arc::clone(&context.clock));
    let start = |source: Arc<dyn Source>| {
        let lease = leases.of_account(source.channel(), source.account());
        let keeper = AccountKeeper {
            source,
            context: context.clone(),
            lease,
            is_stopped: false,
            shutdown: shutdown.clone(),
        };
        tokio::spawn(keeper.keep())
    };

    sources.into_iter().map(start).collect()
}

/// The account of one source.
struct AccountKeeper {
    source: Arc<dyn Source>,
    context: SinkContext,
    lease: AccountLease,
    /// Whether the source stopped when it was run last, and an operator must do something.
    is_stopped: bool,
    shutdown: ShutdownSignal,
}

/// The way in which a hold of an account ended.
#[derive(Debug, Clone, Copy)]
enum HoldEnd {
    /// The lease is lost, or the source could not go on and may be run again at once.
    Lost,
    /// The source stopped. It is tried again after the time; `None` = at the next start.
    Stopped { again: Option<Duration> },
}

impl AccountKeeper {
    /// Competes for the account, and runs its source while this replica holds it.
    async fn keep(mut self) {
        let stopped = metrics::gauge!("nexus_source_stopped_accounts", "source" => self.source.channel());
        stopped.increment(0.0);

        while !self.shutdown.is_requested() {
            match self.lease.hold().await {
                Ok(Some(hold)) => {
                    self.is_stopped = match self.run_while_held(hold).await {
                        HoldEnd::Lost => false,
                        HoldEnd::Stopped { again } => {
                            // Another replica may have the new token that this one waits for.
                            self.lease.give_back().await;
                            stopped.increment(1.0);
                            self.wait_stopped(again).await;
                            stopped.decrement(1.0);
                            true
                        }
                    };
                }
                Ok(None) => {
                    self.is_stopped = false;
                    self.report(Ok("another replica reads it"));
                }
                Err(error) => {
                    tracing::debug!(account = self.source.account(), %error, "failed to ask for the lease of an account");
                    self.report(Err("its lease cannot be asked for"));
                }
            }

            tokio::select! {
                () = self.shutdown.requested() => {}
                () = pause(ASK_EVERY) => {}
            }
        }

        self.lease.give_back().await;
    }

    /// Waits until an account that stopped is tried again; `None` = not before the next start.
    async fn wait_stopped(&self, again: Option<Duration>) {
        let waited = async {
            match again {
                Some(again) => pause(again).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.shutdown.requested() => {}
            () = waited => {}
        }
    }

    /// Runs the source until it stops, the lease is lost or the service stops.
    async fn run_while_held(&mut self, hold: AccountHold) -> HoldEnd {
        // Dropped with this future, and the call of the platform that is under way with it.
        let mut tasks = JoinSet::new();
        // An account that stopped is not called sound before a call has succeeded.
        if !self.is_stopped {
            self.report(Ok("this replica reads it"));
        }
        let mut next_run = Some(Duration::ZERO);

        let end = loop {
            let wait = next_run.unwrap_or(LOOK_EVERY).min(LOOK_EVERY);
            tokio::select! {
                ended = tasks.join_next(), if !tasks.is_empty() => match self.take_end(ended) {
                    HoldEnd::Lost => next_run = Some(RUN_AGAIN_AFTER),
                    stopped @ HoldEnd::Stopped { .. } => break stopped,
                },
                () = self.shutdown.requested() => break HoldEnd::Lost,
                () = pause(wait) => {}
            }

            match self.lease.hold().await {
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break HoldEnd::Lost,
            }

            // A run that waits for its time is counted down by the ticks.
            if let (true, Some(left)) = (tasks.is_empty(), next_run) {
                next_run = Some(left.saturating_sub(wait)).filter(|left| !left.is_zero());
                if next_run.is_none() {
                    tasks.spawn(run_source(Arc::clone(&self.source), self.context.clone(), hold.clone()));
                }
            }
        };

        tasks.shutdown().await;
        end
    }

    /// Returns whether a source that `ended` stopped; reports and logs its reason.
    fn take_end(&self, ended: Option<Result<SourceEnd, tokio::task::JoinError>>) -> HoldEnd {
        match ended {
            Some(Ok(SourceEnd::Stopped { reason, again })) => {
                let (channel, account) = (self.source.channel(), self.source.account());
                tracing::error!(channel, account, reason, "account stopped");
                self.report(Err(&format!("stopped: {reason}")));
                HoldEnd::Stopped { again }
            }
            Some(Ok(SourceEnd::Fenced)) | None => HoldEnd::Lost,
            Some(Err(error)) => {
                tracing::error!(account = self.source.account(), %error, "source of an account died");
                HoldEnd::Lost
            }
        }
    }

    fn report(&self, state: Result<&str, &str>) {
        if !self.source.is_reported() {
            return;
        }
        let (channel, account) = (self.source.channel(), self.source.account());
        report_account(&self.context.health, channel, account, state);
    }
}

/// Opens the sink and runs `source`, at most as long as the account is held.
async fn run_source(source: Arc<dyn Source>, context: SinkContext, hold: AccountHold) -> SourceEnd {
    let run = async {
        let opened = SourceSink::open(context, source.as_ref(), hold.clone()).await;
        match opened {
            Ok((sink, from)) => source.run(from, &sink).await,
            Err(error) => {
                tracing::warn!(
                    account = source.account(),
                    error = describe_error(&error),
                    "failed to open a watermark"
                );
                SourceEnd::Fenced
            }
        }
    };

    tokio::select! {
        end = run => end,
        () = hold.wait_ended() => SourceEnd::Fenced,
    }
}
