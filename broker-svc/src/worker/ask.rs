//! Asking an agent that works outside and answers whole: the question is repeated until it is answered or the turn's
//! limits end it.

use std::time::{Duration, Instant};

use shared::clock::pause;
use shared::model::ledger::TurnFailure;

use super::Worker;
use super::hooks::{Hooked, Paces};
use super::turn::Ended;
use crate::agent::Agent;
use crate::context::{Setting, assemble};
use crate::error::RunSessionError;
use crate::personas::{Limits, Persona};
use crate::session::Pending;
use crate::turn::{Answer, AskAgentError, Next, Turn, after};

/// Wait before a question is repeated where the configuration names none.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What is known of the questions of one turn that were not answered.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// Questions asked.
    attempt: u32,
    malformed: u32,
    absent_since: Option<Instant>,
}

impl Patience {
    /// A question was asked at `asked` and ended at `ended` with `outcome`; the turn has run for `spent_ms`. Says what
    /// follows.
    pub(super) fn after(
        &mut self,
        outcome: Result<Answer, AskAgentError>,
        (asked, ended): (Instant, Instant),
        spent_ms: u64,
        limits: &Limits,
    ) -> Next {
        self.attempt += 1;
        match &outcome {
            Err(AskAgentError::NoAgent) => {
                self.absent_since.get_or_insert(asked);
            }
            Err(AskAgentError::Malformed(_)) => {
                self.absent_since = None;
                self.malformed += 1;
            }
            Ok(_) | Err(AskAgentError::Silent(_) | AskAgentError::Unreachable(_) | AskAgentError::Refused { .. }) => {
                self.absent_since = None;
            }
        }
        let absent = self
            .absent_since
            .map_or(0, |since| millis(ended.saturating_duration_since(since)));
        after(outcome, spent_ms, absent, self.malformed, limits)
    }

    /// How long to wait before the next question.
    pub(super) fn wait(&self, schedule: &shared::retry::Schedule) -> Duration {
        schedule.delay(self.attempt.max(1), 0.5).unwrap_or(ASK_AGAIN)
    }
}

impl Worker<'_> {
    /// Asks `agent` until `turn` has its answer or its failure, or is cancelled.
    ///
    /// # Errors
    /// [`RunSessionError`] where the session is not ours any more or has to be handed back.
    pub(super) async fn ask(
        &mut self,
        turn: &Turn,
        pendings: &[Pending],
        persona: &Persona,
        agent: &dyn Agent,
    ) -> Result<Ended, RunSessionError> {
        let mut patience = Patience::default();
        let moment = self.moment(turn, pendings);
        match self.before_model(&moment, 1, &mut Paces::default()).await? {
            Hooked::On => {}
            hooked @ (Hooked::Denied(_) | Hooked::Over) => return Ok(self.ended_by(hooked)),
        }
        loop {
            let asked = self.broker.clock.monotonic();
            // Counted from the turn's beginning, whoever began it.
            let left = millis(self.left());
            if left == 0 {
                return Ok(Self::over("wall_ms"));
            }
            let timeout = Duration::from_millis(left.min(persona.limits.reply_timeout_ms));
            let setting = Setting {
                persona,
                tools: &[],
                presets: &self.broker.personas.permission_levels,
            };
            let now = self.broker.clock.now();
            let mut request = assemble(setting, &self.claimed.session, self.owner.fold(), turn, pendings, now);
            request.deadline = now.plus(i64::try_from(left).unwrap_or(i64::MAX));
            for text in self.owner.fold().running.iter().flat_map(|running| running.injected()) {
                request.system_prompt.push_str("\n\n## Note\n");
                request.system_prompt.push_str(text);
            }
            let origin = turn.origin();
            self.owner.live()?;
            let question = std::pin::pin!(agent.ask(&request, &origin, timeout));
            let Some(outcome) = self.beside(question).await? else {
                return Ok(self.cancelled_turn(String::new()));
            };
            let ended = self.broker.clock.monotonic();
            let spent = persona.limits.wall_ms.saturating_sub(millis(self.left()));
            if let Err(error) = &outcome {
                self.not_answered(turn, error);
            }
            match patience.after(outcome, (asked, ended), spent, &persona.limits) {
                Next::Complete(mut answer) => {
                    return Ok(match self.after_model(&moment, &mut answer.content, &[]).await? {
                        Hooked::On => Ended::Answered(answer),
                        hooked @ (Hooked::Denied(_) | Hooked::Over) => self.ended_by(hooked),
                    });
                }
                Next::Fail(failure) => return Ok(Ended::Failed(failure)),
                Next::AskAgain => {
                    if !self.wait_to_ask_again(&patience).await? {
                        return Ok(self.cancelled_turn(String::new()));
                    }
                }
            }
        }
    }

    pub(super) fn not_answered(&self, turn: &Turn, error: &AskAgentError) {
        tracing::info!(session = %self.claimed.session, turn = %turn.id, %error, "agent did not answer");
    }

    /// Waits; says whether the turn goes on.
    pub(super) async fn wait_to_ask_again(&mut self, patience: &Patience) -> Result<bool, RunSessionError> {
        let wait = std::pin::pin!(pause(patience.wait(&self.broker.config.agent_retry)));
        Ok(self.beside(wait).await?.is_some())
    }

    /// The end of a turn that the machine wants cancelled; `partial` is what it had said.
    pub(super) fn cancelled_turn(&mut self, partial: String) -> Ended {
        let reason = self.cancelled.take().unwrap_or_else(|| "cancelled".to_owned());
        Ended::Cancelled { reason, partial }
    }

    /// A limit of the turn is reached.
    pub(super) fn over(limit: &str) -> Ended {
        Ended::Failed(TurnFailure::Limit {
            limit: limit.to_owned(),
        })
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
