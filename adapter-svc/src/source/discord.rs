//! Discord: what the gateway and the REST API say to a bot's account → events.
//!
//! The vendor's reference is <https://discord.com/developers/docs>. One connection to the gateway brings what happens,
//! in order; after a break the session is resumed, and if it cannot be, the messages of that time are read from the
//! channels' histories. Source: `docs/design/channels.md` §1; `docs/discord.md`; `docs/adr/0027-discords-gateway-is-ours.md`.

pub mod account_context;
pub mod address_gate;
pub mod api_error;
mod backfill;
mod call_waits;
pub mod client;
mod content;
mod deferred;
pub mod download;
mod drive;
mod finished_call;
pub mod gateway;
pub mod history;
mod history_listing;
mod link;
mod listed_place;
mod lookups;
mod message;
mod normalize;
mod places;
mod progress;
mod reader;
mod socket;
mod store;
mod taken;
mod texts;

use std::collections::BTreeSet;

use shared::platform::discord::ChannelPlace;

/// An account as normalising needs it: its name in `channels.yaml`, and the bot that its token stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscordBot {
    /// Name of the account in `channels.yaml`.
    pub name: String,
    /// User id of the bot (`GET /users/@me`).
    pub user_id: String,
    /// User name of the bot.
    pub username: String,
}

/// Where something happened, and what the bot is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessagePlace {
    /// Channel, with its guild and parent.
    pub place: ChannelPlace,
    /// Roles of the bot in the guild.
    pub own_roles: BTreeSet<String>,
}

/// The reason why a dispatch becomes no event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefuseDispatchError {
    /// The dispatch does not have the form that the vendor documents.
    #[error("malformed {0}")]
    Malformed(String),
    /// The dispatch belongs to no conversation: a guild's state, presence, typing, a command that Nexus does not have.
    #[error("`{0}` belongs to no conversation")]
    NoConversation(String),
    /// A message's previews were made, or it was pinned: its author did not edit it.
    #[error("no edit: only the previews or marks of the message changed")]
    NoEdit,
    /// The bot itself did it.
    #[error("the bot's own message")]
    Echo,
    /// The ids of the dispatch make no event id.
    #[error(transparent)]
    Id(#[from] shared::model::event::ParseEventIdError),
}

impl RefuseDispatchError {
    /// Returns the name of the reason, for metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::NoConversation(_) => "no_conversation",
            Self::NoEdit => "no_edit",
            Self::Echo => "echo",
            Self::Id(_) => "id",
        }
    }
}
