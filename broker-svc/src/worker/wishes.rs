//! Intents inside of what an agent says: cut out of the answer, asked for, and told of where they are refused.
//!
//! The answer is in the ledger before anything is asked for in its name, and an intent's name follows from its turn and
//! its place in the answer. So whoever takes the turn over finds the same answer, asks for the same intents, and is told
//! the same; a refusal is a note, appended with the turn's end, which the session's next turn reads. Source:
//! `schedule.md` "HookIntent"; `000_099080dba6287950.txt` "An Intent That Gets Rejected".

use std::time::Duration;

use serde_json::json;
use shared::clock::pause;
use shared::model::dispatch::derived_ulid;
use shared::model::event::Attachment;
use shared::model::intent::service::{IntentAnswer, ProposeIntent};
use shared::model::intent::{IntentWish, extract};
use shared::model::ledger::{LedgerEntry, Usage};
use shared::model::time::UnixMillis;
use shared::wire::headers::Headers;

use super::Worker;
use super::turn::Ended;
use crate::error::RunSessionError;
use crate::fold::{INTENTS, shortened};
use crate::turn::{Answer, Turn, bounded};

/// Where intents are asked for.
const PROPOSE: &str = "nexus.svc.intent.propose";
/// How long one answer of the scheduler is awaited.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How often the scheduler is asked for one intent.
const TRIES: u32 = 3;
/// Wait before it is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Point of a turn at which an answer is looked through.
const POINT: &str = "post_stream";
/// Notes about one answer at most.
const MAX_NOTES: usize = 16;
/// Longest note, bytes.
const MAX_NOTE_BYTES: usize = 1_024;

impl Worker<'_> {
    /// Takes the intents out of how `turn` ended, asks for them, and stages what the next turn has to know.
    ///
    /// # Errors
    /// [`RunSessionError`] where the session is not ours any more.
    pub(super) async fn wishes(&mut self, turn: &Turn, ended: Ended) -> Result<Ended, RunSessionError> {
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
            });
        }
        self.owner.own().await?;
        let refused = found.refusals.iter();
        let mut notes: Vec<String> = refused
            .map(|refusal| format!("A <hook-intent> of yours was refused: {refusal}"))
            .collect();
        for (place, wish) in found.proposals.into_iter().enumerate() {
            notes.extend(self.propose(turn, place, wish).await);
        }
        for note in notes.iter().take(MAX_NOTES) {
            self.owner.stage(LedgerEntry::HookRan {
                hook: INTENTS.to_owned(),
                point: POINT.to_owned(),
                outcome: json!({ "note": shortened(note, MAX_NOTE_BYTES) }),
            });
        }
        Ok(Ended::Settled {
            content: found.text,
            attachments,
        })
    }

    /// Asks for the wish at `place` of the answer; says what the next turn has to know, if anything.
    async fn propose(&self, turn: &Turn, place: usize, wish: IntentWish) -> Option<String> {
        let session = &self.claimed.session;
        let kind = wish.kind.clone();
        let at = UnixMillis(i64::try_from(turn.id.timestamp_ms()).unwrap_or(i64::MAX));
        let origin = turn.origin();
        let question = ProposeIntent {
            id: Some(derived_ulid(at, &["intent", &turn.id.to_string(), &place.to_string()])),
            wish,
            agent: session.persona.clone(),
            session: session.session.clone(),
            turn: Some(turn.id),
            permissions: turn.permissions.clone(),
            delivery_context: origin.delivery,
            causation: Some(origin.causation.event),
        };
        for attempt in 1..=TRIES {
            let asked = self
                .broker
                .bus
                .request(PROPOSE, Headers::new(), &question, ANSWER_WITHIN);
            match asked.await {
                Ok(IntentAnswer { rejection, .. }) => {
                    let rejection = rejection?;
                    return Some(format!("Your intent `{kind}` was rejected: {rejection}"));
                }
                Err(error) => {
                    tracing::warn!(session = %session, turn = %turn.id, attempt, %error, "intent could not be asked for");
                }
            }
            pause(ASK_AGAIN).await;
        }
        Some(format!(
            "Nobody answered for your intent `{kind}`: look whether it is there before you ask for it again."
        ))
    }
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
