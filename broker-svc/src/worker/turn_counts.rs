//! Counters and indicators of a worker that runs turns.

use shared::model::ledger::TurnFailure;
use shared::model::time::UnixMillis;

use super::millis_to_seconds;
use super::writing::LastBeat;
use crate::agent::absence::AgentAbsence;
use crate::agent::port::AskAgentError;

/// Maximum size of staged text before it is appended, bytes: records stay far below the server's largest payload.
const MAX_STAGED_BYTES: usize = 128 * 1_024;
/// Maximum number of staged turns before they are appended.
const MAX_STAGED_TURNS: u32 = 8;

/// Turns of one worker: the current one, and counts of the finished ones.
#[derive(Debug, Default)]
pub(super) struct TurnRunner {
    /// Failure with which the current turn ends before the agent is asked.
    hopeless: Option<TurnFailure>,
    /// Indicator that the agent of the current turn is unreachable.
    absence: Option<AgentAbsence>,
    /// Number of turns that are over.
    ended: u32,
    /// Number of times that hooks of turns were asked.
    visits: u32,
    /// Size of the text staged since the last append, bytes.
    staged_bytes: usize,
    /// Times at which the dispatches of turns without a published reply were made; their latency is measured at
    /// publication.
    unmeasured: Vec<UnixMillis>,
    /// Last beats of turns without a reply whose ends are staged.
    last_beats: Vec<LastBeat>,
}

impl TurnRunner {
    /// Creates a runner whose first turn ends with `failure` before the agent is asked.
    pub(super) fn failing(failure: TurnFailure) -> Self {
        Self {
            hopeless: Some(failure),
            ..Self::default()
        }
    }

    /// Takes the failure with which the current turn ends at once.
    pub(super) const fn take_failure(&mut self) -> Option<TurnFailure> {
        self.hopeless.take()
    }

    /// Returns how many turns are over.
    pub(super) const fn ended(&self) -> u32 {
        self.ended
    }

    /// Counts one more time that hooks are asked, and returns the new count.
    pub(super) const fn count_visit(&mut self) -> u32 {
        self.visits = self.visits.wrapping_add(1);
        self.visits
    }

    /// Uses `absence` from now on to show that the turn's agent is unreachable.
    pub(super) fn begin_asking(&mut self, absence: AgentAbsence) {
        self.absence = Some(absence);
    }

    /// Stops showing absence for this turn; the next turn brings its own indicator.
    pub(super) fn end_asking(&mut self) {
        self.absence = None;
    }

    /// Returns the indicator that the turn's agent is unreachable.
    pub(super) const fn absence(&self) -> Option<&AgentAbsence> {
        self.absence.as_ref()
    }

    /// Notes that the agent has answered and is therefore reachable.
    pub(super) fn note_answer(&self) {
        self.absence.iter().for_each(AgentAbsence::note_reachable);
    }

    /// Notes that the agent did not answer, and shows its absence if the error means that it is away.
    pub(super) fn note_error(&self, error: &AskAgentError) {
        match error {
            AskAgentError::NoAgent
            | AskAgentError::Silent(_)
            | AskAgentError::Unreachable(_)
            | AskAgentError::BrokeOff(_)
            | AskAgentError::Refused {
                error: _,
                retryable: true,
            } => self
                .absence
                .iter()
                .for_each(|absence| absence.note_unreachable(&error.to_string())),
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

    /// Counts a finished turn, whose dispatches were made at `dispatched`.
    pub(super) fn note_end(&mut self, dispatched: impl IntoIterator<Item = UnixMillis>) {
        self.ended += 1;
        self.unmeasured.extend(dispatched);
    }

    /// Keeps the last `beat`, if any, of a turn without a reply until its end is appended.
    pub(super) fn note_last_beat(&mut self, beat: Option<LastBeat>) {
        self.last_beats.extend(beat);
    }

    /// Takes the last beats of turns whose ends are appended.
    pub(super) fn take_last_beats(&mut self) -> Vec<LastBeat> {
        std::mem::take(&mut self.last_beats)
    }

    /// Returns whether much text is staged.
    pub(super) const fn has_staged_much(&self) -> bool {
        self.staged_bytes > MAX_STAGED_BYTES
    }

    /// Returns whether the staged entries must be appended before another turn begins.
    pub(super) const fn must_flush(&self) -> bool {
        self.has_staged_much() || self.ended.is_multiple_of(MAX_STAGED_TURNS)
    }

    /// Notes that the staged entries are appended.
    pub(super) const fn note_append(&mut self) {
        self.staged_bytes = 0;
    }

    /// Records the latency at `now` of the turns whose replies are published.
    pub(super) fn measure(&mut self, now: UnixMillis) {
        for dispatched in self.unmeasured.drain(..) {
            let took = u64::try_from(now.since(dispatched)).unwrap_or(0);
            metrics::histogram!("nexus_broker_turn_latency_seconds").record(millis_to_seconds(took));
        }
    }
}
