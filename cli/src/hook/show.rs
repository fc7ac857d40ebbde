//! `nexus hook list|show|logs`: status and records of hooks.

use std::collections::HashSet;

use anyhow::Result;
use shared::bus::Bus;
use shared::model::hook::{HookOrigin, HookStatus};
use shared::model::hook_api::{GetHook, HookDetails, HookList, HookView, InvocationRow, ListHooks};
use shared::model::invocation::{EventInvocations, HookInvocation, HookOutcome};
use shared::model::time::UnixMillis;
use shared::wire::operator::tail::TailMessages;
use shared::wire::topology::streams::INVOCATIONS;

use super::ask_hooks;
use crate::args::Common;
use crate::codes::explain_code;
use crate::connect::connect_bus;
use crate::output::{Cell, Column, LinePrinter, Table, View};
use crate::tail::Tail;

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
    let bus = connect_bus(common).await?;
    let list: HookList = ask_hooks(&bus, "list", &question).await?;
    let columns = [
        Column::id("HOOK"),
        Column::text("STATUS"),
        Column::number("FIRED"),
        Column::time("LAST FIRED"),
        Column::text("ORIGIN").extra(),
        Column::text("AUTHOR").extra(),
        Column::text("DETAIL"),
    ];
    let table = Table::new(&columns).with(&list.hooks, |hook| {
        let detail = hook
            .parse_error
            .as_ref()
            .or(hook.disabled_reason.as_ref())
            .or(hook.description.as_ref());
        [
            (&hook.id).into(),
            name(hook.status).into(),
            hook.trigger_count.into(),
            hook.last_triggered.into(),
            origin_text(&hook.origin).into(),
            (&hook.created_by).into(),
            detail.into(),
        ]
    });

    let count = format!("{} hooks", list.hooks.len());
    View::list(&list.hooks, table)?.line(count).show(common)
}

fn origin_text(origin: &HookOrigin) -> String {
    match origin {
        HookOrigin::File { root } => format!("directory {root}"),
        HookOrigin::Pushed => "push".to_owned(),
        HookOrigin::Tool => "tool".to_owned(),
    }
}

async fn get_details(bus: &Bus, id: String, invocations: u32) -> Result<HookDetails> {
    let question = GetHook {
        name: id,
        invocations: Some(invocations),
    };
    ask_hooks(bus, "get", &question).await
}

pub(super) async fn show_hook(common: &Common, id: String) -> Result<()> {
    let details = get_details(&connect_bus(common).await?, id, 10).await?;
    View::one(&details.hook.id, &details)?
        .fields(hook_fields(&details.hook))
        .table(invocation_table(&details.invocations))
        .line(&details.source)
        .show(common)
}

fn hook_fields(hook: &HookView) -> Vec<(&'static str, Cell)> {
    let mut fields: Vec<(&'static str, Cell)> = vec![
        ("hook", format!("{} ({})", hook.id, hook.name).into()),
        ("status", name(hook.status).into()),
        ("reason", hook.disabled_reason.as_ref().into()),
        ("error", hook.parse_error.as_ref().into()),
        ("description", hook.description.as_ref().into()),
        ("match", hook.match_rule.as_ref().into()),
        ("last error", hook.last_error.as_ref().into()),
    ];
    let schedules = hook.schedules.iter().map(|one| ("schedule", one.to_string().into()));
    fields.extend(schedules);
    fields.extend(hook.needs_channels.iter().map(|one| ("needs channel", one.into())));
    fields.extend(hook.allow_net.iter().map(|one| ("calls", one.into())));

    let origin = format!("{} by {}", origin_text(&hook.origin), hook.created_by);
    fields.extend([
        ("priority", hook.priority.to_string().into()),
        ("origin", origin.into()),
        ("fired", format!("{} times", hook.trigger_count).into()),
    ]);
    fields
}

fn invocation_table(rows: &[InvocationRow]) -> Table {
    let columns = [
        Column::clock("TIME"),
        Column::id("EVENT"),
        Column::text("OUTCOME"),
        Column::number("TOOK"),
        Column::text("LLM").extra(),
        Column::text("DETAIL"),
    ];
    Table::new(&columns).with(rows, invocation_cells)
}

fn invocation_cells(row: &InvocationRow) -> [Cell; 6] {
    let reason = row.reason.as_deref().map(explain_code);
    let detail = row
        .error
        .as_deref()
        .or(reason.as_deref())
        .or(row.dispatch_id.as_deref());
    let llm = match row.llm_calls {
        0 => String::new(),
        calls => format!("{calls}, ${:.4}", row.llm_cost_usd),
    };

    [
        row.started_at.into(),
        row.event_id.as_str().into(),
        (&row.outcome).into(),
        format!("{:.3} ms", row.latency_ms).into(),
        llm.into(),
        detail.into(),
    ]
}

pub(super) async fn show_logs(common: &Common, id: &str, limit: u32, follow: bool) -> Result<()> {
    let bus = connect_bus(common).await?;
    let mut tail = Tail::begin(
        &bus,
        TailMessages {
            streams: vec![INVOCATIONS.to_owned()],
            hook: Some(id.to_owned()),
            ..TailMessages::default()
        },
    );
    // The tail begins before the past is read, so that no record is missed in between.
    let mut arrived = if follow { tail.next(u64::MAX).await? } else { Vec::new() };
    let mut rows = get_details(&bus, id.to_owned(), limit).await?.invocations;
    rows.reverse();

    if !follow {
        return View::list(&rows, invocation_table(&rows))?.show(common);
    }

    let printer = LinePrinter::new(
        common,
        &[
            (Column::clock("TIME"), 12),
            (Column::id("EVENT"), 0),
            (Column::id("OUTCOME"), 7),
            (Column::number("TOOK"), 9),
            (Column::text("LLM"), 0),
            (Column::text("DETAIL"), 0),
        ],
    );
    let print = |row: &InvocationRow| printer.print(row.event_id.as_str(), row, &invocation_cells(row));
    rows.iter().try_for_each(print)?;

    let mut told = HashSet::new();
    loop {
        for message in std::mem::take(&mut arrived) {
            let read = message.payload.map(serde_json::from_value::<EventInvocations>);
            let Some(Ok(record)) = read else { continue };
            print_outcomes(&record, id, &mut told, &print)?;
        }
        arrived = tail.next(u64::MAX).await?;
    }
}

/// Prints the outcomes of the hook `id` in `record` that were not `told`.
fn print_outcomes(
    record: &EventInvocations,
    id: &str,
    told: &mut HashSet<u64>,
    print: &impl Fn(&InvocationRow) -> Result<()>,
) -> Result<()> {
    for hook in record.hooks.iter().filter(|hook| hook.hook_id == id) {
        // A second record of an event, for deferred hooks, repeats the results of the others.
        if !hook.outcome.is_deferred() && !told.insert(record.event_seq) {
            continue;
        }

        if told.len() > MAX_TOLD {
            *told = HashSet::from([record.event_seq]);
        }

        print(&invocation_row(record, hook))?;
    }

    Ok(())
}

/// Returns an invocation as the read model would hold it.
fn invocation_row(record: &EventInvocations, hook: &HookInvocation) -> InvocationRow {
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
