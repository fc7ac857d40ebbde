//! `nexus hook list|show|logs`: status and records of hooks.

use std::collections::HashSet;

use anyhow::Result;
use shared::bus::Bus;
use shared::model::hook::{HookOrigin, HookStatus};
use shared::model::hook_api::{GetHook, HookDetails, HookList, InvocationRow, ListHooks};
use shared::model::invocation::{EventInvocations, HookInvocation, HookOutcome};
use shared::model::time::UnixMillis;
use shared::wire::topology::streams::INVOCATIONS;

use super::ask;
use crate::args::Common;
use crate::output::{brief, bus, clock, json, json_line, plain, plain_lines, print, table};
use crate::say;

/// Largest number of events that `logs --follow` remembers as shown.
const MAX_TOLD: usize = 10_000;

/// Returns the name of `status` for people.
pub(super) const fn name(status: HookStatus) -> &'static str {
    match status {
        HookStatus::Active => "active",
        HookStatus::Degraded => "degraded",
        HookStatus::Paused => "paused",
        HookStatus::Waiting => "waiting",
        HookStatus::Disabled => "disabled",
        HookStatus::Errored => "errored",
    }
}

pub(super) async fn list(common: &Common, question: ListHooks) -> Result<()> {
    let list: HookList = ask(&bus(common).await?, "list", &question).await?;
    if common.json {
        return json(&list.hooks);
    }

    let mut rows = table(&["hook", "status", "fired", "last (UTC)", "from", "by", "what"]);
    for hook in &list.hooks {
        let what = hook
            .parse_error
            .as_ref()
            .or(hook.disabled_reason.as_ref())
            .or(hook.description.as_ref());
        rows.add_row([
            plain(&hook.id),
            name(hook.status).to_owned(),
            hook.trigger_count.to_string(),
            hook.last_triggered.map(clock).unwrap_or_default(),
            plain(&origin(&hook.origin)),
            plain(&hook.created_by),
            brief(what.map_or("", String::as_str), 60),
        ]);
    }

    say!("{rows}\n{} hooks", list.hooks.len());
    Ok(())
}

fn origin(origin: &HookOrigin) -> String {
    match origin {
        HookOrigin::File { root } => format!("directory {root}"),
        HookOrigin::Pushed => "push".to_owned(),
        HookOrigin::Tool => "tool".to_owned(),
    }
}

async fn details(bus: &Bus, id: String, invocations: u32) -> Result<HookDetails> {
    let question = GetHook {
        name: id,
        invocations: Some(invocations),
    };
    ask(bus, "get", &question).await
}

pub(super) async fn one(common: &Common, id: String) -> Result<()> {
    let details = details(&bus(common).await?, id, 10).await?;
    if common.json {
        return json(&details);
    }

    let hook = &details.hook;
    say!("hook        {} ({})", plain(&hook.id), plain(&hook.name));
    say!("status      {}", name(hook.status));

    let lines = [
        ("because", &hook.disabled_reason),
        ("error", &hook.parse_error),
        ("what", &hook.description),
        ("match", &hook.match_rule),
        ("last error", &hook.last_error),
    ];

    for (label, text) in lines {
        if let Some(text) = text {
            say!("{label:<11} {}", brief(text, 200));
        }
    }

    for schedule in &hook.schedules {
        say!("schedule    {}", plain(&schedule.to_string()));
    }

    for channel in &hook.needs_channels {
        say!("needs       channel {}", plain(channel));
    }

    for server in &hook.allow_net {
        say!("asks for    {}", plain(server));
    }

    say!("priority    {}", hook.priority);
    say!(
        "from        {} by {}",
        plain(&origin(&hook.origin)),
        plain(&hook.created_by)
    );

    say!("fired       {} times", hook.trigger_count);
    say!("{}", invocations(details.invocations.iter()));
    say!("{}", plain_lines(&details.source));

    Ok(())
}

fn invocations<'a>(rows: impl Iterator<Item = &'a InvocationRow>) -> comfy_table::Table {
    let mut shown = table(&["at (UTC)", "event", "outcome", "took", "llm", "detail"]);
    for row in rows {
        shown.add_row(line(row));
    }
    shown
}

fn line(row: &InvocationRow) -> [String; 6] {
    let detail = row.error.as_ref().or(row.reason.as_ref()).or(row.dispatch_id.as_ref());
    let llm = match row.llm_calls {
        0 => String::new(),
        calls => format!("{calls}, ${:.4}", row.llm_cost_usd),
    };

    [
        clock(row.started_at),
        plain(&row.event_id.to_string()),
        plain(&row.outcome),
        format!("{:.3} ms", row.latency_ms),
        llm,
        brief(detail.map_or("", String::as_str), 80),
    ]
}

pub(super) async fn logs(common: &Common, id: &str, last: u32, follow: bool) -> Result<()> {
    let bus = bus(common).await?;
    // This position is read before the past, so that no record is missed in between.
    let next = bus.stream_state(INVOCATIONS).await?.last + 1;
    let mut rows = details(&bus, id.to_owned(), last).await?.invocations;
    rows.reverse();

    if common.json {
        for row in &rows {
            json_line(row)?;
        }
    } else {
        say!("{}", invocations(rows.iter()));
    }

    if !follow {
        return Ok(());
    }

    let mut reader = bus.read_ordered(INVOCATIONS, &[], next).await?;
    let mut told = HashSet::new();
    loop {
        let incoming = reader.next().await;
        let Ok(record) = incoming.decode::<EventInvocations>() else {
            continue;
        };

        for hook in record.hooks.iter().filter(|hook| hook.hook_id == id) {
            // A second record of an event, for deferred hooks, repeats the results of the others.
            if !hook.outcome.is_deferred() && !told.insert(record.event_seq) {
                continue;
            }

            if told.len() > MAX_TOLD {
                told = HashSet::from([record.event_seq]);
            }

            let row = row(&record, hook);
            if common.json {
                json_line(&row)?;
            } else {
                print(&format!("{}\n", line(&row).join("  ")))?;
            }
        }
    }
}

/// Returns an invocation as the read model would hold it.
fn row(record: &EventInvocations, hook: &HookInvocation) -> InvocationRow {
    let (outcome, reason, dispatch_id, error) = match &hook.outcome {
        HookOutcome::Passed => ("passed", None, None, None),
        HookOutcome::Fired { dispatch, .. } => ("fired", None, Some(dispatch.to_string()), None),
        HookOutcome::Suppressed { reason } => ("suppressed", Some(reason.clone()), None, None),
        HookOutcome::Skipped { reason } => ("skipped", Some(reason.clone()), None, None),
        HookOutcome::Deferred => ("deferred", None, None, None),
        HookOutcome::Failed { error, .. } => ("failed", None, None, Some(error.clone())),
    };

    InvocationRow {
        hook_id: hook.hook_id.clone(),
        event_id: record.event_id.clone(),
        started_at: UnixMillis(record.started_at.0),
        latency_ms: hook.latency_us as f64 / 1_000.0,
        outcome: outcome.to_owned(),
        reason,
        result: None,
        dispatch_id,
        error,
        llm_calls: hook.llm_calls,
        llm_tokens: u64::from(hook.llm_tokens_in) + u64::from(hook.llm_tokens_out),
        llm_cost_usd: hook.llm_cost_usd,
        search_calls: hook.search_calls,
    }
}
