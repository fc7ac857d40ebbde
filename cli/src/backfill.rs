//! `nexus backfill`: the operator's orders to adapter-svc about what accounts' conversations kept.

use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::bus::Bus;
use shared::clock::{Clock as _, SystemClock, pause};
use shared::wire::operator::backfill::{
    BackfillJob, BackfillList, BackfillState, ListBackfills, ShowBackfill, StartBackfill, StopBackfill,
};

use crate::args::{BackfillAction, Common, StartBackfillOptions};
use crate::channel::AccountId;
use crate::connect::{Caller, connect_caller};
use crate::exit::{Exit, failure};
use crate::output::{Cell, Column, Table, View};
use crate::service::call_service;
use crate::when::parse_when;

/// Longest time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// Interval in which a backfill that is followed is asked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Longest time without an answer after which a backfill is no longer followed: replicas restart.
const MAX_SILENCE: Duration = Duration::from_secs(60);

/// Runs the command.
///
/// # Errors
/// Fails if adapter-svc does not answer or refuses, or if a backfill that is followed ends before it is done.
pub async fn execute(common: &Common, action: BackfillAction) -> Result<()> {
    match action {
        BackfillAction::Start(options) => start(common, options).await,
        BackfillAction::List => {
            let bus = connect_caller(common).await?.bus;
            let list: BackfillList = ask(&bus, "list", &ListBackfills {}).await?;
            list_jobs(common, &list.jobs)
        }
        BackfillAction::Show { account, follow } => {
            let account = AccountId::parse(&account.account)?;
            let bus = connect_caller(common).await?.bus;
            let job = show(&bus, &account).await?;
            finish(common, &bus, job, follow).await
        }
        BackfillAction::Stop(account) => {
            let account = AccountId::parse(&account.account)?;
            let Caller { bus, name: by } = connect_caller(common).await?;
            let order = StopBackfill {
                channel: account.channel,
                account: account.name,
                by,
            };
            let job: BackfillJob = ask(&bus, "stop", &order).await?;
            show_job(common, &job)
        }
    }
}

async fn ask<Q: Serialize, A: DeserializeOwned>(bus: &Bus, endpoint: &str, question: &Q) -> Result<A> {
    let subject = format!("nexus.svc.backfill.{endpoint}");
    call_service(bus, "adapter-svc", &subject, question, PATIENCE).await
}

async fn start(common: &Common, options: StartBackfillOptions) -> Result<()> {
    let account = AccountId::parse(&options.account.account)?;
    let now = SystemClock.now();
    let since = parse_when("--since", &options.since, now)?;
    let until = options
        .until
        .map(|text| parse_when("--until", &text, now))
        .transpose()?;

    let Caller { bus, name: by } = connect_caller(common).await?;
    let order = StartBackfill {
        channel: account.channel,
        account: account.name,
        since,
        until,
        conversations: options.conversations,
        by,
    };
    let job: BackfillJob = ask(&bus, "start", &order).await?;
    finish(common, &bus, job, options.follow).await
}

async fn show(bus: &Bus, account: &AccountId) -> Result<BackfillJob> {
    let question = ShowBackfill {
        channel: account.channel.clone(),
        account: account.name.clone(),
    };
    ask(bus, "show", &question).await
}

/// Shows `job`, at its end if it is followed.
async fn finish(common: &Common, bus: &Bus, job: BackfillJob, is_followed: bool) -> Result<()> {
    if !is_followed {
        return show_job(common, &job);
    }

    let job = follow(bus, job).await?;
    show_job(common, &job)?;
    match job.state {
        BackfillState::Done => Ok(()),
        BackfillState::Running | BackfillState::Stopped | BackfillState::Failed => {
            let why = job.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            let text = format!("the backfill is {}{why}", job.state.name());
            Err(failure(Exit::No, text))
        }
    }
}

/// Waits until `job` has ended, with a progress bar on standard error. A job that took its place is not waited for.
async fn follow(bus: &Bus, job: BackfillJob) -> Result<BackfillJob> {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} conversations, {elapsed}, {msg}");
    let bar = ProgressBar::new(0).with_style(style.unwrap_or(ProgressStyle::default_bar()));
    let ended = follow_with(&bar, bus, job).await;
    bar.finish_and_clear();
    ended
}

async fn follow_with(bar: &ProgressBar, bus: &Bus, mut job: BackfillJob) -> Result<BackfillJob> {
    let account = AccountId {
        channel: job.channel.clone(),
        name: job.account.clone(),
    };

    let mut answered = SystemClock.monotonic();
    bar.set_message(progress_of(&job));
    while job.is_running() {
        bar.set_length(job.found.unwrap_or(0));
        bar.set_position(job.finished);
        pause(LOOK_EVERY).await;

        let latest = match show(bus, &account).await {
            Ok(latest) => latest,
            // The job goes on without this command, and without the replica that answered last.
            Err(error) if Exit::of_error(&error) == Exit::Unreachable => {
                let silent_for = SystemClock.monotonic().saturating_duration_since(answered);
                if silent_for > MAX_SILENCE {
                    return Err(error);
                }
                bar.set_message("adapter-svc does not answer");
                continue;
            }
            Err(error) => return Err(error),
        };
        if latest.id != job.id {
            return Err(failure(Exit::No, "another backfill of the account has begun"));
        }

        job = latest;
        answered = SystemClock.monotonic();
        bar.set_message(progress_of(&job));
    }
    Ok(job)
}

/// Returns what is told of a running job beside its conversations.
fn progress_of(job: &BackfillJob) -> String {
    let events = format!("{} messages", job.events);
    match (&job.reason, &job.read_by) {
        (Some(reason), _) => format!("{events}, waits: {reason}"),
        (None, None) => format!("{events}, waits for a replica"),
        (None, Some(_)) => events,
    }
}

fn list_jobs(common: &Common, jobs: &[BackfillJob]) -> Result<()> {
    let columns = [
        Column::id("ACCOUNT"),
        Column::text("STATE"),
        Column::time("SINCE"),
        Column::text("CONVERSATIONS"),
        Column::number("MESSAGES"),
        Column::number("SKIPPED").extra(),
        Column::time("CHANGED").extra(),
        Column::text("READ BY").extra(),
        Column::prose("REASON"),
    ];
    let table = Table::new(&columns).with(jobs, |job| {
        [
            account_of(job).into(),
            job.state.name().into(),
            job.since.into(),
            conversations_of(job).into(),
            job.events.into(),
            job.skipped_count.into(),
            job.changed_at.into(),
            job.read_by.as_ref().into(),
            job.reason.as_ref().into(),
        ]
    });
    View::list(jobs, table)?.show(common)
}

fn show_job(common: &Common, job: &BackfillJob) -> Result<()> {
    let view = View::one(account_of(job), job)?.fields(job_fields(job));
    let view = job.skipped.iter().fold(view, |view, skipped| {
        view.line(format!("{} is not read: {}", skipped.conversation, skipped.reason))
    });
    view.show(common)
}

/// Returns the fields about one job that people read.
fn job_fields(job: &BackfillJob) -> Vec<(&'static str, Cell)> {
    vec![
        ("account", account_of(job).into()),
        ("state", job.state.name().into()),
        ("reason", job.reason.as_ref().into()),
        ("since", job.since.into()),
        ("until", job.until.into()),
        ("conversations", conversations_of(job).into()),
        ("messages", job.events.into()),
        ("passed over", job.passed_over.into()),
        ("skipped", job.skipped_count.into()),
        ("by", (&job.by).into()),
        ("started", job.started_at.into()),
        ("changed", job.changed_at.into()),
        ("read by", job.read_by.as_ref().into()),
    ]
}

fn account_of(job: &BackfillJob) -> String {
    format!("{}/{}", job.channel, job.account)
}

/// Returns how many conversations were read, of how many.
fn conversations_of(job: &BackfillJob) -> String {
    match job.found {
        Some(found) => format!("{} of {found}", job.finished),
        None => "being looked for".to_owned(),
    }
}
