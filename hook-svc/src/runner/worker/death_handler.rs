//! After a worker's death: its answers are saved, the rest goes back to the board, and a hook is blamed.

use shared::error_chain::describe_error;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use super::{FRAMES_OF_A_WORKER, Run, State, WorkerDeath, WorkerRole};
use crate::runner::HookSource;
use crate::runner::crash_journal::JournalNote;
use crate::runner::in_flight::{CrashNote, FlightStage, InFlightEvent};

/// Longest text of a death's cause, in bytes.
const MAX_CAUSE_BYTES: usize = 500;

/// Hook that has killed a worker.
struct Culprit {
    hook: Arc<HookSource>,
    /// Whether the hook killed it by being loaded.
    at_load: bool,
}

impl Run<'_> {
    /// Gives back the events in flight and blames the hook that was running. Returns whether the process had done any
    /// work.
    pub(super) fn handle_death(self, death: &WorkerDeath) -> bool {
        let now = self.clock.monotonic();
        let (common, index, role) = (self.common, self.index, self.role);
        let mut state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let cause = describe_death(death);
        let note = state
            .note
            .as_ref()
            .and_then(|note| note.read().ok())
            .unwrap_or_default();

        let mut board = common.lock_board();
        let claimed = (!death.is_orderly())
            .then(|| find_culprit(&state, note, role))
            .flatten();

        // A hook that is called apart does not run beside others, unless it was called before it became a suspect.
        // Otherwise the claim is forged, and the forger is one of the hooks that ran.
        let is_forged = |culprit: &Culprit| {
            let can_run = role == WorkerRole::Apart || culprit.at_load || is_called(&state, note, &culprit.hook);
            !can_run && board.is_suspect(&culprit.hook, now)
        };
        let culprit = claimed.filter(|culprit| !is_forged(culprit));
        log_death(index, death, &cause, culprit.as_ref(), note, &state);
        state.up = None;

        let called = death.is_of_its_hooks().then(|| state.terms.first_slot()).flatten();
        let flights = salvage_flights(&mut state);
        if culprit.is_none() && role == WorkerRole::Beside && !death.is_orderly() {
            let ran = |(slot, flight): &&(u32, InFlightEvent)| flight.is_answered() || Some(*slot) == called;
            for (_, flight) in flights.iter().filter(ran) {
                let hooks = flight.loaded().set().hooks();
                let open = flight.open().into_iter().filter_map(|index| hooks.get(index as usize));
                open.for_each(|hook| board.record_suspect(hook, now));
            }
        }

        let mut open = Vec::new();
        for (slot, mut flight) in flights {
            // A hook that computed without end does not run again for this event, beside others or apart. A process may
            // also be killed from outside, or get no processor time: the hook that was running then has another chance,
            // apart.
            if death.is_of_who_ran()
                && note.slot == Some(slot)
                && let Some(Culprit { hook, .. }) = &culprit
                && let Some(index) = flight.loaded().set().index(&hook.id)
                && flight.fail_hooks(&[index], &format!("killed its worker: {cause}")) == FlightStage::Over
            {
                continue;
            }

            match flight.lost_worker(culprit.is_some() || death.is_orderly(), &cause) {
                FlightStage::UnderWay => open.push(flight),
                FlightStage::Apart => board.set_apart(flight),
                FlightStage::Over => {}
            }
        }

        if let Some(Culprit { hook, at_load }) = &culprit
            && board.record_death(hook, *at_load, &cause, now)
        {
            tracing::error!(
                hook_id = hook.id,
                cause,
                "hook suspended: it repeatedly crashes its worker"
            );
        }

        board.requeue_events(open, role == WorkerRole::Apart);

        if role == WorkerRole::Beside {
            board.worker_ended(index);
        }

        drop(board);
        common.queued.notify_one();
        common.apart.notify_one();
        common.changed.notify_waiters();

        state.frames >= FRAMES_OF_A_WORKER
    }
}

/// Returns the hook that was running; in a process that holds one suspect, that one.
fn find_culprit(state: &State<'_>, note: JournalNote, role: WorkerRole) -> Option<Culprit> {
    let at_load = note.running.is_some() && note.slot.is_none() && state.loading.is_some();
    let hook = match role {
        WorkerRole::Beside => {
            let loaded = state
                .known_sets()
                .find(|loaded| loaded.generation() == note.generation)?;
            loaded.set().hooks().get(note.running? as usize)?
        }
        WorkerRole::Apart => {
            let mine = state.mine.as_deref()?;
            let set = state.loading.as_ref().unwrap_or(&state.held).set();
            set.hooks().get(set.index(mine)? as usize)?
        }
    };

    let hook = Arc::clone(hook);
    Some(Culprit { hook, at_load })
}

/// Returns whether the event that the note names was handed over for `hook`, which has not answered.
fn is_called(state: &State<'_>, note: JournalNote, hook: &HookSource) -> bool {
    let flight = note.slot.and_then(|slot| state.in_flight.get(&slot));
    flight.is_some_and(|flight| {
        let index = flight.loaded().set().index(&hook.id);
        index.is_some_and(|index| flight.open().contains(&index))
    })
}

fn log_death(
    worker: usize,
    death: &WorkerDeath,
    cause: &str,
    culprit: Option<&Culprit>,
    note: JournalNote,
    state: &State<'_>,
) {
    if death.is_orderly() {
        tracing::debug!(worker, cause, "hook worker stopped");
        return;
    }

    let event = note
        .slot
        .and_then(|slot| state.in_flight.get(&slot))
        .map(|flight| flight.job().event_id.to_string());
    tracing::warn!(
        worker,
        cause,
        hook_id = culprit.map_or("", |culprit| culprit.hook.id.as_str()),
        event_id = event,
        in_flight = state.in_flight.len(),
        "hook worker died"
    );

    metrics::counter!("nexus_hook_worker_deaths_total").increment(1);
}

/// Returns the unfinished events in flight, in the order in which they were handed over.
fn salvage_flights(state: &mut State<'_>) -> Vec<(u32, InFlightEvent)> {
    let journal = state
        .note
        .as_ref()
        .and_then(|note| note.read_journal().ok())
        .unwrap_or_default();
    let mut noted: HashMap<u32, Vec<CrashNote>> = HashMap::new();
    for one in journal {
        noted.entry(one.slot).or_default().push(one);
    }

    let mut slots: Vec<(u32, InFlightEvent)> = state.in_flight.drain().collect();
    slots.sort_unstable_by_key(|(slot, _)| *slot);

    let mut flights = Vec::with_capacity(slots.len());
    for (slot, mut flight) in slots {
        // Of an event that was answered, only hooks that still waited are open, and those are not in the journal.
        let noted = noted.remove(&slot).filter(|_| !flight.is_answered());
        let stage = noted.map_or(FlightStage::UnderWay, |noted| flight.salvage_noted(noted));
        if stage != FlightStage::Over {
            flights.push((slot, flight));
        }
    }

    flights
}

/// Describes why the process died, in at most [`MAX_CAUSE_BYTES`] bytes: the error may quote a message of any length.
fn describe_death(error: &WorkerDeath) -> String {
    let mut cause = describe_error(error);
    cause.truncate(cause.floor_char_boundary(MAX_CAUSE_BYTES));
    cause
}
