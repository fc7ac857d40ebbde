//! Dispatches as the vendor describes them, as far as they are used. *Pure.*
//!
//! Source: <https://discord.com/developers/docs/resources/message#message-object>,
//! <https://discord.com/developers/docs/events/gateway-events>,
//! <https://discord.com/developers/docs/interactions/receiving-and-responding#interaction-object>.

use serde::Deserialize;
use serde_json::Value;
use shared::platform::discord::ChannelPlace;

/// A user, or a webhook that speaks as one.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct User {
    /// Id.
    pub id: String,
    /// User name.
    pub username: Option<String>,
    /// Name that is shown.
    pub global_name: Option<String>,
    /// Whether it is a program.
    pub bot: Option<bool>,
}

/// A user in a guild.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Member {
    /// Name in the guild.
    pub nick: Option<String>,
    /// Ids of the roles.
    pub roles: Option<Vec<String>>,
    /// User; absent beside a message, which names its author.
    pub user: Option<User>,
}

/// The message that another one answers, forwards or is about.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct MessageReference {
    /// 0 or absent = an answer or a note, 1 = a forwarded message.
    #[serde(rename = "type")]
    pub kind: Option<u64>,
    /// Id of the message.
    pub message_id: Option<String>,
    /// Channel of the message.
    pub channel_id: Option<String>,
}

/// A file of a message.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct File {
    /// Id.
    pub id: String,
    /// Name.
    pub filename: Option<String>,
    /// MIME type, as its sender's client says.
    pub content_type: Option<String>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Signed URL of the bytes, which expires.
    pub url: Option<String>,
    /// Length of a recording, in seconds.
    pub duration_secs: Option<f64>,
}

/// A sticker of a message.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct StickerItem {
    /// Id.
    pub id: String,
    /// Name.
    pub name: Option<String>,
    /// 1 = PNG, 2 = APNG, 3 = Lottie, 4 = GIF.
    pub format_type: Option<u64>,
}

/// What a poll asks, or one of its answers.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct PollMedia {
    /// Words.
    pub text: Option<String>,
}

/// An answer of a poll.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct PollAnswer {
    /// Answer.
    pub poll_media: Option<PollMedia>,
}

/// A poll.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Poll {
    /// Question.
    pub question: Option<PollMedia>,
    /// Answers.
    pub answers: Option<Vec<PollAnswer>>,
}

/// A message.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Message {
    /// Id.
    pub id: String,
    /// Channel; the thread, if it is in one.
    pub channel_id: String,
    /// Type: 0 = message, 19 = answer, 20 and 23 = answer of a command; others are notes of the vendor's.
    #[serde(rename = "type")]
    pub kind: Option<u64>,
    /// Its author.
    pub author: Option<User>,
    /// Author's membership of the guild; absent in histories and direct channels.
    pub member: Option<Member>,
    /// Text.
    pub content: Option<String>,
    /// Time it was written.
    pub timestamp: Option<String>,
    /// Time it was edited last.
    pub edited_timestamp: Option<String>,
    /// Users that it mentions.
    pub mentions: Option<Vec<User>>,
    /// Roles that it mentions.
    pub mention_roles: Option<Vec<String>>,
    /// Files.
    pub attachments: Option<Vec<File>>,
    /// Previews and cards.
    pub embeds: Option<Vec<Value>>,
    /// Buttons and layouts.
    pub components: Option<Vec<Value>>,
    /// Stickers.
    pub sticker_items: Option<Vec<StickerItem>>,
    /// Poll.
    pub poll: Option<Poll>,
    /// Bits that describe it.
    pub flags: Option<u64>,
    /// Webhook that wrote it.
    pub webhook_id: Option<String>,
    /// Message to which it refers.
    pub message_reference: Option<MessageReference>,
    /// The message to which it refers, if it is still there.
    pub referenced_message: Option<Box<Self>>,
    /// Forwarded messages, as they were, without their authors.
    pub message_snapshots: Option<Vec<Value>>,
}

impl Message {
    /// Returns the text.
    #[must_use]
    pub(super) fn text(&self) -> &str {
        self.content.as_deref().unwrap_or_default()
    }

    /// Returns whether a person or a program wrote it: it is no note of the vendor's.
    #[must_use]
    pub(super) fn is_said(&self) -> bool {
        matches!(self.kind.unwrap_or(0), 0 | 19 | 20 | 23)
    }
}

/// A deleted message, or several.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Deletion {
    /// Id of one message.
    pub id: Option<String>,
    /// Ids of several.
    pub ids: Option<Vec<String>>,
    /// Channel.
    pub channel_id: String,
}

/// The emoji of a reaction.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Emoji {
    /// Id of a guild's own emoji.
    pub id: Option<String>,
    /// The emoji, or the name of a guild's own.
    pub name: Option<String>,
}

impl Emoji {
    /// Returns the emoji, or `:name:` of a guild's own.
    #[must_use]
    pub(super) fn text(&self) -> String {
        let name = self.name.clone().unwrap_or_default();
        if self.id.is_some() { format!(":{name}:") } else { name }
    }
}

/// A reaction that was added or taken back, or all of a message that were removed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Reaction {
    /// User that reacted; absent if all reactions were removed.
    pub user_id: Option<String>,
    /// Channel.
    pub channel_id: String,
    /// Message.
    pub message_id: String,
    /// Emoji; absent if those of all emojis were removed.
    pub emoji: Option<Emoji>,
    /// Membership of the user that reacted.
    pub member: Option<Member>,
}

/// The button that was pressed, or the choices that were made.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct PressData {
    /// Id of the button or list: the words that a press says.
    pub custom_id: Option<String>,
    /// Choices from a list.
    pub values: Option<Vec<String>>,
}

/// An interaction.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Interaction {
    /// Id.
    pub id: String,
    /// Channel.
    pub channel_id: Option<String>,
    /// The channel, as far as the vendor says.
    pub channel: Option<ChannelPlace>,
    /// Guild.
    pub guild_id: Option<String>,
    /// User that pressed, in a guild.
    pub member: Option<Member>,
    /// User that pressed, in a direct channel.
    pub user: Option<User>,
    /// The button or list that was pressed.
    pub data: Option<PressData>,
    /// Message that has the button.
    pub message: Option<Message>,
}

/// Type of an interaction with a button or a list.
pub(super) const PRESS: u64 = 3;
