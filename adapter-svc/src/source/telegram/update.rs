//! The vendor's types, as far as they are read. *Pure.*
//!
//! Fields that are not named here are ignored, because the vendor adds some with each version; the whole payload is in
//! the event's `metadata.raw`. Source: <https://core.telegram.org/bots/api#available-types>.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::RefuseUpdateError;
use super::file::{Audio, Document, PhotoSize, Sticker, Video, VideoNote, Voice};
use super::privacy::is_forward_of;

/// An update, and the vendor's number of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Update<'a> {
    /// Number by which `getUpdates` confirms it. It is no measure of time: it becomes random after a week without
    /// updates, and starts again with a new token.
    pub update_id: i64,
    /// Kind of the update, e.g. `message`.
    pub kind: &'a str,
    /// Content of the update.
    pub payload: &'a Value,
}

impl<'a> Update<'a> {
    /// Reads the envelope of an update.
    ///
    /// # Errors
    /// Returns [`RefuseUpdateError::Malformed`] if `raw` is not an object with `update_id` and one further key.
    pub fn parse(raw: &'a Value) -> Result<Self, RefuseUpdateError> {
        let malformed = |what: &str| RefuseUpdateError::Malformed(what.to_owned());
        let object = raw.as_object().ok_or_else(|| malformed("not an object"))?;
        let update_id = object.get("update_id").and_then(Value::as_i64);
        let update_id = update_id.ok_or_else(|| malformed("no `update_id`"))?;

        let mut rest = object.iter().filter(|(key, _)| *key != "update_id");
        match (rest.next(), rest.next()) {
            (Some((kind, payload)), None) => Ok(Self {
                update_id,
                kind,
                payload,
            }),
            (None, _) => Err(malformed("nothing beside `update_id`")),
            (Some(_), Some(_)) => Err(malformed("more than one kind")),
        }
    }

    /// Reads the payload as a `T`.
    ///
    /// # Errors
    /// Returns [`RefuseUpdateError::Malformed`] with the path of the field.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, RefuseUpdateError> {
        serde_path_to_error::deserialize(self.payload)
            .map_err(|error| RefuseUpdateError::Malformed(format!("{}.{}: {}", self.kind, error.path(), error.inner())))
    }
}

/// A user or a bot.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct User {
    /// Id of the user; for users and private chats the same.
    pub id: i64,
    /// Whether it is a bot.
    #[serde(default)]
    pub is_bot: bool,
    /// First name.
    pub first_name: Option<String>,
    /// Last name.
    pub last_name: Option<String>,
    /// User name, without `@`.
    pub username: Option<String>,
}

/// A conversation.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Chat {
    /// Id of the chat; negative for groups and channels.
    pub id: i64,
    /// `private`, `group`, `supergroup` or `channel`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Title of a group or channel.
    pub title: Option<String>,
    /// User name, without `@`.
    pub username: Option<String>,
    /// First name of the other party of a private chat.
    pub first_name: Option<String>,
    /// Last name of the other party of a private chat.
    pub last_name: Option<String>,
    /// Whether the group has topics.
    #[serde(default)]
    pub is_forum: bool,
}

/// A marked range of a text; offsets and lengths count UTF-16 units.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct MessageEntity {
    /// `mention`, `text_mention`, `bot_command`, `url`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// Start of the range.
    pub offset: usize,
    /// Length of the range.
    pub length: usize,
    /// User of a `text_mention`.
    pub user: Option<User>,
}

/// The part of a message that another one quotes.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct TextQuote {
    /// Text that is quoted.
    pub text: String,
}

/// A message that is replied to in another chat.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct ExternalReply {
    /// Chat of the message, if the bot may know it.
    pub chat: Option<Chat>,
    /// Id of the message in that chat.
    pub message_id: Option<i64>,
    /// Where the message is from.
    pub origin: Option<Value>,
}

/// A place.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Location {
    /// Latitude in degrees.
    pub latitude: f64,
    /// Longitude in degrees.
    pub longitude: f64,
}

/// A place with a name.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Venue {
    /// Name of the place.
    #[serde(default)]
    pub title: String,
    /// Address of the place.
    #[serde(default)]
    pub address: String,
}

/// An entry of an address book.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Contact {
    /// Telephone number.
    #[serde(default)]
    pub phone_number: String,
    /// First name.
    pub first_name: Option<String>,
    /// Last name.
    pub last_name: Option<String>,
}

/// A question with answers to choose from.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Poll {
    /// Question.
    #[serde(default)]
    pub question: String,
    /// Answers.
    #[serde(default)]
    pub options: Vec<PollOption>,
}

/// An answer of a poll.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct PollOption {
    /// Text of the answer.
    #[serde(default)]
    pub text: String,
}

/// A thrown die, or another emoji with a random value.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Dice {
    /// Emoji that is thrown.
    #[serde(default)]
    pub emoji: String,
    /// Value that came up.
    #[serde(default)]
    pub value: i64,
}

/// A game.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Game {
    /// Title of the game.
    #[serde(default)]
    pub title: String,
}

/// A message, a channel's post, or a note about the chat.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Message {
    /// Id of the message in its chat.
    pub message_id: i64,
    /// Time it was sent, in Unix seconds; 0 if the bot may not see the message.
    pub date: i64,
    /// Conversation.
    pub chat: Chat,
    /// Sender; absent in channels.
    pub from: Option<User>,
    /// Chat on whose behalf it was sent: a channel, or a group whose administrators are anonymous.
    pub sender_chat: Option<Chat>,
    /// Time it was last edited, in Unix seconds.
    pub edit_date: Option<i64>,
    /// Topic, or the thread of replies in a group without topics.
    pub message_thread_id: Option<i64>,
    /// Whether it belongs to a topic.
    pub is_topic_message: bool,
    /// Message of the same chat that it answers.
    pub reply_to_message: Option<Box<Message>>,
    /// Message of another chat that it answers.
    pub external_reply: Option<ExternalReply>,
    /// Part of the answered message that it quotes.
    pub quote: Option<TextQuote>,
    /// Where a forwarded message is from.
    pub forward_origin: Option<Value>,
    /// Sender of a forwarded message, in older versions of the Bot API.
    pub forward_from: Option<Value>,
    /// Text.
    pub text: Option<String>,
    /// Marked ranges of the text.
    pub entities: Option<Vec<MessageEntity>>,
    /// Text below a file.
    pub caption: Option<String>,
    /// Marked ranges of the caption.
    pub caption_entities: Option<Vec<MessageEntity>>,
    /// Album to which it belongs.
    pub media_group_id: Option<String>,
    /// Sizes of a photo.
    pub photo: Option<Vec<PhotoSize>>,
    /// Music.
    pub audio: Option<Audio>,
    /// Any file.
    pub document: Option<Document>,
    /// Silent moving picture; `document` is then set too.
    pub animation: Option<Video>,
    /// Video.
    pub video: Option<Video>,
    /// Round video.
    pub video_note: Option<VideoNote>,
    /// Voice note.
    pub voice: Option<Voice>,
    /// Sticker.
    pub sticker: Option<Sticker>,
    /// Contact.
    pub contact: Option<Contact>,
    /// Place.
    pub location: Option<Location>,
    /// Place with a name; `location` is then set too.
    pub venue: Option<Venue>,
    /// Poll.
    pub poll: Option<Poll>,
    /// Die.
    pub dice: Option<Dice>,
    /// Game.
    pub game: Option<Game>,
    /// Forwarded story.
    pub story: Option<Value>,
    /// Id of the supergroup that this group has become.
    pub migrate_to_chat_id: Option<i64>,
    /// Id of the group from which this supergroup was made.
    pub migrate_from_chat_id: Option<i64>,
}

impl Message {
    /// Returns the text or caption; empty if there is neither.
    #[must_use]
    pub fn text(&self) -> &str {
        self.text.as_deref().or(self.caption.as_deref()).unwrap_or_default()
    }

    /// Returns the marked ranges of [`Message::text`].
    #[must_use]
    pub fn entities(&self) -> &[MessageEntity] {
        let entities = if self.text.is_some() {
            &self.entities
        } else {
            &self.caption_entities
        };
        entities.as_deref().unwrap_or_default()
    }

    /// Returns whether it is a forwarded message of the bot `bot_id`.
    #[must_use]
    pub fn is_forward_of(&self, bot_id: i64) -> bool {
        is_forward_of(self.forward_origin.as_ref(), self.forward_from.as_ref(), bot_id)
    }

    /// Returns the id of its topic; `None` in the topic General, which has id 1, and outside of topics.
    #[must_use]
    pub fn topic(&self) -> Option<i64> {
        let is_topic = self.is_topic_message || self.chat.is_forum;
        self.message_thread_id.filter(|id| is_topic && *id != GENERAL_TOPIC)
    }

    /// Returns the message that it answers. The vendor names the note that opened a topic as the answered message of
    /// everything in the topic; that is none.
    #[must_use]
    pub fn replied(&self) -> Option<&Self> {
        let replied = self.reply_to_message.as_deref()?;
        let is_root = self.topic() == Some(replied.message_id);
        (!is_root).then_some(replied)
    }
}

/// Id of the topic General of every group with topics.
const GENERAL_TOPIC: i64 = 1;

/// A pressed button.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct CallbackQuery {
    /// Id of the press.
    pub id: String,
    /// User who pressed.
    pub from: User,
    /// Message with the button; absent for messages sent by inline mode.
    pub message: Option<Message>,
    /// Data of the button.
    pub data: Option<String>,
}

/// A user's new reactions to a message.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ReactionChange {
    /// Conversation.
    pub chat: Chat,
    /// Message that is reacted to.
    pub message_id: i64,
    /// User who reacted.
    pub user: Option<User>,
    /// Chat on whose behalf the reaction was made.
    pub actor_chat: Option<Chat>,
    /// Time of the change, in Unix seconds.
    pub date: i64,
    /// Reactions before.
    pub old_reaction: Vec<Reaction>,
    /// Reactions now.
    pub new_reaction: Vec<Reaction>,
}

/// The counts of anonymous reactions to a message.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ReactionCounts {
    /// Conversation.
    pub chat: Chat,
    /// Message that is reacted to.
    pub message_id: i64,
    /// Time of the change, in Unix seconds.
    pub date: i64,
    /// Reactions with their counts.
    pub reactions: Vec<ReactionCount>,
}

/// A reaction and how often it was given.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ReactionCount {
    /// Reaction.
    #[serde(rename = "type")]
    pub reaction: Reaction,
    /// How often it was given.
    pub total_count: i64,
}

/// A reaction: an emoji, or a custom one.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Reaction {
    /// Emoji.
    pub emoji: Option<String>,
    /// Id of a custom emoji.
    pub custom_emoji_id: Option<String>,
}

impl Reaction {
    /// Returns the emoji, or a name for a custom or paid one.
    #[must_use]
    pub fn name(&self) -> String {
        match (&self.emoji, &self.custom_emoji_id) {
            (Some(emoji), _) => emoji.clone(),
            (None, Some(id)) => format!(":{id}:"),
            (None, None) => ":paid:".to_owned(),
        }
    }
}

/// A change of a member of a chat, or of the bot itself.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct MemberChange {
    /// Conversation.
    pub chat: Chat,
    /// User who made the change.
    pub from: User,
    /// Time of the change, in Unix seconds.
    pub date: i64,
    /// Member before.
    pub old_chat_member: ChatMember,
    /// Member now.
    pub new_chat_member: ChatMember,
}

/// A member of a chat.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ChatMember {
    /// User.
    pub user: User,
    /// `creator`, `administrator`, `member`, `restricted`, `left` or `kicked`.
    pub status: String,
}

/// A user's wish to enter a chat.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct JoinRequest {
    /// Conversation.
    pub chat: Chat,
    /// User who wants to enter.
    pub from: User,
    /// Time of the request, in Unix seconds.
    pub date: i64,
    /// Text about the user, by the user.
    pub bio: Option<String>,
}

/// Returns the parts of a name, joined by a space; `None` if there are none.
#[must_use]
pub fn full_name(first: Option<&str>, last: Option<&str>) -> Option<String> {
    let parts: Vec<&str> = [first, last]
        .into_iter()
        .flatten()
        .filter(|part| !part.is_empty())
        .collect();
    (!parts.is_empty()).then(|| parts.join(" "))
}
