//! `nexus up`: a whole Nexus on this machine, kept running; a process that dies is started again.

mod account_watch;
mod restart_delay;
mod supervise;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::json;
use shared::bus::Bus;
use shared::model::owner::LINK_MINUTES;
use shared::wire::rights::BusRole;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::{Common, UpOptions};
use crate::channel::configured_accounts;
use crate::complain;
use crate::config::ask_services;
use crate::connect::named_config;
use crate::exit::{Exit, ExitContext as _, failure};
use crate::launch::local;
use crate::launch::process::ignores_hangup;
use crate::launch::token;
use crate::launch::users::credentials;
use crate::launch::{Plan, Stack};
use crate::output::View;
use crate::owner;

/// Configuration that is used if none is named, as in every other command.
const CONFIG_HERE: &str = "nexus.toml";
/// Hint for an adapter that has announced no address.
const ADDRESS_HINT: &str = "is its port in use? set adapter.listen or --http-port";

/// Runs the command, until SIGTERM, SIGHUP or Ctrl-C.
///
/// # Errors
/// Fails if a process does not start, or if another process holds the data directory.
pub async fn execute(common: &Common, options: UpOptions) -> Result<()> {
    let mut signals = StopSignals::listen()?;
    let directory = &options.data;
    std::fs::create_dir_all(directory.join("run"))
        .with_context(|| format!("failed to create {}", directory.display()))?;
    let directory = directory.canonicalize().context("failed to find the data directory")?;
    let plan = plan(common, &options, &directory)?;
    let hooks = hooks_directory(&plan.config)?;

    // Processes that have been started end when the future is dropped, and through the kernel if this process is
    // killed.
    let mut stack = tokio::select! {
        stack = Stack::start(plan) => stack?,
        signal = signals.next() => {
            complain!("{signal}: stopped while starting");
            return Ok(());
        }
    };

    greeting(&stack, &directory, &hooks).await?.show(common)?;
    let accounts = bus_of_accounts(common, &stack).await;
    tokio::select! {
        never = supervise::supervise(&mut stack, &directory) => match never {},
        never = account_watch::watch_accounts(accounts, &directory) => match never {},
        signal = signals.next() => complain!("{signal}: stopping"),
    }

    stack.stop().await;
    Ok(())
}

/// Returns a connection by which the accounts on platforms are looked at; `None` if no account receives, or without a
/// connection.
async fn bus_of_accounts(common: &Common, stack: &Stack) -> Option<Bus> {
    let accounts = configured_accounts(common).ok()?;
    if accounts.iter().all(|account| account.access.is_none()) {
        return None;
    }
    stack.bus_as(BusRole::Operator, "nexus-up").await.ok()
}

/// Signals that ask `nexus up` to stop.
struct StopSignals {
    term: Signal,
    interrupt: Signal,
    /// SIGHUP; `None` if the parent process wants the terminal's end ignored (`nohup`).
    hangup: Option<Signal>,
}

impl StopSignals {
    fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).context("failed to listen for signals");
        Ok(Self {
            term: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: if ignores_hangup() {
                None
            } else {
                Some(listen(SignalKind::hangup())?)
            },
        })
    }

    async fn next(&mut self) -> &'static str {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };

        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = hangup => "SIGHUP",
        }
    }
}

fn plan(common: &Common, options: &UpOptions, directory: &Path) -> Result<Plan> {
    let mut plan = Plan::all(directory, options.replicas);
    plan.nats_port = options.nats_port;
    plan.users = true;
    let beside = Some(PathBuf::from(CONFIG_HERE)).filter(|path| path.exists());

    plan.config = match named_config(common).or(beside) {
        Some(path) => {
            complain!("configuration: {}", path.display());
            let text = std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
            let config = on_own_server(&text, options.http_port).exit(Exit::Usage)?;
            check_file(&path)?;
            config
        }
        None => default_config(directory, options.http_port)?,
    };

    plan.environment.extend(local::chat(&plan.config));

    if options.replicas > 1 {
        plan.environment
            .push(("NEXUS__ADAPTER__LISTEN".to_owned(), "127.0.0.1:0".to_owned()));
    }

    Ok(plan)
}

/// Checks the configuration file before anything starts: a service that refuses it would name the copy in the data
/// directory, which the user does not edit.
fn check_file(path: &Path) -> Result<()> {
    let (mut faults, _) = ask_services(&path.to_string_lossy())?;
    // The server is our own, and so is the key of the cluster unless the file names another.
    faults.retain(|fault| !fault.contains(": nats.") && !fault.contains(": trust."));
    if faults.is_empty() {
        return Ok(());
    }

    for fault in &faults {
        complain!("{fault}");
    }
    let text = format!("{} faults in {}", faults.len(), path.display());
    Err(failure(Exit::Usage, text))
}

/// Returns the file without its section `[nats]`, because the server is our own, and with `http_port` if it names no
/// address.
fn on_own_server(text: &str, http_port: u16) -> Result<String> {
    let mut root: toml::Table = text.parse().context("the configuration is not valid TOML")?;
    root.remove("nats");
    let section = root.entry("adapter").or_insert_with(|| toml::Table::new().into());
    if let Some(adapter) = section.as_table_mut() {
        let listen = format!("127.0.0.1:{http_port}");
        adapter.entry("listen").or_insert_with(|| listen.into());
    }
    toml::to_string(&root).context("failed to write TOML")
}

/// Returns `hooks.dir` of `config`, or an empty text if it is not set.
fn hooks_directory(config: &str) -> Result<String> {
    let root: toml::Table = config.parse().context("the configuration is not valid TOML")?;
    let dir = root.get("hooks").and_then(|hooks| hooks.get("dir"));
    Ok(dir.and_then(toml::Value::as_str).unwrap_or_default().to_owned())
}

fn default_config(directory: &Path, http_port: u16) -> Result<String> {
    let hooks = directory.join("hooks");
    if !hooks.exists() {
        std::fs::create_dir_all(&hooks).context("failed to create the hooks directory")?;
        let text = include_str!("../../deploy/hooks/default-dm-routing.ts");
        std::fs::write(hooks.join("default-dm-routing.ts"), text).context("failed to write the first hook")?;
    }

    Ok(format!(
        "[telemetry]\nlisten = \"127.0.0.1:0\"\n\n[adapter]\nlisten = \"127.0.0.1:{http_port}\"\n\n\
         [hooks]\ndir = {hooks:?}\nsandbox = \"degraded\"\n"
    ))
}

/// Returns where the running stack is reached.
async fn greeting(stack: &Stack, directory: &Path, hooks: &str) -> Result<View> {
    let gateway = stack.gateway().with_context(|| {
        format!(
            "adapter-svc did not announce its address ({ADDRESS_HINT}); see {}/log",
            directory.display()
        )
    })?;

    let link = owner::first_link(&stack.bus("nexus-up").await?, LINK_MINUTES).await?;
    let link = owner::page_url(&gateway, &link);
    let nats = stack.nats[0].url();
    let (events, webhooks) = (format!("{gateway}/v1/events"), format!("{gateway}/hooks/{{source}}"));
    let (token, logs) = (token::file(directory), directory.join("log"));
    let places = json!({
        "web_chat": format!("{gateway}/"), "owner_link": link, "events": events, "token_file": token,
        "webhooks": webhooks, "nats": nats, "hooks": hooks, "logs": logs,
    });

    let owner = format!("{link}\n(the first browser that opens it within {LINK_MINUTES} minutes is yours)");
    let users = format!(
        "commands are user `operator`: {}\nan agent is user `agent`: {}",
        credentials(directory, BusRole::Operator).display(),
        credentials(directory, BusRole::Agent).display()
    );
    let view = View::one(&gateway, &places)?.fields([
        ("web chat", format!("{gateway}/").into()),
        ("owner", owner.into()),
        ("events", format!("{events}\n(token in {})", token.display()).into()),
        ("webhooks", webhooks.into()),
        ("nats", nats.into()),
        ("hooks", hooks.into()),
        ("logs", logs.display().to_string().into()),
        ("bus users", users.into()),
    ]);

    Ok(view.line("\ntry, in another terminal:\n  nexus send 'hello'\n  nexus tail\n  nexus doctor"))
}
