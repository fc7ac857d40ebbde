//! The fold: the state that the entries of a session's ledger add up to. The fold *is* the session. *Pure.*
//!
//! Source: `docs/design/sessions.md` §3. `fold(all) == fold(checkpoint + tail)` holds because the fold forgets old
//! turns of the history and old dispatch ids by its own content alone.

mod checkpoint;
mod edits;
mod history;
mod intents;
mod notes;
mod orders;
mod post_hooks;
mod replies;
mod run_state;

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use shared::model::ledger::{
    AppendId, DispatchRef, DropReason, LedgerCursor, LedgerEntry, LedgerRecord, TurnLimits, TurnUsage,
};
use shared::model::permission::PermissionSet;
use shared::model::reply::Reply;
use shared::model::reply::SendDecision;
use shared::model::session::{QueueSettings, SessionRef};
use shared::model::time::UnixMillis;
use shared::wire::unknown::{UnknownFields, keeps_unknown};
use ulid::Ulid;

pub use self::checkpoint::{CHECKPOINT_EVERY, MAX_CHECKPOINT_BYTES, fold_records, is_fold, restore_fold};
pub use self::edits::EditedTexts;
pub use self::history::{HISTORY_BYTES, HISTORY_TURNS, HistoryTurn, MAX_HISTORY_TEXT, MAX_SENT_HISTORY};
pub use self::intents::{MAX_OWED_INTENTS, OwedIntent, SessionIntents};
pub use self::notes::{DroppedNotes, MAX_NOTES};
pub use self::post_hooks::{MAX_PENDING_POST_HOOKS, PendingPostHooks, PostHookQueue};
pub use self::replies::ReplyOutbox;
pub use self::run_state::{RunState, is_runnable};
use crate::turn::journal::{AwaitedApproval, RunningTurn, sum_usage};
use crate::turn::used::{RecordTime, UsedTime};

/// Number of remembered dispatch ids, so that a dispatch published again outside the server's window is not run
/// again.
pub const RECENT_DISPATCHES: usize = 1_024;
/// Maximum number of reminders remembered as given.
pub const MAX_REMINDED: usize = 256;
/// Memory that a turn of the history takes besides its texts, bytes: the entry, and two allocations.
const EXCHANGE_OVERHEAD: usize = size_of::<HistoryTurn>() + 32;

/// State that a session's ledger adds up to.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct SessionState {
    /// The session's persona and name; none before the first entry.
    pub session: Option<SessionRef>,
    /// Ledger sequence of the last record, which the next append expects; 0 before the first.
    pub last_sequence: u64,
    /// Id of the append that wrote the last record.
    pub last_append: Option<AppendId>,
    /// Epoch of the newest ownership.
    pub epoch: u64,
    /// Id of the session's newest completed turn.
    pub head: Option<Ulid>,
    /// Position of the session in `DISPATCHES`.
    pub cursor: LedgerCursor,
    /// The turn that was begun and is not over.
    pub running: Option<RunningTurn>,
    /// Replies that are committed and not noted as published.
    pub replies: ReplyOutbox,
    /// Ids of the newest dispatches consumed, oldest first, at most [`RECENT_DISPATCHES`].
    pub recent: VecDeque<Ulid>,
    /// The newest turns, oldest first, bounded by [`HISTORY_TURNS`] and [`HISTORY_BYTES`].
    pub history: VecDeque<HistoryTurn>,
    /// Summary that replaces the turns before the history.
    pub summary: Option<String>,
    /// Tokens and cost over the whole life of the session.
    pub usage: TurnUsage,
    /// Name of the model that answered last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Number of entries since the last checkpoint.
    pub since_checkpoint: u32,
    /// Time at which the current record was begun.
    pub at: UnixMillis,
    /// Time that the record's writer had held the session, milliseconds.
    pub held_ms: u64,
    /// Time at which the newest turn ended.
    pub active_at: UnixMillis,
    /// The newest turn, if it is over without a reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<UnansweredTurn>,
    /// Queue settings of this session alone.
    pub queue: QueueSettings,
    /// What the session's own send policy says, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send: Option<SendDecision>,
    /// Lines about dropped messages, for the next turn's context.
    pub notes: DroppedNotes,
    /// New texts of dispatches that their senders have edited.
    #[serde(default, skip_serializing_if = "EditedTexts::is_empty")]
    pub edits: EditedTexts,
    /// Keys of the reminders that a session gets only once and has got; at most [`MAX_REMINDED`].
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub reminded: BTreeSet<String>,
    /// Intents of the session's finished turns.
    #[serde(default, skip_serializing_if = "SessionIntents::is_empty")]
    pub intents: SessionIntents,
    /// Finished turns whose post-turn hooks have not all run.
    #[serde(default, skip_serializing_if = "PostHookQueue::is_empty")]
    pub post_hooks: PostHookQueue,
    /// Fields of a checkpoint that a later release has set.
    #[serde(skip)]
    pub unknown: UnknownFields,
}

keeps_unknown!(SessionState);

/// A turn that is over without a reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnansweredTurn {
    /// Id of the turn.
    pub turn: Ulid,
    /// Id of its last dispatch.
    pub dispatch: Ulid,
    /// Sequence of this dispatch in `DISPATCHES`.
    pub sequence: u64,
}

impl SessionState {
    /// Returns the approval that the running turn waits for, if it waits.
    #[must_use]
    pub fn awaited_approval(&self) -> Option<&AwaitedApproval> {
        self.running.as_ref().and_then(|turn| turn.awaits.as_ref())
    }

    /// Applies the record at ledger sequence `sequence`.
    pub fn apply(&mut self, sequence: u64, record: &LedgerRecord) {
        self.at = record.at;
        self.held_ms = record.held_ms;
        for entry in &record.entries {
            self.apply_entry(entry);
        }
        self.note_appended(sequence, record.append.clone());
    }

    /// Notes that the entries applied last are at `sequence`.
    pub fn note_appended(&mut self, sequence: u64, append: AppendId) {
        self.last_sequence = sequence;
        self.last_append = Some(append);
    }

    /// Applies one entry; each part of the state handles its own kinds.
    pub fn apply_entry(&mut self, entry: &LedgerEntry) {
        self.since_checkpoint = self.since_checkpoint.saturating_add(1);

        match entry {
            LedgerEntry::SessionOpened { session } => self.session = Some(session.clone()),
            LedgerEntry::Owned { epoch, broker: _ } => self.change_owner(*epoch),
            LedgerEntry::TurnStarted {
                turn,
                dispatches,
                permissions,
                limits,
                ..
            } => {
                self.start_turn(*turn, dispatches, permissions, *limits);
            }
            LedgerEntry::ModelAnswered { usage, model, .. } => self.count_answer(usage, model.as_ref()),
            LedgerEntry::CostReserved { .. }
            | LedgerEntry::ToolStarted { .. }
            | LedgerEntry::ToolFinished { .. }
            | LedgerEntry::ApprovalRequested { .. }
            | LedgerEntry::Steered { .. }
            | LedgerEntry::HookRan { .. }
            | LedgerEntry::ContextAdded { .. }
            | LedgerEntry::ToolsHidden { .. } => {}
            LedgerEntry::ApprovalDecided { cursor, .. } => self.advance(cursor.as_ref()),
            LedgerEntry::ReminderShown { hook } => self.note_reminder(hook),
            LedgerEntry::IntentRefused { note } => self.intents.add_refusal(note),
            LedgerEntry::IntentOwed { proposal } => self.intents.add_owed(proposal, self.at),
            LedgerEntry::IntentSettled { id, note } => self.intents.settle(*id, note.as_deref()),
            LedgerEntry::PostHooksDue { finished } => self.post_hooks.add(finished),
            LedgerEntry::UnseenCallShown { turn } => self.post_hooks.note_call_shown(*turn),
            LedgerEntry::PostHookRan { turn, hook } => self.post_hooks.note_ran(*turn, hook),
            LedgerEntry::PostHookFailed { turn, retry_at } => self.post_hooks.note_failed(*turn, *retry_at),
            LedgerEntry::PostHooksSettled { turn } => self.post_hooks.settle(*turn),
            LedgerEntry::TurnCompleted {
                turn,
                reply,
                head,
                cursor,
            } => self.complete_turn(*turn, reply.as_deref(), *head, cursor),
            LedgerEntry::TurnFailed {
                turn, reply, cursor, ..
            } => self.fail_turn(*turn, reply.as_deref(), cursor),
            LedgerEntry::TurnInterrupted {
                turn, partial, cursor, ..
            } => self.interrupt_turn(*turn, partial, cursor),
            LedgerEntry::ReplyPublished { turn } => self.replies.remove(*turn),
            LedgerEntry::Checkpoint { .. } => self.since_checkpoint = 0,
            LedgerEntry::DispatchDropped {
                dispatch,
                reason,
                cursor,
                ..
            } => self.drop_dispatch(dispatch, *reason, cursor),
            LedgerEntry::Ordered { order, cursor, .. } => self.obey(order, cursor),
            LedgerEntry::Compacted { through, summary } => self.compact(*through, summary),
            LedgerEntry::SessionReset { .. } => self.reset(),
        }

        if is_within_turn(entry) {
            self.apply_within_turn(entry);
        }
    }

    /// Records that the session has another owner; the time that its turn has used goes on counting.
    fn change_owner(&mut self, epoch: u64) {
        self.epoch = epoch;
        let now = self.current_stamp();
        if let Some(turn) = &mut self.running {
            turn.used.taken_over(now, turn.limits.wall_ms);
        }
    }

    /// Begins the turn of a [`LedgerEntry::TurnStarted`], with all notes for its context.
    fn start_turn(&mut self, turn: Ulid, dispatches: &[DispatchRef], permissions: &PermissionSet, limits: TurnLimits) {
        self.unanswered = None;
        self.running = Some(RunningTurn {
            turn,
            dispatches: dispatches.to_vec(),
            permissions: permissions.clone(),
            limits,
            began_at: self.at,
            notes: self.notes.take(),
            refused: self.intents.take_refusals(),
            passages: Vec::new(),
            hiding: Vec::new(),
            hidden: Vec::new(),
            usage: TurnUsage::default(),
            reserved_usd: 0.0,
            given_up_usd: 0.0,
            awaits: None,
            used: UsedTime::begin_at(self.current_stamp()),
            asked: Vec::new(),
        });
    }

    fn count_answer(&mut self, usage: &TurnUsage, model: Option<&String>) {
        self.usage = sum_usage(&self.usage, usage);
        if let Some(model) = model {
            self.model = Some(model.clone());
        }
    }

    fn note_reminder(&mut self, hook: &str) {
        if self.reminded.len() < MAX_REMINDED {
            self.reminded.insert(hook.to_owned());
        }
    }

    /// Ends a turn that was answered: its text is the reply or, without one, the model's last answer.
    fn complete_turn(&mut self, turn: Ulid, reply: Option<&Reply>, head: Ulid, cursor: &LedgerCursor) {
        let answered = self.running.as_ref().and_then(|running| running.last_answer());
        let answered = answered.map(|(_, content, _)| content);
        let said = reply.map(|reply| reply.content.as_str()).or(answered);
        let said = said.unwrap_or_default().to_owned();

        self.remember_turn(turn, &said);
        self.head = Some(head);
        self.end_turn(reply, cursor);
    }

    fn fail_turn(&mut self, turn: Ulid, reply: Option<&Reply>, cursor: &LedgerCursor) {
        let told = reply.map(|reply| reply.content.as_str()).unwrap_or_default();
        self.remember_broken_off(turn, "", &format!("failed: {told}"));
        self.end_turn(reply, cursor);
    }

    fn interrupt_turn(&mut self, turn: Ulid, partial: &str, cursor: &LedgerCursor) {
        self.remember_broken_off(turn, partial, "interrupted");
        self.end_turn(None, cursor);
    }

    fn drop_dispatch(&mut self, dispatch: &DispatchRef, reason: DropReason, cursor: &LedgerCursor) {
        if reason == DropReason::Lost {
            self.recent.retain(|id| *id != dispatch.id);
        } else if reason.consumes() {
            self.note_consumed(dispatch.id);
        }
        self.advance(Some(cursor));
        if reason.leaves_a_note() {
            self.notes.add(&dispatch.content);
        }
    }

    fn reset(&mut self) {
        self.history.clear();
        self.summary = None;
        self.head = None;
        self.reminded.clear();
    }

    const fn current_stamp(&self) -> RecordTime {
        RecordTime {
            at: self.at,
            held_ms: self.held_ms,
        }
    }

    fn apply_within_turn(&mut self, entry: &LedgerEntry) {
        let now = self.current_stamp();
        if let Some(turn) = &mut self.running {
            turn.apply(entry, now);
            turn.used.note_record(now);
        }
    }

    fn end_turn(&mut self, reply: Option<&Reply>, cursor: &LedgerCursor) {
        let ended = self.running.take();
        let unanswered = ended.as_ref().filter(|_| reply.is_none()).and_then(|ended| {
            let last = ended.dispatches.last()?;
            Some(UnansweredTurn {
                turn: ended.turn,
                dispatch: last.id,
                sequence: last.sequence,
            })
        });
        self.unanswered = unanswered;

        let dispatches = ended.map(|turn| turn.dispatches).unwrap_or_default();
        let dispatches: Vec<Ulid> = dispatches.iter().map(|dispatch| dispatch.id).collect();
        dispatches.iter().for_each(|dispatch| self.note_consumed(*dispatch));

        if let Some(reply) = reply {
            self.replies.add(reply, &dispatches);
        }

        self.cursor = cursor.clone();
        self.active_at = self.at;
    }

    fn advance(&mut self, cursor: Option<&LedgerCursor>) {
        if let Some(cursor) = cursor {
            self.cursor = cursor.clone();
        }
    }

    fn note_consumed(&mut self, id: Ulid) {
        self.edits.remove(id);
        if self.recent.len() == RECENT_DISPATCHES {
            self.recent.pop_front();
        }
        self.recent.push_back(id);
    }

    /// Returns the approximate memory of the fold, bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let text: usize = self.history.iter().map(|turn| turn.bytes() + EXCHANGE_OVERHEAD).sum();
        let replies: usize = self
            .replies
            .unpublished
            .iter()
            .map(|reply| reply.content.len() + 512)
            .sum();
        let notes = self
            .notes
            .lines
            .iter()
            .chain(&self.intents.refusals)
            .chain(&self.reminded);
        let notes: usize = notes.chain(&self.summary).map(String::len).sum();
        // Estimates are enough: the weight only decides which folds are kept in memory.
        let ids = (self.recent.len() + 8 * self.cursor.above.len()) * size_of::<Ulid>();
        size_of::<Self>()
            + text
            + replies
            + self.edits.bytes()
            + notes
            + ids
            + json_bytes(&self.running)
            + json_bytes(&self.post_hooks)
            + json_bytes(&self.intents.owed)
    }
}

/// Returns the approximate memory of `value`, bytes: the length of its JSON.
fn json_bytes(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(0, |text| text.len())
}

/// Returns whether `entry` belongs to the turn under way, if there is one: its owner was working on the turn then.
const fn is_within_turn(entry: &LedgerEntry) -> bool {
    match entry {
        LedgerEntry::CostReserved { .. }
        | LedgerEntry::ModelAnswered { .. }
        | LedgerEntry::ToolStarted { .. }
        | LedgerEntry::ToolFinished { .. }
        | LedgerEntry::ApprovalRequested { .. }
        | LedgerEntry::ApprovalDecided { .. }
        | LedgerEntry::Steered { .. }
        | LedgerEntry::HookRan { .. }
        | LedgerEntry::ContextAdded { .. }
        | LedgerEntry::ToolsHidden { .. }
        | LedgerEntry::ReminderShown { .. }
        | LedgerEntry::IntentRefused { .. }
        | LedgerEntry::IntentOwed { .. }
        | LedgerEntry::IntentSettled { .. }
        | LedgerEntry::PostHooksDue { .. }
        | LedgerEntry::UnseenCallShown { .. }
        | LedgerEntry::PostHookRan { .. }
        | LedgerEntry::PostHookFailed { .. }
        | LedgerEntry::PostHooksSettled { .. } => true,
        LedgerEntry::SessionOpened { .. }
        | LedgerEntry::Owned { .. }
        | LedgerEntry::TurnStarted { .. }
        | LedgerEntry::TurnCompleted { .. }
        | LedgerEntry::ReplyPublished { .. }
        | LedgerEntry::Checkpoint { .. }
        | LedgerEntry::TurnFailed { .. }
        | LedgerEntry::TurnInterrupted { .. }
        | LedgerEntry::DispatchDropped { .. }
        | LedgerEntry::Compacted { .. }
        | LedgerEntry::SessionReset { .. }
        | LedgerEntry::Ordered { .. } => false,
    }
}

/// Returns the cursor after `consumed`. The session's subject was read without gaps from the floor through
/// `read_through`, and `lowest_open` is the lowest known sequence that is not consumed: everything below both is
/// consumed.
#[must_use]
pub fn advance_cursor(
    cursor: &LedgerCursor,
    consumed: u64,
    read_through: u64,
    lowest_open: Option<u64>,
) -> LedgerCursor {
    let mut above = cursor.above.clone();
    above.push(consumed);
    above.sort_unstable();
    above.dedup();
    let reached = lowest_open.map_or(read_through, |open| read_through.min(open.saturating_sub(1)));
    let floor = cursor.floor.max(reached);
    above.retain(|&sequence| sequence > floor);

    LedgerCursor {
        floor,
        above,
        ..cursor.clone()
    }
}

#[cfg(test)]
mod tests;
