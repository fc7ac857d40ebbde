//! `nexus up`: a whole Nexus on this machine, kept running; what dies is started again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use shared::clock::pause;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Common, UpOptions};
use crate::launch::users::password_file;
use crate::launch::{Plan, Stack};

/// Where `nexus up` writes its process id, below the data directory.
pub const PID_FILE: &str = "run/nexus.pid";
/// The configuration that is used where none is named, as every other command does.
const CONFIG_HERE: &str = "nexus.toml";
/// What to look at where the adapter has no address.
const ADDRESS_HINT: &str = "is its port in use? setting adapter.listen; `nexus up --http-port`";
/// How often is looked whether everything lives.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Restarts within [`WINDOW`] looks after which it is said that something is broken.
const MAX_RESTARTS: usize = 20;
/// How many looks a restart is remembered for (a minute).
const WINDOW: u64 = 120;

/// Runs the command, until SIGTERM or Ctrl-C.
///
/// # Errors
/// Where something does not start.
pub async fn execute(common: &Common, options: UpOptions) -> Result<()> {
    std::fs::create_dir_all(options.data.join("run")).context("make the data directory")?;
    let directory = options.data.canonicalize().context("find the data directory")?;
    refuse_second(&directory)?;
    let mut plan = Plan::all(&directory, options.replicas);
    plan.nats_port = options.nats_port;
    plan.users = options.users;
    let beside = Some(PathBuf::from(CONFIG_HERE)).filter(|path| path.exists());
    plan.config = match common.config.clone().or(beside) {
        Some(path) => {
            println!("settings   {}", path.display());
            let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            on_own_server(&text, options.http_port)?
        }
        None => default_config(&directory, options.http_port)?,
    };
    let hooks = hooks_directory(&plan.config)?;
    if options.replicas > 1 {
        plan.environment
            .push(("NEXUS__ADAPTER__LISTEN".to_owned(), "127.0.0.1:0".to_owned()));
    }
    let mut stack = Stack::start(plan).await?;
    std::fs::write(directory.join(PID_FILE), std::process::id().to_string()).context("write the process id")?;
    greet(&stack, &directory, &hooks)?;
    if options.users {
        greet_users(&directory);
    }
    let outcome = supervise(&mut stack).await;
    // A file that is gone already needs no removal.
    let _ = std::fs::remove_file(directory.join(PID_FILE));
    eprintln!("stopping");
    stack.stop().await;
    outcome
}

fn refuse_second(directory: &Path) -> Result<()> {
    let Ok(text) = std::fs::read_to_string(directory.join(PID_FILE)) else {
        return Ok(());
    };
    if Path::new("/proc").join(text.trim()).exists() {
        bail!(
            "`nexus up` runs there already as process {}; `nexus down` stops it",
            text.trim()
        );
    }
    Ok(())
}

/// The file without its section `[nats]`, as the server is our own, and with `http_port` where it names no address.
fn on_own_server(text: &str, http_port: u16) -> Result<String> {
    let mut root: toml::Table = text.parse().context("the configuration is not TOML")?;
    root.remove("nats");
    let section = root.entry("adapter").or_insert_with(|| toml::Table::new().into());
    if let Some(adapter) = section.as_table_mut() {
        let listen = format!("127.0.0.1:{http_port}");
        adapter.entry("listen").or_insert_with(|| listen.into());
    }
    toml::to_string(&root).context("write TOML")
}

/// `hooks.dir` of `config`; empty where it names none.
fn hooks_directory(config: &str) -> Result<String> {
    let root: toml::Table = config.parse().context("the configuration is not TOML")?;
    let dir = root.get("hooks").and_then(|hooks| hooks.get("dir"));
    Ok(dir.and_then(toml::Value::as_str).unwrap_or_default().to_owned())
}

fn default_config(directory: &Path, http_port: u16) -> Result<String> {
    let hooks = directory.join("hooks");
    if !hooks.exists() {
        std::fs::create_dir_all(&hooks).context("make the hooks directory")?;
        let text = include_str!("../../deploy/hooks/default-dm-routing.ts");
        std::fs::write(hooks.join("default-dm-routing.ts"), text).context("write the first hook")?;
    }
    Ok(format!(
        "[telemetry]\nlisten = \"127.0.0.1:0\"\n\n[adapter]\nlisten = \"127.0.0.1:{http_port}\"\n\n\
         [adapter.http]\nopen = true\n\n[hooks]\ndir = {hooks:?}\nsandbox = \"degraded\"\n"
    ))
}

fn greet(stack: &Stack, directory: &Path, hooks: &str) -> Result<()> {
    let gateway = stack.gateway().with_context(|| {
        format!(
            "the adapter serves nothing ({ADDRESS_HINT}); see {}/log",
            directory.display()
        )
    })?;
    println!("web chat   {gateway}/");
    println!("events     {gateway}/v1/events");
    println!("webhooks   {gateway}/hooks/{{source}}");
    println!("nats       {}", stack.nats[0].url());
    println!("hooks      {hooks}");
    println!("logs       {}", directory.join("log").display());
    println!("\ntry, in another terminal:");
    println!("  nexus send 'hello' --channel webchat --peer me");
    println!("  nexus tail");
    println!("  nexus doctor");
    Ok(())
}

fn greet_users(directory: &Path) {
    println!("\nthe server knows users; in another terminal first:");
    let operator = password_file(directory, "operator");
    println!(
        "  export NEXUS__NATS__USER=operator NEXUS__NATS__PASSWORD=file:{}",
        operator.display()
    );
    let agent = password_file(directory, "agent");
    println!("agents are user `agent`, with the password in {}", agent.display());
}

async fn supervise(stack: &mut Stack) -> Result<()> {
    let mut term = signal(SignalKind::terminate()).context("listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for signals")?;
    let mut restarts: Vec<u64> = Vec::new();
    for look in 0_u64.. {
        tokio::select! {
            _ = term.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            () = pause(LOOK_EVERY) => {}
        }
        restarts.retain(|at| look - at < WINDOW);
        let dead: Vec<(&'static str, u16)> = stack
            .services
            .iter_mut()
            .filter_map(|s| s.has_ended().then_some((s.name, s.replica)))
            .collect();
        for (name, replica) in dead {
            if restarts.len() >= MAX_RESTARTS {
                bail!("{name} dies again and again; see its log");
            }
            eprintln!("{name}-{replica} ended, started again");
            restarts.push(look);
            stack.launch(name, replica)?;
        }
    }
    Ok(())
}
