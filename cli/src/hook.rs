//! `nexus hook`: writing, testing, replaying and enabling hooks. hook-svc makes every change; the commands only request
//! it.

mod backtest;
mod host;
mod import_claude;
mod push;
mod report;
mod show;
mod start;
mod trial;

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::bus::{Bus, RequestError};
use shared::model::hook::HookStatus;
use shared::model::hook_api::{DisableHook, HookView, ListHooks, NameHook};
use shared::wire::headers::Headers;

use crate::args::{Common, HookAction, Status};
use crate::output::{bus, json, plain};
use crate::say;

/// Longest time that an answer may take: a hook under test may use all of its time-out.
const ANSWER: Duration = Duration::from_secs(330);

/// Runs the command.
///
/// # Errors
/// Fails with the fault, for people.
pub async fn execute(common: &Common, action: HookAction) -> Result<()> {
    match action {
        HookAction::New { name, dir } => start::write(&name, &dir),
        HookAction::Test(options) => trial::run(common, &options).await,
        HookAction::Backtest(options) => backtest::run(common, options).await,
        HookAction::ImportClaude(options) => import_claude::write(&options),
        HookAction::Push { path, id } => push::run(common, &path, id).await,
        HookAction::List { status, created_by } => {
            let status = status.map(status_of);
            show::list(common, ListHooks { status, created_by }).await
        }
        HookAction::Show { id } => show::one(common, id).await,
        HookAction::Logs { id, last, follow } => show::logs(common, &id, last, follow).await,
        HookAction::Enable { id } => switched(common, "enable", &by_name(id)).await,
        HookAction::Disable { id, reason } => {
            let disable = DisableHook {
                name: id,
                reason,
                asked_by: None,
            };
            switched(common, "disable", &disable).await
        }
        HookAction::Rm { id } => switched(common, "delete", &by_name(id)).await,
    }
}

/// Asks `nexus.svc.hook.{what}`.
///
/// # Errors
/// Fails if the service refuses, with the service's own text.
pub async fn ask<Q: Serialize, A: DeserializeOwned>(bus: &Bus, what: &str, question: &Q) -> Result<A> {
    let subject = format!("nexus.svc.hook.{what}");
    match bus.request(&subject, Headers::new(), question, ANSWER).await {
        Ok(answer) => Ok(answer),
        Err(RequestError::Service { text, .. }) => Err(anyhow::Error::msg(text)),
        Err(error) => Err(error).context("hooks are served by hook-svc: does one run?"),
    }
}

/// Returns a request about the hook `name` in the operator's name.
const fn by_name(name: String) -> NameHook {
    NameHook { name, asked_by: None }
}

async fn switched<Q: Serialize>(common: &Common, what: &str, question: &Q) -> Result<()> {
    let view: HookView = ask(&bus(common).await?, what, question).await?;
    if common.json {
        return json(&view);
    }
    match &view.disabled_reason {
        Some(reason) => say!("{} is {}: {}", view.id, show::name(view.status), plain(reason)),
        None => say!("{} is {}", view.id, show::name(view.status)),
    }
    Ok(())
}

const fn status_of(status: Status) -> HookStatus {
    match status {
        Status::Active => HookStatus::Active,
        Status::Degraded => HookStatus::Degraded,
        Status::Paused => HookStatus::Paused,
        Status::Waiting => HookStatus::Waiting,
        Status::Disabled => HookStatus::Disabled,
        Status::Errored => HookStatus::Errored,
    }
}
