//! Intents in the answer of an agent: cut out of the text, proposed to the scheduler, and reported if they are
//! refused.
//!
//! The answer is in the ledger before anything is proposed in its name, and an intent's id follows from its turn and
//! its place in the answer. A broker that takes the turn over therefore finds the same answer, proposes the same
//! intents, and gets the same results. A refusal is a note that is appended with the turn's end and that the
//! session's next turn reads. A proposal that the scheduler does not answer is recorded in the ledger with that end,
//! and is repeated each time the session is taken, which the sweeper ensures: neither the reply nor a slot waits for
//! a scheduler that is away. Source: `docs/design/schedules.md` §3.1; seed 000 §5.

use std::time::Duration;

use shared::bus::{Bus, RequestError};
use shared::clock::pause;
use shared::model::dispatch::derived_ulid;
use shared::model::event::Attachment;
use shared::model::intent::service::{IntentAnswer, ProposeIntent};
use shared::model::intent::{IntentWish, extract_wishes};
use shared::model::ledger::{LedgerEntry, TurnUsage};
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::headers::Headers;

use super::Worker;
use super::turn::TurnOutcome;
use crate::agent::message_text::shorten_text;
use crate::agent::port::AgentAnswer;
use crate::error::RunSessionError;
use crate::ledger::state::MAX_OWED_INTENTS;
use crate::turn::{Turn, bound_content};

/// Subject on which intents are proposed.
const PROPOSE: &str = "nexus.svc.intent.propose";
/// Maximum wait for one answer of the scheduler.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Maximum number of times one intent is proposed before the turn ends without an answer.
const TRIES: u32 = 3;
/// Wait before an intent is proposed again.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Time after the end of its turn at which an unanswered intent is given up, milliseconds.
const GIVE_UP_MS: i64 = 24 * 3_600_000;
/// Code of a service if another request was first; a repeated request gets the result.
const CONFLICT: u16 = 409;
/// Lowest code of a service that is temporarily unable to answer.
const CANNOT_NOW: u16 = 500;
/// Maximum number of notes about one answer.
const MAX_NOTES: usize = 16;
/// Maximum length of a note, bytes.
const MAX_NOTE_BYTES: usize = 1_024;

/// Proposes intents to the scheduler while the scheduler answers.
#[derive(Debug, Default)]
pub(super) struct IntentProposer {
    /// Whether the scheduler failed to answer; intents are then proposed when the session is taken again.
    is_unanswered: bool,
}

impl IntentProposer {
    /// Proposes an intent up to `tries` times. Returns the note for the next turn, if there is one; the outer `None`
    /// means that the scheduler did not answer and is not asked again while the session is held.
    async fn propose(
        &mut self,
        bus: &Bus,
        session: &SessionRef,
        question: &ProposeIntent,
        tries: u32,
    ) -> Option<Option<String>> {
        let kind = &question.wish.kind;
        for attempt in 1..=tries {
            // The scheduler is down: further intents of this answer are owed, without waiting for each.
            if self.is_unanswered {
                return None;
            }

            match bus.request(PROPOSE, Headers::new(), question, ANSWER_WITHIN).await {
                Ok(IntentAnswer { rejection, .. }) => {
                    return Some(rejection.map(|why| format!("Your intent `{kind}` was rejected: {why}")));
                }
                // The scheduler's own fault codes mean that a repetition may succeed; others are answers.
                Err(RequestError::Service { code, text, .. }) if code != CONFLICT && code < CANNOT_NOW => {
                    return Some(Some(format!("Your intent `{kind}` failed: {text}")));
                }
                Err(error) => {
                    tracing::warn!(
                        %session, turn = question.turn.map(tracing::field::display), attempt, %error,
                        "failed to propose an intent"
                    );
                }
            }

            self.is_unanswered = attempt == tries;

            if !self.is_unanswered {
                pause(ASK_AGAIN).await;
            }
        }

        None
    }
}

impl Worker<'_> {
    /// Takes the intents out of how `turn` ended, proposes them, and stages the notes for the next turn.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if the session has another owner.
    pub(super) async fn extract_intents(
        &mut self,
        turn: &Turn,
        ended: TurnOutcome,
    ) -> Result<TurnOutcome, RunSessionError> {
        let (content, attachments, usage) = match ended {
            TurnOutcome::Answered(answer) => (bound_content(answer.content), answer.attachments, Some(answer.usage)),
            TurnOutcome::Settled { content, attachments } => (content, attachments, None),
            other @ (TurnOutcome::Failed(_) | TurnOutcome::Suspended | TurnOutcome::Canceled { .. }) => {
                return Ok(other);
            }
        };
        let found = extract_wishes(&content);
        if found.proposals.is_empty() && found.refusals.is_empty() {
            return Ok(as_it_was(content, attachments, usage));
        }

        // The turn settles on the text without the intents: the original answer is recorded with its usage.
        if let Some(usage) = usage {
            self.owner.stage_entry(LedgerEntry::ModelAnswered {
                step: 1,
                content,
                tool_calls: Vec::new(),
                usage,
                opaque: None,
                attachments: attachments.clone(),
                model: None,
            });
        }

        // An intent has effects outside: the ledger must name this owner first.
        self.owner.ensure_owned().await?;
        let refused = found.refusals.iter();
        let mut notes: Vec<String> = refused
            .map(|refusal| format!("A <hook-intent> of yours was refused: {refusal}"))
            .collect();

        let mut owed = Vec::new();
        for (place, wish) in found.proposals.into_iter().enumerate() {
            let question = self.proposal(turn, place, wish);
            match self
                .intents
                .propose(&self.broker.bus, &self.claimed.session, &question, TRIES)
                .await
            {
                Some(note) => notes.extend(note),
                // The owed intents are proposed again later; above the bound the agent is told instead.
                None if self.owner.fold().intents.owed.len() + owed.len() < MAX_OWED_INTENTS => owed.push(question),
                None => notes.push(unanswered(&question)),
            }
        }

        for note in notes.iter().take(MAX_NOTES) {
            let note = shorten_text(note, MAX_NOTE_BYTES);
            self.owner.stage_entry(LedgerEntry::IntentRefused { note });
        }

        for question in owed {
            let proposal = Box::new(question);
            self.owner.stage_entry(LedgerEntry::IntentOwed { proposal });
        }

        Ok(TurnOutcome::Settled {
            content: found.text,
            attachments,
        })
    }

    /// Returns the proposal to the scheduler for the wish at `place` of the answer.
    fn proposal(&self, turn: &Turn, place: usize, wish: IntentWish) -> ProposeIntent {
        let session = &self.claimed.session;
        let at = UnixMillis(i64::try_from(turn.id.timestamp_ms()).unwrap_or(i64::MAX));
        let origin = turn.origin();

        ProposeIntent {
            id: Some(derived_ulid(at, &["intent", &turn.id.to_string(), &place.to_string()])),
            wish,
            agent: session.persona.clone(),
            session: session.session.clone(),
            turn: Some(turn.id),
            permissions: turn.permissions.clone(),
            delivery_context: origin.delivery,
            causation: Some(origin.causation.event),
        }
    }

    /// Proposes the session's unanswered intents again, while the scheduler answers.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if the session has another owner.
    pub(super) async fn settle_intents(&mut self) -> Result<(), RunSessionError> {
        while let Some(owed) = self.owner.fold().intents.owed.front().cloned() {
            let question = owed.proposal;
            let Some(id) = question.id else { break };
            // One attempt: a proposal that fails now is tried at the next call, and has the same id then.
            let note = match self
                .intents
                .propose(&self.broker.bus, &self.claimed.session, &question, 1)
                .await
            {
                Some(note) => note,
                None if self.broker.clock.now().since(owed.since) > GIVE_UP_MS => Some(unanswered(&question)),
                None => break,
            };

            let note = note.map(|note| shorten_text(&note, MAX_NOTE_BYTES));
            self.owner.stage_entry(LedgerEntry::IntentSettled { id, note });
            self.owner.commit_staged().await?;
        }

        Ok(())
    }
}

fn unanswered(question: &ProposeIntent) -> String {
    let kind = &question.wish.kind;
    format!("The outcome of your intent `{kind}` is unknown: list your intents before you request it again.")
}

/// Returns the end of a turn whose answer contains no intents.
fn as_it_was(content: String, attachments: Vec<Attachment>, usage: Option<TurnUsage>) -> TurnOutcome {
    match usage {
        Some(usage) => TurnOutcome::Answered(AgentAnswer {
            content,
            attachments,
            usage,
        }),
        None => TurnOutcome::Settled { content, attachments },
    }
}
