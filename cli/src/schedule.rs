//! `nexus schedule`: lists schedules and sends commands to the scheduler.

use std::time::Duration;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Serialize, de::DeserializeOwned};
use shared::bus::Bus;
use shared::clock::{Clock as _, SystemClock};
use shared::model::schedule::ScheduleRecord;
use shared::model::schedule_api::{
    BackfillSchedule, ListSchedules, OneSchedule, PauseSchedule, PreviewSchedule, ScheduleFired, ScheduleList,
    SchedulePreview,
};
use shared::model::time::UnixMillis;
use shared::wire::headers::Headers;

use crate::args::{Common, ScheduleAction};
use crate::output::{brief, bus, json, table};
use crate::say;

/// Longest time that an answer may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the command.
///
/// # Errors
/// Fails if no scheduler answers, or if the scheduler refuses.
pub async fn execute(common: &Common, action: ScheduleAction) -> Result<()> {
    let bus = bus(common).await?;
    match action {
        ScheduleAction::List { prefix } => list(common, &ask(&bus, "list", &ListSchedules { prefix }).await?),
        ScheduleAction::Show { id } => show(common, &ask(&bus, "show", &OneSchedule { id }).await?),
        ScheduleAction::Next { schedule, zone, count } => {
            let question = question(schedule, zone, count);
            next(common, &ask(&bus, "next", &question).await?)
        }
        ScheduleAction::Pause { id, reason: note } => {
            let by = "operator".to_owned();
            show(common, &ask(&bus, "pause", &PauseSchedule { id, note, by }).await?)
        }
        ScheduleAction::Resume { id } => show(common, &ask(&bus, "resume", &OneSchedule { id }).await?),
        ScheduleAction::Fire { id } => fired(common, &ask(&bus, "fire", &OneSchedule { id }).await?),
        ScheduleAction::Backfill { id, from, until } => {
            let until = match until {
                Some(text) => instant(&text)?,
                None => SystemClock.now(),
            };
            let from = instant(&from)?;

            fired(
                common,
                &ask(&bus, "backfill", &BackfillSchedule { id, from, until }).await?,
            )
        }
    }
}

async fn ask<Q: Serialize, A: DeserializeOwned>(bus: &Bus, endpoint: &str, question: &Q) -> Result<A> {
    let subject = format!("nexus.svc.schedule.{endpoint}");
    let answer = bus.request(&subject, Headers::new(), question, TIMEOUT).await;
    answer.context("ask the scheduler")
}

/// Returns the preview request for `schedule`: an id has a colon before its first space, and a schedule text has its
/// kind there.
fn question(schedule: String, zone: Option<String>, count: usize) -> PreviewSchedule {
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
        count: Some(count),
    }
}

fn instant(text: &str) -> Result<UnixMillis> {
    let at: Timestamp = text
        .parse()
        .with_context(|| format!("`{text}`: expected 2026-11-22T09:00:00Z"))?;
    Ok(UnixMillis(at.as_millisecond()))
}

/// Returns `at` as the wall clock in `zone` shows it.
fn local(at: UnixMillis, zone: &str) -> String {
    let zone = TimeZone::get(zone).unwrap_or(TimeZone::UTC);
    let at = Timestamp::from_millisecond(at.0).unwrap_or_default().to_zoned(zone);
    at.strftime("%a %Y-%m-%d %H:%M:%S %:z").to_string()
}

fn state(record: &ScheduleRecord) -> String {
    match (&record.paused, &record.next) {
        (Some(pause), _) if pause.note.is_empty() => "paused".to_owned(),
        (Some(pause), _) => format!("paused: {}", brief(&pause.note, 30)),
        (None, Some(next)) => local(next.nominal, &record.spec.zone),
        (None, None) => "over".to_owned(),
    }
}

fn list(common: &Common, answer: &ScheduleList) -> Result<()> {
    if common.json {
        return json(&answer.schedules);
    }

    let mut rows = table(&["id", "schedule", "zone", "next", "fired", "skipped"]);
    for record in &answer.schedules {
        rows.add_row([
            record.spec.id.clone(),
            brief(&record.spec.schedule, 40),
            record.spec.zone.clone(),
            state(record),
            record.fired.to_string(),
            record.skipped.to_string(),
        ]);
    }

    say!("{rows}\n{} schedules", answer.schedules.len());
    Ok(())
}

fn show(common: &Common, record: &ScheduleRecord) -> Result<()> {
    if common.json {
        return json(record);
    }

    let zone = &record.spec.zone;
    let policies = &record.spec.policies;
    say!(
        "id        {}\nschedule  {}\nzone      {zone}",
        record.spec.id,
        record.spec.schedule
    );

    say!("target    {} {}", record.spec.target.kind(), record.spec.target.id());
    say!("next      {}", state(record));

    if let Some(last) = record.last {
        say!(
            "last      {}, decided at {}",
            local(last.nominal, zone),
            local(last.at, zone)
        );
    }

    say!("fired     {}\nskipped   {}", record.fired, record.skipped);
    say!(
        "policies  {}",
        serde_json::to_string(policies).context("write the policies")?
    );

    Ok(())
}

fn next(common: &Common, answer: &SchedulePreview) -> Result<()> {
    if common.json {
        return json(answer);
    }

    for firing in &answer.firings {
        let jitter = firing.due.since(firing.nominal);
        let put_off = if jitter > 0 {
            format!(" (+{jitter} ms)")
        } else {
            String::new()
        };

        say!("{}{put_off}", local(firing.nominal, &answer.zone));
    }

    Ok(())
}

fn fired(common: &Common, answer: &ScheduleFired) -> Result<()> {
    if common.json {
        return json(answer);
    }
    for event in &answer.events {
        say!("{event}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_told_from_ids() {
        assert_eq!(question("hook:a:0".to_owned(), None, 3).id.as_deref(), Some("hook:a:0"));
        assert_eq!(
            question("every 5m".to_owned(), None, 3).schedule.as_deref(),
            Some("every 5m")
        );
    }

    #[test]
    fn times_are_shown_in_the_schedules_zone() {
        let at = instant("2026-11-22T09:00:00Z").expect("an instant");
        assert_eq!(local(at, "America/New_York"), "Sun 2026-11-22 04:00:00 -05:00");
        assert!(instant("tomorrow").is_err());
    }
}
