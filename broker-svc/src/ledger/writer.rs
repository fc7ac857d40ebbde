//! The owner: the one writer that appends to a session's ledger, fenced, and publishes the replies in it.
//!
//! Entries are staged, applied to the fold at once, and appended as one record. A record that is refused spoils the
//! fold, so the owner is dropped with it and the session is folded again. Nothing is published before the owner's
//! own append has succeeded, and nothing at all past the claim's deadline.

use std::sync::Arc;

use shared::bus::{OutgoingMessage, PublishError, StoredMessage, ledger};
use shared::model::ledger::{AppendId, LedgerEntry, LedgerRecord};
use shared::model::reply::Reply;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::envelope::WireMessage as _;
use shared::wire::headers::{DISPATCH, TraceCarrier};
use shared::wire::subject;
use shared::wire::topology::streams::LEDGER;
use ulid::Ulid;

use crate::broker::BrokerContext;
use crate::config::SERVICE;
use crate::error::RunSessionError;
use crate::ledger::reset_notifier;
use crate::ledger::state::{SessionState, fold_records, is_fold};
use crate::ledger::state_cache::CachedSession;
use crate::queue::claim_deadline::ClaimDeadline;

/// Room that a dead letter needs besides its payload, bytes: subjects, headers and texts.
const LETTER_HEADROOM: usize = 64 * 1_024;

/// The writer of a session's ledger.
#[derive(Debug)]
pub struct LedgerWriter {
    broker: Arc<BrokerContext>,
    /// The session that is owned.
    pub session: SessionRef,
    hold: Arc<ClaimDeadline>,
    fold: SessionState,
    /// Turns whose replies are published, but not noted in the ledger yet.
    published: Vec<Ulid>,
    /// Number of the era in which the cursor was found to hold.
    era: u64,
    /// Turns whose replies a former owner may have published already, without a note.
    inherited: Vec<Ulid>,
    owned: bool,
    appended: bool,
    staged: Vec<LedgerEntry>,
    /// Trace context of the current turn.
    pub carrier: TraceCarrier,
}

/// Returns the state of a session: as remembered here and updated with the newer records of its ledger, or folded
/// from its newest checkpoint.
///
/// # Errors
/// Returns [`RunSessionError`] if the ledger cannot be read.
pub async fn load(
    broker: &BrokerContext,
    session: &SessionRef,
    known: Option<CachedSession>,
) -> Result<CachedSession, RunSessionError> {
    let mut remembered = known.unwrap_or_default();
    let records = read_tail(broker, session, remembered.fold.last_sequence).await?;
    if remembered.fold.last_sequence == 0 {
        remembered.fold = fold_records(&records).unwrap_or_else(|| apply_records(&records));
        return Ok(remembered);
    }

    for (sequence, record) in &records {
        remembered.fold.apply(*sequence, record);
    }

    Ok(remembered)
}

/// Folds records that begin neither with the session nor with a checkpoint, because the stream was cut by hand.
fn apply_records(records: &[(u64, LedgerRecord)]) -> SessionState {
    let mut state = SessionState::default();
    for (sequence, record) in records {
        state.apply(*sequence, record);
    }
    state
}

/// Reads the records after sequence `after`, oldest first; if it is 0, from the newest checkpoint on.
async fn read_tail(
    broker: &BrokerContext,
    session: &SessionRef,
    after: u64,
) -> Result<Vec<(u64, LedgerRecord)>, RunSessionError> {
    let newest = broker.bus.last_on_subject(LEDGER, &subject::ledger(session)).await?;
    Ok(read_backwards(broker, session, newest, after).await?.records)
}

/// A part of a ledger that begins with its first record, or with one that begins with a checkpoint.
#[derive(Debug, Default)]
pub struct LedgerSegment {
    /// Records of the stretch, oldest first.
    pub records: Vec<(u64, LedgerRecord)>,
    /// Sequence of the record before the stretch; none if it begins with the ledger's first.
    pub upon: Option<u64>,
}

/// Reads the newest stretch of `session`'s ledger that ends at `through` or, if that is none, at the ledger's end. A
/// caller that searches far back has one stretch after the other in memory, and not the whole.
///
/// # Errors
/// Returns [`RunSessionError`] if the ledger cannot be read.
pub async fn read_stretch(
    broker: &BrokerContext,
    session: &SessionRef,
    through: Option<u64>,
) -> Result<LedgerSegment, RunSessionError> {
    let newest = match through {
        None => broker.bus.last_on_subject(LEDGER, &subject::ledger(session)).await?,
        Some(through) => broker.bus.at_sequence(LEDGER, through).await?,
    };
    read_backwards(broker, session, newest, 0).await
}

/// Reads the records from `newest` back to `after`; if that is 0, to the newest checkpoint.
///
/// The records are read backwards: every append names the sequence that it follows, so each step is one look-up by
/// sequence on the leader. Forwards the server would walk over all other sessions' records to find the next of this
/// one.
async fn read_backwards(
    broker: &BrokerContext,
    session: &SessionRef,
    newest: Option<StoredMessage>,
    after: u64,
) -> Result<LedgerSegment, RunSessionError> {
    let mut records = Vec::new();
    let mut next = newest;

    let mut before = None;
    while let Some(stored) = next.filter(|stored| stored.sequence > after) {
        let sequence = stored.sequence;
        let record: LedgerRecord = stored
            .decode()
            .map_err(|source| RunSessionError::unread(sequence, source))?;
        // A checkpoint that this version cannot read is no beginning: the records before it are needed.
        let begins = matches!(record.entries.first(), Some(LedgerEntry::Checkpoint { fold, .. }) if is_fold(fold));
        records.push((sequence, record));

        next = match stored.previous_sequence() {
            Some(0) => None,
            Some(upon) if begins && after == 0 => {
                before = Some(upon);
                None
            }
            Some(upon) => broker.bus.at_sequence(LEDGER, upon).await?,
            // The record was written by hand and does not name its predecessor: read forwards, which is slow.
            None => {
                let newest = records.first().map_or(0, |(newest, _)| *newest);
                let mut records = read(broker, session, after).await?;
                records.retain(|(sequence, _)| *sequence <= newest);
                return Ok(LedgerSegment { records, upon: None });
            }
        };
    }

    records.reverse();
    Ok(LedgerSegment { records, upon: before })
}

async fn read(
    broker: &BrokerContext,
    session: &SessionRef,
    after: u64,
) -> Result<Vec<(u64, LedgerRecord)>, RunSessionError> {
    let records = ledger::read_after(&broker.bus, session, after).await?;
    let readable = records.into_iter().map(|(sequence, record)| match record {
        Ok(record) => Ok((sequence, record)),
        Err(source) => Err(RunSessionError::unread(sequence, source)),
    });
    readable.collect()
}

impl LedgerWriter {
    /// Creates the owner of `session` with the state `remembered`. It owns nothing until its first append succeeds.
    #[must_use]
    pub fn new(
        broker: Arc<BrokerContext>,
        session: SessionRef,
        hold: Arc<ClaimDeadline>,
        remembered: CachedSession,
    ) -> Self {
        let CachedSession { fold, published, era } = remembered;
        let inherited = fold.replies.unpublished.iter().map(|reply| reply.turn).collect();

        Self {
            broker,
            session,
            hold,
            fold,
            published,
            era,
            inherited,
            owned: false,
            appended: false,
            staged: Vec::new(),
            carrier: TraceCarrier::default(),
        }
    }

    /// Returns the fold of the session, with all staged entries.
    #[must_use]
    pub const fn fold(&self) -> &SessionState {
        &self.fold
    }

    /// Returns the turns whose replies are published, but not noted in the ledger yet.
    #[must_use]
    pub fn published_turns(&self) -> &[Ulid] {
        &self.published
    }

    /// Returns whether an append of this owner has succeeded: from then on a lost fence means another owner.
    #[must_use]
    pub const fn has_appended(&self) -> bool {
        self.appended
    }

    /// Stages `entry`; before the first entry of a record, also the entries that must precede it.
    pub fn stage_entry(&mut self, entry: LedgerEntry) {
        if self.staged.is_empty() {
            self.open_record();
        }
        self.push(entry);
    }

    fn open_record(&mut self) {
        self.fold.at = self.broker.clock.now();
        self.fold.held_ms = self.hold.held_ms();

        // A checkpoint comes first in its record, so that a reader can begin with it.
        if let Some(checkpoint) = self.fold.due_checkpoint() {
            self.push(checkpoint);
        }

        if self.fold.session.is_none() {
            self.push(LedgerEntry::SessionOpened {
                session: self.session.clone(),
            });
        }

        // Written with the first append of each owner: the epoch fences the former one.
        if !self.owned {
            self.owned = true;
            self.push(LedgerEntry::Owned {
                epoch: self.fold.epoch + 1,
                broker: self.broker.instance.clone(),
            });
        }

        // Noted with the next append, because a note of its own would double the writes.
        for turn in std::mem::take(&mut self.published) {
            if self.fold.replies.unpublished.iter().any(|reply| reply.turn == turn) {
                self.push(LedgerEntry::ReplyPublished { turn });
            }
        }
    }

    fn push(&mut self, entry: LedgerEntry) {
        self.fold.apply_entry(&entry);
        self.staged.push(entry);
    }

    /// Makes sure that the ledger names this owner.
    ///
    /// # Errors
    /// Returns the errors of [`LedgerWriter::commit_staged`].
    pub async fn ensure_owned(&mut self) -> Result<(), RunSessionError> {
        if !self.owned {
            self.open_record();
        }
        self.commit_staged().await
    }

    /// Appends the staged entries as one record.
    ///
    /// # Errors
    /// Returns [`RunSessionError`]; the owner must not be used afterwards.
    pub async fn commit_staged(&mut self) -> Result<(), RunSessionError> {
        if self.staged.is_empty() {
            return Ok(());
        }

        // The claim may have ended since the entries were staged.
        self.check_live()?;
        let append = AppendId {
            broker: self.broker.instance.clone(),
            epoch: self.fold.epoch,
            counter: self.broker.next_append(),
        };

        let entries = std::mem::take(&mut self.staged);
        let record = LedgerRecord {
            append: append.clone(),
            at: self.fold.at,
            held_ms: self.fold.held_ms,
            entries,
        };

        // The expected sequence is the fence: the append fails if another broker has written.
        let expected = self.fold.last_sequence;
        let sequence = ledger::append(&self.broker.bus, &self.session, &record, expected, &self.carrier).await?;
        self.fold.note_appended(sequence, append);
        self.appended = true;
        // The scheduler learns of a reset only after the reset is durable.
        reset_notifier::notify_reset(&self.broker.bus, &self.session, &record);

        Ok(())
    }

    /// Publishes the replies that the ledger holds and that are not known to be published, oldest first. The id is
    /// the turn's, so that a reply published before is not delivered again. If a former owner left replies, the
    /// session is owned first.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if the claim's deadline has passed or the server refuses for good.
    pub async fn publish_replies(&mut self) -> Result<(), RunSessionError> {
        let due: Vec<Reply> = self
            .fold
            .replies
            .unpublished
            .iter()
            .filter(|reply| !self.published.contains(&reply.turn))
            .cloned()
            .collect();

        // The ledger must name this owner before anything leaves, so that a former owner is fenced off.
        if !due.is_empty() && !self.appended {
            self.ensure_owned().await?;
        }

        for reply in due {
            self.check_live()?;
            let mut out = OutgoingMessage::reply(&reply).carrier(&self.carrier);
            // A former owner may have published the reply: delivery-svc must check for its copy.
            if self.inherited.contains(&reply.turn) {
                out = out.repeated();
            }

            if let Some(dispatch) = self.fold.replies.answers.get(&reply.turn) {
                out = out.header(DISPATCH, dispatch.to_string());
            }

            // A reply that the server never accepts would block the session for ever.
            match self.broker.bus.publish(out.clone()).await {
                Ok(_) => {}
                Err(error @ (PublishError::TooLarge { .. } | PublishError::Rejected { .. })) => {
                    self.give_up(&reply, &out, &error).await?;
                }
                Err(error) => return Err(error.into()),
            }

            self.published.push(reply.turn);
        }

        Ok(())
    }

    /// Stores a reply that no server takes as a dead letter, whole if it fits, so that it does not block other
    /// replies.
    async fn give_up(&self, reply: &Reply, out: &OutgoingMessage, error: &PublishError) -> Result<(), PublishError> {
        let refused = Refused {
            session: &self.session,
            sequence: self.fold.last_sequence,
            detail: format!("turn {}: {error}", reply.turn),
            at: self.broker.clock.now(),
        };
        let room = self.broker.bus.max_payload().min(DeadLetter::MAX_BYTES);
        self.broker
            .bus
            .dead_letter_record(refused.into_dead_letter(out, room))
            .await
    }

    /// Checks that the claim is held: nothing may happen in the session's name past its deadline.
    ///
    /// # Errors
    /// Returns [`RunSessionError::Stale`] if the deadline has passed.
    pub fn check_live(&self) -> Result<(), RunSessionError> {
        if self.hold.is_live() {
            Ok(())
        } else {
            Err(RunSessionError::Stale)
        }
    }

    /// Returns the state of the session to remember.
    #[must_use]
    pub fn into_remembered(self) -> CachedSession {
        CachedSession {
            fold: self.fold,
            published: self.published,
            era: self.era,
        }
    }
}

/// A reply that no server takes: its place in the ledger, and the error.
struct Refused<'a> {
    session: &'a SessionRef,
    sequence: u64,
    detail: String,
    at: UnixMillis,
}

impl Refused<'_> {
    /// Returns the dead letter of the reply `out`; `room` is the largest payload of a message, bytes. A reply that
    /// does not fit is only named by its place in the ledger and cannot be published again from there: its redrive
    /// subject is empty.
    fn into_dead_letter(self, out: &OutgoingMessage, room: usize) -> DeadLetter {
        let payload = DeadLetter::encode_payload(&out.payload);
        // Without room for the payload the dead letter still says where the reply is.
        let fits = payload.len() + LETTER_HEADROOM <= room;

        DeadLetter {
            service: SERVICE.to_owned(),
            subject: subject::ledger(self.session),
            redrive_subject: if fits { out.subject.clone() } else { String::new() },
            stream: LEDGER.to_owned(),
            sequence: self.sequence,
            headers: out
                .headers
                .iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            payload: if fits { payload } else { String::new() },
            reason: "reply_refused".to_owned(),
            detail: self.detail,
            attempts: 1,
            at: self.at,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use shared::wire::headers::Headers;

    use super::*;
    use crate::sample::session;

    #[test]
    fn a_refused_reply_is_in_its_letter_whole_or_the_letter_is_not_redriven() {
        let headers: Headers = [(DISPATCH, "d1")].into_iter().collect();
        let out = OutgoingMessage::raw(
            "nexus.delivery.test.a.b".to_owned(),
            headers,
            Bytes::from_static(b"reply"),
        );

        let letter = |room| {
            let refused = Refused {
                session: &session(),
                sequence: 7,
                detail: String::new(),
                at: UnixMillis(1),
            };

            refused.into_dead_letter(&out, room)
        };

        let whole = letter(LETTER_HEADROOM + 100);
        assert_eq!(whole.payload_bytes().as_deref(), Some(&b"reply"[..]));
        assert_eq!(whole.redrive_subject, out.subject);
        assert_eq!(whole.headers, [(DISPATCH.to_owned(), "d1".to_owned())]);

        let cut = letter(LETTER_HEADROOM);
        assert_eq!((cut.payload.as_str(), cut.redrive_subject.as_str()), ("", ""));
    }
}
