//! What becomes of the approvals whose cards an open page shows: whoever decides them, wherever.
//!
//! The page says which cards it was shown, by id and hash of arguments; a broker is asked every two seconds while one of
//! them stands open, beside the page's own loop, which waits for nothing of it. Nothing else about an approval is told.

use std::time::Duration;

use shared::bus::{Bus, RequestError};
use shared::clock::pause;
use shared::model::approval::{ApprovalStatus, Confirmation};
use shared::model::approval_api::GetApproval;
use shared::wire::headers::Headers;
use tokio::sync::mpsc;

use super::protocol::{MAX_WATCHED, ShownCard};

/// How often an open approval is asked for.
const EVERY: Duration = Duration::from_secs(2);
/// How long a broker may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// An approval that stands open no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedApproval {
    /// Its id.
    pub approval: String,
    /// Where it stands, in a word of the page's.
    pub status: &'static str,
}

/// The page's end. The asking ends with it.
#[derive(Debug)]
pub struct ApprovalCards {
    watched: mpsc::Sender<Vec<ShownCard>>,
    decided: mpsc::Receiver<ClosedApproval>,
}

impl ApprovalCards {
    /// Watches nothing yet.
    #[must_use]
    pub fn new(bus: Bus) -> Self {
        let (watched, wishes) = mpsc::channel(1);
        let (tell, decided) = mpsc::channel(MAX_WATCHED);
        tokio::spawn(follow_cards(bus, wishes, tell));
        Self { watched, decided }
    }

    /// Watches the last of `cards`, and no others.
    pub async fn watch_cards(&self, mut cards: Vec<ShownCard>) {
        let first = cards.len().saturating_sub(MAX_WATCHED);
        // The other end lives as long as this one.
        let _ = self.watched.send(cards.split_off(first)).await;
    }

    /// The next one that was decided. May be dropped and called again.
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
            // A page that has gone, or says other cards, waits for no answer about these.
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

/// Where the approval of `card` stands; none while it is open, or nobody knows.
async fn read_status(bus: &Bus, card: &ShownCard) -> Option<&'static str> {
    let question = GetApproval {
        id: card.approval.clone(),
    };
    let answer = bus
        .request::<_, Confirmation>("nexus.svc.approval.get", Headers::new(), &question, PATIENCE)
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

/// What the page is told of `confirmation`; none while it is open.
fn status_word(confirmation: &Confirmation, card: &ShownCard) -> Option<&'static str> {
    if confirmation.request.arguments_hash != card.arguments_hash && confirmation.standing_hash() != card.arguments_hash
    {
        return Some("gone");
    }
    if confirmation.status != ApprovalStatus::Pending {
        return Some(confirmation.status.name());
    }
    (confirmation.standing_hash() != card.arguments_hash).then_some("changed")
}
