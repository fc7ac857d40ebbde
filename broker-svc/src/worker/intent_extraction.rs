//! Intents inside of what an agent says: cut out of the answer, asked for, and told of where they are refused.
//!
//! The answer is in the ledger before anything is asked for in its name, and an intent's name follows from its turn and
//! its place in the answer. So whoever takes the turn over finds the same answer, asks for the same intents, and is
//! told the same; a refusal is a note, appended with the turn's end, which the session's next turn reads. What the
//! scheduler does not answer for stands in the ledger with that end, and is asked for whenever the session is taken,
//! for which the sweeper sees: neither the reply nor a slot waits for a scheduler that is away. Source:
//! `docs/design/schedules.md` §3.1; seed 000 §5.

use std::time::Duration;

use shared::bus::{Bus, RequestError};
use shared::clock::pause;
use shared::model::dispatch::derived_ulid;
use shared::model::event::Attachment;
use shared::model::intent::service::{IntentAnswer, ProposeIntent};
use shared::model::intent::{IntentWish, extract};
use shared::model::ledger::{LedgerEntry, Usage};
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::headers::Headers;

use super::Worker;
use super::turn::Ended;
use crate::agent::port::Answer;
use crate::error::RunSessionError;
use crate::fold::MAX_OWED_INTENTS;
use crate::message_text::shortened;
use crate::turn::{Turn, bounded};

/// Where intents are asked for.
const PROPOSE: &str = "nexus.svc.intent.propose";
/// How long one answer of the scheduler is awaited.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How often the scheduler is asked for one intent before the turn ends without its answer.
const TRIES: u32 = 3;
/// Wait before it is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// So long after the end of its turn an intent that nobody has answered for is given up, milliseconds.
const GIVE_UP_MS: i64 = 24 * 3_600_000;
/// What a service says where somebody else was first: asked again, it says who.
const CONFLICT: u16 = 409;
/// Lowest code of a service that cannot now.
const CANNOT_NOW: u16 = 500;
/// Notes about one answer at most.
const MAX_NOTES: usize = 16;
/// Longest note, bytes.
const MAX_NOTE_BYTES: usize = 1_024;

/// Asks the scheduler for intents, as long as it answers.
#[derive(Debug, Default)]
pub(super) struct IntentProposer {
    /// The scheduler did not answer: it is asked when the session is taken again.
    is_unanswered: bool,
}

impl IntentProposer {
    /// Asks up to `tries` times; says what the next turn has to know, if anything. None: nobody has answered, and
    /// nobody is asked any more while the session is held.
    async fn propose(
        &mut self,
        bus: &Bus,
        session: &SessionRef,
        question: &ProposeIntent,
        tries: u32,
    ) -> Option<Option<String>> {
        let kind = &question.wish.kind;
        for attempt in 1..=tries {
            if self.is_unanswered {
                return None;
            }

            match bus.request(PROPOSE, Headers::new(), question, ANSWER_WITHIN).await {
                Ok(IntentAnswer { rejection, .. }) => {
                    return Some(rejection.map(|why| format!("Your intent `{kind}` was rejected: {why}")));
                }
                Err(RequestError::Service { code, text, .. }) if code != CONFLICT && code < CANNOT_NOW => {
                    return Some(Some(format!("Your intent `{kind}` cannot be taken: {text}")));
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
    /// Takes the intents out of how `turn` ended, asks for them, and stages what the next turn has to know.
    ///
    /// # Errors
    /// [`RunSessionError`] where the session is not ours any more.
    pub(super) async fn extract_intents(&mut self, turn: &Turn, ended: Ended) -> Result<Ended, RunSessionError> {
        let (content, attachments, usage) = match ended {
            Ended::Answered(answer) => (bounded(answer.content), answer.attachments, Some(answer.usage)),
            Ended::Settled { content, attachments } => (content, attachments, None),
            other @ (Ended::Failed(_) | Ended::Suspended | Ended::Cancelled { .. }) => return Ok(other),
        };
        let found = extract(&content);
        if found.proposals.is_empty() && found.refusals.is_empty() {
            return Ok(as_it_was(content, attachments, usage));
        }

        if let Some(usage) = usage {
            self.owner.stage(LedgerEntry::ModelAnswered {
                step: 1,
                content,
                tool_calls: Vec::new(),
                usage,
                opaque: None,
                attachments: attachments.clone(),
                model: None,
            });
        }

        self.owner.own().await?;
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
                None if self.owner.fold().intents.owed.len() + owed.len() < MAX_OWED_INTENTS => owed.push(question),
                None => notes.push(unanswered(&question)),
            }
        }

        for note in notes.iter().take(MAX_NOTES) {
            let note = shortened(note, MAX_NOTE_BYTES);
            self.owner.stage(LedgerEntry::IntentRefused { note });
        }

        for question in owed {
            let proposal = Box::new(question);
            self.owner.stage(LedgerEntry::IntentOwed { proposal });
        }

        Ok(Ended::Settled {
            content: found.text,
            attachments,
        })
    }

    /// What is asked of the scheduler for the wish at `place` of the answer.
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

    /// Asks for what nobody has answered for, as long as somebody answers now.
    ///
    /// # Errors
    /// [`RunSessionError`] where the session is not ours any more.
    pub(super) async fn settle_intents(&mut self) -> Result<(), RunSessionError> {
        while let Some(owed) = self.owner.fold().intents.owed.front().cloned() {
            let question = owed.proposal;
            let Some(id) = question.id else { break };
            let note = match self
                .intents
                .propose(&self.broker.bus, &self.claimed.session, &question, 1)
                .await
            {
                Some(note) => note,
                None if self.broker.clock.now().since(owed.since) > GIVE_UP_MS => Some(unanswered(&question)),
                None => break,
            };

            let note = note.map(|note| shortened(&note, MAX_NOTE_BYTES));
            self.owner.stage(LedgerEntry::IntentSettled { id, note });
            self.owner.commit().await?;
        }

        Ok(())
    }
}

fn unanswered(question: &ProposeIntent) -> String {
    let kind = &question.wish.kind;
    format!("Nobody answered for your intent `{kind}`: look whether it is there before you ask for it again.")
}

/// How a turn ended whose answer asks for nothing.
fn as_it_was(content: String, attachments: Vec<Attachment>, usage: Option<Usage>) -> Ended {
    match usage {
        Some(usage) => Ended::Answered(Answer {
            content,
            attachments,
            usage,
        }),
        None => Ended::Settled { content, attachments },
    }
}
