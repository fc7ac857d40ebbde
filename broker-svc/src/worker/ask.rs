//! Asking an agent that works outside: the question is repeated until it is answered or the turn's limits end it.
//!
//! Meanwhile the session's subject is looked at each second and whenever it rings: the bell (a core subscription) may
//! ring twice or not at all, so data is always read from where the last look ended.

use std::time::{Duration, Instant};

use shared::bus::CoreSubscription;
use shared::clock::pause;
use shared::model::ledger::TurnFailure;
use shared::wire::subject;

use super::Worker;
use crate::agent::Agent;
use crate::context::{Setting, assemble};
use crate::error::RunSessionError;
use crate::inbox::LOOK_LIMIT;
use crate::personas::Persona;
use crate::session::{Effect, Pending};
use crate::turn::{Answer, AskAgentError, Next, Turn, after};

/// How often a running turn looks up: at its deadline, at the request to stop, at its queue.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Part of the drain time kept for handing the session back.
const HAND_BACK_BEFORE: Duration = Duration::from_secs(2);

impl Worker<'_> {
    /// Asks `agent` until `turn` has its answer or its failure. Effects of what arrives meanwhile go to `meanwhile`.
    ///
    /// # Errors
    /// [`RunSessionError`] where the session is not ours any more or has to be handed back.
    pub(super) async fn ask(
        &mut self,
        turn: &Turn,
        pending: &Pending,
        persona: &Persona,
        agent: &dyn Agent,
        meanwhile: &mut Vec<Effect>,
    ) -> Result<Result<Answer, TurnFailure>, RunSessionError> {
        let mut bell = self.bell().await;
        let begun = self.broker.clock.monotonic();
        let mut absent_since: Option<Instant> = None;
        let (mut attempt, mut malformed) = (0_u32, 0_u32);
        loop {
            attempt += 1;
            let asked_at = self.broker.clock.monotonic();
            let left = persona
                .limits
                .wall_ms
                .saturating_sub(millis(asked_at.saturating_duration_since(begun)));
            let timeout = Duration::from_millis(left.min(persona.limits.reply_timeout_ms).max(1));
            let setting = Setting {
                persona,
                tools: &[],
                presets: &self.broker.personas.permission_levels,
            };
            let now = self.broker.clock.now();
            let mut request = assemble(setting, &self.claimed.session, self.owner.fold(), turn, pending, now);
            request.deadline = now.plus(i64::try_from(left).unwrap_or(i64::MAX));
            let outcome = self.beside(agent.ask(&request, timeout), &mut bell, meanwhile).await?;
            let ended = self.broker.clock.monotonic();
            match &outcome {
                Err(AskAgentError::NoAgent) => {
                    absent_since.get_or_insert(asked_at);
                }
                Err(AskAgentError::Malformed(_)) => {
                    absent_since = None;
                    malformed += 1;
                }
                Ok(_)
                | Err(AskAgentError::Silent(_) | AskAgentError::Unreachable(_) | AskAgentError::Refused { .. }) => {
                    absent_since = None;
                }
            }
            if let Err(error) = &outcome {
                tracing::info!(
                    session = %self.claimed.session, turn = %turn.id, dispatch_id = %pending.dispatch.id,
                    event_id = %pending.dispatch.event_id, attempt, %error, "agent did not answer"
                );
            }
            let absent = absent_since.map_or(0, |since| millis(ended.saturating_duration_since(since)));
            match after(
                outcome,
                millis(ended.saturating_duration_since(begun)),
                absent,
                malformed,
                &persona.limits,
            ) {
                Next::Complete(answer) => return Ok(Ok(answer)),
                Next::Fail(failure) => return Ok(Err(failure)),
                Next::AskAgain => {
                    let wait = self.broker.config.agent_retry.delay(attempt, 0.5).unwrap_or(LOOK_EVERY);
                    self.beside(pause(wait), &mut bell, meanwhile).await?;
                }
            }
        }
    }

    /// Waits for `work`, looking up each second and at each ring.
    async fn beside<T>(
        &mut self,
        work: impl Future<Output = T>,
        bell: &mut Option<CoreSubscription>,
        meanwhile: &mut Vec<Effect>,
    ) -> Result<T, RunSessionError> {
        tokio::pin!(work);
        loop {
            let rung = async {
                match bell.as_mut() {
                    Some(bell) => bell.next().await.is_some(),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                open = rung => if !open { *bell = None },
                () = pause(LOOK_EVERY) => {}
            }
            self.look_up(meanwhile).await?;
        }
    }

    async fn look_up(&mut self, meanwhile: &mut Vec<Effect>) -> Result<(), RunSessionError> {
        if !self.claimed.hold.is_live() {
            return Err(RunSessionError::Stale);
        }
        if self.broker.overdue() {
            return Err(RunSessionError::HandBack);
        }
        if self.machine.waiting() < LOOK_LIMIT {
            let look = self.look().await?;
            meanwhile.extend(self.take_in(look).await?);
        }
        Ok(())
    }

    /// Listens to the session's subject. Without a bell the look each second finds the same, later.
    async fn bell(&self) -> Option<CoreSubscription> {
        match self
            .broker
            .bus
            .core_subscribe(&subject::dispatch(&self.claimed.session))
            .await
        {
            Ok(bell) => Some(bell),
            Err(error) => {
                tracing::debug!(session = %self.claimed.session, error, "no bell");
                None
            }
        }
    }
}

impl crate::broker::Broker {
    /// Whether the request to stop is so old that running turns must be handed back.
    fn overdue(&self) -> bool {
        let patience = self.drain.saturating_sub(HAND_BACK_BEFORE);
        self.stopping_since()
            .is_some_and(|since| self.clock.monotonic().saturating_duration_since(since) >= patience)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
