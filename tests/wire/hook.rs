//! One value of every schema of what is kept about a hook.

use shared::breaker::{Breaker, BreakerState};
use shared::model::hook::{
    FiredOnce, HookContextPatch, HookResult, HookSpend, HookState, HookStatus, StoredAnswer, StoredAnswers, Transcript,
};

use crate::samples::{AT, id, result, some};

pub(crate) fn breaker() -> Breaker {
    Breaker {
        hook_id: "work/route".to_owned(),
        content_hash: "0a1b".to_owned(),
        failures: 5,
        circuit: BreakerState::HalfOpen {
            by: "hook-svc-1/webchat:1".to_owned(),
            until: AT.plus(35_000),
        },
        last_error_at: Some(AT),
        recent: None,
    }
}

pub(crate) fn hook_state() -> HookState {
    HookState {
        trigger_count: 4,
        last_triggered: Some(AT),
        last_error: some("TypeError"),
        status: HookStatus::Disabled,
        fired_once: Some(FiredOnce {
            event_id: id(),
            result: result(),
        }),
        counted: Vec::new(),
    }
}

pub(crate) const fn hook_spend() -> HookSpend {
    HookSpend {
        calls: 3,
        tokens_in: 1_200,
        tokens_out: 80,
        micro_usd: 1_840,
        held_micro_usd: 0,
    }
}

pub(crate) fn stored_answers() -> StoredAnswers {
    StoredAnswers {
        answers: vec![
            StoredAnswer::Fired {
                hook_id: "mom-2fa-helper".to_owned(),
                result: Box::new(result()),
            },
            StoredAnswer::Passed {
                hook_id: "flight-checkin".to_owned(),
            },
        ],
    }
}

/// The answer of a hook that has had a recording written down.
pub(crate) fn answers_with_transcripts() -> StoredAnswers {
    let transcripts = vec![Transcript {
        index: 1,
        text: "hello".to_owned(),
    }];
    let result = HookResult {
        fire: true,
        context: Some(HookContextPatch {
            transcripts,
            ..HookContextPatch::default()
        }),
        ..HookResult::default()
    };
    StoredAnswers {
        answers: vec![StoredAnswer::Fired {
            hook_id: "transcribe-voice".to_owned(),
            result: Box::new(result),
        }],
    }
}
