//! Partial answers, as they come: on the core subject of the session, and on that of the open pages of a web chat.
//!
//! Nothing of them is stored, and the reply has the whole text for a reader that misses a piece. Pieces are therefore
//! joined while the bus is busy, and never waited for. Source: `docs/design/sessions.md` §6.5 (Streaming).

mod redactor;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use shared::bus::Bus;
use shared::clock::pause;
use shared::model::dispatch::DeliveryContext;
use shared::model::event::DEFAULT_ACCOUNT;
use shared::model::session::SessionRef;
use shared::wire::envelope::PayloadFormat;
use shared::wire::headers::{CONTENT_TYPE, Headers};
use shared::wire::subject;
use tokio::sync::Notify;
use ulid::Ulid;

use redactor::StreamRedactor;

/// Interval between two messages of one answer: text is joined meanwhile.
const JOIN_FOR: Duration = Duration::from_millis(40);
/// Channel whose pages show partial answers.
const WEBCHAT: &str = "webchat";

/// A piece of an answer that is being made.
#[derive(Debug, Serialize)]
struct Piece<'a> {
    /// Id of the turn.
    turn: Ulid,
    /// Thread of the conversation that the answer goes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<&'a str>,
    /// Number of the model call in the turn.
    step: u32,
    /// Number of the piece in this attempt, from 0: a second piece 0 of the same step replaces the answer so far.
    seq: u64,
    /// Text since the piece before.
    text: &'a str,
    /// Whether the model call is over, with success or not.
    done: bool,
}

#[derive(Debug, Default)]
struct Text {
    /// Text that is not sent yet.
    said: String,
    veil: StreamRedactor,
    done: bool,
}

#[derive(Debug, Default)]
struct Said {
    text: Mutex<Text>,
    changed: Notify,
}

impl Said {
    fn change_text(&self, change: impl FnOnce(&mut Text)) {
        change(&mut self.text.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
    }
}

/// One answer on its way; dropping it ends the answer.
#[derive(Debug)]
pub struct LiveAnswer {
    said: Arc<Said>,
}

impl LiveAnswer {
    /// Begins to publish the pieces of model call `step` of `turn`.
    #[must_use]
    pub fn begin_call(bus: Bus, session: &SessionRef, delivery: &DeliveryContext, turn: Ulid, step: u32) -> Self {
        let mut subjects = vec![subject::stream(session)];
        if delivery.channel == WEBCHAT
            && let Some(peer) = &delivery.peer_id
        {
            let account = delivery.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT);
            subjects.push(subject::webchat(account, peer));
        }

        let said = Arc::new(Said::default());
        let answer = Answer {
            turn,
            thread: delivery.thread_id.clone(),
            step,
        };
        tokio::spawn(publish_texts(bus, subjects, answer, Arc::clone(&said)));

        Self { said }
    }

    /// Adds `text` of the model.
    pub fn push_text(&self, text: &str) {
        self.said.change_text(|state| {
            let shown = state.veil.filter_text(text);
            state.said.push_str(&shown);
        });
    }
}

impl Drop for LiveAnswer {
    fn drop(&mut self) {
        self.said.change_text(|state| {
            let rest = state.veil.take_rest();
            state.said.push_str(&rest);
            state.done = true;
        });
    }
}

/// The answer that the pieces belong to.
struct Answer {
    turn: Ulid,
    thread: Option<String>,
    step: u32,
}

async fn publish_texts(bus: Bus, subjects: Vec<String>, answer: Answer, said: Arc<Said>) {
    let headers: Headers = [(CONTENT_TYPE, PayloadFormat::Json.content_type())]
        .into_iter()
        .collect();
    let mut seq = 0;
    loop {
        said.changed.notified().await;
        // The lock is held only for the exchange: the model's task must not wait for the bus.
        let (text, done) = {
            let mut held = said.text.lock().unwrap_or_else(PoisonError::into_inner);
            (std::mem::take(&mut held.said), held.done)
        };

        // An answer without any piece needs no end.
        if !text.is_empty() || (done && seq > 0) {
            let piece = Piece {
                turn: answer.turn,
                thread: answer.thread.as_deref(),
                step: answer.step,
                seq,
                text: &text,
                done,
            };

            let payload = bytes::Bytes::from(serde_json::to_vec(&piece).unwrap_or_default());
            for subject in &subjects {
                bus.core_publish(subject, &headers, payload.clone()).await;
            }

            seq += 1;
        }

        if done {
            return;
        }

        // Pieces that come during the pause are joined, so that a fast model does not flood the bus.
        pause(JOIN_FOR).await;
    }
}
