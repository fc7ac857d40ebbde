//! Requests to the read model and their responses, in the form of
//! `nexus.svc.events.{find,history,threads,trace,search}` (NATS micro; the CLI and the adapter send them). *Pure.*

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::event::{DEFAULT_ACCOUNT, EventDirection, EventId, PeerKind};
use crate::model::time::UnixMillis;

/// Maximum number of events in one response.
pub const MAX_EVENTS: u32 = 500;

/// Number of events in a response if the request has no limit.
pub const DEFAULT_EVENTS: u32 = 50;

/// Maximum number of steps in one trace; a trace of a longer chain is `cut`.
pub const MAX_TRACE_STEPS: usize = 1_000;

/// An event as the read model holds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventRow {
    /// Id of the event.
    pub id: EventId,
    /// Stream sequence of its first occurrence.
    pub sequence: u64,
    /// Time at which it happened, at the source.
    pub timestamp: UnixMillis,
    /// Time at which the server stored it.
    pub published_at: UnixMillis,
    /// Time at which it was updated or deleted at its source; `None` if it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revised_at: Option<UnixMillis>,
    /// Channel that it came from or went to.
    pub channel: String,
    /// Our account on the channel.
    pub account: String,
    /// Kind of the conversation.
    pub peer_kind: PeerKind,
    /// Id of the conversation.
    pub peer_id: String,
    /// Id of the sender.
    pub from_id: String,
    /// Direction of the event; for an updated item, its original direction.
    pub direction: EventDirection,
    /// Text of the event.
    pub content: String,
    /// Kinds of its content: `text`, `image`, …
    pub content_types: Vec<String>,
    /// Thread within the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// Id of the event that this one replies to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// Causal depth: the number of dispatches between this event and the first of its chain.
    pub hops: u8,
    /// Further fields that the source set.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

/// Request `find`: events that match every given field, the newest first.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FindRequest {
    /// Event with this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<EventId>,
    /// Text that the content contains; the case of ASCII letters is ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Channel of the events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Account of the events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Conversation of the events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Sender of the events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Earliest time of the events, included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<UnixMillis>,
    /// Latest time of the events, excluded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<UnixMillis>,
    /// Only sequences below this one: `next` of the previous response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// Maximum number of events ([`DEFAULT_EVENTS`], at most [`MAX_EVENTS`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Response to `find`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FindReply {
    /// Matching events, the newest first.
    pub events: Vec<EventRow>,
    /// Value of `before` for the next page; `None` if these were the last events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// Request `history`: the end of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryRequest {
    /// Channel of the conversation.
    pub channel: String,
    /// Our account on the channel.
    #[serde(default = "default_account")]
    pub account: String,
    /// Id of the conversation.
    pub peer: String,
    /// Thread of the conversation; absent for all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Only sequences below this one: the first sequence of the previous response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// Maximum number of events ([`DEFAULT_EVENTS`], at most [`MAX_EVENTS`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Response to `history`: the end of a conversation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HistoryReply {
    /// Events in the order of the stream, the oldest first.
    pub events: Vec<EventRow>,
    /// Whether there are older events.
    pub more: bool,
}

/// Maximum length of a thread's excerpt, in bytes.
pub const MAX_THREAD_EXCERPT: usize = 240;

/// Request `threads`: the threads of one conversation, the one with the newest event first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadsRequest {
    /// Channel of the conversation.
    pub channel: String,
    /// Account of Nexus on the channel.
    #[serde(default = "default_account")]
    pub account: String,
    /// Id of the conversation.
    pub peer: String,
    /// Maximum number of threads ([`DEFAULT_EVENTS`], at most [`MAX_EVENTS`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// A thread of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadRow {
    /// Id of the thread, as in [`EventRow::thread_id`]; [`own_thread`] for events that name no thread.
    pub thread: String,
    /// The beginning of its first received text, or of its first text if nothing was received.
    pub excerpt: String,
    /// Time of its first event.
    pub began_at: UnixMillis,
    /// Time of its last event.
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

/// Number of hits in a response if `search` has no limit.
pub const DEFAULT_HITS: u32 = 10;

/// Maximum number of hits in one response.
pub const MAX_HITS: u32 = 100;

/// Request `search`: events similar to a text, by words and by meaning. The names are those of `ctx.search()`
/// (seed 003 §8.2).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchRequest {
    /// Text to search for.
    pub query: String,
    /// Channels that are searched; absent for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<Vec<String>>,
    /// Earliest time of the events, included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<UnixMillis>,
    /// Latest time of the events, excluded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<UnixMillis>,
    /// Maximum number of hits ([`DEFAULT_HITS`], at most [`MAX_HITS`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// An event that was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SearchHit {
    /// Id of the event.
    pub event_id: EventId,
    /// Score from 0 to 1, the best highest; comparable within one response.
    pub score: f64,
    /// Channel of the event.
    pub channel: String,
    /// Time at which it happened.
    pub timestamp: UnixMillis,
    /// Id of the sender.
    pub from_id: String,
    /// Beginning of its text.
    pub excerpt: String,
}

/// Response to the request `search`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SearchReply {
    /// Hits, the best first.
    pub hits: Vec<SearchHit>,
    /// Whether the search was also by meaning; otherwise by words alone.
    pub by_meaning: bool,
}

/// Request `trace`: every step that an event led to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// Id of the event to trace.
    pub event_id: EventId,
}

/// Stage of the data flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceStage {
    /// An event was stored.
    Event,
    /// A hook did something with the event.
    Hook,
    /// A fired hook's dispatch was stored.
    Dispatch,
    /// An agent ran a turn for the dispatch.
    Turn,
    /// The agent called a tool.
    Tool,
    /// A person was asked whether a call may run.
    Approval,
    /// The agent requested an intent, and the scheduler has not answered yet.
    Intent,
    /// The agent's reply went to a channel.
    Delivery,
    /// A delivered part came back as an event.
    Sent,
    /// A message was given up, and is a dead letter.
    DeadLetter,
}

/// Most keys of possibly held messages that a trace names.
pub const MAX_MAY_BE_HELD: usize = 256;

/// One step of a causal chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceStep {
    /// Time at which it began (for an event or a dispatch: at which it was stored).
    pub at_ms: UnixMillis,
    /// Stage of the step.
    pub stage: TraceStage,
    /// Id of the event, hook, dispatch, turn or delivery.
    pub id: String,
    /// Description of the step, for people.
    pub detail: String,
    /// Duration in milliseconds; `None` if it takes no time or is not over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<f64>,
    /// Number of events between the traced event and this step's own; 0 = a step of the traced event itself.
    pub depth: u8,
    /// For a dispatch: the session that it is for, `persona/session`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
}

/// Response to `trace`: the steps that an event led to.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EventTrace {
    /// The traced event; `None` if the read model does not know it (yet).
    pub event: Option<EventRow>,
    /// Steps of the chain, cause before effect.
    pub steps: Vec<TraceStep>,
    /// Whether no part of the chain is in progress: every event evaluated or dead-lettered, every dispatch run or
    /// dropped, every turn over, every approval decided, every message to an agent and every firing of an intent
    /// followed to its own end, every intent answered, every reply delivered or given up, every delivered part seen as
    /// an event. An intent that waits for its time is not in progress.
    pub complete: bool,
    /// Whether the chain is longer than `steps` shows: it has more than [`MAX_TRACE_STEPS`] steps, or goes deeper than
    /// events may lead to each other. A chain that could not be followed to its end is not `complete`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Keys in KV `held` of dispatches and deliveries that are not over and may be held, at most [`MAX_MAY_BE_HELD`]: for
    /// the service that answers, and no part of the answer.
    #[serde(skip)]
    pub may_be_held: Vec<String>,
}

/// Returns the limit that applies if `asked` was requested.
#[must_use]
pub fn effective_limit(asked: Option<u32>) -> u32 {
    asked.unwrap_or(DEFAULT_EVENTS).clamp(1, MAX_EVENTS)
}

/// Returns the number of hits that applies if `asked` was requested.
#[must_use]
pub fn search_limit(asked: Option<u32>) -> u32 {
    asked.unwrap_or(DEFAULT_HITS).clamp(1, MAX_HITS)
}

fn default_account() -> String {
    DEFAULT_ACCOUNT.to_owned()
}
