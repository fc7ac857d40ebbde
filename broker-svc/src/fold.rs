//! The fold: what the entries of a session's ledger add up to. The fold *is* the session. *Pure.*
//!
//! Source: `docs/design/sessions.md` §3. `fold(all) == fold(checkpoint + tail)` holds because everything that the fold
//! forgets (old turns of the history, old dispatch ids) it forgets by its own content alone.

mod history;
mod owed;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::model::intent::service::ProposeIntent;
use shared::model::ledger::{AppendId, Cursor, LedgerEntry, LedgerRecord, Usage};
use shared::model::order::Wanted;
use shared::model::reply::Reply;
use shared::model::session::{QueueSettings, SessionRef};
use shared::model::time::UnixMillis;
use ulid::Ulid;

pub use self::history::{Exchange, HISTORY_BYTES, HISTORY_TURNS, MAX_HISTORY_TEXT, MAX_SENT_HISTORY};
pub use self::owed::{About, MAX_OWED, Owed};
use crate::hook_point::runs::REMINDED;
use crate::turn::journal::{Awaited, Running, sum};
use crate::turn::used::{Stamp, UsedTime};

/// Entries between two checkpoints.
pub const CHECKPOINT_EVERY: u32 = 256;
/// Largest fold of a checkpoint, bytes of JSON: beside it the record's own entries find room. A larger one waits
/// until the turn is over whose long journal it holds.
pub const MAX_CHECKPOINT_BYTES: usize = 1_024 * 1_024;
/// Dispatch ids remembered, so that one published again outside of the server's window is not run again.
pub const RECENT_DISPATCHES: usize = 1_024;
/// Reminders remembered as having come.
pub const MAX_REMINDED: usize = 256;
/// Lines about dropped dispatches remembered for the next turn.
pub const MAX_NOTES: usize = 40;
/// What a turn of the history takes in memory besides its texts: the entry, and two allocations.
const EXCHANGE_OVERHEAD: usize = size_of::<Exchange>() + 32;
/// Who stands in the ledger as having said a note about an intent.
pub const INTENTS: &str = "intents";
/// Key under which such an entry holds an intent that nobody answered for.
pub const ASKS: &str = "asks";
/// Key under which such an entry names an intent that was answered for, or given up.
pub const ASKED: &str = "asked";
/// Where such an entry says what the next turn is told.
pub const NOTE: &str = "note";
/// Intents that nobody has answered for remembered at once.
pub const MAX_WISHED: usize = 16;
/// Reason of a dispatch that a newer one interrupted before it ran; a line of it goes into the next turn's context.
pub const SUPERSEDED: &str = "superseded";
/// Reason of a dispatch that was dropped for want of room, and of which a line goes into the next turn's context.
pub const SUMMARIZED: &str = "overflow: summarized";

/// What a session's ledger adds up to.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Fold {
    /// The session's whole names; none before the first entry.
    pub session: Option<SessionRef>,
    /// Ledger sequence of the last record; 0 before the first. What the next append expects.
    pub last_sequence: u64,
    /// Whose append that was.
    pub last_append: Option<AppendId>,
    /// The newest ownership.
    pub epoch: u64,
    /// The session's newest completed turn.
    pub head: Option<Ulid>,
    /// How far it has come in `DISPATCHES`.
    pub cursor: Cursor,
    /// The turn begun and not over.
    pub running: Option<Running>,
    /// Replies committed and not noted as published, oldest first.
    pub unpublished: Vec<Reply>,
    /// The dispatch that each of them answers (of several the last), by turn.
    #[serde(default)]
    pub answers: BTreeMap<Ulid, Ulid>,
    /// Ids of the newest dispatches consumed, oldest first, at most [`RECENT_DISPATCHES`].
    pub recent: VecDeque<Ulid>,
    /// The newest turns, oldest first, bounded by [`HISTORY_TURNS`] and [`HISTORY_BYTES`].
    pub history: VecDeque<Exchange>,
    /// What stands for the turns before the history.
    pub summary: Option<String>,
    /// Tokens and cost over the session's life.
    pub usage: Usage,
    /// The model that answered last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Entries since the last checkpoint.
    pub since_checkpoint: u32,
    /// When the record at hand was begun.
    #[serde(default)]
    pub at: UnixMillis,
    /// How long its writer had held the session, milliseconds.
    #[serde(default)]
    pub held_ms: u64,
    /// When the newest turn ended.
    #[serde(default)]
    pub active_at: UnixMillis,
    /// The session's own queue settings.
    #[serde(default)]
    pub queue: QueueSettings,
    /// Lines about dispatches dropped for want of room, for the next turn's context; at most [`MAX_NOTES`].
    #[serde(default)]
    pub notes: VecDeque<String>,
    /// Lines that went for want of room among these.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub notes_lost: u32,
    /// Why intents of the newest turn were refused, for the next turn's context; at most [`MAX_NOTES`].
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub refused: VecDeque<String>,
    /// Reminders that come once and have come; at most [`MAX_REMINDED`].
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub reminded: BTreeSet<String>,
    /// Intents of turns that are over which nobody has answered for, oldest first; at most [`MAX_WISHED`].
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub wished: VecDeque<ProposeIntent>,
    /// Since when each of them has been owed, by its id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub wished_since: BTreeMap<Ulid, UnixMillis>,
    /// Turns that are over and whose last hooks have not run, oldest first; at most [`MAX_OWED`].
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub owed: VecDeque<Owed>,
}

impl Fold {
    /// The approval that the running turn waits for, if it does.
    #[must_use]
    pub fn awaited(&self) -> Option<&Awaited> {
        self.running.as_ref().and_then(|turn| turn.awaits.as_ref())
    }

    /// Takes in the record at ledger sequence `sequence`.
    pub fn apply(&mut self, sequence: u64, record: &LedgerRecord) {
        self.at = record.at;
        self.held_ms = record.held_ms;
        for entry in &record.entries {
            self.apply_entry(entry);
        }
        self.appended(sequence, record.append.clone());
    }

    /// Notes that the entries taken in last are at `sequence`.
    pub fn appended(&mut self, sequence: u64, append: AppendId) {
        self.last_sequence = sequence;
        self.last_append = Some(append);
    }

    /// Takes in one entry.
    pub fn apply_entry(&mut self, entry: &LedgerEntry) {
        self.since_checkpoint = self.since_checkpoint.saturating_add(1);

        match entry {
            LedgerEntry::SessionOpened { session } => self.session = Some(session.clone()),
            LedgerEntry::Owned { epoch, broker: _ } => {
                self.epoch = *epoch;
                let now = self.stamp();
                if let Some(turn) = &mut self.running {
                    turn.used.taken_over(now, turn.limits.wall_ms);
                }
            }
            LedgerEntry::TurnStarted {
                turn,
                parent: _,
                dispatches,
                permissions,
                limits,
            } => {
                self.running = Some(Running {
                    turn: *turn,
                    dispatches: dispatches.clone(),
                    permissions: permissions.clone(),
                    limits: *limits,
                    began_at: self.at,
                    notes: self.take_notes(),
                    refused: std::mem::take(&mut self.refused).into(),
                    passages: Vec::new(),
                    hiding: Vec::new(),
                    hidden: Vec::new(),
                    usage: Usage::default(),
                    awaits: None,
                    used: UsedTime::begin(self.stamp()),
                    asked: Vec::new(),
                });
            }
            LedgerEntry::ModelAnswered { usage, model, .. } => {
                self.usage = sum(&self.usage, usage);
                if model.is_some() {
                    self.model.clone_from(model);
                }
                self.in_turn(entry);
            }
            LedgerEntry::ToolStarted { .. }
            | LedgerEntry::ToolFinished { .. }
            | LedgerEntry::ApprovalRequested { .. }
            | LedgerEntry::Steered { .. } => self.in_turn(entry),
            LedgerEntry::ApprovalDecided { cursor, .. } => {
                self.in_turn(entry);
                if let Some(cursor) = cursor {
                    self.cursor = cursor.clone();
                }
            }
            LedgerEntry::HookRan { hook, outcome, .. } => {
                if hook == INTENTS {
                    self.wish(outcome);
                }
                self.remind(outcome);
                self.owe(outcome);
                self.in_turn(entry);
            }
            LedgerEntry::TurnCompleted {
                turn,
                reply,
                head,
                cursor,
            } => {
                let answered = self.running.as_ref().and_then(|running| running.answered());
                let answered = answered.map(|(_, content, _)| content);
                let said = reply.as_deref().map(|reply| reply.content.as_str()).or(answered);
                let said = said.unwrap_or_default().to_owned();
                self.remember_turn(*turn, &said);
                self.head = Some(*head);
                self.end_turn(reply.as_deref(), cursor);
            }
            LedgerEntry::ReplyPublished { turn } => {
                self.unpublished.retain(|reply| reply.turn != *turn);
                self.answers.remove(turn);
            }
            LedgerEntry::Checkpoint {
                fold: _,
                cursor: _,
                through: _,
            } => self.since_checkpoint = 0,
            LedgerEntry::TurnFailed {
                turn,
                failure: _,
                reply,
                cursor,
            } => {
                let told = reply.as_deref().map(|reply| reply.content.as_str());
                self.remember_broken_off(*turn, "", &format!("failed: {}", told.unwrap_or_default()));
                self.end_turn(reply.as_deref(), cursor);
            }
            LedgerEntry::TurnInterrupted {
                turn,
                reason: _,
                partial,
                cursor,
            } => {
                self.remember_broken_off(*turn, partial, "interrupted");
                self.end_turn(None, cursor);
            }
            LedgerEntry::DispatchDropped {
                dispatch,
                reason,
                cursor,
            } => {
                self.consumed(dispatch.id);
                self.cursor = cursor.clone();
                if [SUMMARIZED, SUPERSEDED].contains(&reason.as_str()) && !dispatch.content.is_empty() {
                    let lost = remember(&mut self.notes, &dispatch.content);
                    self.notes_lost = self.notes_lost.saturating_add(u32::from(lost));
                }
            }
            LedgerEntry::Ordered {
                order,
                sequence: _,
                cursor,
            } => {
                self.consumed(order.id);
                self.cursor = cursor.clone();

                match &order.wanted {
                    Wanted::Queue { settings } => self.queue = *settings,
                    // It may come after the word that takes it back.
                    Wanted::Withdraw { dispatch, .. } => self.consumed(*dispatch),
                    Wanted::Abort | Wanted::Interrupt | Wanted::Reset => {}
                }
            }
            LedgerEntry::Compacted { through, summary } => self.compact(*through, summary),
            LedgerEntry::SessionReset { reason: _ } => {
                self.history.clear();
                self.summary = None;
                self.head = None;
                self.reminded.clear();
            }
        }
    }

    /// The lines for the context of a turn that begins; the first says how many there is no room for.
    fn take_notes(&mut self) -> Vec<String> {
        let lost = std::mem::take(&mut self.notes_lost);
        let lost = (lost > 0).then(|| format!("({lost} older ones, which only the ledger has)"));
        lost.into_iter().chain(std::mem::take(&mut self.notes)).collect()
    }

    const fn stamp(&self) -> Stamp {
        Stamp {
            at: self.at,
            held_ms: self.held_ms,
        }
    }

    fn in_turn(&mut self, entry: &LedgerEntry) {
        let now = self.stamp();
        if let Some(turn) = &mut self.running {
            turn.apply(entry, now);
            turn.used.saw(now);
        }
    }

    fn remind(&mut self, outcome: &Value) {
        let key = outcome.get(REMINDED).and_then(Value::as_str);
        if let Some(key) = key.filter(|_| self.reminded.len() < MAX_REMINDED) {
            self.reminded.insert(key.to_owned());
        }
    }

    fn wish(&mut self, outcome: &Value) {
        if let Some(note) = outcome.get(NOTE).and_then(Value::as_str) {
            remember(&mut self.refused, note);
        }

        let asks = outcome.get(ASKS).cloned().map(serde_json::from_value::<ProposeIntent>);
        if let Some(Ok(wish)) = asks
            && self.wished.len() < MAX_WISHED
        {
            self.wished_since.extend(wish.id.map(|id| (id, self.at)));
            self.wished.push_back(wish);
        }

        let asked = outcome.get(ASKED).and_then(Value::as_str);
        if let Some(asked) = asked.and_then(|id| id.parse::<Ulid>().ok()) {
            self.wished.retain(|wish| wish.id != Some(asked));
            self.wished_since.remove(&asked);
        }
    }

    fn end_turn(&mut self, reply: Option<&Reply>, cursor: &Cursor) {
        for dispatch in self.running.take().map(|turn| turn.dispatches).unwrap_or_default() {
            self.consumed(dispatch.id);
            self.answers.extend(reply.map(|reply| (reply.turn, dispatch.id)));
        }
        self.unpublished.extend(reply.cloned());
        self.cursor = cursor.clone();
        self.active_at = self.at;
    }

    fn consumed(&mut self, dispatch: Ulid) {
        if self.recent.len() == RECENT_DISPATCHES {
            self.recent.pop_front();
        }
        self.recent.push_back(dispatch);
    }

    /// The entry that lets a later reader begin here; due every [`CHECKPOINT_EVERY`] entries. It must be the first
    /// of its record: it covers the records before it.
    #[must_use]
    pub fn checkpoint(&self) -> Option<LedgerEntry> {
        if self.since_checkpoint < CHECKPOINT_EVERY {
            return None;
        }

        let fold = serde_json::to_value(self).ok()?;
        if fold.to_string().len() > MAX_CHECKPOINT_BYTES {
            return None;
        }

        Some(LedgerEntry::Checkpoint {
            fold,
            cursor: self.cursor.clone(),
            through: self.last_sequence,
        })
    }

    /// Roughly how much memory it takes, bytes.
    #[must_use]
    pub fn weight(&self) -> usize {
        let text: usize = self.history.iter().map(|turn| turn.bytes() + EXCHANGE_OVERHEAD).sum();
        let replies: usize = self.unpublished.iter().map(|reply| reply.content.len() + 512).sum();
        let notes = self.notes.iter().chain(&self.refused).chain(&self.reminded);
        let notes: usize = notes.chain(&self.summary).map(String::len).sum();
        let ids = (self.recent.len() + 8 * self.cursor.above.len()) * size_of::<Ulid>();
        size_of::<Self>() + text + replies + notes + ids + written(&self.running) + written(&self.owed)
    }
}

/// Says whether the oldest had to go for it.
fn remember(notes: &mut VecDeque<String>, said: &str) -> bool {
    let is_full = notes.len() == MAX_NOTES;
    if is_full {
        notes.pop_front();
    }
    notes.push_back(said.to_owned());
    is_full
}

/// Roughly how much memory `value` takes, bytes: as long as it is in JSON.
fn written(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(0, |text| text.len())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over like this")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// `text`, or as much of its beginning as fits into `bytes`, whole characters only.
#[must_use]
pub fn shortened(text: &str, bytes: usize) -> String {
    text[..text.floor_char_boundary(bytes)].to_owned()
}

/// The fold of a session's records, which begin with the session or with a record whose first entry is a checkpoint.
/// None where they begin with a record that is neither: the hint that led there is wrong, or its fold is not readable.
#[must_use]
pub fn fold(records: &[(u64, LedgerRecord)]) -> Option<Fold> {
    let mut state = match records.first().and_then(|(_, record)| record.entries.first()) {
        Some(LedgerEntry::Checkpoint { fold, .. }) => restored(fold)?,
        Some(LedgerEntry::SessionOpened { .. }) | None => Fold::default(),
        Some(_) => return None,
    };
    for (sequence, record) in records {
        state.apply(*sequence, record);
    }
    Some(state)
}

/// Whether `value` is a fold that this release reads: a checkpoint of it can be begun with.
#[must_use]
pub fn is_fold(value: &Value) -> bool {
    restored(value).is_some()
}

/// The fold that a checkpoint holds; none where this release does not read it.
#[must_use]
pub fn restored(value: &Value) -> Option<Fold> {
    serde_json::from_value(value.clone()).ok()
}

/// The cursor after `consumed`. The session's subject was read without gaps from the floor through `read_through`,
/// and `lowest_open` is the lowest sequence known and not consumed: all that lies below both is consumed.
#[must_use]
pub fn advanced(cursor: &Cursor, consumed: u64, read_through: u64, lowest_open: Option<u64>) -> Cursor {
    let mut above = cursor.above.clone();
    above.push(consumed);
    above.sort_unstable();
    above.dedup();
    let reached = lowest_open.map_or(read_through, |open| read_through.min(open.saturating_sub(1)));
    let floor = cursor.floor.max(reached);
    above.retain(|&sequence| sequence > floor);

    Cursor {
        floor,
        above,
        ..cursor.clone()
    }
}

/// Where a session stands: what of its fold decides whether it is runnable.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    /// How far it has come in `DISPATCHES`.
    pub cursor: Cursor,
    /// A turn is begun and not over.
    pub in_turn: bool,
    /// The approval that the turn waits for.
    pub awaits: Option<Awaited>,
    /// A committed reply is not known to be published, or a turn's last hooks have not run.
    pub owes: bool,
}

impl Standing {
    /// Where `fold` stands; `published` are turns whose replies are known to be published although the ledger does
    /// not say so yet.
    #[must_use]
    pub fn of(fold: &Fold, published: &[Ulid]) -> Self {
        Self {
            cursor: fold.cursor.clone(),
            in_turn: fold.running.is_some(),
            awaits: fold.awaited().cloned(),
            owes: !fold.owed.is_empty() || fold.unpublished.iter().any(|reply| !published.contains(&reply.turn)),
        }
    }
}

/// Whether there is anything to do in a session: decides taking, releasing and looking alike
/// (`docs/design/sessions.md` §1.6).
///
/// `pending` is the lowest sequence in `DISPATCHES` that was seen beyond the cursor's floor. A session suspended on
/// an approval is runnable only once the approval lapsed; its decision ends the suspension through the ledger.
#[must_use]
pub fn runnable(standing: &Standing, pending: Option<u64>, now: UnixMillis) -> bool {
    if let Some(awaited) = &standing.awaits {
        return now >= awaited.expires_at;
    }
    standing.in_turn || standing.owes || pending.is_some_and(|sequence| !standing.cursor.contains(sequence))
}

#[cfg(test)]
mod tests;
