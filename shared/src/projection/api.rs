//! Questions to the read model and their answers, as `nexus.svc.events.{find,history,threads,trace,search}` takes and
//! gives them (NATS micro; the CLI and the adapter ask). *Pure.*

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::event::{DEFAULT_ACCOUNT, Direction, EventId, PeerKind};
use crate::model::time::UnixMillis;

/// Most events in one answer.
pub const MAX_EVENTS: u32 = 500;

/// Events in an answer where the question names no limit.
pub const DEFAULT_EVENTS: u32 = 50;

/// Most steps in one trace; the steps of a longer chain are `cut`.
pub const MAX_TRACE_STEPS: usize = 1_000;

/// An event as the read model holds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventRow {
    /// Its id.
    pub id: EventId,
    /// Stream sequence of its first occurrence.
    pub sequence: u64,
    /// When it happened, at the source.
    pub timestamp: UnixMillis,
    /// When the server stored it.
    pub published_at: UnixMillis,
    /// When it was updated or deleted at its source; none = never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revised_at: Option<UnixMillis>,
    /// Its channel.
    pub channel: String,
    /// Which of our accounts there.
    pub account: String,
    /// What sort of conversation.
    pub peer_kind: PeerKind,
    /// The conversation.
    pub peer_id: String,
    /// The sender's id.
    pub from_id: String,
    /// Which way it went; of an updated item, which way it went at first.
    pub direction: Direction,
    /// The text.
    pub content: String,
    /// `text`, `image`, …
    pub content_types: Vec<String>,
    /// Thread within the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// Id of the event that this one answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// Causal depth.
    pub hops: u8,
    /// Everything else that the source said.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

/// `find`: events that fit everything given, the newest first.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FindRequest {
    /// This very one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<EventId>,
    /// Stands somewhere in the content; letter case of ASCII does not matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// On this channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// On this account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// In this conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// From this sender.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Happened then or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<UnixMillis>,
    /// Happened before then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<UnixMillis>,
    /// Only sequences below this one: `next` of the answer before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// At most this many ([`DEFAULT_EVENTS`], at most [`MAX_EVENTS`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// What `find` found.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FindReply {
    /// The newest first.
    pub events: Vec<EventRow>,
    /// Ask again with this as `before`; none = these were the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// `history`: the end of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryRequest {
    /// Its channel.
    pub channel: String,
    /// Which of our accounts there.
    #[serde(default = "default_account")]
    pub account: String,
    /// The conversation.
    pub peer: String,
    /// Only this thread of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Only sequences below this one: the first sequence of the answer before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// At most this many ([`DEFAULT_EVENTS`], at most [`MAX_EVENTS`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// The end of a conversation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HistoryReply {
    /// In the order of the stream, the oldest first.
    pub events: Vec<EventRow>,
    /// Whether older ones exist.
    pub more: bool,
}

/// Longest excerpt of what a thread begins with, in bytes.
pub const MAX_THREAD_EXCERPT: usize = 240;

/// `threads`: the threads of one conversation, the one that was written in last first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadsRequest {
    /// Its channel.
    pub channel: String,
    /// Which of our accounts there.
    #[serde(default = "default_account")]
    pub account: String,
    /// The conversation.
    pub peer: String,
    /// At most this many ([`DEFAULT_EVENTS`], at most [`MAX_EVENTS`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// A thread of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadRow {
    /// Its id, as in [`EventRow::thread_id`]; [`own_thread`] for events that name no thread.
    pub thread: String,
    /// The beginning of its first received text, or of its first text if nothing was received.
    pub excerpt: String,
    /// When its first event happened.
    pub began_at: UnixMillis,
    /// When its last event happened.
    pub last_at: UnixMillis,
}

/// The threads of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ThreadsReply {
    /// The thread with the newest event first.
    pub threads: Vec<ThreadRow>,
}

/// Returns the thread id under which the read model keeps events of a conversation that name no thread.
#[must_use]
pub fn own_thread(channel: &str, account: &str, peer: &str) -> String {
    format!("{channel}:{account}:{peer}")
}

/// Hits in an answer where `search` names no limit.
pub const DEFAULT_HITS: u32 = 10;

/// Most hits in one answer.
pub const MAX_HITS: u32 = 100;

/// `search`: events like a text, by words and by meaning. The names are those of `ctx.search()`
/// (`003_b33e857b632aa7dc.txt` §8.2).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchRequest {
    /// What is looked for.
    pub query: String,
    /// On these channels alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<Vec<String>>,
    /// Happened then or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<UnixMillis>,
    /// Happened before then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<UnixMillis>,
    /// At most this many ([`DEFAULT_HITS`], at most [`MAX_HITS`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// An event that was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SearchHit {
    /// Which.
    pub event_id: EventId,
    /// How good, from 0 to 1; comparable within one answer.
    pub score: f64,
    /// Its channel.
    pub channel: String,
    /// When it happened.
    pub timestamp: UnixMillis,
    /// The sender's id.
    pub from_id: String,
    /// The beginning of its text.
    pub excerpt: String,
}

/// What `search` found.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SearchReply {
    /// The best first.
    pub hits: Vec<SearchHit>,
    /// Whether meaning was asked too; else words alone.
    pub by_meaning: bool,
}

/// `trace`: everything that an event led to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// The event.
    pub event_id: EventId,
}

/// A station of the way of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// An event was stored.
    Event,
    /// A hook did something with it.
    Hook,
    /// A fired hook's order was stored.
    Dispatch,
    /// An agent answered it.
    Turn,
    /// The agent called a tool.
    Tool,
    /// A human was asked whether a call may run.
    Approval,
    /// The agent asked for an intent, and the scheduler has not answered.
    Intent,
    /// The answer went to a channel.
    Delivery,
    /// A delivered part came back as an event.
    Sent,
    /// It was given up, and is in the dead letters.
    DeadLetter,
}

/// One step of a causal chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceStep {
    /// When it began (an event, a dispatch: when it was stored).
    pub at_ms: UnixMillis,
    /// Which station.
    pub stage: Stage,
    /// Event, hook, dispatch, turn or delivery id.
    pub id: String,
    /// For people: what happened.
    pub detail: String,
    /// How long it took, milliseconds; none = it takes no time, or is not over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<f64>,
    /// Events between the traced event and this step's own; 0 = the traced event's own steps.
    pub depth: u8,
    /// Of a dispatch: the session that it is for, `persona/session`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
}

/// What an event led to, cause before effect.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Trace {
    /// The traced event; none = the read model does not know it (yet).
    pub event: Option<EventRow>,
    /// Cause before effect.
    pub steps: Vec<TraceStep>,
    /// Whether nothing of the chain is under way: every event evaluated or dead-lettered, every dispatch run or
    /// dropped, every turn over, every approval decided, every message to an agent and every firing of an intent followed
    /// to its own end, every intent answered for, every reply delivered or given up, every delivered part seen as an
    /// event. An intent that waits for its time is not under way.
    pub complete: bool,
    /// Whether the chain is longer than `steps` shows: it has more than [`MAX_TRACE_STEPS`] steps, or goes deeper than
    /// events may lead to each other. A chain that could not be followed to its end is not `complete`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// The limit that counts, where `asked` was asked for.
#[must_use]
pub fn limit(asked: Option<u32>) -> u32 {
    asked.unwrap_or(DEFAULT_EVENTS).clamp(1, MAX_EVENTS)
}

/// The number of hits that counts, where `asked` was asked for.
#[must_use]
pub fn search_limit(asked: Option<u32>) -> u32 {
    asked.unwrap_or(DEFAULT_HITS).clamp(1, MAX_HITS)
}

fn default_account() -> String {
    DEFAULT_ACCOUNT.to_owned()
}
