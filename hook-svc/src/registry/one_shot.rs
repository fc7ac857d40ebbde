//! Last fire of a one-shot hook, and of a hook that disables itself: decides which event wins. *Pure.*
//!
//! The decision is a value of KV `hook_state`; it counts once its compare-and-set succeeded, which is before the
//! dispatch is published. The value holds the winning event and its result, so that the winner, if redelivered,
//! publishes the same dispatch, and every other event loses.

use shared::model::event::EventId;
use shared::model::hook::{FiredOnce, HookResult, HookState, HookStatus};
use shared::model::time::UnixMillis;

use crate::evaluation::record::{HOOK_DISABLED, ONE_SHOT_ALREADY_FIRED};

/// Most counted occurrences that are remembered: more than are tried again at once for one hook.
const MAX_COUNTED: usize = 64;

/// A fire that is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredFire {
    /// Id of the hook.
    pub hook_id: String,
    /// Result of the hook.
    pub result: HookResult,
}

/// Decision about a hook's last fire.
#[derive(Debug, Clone, PartialEq)]
pub enum OneShotVerdict {
    /// The event wins once this state is stored.
    Win(Box<HookState>),
    /// The event won before with this result, which counts.
    Won(Box<HookResult>),
    /// The fire is suppressed, for this reason.
    Lost(&'static str),
}

/// Decides the last fire for the occurrence `key`, given the hook's `state`; `result` is the hook's current result.
#[must_use]
pub fn last_fire(state: Option<&HookState>, key: &EventId, result: &HookResult, now: UnixMillis) -> OneShotVerdict {
    let state = state.cloned().unwrap_or_default();
    match &state.fired_once {
        Some(fired) if fired.event_id == *key => OneShotVerdict::Won(Box::new(fired.result.clone())),
        Some(_) => OneShotVerdict::Lost(ONE_SHOT_ALREADY_FIRED),
        None if state.status == HookStatus::Disabled => OneShotVerdict::Lost(HOOK_DISABLED),
        None => OneShotVerdict::Win(Box::new(HookState {
            trigger_count: state.trigger_count.saturating_add(1),
            last_triggered: Some(now),
            status: HookStatus::Disabled,
            fired_once: Some(FiredOnce {
                event_id: key.clone(),
                result: result.clone(),
            }),
            last_error: state.last_error,
            counted: state.counted,
        })),
    }
}

/// Returns the state of a hook that asks to be disabled without having fired; `None` if it already is.
#[must_use]
pub fn retired_state(state: Option<&HookState>) -> Option<HookState> {
    let state = state.cloned().unwrap_or_default();
    (state.status != HookStatus::Disabled).then_some(HookState {
        status: HookStatus::Disabled,
        ..state
    })
}

/// Returns the state of a hook whose breaker implies `status`; `None` if it already has that status, or is disabled or
/// errored.
#[must_use]
pub fn shown_state(state: Option<&HookState>, status: HookStatus) -> Option<HookState> {
    let state = state.cloned().unwrap_or_default();
    match state.status {
        HookStatus::Active | HookStatus::Degraded | HookStatus::Waiting | HookStatus::Paused => {
            (state.status != status).then_some(HookState { status, ..state })
        }
        HookStatus::Disabled | HookStatus::Errored => None,
    }
}

/// Run-time events of a hook since its state was last written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HookTally {
    /// Number of fires.
    pub fires: u64,
    /// Time of the last fire.
    pub last_triggered: Option<UnixMillis>,
    /// Text of the last error.
    pub last_error: Option<String>,
}

/// Returns `state` with `tally` added.
#[must_use]
pub fn tallied_state(state: Option<&HookState>, tally: &HookTally) -> HookState {
    let state = state.cloned().unwrap_or_default();
    HookState {
        trigger_count: state.trigger_count.saturating_add(tally.fires),
        last_triggered: state.last_triggered.max(tally.last_triggered),
        last_error: tally.last_error.clone().or(state.last_error),
        status: state.status,
        fired_once: state.fired_once,
        counted: state.counted,
    }
}

/// Returns the state of a hook that fired for the occurrence `key` at `now`; `None` if that fire is already counted.
#[must_use]
pub fn counted_state(state: Option<&HookState>, key: &EventId, now: UnixMillis) -> Option<HookState> {
    let mut state = state.cloned().unwrap_or_default();
    if state.counted.contains(key) {
        return None;
    }

    state.counted.push(key.clone());
    let beyond = state.counted.len().saturating_sub(MAX_COUNTED);
    state.counted.drain(..beyond);

    Some(HookState {
        trigger_count: state.trigger_count.saturating_add(1),
        last_triggered: state.last_triggered.max(Some(now)),
        ..state
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u32) -> EventId {
        EventId::parse(format!("webchat:{number}")).expect("valid")
    }

    fn fire() -> HookResult {
        HookResult {
            fire: true,
            ..HookResult::default()
        }
    }

    #[test]
    fn the_first_wins_repeats_itself_and_the_second_loses() {
        let OneShotVerdict::Win(state) = last_fire(None, &event(1), &fire(), UnixMillis(5)) else {
            panic!("it wins")
        };
        assert_eq!((state.status, state.trigger_count), (HookStatus::Disabled, 1));

        let other = HookResult {
            disable_hook: true,
            ..fire()
        };
        assert_eq!(
            last_fire(Some(&state), &event(1), &other, UnixMillis(6)),
            OneShotVerdict::Won(Box::new(fire()))
        );

        let lost = last_fire(Some(&state), &event(2), &fire(), UnixMillis(6));
        assert_eq!(lost, OneShotVerdict::Lost(ONE_SHOT_ALREADY_FIRED));
    }

    #[test]
    fn a_hook_that_retired_does_not_fire() {
        let state = retired_state(None).expect("it was active");
        assert_eq!(retired_state(Some(&state)), None);
        assert_eq!(
            last_fire(Some(&state), &event(1), &fire(), UnixMillis(5)),
            OneShotVerdict::Lost(HOOK_DISABLED)
        );
    }

    #[test]
    fn a_breaker_pauses_and_frees_active_hooks_only() {
        let (active, degraded, paused) = (HookStatus::Active, HookStatus::Degraded, HookStatus::Paused);
        let state = shown_state(None, paused).expect("it was active");
        assert_eq!(state.status, paused);
        assert_eq!(shown_state(Some(&state), paused), None);

        for status in [active, degraded] {
            assert_eq!(
                shown_state(Some(&state), status).map(|state| state.status),
                Some(status)
            );
        }

        let disabled = retired_state(None).expect("it was active");
        assert!(
            [active, degraded, paused]
                .iter()
                .all(|status| shown_state(Some(&disabled), *status).is_none())
        );
    }

    #[test]
    fn a_tally_adds_up_and_changes_nothing_else() {
        let OneShotVerdict::Win(state) = last_fire(None, &event(1), &fire(), UnixMillis(5)) else {
            panic!("it wins")
        };

        let tally = HookTally {
            fires: 2,
            last_triggered: Some(UnixMillis(3)),
            last_error: Some("boom".to_owned()),
        };
        let after = tallied_state(Some(&state), &tally);
        assert_eq!((after.trigger_count, after.last_triggered), (3, Some(UnixMillis(5))));
        assert_eq!(
            (after.last_error.as_deref(), after.status),
            (Some("boom"), HookStatus::Disabled)
        );

        assert_eq!(after.fired_once, state.fired_once);
    }

    #[test]
    fn a_fire_is_counted_once_however_often_it_is_tried() {
        let first = counted_state(None, &event(1), UnixMillis(5)).expect("new");
        assert_eq!(counted_state(Some(&first), &event(1), UnixMillis(9)), None);
        let mut state = first;
        for number in 2..100 {
            state = counted_state(Some(&state), &event(number), UnixMillis(i64::from(number))).expect("new");
        }
        assert_eq!((state.trigger_count, state.last_triggered), (99, Some(UnixMillis(99))));
        assert_eq!(state.counted.len(), MAX_COUNTED);
        assert_eq!(counted_state(Some(&state), &event(99), UnixMillis(199)), None);
    }
}
