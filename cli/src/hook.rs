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

use anyhow::Result;
use hook_svc::registry::authored::DELETED;
use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::bus::Bus;
use shared::model::hook::HookStatus;
use shared::model::hook_api::{DisableHook, GetHook, HookDetails, HookView, ListHooks, NameHook};

use crate::args::{Common, HookAction, Status};
use crate::connect::connect_bus;
use crate::exit::{Exit, failure};
use crate::output::View;
use crate::service::call_service;

/// Longest time that an answer may take: a hook under test may use all of its time-out.
const ANSWER: Duration = Duration::from_secs(330);

/// Runs the command.
///
/// # Errors
/// Fails with the fault, for people.
pub async fn execute(common: &Common, action: HookAction) -> Result<()> {
    match action {
        HookAction::New { name, dir } => start::write(common, &name, &dir),
        HookAction::Test(options) => trial::run(common, &options).await,
        HookAction::Backtest(options) => backtest::run(common, options).await,
        HookAction::ImportClaude(options) => import_claude::write(common, &options),
        HookAction::Push { path, id } => push::run(common, &path, id).await,
        HookAction::List { status, created_by } => {
            let status = status.map(status_of);
            show::list(common, ListHooks { status, created_by }).await
        }
        HookAction::Show { id } => show::show_hook(common, id).await,
        HookAction::Logs { id, limit, follow } => show::show_logs(common, &id, limit, follow).await,
        HookAction::Enable { id } => switch_hook(common, "enable", &by_name(id)).await,
        HookAction::Disable { id, reason } => {
            let disable = DisableHook {
                name: id,
                reason,
                asked_by: None,
            };
            switch_hook(common, "disable", &disable).await
        }
        HookAction::Rm { id } => delete_hook(common, id).await,
    }
}

/// Asks `nexus.svc.hook.{what}`.
///
/// # Errors
/// Fails if the service refuses, with the service's own text.
pub async fn ask_hooks<Q: Serialize, A: DeserializeOwned>(bus: &Bus, what: &str, question: &Q) -> Result<A> {
    let subject = format!("nexus.svc.hook.{what}");
    call_service(bus, "hook-svc", &subject, question, ANSWER).await
}

/// Returns a request about the hook `name` in the operator's name.
const fn by_name(name: String) -> NameHook {
    NameHook { name, asked_by: None }
}

async fn switch_hook<Q: Serialize>(common: &Common, what: &str, question: &Q) -> Result<()> {
    let bus = connect_bus(common).await?;
    let view: HookView = ask_hooks(&bus, what, question).await?;
    let sentence = match &view.disabled_reason {
        Some(reason) => format!("{} is {}: {reason}", view.id, show::name(view.status)),
        None => format!("{} is {}", view.id, show::name(view.status)),
    };

    View::one(&view.id, &view)?.line(sentence).show(common)
}

async fn delete_hook(common: &Common, id: String) -> Result<()> {
    let bus = connect_bus(common).await?;
    let question = GetHook {
        name: id.clone(),
        invocations: Some(0),
    };
    let former: HookDetails = ask_hooks(&bus, "get", &question).await?;

    // The entry of a deleted hook stays for its history.
    let is_deleted = former.hook.status == HookStatus::Disabled;
    if is_deleted && former.hook.disabled_reason.as_deref() == Some(DELETED) {
        return Err(failure(Exit::NotFound, format!("hook {id} does not exist")));
    }

    let view: HookView = ask_hooks(&bus, "delete", &by_name(id)).await?;
    let sentence = format!("{} is deleted; its history is kept", view.id);
    View::one(&view.id, &view)?.line(sentence).show(common)
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
