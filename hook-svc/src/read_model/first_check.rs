//! Asks in batches whether events occur for the first time, on a replica without a copy of the read model.
//!
//! While one question is under way, the events that come are collected for the next one. With no copy that could tell,
//! an event counts as new: a repetition has the same dispatch ids, and is recognised by them.

use std::time::Duration;

use shared::model::event::EventId;
use tokio::sync::{mpsc, oneshot};

use super::peer_api::{FirstQuestion, FirstReply};
use super::peer_copies::PeerCopies;

/// Most events of one question.
const MOST: usize = 256;

/// Most questions that wait.
const QUEUE: usize = 1_024;

/// Time limit for the answer.
const ANSWER: Duration = Duration::from_millis(400);

/// One event, and the place of its answer.
#[derive(Debug)]
struct Asked {
    id: EventId,
    sequence: u64,
    answer: oneshot::Sender<bool>,
}

/// Sender of questions; clones share the batches.
#[derive(Debug, Clone)]
pub(crate) struct FirstCheck(mpsc::Sender<Asked>);

/// The task that asks in batches.
#[derive(Debug)]
pub(crate) struct FirstAsker {
    asked: mpsc::Receiver<Asked>,
    copies: PeerCopies,
}

/// Returns the two ends of the questions that are put to `copies`.
pub(crate) fn first_check(copies: PeerCopies) -> (FirstCheck, FirstAsker) {
    let (sender, asked) = mpsc::channel(QUEUE);
    (FirstCheck(sender), FirstAsker { asked, copies })
}

impl FirstCheck {
    /// Returns whether the event `id` occurs for the first time at `sequence`, as far as a copy can tell.
    pub(crate) async fn is_first(&self, id: &EventId, sequence: u64) -> bool {
        let (answer, told) = oneshot::channel();
        let asked = Asked {
            id: id.clone(),
            sequence,
            answer,
        };
        match self.0.send(asked).await {
            Ok(()) => told.await.unwrap_or(true),
            Err(_) => true,
        }
    }
}

impl FirstAsker {
    /// Answers questions until every sender is gone.
    pub(crate) async fn run(mut self) {
        let mut batch = Vec::new();
        while self.asked.recv_many(&mut batch, MOST).await > 0 {
            let asked = std::mem::take(&mut batch);
            let question = FirstQuestion {
                events: asked.iter().map(|asked| (asked.id.clone(), asked.sequence)).collect(),
            };

            let reply: Result<FirstReply, _> = self.copies.ask("first", &question, ANSWER).await;
            let told = reply.map(|reply| reply.is_first).unwrap_or_else(|error| {
                metrics::counter!("nexus_hook_first_unknown_total").increment(asked.len() as u64);
                tracing::debug!(%error, events = asked.len(), "no copy tells whether events are new");
                Vec::new()
            });

            let mut told = told.into_iter();
            for asked in asked {
                let is_first = told.next().unwrap_or(true);
                // The task that asked may have ended.
                let _ = asked.answer.send(is_first);
            }
        }
    }
}
