//! Telegram: updates of a bot's account → events.
//!
//! The vendor's reference is <https://core.telegram.org/bots/api>; section names in this room are its headings. Source:
//! `docs/design/channels.md` §1; `docs/telegram.md`.

pub mod client;
pub mod content;
pub mod download;
pub mod file;
pub mod media;
pub mod mention;
pub mod normalize;
pub mod poll;
pub mod post_update;
pub mod posted;
pub mod privacy;
pub mod progress;
pub mod shared_http;
pub mod update;
pub mod webhook;

/// An account as normalising needs it: its name in `channels.yaml`, and the bot that its token stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BotAccount {
    /// Name of the account in `channels.yaml`.
    pub name: String,
    /// Id of the bot (`getMe`).
    pub bot_id: i64,
    /// User name of the bot, without `@`.
    pub username: String,
}

/// The reason why an update becomes no event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefuseUpdateError {
    /// The update does not have the form that the vendor documents.
    #[error("malformed update: {0}")]
    Malformed(String),
    /// The update belongs to no conversation of the bot: a poll's state, a payment, a business account's message.
    #[error("`{0}` belongs to no conversation of the bot")]
    NoConversation(String),
    /// The chat has a type that is not known.
    #[error("unknown chat type `{0}`")]
    UnknownChat(String),
    /// The bot itself did it.
    #[error("the bot's own message")]
    Echo,
    /// The ids of the update make no event id.
    #[error(transparent)]
    Id(#[from] shared::model::event::ParseEventIdError),
}

impl RefuseUpdateError {
    /// Returns the name of the reason, for metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::NoConversation(_) => "no_conversation",
            Self::UnknownChat(_) => "unknown_chat",
            Self::Echo => "echo",
            Self::Id(_) => "id",
        }
    }
}
