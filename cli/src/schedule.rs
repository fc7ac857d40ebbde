//! `nexus schedule`: lists schedules and sends commands to the scheduler.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use shared::bus::Bus;
use shared::clock::{Clock as _, SystemClock};
use shared::model::schedule::ScheduleRecord;
use shared::model::schedule_api::{
    BackfillSchedule, ListSchedules, OneSchedule, PauseSchedule, PreviewSchedule, ScheduleFired, ScheduleList,
    SchedulePreview,
};

use crate::args::{Common, ScheduleAction};
use crate::connect::connect_bus;
use crate::output::{Cell, Column, Table, View, Zone};
use crate::service::call_service;
use crate::when::parse_when;

/// Longest time that an answer may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the command.
///
/// # Errors
/// Fails if no scheduler answers, or if the scheduler refuses.
pub async fn execute(common: &Common, action: ScheduleAction) -> Result<()> {
    let now = SystemClock.now();
    match action {
        ScheduleAction::List { prefix } => {
            let list: ScheduleList = ask_scheduler(common, "list", &ListSchedules { prefix }).await?;
            list_schedules(common, &list)
        }
        ScheduleAction::Show { id } => change(common, "show", &OneSchedule { id }).await,
        ScheduleAction::Next { schedule, zone, limit } => {
            let question = preview_request(schedule, zone, limit);
            show_next(common, &ask_scheduler(common, "next", &question).await?)
        }
        ScheduleAction::Pause { id, reason: note } => {
            let by = "operator".to_owned();
            change(common, "pause", &PauseSchedule { id, note, by }).await
        }
        ScheduleAction::Resume { id } => change(common, "resume", &OneSchedule { id }).await,
        ScheduleAction::Fire { id } => show_fired(common, &ask_scheduler(common, "fire", &OneSchedule { id }).await?),
        ScheduleAction::Backfill { id, since, until } => {
            let from = parse_when("--since", &since, now)?;
            let until = match until {
                Some(text) => parse_when("--until", &text, now)?,
                None => now,
            };
            let question = BackfillSchedule { id, from, until };
            show_fired(common, &ask_scheduler(common, "backfill", &question).await?)
        }
    }
}

async fn ask_scheduler<Q: Serialize, A: DeserializeOwned>(common: &Common, endpoint: &str, question: &Q) -> Result<A> {
    let bus: Bus = connect_bus(common).await?;
    let subject = format!("nexus.svc.schedule.{endpoint}");
    call_service(&bus, "scheduler-svc", &subject, question, TIMEOUT).await
}

/// Sends `question` to `endpoint`, and shows the schedule that it returns.
async fn change<Q: Serialize>(common: &Common, endpoint: &str, question: &Q) -> Result<()> {
    let record: ScheduleRecord = ask_scheduler(common, endpoint, question).await?;
    show_schedule(common, &record)
}

/// Returns the preview request for `schedule`: an id has a colon before its first space, and a schedule text has its
/// kind there.
fn preview_request(schedule: String, zone: Option<String>, limit: usize) -> PreviewSchedule {
    let is_text = ["every ", "cron ", "rrule ", "at "]
        .iter()
        .any(|kind| schedule.starts_with(kind));
    let (id, text) = if is_text {
        (None, Some(schedule))
    } else {
        (Some(schedule), None)
    };

    PreviewSchedule {
        id,
        schedule: text,
        zone,
        after: None,
        count: Some(limit),
    }
}

/// Returns whether a schedule is active, paused or over.
const fn state_name(record: &ScheduleRecord) -> &'static str {
    match (&record.paused, &record.next) {
        (Some(_), _) => "paused",
        (None, Some(_)) => "active",
        (None, None) => "over",
    }
}

fn list_schedules(common: &Common, answer: &ScheduleList) -> Result<()> {
    let columns = [
        Column::id("ID"),
        Column::text("SCHEDULE"),
        Column::text("ZONE"),
        Column::text("STATE"),
        Column::time("NEXT"),
        Column::number("FIRED"),
        Column::number("SKIPPED").extra(),
    ];
    let table = Table::new(&columns).with(&answer.schedules, |record| {
        let next = record.next.as_ref().filter(|_| record.paused.is_none());
        [
            (&record.spec.id).into(),
            (&record.spec.schedule).into(),
            (&record.spec.zone).into(),
            state_name(record).into(),
            next.map(|next| next.nominal).into(),
            record.fired.into(),
            record.skipped.into(),
        ]
    });

    let count = format!("{} schedules", answer.schedules.len());
    View::list(&answer.schedules, table)?.line(count).show(common)
}

/// Shows one schedule; its times are those of the wall clock in its own zone.
fn show_schedule(common: &Common, record: &ScheduleRecord) -> Result<()> {
    let spec = &record.spec;
    let zone = Zone::named(&spec.zone);
    let state = match &record.paused {
        Some(pause) if !pause.note.is_empty() => format!("paused: {}", pause.note),
        Some(_) | None => state_name(record).to_owned(),
    };
    let last = record.last.map(|last| {
        let (nominal, at) = (zone.with_offset(last.nominal), zone.with_offset(last.at));
        format!("{nominal}, decided at {at}")
    });

    let policies = serde_json::to_string(&spec.policies).context("failed to write the policies")?;
    let fields = [
        ("id", Cell::from(&spec.id)),
        ("schedule", (&spec.schedule).into()),
        ("zone", (&spec.zone).into()),
        ("target", format!("{} {}", spec.target.kind(), spec.target.id()).into()),
        ("state", state.into()),
        (
            "next",
            record.next.as_ref().map(|next| zone.with_offset(next.nominal)).into(),
        ),
        ("last", last.into()),
        ("fired", record.fired.into()),
        ("skipped", record.skipped.into()),
        ("policies", policies.into()),
    ];

    View::one(&spec.id, record)?.fields(fields).show(common)
}

/// Shows the coming times of a schedule, by the wall clock of its zone.
fn show_next(common: &Common, answer: &SchedulePreview) -> Result<()> {
    let zone = Zone::named(&answer.zone);
    let times: Vec<String> = answer
        .firings
        .iter()
        .map(|firing| {
            let jitter = firing.due.since(firing.nominal);
            let delay = if jitter > 0 {
                format!(" (+{jitter} ms)")
            } else {
                String::new()
            };
            format!("{}{delay}", zone.with_offset(firing.nominal))
        })
        .collect();

    View::of(answer)?.ids(times.clone()).line(times.join("\n")).show(common)
}

fn show_fired(common: &Common, answer: &ScheduleFired) -> Result<()> {
    let events: Vec<_> = answer.events.iter().map(|id| json!({ "event_id": id })).collect();
    let table = Table::new(&[Column::id("EVENT")]).with(&answer.events, |id| [id.into()]);
    View::list(&events, table)?.show(common)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_told_from_ids() {
        assert_eq!(
            preview_request("hook:a:0".to_owned(), None, 3).id.as_deref(),
            Some("hook:a:0")
        );
        assert_eq!(
            preview_request("every 5m".to_owned(), None, 3).schedule.as_deref(),
            Some("every 5m")
        );
    }
}
