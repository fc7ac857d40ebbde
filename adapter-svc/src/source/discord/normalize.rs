//! A dispatch → its events. *Pure.*
//!
//! Ids name the account, the channel and the message. A thread is a channel of its own: its messages belong to the
//! conversation of the channel in which it is, in the thread. Sources: `docs/design/wire.md` §1.2;
//! <https://discord.com/developers/docs/events/gateway-events#receive-events>.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use shared::model::event::{
    Event, EventDirection, EventId, EventMention, EventPeer, EventQuote, EventSender, FROM_BOT, MentionForm, PeerKind,
    PlatformIds,
};
use shared::model::origin::EventOrigin;
use shared::model::time::UnixMillis;
use shared::platform::discord::snowflake::snowflake_time;
use shared::platform::discord::{DISCORD, message_name};

use super::content::content_of;
use super::message::{Deletion, Interaction, Member, Message, PRESS, Reaction, User};
use super::{DiscordBot, MessagePlace, RefuseDispatchError};
use crate::source::raw_payload::keep_raw;

/// Number of hexadecimal digits of a hash that tells two reactions of one user apart.
const HASH_DIGITS: usize = 12;

/// A dispatch, with what identifies it: its session and its number there. The vendor sends it again under both.
#[derive(Debug, Clone, Copy)]
pub(super) struct DispatchPayload<'a> {
    /// Kind, e.g. `MESSAGE_CREATE`.
    pub kind: &'a str,
    /// Content.
    pub data: &'a Value,
    /// Session and number, as one text.
    pub token: &'a str,
}

/// Returns the channel in which `data`, a dispatch of `kind`, happened; `None` if it belongs to none.
#[must_use]
pub(super) fn dispatch_channel<'a>(kind: &str, data: &'a Value) -> Option<&'a str> {
    let belongs = kind.starts_with("MESSAGE_") || kind == "INTERACTION_CREATE";
    data.get("channel_id").and_then(Value::as_str).filter(|_| belongs)
}

/// Returns the events of `payload`, which `bot` received at `now` in `around`.
///
/// # Errors
/// Returns [`RefuseDispatchError`] with the reason why the dispatch becomes no event.
pub(super) fn dispatch_events(
    bot: &DiscordBot,
    around: &MessagePlace,
    payload: DispatchPayload<'_>,
    now: UnixMillis,
) -> Result<Vec<Event>, RefuseDispatchError> {
    let reader = DispatchReader {
        bot,
        around,
        payload,
        now,
    };
    let mut events = match payload.kind {
        "MESSAGE_CREATE" => vec![reader.message(&reader.read()?, false)?],
        "MESSAGE_UPDATE" => vec![reader.message(&reader.read()?, true)?],
        "MESSAGE_DELETE" | "MESSAGE_DELETE_BULK" => reader.deletions(&reader.read()?)?,
        "MESSAGE_REACTION_ADD" => vec![reader.reaction(&reader.read()?, true)?],
        "MESSAGE_REACTION_REMOVE" | "MESSAGE_REACTION_REMOVE_ALL" | "MESSAGE_REACTION_REMOVE_EMOJI" => {
            vec![reader.reaction(&reader.read()?, false)?]
        }
        "INTERACTION_CREATE" => {
            // Commands and forms have other contents, which Nexus does not have.
            let kind = payload.data.get("type").and_then(Value::as_u64);
            if kind != Some(PRESS) {
                let kind = format!("INTERACTION_CREATE of type {}", kind.unwrap_or(0));
                return Err(RefuseDispatchError::NoConversation(kind));
            }
            vec![reader.press(&reader.read()?)?]
        }
        other => return Err(RefuseDispatchError::NoConversation(other.to_owned())),
    };

    // Names, buttons and messages come from people.
    for event in &mut events {
        event.content = event.content.replace('\0', "\u{fffd}");
    }
    Ok(events)
}

/// A dispatch, its account and the time of its reception.
struct DispatchReader<'a> {
    bot: &'a DiscordBot,
    around: &'a MessagePlace,
    payload: DispatchPayload<'a>,
    now: UnixMillis,
}

impl DispatchReader<'_> {
    fn read<T: DeserializeOwned>(&self) -> Result<T, RefuseDispatchError> {
        T::deserialize(self.payload.data).map_err(|error| self.malformed(&error.to_string()))
    }

    fn malformed(&self, why: &str) -> RefuseDispatchError {
        RefuseDispatchError::Malformed(format!("{}: {why}", self.payload.kind))
    }

    /// Returns the id of the message `message` of `channel`, or of an incident of it, which `rest` names.
    fn item_id(&self, channel: &str, message: &str, rest: &str) -> String {
        format!("{DISCORD}:{}/{}{rest}", self.bot.name, message_name(channel, message))
    }

    /// Returns the event `id` in `channel` at `at`, without content.
    fn start_event(&self, id: String, channel: &str, at: UnixMillis) -> Result<Event, RefuseDispatchError> {
        let place = &self.around.place;
        let peer = place.thread_parent().unwrap_or(channel);
        // Only what is known to be direct is: a channel of which nothing is known has the rules of channels.
        let kind = if place.is_direct() {
            PeerKind::Dm
        } else {
            PeerKind::Channel
        };

        let mut event = Event::new(EventId::parse(id)?, DISCORD, peer, at);
        event.received_at = self.now;
        event.account_id = Some(self.bot.name.clone());
        event.origin = EventOrigin::account(DISCORD, &self.bot.name);
        event.peer = EventPeer {
            kind,
            id: peer.to_owned(),
            guild_id: place.guild_id.clone(),
            ..EventPeer::default()
        };
        event.thread_id = place.thread_parent().map(|_| channel.to_owned());
        event.metadata = self.metadata(kind);
        Ok(event)
    }

    fn metadata(&self, kind: PeerKind) -> Map<String, Value> {
        let mut metadata = Map::new();
        metadata.insert("event_type".to_owned(), json!(self.payload.kind));
        metadata.insert("is_group".to_owned(), json!(kind != PeerKind::Dm));
        if let Some(name) = &self.around.place.name {
            metadata.insert("chat_title".to_owned(), json!(name));
        }

        let is_edit = self.payload.kind == "MESSAGE_UPDATE";
        let payload = kept_payload(self.payload.data, &self.bot.user_id, is_edit);
        let raw = json!({self.payload.kind: payload});
        keep_raw(&mut metadata, raw);
        metadata
    }

    fn message(&self, message: &Message, is_edit: bool) -> Result<Event, RefuseDispatchError> {
        let edited = message
            .edited_timestamp
            .as_deref()
            .map(|text| self.time(text))
            .transpose()?;
        if is_edit && edited.is_none() {
            return Err(RefuseDispatchError::NoEdit);
        }

        let (id, channel) = (self.id(&message.id)?, self.id(&message.channel_id)?);
        let written = message.timestamp.as_deref().map(|text| self.time(text)).transpose()?;
        let at = written.or_else(|| snowflake_time(id)).unwrap_or(self.now);
        let mut event = self.start_event(self.item_id(channel, id, ""), channel, at)?;
        let author = message.author.as_ref().ok_or_else(|| self.malformed("no `author`"))?;
        self.set_sender(&mut event, author, message.member.as_ref())?;
        if message.webhook_id.is_some() {
            event.add_tag(FROM_BOT);
        }

        event.edited_at = edited;
        if is_edit {
            event.direction = EventDirection::Updated;
        }

        event.mention = Some(self.mention_of(message));
        self.set_references(&mut event, message);
        self.set_content(&mut event, message);
        let ids = PlatformIds {
            ids: vec![message_name(channel, id)],
            part: 0,
        };
        ids.write_to(&mut event);
        Ok(event)
    }

    /// Sets the sender of `event`.
    fn set_sender(&self, event: &mut Event, user: &User, member: Option<&Member>) -> Result<(), RefuseDispatchError> {
        if user.id == self.bot.user_id {
            return Err(RefuseDispatchError::Echo);
        }

        let id = self.id(&user.id)?;
        event.from = sender(id, user, member);
        if user.bot == Some(true) {
            event.add_tag(FROM_BOT);
        }
        if let Some(username) = &user.username {
            event.metadata.insert("username".to_owned(), json!(username));
        }
        Ok(())
    }

    fn mention_of(&self, message: &Message) -> EventMention {
        let own = self.bot.user_id.as_str();
        let is_named = [format!("<@{own}>"), format!("<@!{own}>")]
            .iter()
            .any(|mark| message.text().contains(mark));
        let is_mentioned = message.mentions.iter().flatten().any(|user| user.id == own);
        let mut roles = message.mention_roles.iter().flatten();
        let by_role = roles.any(|role| self.around.own_roles.contains(role));
        let replied = message.referenced_message.as_deref();
        let answers = message.is_said()
            && replied.is_some_and(|replied| replied.author.as_ref().is_some_and(|author| author.id == own));

        let place = &self.around.place;
        let is_own_thread = place.thread_parent().is_some() && place.owner_id.as_deref() == Some(own);
        // An answer mentions whom it answers, unless its author says otherwise: that is still an answer.
        let how = if is_mentioned && is_named || by_role {
            MentionForm::Native
        } else if answers {
            MentionForm::Reply
        } else if is_mentioned {
            MentionForm::Native
        } else if is_own_thread && message.is_said() {
            MentionForm::Thread
        } else {
            MentionForm::None
        };
        EventMention {
            me: how != MentionForm::None,
            how,
        }
    }

    /// Sets the messages that `message` answers and quotes.
    fn set_references(&self, event: &mut Event, message: &Message) {
        let Some(reference) = &message.message_reference else {
            return;
        };
        let Some(answered) = reference.message_id.as_deref().filter(|id| is_id(id)) else {
            return;
        };
        let channel = reference.channel_id.as_deref().filter(|id| is_id(id));
        let id = self.item_id(channel.unwrap_or(&message.channel_id), answered, "");
        event.reply_to = Some(id.clone());

        // Our own message is an event already, without the codes and links that stand on an approval's card. A forwarded
        // one does not name its author, so that it may be such a card: nothing of it is quoted.
        let replied = message.referenced_message.as_deref();
        let author = replied.and_then(|replied| replied.author.as_ref());
        let is_own = author.is_some_and(|user| user.id == self.bot.user_id);
        let quoted = replied.map(Message::text).filter(|text| !text.is_empty());
        if let Some(text) = quoted.filter(|_| !is_own) {
            event.quote = Some(EventQuote {
                id,
                text: text.replace('\0', "\u{fffd}"),
                from: author.map(|user| sender(&user.id, user, None)),
            });
        }
    }

    /// Sets text, content types and files of `event`, which is `message`.
    fn set_content(&self, event: &mut Event, message: &Message) {
        let content = content_of(message);
        event.content_types = content.kinds.iter().map(|kind| (*kind).to_owned()).collect();
        event.content = content.text;
        event.attachments = content.files;

        if !message.is_said() {
            // A note about the channel: a member came, a thread was made. It does not address the bot.
            event.content_types = vec!["service".to_owned()];
            event.metadata.insert("service".to_owned(), json!(message.kind));
            event.direction = EventDirection::Observed;
        } else if event.content_types.is_empty() {
            event.content_types.push("text".to_owned());
            // Not an empty message: the vendor keeps its content back.
            event
                .metadata
                .insert("intent_missing".to_owned(), json!("MESSAGE_CONTENT"));
            event.direction = EventDirection::Observed;
        }
    }

    fn deletions(&self, deletion: &Deletion) -> Result<Vec<Event>, RefuseDispatchError> {
        let channel = self.id(&deletion.channel_id)?;
        let ids = deletion.ids.iter().flatten().chain(&deletion.id);
        let events = ids.map(|id| {
            let id = self.id(id)?;
            // The vendor does not say when it was deleted: a repetition must be the same event.
            let at = snowflake_time(id).unwrap_or(self.now);
            let mut event = self.start_event(self.item_id(channel, id, ""), channel, at)?;
            event.direction = EventDirection::Deleted;
            event.target = Some(event.id.to_string());
            Ok(event)
        });
        events.collect()
    }

    fn reaction(&self, reaction: &Reaction, is_added: bool) -> Result<Event, RefuseDispatchError> {
        let (channel, message) = (self.id(&reaction.channel_id)?, self.id(&reaction.message_id)?);
        let actor = reaction.user_id.as_deref().map(|user| self.id(user)).transpose()?;
        if actor == Some(self.bot.user_id.as_str()) {
            return Err(RefuseDispatchError::Echo);
        }

        // A reaction has no id and no time of its own; the vendor repeats it under its session and number alone.
        let emoji = reaction.emoji.as_ref().map(super::message::Emoji::text);
        let hash = short_hash(&format!("{}/{}/{emoji:?}", self.payload.token, self.payload.kind));
        let rest = format!("/reaction/{}/{hash}", actor.unwrap_or("all"));
        let mut event = self.start_event(self.item_id(channel, message, &rest), channel, self.now)?;
        match actor {
            Some(actor) => {
                let member = reaction.member.as_ref();
                let user = member.and_then(|member| member.user.clone()).unwrap_or_default();
                event.from = sender(actor, &user, member);
                if user.bot == Some(true) {
                    event.add_tag(FROM_BOT);
                }
            }
            // The vendor does not name the user that removed them.
            None => channel.clone_into(&mut event.from.id),
        }

        event.target = Some(self.item_id(channel, message, ""));
        event.content_types = vec!["reaction".to_owned()];
        event.direction = EventDirection::Observed;
        let given: Vec<String> = emoji.into_iter().collect();
        let change = if is_added {
            event.content = given.concat();
            json!({"before": [], "now": given})
        } else {
            json!({"before": given, "now": []})
        };
        event.metadata.insert("reaction".to_owned(), change);
        Ok(event)
    }

    fn press(&self, interaction: &Interaction) -> Result<Event, RefuseDispatchError> {
        let id = self.id(&interaction.id)?;
        let message = interaction
            .message
            .as_ref()
            .ok_or_else(|| self.malformed("no `message`"))?;
        let channel = interaction.channel_id.as_deref().unwrap_or(&message.channel_id);
        let (channel, message) = (self.id(channel)?, self.id(&message.id)?);
        let member = interaction.member.as_ref();
        let user = member
            .and_then(|member| member.user.as_ref())
            .or(interaction.user.as_ref());
        let user = user.ok_or_else(|| self.malformed("no `user` and no `member.user`"))?;

        let at = snowflake_time(id).unwrap_or(self.now);
        let rest = format!("/press/{id}");
        let mut event = self.start_event(self.item_id(channel, message, &rest), channel, at)?;
        self.set_sender(&mut event, user, member)?;
        event.target = Some(self.item_id(channel, message, ""));
        event.content_types = vec!["press".to_owned()];
        let data = interaction.data.clone().unwrap_or_default();
        event.content = data.custom_id.clone().unwrap_or_default();
        event.metadata.insert(
            "press".to_owned(),
            json!({"id": id, "data": data.custom_id, "values": data.values}),
        );
        Ok(event)
    }

    /// Returns `id` if it can be a part of an event's id.
    fn id<'a>(&self, id: &'a str) -> Result<&'a str, RefuseDispatchError> {
        if is_id(id) {
            Ok(id)
        } else {
            Err(self.malformed("invalid id"))
        }
    }

    fn time(&self, text: &str) -> Result<UnixMillis, RefuseDispatchError> {
        let time: jiff::Timestamp = text.parse().map_err(|_| self.malformed("invalid timestamp"))?;
        Ok(UnixMillis(time.as_millisecond()))
    }
}

/// Returns whether `text` can be a part of an event's id: the vendor's are digits.
fn is_id(text: &str) -> bool {
    !text.is_empty() && text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn sender(id: &str, user: &User, member: Option<&Member>) -> EventSender {
    let nick = member.and_then(|member| member.nick.clone());
    let name = nick
        .or_else(|| user.global_name.clone())
        .or_else(|| user.username.clone());
    EventSender {
        id: id.to_owned(),
        display_name: name.filter(|name| !name.is_empty()),
        roles: member.and_then(|member| member.roles.clone()).unwrap_or_default(),
    }
}

/// Returns the beginning of the hash of `text`, in hexadecimal digits.
fn short_hash(text: &str) -> String {
    let mut digits = hex::encode(Sha256::digest(text.as_bytes()));
    digits.truncate(HASH_DIGITS);
    digits
}

/// Keys of a message of our own that an event keeps.
const OWN_MESSAGE_KEYS: [&str; 6] = ["id", "channel_id", "guild_id", "author", "timestamp", "type"];

/// Keys of an edited message that change without an edit: the event of one edit is one.
const VOLATILE_KEYS: [&str; 7] = [
    "embeds",
    "pinned",
    "flags",
    "reactions",
    "components",
    "position",
    "referenced_message",
];

/// Keys that no event keeps, at any depth: tokens, and forwarded messages, which do not name their authors.
const HIDDEN_KEYS: [&str; 2] = ["token", "message_snapshots"];

/// Returns `data` without its secrets: tokens, and the texts and buttons of messages of the bot `own` itself at any
/// depth, because the cards of approvals have codes and links with which a reader of the event could decide. A
/// forwarded message may be one of them. Of an edit, the fields that also change without one are left out too.
fn kept_payload(data: &Value, own: &str, is_edit: bool) -> Value {
    let Value::Object(fields) = data else {
        return data.clone();
    };
    let kept = fields
        .iter()
        .filter(|(key, _)| !is_edit || !VOLATILE_KEYS.contains(&key.as_str()));
    let kept: Map<String, Value> = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
    without_own_messages(&Value::Object(kept), own)
}

/// Returns the dispatch of `kind` with `data`, which cannot be read, without its secrets; see `HIDDEN_KEYS`. `own`
/// is the bot's id.
#[must_use]
pub(super) fn refused_payload(kind: &str, data: &Value, own: &str) -> Value {
    without_own_messages(&json!({kind: data}), own)
}

fn without_own_messages(data: &Value, own: &str) -> Value {
    match data {
        Value::Object(fields) => {
            let shown = fields.iter().filter(|(key, _)| !HIDDEN_KEYS.contains(&key.as_str()));
            let kept = shown.map(|(key, value)| (key.clone(), kept_value(value, own)));
            Value::Object(kept.collect())
        }
        Value::Array(values) => values.iter().map(|value| without_own_messages(value, own)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => data.clone(),
    }
}

/// Returns what is kept of the field `value`: of a message of the bot `own`, only `OWN_MESSAGE_KEYS`.
fn kept_value(value: &Value, own: &str) -> Value {
    match value {
        Value::Object(message) if is_own_message(value, own) => {
            let kept = message
                .iter()
                .filter(|(key, _)| OWN_MESSAGE_KEYS.contains(&key.as_str()));
            Value::Object(kept.map(|(key, value)| (key.clone(), value.clone())).collect())
        }
        Value::Object(_) | Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            without_own_messages(value, own)
        }
    }
}

/// Returns whether `value` is a message of the bot `own`. One without a readable author may be.
fn is_own_message(value: &Value, own: &str) -> bool {
    match value.pointer("/author/id").and_then(Value::as_str) {
        Some(author) => author == own,
        None => value.get("content").is_some_and(Value::is_string),
    }
}

#[cfg(test)]
mod tests;
