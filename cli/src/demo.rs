//! `nexus demo`: follows one signed webhook and one chat message from end to end, with times.

pub mod receiver;
pub mod senders;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use shared::bus::Bus;
use shared::clock::pause;
use shared::model::event::EventId;
use shared::model::hook::HookStatus;
use shared::model::hook_api::{HookList, HookView, ListHooks};
use shared::projection::api::EventTrace;
use shared::wire::rights::BusRole;

use crate::args::{Common, DemoOptions};
use crate::exit::{Exit, failure};
use crate::hook::ask_hooks;
use crate::launch::{Plan, Stack};
use crate::output::{View, is_for_people};
use crate::trace::{await_complete, trace_view};
use crate::{complain, say};

use receiver::Receiver;

/// Secrets of the demo: everything stays on this machine and ends with the command.
const GITHUB_SECRET: &str = "the demo's webhook secret";
const CHANNEL_SECRET: &str = "whsec_bmV4dXMgZGVtbyBjaGFubmVsIHNlY3JldCAwMDA=";
/// Interval at which it is checked whether the hooks are active.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest time that one chain may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the command.
///
/// # Errors
/// Fails if a process does not start, or if a chain does not complete.
pub async fn execute(common: &Common, options: DemoOptions) -> Result<()> {
    let directory = tempfile::Builder::new()
        .prefix("nexus-demo-")
        .tempdir()
        .context("failed to create a temporary directory")?;
    let path = directory.path().to_owned();
    tell(
        common,
        &format!("starting nats-server and five services in {}", path.display()),
    );
    let mut receiver = Receiver::start().await?;

    let mut plan = Plan::all(&path, 1);
    plan.users = true;
    plan.config = write_files(&path, &receiver.url())?;
    plan.environment = vec![
        ("NEXUS_DEMO_GITHUB_SECRET".to_owned(), GITHUB_SECRET.to_owned()),
        ("NEXUS_DEMO_CHANNEL_SECRET".to_owned(), CHANNEL_SECRET.to_owned()),
    ];

    let stack = Stack::start(plan).await?;
    let outcome = show(common, &stack, &mut receiver).await;
    stack.stop().await;

    if options.keep || outcome.is_err() {
        complain!("logs are kept in {}", directory.keep().display());
    }

    outcome
}

/// Writes the hooks and accounts into `directory`, and returns the rest of `nexus.toml`.
fn write_files(directory: &Path, receiver: &str) -> Result<String> {
    let hooks = directory.join("hooks");
    std::fs::create_dir_all(&hooks).context("failed to create the hooks directory")?;

    for (name, text) in [
        (
            "default-dm-routing.ts",
            include_str!("../../deploy/hooks/default-dm-routing.ts"),
        ),
        (
            "github-webhook.ts",
            include_str!("../../deploy/hooks/github-webhook.ts"),
        ),
    ] {
        std::fs::write(hooks.join(name), text).with_context(|| format!("failed to write {name}"))?;
    }

    let channels = directory.join("channels.yaml");
    let accounts = format!(
        "webhook:\n  accounts:\n    demo:\n      url: {receiver}\n      secret: env:NEXUS_DEMO_CHANNEL_SECRET\n"
    );
    std::fs::write(&channels, accounts).context("failed to write channels.yaml")?;

    Ok(format!(
        "[telemetry]\nlisten = \"127.0.0.1:0\"\n\n[files]\nchannels = {channels:?}\n\n\
         [adapter]\nlisten = \"127.0.0.1:0\"\n\n[adapter.webhook.github]\nscheme = \"github\"\n\
         secret = \"env:NEXUS_DEMO_GITHUB_SECRET\"\n\n[hooks]\ndir = {hooks:?}\nsandbox = \"degraded\"\n"
    ))
}

async fn show(common: &Common, stack: &Stack, receiver: &mut Receiver) -> Result<()> {
    let bus = stack.bus_as(BusRole::Operator, "nexus-demo").await?;
    let gateway = stack.gateway()?;
    await_hooks(&bus).await?;

    tell(
        common,
        &format!("\n1. a signed GitHub webhook to {gateway}/hooks/github"),
    );
    let webhook = EventId::parse(senders::github(&gateway, GITHUB_SECRET).await?)?;
    let received = receiver
        .next(PATIENCE)
        .await
        .context("the channel's request did not arrive")?;

    let webhook = await_complete(&bus, &webhook, PATIENCE).await?;
    report_trace(common, "webhook", &webhook)?;
    tell(
        common,
        &format!("\nthe signed request that the channel `webhook`, account `demo`, received:\n{received}"),
    );

    tell(common, "\n2. a chat message over the web chat's socket");
    let (chat, answer) = senders::chat(&gateway, "hello, Nexus", PATIENCE).await?;
    let chat = await_complete(&bus, &EventId::parse(chat)?, PATIENCE).await?;
    report_trace(common, "webchat", &chat)?;
    tell(common, &format!("\nthe page was answered: {answer}"));

    if !is_for_people(common) {
        let traces = [&webhook, &chat];
        let ids = traces.iter().filter_map(|trace| trace.event.as_ref());
        let ids: Vec<String> = ids.map(|event| event.id.to_string()).collect();
        View::of(&traces)?.ids(ids).show(common)?;
    }

    Ok(())
}

/// Prints the progress of the demo, if a person reads it.
fn tell(common: &Common, text: &str) {
    if is_for_people(common) {
        say!("{text}");
    }
}

/// Waits until every hook is active. A hook that needs a channel waits until delivery-svc has named its accounts.
async fn await_hooks(bus: &Bus) -> Result<()> {
    let wait = async {
        loop {
            let list: Result<HookList> = ask_hooks(bus, "list", &ListHooks::default()).await;
            let is_active = |hook: &HookView| hook.status == HookStatus::Active;
            if list.is_ok_and(|list| !list.hooks.is_empty() && list.hooks.iter().all(is_active)) {
                return;
            }
            pause(LOOK_EVERY).await;
        }
    };

    let waited = tokio::time::timeout(PATIENCE, wait).await;
    waited.context("the demo's hooks are not active: see `nexus hook list`")
}

/// Prints `trace` if a person reads it; fails if it is not complete.
fn report_trace(common: &Common, name: &str, trace: &EventTrace) -> Result<()> {
    if is_for_people(common) {
        trace_view(trace, trace)?.show(common)?;
    }
    if !trace.complete {
        let text = format!("the trace of the {name} event is not complete");
        return Err(failure(Exit::No, text));
    }
    Ok(())
}
