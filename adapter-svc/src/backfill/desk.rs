//! `nexus.svc.backfill.{start,list,show,stop}`: the operator's orders, answered by any replica. The server decides
//! which users may ask.
//!
//! An order is written to `AUDIT` first. The replica that reads the job finds it in KV `backfills`.

use shared::bus::{Bus, CasError, Kv, OutgoingMessage, PublishError, ReadStreamError, ServiceSpec};
use shared::clock::{SharedClock, SharedIds};
use shared::error_chain::describe_error;
use shared::model::time::UnixMillis;
use shared::wire::operator::backfill::{
    BackfillChange, BackfillJob, BackfillList, BackfillRecord, BackfillState, ListBackfills, ShowBackfill,
    StartBackfill, StopBackfill, backfill_key,
};
use shared::wire::operator::check_speaker;
use shared::wire::subject::backfill_audit;
use shared::wire::topology::buckets;
use shared::wire::watermark::{SourceWatermark, watermark_key};

use super::accounts::{BackfillAccounts, HistoryAccess};
use super::job::{StartStep, check_order, end_job, start_job};
use crate::source::port::history::AccountHistory;

/// The reason why an order about a job fails.
#[derive(Debug, thiserror::Error)]
pub enum BackfillError {
    /// The account is not configured.
    #[error("no account `{channel}/{account}` here; `nexus channel list` shows those that are configured")]
    UnknownAccount {
        /// Channel of the account.
        channel: String,
        /// Name of the account.
        account: String,
    },
    /// The platform has no histories for bots.
    #[error("{channel}/{account} has no history: {why}")]
    NoHistory {
        /// Channel of the account.
        channel: String,
        /// Name of the account.
        account: String,
        /// Reason.
        why: &'static str,
    },
    /// The account has no job.
    #[error("no backfill of `{0}`; `nexus backfill start` begins one")]
    Absent(String),
    /// The request is wrong.
    #[error("{0}")]
    Wrong(String),
    /// Another job of the account runs.
    #[error(
        "another backfill of `{0}` is running; `nexus backfill show` says how far it is, `nexus backfill stop` ends it"
    )]
    Busy(String),
    /// The job changes at this moment.
    #[error("the backfill was changed meanwhile; ask again")]
    Changed,
    /// The bucket cannot be read.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    /// The bucket cannot be written.
    #[error("failed to write the backfill: {0}")]
    Write(CasError),
    /// The record cannot be written.
    #[error("failed to write the record: {0}")]
    Record(#[from] PublishError),
}

impl From<CasError> for BackfillError {
    fn from(error: CasError) -> Self {
        match error {
            CasError::Conflict { .. } => Self::Changed,
            CasError::Publish(_) | CasError::Read(_) => Self::Write(error),
        }
    }
}

/// Number of times that an order to stop is tried again, because the job's reader has written a position meanwhile.
const MAX_TRIES: u32 = 20;

/// Time for which a platform may bring again what was not confirmed to it, in milliseconds.
const REPEATED_MS: i64 = 5 * 60_000;

/// Where orders are taken.
#[derive(Debug, Clone)]
struct BackfillDesk {
    bus: Bus,
    jobs: Kv<BackfillJob>,
    accounts: BackfillAccounts,
    clock: SharedClock,
    ids: SharedIds,
}

/// Returns the service over `bus`, for `accounts`.
#[must_use]
pub fn service_spec(bus: &Bus, accounts: &BackfillAccounts, clock: &SharedClock, ids: &SharedIds) -> ServiceSpec {
    let starting = BackfillDesk {
        jobs: bus.kv(buckets::BACKFILLS),
        bus: bus.clone(),
        accounts: accounts.clone(),
        clock: clock.clone(),
        ids: ids.clone(),
    };
    let (listing, showing, stopping) = (starting.clone(), starting.clone(), starting.clone());
    ServiceSpec::new("backfill", "what accounts' conversations kept: start, list, show, stop")
        .endpoint("start", move |order: StartBackfill| {
            let desk = starting.clone();
            async move { desk.start(&order).await.map_err(|error| refusal(&error)) }
        })
        .endpoint("list", move |ListBackfills {}| {
            let desk = listing.clone();
            async move { desk.list().await.map_err(|error| refusal(&error)) }
        })
        .endpoint("show", move |request: ShowBackfill| {
            let desk = showing.clone();
            async move { desk.show(&request).await.map_err(|error| refusal(&error)) }
        })
        .endpoint("stop", move |order: StopBackfill| {
            let desk = stopping.clone();
            async move { desk.stop(&order).await.map_err(|error| refusal(&error)) }
        })
}

impl BackfillDesk {
    async fn start(&self, order: &StartBackfill) -> Result<BackfillJob, BackfillError> {
        check_speaker(&order.by).map_err(BackfillError::Wrong)?;
        let (channel, account) = (order.channel.clone(), order.account.clone());
        let key = backfill_key(&channel, &account);
        let history = match self.accounts.access(&key) {
            Some(HistoryAccess::Readable(history)) => history,
            Some(HistoryAccess::Absent(why)) => return Err(BackfillError::NoHistory { channel, account, why }),
            None => return Err(BackfillError::UnknownAccount { channel, account }),
        };
        let now = self.clock.now();
        check_order(order, |id| history.is_conversation(id), now).map_err(BackfillError::Wrong)?;
        let latest = self.latest_of(history.as_ref(), now).await?;
        if order.until.unwrap_or(order.since) > latest {
            let until = latest.to_rfc3339();
            let words =
                format!("the account merges texts (`debounce_ms`): expected times up to {until}, all stored by then");
            return Err(BackfillError::Wrong(words));
        }

        let (last, revision) = self.jobs.find(&key).await?;
        let job = match start_job(order, last, self.ids.ulid(), now) {
            StartStep::Begin(job) => BackfillJob {
                until: job.until.min(latest),
                ..job
            },
            StartStep::Known(job) => return Ok(job),
            StartStep::Busy => return Err(BackfillError::Busy(format!("{channel}/{account}"))),
        };
        self.record(&job, BackfillChange::Started, &order.by).await?;
        self.jobs.update(&key, &job, revision).await?;
        Ok(job)
    }

    /// Returns the time up to which `history` may be read at `now`. Of an account that merges texts, only what its source has
    /// stored is read: a text that was stored alone, and that the source merges with a later one, would hide that one, because
    /// the event of both has its id.
    async fn latest_of(&self, history: &dyn AccountHistory, now: UnixMillis) -> Result<UnixMillis, BackfillError> {
        if !history.merges_texts() {
            return Ok(now);
        }
        let watermarks: Kv<SourceWatermark> = self.bus.kv(buckets::WATERMARKS);
        let key = watermark_key(history.channel(), history.account());
        let found = watermarks.get(&key).await?;
        Ok(found.map_or(now, |found| found.value.complete_until.plus(-REPEATED_MS).min(now)))
    }

    async fn list(&self) -> Result<BackfillList, BackfillError> {
        let entries = self.jobs.entries().await?;
        let mut jobs: Vec<BackfillJob> = entries.into_iter().map(|(_, entry)| entry.value).collect();
        jobs.sort_by(|one, other| (&one.channel, &one.account).cmp(&(&other.channel, &other.account)));
        Ok(BackfillList { jobs })
    }

    async fn show(&self, request: &ShowBackfill) -> Result<BackfillJob, BackfillError> {
        let ShowBackfill { channel, account } = request;
        let found = self.jobs.get(&backfill_key(channel, account)).await?;
        let found = found.map(|entry| entry.value);
        found.ok_or_else(|| BackfillError::Absent(format!("{channel}/{account}")))
    }

    /// Stops the job. One that is over stays as it is.
    async fn stop(&self, order: &StopBackfill) -> Result<BackfillJob, BackfillError> {
        let StopBackfill { channel, account, by } = order;
        check_speaker(by).map_err(BackfillError::Wrong)?;
        let key = backfill_key(channel, account);

        let mut recorded = None;
        for _ in 0..MAX_TRIES {
            let Some(entry) = self.jobs.get(&key).await? else {
                return Err(BackfillError::Absent(format!("{channel}/{account}")));
            };
            let mut job = entry.value;
            if !job.is_running() {
                return Ok(job);
            }
            if recorded != Some(job.id) {
                self.record(&job, BackfillChange::Stopped, by).await?;
                recorded = Some(job.id);
            }

            end_job(&mut job, BackfillState::Stopped, None);
            job.changed_at = self.clock.now();
            match self.jobs.update(&key, &job, entry.revision).await {
                Ok(_) => return Ok(job),
                // Its reader has written a position.
                Err(CasError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(BackfillError::Changed)
    }

    async fn record(&self, job: &BackfillJob, what: BackfillChange, by: &str) -> Result<(), BackfillError> {
        let record = BackfillRecord {
            operation: self.ids.ulid(),
            what,
            job: job.id,
            channel: job.channel.clone(),
            account: job.account.clone(),
            since: job.since,
            until: job.until,
            conversations: job.conversations.clone(),
            by: by.to_owned(),
            at: self.clock.now(),
        };
        let subject = backfill_audit(&job.channel, &job.account);
        let out = OutgoingMessage::new(subject, &record).msg_id(record.operation.to_string());
        self.bus.publish(out).await?;
        let (channel, account) = (&job.channel, &job.account);
        tracing::info!(channel, account, by, ?what, "a backfill is changed by an operator");
        Ok(())
    }
}

/// Returns the status and the text of `error`.
fn refusal(error: &BackfillError) -> (usize, String) {
    let status = match error {
        BackfillError::UnknownAccount { .. } | BackfillError::Absent(_) => 404,
        BackfillError::NoHistory { .. } => 422,
        BackfillError::Wrong(_) => 400,
        BackfillError::Busy(_) | BackfillError::Changed => 409,
        BackfillError::Read(_) | BackfillError::Write(_) | BackfillError::Record(_) => {
            tracing::warn!(error = describe_error(error), "request about a backfill failed");
            503
        }
    };
    (status, error.to_string())
}
