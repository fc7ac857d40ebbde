//! What the streams and buckets say in the end, against what was promised.

use std::collections::BTreeMap;
use std::path::Path;

use sha2::{Digest as _, Sha256};
use shared::bus::partition;
use shared::model::dispatch::Dispatch;
use shared::model::hook::{HookRecord, HookState, HookStatus, StoredAnswer, StoredAnswers};
use shared::model::invocation::{EventInvocations, HookOutcome};
use shared::model::time::UnixMillis;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::subject::token;
use shared::wire::topology::buckets::{HOOK_RESULTS, HOOK_STATE, HOOKS};
use shared::wire::topology::streams::{DISPATCHES, DLQ, EVENTS, INVOCATIONS};
use tests::record::read_all;
use tests::world::World;

use super::sender::{Sent, said};

/// Longest time, ms, for which a replica that takes part may evaluate with an edit that was replaced; the machine is
/// overloaded, and both replicas may be down.
const STALE_MS: i64 = 60_000;

/// What was done.
#[derive(Debug)]
pub(super) struct Played {
    /// Events, each once.
    pub(super) sent: Vec<Sent>,
    /// When which edit of `edited` was saved, from 1 on.
    pub(super) edits: Vec<UnixMillis>,
    /// `once-1` to this.
    pub(super) made: u32,
    /// Lives of `again`.
    pub(super) lives: u32,
}

/// Everything that breaks a promise, in words; and for how long, ms, an edit was evaluated that had been replaced.
pub(super) async fn faults(world: &World, agents: &Path, played: &Played) -> (Vec<String>, i64) {
    let mut faults = Vec::new();
    let unsettled = partition::count_unsettled(&world.bus, EVENTS, "hook").await;
    if !matches!(unsettled, Ok(0)) {
        return (vec![format!("not everything is settled: {unsettled:?}")], 0);
    }

    let records: Vec<(u64, EventInvocations)> = read_all(&world.bus, INVOCATIONS).await;
    let dispatches: Vec<(u64, Dispatch)> = read_all(&world.bus, DISPATCHES).await;

    let dead: Vec<(u64, DeadLetter)> = read_all(&world.bus, DLQ).await;
    for (_, letter) in dead.iter().take(3) {
        faults.push(format!("dead letter: {} {}", letter.reason, letter.detail));
    }

    let mut by_event: BTreeMap<&str, Vec<&EventInvocations>> = BTreeMap::new();
    for (_, record) in &records {
        by_event.entry(record.event_id.as_str()).or_default().push(record);
    }

    let mut fired: BTreeMap<(&str, &str), Vec<&Dispatch>> = BTreeMap::new();
    for (_, dispatch) in &dispatches {
        let key = (dispatch.event_id.as_str(), dispatch.hook_id.as_str());
        fired.entry(key).or_default().push(dispatch);
    }

    recorded(&by_event, &fired, &mut faults);
    let answers = world.bus.kv::<StoredAnswers>(HOOK_RESULTS);
    for sent in &played.sent {
        let id = sent.id.as_str();
        let count = by_event.get(id).map_or(0, Vec::len);
        if count != 1 {
            faults.push(format!("{id}: {count} records"));
        }

        let of = |hook: &'static str| fired.get(&(id, hook)).map_or(&[][..], Vec::as_slice);
        let stored = match sent.channel {
            "ask" | "fall" => answers.get(&token(id)).await.ok().flatten().map(|entry| entry.value),
            _ => None,
        };
        if let Some(fault) = upon(sent.channel, of, stored.as_ref()) {
            faults.push(format!("{id}: {fault}"));
        }

        if faults.len() > 20 {
            return (faults, 0);
        }
    }

    one_shots(world, &dispatches, played, &mut faults).await;
    registry(world, agents, played, &mut faults).await;

    let stale = staleness(&records, &played.edits);
    if stale > STALE_MS {
        faults.push(format!("an edit was evaluated {stale} ms after it was replaced"));
    }

    (faults, stale)
}

/// At most one dispatch of a hook upon an event; every fire that is recorded is dispatched, and every dispatch recorded
/// where its hook was still there when its event was evaluated again.
fn recorded(
    by_event: &BTreeMap<&str, Vec<&EventInvocations>>,
    fired: &BTreeMap<(&str, &str), Vec<&Dispatch>>,
    faults: &mut Vec<String>,
) {
    for ((event, hook), dispatches) in fired {
        if dispatches.len() > 1 {
            faults.push(format!("{event}: {} dispatches of {hook}", dispatches.len()));
        }

        let known = by_event
            .get(event)
            .into_iter()
            .flatten()
            .any(|record| names(record, hook));

        if !known && *hook != "comes" {
            faults.push(format!("{event}: a dispatch of {hook}, which the record does not name"));
        }
    }

    for (event, records) in by_event {
        for hook in records.iter().flat_map(|record| &record.hooks) {
            let is_there = fired.contains_key(&(*event, hook.hook_id.as_str()));
            match &hook.outcome {
                HookOutcome::Fired { .. } if !is_there => {
                    faults.push(format!("{event}: {} fired and made no dispatch", hook.hook_id));
                }
                HookOutcome::Failed { error, .. } => faults.push(format!("{event}: {} failed: {error}", hook.hook_id)),
                HookOutcome::Skipped { reason } => faults.push(format!("{event}: {} skipped: {reason}", hook.hook_id)),
                // A second record says what it did.
                HookOutcome::Deferred => {}
                HookOutcome::Fired { .. } | HookOutcome::Passed | HookOutcome::Suppressed { .. } => {}
            }
        }
    }
}

fn names(record: &EventInvocations, hook: &str) -> bool {
    record.hooks.iter().any(|invocation| invocation.hook_id == hook)
}

/// What is wrong with the dispatches upon an event of `channel`; `stored`: what was decided before it was dispatched.
fn upon<'a>(
    channel: &str,
    of: impl Fn(&'static str) -> &'a [&'a Dispatch],
    stored: Option<&StoredAnswers>,
) -> Option<String> {
    let answer = |hook: &'static str| stored?.answers.iter().find(|answer| answer.hook_id() == hook);
    let expect = |hook: &'static str, wanted: usize| {
        let found = of(hook).len();
        (found != wanted).then(|| format!("{found} dispatches of {hook}"))
    };
    match channel {
        "chaos" => ["answer", "flips", "edited"]
            .into_iter()
            .find_map(|hook| expect(hook, 1)),
        "read" => expect("reads", 1).or_else(|| {
            let session = &of("reads")[0].target.session;
            (session != "n-1").then(|| format!("the read model showed {session}"))
        }),
        "ask" => expect("asks", 1).or_else(|| {
            let went = &of("asks")[0].target.session;
            let said = match answer("asks") {
                Some(StoredAnswer::Fired { result, .. }) => result.routing.as_ref().and_then(|to| to.session.as_ref()),
                Some(StoredAnswer::Passed { .. }) | None => None,
            };
            (said != Some(went)).then(|| format!("went to {went}, decided was {said:?}"))
        }),
        "fall" => {
            let (maybe, falls) = (of("maybe").len(), of("falls").len());
            let decided = match answer("maybe") {
                Some(StoredAnswer::Fired { .. }) => (1, 0),
                Some(StoredAnswer::Passed { .. }) => (0, 1),
                None => return Some(format!("{maybe} of maybe, {falls} of falls, and nothing is decided")),
            };

            ((maybe, falls) != decided).then(|| format!("{maybe} of maybe, {falls} of falls, decided were {decided:?}"))
        }
        other => Some(format!("nobody sends to {other}")),
    }
}

/// Every one-shot that was made fired once, and is disabled.
async fn one_shots(world: &World, dispatches: &[(u64, Dispatch)], played: &Played, faults: &mut Vec<String>) {
    let mut by_session: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, dispatch) in dispatches {
        *by_session.entry(dispatch.target.session.as_str()).or_default() += 1;
    }

    let once = (1..=played.made).map(|number| format!("once-{number}"));
    let lives = (1..=played.lives).map(|number| format!("life-{number}"));
    for session in once.chain(lives) {
        let count = by_session.get(session.as_str()).copied().unwrap_or(0);
        if count != 1 {
            faults.push(format!("{session} fired {count} times"));
        }
    }

    let states = world.bus.kv::<HookState>(HOOK_STATE);
    for number in 1..=played.made {
        let state = states.get(&token(&format!("once-{number}"))).await;
        let state = state.ok().flatten().map(|entry| entry.value).unwrap_or_default();
        if state.status != HookStatus::Disabled || state.trigger_count != 1 {
            faults.push(format!(
                "once-{number} is {:?} and counted {}",
                state.status, state.trigger_count
            ));
        }
    }
}

/// The registry holds what the directory holds, and the folder of hooks that tools made what the registry does.
async fn registry(world: &World, agents: &Path, played: &Played, faults: &mut Vec<String>) {
    let hooks = world.bus.kv::<HookRecord>(HOOKS);
    let files = std::fs::read_dir(world.path().join("hooks")).expect("the hooks directory");
    for file in files {
        let path = file.expect("a file").path();
        let id = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .expect("a name")
            .to_owned();

        let hash = hash(&std::fs::read(&path).expect("readable"));
        let record = hooks.get(&token(&id)).await.ok().flatten().map(|entry| entry.value);
        let is_same =
            |record: &HookRecord| record.enabled && record.content_hash == hash && record.parse_error.is_none();
        if !record.as_ref().is_some_and(is_same) {
            faults.push(format!("{id} is not in the registry as its file says: {record:?}"));
        }
    }

    for number in 1..=played.made {
        let name = format!("once-{number}");
        let record = hooks.get(&token(&name)).await.ok().flatten().map(|entry| entry.value);
        let file = std::fs::read_to_string(agents.join(format!("{name}.ts"))).ok();
        if record.is_none() || record.map(|record| record.source) != file {
            faults.push(format!("{name} has another file than its entry says"));
        }
    }
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// For how long, at most, an edit was evaluated that had been replaced, ms.
fn staleness(records: &[(u64, EventInvocations)], edits: &[UnixMillis]) -> i64 {
    let of = |record: &EventInvocations| {
        let version: usize = said(record)?.strip_prefix("v-")?.parse().ok()?;
        // Edit n is the n-th of the list; the one that replaced it comes next.
        Some(record.started_at.since(*edits.get(version)?))
    };

    records
        .iter()
        .filter_map(|(_, record)| of(record))
        .max()
        .unwrap_or(0)
        .max(0)
}
