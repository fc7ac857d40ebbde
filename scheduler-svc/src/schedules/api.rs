//! `nexus.svc.schedule.{list,show,next,pause,resume,fire,backfill}`: schedules for operators, served by any replica.

use shared::bus::ServiceSpec;
use shared::model::schedule::{LastFiring, MAX_NOTE_BYTES, SchedulePause, ScheduleRecord};
use shared::model::schedule_api::{
    BackfillSchedule, ListSchedules, MAX_FIRINGS, OneSchedule, PREVIEWED, PauseSchedule, PreviewSchedule,
    ScheduleFired, ScheduleList, SchedulePreview,
};
use shared::model::time::UnixMillis;
use shared::schedule::admission::admit_schedule;
use shared::schedule::next_instants;

use super::event;
use super::keeper::{KeepScheduleError, ScheduleWriter, plan_of};

/// Maximum number of schedules in one response.
const MAX_LISTED: usize = 10_000;
const BAD_REQUEST: usize = 400;
const NOT_FOUND: usize = 404;
const CONFLICT: usize = 409;
const UNAVAILABLE: usize = 503;

/// Rejection of a request: code and text.
#[derive(Debug)]
pub struct ScheduleRejection(usize, String);

impl From<KeepScheduleError> for ScheduleRejection {
    fn from(error: KeepScheduleError) -> Self {
        let code = match &error {
            KeepScheduleError::Unknown { .. } => NOT_FOUND,
            KeepScheduleError::Contended { .. } => CONFLICT,
            KeepScheduleError::Schedule(_) | KeepScheduleError::EventId(_) => BAD_REQUEST,
            KeepScheduleError::Read(_)
            | KeepScheduleError::Write(_)
            | KeepScheduleError::Publish(_)
            | KeepScheduleError::Timer(_) => UNAVAILABLE,
        };

        Self(code, error.to_string())
    }
}

impl From<ScheduleRejection> for (usize, String) {
    fn from(refusal: ScheduleRejection) -> Self {
        (refusal.0, refusal.1)
    }
}

/// Builds the service over `keeper`; `zone` is the time zone of schedules that name none.
#[must_use]
pub fn service_spec(keeper: &ScheduleWriter, zone: &str) -> ServiceSpec {
    let (listing, showing, previewing, pausing) = (keeper.clone(), keeper.clone(), keeper.clone(), keeper.clone());
    let (resuming, firing, backfilling) = (keeper.clone(), keeper.clone(), keeper.clone());
    let zone = zone.to_owned();

    ServiceSpec::new("schedule", "What fires when")
        .endpoint("list", move |question: ListSchedules| {
            let keeper = listing.clone();
            async move { Ok(list(&keeper, &question).await?) }
        })
        .endpoint("show", move |question: OneSchedule| {
            let keeper = showing.clone();
            async move { Ok(read_schedule(&keeper, &question.id).await?) }
        })
        .endpoint("next", move |question: PreviewSchedule| {
            let (keeper, zone) = (previewing.clone(), zone.clone());
            async move { Ok(next(&keeper, question, &zone).await?) }
        })
        .endpoint("pause", move |order: PauseSchedule| {
            let keeper = pausing.clone();
            async move { Ok(pause_schedule(&keeper, order).await?) }
        })
        .endpoint("resume", move |order: OneSchedule| {
            let keeper = resuming.clone();
            async move { Ok(resume_schedule(&keeper, &order.id).await?) }
        })
        .endpoint("fire", move |order: OneSchedule| {
            let keeper = firing.clone();
            async move { Ok(fire_schedule(&keeper, &order.id).await?) }
        })
        .endpoint("backfill", move |order: BackfillSchedule| {
            let keeper = backfilling.clone();
            async move { Ok(backfill_schedule(&keeper, &order).await?) }
        })
}

async fn list(keeper: &ScheduleWriter, question: &ListSchedules) -> Result<ScheduleList, ScheduleRejection> {
    let entries = keeper
        .schedule_book()
        .kv()
        .entries()
        .await
        .map_err(KeepScheduleError::from)?;
    let mut schedules: Vec<ScheduleRecord> = entries
        .into_iter()
        .map(|(_, entry)| entry.value)
        .filter(|record| record.spec.id.starts_with(&question.prefix))
        .take(MAX_LISTED)
        .collect();
    schedules.sort_by(|one, other| one.spec.id.cmp(&other.spec.id));
    Ok(ScheduleList { schedules })
}

async fn read_schedule(keeper: &ScheduleWriter, id: &str) -> Result<ScheduleRecord, ScheduleRejection> {
    let entry = keeper.schedule_book().get(id).await.map_err(KeepScheduleError::from)?;
    let entry = entry.ok_or_else(|| KeepScheduleError::Unknown { id: id.to_owned() })?;
    Ok(entry.value)
}

async fn next(
    keeper: &ScheduleWriter,
    question: PreviewSchedule,
    zone: &str,
) -> Result<SchedulePreview, ScheduleRejection> {
    let after = question.after.unwrap_or_else(|| keeper.now());
    let count = question.count.unwrap_or(PREVIEWED).min(MAX_FIRINGS);
    match (question.id, question.schedule) {
        (Some(id), None) => {
            let record = read_schedule(keeper, &id).await?;
            let firings = plan_of(&record)
                .map_err(KeepScheduleError::from)?
                .next_firings(after, count);
            Ok(SchedulePreview {
                zone: record.spec.zone,
                firings,
            })
        }
        (None, Some(text)) => {
            let zone = question.zone.unwrap_or_else(|| zone.to_owned());
            // A preview must not show a schedule that no job may have.
            let schedule = admit_schedule(&text, &zone, after)
                .map_err(|error| ScheduleRejection(BAD_REQUEST, error.to_string()))?;
            let firings = next_instants(&schedule, after, count).into_iter();
            let firings = firings.map(|at| shared::model::schedule::NextFiring { nominal: at, due: at });

            Ok(SchedulePreview {
                zone,
                firings: firings.collect(),
            })
        }
        (Some(_), Some(_)) | (None, None) => Err(ScheduleRejection(
            BAD_REQUEST,
            "expected an id or a schedule".to_owned(),
        )),
    }
}

async fn pause_schedule(keeper: &ScheduleWriter, order: PauseSchedule) -> Result<ScheduleRecord, ScheduleRejection> {
    if order.note.len() > MAX_NOTE_BYTES {
        return Err(ScheduleRejection(
            BAD_REQUEST,
            format!("note: expected at most {MAX_NOTE_BYTES} bytes"),
        ));
    }

    keeper
        // Nothing may stay planned: the new generation voids all timers that are set.
        .change_record(&order.id, |record, now| {
            Ok(ScheduleRecord {
                paused: Some(SchedulePause {
                    note: order.note.clone(),
                    by: order.by.clone(),
                    at: now,
                }),
                next: None,
                buffered: None,
                firing: Vec::new(),
                generation: record.generation + 1,
                ..record.clone()
            })
        })
        .await
}

/// Resumes a schedule. Firings within the pause are neither fired nor counted as missed.
async fn resume_schedule(keeper: &ScheduleWriter, id: &str) -> Result<ScheduleRecord, ScheduleRejection> {
    keeper
        .change_record(id, |record, now| {
            if record.paused.is_none() {
                return Err(ScheduleRejection(CONFLICT, format!("schedule `{id}` is not paused")));
            }

            let decided_until = record.decided_until.max(now);
            let next = plan_of(record).map_err(KeepScheduleError::from)?.next(decided_until);

            Ok(ScheduleRecord {
                paused: None,
                decided_until,
                next,
                firing: Vec::new(),
                generation: record.generation + 1,
                ..record.clone()
            })
        })
        .await
}

/// Fires now, even if paused; the next firing does not change.
async fn fire_schedule(keeper: &ScheduleWriter, id: &str) -> Result<ScheduleFired, ScheduleRejection> {
    let fired = keeper.change_record(id, |record, now| {
        Ok::<_, ScheduleRejection>(firing_too(record, vec![now], now))
    });
    fired_events(&fired.await?)
}

async fn backfill_schedule(
    keeper: &ScheduleWriter,
    order: &BackfillSchedule,
) -> Result<ScheduleFired, ScheduleRejection> {
    let fired = keeper.change_record(&order.id, |record, now| {
        if order.until <= order.from || order.until > now {
            return Err(ScheduleRejection(
                BAD_REQUEST,
                "expected `since` before `until`, and `until` not in the future".to_owned(),
            ));
        }

        // A preview excludes its start, so it begins just before `from`. One more than allowed shows that there are
        // too many.
        let all = plan_of(record)
            .map_err(KeepScheduleError::from)?
            .next_firings(order.from.plus(-1), MAX_FIRINGS + 1);
        let wanted: Vec<UnixMillis> = all
            .into_iter()
            .map(|firing| firing.nominal)
            .filter(|nominal| *nominal < order.until)
            .collect();

        if wanted.len() > MAX_FIRINGS {
            return Err(ScheduleRejection(
                BAD_REQUEST,
                format!("the period has more than {MAX_FIRINGS} firings; choose a shorter one"),
            ));
        }

        Ok(firing_too(record, wanted, now))
    });

    fired_events(&fired.await?)
}

fn firing_too(record: &ScheduleRecord, firing: Vec<UnixMillis>, now: UnixMillis) -> ScheduleRecord {
    let last = firing.last().map(|nominal| LastFiring {
        nominal: *nominal,
        at: now,
    });

    ScheduleRecord {
        last: last.or(record.last),
        fired: record.fired + firing.len() as u64,
        firing,
        generation: record.generation + 1,
        ..record.clone()
    }
}

fn fired_events(record: &ScheduleRecord) -> Result<ScheduleFired, ScheduleRejection> {
    let ids = record.firing.iter().map(|nominal| {
        let event = event::firing_event(&record.spec, *nominal, *nominal).map_err(KeepScheduleError::from)?;
        Ok(event.id.as_str().to_owned())
    });
    Ok(ScheduleFired {
        events: ids.collect::<Result<_, KeepScheduleError>>()?,
    })
}
