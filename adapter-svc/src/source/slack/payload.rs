//! Payloads as the vendor describes them. *Pure.*
//!
//! Source: <https://docs.slack.dev/apis/events-api/#callback-field>,
//! <https://docs.slack.dev/reference/events/message>. Every field may be absent or null.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::RefusePayloadError;
use super::files::SlackFile;

/// The envelope of an event (`event_callback`).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct EventEnvelope {
    /// Workspace in which the event happened.
    pub team_id: Option<String>,
    /// Workspace through which the app sees it.
    pub context_team_id: Option<String>,
    /// Id of the app.
    pub api_app_id: Option<String>,
    /// Installations of the app that see the event.
    pub authorizations: Option<Vec<Authorization>>,
    /// Event.
    pub event: Value,
}

/// An installation of the app that sees an event.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Authorization {
    /// Workspace of the installation.
    pub team_id: Option<String>,
}

/// A message, also within `message_changed`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct SlackMessage {
    /// Kind of a message that is no plain one.
    pub subtype: Option<String>,
    /// Conversation; absent within `message_changed`.
    pub channel: Option<String>,
    /// User who wrote it.
    pub user: Option<String>,
    /// App or integration that wrote it.
    pub bot_id: Option<String>,
    /// App that wrote it.
    pub app_id: Option<String>,
    /// Description of the bot that wrote it.
    pub bot_profile: Option<BotProfile>,
    /// Name under which a bot wrote it.
    pub username: Option<String>,
    /// Text, in mrkdwn.
    pub text: Option<String>,
    /// Id and time of the message.
    pub ts: Option<String>,
    /// Id of the first message of its thread.
    pub thread_ts: Option<String>,
    /// User who wrote the first message of its thread.
    pub parent_user_id: Option<String>,
    /// Last edit.
    pub edited: Option<MessageEdit>,
    /// Files.
    pub files: Option<Vec<SlackFile>>,
    /// Blocks of its layout.
    pub blocks: Value,
    /// Attachments of older apps.
    pub attachments: Option<Vec<LegacyAttachment>>,
}

/// The last edit of a message.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct MessageEdit {
    /// Time of the edit.
    pub ts: Option<String>,
}

/// The description of a bot.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct BotProfile {
    /// Name that is shown.
    pub name: Option<String>,
    /// App of the bot.
    pub app_id: Option<String>,
}

/// An attachment as older apps send it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct LegacyAttachment {
    /// Text for clients that show no attachments.
    pub fallback: Option<String>,
    /// All other fields; of a shared message they say whose it is.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// A change of a message: `message_changed` or `message_deleted`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct MessageChange {
    /// Conversation.
    pub channel: Option<String>,
    /// Time of the change.
    pub ts: Option<String>,
    /// Time of the change, where `ts` is absent.
    pub event_ts: Option<String>,
    /// Message as it is now.
    pub message: Option<SlackMessage>,
    /// Message as it was.
    pub previous_message: Option<SlackMessage>,
    /// Id of the message that was deleted.
    pub deleted_ts: Option<String>,
}

/// A reaction that was added or removed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReactionChange {
    /// User who reacted.
    pub user: Option<String>,
    /// Name of the emoji, without colons.
    pub reaction: Option<String>,
    /// Item of the reaction.
    pub item: ReactionItem,
    /// Time of the change.
    pub event_ts: Option<String>,
}

/// The item of a reaction.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReactionItem {
    /// `message`, or a kind that is not used any more.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Conversation of the message.
    pub channel: Option<String>,
    /// Id of the message.
    pub ts: Option<String>,
}

/// A member that came or went.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct MemberChange {
    /// Member.
    pub user: Option<String>,
    /// Conversation.
    pub channel: Option<String>,
    /// User who invited the member.
    pub inviter: Option<String>,
    /// Time of the change.
    pub event_ts: Option<String>,
}

/// An entity that is named by its id alone.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct NamedById {
    /// Id.
    pub id: Option<String>,
    /// Name, where there is one.
    pub name: Option<String>,
}

/// A press of buttons or a choice in menus (`block_actions`).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct BlockActions {
    /// Workspace.
    pub team: Option<NamedById>,
    /// User who pressed.
    pub user: NamedById,
    /// Conversation; absent in windows and on the app's home.
    pub channel: Option<NamedById>,
    /// Where the blocks are.
    pub container: ActionContainer,
    /// Blocks that were used.
    pub actions: Vec<Value>,
}

/// Where blocks are.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ActionContainer {
    /// Message of the blocks.
    pub message_ts: Option<String>,
    /// Conversation of the message.
    pub channel_id: Option<String>,
    /// Thread of the message.
    pub thread_ts: Option<String>,
}

/// A command that a user wrote, as in `/weather 94070`. Slack posts it as a form.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct SlashCommand {
    /// Command, with its slash.
    pub command: String,
    /// Text behind it.
    pub text: Option<String>,
    /// Workspace.
    pub team_id: Option<String>,
    /// Conversation.
    pub channel_id: Option<String>,
    /// User.
    pub user_id: Option<String>,
    /// Name of the user.
    pub user_name: Option<String>,
    /// Id of this invocation.
    pub trigger_id: Option<String>,
}

/// A minute of which Slack sent no events, because there were too many.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct RateLimitNotice {
    /// Workspace.
    pub team_id: Option<String>,
    /// Beginning of the minute, in seconds.
    pub minute_rate_limited: Option<i64>,
}

/// Reads `value` as `kind`.
///
/// # Errors
/// Returns [`RefusePayloadError::Malformed`] with the field.
pub fn read<T: DeserializeOwned>(kind: &str, value: &Value) -> Result<T, RefusePayloadError> {
    serde_path_to_error::deserialize(value)
        .map_err(|error| RefusePayloadError::Malformed(format!("{kind}: {}: {}", error.path(), error.inner())))
}

/// Returns `field`, or the refusal of a payload without it.
///
/// # Errors
/// Returns [`RefusePayloadError::Malformed`].
pub fn required<'a>(kind: &str, name: &str, field: Option<&'a String>) -> Result<&'a str, RefusePayloadError> {
    let is_there = |text: &&'a String| !text.is_empty();
    field
        .filter(is_there)
        .map(String::as_str)
        .ok_or_else(|| RefusePayloadError::Malformed(format!("{kind}: no {name}")))
}
