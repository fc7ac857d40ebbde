//! Asks an agent that runs outside and answers whole. The question is repeated until it is answered or the turn's
//! limits end it.

use std::time::{Duration, Instant};

use shared::clock::pause;
use shared::model::approval::{ApprovalStatus, ConfirmationTerms};
use shared::model::ledger::{LedgerEntry, TurnFailure};
use shared::model::session::SessionRef;
use shared::wire::agent::AgentRequest;
use ulid::Ulid;

use super::Worker;
use super::approve::ended_decision;
use super::hooks::{HookedSteps, PointVerdict};
use super::turn::TurnOutcome;
use crate::agent::context::{ContextSettings, assemble_request};
use crate::agent::personas::{Persona, PersonaLimits};
use crate::agent::port::{Agent, AgentAnswer, AskAgentError};
use crate::approval::external_tool::is_outside;
use crate::approval::store::decision_of;
use crate::error::RunSessionError;
use crate::session::PendingDispatch;
use crate::turn::journal::RunningTurn;
use crate::turn::{NextStep, Turn, next_after};

/// Wait before a question is repeated if the configuration has no schedule.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// State of the unanswered questions of one turn.
#[derive(Debug, Default)]
pub(super) struct UnansweredQuestions {
    /// Number of questions asked so far.
    attempt: u32,
    malformed: u32,
    absent_since: Option<Instant>,
    /// Cost that the last model call may have had although it has no answer, US dollars; `None` if it is not known, or
    /// is recorded.
    lost_usd: Option<f64>,
}

impl UnansweredQuestions {
    /// Returns the step after a question that was asked at `asked` and ended at `ended` with `outcome`; `left_ms` is
    /// the time that the turn has left, milliseconds.
    pub(super) fn next_after(
        &mut self,
        outcome: Result<AgentAnswer, AskAgentError>,
        (asked, ended): (Instant, Instant),
        left_ms: u64,
        limits: &PersonaLimits,
    ) -> NextStep {
        self.attempt += 1;

        match &outcome {
            // Counted from the first attempt without an agent; each other result shows that one is there, and ends the
            // count.
            Err(AskAgentError::NoAgent) => {
                self.absent_since.get_or_insert(asked);
            }
            Err(AskAgentError::Malformed(_)) => {
                self.absent_since = None;
                self.malformed += 1;
            }
            Ok(_)
            | Err(
                AskAgentError::Silent(_)
                | AskAgentError::Unreachable(_)
                | AskAgentError::BrokeOff(_)
                | AskAgentError::Refused { .. }
                | AskAgentError::Waits(_),
            ) => self.absent_since = None,
        }

        let absent = self
            .absent_since
            .map_or(0, |since| duration_millis(ended.saturating_duration_since(since)));
        next_after(outcome, left_ms, absent, self.malformed, limits)
    }

    /// Notes the cost that a model call without an answer may have had, US dollars; `None` if it is not known.
    pub(super) const fn note_lost(&mut self, lost_usd: Option<f64>) {
        self.lost_usd = lost_usd;
    }

    /// Takes the cost of the last model call without an answer, US dollars; `None` if it is not known to this owner.
    pub(super) const fn take_lost(&mut self) -> Option<f64> {
        self.lost_usd.take()
    }

    /// Returns the wait before the next question.
    pub(super) fn wait(&self, schedule: &shared::retry::RetrySchedule) -> Duration {
        schedule.delay(self.attempt.max(1), 0.5).unwrap_or(ASK_AGAIN)
    }
}

/// Outcome for a turn whose agent says that it waits for an approval.
enum Waiting {
    /// The turn waits for the approval too.
    Suspended,
    /// The approval is decided: the agent is asked again.
    Decided,
    /// No such question was asked in this turn.
    Unknown,
}

/// Returns whether the agent of `turn` of `session` has asked `standing` by itself.
fn is_asked_in(standing: &ConfirmationTerms, turn: &Turn, session: &SessionRef) -> bool {
    let asked = standing.request.asked_in.as_deref();
    is_outside(asked) && asked.is_some_and(|asked| asked.turn == turn.id && asked.session == *session)
}

impl Worker<'_> {
    /// Appends the texts of hooks to the prompt, because the agent sees no steps of the turn.
    fn append_notes(&self, request: &mut AgentRequest) {
        let running = self.owner.fold().running.iter();
        for text in running.flat_map(|running| running.injected_texts()) {
            request.system_prompt.push_str("\n\n## Note\n");
            request.system_prompt.push_str(text);
        }
    }

    /// Asks `agent` until `turn` has its answer or its failure, or is canceled.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if the session has another owner or must be handed back.
    pub(super) async fn ask_agent(
        &mut self,
        turn: &Turn,
        pendings: &[PendingDispatch],
        persona: &Persona,
        agent: &dyn Agent,
    ) -> Result<TurnOutcome, RunSessionError> {
        let mut patience = UnansweredQuestions::default();
        let moment = self.hooked_turn(turn, pendings);
        // Hooks may deny the turn before the agent hears of it.
        match self.before_model(&moment, 1, &mut HookedSteps::default()).await? {
            PointVerdict::On => {}
            hooked @ (PointVerdict::Denied(_) | PointVerdict::Over) => return Ok(self.ended_by(hooked)),
        }

        loop {
            // Computed for each attempt: the limit holds for the turn, not for one request.
            let asked = self.broker.clock.monotonic();
            let left = duration_millis(self.time_left());
            if left == 0 {
                return Ok(Self::limit_reached("wall_ms"));
            }

            let timeout = Duration::from_millis(left.min(persona.limits.reply_timeout_ms));
            let setting = ContextSettings {
                persona,
                tools: &[],
                presets: &self.broker.personas.permission_levels,
            };

            let now = self.broker.clock.now();
            let mut request = assemble_request(setting, &self.claimed.session, self.owner.fold(), turn, pendings, now);
            request.deadline = now.plus(i64::try_from(left).unwrap_or(i64::MAX));

            self.append_notes(&mut request);

            let origin = turn.origin();
            // Another broker may have taken the session while the hooks ran.
            self.owner.check_live()?;
            let question = std::pin::pin!(agent.answer_request(&request, &origin, timeout));
            let Some(mut outcome) = self.wait_beside(question).await? else {
                return Ok(self.canceled_turn(String::new()));
            };

            // An approval that the agent invents must not suspend the turn for ever.
            if let Err(AskAgentError::Waits(approval)) = &outcome {
                match self.waits_for_word(turn, approval).await? {
                    Waiting::Suspended => return Ok(TurnOutcome::Suspended),
                    Waiting::Decided => {}
                    Waiting::Unknown => {
                        let error =
                            format!("the agent waits for approval `{approval}`, which its turn has not requested");
                        outcome = Err(AskAgentError::Malformed(error));
                    }
                }
            }

            let ended = self.broker.clock.monotonic();
            let left_ms = duration_millis(self.time_left());

            // The user sees that the agent is absent only if it stays so.
            match &outcome {
                Ok(_) => self.turns.note_answer(),
                Err(error) => self.not_answered(turn, error),
            }

            match patience.next_after(outcome, (asked, ended), left_ms, &persona.limits) {
                NextStep::Complete(mut answer) => {
                    return Ok(match self.after_model(&moment, &mut answer.content, &[]).await? {
                        PointVerdict::On => TurnOutcome::Answered(answer),
                        hooked @ (PointVerdict::Denied(_) | PointVerdict::Over) => self.ended_by(hooked),
                    });
                }
                NextStep::Fail(failure) => return Ok(TurnOutcome::Failed(failure)),
                NextStep::AskAgain => {
                    if !self.wait_to_ask_again(&patience).await? {
                        return Ok(self.canceled_turn(String::new()));
                    }
                }
            }
        }
    }

    /// Suspends the turn whose agent waits for `approval`, unless that approval is decided.
    async fn waits_for_word(&mut self, turn: &Turn, approval: &str) -> Result<Waiting, RunSessionError> {
        let Ok(id) = approval.parse::<Ulid>() else {
            return Ok(Waiting::Unknown);
        };
        let standing = self.broker.desk().get(&id.to_string()).await?;
        let Some(standing) = standing.filter(|standing| is_asked_in(standing, turn, &self.claimed.session)) else {
            return Ok(Waiting::Unknown);
        };

        if standing.status != ApprovalStatus::Pending {
            return Ok(Waiting::Decided);
        }

        let request = standing.request;
        tracing::info!(session = %self.claimed.session, approval = request.id, tool = request.tool, "agent is waiting for an approval");

        // An agent's own question suspends its turn only once it is recorded a second time.
        let known = self.owner.fold().running.as_ref();
        if known.is_none_or(|running| !running.has_asked(&request.id)) {
            let request = request.clone();
            self.owner.stage_entry(LedgerEntry::ApprovalRequested { request });
        }

        self.owner.stage_entry(LedgerEntry::ApprovalRequested { request });
        self.owner.commit_staged().await?;

        // The approval may have been decided before the ledger recorded the question.
        Ok(match self.is_suspended() {
            true => Waiting::Suspended,
            false => Waiting::Decided,
        })
    }

    /// Stages how the questions that the turn's agent asked by itself ended, before the turn ends. KV decides the
    /// end; a call of a finished turn must not be approved.
    pub(super) async fn settle_outside(&mut self) -> Result<(), RunSessionError> {
        let running = self.owner.fold().running.iter();
        let open: Vec<String> = running
            .flat_map(RunningTurn::open_outside)
            .map(|asked| asked.approval.clone())
            .collect();
        if open.is_empty() {
            return Ok(());
        }

        // If another broker owns the turn, the turn and its questions go on.
        self.owner.ensure_owned().await?;

        for approval in open {
            self.broker
                .desk()
                .write_ledger_status(&approval, ApprovalStatus::Canceled)
                .await?;
            let standing = self.broker.desk().get(&approval).await?;
            let gone = || ended_decision(&approval, ApprovalStatus::Canceled, None);
            let decision = standing.as_ref().map_or_else(gone, decision_of);
            self.stage_decision(decision);
        }

        Ok(())
    }

    pub(super) fn not_answered(&self, turn: &Turn, error: &AskAgentError) {
        tracing::info!(session = %self.claimed.session, turn = %turn.id, %error, "agent call failed");
        self.turns.note_error(error);
    }

    /// Waits before the next question. Returns whether the turn goes on.
    pub(super) async fn wait_to_ask_again(&mut self, patience: &UnansweredQuestions) -> Result<bool, RunSessionError> {
        let wait = std::pin::pin!(pause(patience.wait(&self.broker.config.agent_retry)));
        Ok(self.wait_beside(wait).await?.is_some())
    }

    /// Returns the end of a turn that the machine wants canceled; `partial` is the text that it had produced.
    pub(super) fn canceled_turn(&mut self, partial: String) -> TurnOutcome {
        let reason = self.canceled.take().unwrap_or_else(|| "canceled".to_owned());
        TurnOutcome::Canceled { reason, partial }
    }

    /// Returns the failure of a turn that reached `limit`.
    pub(super) fn limit_reached(limit: &str) -> TurnOutcome {
        TurnOutcome::Failed(TurnFailure::Limit {
            limit: limit.to_owned(),
        })
    }
}

pub(super) fn duration_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
