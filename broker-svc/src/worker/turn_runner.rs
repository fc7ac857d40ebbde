//! What a worker counts and shows while it runs turns.

use shared::model::ledger::TurnFailure;
use shared::model::time::UnixMillis;

use super::seconds;
use crate::absence::Absence;
use crate::agent::port::AskAgentError;

/// Text staged at most before it is appended, bytes: records stay far below the server's largest payload.
const MAX_STAGED_BYTES: usize = 128 * 1_024;
/// Turns staged at most before they are appended.
const MAX_STAGED_TURNS: u32 = 8;

/// The turns of one worker: the one at hand, and those that are over.
#[derive(Debug, Default)]
pub(super) struct TurnRunner {
    /// Why the turn at hand is ended before anything is asked.
    hopeless: Option<TurnFailure>,
    /// Shows that the agent of the turn at hand cannot be asked.
    absence: Option<Absence>,
    /// Turns that are over.
    ended: u32,
    /// How often hooks of turns were asked.
    visits: u32,
    /// Text staged since the last append, bytes.
    staged_bytes: usize,
    /// When the dispatches were made of turns whose replies are not out: their latency is measured then.
    unmeasured: Vec<UnixMillis>,
}

impl TurnRunner {
    /// Creates a runner whose first turn ends with `failure` before anything is asked.
    pub(super) fn failing(failure: TurnFailure) -> Self {
        Self {
            hopeless: Some(failure),
            ..Self::default()
        }
    }

    /// Takes the failure with which the turn at hand ends at once.
    pub(super) const fn take_failure(&mut self) -> Option<TurnFailure> {
        self.hopeless.take()
    }

    /// Returns how many turns are over.
    pub(super) const fn ended(&self) -> u32 {
        self.ended
    }

    /// Counts one more time that hooks are asked, and returns its number.
    pub(super) const fn count_visit(&mut self) -> u32 {
        self.visits = self.visits.wrapping_add(1);
        self.visits
    }

    /// Shows with `absence` from now on that the turn's agent cannot be asked.
    pub(super) fn begin_asking(&mut self, absence: Absence) {
        self.absence = Some(absence);
    }

    /// Nobody is asked any more; the next turn shows its agent's absence by itself.
    pub(super) fn end_asking(&mut self) {
        self.absence = None;
    }

    /// Returns what shows that the turn's agent cannot be asked.
    pub(super) const fn absence(&self) -> Option<&Absence> {
        self.absence.as_ref()
    }

    /// The agent has answered: it is there.
    pub(super) fn note_answer(&self) {
        self.absence.iter().for_each(Absence::over);
    }

    /// The agent did not answer: shows whether it is away.
    pub(super) fn note_error(&self, error: &AskAgentError) {
        match error {
            AskAgentError::NoAgent
            | AskAgentError::Silent(_)
            | AskAgentError::Unreachable(_)
            | AskAgentError::Refused {
                error: _,
                retryable: true,
            } => self.absence.iter().for_each(|absence| absence.tell(&error.to_string())),
            AskAgentError::Malformed(_)
            | AskAgentError::Waits(_)
            | AskAgentError::Refused {
                error: _,
                retryable: false,
            } => self.note_answer(),
        }
    }

    /// Counts `bytes` of text as staged.
    pub(super) const fn note_staged(&mut self, bytes: usize) {
        self.staged_bytes += bytes;
    }

    /// Counts a turn as over whose dispatches were made at `dispatched`.
    pub(super) fn note_end(&mut self, dispatched: impl IntoIterator<Item = UnixMillis>) {
        self.ended += 1;
        self.unmeasured.extend(dispatched);
    }

    /// Returns whether what is staged must be appended before another turn begins.
    pub(super) const fn must_flush(&self) -> bool {
        self.staged_bytes > MAX_STAGED_BYTES || self.ended.is_multiple_of(MAX_STAGED_TURNS)
    }

    /// What was staged is appended.
    pub(super) const fn note_append(&mut self) {
        self.staged_bytes = 0;
    }

    /// Measures the turns whose replies are out, at `now`.
    pub(super) fn measure(&mut self, now: UnixMillis) {
        for dispatched in self.unmeasured.drain(..) {
            let took = u64::try_from(now.since(dispatched)).unwrap_or(0);
            metrics::histogram!("nexus_broker_turn_latency_seconds").record(seconds(took));
        }
    }
}
