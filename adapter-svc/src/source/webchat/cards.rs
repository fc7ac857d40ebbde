//! Reports to an open page the decisions on the approvals whose cards it shows, also those made by other people or
//! on other channels.
//!
//! The page names the cards that it shows by approval id and hash of the arguments. While one of them is open, a broker
//! is asked every two seconds, in a task beside the page's own loop, which never waits for it. The page learns nothing
//! else about an approval.

use std::time::Duration;

use shared::bus::{Bus, RequestError};
use shared::clock::pause;
use shared::model::approval::{ApprovalStatus, ConfirmationTerms};
use shared::model::approval_api::GetApproval;
use shared::wire::headers::Headers;
use tokio::sync::mpsc;

use super::protocol::{MAX_WATCHED, ShownCard};

/// Interval at which an open approval is asked for.
const EVERY: Duration = Duration::from_secs(2);
/// Longest time that a broker may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// An approval that is no longer open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedApproval {
    /// Id of the approval.
    pub approval: String,
    /// Status of the approval, in the page's vocabulary.
    pub status: &'static str,
}

/// The page's handle of the watcher task. The task ends when this handle is dropped.
#[derive(Debug)]
pub struct ApprovalCards {
    watched: mpsc::Sender<Vec<ShownCard>>,
    decided: mpsc::Receiver<ClosedApproval>,
}

impl ApprovalCards {
    /// Starts a watcher that watches no cards yet.
    #[must_use]
    pub fn new(bus: Bus) -> Self {
        let (watched, wishes) = mpsc::channel(1);
        let (tell, decided) = mpsc::channel(MAX_WATCHED);
        tokio::spawn(follow_cards(bus, wishes, tell));
        Self { watched, decided }
    }

    /// Watches the last [`MAX_WATCHED`] of `cards` and no others.
    pub async fn watch_cards(&self, mut cards: Vec<ShownCard>) {
        let first = cards.len().saturating_sub(MAX_WATCHED);
        // The watcher task lives as long as this handle.
        let _ = self.watched.send(cards.split_off(first)).await;
    }

    /// Returns the next approval that was decided. The future may be dropped and called again.
    pub async fn next(&mut self) -> Option<ClosedApproval> {
        self.decided.recv().await
    }
}

async fn follow_cards(bus: Bus, mut wishes: mpsc::Receiver<Vec<ShownCard>>, tell: mpsc::Sender<ClosedApproval>) {
    let mut open: Vec<ShownCard> = Vec::new();
    loop {
        tokio::select! {
            wish = wishes.recv() => match wish {
                Some(cards) => open = cards,
                None => return,
            },
            () = pause(EVERY), if !open.is_empty() => {}
        }

        let mut still = Vec::new();
        for card in std::mem::take(&mut open) {
            // A page that has gone, or has named other cards, does not wait for an answer about these.
            if wishes.is_closed() || !wishes.is_empty() {
                still.push(card);
                continue;
            }

            match read_status(&bus, &card).await {
                None => still.push(card),
                Some(status) => {
                    let approval = card.approval;
                    if tell.send(ClosedApproval { approval, status }).await.is_err() {
                        return;
                    }
                }
            }
        }

        open = still;
    }
}

/// Returns the status of the approval of `card`, or `None` if it is open or no broker knows it.
async fn read_status(bus: &Bus, card: &ShownCard) -> Option<&'static str> {
    let question = GetApproval {
        id: card.approval.clone(),
    };
    let answer = bus
        .request::<_, ConfirmationTerms>("nexus.svc.approval.get", Headers::new(), &question, PATIENCE)
        .await;
    match answer {
        Ok(confirmation) => status_word(&confirmation, card),
        Err(RequestError::Service { .. }) => Some("gone"),
        Err(error) => {
            tracing::debug!(approval = card.approval, %error, "retrying to read an approval's status");
            None
        }
    }
}

/// Returns the status that the page is sent for `confirmation`, or `None` while it is open.
fn status_word(confirmation: &ConfirmationTerms, card: &ShownCard) -> Option<&'static str> {
    if confirmation.request.arguments_hash != card.arguments_hash && confirmation.standing_hash() != card.arguments_hash
    {
        return Some("gone");
    }
    if confirmation.status != ApprovalStatus::Pending {
        return Some(confirmation.status.name());
    }
    (confirmation.standing_hash() != card.arguments_hash).then_some("changed")
}
