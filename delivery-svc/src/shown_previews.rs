//! What this process knows of the previews that it shows: their texts, and the stages of their messages.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Mutex as TurnLock;
use ulid::Ulid;

/// Time without a beat of its turn after which a preview is taken back: the turn has ended without an answer.
const ABANDONED_AFTER: Duration = Duration::from_mins(2);
/// Maximum number of turns whose answers are shown at once.
const MAX_TURNS: usize = 1_024;

/// The stage of a preview.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) enum PreviewStage {
    /// Nothing is known of it.
    #[default]
    Unopened,
    /// The message with this id shows it.
    Shown(String),
    /// It may be there. Nothing more is shown, and the reply looks for it.
    Doubtful,
    /// Nothing more is shown; the reply makes the message whole, if there is one.
    Closed(Option<String>),
}

/// The message of a preview.
#[derive(Debug, Default)]
pub(crate) struct PreviewMessage {
    pub(crate) stage: PreviewStage,
    /// Text that was shown last.
    pub(crate) shown: String,
}

impl PreviewMessage {
    pub(crate) const fn is_closed(&self) -> bool {
        matches!(self.stage, PreviewStage::Closed(_) | PreviewStage::Doubtful)
    }

    /// Returns whether the message shows `text`.
    pub(crate) fn shows(&self, text: &str) -> bool {
        self.shown == text
    }

    /// Closes the preview, whose message is `message`.
    pub(crate) fn close_with(&mut self, message: Option<String>) {
        self.stage = PreviewStage::Closed(message);
    }

    /// Closes the preview. Returns its message; `None` if only the receipts can tell.
    pub(crate) fn end(&mut self) -> Option<Option<String>> {
        match &self.stage {
            PreviewStage::Unopened | PreviewStage::Doubtful => None,
            PreviewStage::Shown(id) => {
                let id = Some(id.clone());
                self.stage = PreviewStage::Closed(id.clone());
                Some(id)
            }
            PreviewStage::Closed(id) => Some(id.clone()),
        }
    }
}

/// The text that is to be shown, and the time of the last sign of life.
#[derive(Debug)]
pub(crate) struct WantedText {
    pub(crate) text: String,
    pub(crate) alive_at: Instant,
}

/// The preview of one turn. Its message is locked during each call.
#[derive(Debug)]
pub(crate) struct TurnPreview {
    wanted: Mutex<WantedText>,
    pub(crate) message: TurnLock<PreviewMessage>,
}

impl TurnPreview {
    pub(crate) fn lock_wanted(&self) -> MutexGuard<'_, WantedText> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The previews that this process shows, by turn.
#[derive(Debug)]
pub struct SharedPreviews {
    turns: Mutex<HashMap<Ulid, Arc<TurnPreview>>>,
    pub(crate) abandoned_after: Duration,
}

impl Default for SharedPreviews {
    fn default() -> Self {
        Self::new(ABANDONED_AFTER)
    }
}

impl SharedPreviews {
    /// Returns no previews. Each is taken back `abandoned_after` the last beat of its turn.
    #[must_use]
    pub fn new(abandoned_after: Duration) -> Self {
        Self {
            turns: Mutex::default(),
            abandoned_after,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Ulid, Arc<TurnPreview>>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, turn: Ulid) -> Option<Arc<TurnPreview>> {
        self.lock().get(&turn).cloned()
    }

    /// Notes that `turn` goes on.
    pub fn note_alive(&self, turn: Ulid, now: Instant) {
        if let Some(preview) = self.get(turn) {
            preview.lock_wanted().alive_at = now;
        }
    }

    /// Forgets `turn`, whose reply was sent.
    pub fn forget(&self, turn: Ulid) {
        self.lock().remove(&turn);
    }

    /// Notes that `turn` has come to `text`. Returns its preview if nothing shows it yet.
    pub(crate) fn note_text(&self, turn: Ulid, text: &str, now: Instant) -> Option<Arc<TurnPreview>> {
        let mut turns = self.lock();
        if let Some(known) = turns.get(&turn) {
            let mut wanted = known.lock_wanted();
            text.clone_into(&mut wanted.text);
            wanted.alive_at = now;
            return None;
        }
        if turns.len() >= MAX_TURNS {
            return None;
        }
        let wanted = WantedText {
            text: text.to_owned(),
            alive_at: now,
        };
        let preview = Arc::new(TurnPreview {
            wanted: Mutex::new(wanted),
            message: TurnLock::default(),
        });
        turns.insert(turn, Arc::clone(&preview));
        Some(preview)
    }
}
