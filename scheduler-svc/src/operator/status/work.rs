//! Backlogs, and what an operator should look at. A state that cannot be read is reported as unknown.

use shared::breaker::{Breaker, BreakerState};
use shared::bus::{Bus, Kv, KvSurvey, ReadStreamError, partition};
use shared::model::pairing::Pairing;
use shared::model::pairing_api::{PairingState, PairingView, view_pairings};
use shared::model::schedule::ScheduleRecord;
use shared::wire::envelope::WireMessage;
use shared::wire::held::{HELD_LETTER, HeldMessage, HeldUntil};
use shared::wire::operator::status::{
    Known, MAX_NAMED, PairingCount, QuarantinedSession, ScheduleCount, Surveyed, WitnessedStream, WorkStatus,
};
use shared::wire::session_mark::SessionMark;
use shared::wire::subject;
use shared::wire::topology::{PARTITIONS, buckets, streams};
use shared::wire::witness::WitnessedPosition;

use crate::operator::OperatorContext;

/// Returns what is to be done.
pub(super) async fn read(context: &OperatorContext) -> WorkStatus {
    let bus = &context.bus;
    WorkStatus {
        hooks: partition::count_unsettled(bus, streams::EVENTS, "hook").await.into(),
        deliveries: deliveries(bus).await.into(),
        parked: count_messages(bus, streams::PARKED).await,
        restored: bus.count_restored_replies().await.into(),
        dead_letters: dead_letters(bus).await.into(),
        claimed: count_messages(bus, streams::CLAIMS).await,
        quarantined: survey(&bus.kv(buckets::SESSION_OVERRIDES), quarantined).await,
        held: survey(&bus.held_bucket(), |held| count_open(&held)).await,
        witnessed: witnessed(bus).await.into(),
        paused_hooks: survey(&bus.kv(buckets::BREAKERS), paused_hooks).await,
        schedules: survey(&bus.kv(buckets::SCHEDULES), |all| count_schedules(&all)).await,
        pairings: pairings(context).await.into(),
    }
}

/// Returns the number of messages in `stream`.
async fn count_messages(bus: &Bus, stream: &str) -> Known<u64> {
    bus.stream_state(stream).await.map(|state| state.messages).into()
}

/// Returns what `find` finds among the values in `kv`, with the number of things that it does not name, and that some
/// values cannot be read.
async fn survey<T: WireMessage, F>(kv: &Kv<T>, find: impl FnOnce(Vec<T>) -> (F, usize)) -> Known<Surveyed<F>> {
    kv.survey().await.map(|survey| surveyed(survey, find)).into()
}

fn surveyed<T, F>(survey: KvSurvey<T>, find: impl FnOnce(Vec<T>) -> (F, usize)) -> Surveyed<F> {
    let unread = unread_text(&survey.unread);
    let values = survey.entries.into_iter().map(|(_, entry)| entry.value);
    let (found, unnamed) = find(values.collect());
    Surveyed { found, unnamed, unread }
}

/// Returns that values cannot be read, if there are any, and the first of them.
fn unread_text(unread: &[(String, String)]) -> Option<String> {
    let (key, error) = unread.first()?;
    let count = unread.len();
    Some(format!(
        "{count} values cannot be read, the first of them {key}: {error}"
    ))
}

/// Returns the first [`MAX_NAMED`] of `all`, and the number of the others.
fn cut<T>(mut all: Vec<T>) -> (Vec<T>, usize) {
    let unnamed = all.len().saturating_sub(MAX_NAMED);
    all.truncate(MAX_NAMED);
    (all, unnamed)
}

/// Returns the number of messages that wait for destinations.
async fn deliveries(bus: &Bus) -> Result<u64, ReadStreamError> {
    let mut waiting = 0;
    for partition in 0..PARTITIONS {
        let consumer = format!("delivery-{partition}");
        waiting += bus.consumer_lag(streams::DELIVERIES, &consumer).await?.total_lag();
    }
    Ok(waiting)
}

/// Returns the number of dead letters, without those of held messages, which remain after the decision.
async fn dead_letters(bus: &Bus) -> Result<u64, ReadStreamError> {
    let held = subject::dlq(HELD_LETTER);
    let letters = bus.list_subjects(streams::DLQ, ">").await?;
    let given_up = letters.iter().filter(|(subject, _)| **subject != held);
    Ok(given_up.map(|(_, count)| count).sum())
}

/// Returns the number of held messages without a decision.
fn count_open(held: &[HeldMessage]) -> (usize, usize) {
    let open = held.iter().filter(|held| held.wanted == HeldUntil::Decided);
    (open.count(), 0)
}

fn count_schedules(all: &[ScheduleRecord]) -> (ScheduleCount, usize) {
    let paused = all.iter().filter(|record| record.paused.is_some()).count();
    (ScheduleCount { all: all.len(), paused }, 0)
}

fn quarantined(marks: Vec<SessionMark>) -> (Vec<QuarantinedSession>, usize) {
    let all = marks.into_iter().filter_map(|mark| {
        Some(QuarantinedSession {
            session: mark.session,
            why: mark.quarantined?,
        })
    });
    cut(all.collect())
}

fn paused_hooks(breakers: Vec<Breaker>) -> (Vec<String>, usize) {
    let open = breakers
        .into_iter()
        .filter(|breaker| !matches!(breaker.circuit, BreakerState::Closed));
    cut(open.map(|breaker| breaker.hook_id).collect())
}

async fn witnessed(bus: &Bus) -> Result<Surveyed<Vec<WitnessedStream>>, ReadStreamError> {
    let positions: Kv<WitnessedPosition> = bus.kv(buckets::POSITIONS);
    let mut survey = positions.survey().await?;
    // Under the keys of these two streams the bucket holds another record: the time since which a message has waited.
    let waits = [streams::DELIVERIES, streams::DISPATCHES];
    survey.unread.retain(|(stream, _)| !waits.contains(&stream.as_str()));
    let unread = survey
        .unread
        .first()
        .map(|(stream, error)| format!("{stream}: {error}"));

    let streams = survey.entries.into_iter().map(|(stream, entry)| WitnessedStream {
        stream,
        unsettled_until: entry.value.unsettled_until(),
    });
    Ok(Surveyed {
        found: streams.collect(),
        unnamed: 0,
        unread,
    })
}

async fn pairings(context: &OperatorContext) -> Result<Surveyed<PairingCount>, ReadStreamError> {
    let records = context.bus.pairing_records().await?;
    let pairings: Kv<Pairing> = context.bus.kv(buckets::PAIRINGS);
    let survey = pairings.survey().await?;
    let now = context.clock.now();
    Ok(surveyed(survey, |pairings| {
        count_pairings(&view_pairings(pairings, records, now))
    }))
}

fn count_pairings(views: &[PairingView]) -> (PairingCount, usize) {
    let count = |state: PairingState| views.iter().filter(|view| view.state == state).count();
    let restored = views
        .iter()
        .filter(|view| view.is_restored)
        .map(|view| format!("{} of {}/{}", view.sender, view.channel, view.account));
    let (restored, unnamed) = cut(restored.collect());
    let counted = PairingCount {
        paired: count(PairingState::Paired),
        waiting: count(PairingState::Waiting),
        restored,
    };
    (counted, unnamed)
}
