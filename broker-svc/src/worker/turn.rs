//! Runs one turn: begins it, asks the agent, ends it, and appends its entries.

use std::sync::PoisonError;
use std::time::Duration;

use shared::model::event::Attachment;
use shared::model::ledger::{LedgerEntry, TurnEnding, TurnFailure};
use shared::process::trace;
use tracing::Instrument as _;

use super::Worker;
use super::writing::{LastBeat, WritingBeats};
use crate::agent::absence::AgentAbsence;
use crate::agent::context::{ContextSettings, assemble_request};
use crate::agent::personas::Persona;
use crate::agent::port::{Agent, AgentAnswer, AskAgentError};
use crate::error::RunSessionError;
use crate::ledger::compaction::compaction_entry;
use crate::session::PendingDispatch;
use crate::turn::{Turn, works_for};
use shared::model::permission::combine::merge_permissions;

/// How a turn ended.
#[derive(Debug)]
pub(super) enum TurnOutcome {
    /// The agent answered in one piece.
    Answered(AgentAnswer),
    /// The model's last answer is in the ledger, or is staged.
    Settled {
        content: String,
        attachments: Vec<Attachment>,
    },
    /// The turn failed and is not repeated.
    Failed(TurnFailure),
    /// The turn waits for an approval: nothing of it is over.
    Suspended,
    /// The turn was canceled before its end.
    Canceled {
        reason: String,
        /// Text that the agent produced since the ledger's last entry.
        partial: String,
    },
}

impl TurnOutcome {
    /// Returns how the turn ended, for its post-turn hooks; `None` if it has not ended.
    const fn ending(&self) -> Option<TurnEnding> {
        match self {
            Self::Answered(_) | Self::Settled { .. } => Some(TurnEnding::Completed),
            Self::Failed(TurnFailure::Limit { .. }) => Some(TurnEnding::Limit),
            Self::Failed(TurnFailure::NoAgent | TurnFailure::Agent { .. } | TurnFailure::BadDispatch { .. }) => {
                Some(TurnEnding::Failed)
            }
            Self::Suspended => None,
            Self::Canceled { .. } => Some(TurnEnding::Interrupted),
        }
    }

    /// Returns whether the turn is over without a reply.
    fn ends_without_reply(&self) -> bool {
        match self {
            Self::Answered(AgentAnswer {
                content, attachments, ..
            })
            | Self::Settled { content, attachments } => content.is_empty() && attachments.is_empty(),
            Self::Canceled { .. } => true,
            // The reply to a failed turn says so.
            Self::Failed(_) | Self::Suspended => false,
        }
    }
}

impl Worker<'_> {
    /// Runs one turn for `pendings`; does nothing if there are none.
    pub(super) async fn run_turn(&mut self, pendings: &[PendingDispatch]) -> Result<(), RunSessionError> {
        let Some(pending) = pendings.last() else { return Ok(()) };
        let span = trace::consumer_span("broker.turn", &pending.carrier);
        span.record("event_id", tracing::field::display(&pending.dispatch.event_id));
        span.record("dispatch_id", tracing::field::display(pending.dispatch.id));
        span.record("session", tracing::field::display(&self.claimed.session));
        self.owner.carrier = trace::carrier_of(&span, &pending.carrier);
        self.turn_within(pendings).instrument(span).await
    }

    async fn turn_within(&mut self, pendings: &[PendingDispatch]) -> Result<(), RunSessionError> {
        let persona = self.broker.personas.persona_of(&self.claimed.session.persona);
        // The former attempt could not be recorded: the turn ends with the failure instead of failing again.
        if let Some(failure) = self.turns.take_failure() {
            let (turn, _) = self.begin_turn(pendings, persona, false);
            self.settle_outside().await?;
            self.end_turn(&turn, pendings, TurnOutcome::Failed(failure));
            return self.flush().await;
        }

        let agent = self.broker.agents.agent_of(persona.runner);
        let hooks = self
            .broker
            .hooks()
            .hooks_of(&self.claimed.session, &works_for(pendings));
        let hooked = !hooks.is_empty();
        // Without effects outside, several turns can share one append.
        if agent.is_pure() && !hooked {
            let (turn, ended) = self.answer_at_once(pendings, persona, agent.as_ref()).await;
            self.end_turn(&turn, pendings, ended);
            if self.turns.must_flush() {
                self.flush().await?;
            }
            return Ok(());
        }

        // From here on effects leave the broker: all earlier entries must be durable.
        self.flush().await?;
        let (turn, answered) = self.begin_turn(pendings, persona, true);
        self.owner.ensure_owned().await?;
        self.listen().await?;
        let (bus, clock) = (self.broker.bus.clone(), self.broker.clock.clone());
        let session = self.claimed.session.clone();
        let absence = AgentAbsence::for_turn(bus, clock, session, turn.id, &turn.origin().delivery);
        self.turns.begin_asking(absence);
        let origin = turn.origin();
        // A recorded answer is only sent.
        let writing = answered
            .is_none()
            .then(|| WritingBeats::begin(&self.broker.bus, turn.id, &origin));

        let ended = match (answered, agent.as_step_agent()) {
            (_, Some(stepper)) => Box::pin(self.run_stepped_turn(&turn, pendings, persona, stepper)).await?,
            (
                Some(AgentAnswer {
                    content,
                    attachments,
                    usage: _,
                }),
                None,
            ) => TurnOutcome::Settled { content, attachments },
            (None, None) => Box::pin(self.ask_agent(&turn, pendings, persona, agent.as_ref())).await?,
        };

        // A turn that is suspended has no end yet: its entries are kept as they are.
        self.turns.end_asking();
        drop(writing);

        if matches!(ended, TurnOutcome::Suspended) {
            return self.flush().await;
        }

        // Intents are part of the answer's text, and must not reach the user.
        let ended = self.extract_intents(&turn, ended).await?;
        self.settle_outside().await?;
        self.end_turn(&turn, pendings, ended);
        self.flush().await?;

        self.keep_up().await
    }

    /// Stages the turn's beginning, unless the ledger has it already; then the second value is the answer that the
    /// agent had given, if it had.
    fn begin_turn(
        &mut self,
        pendings: &[PendingDispatch],
        persona: &Persona,
        compacts: bool,
    ) -> (Turn, Option<AgentAnswer>) {
        // Logged if the session fails later: by then the dispatches are gone.
        let named = pendings
            .last()
            .map(|last| (last.dispatch.event_id.clone(), last.dispatch.id));
        *self.claimed.begun.lock().unwrap_or_else(PoisonError::into_inner) = named;

        let session = &self.claimed.session;
        if let Some(running) = &self.owner.fold().running {
            let turn = Turn::from_running(session, self.owner.fold(), running, pendings);
            let answered = turn.recorded_answer(self.owner.fold()).flatten();
            return (turn, answered);
        }

        let now = self.broker.clock.now();
        // A due reset starts a new history before the turn, not after it.
        if let Some(reason) = persona.reset.due_reason(self.owner.fold().active_at, now) {
            self.owner.stage_entry(LedgerEntry::SessionReset { reason });
        }

        if compacts && let Some(compacted) = compaction_entry(self.owner.fold(), &persona.limits) {
            self.owner.stage_entry(compacted);
        }

        let presets = &self.broker.personas.permission_levels;
        let mut turn = Turn::for_pendings(session, self.owner.fold(), pendings, &persona.limits, presets);
        // The persona's ceiling narrows every turn, independent of its dispatches.
        if let Some(ceiling) = &persona.permissions {
            turn.permissions = merge_permissions(&[&turn.permissions, ceiling], presets);
        }

        self.owner.stage_entry(turn.started_entry());
        (turn, None)
    }

    /// Runs the whole turn of an agent without effects outside: nothing of the turn is appended yet.
    async fn answer_at_once(
        &mut self,
        pendings: &[PendingDispatch],
        persona: &Persona,
        agent: &dyn Agent,
    ) -> (Turn, TurnOutcome) {
        let (turn, answered) = self.begin_turn(pendings, persona, false);
        if let Some(answer) = answered {
            return (turn, TurnOutcome::Answered(answer));
        }

        let presets = &self.broker.personas.permission_levels;
        let setting = ContextSettings {
            persona,
            tools: &[],
            presets,
        };

        let now = self.broker.clock.now();
        let request = assemble_request(setting, &self.claimed.session, self.owner.fold(), &turn, pendings, now);
        let timeout = Duration::from_millis(persona.limits.wall_ms);
        let ended = match agent.answer_request(&request, &turn.origin(), timeout).await {
            Ok(answer) => TurnOutcome::Answered(answer),
            Err(error) => TurnOutcome::Failed(failure_of(&error)),
        };

        (turn, ended)
    }

    /// Stages the turn's end, with its approvals, post-turn hooks and cursor.
    pub(super) fn end_turn(&mut self, turn: &Turn, pendings: &[PendingDispatch], ended: TurnOutcome) {
        self.canceled = None;
        self.stop_awaiting("its turn is over");
        // No approval may stay open for a turn that has ended: a later decision would lead to nothing.
        self.give_up_approvals();
        let sequences = self.machine.own_sequences();
        // The cursor moves with the turn's end, in the same record: so each dispatch is consumed exactly once.
        let cursor = self.cursor_after(&sequences);

        // The hooks need the running turn, which its end clears: their entry comes first.
        if let Some(ending) = ended.ending() {
            self.owe_hooks(turn, pendings, ending);
        }
        if ended.ends_without_reply() {
            self.turns.note_last_beat(LastBeat::of_turn(turn.id, &turn.origin()));
        }

        let text: usize = pendings.iter().map(|p| p.dispatch.message.content.len()).sum();
        let label = match ended {
            TurnOutcome::Answered(answer) => {
                self.turns.note_staged(2 * answer.content.len() + text);
                for entry in turn.completed_entries(answer, cursor) {
                    self.owner.stage_entry(entry);
                }
                "completed"
            }
            TurnOutcome::Settled { content, attachments } => {
                self.owner.stage_entry(turn.settled_entry(content, attachments, cursor));
                "completed"
            }
            TurnOutcome::Failed(failure) => {
                tracing::warn!(session = %self.claimed.session, turn = %turn.id, ?failure, "turn failed");
                self.owner.stage_entry(turn.failed_entry(failure, cursor));
                "failed"
            }
            TurnOutcome::Suspended => return,
            TurnOutcome::Canceled { reason, partial } => {
                tracing::info!(session = %self.claimed.session, turn = %turn.id, reason, "turn interrupted");
                self.owner.stage_entry(turn.interrupted_entry(reason, partial, cursor));
                "interrupted"
            }
        };

        self.turns.note_end(pendings.iter().map(|p| p.dispatch.timestamp));
        metrics::counter!("nexus_broker_turns_total", "outcome" => label).increment(1);
    }

    /// Appends the staged entries, then publishes the replies that the ledger holds now.
    pub(super) async fn flush(&mut self) -> Result<(), RunSessionError> {
        self.owner.commit_staged().await?;
        self.turns.note_append();

        // Only messages that the ledger records are settled, because the sweeper relies on this. The sweeper must
        // look at a session with unanswered intents.
        let consumed = self.inbox.take_consumed();
        if self.owner.fold().intents.owed.is_empty() {
            self.broker
                .streams
                .with_settled(|settled| consumed.into_iter().for_each(|sequence| settled.add(sequence)));
        }

        self.mark_approvals().await;
        self.owner.publish_replies().await?;
        for beat in self.turns.take_last_beats() {
            beat.send(&self.broker.bus).await;
        }

        if self.owner.fold().running.is_none() {
            *self.claimed.begun.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }

        self.turns.measure(self.broker.clock.now());
        Ok(())
    }
}

/// Returns the failure of a pure agent: its first error is final, because it depends on nothing that could come back.
fn failure_of(error: &AskAgentError) -> TurnFailure {
    TurnFailure::Agent {
        error: error.to_string(),
    }
}
