//! What the doors of accounts to which a platform posts have in common: the time of a post, and the steps before its events are
//! durable.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use shared::bus::Bus;
use shared::clock::SharedClock;
use shared::error_chain::describe_error;
use shared::model::event::Event;
use shared::platform::policy::DirectPolicy;

use crate::attachments::AttachmentFetcher;
use crate::encoded_event::NoteStep;
use crate::error::RequestRejection;
use crate::hourly_allowance::HourlyAllowance;
use crate::pairing::{PairingError, PairingStore};
use crate::source::port::strangers::{settle_remembered, settle_strangers};
use crate::source::port::unreadable::{MAX_LETTERS, store_letter, unreadable_letter};

/// Maximum time for reading the pairings of a post's senders, which leaves time for storing its events.
const PAIRINGS_WITHIN: Duration = Duration::from_millis(900);

/// Maximum time for which a post's events wait for their files.
const FILES_WITHIN: Duration = Duration::from_secs(1);

/// Maximum time for noting the files that are still to be fetched.
const NOTE_WITHIN: Duration = Duration::from_millis(500);

/// Time that is left for storing a post's events, whatever came before.
const STORE_TIME: Duration = Duration::from_millis(300);

/// The time that is left for a post.
#[derive(Debug, Clone)]
pub struct PostTime {
    clock: SharedClock,
    end: Instant,
}

impl PostTime {
    /// Returns the time of a post that has come now and is to be answered `within` this time.
    #[must_use]
    pub fn start(clock: &SharedClock, within: Duration) -> Self {
        Self {
            end: clock.monotonic() + within,
            clock: Arc::clone(clock),
        }
    }

    /// Returns the time that is left.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(self.clock.monotonic())
    }

    /// Returns the time that is left if `reserve` of it is kept for other steps.
    fn left_but(&self, reserve: Duration) -> Duration {
        self.left().saturating_sub(reserve)
    }
}

/// Dead letters of the posts of one account that cannot be read. Clones share their number.
#[derive(Debug, Clone)]
pub struct PostLetters {
    channel: &'static str,
    account: String,
    bus: Bus,
    clock: SharedClock,
    stored: Arc<Mutex<HourlyAllowance>>,
}

impl PostLetters {
    /// Returns the letters of `account` on `channel`, which are stored by `bus`.
    #[must_use]
    pub fn new(channel: &'static str, account: String, bus: Bus, clock: SharedClock) -> Self {
        Self {
            channel,
            account,
            bus,
            clock,
            stored: Arc::default(),
        }
    }

    /// Makes a dead letter of `payload`, which cannot be read because of `detail`, as a source that polls does; `reason` is
    /// its name. It must contain nothing that only its reader may see. Returns whether the post may be answered with 200;
    /// it must come again otherwise, also if this takes longer than is left of `time`.
    pub async fn give_up(&self, payload: &Value, reason: &str, detail: &str, time: &PostTime) -> bool {
        let stored = || self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        if stored().is_spent(MAX_LETTERS, self.clock.monotonic()) {
            return true;
        }

        let names = (self.channel, self.account.as_str());
        let letter = unreadable_letter(names, payload, reason, detail, self.clock.now());
        let storing = store_letter(&self.bus, names, letter);
        if !tokio::time::timeout(time.left(), storing).await.unwrap_or(false) {
            return false;
        }

        // Only a letter that is stored counts: a payload that comes again must not use up the others' number.
        stored().spend(self.clock.monotonic());
        true
    }
}

/// The door of one account.
#[derive(Debug, Clone)]
pub struct AccountDoor {
    /// Paired strangers, and those with a code.
    pub pairings: PairingStore,
    /// Files of messages.
    pub attachments: AttachmentFetcher,
    /// Rule for users that write directly.
    pub direct: DirectPolicy,
    /// Posts that cannot be read.
    pub letters: PostLetters,
}

impl AccountDoor {
    /// Lets the paired senders of `events` in, has `store` make the events durable, and sends the others
    /// their codes. No step takes more than is left of `time`. After an error the same post may be handled again.
    /// `may_spool` says that `store` keeps events on this host's disk, with the steps about the notes of their files that it
    /// is given.
    ///
    /// # Errors
    /// Returns [`RequestRejection::UnknownPairings`] if the pairings cannot be read or written now,
    /// [`RequestRejection::UnnotedFiles`] if files that are not there in time cannot be noted, neither now nor later, or
    /// the error of `store`.
    pub async fn store_with_pairings(
        &self,
        mut events: Vec<Event>,
        time: &PostTime,
        may_spool: bool,
        store: impl AsyncFnOnce(&[Event], &[NoteStep]) -> Result<(), RequestRejection>,
    ) -> Result<(), RequestRejection> {
        let failed = |error: PairingError| {
            let error = describe_error(&error);
            tracing::warn!(
                error,
                "failed to read or write a pairing; the platform posts the payload again"
            );
            RequestRejection::UnknownPairings
        };
        let settled = settle_strangers(&self.pairings, self.direct, &mut events);
        let within = PAIRINGS_WITHIN.min(time.left_but(NOTE_WITHIN + STORE_TIME));
        let settled = tokio::time::timeout(within, settled).await;
        let strangers = match settled.map(|settled| settled.map_err(failed)) {
            Ok(Ok(strangers)) => strangers,
            // A platform posts a payload for a while only: senders that were paired a moment ago need not wait for the
            // bus.
            Ok(Err(_)) | Err(_) if settle_remembered(&self.pairings, self.direct, &mut events) => Vec::new(),
            Ok(Err(rejection)) => return Err(rejection),
            Err(_) => return Err(RequestRejection::UnknownPairings),
        };
        let within = FILES_WITHIN.min(time.left_but(NOTE_WITHIN + STORE_TIME));
        self.attachments.fetch_new(&mut events, within).await;
        let within = NOTE_WITHIN.min(time.left_but(STORE_TIME));
        let is_noted = self.note_files(&mut events, within, may_spool).await?;
        let step = |event| match may_spool {
            true => self.attachments.note_step(event, is_noted),
            false => NoteStep::Settled,
        };
        let steps: Vec<NoteStep> = events.iter().map(step).collect();
        store(&events, &steps).await?;
        for message in &strangers {
            self.pairings.offer_code(message).await.map_err(failed)?;
        }
        Ok(())
    }

    /// Notes the files of `events` that are still to be fetched. Returns whether that is done.
    async fn note_files(
        &self,
        events: &mut [Event],
        within: Duration,
        may_spool: bool,
    ) -> Result<bool, RequestRejection> {
        let Err(error) = self.attachments.note_open(events, within).await else {
            return Ok(true);
        };
        let error = describe_error(&error);
        if may_spool {
            tracing::warn!(
                error,
                "failed to note open files; they are noted once the spool is published"
            );
            return Ok(false);
        }
        if events.iter().any(|event| self.attachments.has_open(event)) {
            tracing::warn!(error, "failed to note open files; the platform posts the payload again");
            return Err(RequestRejection::UnnotedFiles);
        }
        // An edit or a deletion is worth more than the note of an earlier version, whose text no reader takes after it.
        tracing::warn!(error, "failed to remove the note of an earlier version");
        Ok(false)
    }
}
