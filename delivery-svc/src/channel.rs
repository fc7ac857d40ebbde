//! The channel port, through which parts are sent to a platform. Its adapters below serve one platform each.

pub mod discord;
pub mod http;
pub mod nats;
pub mod raw_answer;
pub mod signature;
pub mod slack;
pub mod telegram;
pub mod webchat;
pub mod webhook;

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use shared::bus::partition::PartitionLease;
use shared::model::dispatch::DeliveryContext;
use shared::model::event::{DEFAULT_ACCOUNT, EventId};
use shared::model::reply::Reply;
use shared::model::time::UnixMillis;
use shared::platform::policy::AcknowledgePolicy;
use shared::wire::headers::TraceCarrier;

use crate::account_gate::ChatPace;
use crate::attempt::{CallOutcome, PartSearch, Refusal, Repetition};
use crate::plan::{MessagePart, PartLayout};

/// One part to send to a platform.
#[derive(Debug)]
pub struct SendRequest<'a> {
    /// Whole reply to which the part belongs.
    pub reply: &'a Reply,
    /// Part of the reply to send.
    pub part: &'a MessagePart,
    /// Number of parts of the reply.
    pub parts: u32,
    /// Id of the part's sent event; the same part always has the same id.
    pub event_id: &'a EventId,
    /// Trace to which the delivery belongs.
    pub carrier: &'a TraceCarrier,
    /// Time at which the part is sent.
    pub now: UnixMillis,
    /// Lease of the partition. Nothing may be sent after it has ended.
    pub lease: &'a PartitionLease,
    /// Bytes of the part's file, if it is one and is sent.
    pub file: Option<&'a Bytes>,
}

impl SendRequest<'_> {
    /// Returns the name of the installation's account on the channel.
    #[must_use]
    pub fn account(&self) -> &str {
        self.reply
            .delivery_context
            .account_id
            .as_deref()
            .unwrap_or(DEFAULT_ACCOUNT)
    }

    /// Returns the id of the conversation; empty if there is none.
    #[must_use]
    pub fn peer(&self) -> &str {
        self.reply.delivery_context.peer_id.as_deref().unwrap_or_default()
    }

    /// Returns the outcome of a change that the platform has no call for.
    #[must_use]
    pub fn unsupported(&self, change: &str) -> CallOutcome {
        CallOutcome::Refused {
            refusal: Refusal::Permanent,
            reason: format!("channel {} cannot {change}", self.reply.delivery_context.channel),
        }
    }

    /// Returns the outcome of a change of `message`, which is not a message's id of the channel.
    #[must_use]
    pub fn unknown_message(&self, message: &str) -> CallOutcome {
        CallOutcome::Refused {
            refusal: Refusal::Permanent,
            reason: format!(
                "`{message}` is not the id of a message on channel {}",
                self.reply.delivery_context.channel
            ),
        }
    }

    /// Returns the outcome of a part to an account that is not configured.
    #[must_use]
    pub fn unknown_account(&self) -> CallOutcome {
        let channel = &self.reply.delivery_context.channel;
        CallOutcome::Refused {
            refusal: Refusal::Permanent,
            reason: format!(
                "channel {channel} has no account `{}`; add it to channels.yaml",
                self.account()
            ),
        }
    }
}

/// A reaction of the account to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageReaction<'a> {
    /// Emoji, or a name that the platform knows.
    pub emoji: &'a str,
    /// Whether it is removed.
    pub removed: bool,
}

/// Reactions by which an account shows what becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledgement<'a> {
    /// Reactions of the account.
    pub policy: &'a AcknowledgePolicy,
    /// Whether the platform itself replaces the account's earlier reaction to a message by a later one.
    pub is_replaced: bool,
}

/// A conversation in which an account shows that it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypingPlace<'a> {
    /// Name of the installation's account on the channel.
    pub account: &'a str,
    /// Id of the conversation.
    pub peer: &'a str,
    /// Thread within the conversation.
    pub thread: Option<&'a str>,
    /// Current time.
    pub now: UnixMillis,
}

/// Limits of an account of a platform, and how calls to it behave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChannelTraits {
    /// Form and maximum size of a part.
    pub layout: PartLayout,
    /// Whether calls wait for a remote response, so that the process may be stopped during one. A receipt then records
    /// the start of the call, and the replica that makes it, before the call is made.
    pub waits_for_remote: bool,
    /// Effect of a call that is made again although the platform may have the part.
    pub repetition: Repetition,
    /// Whether the platform can be searched for a part ([`Channel::find`]).
    pub finds_parts: bool,
    /// Time for which the platform shows that a message is being written after one call; `None` = it does not show it.
    pub typing_lasts: Option<Duration>,
    /// Whether an answer is shown while it is made, by edits of one message.
    pub previews: bool,
    /// Maximum size of a file that is a part of its own, in bytes; `None` = the channel takes replies with their files.
    pub max_file_bytes: Option<u64>,
}

/// A platform to which parts are sent.
#[async_trait]
pub trait Channel: Send + Sync + 'static {
    /// Returns the limits of `account`, and how its calls behave.
    fn traits(&self, account: &str) -> ChannelTraits;

    /// Returns the rates at which the account of `target` may call for it; `None` = the platform names none.
    fn pace<'a>(&self, _target: &'a DeliveryContext) -> Option<ChatPace<'a>> {
        None
    }

    /// Sends one part. Returns within a bounded time.
    async fn send(&self, shipment: &SendRequest<'_>) -> CallOutcome;

    /// Replaces the text of the message `message` (platform's id) by the part's. The message has no buttons then.
    async fn edit(&self, shipment: &SendRequest<'_>, _message: &str) -> CallOutcome {
        shipment.unsupported("edit messages")
    }

    /// Deletes the message `message`. A message that is gone is deleted.
    async fn delete(&self, shipment: &SendRequest<'_>, _message: &str) -> CallOutcome {
        shipment.unsupported("delete messages")
    }

    /// Adds or removes the account's `reaction` to the message `message`.
    async fn react(&self, shipment: &SendRequest<'_>, _message: &str, _reaction: MessageReaction<'_>) -> CallOutcome {
        shipment.unsupported("react to messages")
    }

    /// Returns the reactions by which `account` shows what becomes of a message; `None` = the channel has none.
    fn acknowledgement(&self, _account: &str) -> Option<Acknowledgement<'_>> {
        None
    }

    /// Shows for some seconds ([`ChannelTraits::typing_lasts`]) that a message is being written in `place`.
    async fn typing(&self, _place: &TypingPlace<'_>) -> CallOutcome {
        CallOutcome::Refused {
            refusal: Refusal::Permanent,
            reason: "the channel does not show that a message is being written".to_owned(),
        }
    }

    /// Returns whether [`Channel::typing`] shows anything in `place`.
    fn shows_typing(&self, _place: &TypingPlace<'_>) -> bool {
        true
    }

    /// Takes back the sign of [`Channel::typing`] in `place`, if the platform would show it for longer than some seconds.
    async fn end_typing(&self, _place: &TypingPlace<'_>) {}

    /// Searches the platform for a part that an earlier call may have sent, at `since` or later. Changes nothing there.
    /// Returns within a bounded time.
    async fn find(&self, _shipment: &SendRequest<'_>, _since: UnixMillis) -> PartSearch {
        PartSearch::Unknown
    }
}

/// All channels by name.
#[derive(Default)]
pub struct ChannelRegistry(HashMap<String, Box<dyn Channel>>);

// By hand: channels need no `Debug`.
impl std::fmt::Debug for ChannelRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl ChannelRegistry {
    /// Adds `channel` under `name`.
    #[must_use]
    pub fn with(mut self, name: &str, channel: impl Channel) -> Self {
        self.0.insert(name.to_owned(), Box::new(channel));
        self
    }

    /// Returns the channel `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&dyn Channel> {
        self.0.get(name).map(AsRef::as_ref)
    }
}
