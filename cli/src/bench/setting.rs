//! Setting of a run: the services, the hooks, the events.

use std::path::Path;

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};
use shared::model::event::{Event, EventId};
use shared::model::time::UnixMillis;

use crate::args::BenchOptions;
use crate::launch::{Plan, token};

/// File of the bench's token for its own channel, below its directory.
pub(super) const TOKEN_FILE: &str = "bench-token";

/// Writes the hooks: all check the event, the first fires, and each conversation has a session of its own.
fn write_hooks(directory: &Path, count: usize, firing: bool) -> Result<()> {
    std::fs::create_dir_all(directory).context("failed to create the hooks directory")?;

    for number in 0..count {
        let body = if number == 0 && firing {
            "if (e.channel !== \"bench\" || e.direction !== \"received\") return { fire: false };\n  \
             return { fire: true, routing: { session: \"s-\" + e.peer.id }, \
             deliveryContext: { channel: \"nats\", accountId: \"bench\", peerId: e.peer.id, replyToId: e.id } };"
                .to_owned()
        } else {
            format!(
                "const urgent = /\\b(invoice|deploy-{number}|alarm)\\b/.test(e.content);\n  \
                 return {{ fire: urgent && e.from.id === \"nobody-{number}\" }};"
            )
        };

        let text =
            format!("/** @name bench {number} */\nexport default (ctx) => {{\n  const e = ctx.event;\n  {body}\n}};\n");
        std::fs::write(directory.join(format!("bench-{number}.ts")), text).context("failed to write a hook")?;
    }

    Ok(())
}

/// Adds one hook to `directory` of a run; it queries the read model for its conversation's history.
pub(super) fn write_asking_hook(directory: &Path) -> Result<()> {
    let text = r#"/** @name bench asking */
import Database from "better-sqlite3";

let db;

export default (ctx) => {
  db ??= new Database(ctx.dbPath, { readonly: true });
  const { channel, peer } = ctx.event;
  const said = db
    .prepare(
      `SELECT count(*) AS n, max(e.timestamp) AS last FROM events e
       JOIN event_participants p ON p.event_id = e.id AND p.role = 'sender'
       WHERE e.channel = ? AND e.account = 'default' AND e.peer_id = ?`,
    )
    .get(channel, peer.id);
  return { fire: said.n < 1 };
};
"#;

    std::fs::write(directory.join("hooks").join("bench-asking.ts"), text).context("failed to write a hook")
}

/// Writes the only hook of a run with replicas: it fires on every event that came from outside, and is called for no
/// other.
fn write_matched_hook(directory: &Path) -> Result<()> {
    let text = r#"/** @name bench
 * @match channel=bench direction=received */
export default (ctx) => {
  const e = ctx.event;
  return { fire: true, routing: { session: "s-" + e.peer.id },
    deliveryContext: { channel: "nats", accountId: "bench", peerId: e.peer.id, replyToId: e.id } };
};
"#;

    std::fs::create_dir_all(directory).context("failed to create the hooks directory")?;
    std::fs::write(directory.join("bench.ts"), text).context("failed to write a hook")
}

/// Returns the plan of one replica of each service, with the hooks below `directory`.
fn plan(directory: &Path, options: &BenchOptions, durability: &str) -> Result<Plan> {
    let hooks = directory.join("hooks");
    let mut plan = Plan::all(directory, 1);

    plan.config = format!(
        "[telemetry]\nlisten = \"127.0.0.1:0\"\nlevel = \"warn\"\n\n[adapter]\nlisten = \"127.0.0.1:0\"\n\
         accept = {:?}\n\n[[adapter.http.tokens]]\nname = \"bench\"\nsha256 = \"{}\"\nsource = \"bench\"\n\
         channels = [\"bench\"]\n\n[hooks]\ndir = {hooks:?}\nsandbox = \"degraded\"\nhard_budget_ms = 5000\n",
        options.accept,
        hex::encode(Sha256::digest(token::ensure(&directory.join(TOKEN_FILE))?))
    );

    plan.sync_interval = (durability != "process").then(|| "always".to_owned());
    plan.servers = if durability == "replicated" { 3 } else { 1 };

    Ok(plan)
}

/// Returns the plan of all five services.
pub(super) fn whole(directory: &Path, options: &BenchOptions, durability: &str) -> Result<Plan> {
    write_hooks(&directory.join("hooks"), options.hooks, true)?;
    plan(directory, options, durability)
}

/// Returns the plan of `replicas` of each service with one hook, and of servers whose messages can be counted.
pub(super) fn replicated(directory: &Path, options: &BenchOptions, durability: &str, replicas: u16) -> Result<Plan> {
    write_matched_hook(&directory.join("hooks"))?;
    let plan = plan(directory, options, durability)?;
    Ok(Plan {
        monitor: true,
        services: Plan::all(directory, replicas).services,
        ..plan
    })
}

/// Returns the plan of one replica of each service but hook-svc, with one hook. Nothing but the bench adds events to a
/// backlog: the scheduler makes none.
pub(super) fn without_hook_svc(directory: &Path, options: &BenchOptions, durability: &str) -> Result<Plan> {
    let mut plan = replicated(directory, options, durability, 1)?;
    plan.services.retain(|(name, _)| *name != "hook-svc");
    plan.environment
        .push(("NEXUS__SCHEDULER__TICKS".to_owned(), "false".to_owned()));
    Ok(plan)
}

/// Returns the plan of hook-svc alone, with hooks that fire or not.
pub(super) fn hooks_only(directory: &Path, options: &BenchOptions, durability: &str, firing: bool) -> Result<Plan> {
    write_hooks(&directory.join("hooks"), options.hooks, firing)?;
    let mut plan = plan(directory, options, durability)?;
    plan.services = vec![("hook-svc", 1)];
    Ok(plan)
}

/// Returns the plan of two replicas of hook-svc, of which one keeps a copy of the read model and the other asks it.
pub(super) fn one_copy_of_two(directory: &Path, options: &BenchOptions, durability: &str) -> Result<Plan> {
    let mut plan = hooks_only(directory, options, durability, false)?;
    plan.config.push_str("\n[hooks.read_model]\ncopies = 1\n");
    plan.services = vec![("hook-svc", 2)];
    Ok(plan)
}

/// Returns event `number` of run `run`, of about `options.size` bytes.
pub(super) fn event(run: &str, number: u64, options: &BenchOptions, now: UnixMillis) -> Result<Event> {
    let peer = (number % options.sessions.max(1)).to_string();
    let id = EventId::parse(format!("bench:{run}/{number}")).context("failed to create an event id")?;
    let mut event = Event::new(id, "bench", &peer, now);
    event.from.id = format!("user-{peer}");
    let padding = options.size.saturating_sub(event.id.as_str().len() + 8);
    event.content = format!("{number} {}", "lorem ipsum ".repeat(padding / 12 + 1))
        .chars()
        .take(padding)
        .collect();

    Ok(event)
}
