//! Slack: payloads that Slack posts for an app's account → events.
//!
//! The vendor's reference is <https://docs.slack.dev/apis/events-api>. Source: `docs/design/channels.md` §1;
//! `docs/slack.md`.

pub mod begun_threads;
pub mod client;
pub mod content;
pub mod download;
pub mod endpoint;
pub mod files;
pub mod handshake;
pub mod history;
mod history_position;
pub mod identity;
pub mod normalize;
pub mod payload;
pub mod post_payload;
pub mod post_record;
pub mod post_source;
pub mod posted;
pub mod press;
pub mod privacy;
pub mod reader;
pub mod socket;
pub mod threads;

/// Time for which Slack repeats a payload that was not taken, in milliseconds: five minutes later for the last time. With
/// *delayed events* it goes on for a day, which an app cannot see.
pub const REPEATED_MS: i64 = 5 * 60_000;

/// An account as normalising needs it: its name in `channels.yaml`, and the bot that its token stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlackBot {
    /// Name of the account in `channels.yaml`.
    pub name: String,
    /// Id of the workspace (`auth.test`).
    pub team_id: String,
    /// Id of the bot as a user, by which people mention it.
    pub user_id: String,
    /// Id of the bot as the sender of messages.
    pub bot_id: Option<String>,
}

impl SlackBot {
    /// Returns the name of the thing that a watermark counts.
    #[must_use]
    pub fn position_name(&self) -> String {
        format!("app {} {}", self.team_id, self.user_id)
    }
}

/// The reason why a payload becomes no event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefusePayloadError {
    /// The payload does not have the form that the vendor documents.
    #[error("malformed payload: {0}")]
    Malformed(String),
    /// The payload belongs to no conversation: a user's profile, a workspace's settings, a form in a window.
    #[error("`{0}` belongs to no conversation")]
    NoConversation(String),
    /// The payload is of another workspace in which the app is installed.
    #[error("workspace `{0}` is not the account's")]
    WrongTeam(String),
    /// The app itself did it.
    #[error("the app's own message")]
    Echo,
    /// Slack changed how a message is shown: its author did not edit it.
    #[error("the message was not edited")]
    NoEdit,
    /// The ids of the payload make no event id.
    #[error(transparent)]
    Id(#[from] shared::model::event::ParseEventIdError),
}

impl RefusePayloadError {
    /// Returns whether the payload may be a message that cannot be read, so that it must be kept.
    #[must_use]
    pub const fn is_unreadable(&self) -> bool {
        match self {
            Self::Malformed(_) | Self::Id(_) => true,
            Self::NoConversation(_) | Self::WrongTeam(_) | Self::Echo | Self::NoEdit => false,
        }
    }

    /// Returns the name of the reason, for metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::NoConversation(_) => "no_conversation",
            Self::WrongTeam(_) => "wrong_team",
            Self::Echo => "echo",
            Self::NoEdit => "no_edit",
            Self::Id(_) => "id",
        }
    }
}
