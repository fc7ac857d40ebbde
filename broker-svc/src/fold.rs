//! The fold: what the entries of a session's ledger add up to. The fold *is* the session. *Pure.*
//!
//! Source: `sessions.md` "Durable turns". `fold(all) == fold(checkpoint + tail)` holds because everything that the
//! fold forgets (old turns of the history, old dispatch ids) it forgets by its own content alone.

mod history;
mod intents;
mod post_hooks;

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
pub use self::intents::MAX_OWED_INTENTS;
pub use self::post_hooks::{MAX_PENDING_POST_HOOKS, PendingPostHooks};
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
    pub at: UnixMillis,
    /// How long its writer had held the session, milliseconds.
    pub held_ms: u64,
    /// When the newest turn ended.
    pub active_at: UnixMillis,
    /// The session's own queue settings.
    pub queue: QueueSettings,
    /// Lines about dispatches dropped for want of room, for the next turn's context; at most [`MAX_NOTES`].
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
    /// Intents of finished turns that the scheduler has not answered for, oldest first; at most [`MAX_OWED_INTENTS`].
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub owed_intents: VecDeque<ProposeIntent>,
    /// When each of them was first owed, by its id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub intents_owed_since: BTreeMap<Ulid, UnixMillis>,
    /// Finished turns whose post-turn hooks have not all run, oldest first; at most [`MAX_PENDING_POST_HOOKS`].
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub post_hooks: VecDeque<PendingPostHooks>,
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
            LedgerEntry::HookRan { .. } | LedgerEntry::ContextAdded { .. } | LedgerEntry::ToolsHidden { .. } => {
                self.in_turn(entry);
            }
            LedgerEntry::ReminderShown { hook } => {
                if self.reminded.len() < MAX_REMINDED {
                    self.reminded.insert(hook.clone());
                }
                self.in_turn(entry);
            }
            LedgerEntry::IntentRefused { note } => {
                self.note_refusal(note);
                self.in_turn(entry);
            }
            LedgerEntry::IntentOwed { proposal } => {
                self.owe_intent(proposal);
                self.in_turn(entry);
            }
            LedgerEntry::IntentSettled { id, note } => {
                note.iter().for_each(|note| self.note_refusal(note));
                self.settle_intent(*id);
                self.in_turn(entry);
            }
            LedgerEntry::PostHooksDue { finished } => {
                self.add_post_hooks(finished);
                self.in_turn(entry);
            }
            LedgerEntry::UnseenCallShown { turn } => {
                self.note_call_shown(*turn);
                self.in_turn(entry);
            }
            LedgerEntry::PostHookRan { turn, hook } => {
                self.note_post_hook_ran(*turn, hook);
                self.in_turn(entry);
            }
            LedgerEntry::PostHookFailed { turn, retry_at } => {
                self.note_post_hook_failed(*turn, *retry_at);
                self.in_turn(entry);
            }
            LedgerEntry::PostHooksSettled { turn } => {
                self.settle_post_hooks(*turn);
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
                detail: _,
                cursor,
            } => {
                self.consumed(dispatch.id);
                self.cursor = cursor.clone();
                if reason.leaves_a_note() && !dispatch.content.is_empty() {
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
        size_of::<Self>() + text + replies + notes + ids + written(&self.running) + written(&self.post_hooks)
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
            owes: !fold.post_hooks.is_empty() || fold.unpublished.iter().any(|reply| !published.contains(&reply.turn)),
        }
    }
}

/// Whether there is anything to do in a session: decides taking, releasing and looking alike (`sessions.md` rule 6).
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
