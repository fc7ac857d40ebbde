//! Checks of the work: backlogs, dead letters, paused hooks, parked replies, pairings. A state that cannot be read is
//! reported as unknown: an empty list and an unreadable list are not the same.

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use shared::breaker::{Breaker, BreakerState};
use shared::bus::{Bus, Kv, KvEntry, partition};
use shared::clock::{Clock as _, SystemClock};
use shared::model::pairing::Pairing;
use shared::model::pairing_api::{PairingState, PairingView, view_pairings};
use shared::model::schedule::ScheduleRecord;
use shared::wire::envelope::WireMessage;
use shared::wire::held::{HELD_LETTER, HeldUntil};
use shared::wire::session_mark::SessionMark;
use shared::wire::subject;
use shared::wire::topology::{PARTITIONS, buckets, streams};
use shared::wire::witness::WitnessedPosition;

use super::{Finding, Surroundings};
use crate::output::Zone;

/// Returns the findings of `judge` about the values in `kv`, and a finding about the values that cannot be read.
async fn judged<T: WireMessage>(
    what: &str,
    kv: &Kv<T>,
    judge: impl FnOnce(Vec<KvEntry<T>>) -> Vec<Finding>,
) -> Vec<Finding> {
    let survey = match kv.survey().await {
        Ok(survey) => survey,
        Err(error) => return vec![Finding::unknown(what, error)],
    };

    let entries = survey.entries.into_iter().map(|(_, entry)| entry);
    let mut findings = judge(entries.collect());
    if let Some((key, error)) = survey.unread.first() {
        let count = survey.unread.len();
        let why = format!("{count} values cannot be read, the first of them {key}: {error}");
        findings.push(Finding::unknown(what, why));
    }

    findings
}

/// Reports the backlogs of hooks, sessions and destinations. A backlog is not a fault in itself.
pub(super) fn waiting(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    async {
        let Ok(bus) = &surroundings.bus else { return Vec::new() };
        let hooks = partition::count_unsettled(bus, streams::EVENTS, "hook").await;
        let deliveries = deliveries(bus).await;
        let counted = [
            ("hooks", hooks.map_err(|error| error.to_string())),
            ("deliveries", deliveries),
        ];

        let mut findings: Vec<Finding> = counted
            .map(|(what, counted)| match counted {
                Ok(waiting) => Finding::ok(what, format!("{waiting} messages are waiting")),
                Err(error) => Finding::unknown(what, error),
            })
            .into();

        findings.push(parked(bus).await);

        match crate::backup::waiting(bus).await {
            Ok(Some(count)) => {
                let detail = format!("{count} deliveries are held since a restore (`nexus restore --list`)");
                findings.push(Finding::warning("restored", detail));
            }
            Ok(None) => {}
            Err(error) => findings.push(Finding::unknown("restored", format!("{error:#}"))),
        }

        findings
    }
    .boxed_local()
}

/// Returns the number of messages that wait for destinations.
async fn deliveries(bus: &Bus) -> Result<u64, String> {
    let mut waiting = 0;
    for partition in 0..PARTITIONS {
        let consumer = format!("delivery-{partition}");
        let lag = bus.consumer_lag(streams::DELIVERIES, &consumer).await;
        waiting += lag.map_err(|error| error.to_string())?.total_lag();
    }
    Ok(waiting)
}

async fn parked(bus: &Bus) -> Finding {
    let state = match bus.stream_state(streams::PARKED).await {
        Ok(state) => state,
        Err(error) => return Finding::unknown("parked", error),
    };
    let detail = format!("{} replies are parked because their destinations fail", state.messages);
    if state.messages == 0 {
        Finding::ok("parked", detail)
    } else {
        Finding::warning("parked", detail)
    }
}

/// Checks for dead letters, which an operator must look at.
pub(super) fn dead_letters(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    async {
        let Ok(bus) = &surroundings.bus else { return Vec::new() };
        match bus.list_subjects(streams::DLQ, ">").await {
            Ok(letters) => {
                // `held` reports held messages, whose dead letter remains after the decision.
                let held = subject::dlq(HELD_LETTER);
                let given_up = letters.iter().filter(|(subject, _)| **subject != held);
                let count: u64 = given_up.map(|(_, count)| count).sum();
                let detail = format!("{count} (`nexus dlq list`)");
                vec![Finding::judged("dead letters", count == 0, detail)]
            }
            Err(error) => vec![Finding::unknown("dead letters", error)],
        }
    }
    .boxed_local()
}

/// Reports the sessions that run, and those that are quarantined.
pub(super) fn sessions(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    async {
        let Ok(bus) = &surroundings.bus else { return Vec::new() };
        let mut findings = vec![match bus.stream_state(streams::CLAIMS).await {
            Ok(state) => Finding::ok("sessions", format!("{} claimed", state.messages)),
            Err(error) => Finding::unknown("sessions", error),
        }];

        let marks: Kv<SessionMark> = bus.kv(buckets::SESSION_OVERRIDES);
        findings.extend(judged("quarantine", &marks, quarantined).await);
        findings
    }
    .boxed_local()
}

fn quarantined(marks: Vec<KvEntry<SessionMark>>) -> Vec<Finding> {
    let told = marks.into_iter().filter_map(|entry| {
        let (session, why) = (entry.value.session, entry.value.quarantined?);
        let detail = format!("{session} is quarantined: {why}; `nexus session release` lets it run");
        Some(Finding::fault("quarantine", detail))
    });
    told.collect()
}

/// Checks for held messages, and for streams that were put back to an older state.
pub(super) fn held(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    async {
        let Ok(bus) = &surroundings.bus else { return Vec::new() };
        let mut findings = judged("held", &bus.held_bucket(), |held| {
            let is_open = |wanted: HeldUntil| wanted == HeldUntil::Decided;
            let open = held.iter().filter(|entry| is_open(entry.value.wanted)).count();
            let detail = format!("{open} messages (`nexus recover list`)");
            vec![Finding::judged("held", open == 0, detail)]
        })
        .await;

        let witnessed: Kv<WitnessedPosition> = bus.kv(buckets::POSITIONS);
        findings.extend(positions(&witnessed).await);

        findings
    }
    .boxed_local()
}

async fn positions(witnessed: &Kv<WitnessedPosition>) -> Vec<Finding> {
    let survey = match witnessed.survey().await {
        Ok(survey) => survey,
        Err(error) => return vec![Finding::unknown("positions", error)],
    };

    // Under the keys of these two streams the bucket holds another record: the time since which a message has waited.
    let waits = [streams::DELIVERIES, streams::DISPATCHES];
    let unread = survey
        .unread
        .iter()
        .find(|(stream, _)| !waits.contains(&stream.as_str()));
    if let Some((stream, error)) = unread {
        return vec![Finding::unknown("positions", format!("{stream}: {error}"))];
    }

    let older: Vec<String> = survey
        .entries
        .iter()
        .filter_map(|(stream, entry)| {
            let until = entry.value.unsettled_until()?;
            Some(format!("{stream} (until {})", Zone::of_reader().date_time(until)))
        })
        .collect();

    if older.is_empty() {
        // Positions in the other streams are compared by the services, which report a void one under their own names.
        let compared: Vec<&str> = survey.entries.iter().map(|(stream, _)| stream.as_str()).collect();
        let detail = match compared.as_slice() {
            [] => "no stream has a witness yet".to_owned(),
            streams => format!("none of {} was restored to an earlier state", streams.join(", ")),
        };
        return vec![Finding::ok("positions", detail)];
    }

    let detail = format!("restored to an earlier state: {}", older.join(", "));
    vec![Finding::warning("positions", detail)]
}

/// Checks for hooks that are paused because they keep failing.
pub(super) fn hooks(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    async {
        let Ok(bus) = &surroundings.bus else { return Vec::new() };
        let breakers: Kv<Breaker> = bus.kv(buckets::BREAKERS);
        judged("paused hooks", &breakers, |breakers| vec![paused(breakers)]).await
    }
    .boxed_local()
}

fn paused(breakers: Vec<KvEntry<Breaker>>) -> Finding {
    let open = breakers
        .into_iter()
        .filter(|entry| !matches!(entry.value.circuit, BreakerState::Closed));
    let paused: Vec<String> = open.map(|entry| entry.value.hook_id).collect();

    let detail = format!("{} are paused after errors", paused.len());
    if paused.is_empty() {
        return Finding::ok("paused hooks", detail);
    }

    let detail = format!("{detail}: {} (`nexus breaker list`)", paused.join(", "));
    Finding::warning("paused hooks", detail)
}

/// Checks for schedules that are paused.
pub(super) fn schedules(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    async {
        let Ok(bus) = &surroundings.bus else { return Vec::new() };
        let schedules: Kv<ScheduleRecord> = bus.kv(buckets::SCHEDULES);
        judged("schedules", &schedules, |schedules| {
            let paused = schedules.iter().filter(|entry| entry.value.paused.is_some()).count();
            let detail = format!("{paused} of {} are paused", schedules.len());
            vec![Finding::ok("schedules", detail)]
        })
        .await
    }
    .boxed_local()
}

/// Checks for pairings whose value is older than the record of decisions: the bucket was restored or lost.
pub(super) fn pairings(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    async {
        let Ok(bus) = &surroundings.bus else { return Vec::new() };
        let records = match bus.pairing_records().await {
            Ok(records) => records,
            Err(error) => return vec![Finding::unknown("pairings", error)],
        };

        let pairings: Kv<Pairing> = bus.kv(buckets::PAIRINGS);
        judged("pairings", &pairings, |pairings| {
            let pairings = pairings.into_iter().map(|entry| entry.value).collect();
            vec![judge_pairings(&view_pairings(pairings, records, SystemClock.now()))]
        })
        .await
    }
    .boxed_local()
}

fn judge_pairings(views: &[PairingView]) -> Finding {
    let count = |state: PairingState| views.iter().filter(|view| view.state == state).count();
    let (paired, waiting) = (count(PairingState::Paired), count(PairingState::Waiting));
    let restored: Vec<String> = views
        .iter()
        .filter(|view| view.is_restored)
        .map(|view| format!("{} of {}/{}", view.sender, view.channel, view.account))
        .collect();

    let detail = format!("{paired} senders are paired, {waiting} have a code");
    if restored.is_empty() {
        return Finding::ok("pairings", detail);
    }

    let restored = restored.join(", ");
    Finding::warning(
        "pairings",
        format!(
            "{detail}; KV `pairings` is older than AUDIT about {restored}: what was withdrawn stays withdrawn, and what was \
             lost must be paired again (`nexus channel pairings`)"
        ),
    )
}
