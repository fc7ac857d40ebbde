//! An update → its events. *Pure.*
//!
//! Ids name the account, the chat and the message, so that two accounts of one installation in one room do not swallow
//! each other's events, and an update that comes again under another `update_id` is no second event. Source:
//! <https://core.telegram.org/bots/api#update>; `docs/design/wire.md` §1.2.

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use shared::model::event::{
    Event, EventDirection, EventId, EventPeer, EventQuote, EventSender, FROM_BOT, MIGRATED_FROM, MIGRATED_TO, PeerKind,
    PlatformIds,
};
use shared::model::origin::EventOrigin;
use shared::model::time::UnixMillis;
use shared::platform::bot_api::message_name;
use shared::platform::telegram::TELEGRAM;

use super::content::{content_of, service_note};
use super::media::attachments_of;
use super::mention::mention_of;
use super::privacy::{OWN_FORWARD, is_origin, without_own_messages};
use super::update::{
    CallbackQuery, Chat, JoinRequest, MemberChange, Message, Reaction, ReactionChange, ReactionCounts, Update, User,
    full_name,
};
use super::{BotAccount, RefuseUpdateError};
use crate::source::raw_payload::keep_raw;

/// Number of hexadecimal digits of a hash that tells two changes of one second apart.
const HASH_DIGITS: usize = 12;

/// Returns the events of the update `raw`, which `account` received at `now`.
///
/// # Errors
/// Returns [`RefuseUpdateError`] with the reason why the update becomes no event.
pub fn update_events(account: &BotAccount, raw: &Value, now: UnixMillis) -> Result<Vec<Event>, RefuseUpdateError> {
    let update = Update::parse(raw)?;
    let reader = UpdateReader { account, update, now };
    let mut event = match update.kind {
        "message" | "channel_post" => reader.message(&update.read()?, false)?,
        "edited_message" | "edited_channel_post" => reader.message(&update.read()?, true)?,
        "message_reaction" => reader.reaction(&update.read()?)?,
        "message_reaction_count" => reader.reaction_counts(&update.read()?)?,
        "callback_query" => reader.press(&update.read()?)?,
        "my_chat_member" | "chat_member" => reader.member_change(&update.read()?)?,
        "chat_join_request" => reader.join_request(&update.read()?)?,
        other => return Err(RefuseUpdateError::NoConversation(other.to_owned())),
    };

    // Names, buttons and messages come from people.
    event.content = event.content.replace('\0', "\u{fffd}");
    Ok(vec![event])
}

/// An update, its account and the time of its reception.
struct UpdateReader<'a> {
    account: &'a BotAccount,
    update: Update<'a>,
    now: UnixMillis,
}

impl UpdateReader<'_> {
    /// Returns the id of the message `message` of `chat`, or of an incident of it, which `rest` names.
    fn item_id(&self, chat: i64, message: i64, rest: &str) -> String {
        format!("{TELEGRAM}:{}/{}{rest}", self.account.name, message_name(chat, message))
    }

    /// Returns the event `id` in `chat` at `seconds`, without content.
    fn start_event(&self, id: String, chat: &Chat, seconds: i64) -> Result<Event, RefuseUpdateError> {
        let at = UnixMillis::from_seconds(seconds);
        let mut event = Event::new(EventId::parse(id)?, TELEGRAM, &chat.id.to_string(), at);
        let kind = peer_kind(chat)?;
        event.received_at = self.now;
        event.account_id = Some(self.account.name.clone());
        event.origin = EventOrigin::account(TELEGRAM, &self.account.name);
        event.peer = EventPeer {
            kind,
            id: chat.id.to_string(),
            ..EventPeer::default()
        };

        event.metadata = self.metadata(chat, kind);
        Ok(event)
    }

    fn metadata(&self, chat: &Chat, kind: PeerKind) -> Map<String, Value> {
        let mut metadata = Map::new();
        metadata.insert("event_type".to_owned(), json!(self.update.kind));
        metadata.insert("is_group".to_owned(), json!(kind != PeerKind::Dm));
        metadata.insert("chat_type".to_owned(), json!(chat.kind));

        if let Some(title) = &chat.title {
            metadata.insert("chat_title".to_owned(), json!(title));
        }
        if let Some(username) = &chat.username {
            metadata.insert("chat_username".to_owned(), json!(username));
        }

        // Without `update_id`, so that the same item has the same contents whenever the vendor sends it again.
        let payload = without_own_messages(self.update.payload, self.account.bot_id);
        let raw = json!({self.update.kind: payload});
        keep_raw(&mut metadata, raw);

        metadata
    }

    fn message(&self, message: &Message, is_edit: bool) -> Result<Event, RefuseUpdateError> {
        let id = self.item_id(message.chat.id, message.message_id, "");
        let mut event = self.start_event(id, &message.chat, message.date)?;
        self.set_sender(&mut event, message.from.as_ref(), message.sender_chat.as_ref())?;

        if is_edit {
            event.direction = EventDirection::Updated;
            event.edited_at = Some(UnixMillis::from_seconds(message.edit_date.unwrap_or(message.date)));
        }

        event.thread_id = message.topic().map(|topic| topic.to_string());
        // Replies in a group without topics have a thread of their own, which is no topic: nothing can be sent to it.
        if let (None, Some(thread)) = (&event.thread_id, message.message_thread_id) {
            event
                .metadata
                .insert("reply_thread".to_owned(), json!(thread.to_string()));
        }

        event.mention = Some(mention_of(self.account, message));
        self.set_references(&mut event, message);
        let is_own_forward = message.is_forward_of(self.account.bot_id);
        set_content(&mut event, message, self.update.payload, is_own_forward);

        let ids = PlatformIds {
            ids: vec![message_name(message.chat.id, message.message_id)],
            part: 0,
        };
        ids.write_to(&mut event);

        Ok(event)
    }

    /// Sets the sender of `event`. A message on behalf of a chat is from that chat: its user is a stand-in of the
    /// vendor's, the same for all chats.
    fn set_sender(
        &self,
        event: &mut Event,
        user: Option<&User>,
        on_behalf: Option<&Chat>,
    ) -> Result<(), RefuseUpdateError> {
        if user.is_some_and(|user| user.id == self.account.bot_id) {
            return Err(RefuseUpdateError::Echo);
        }

        match (on_behalf, user) {
            (Some(chat), _) => {
                event.from = EventSender {
                    id: chat.id.to_string(),
                    display_name: chat_name(chat),
                    roles: Vec::new(),
                };
            }
            (None, Some(user)) => {
                event.from = sender(user);
                if user.is_bot {
                    event.add_tag(FROM_BOT);
                }
                if let Some(username) = &user.username {
                    event.metadata.insert("username".to_owned(), json!(username));
                }
            }
            // A message that the bot may not see any more names no sender; in a private chat it is the other party.
            (None, None) => event.from.id.clone_from(&event.peer.id),
        }

        Ok(())
    }

    /// Sets the messages that `message` answers and quotes.
    fn set_references(&self, event: &mut Event, message: &Message) {
        let external = message.external_reply.as_ref();
        let outside = external.and_then(|reply| Some((reply.chat.as_ref()?.id, reply.message_id?)));

        let replied = message.replied();
        let inside = replied.map(|replied| (message.chat.id, replied.message_id));
        let Some((chat, answered)) = inside.or(outside) else {
            return;
        };

        let id = self.item_id(chat, answered, "");
        event.reply_to = Some(id.clone());

        // Without a quote of the user's own, clients show the answered message.
        let quoted = message.quote.as_ref().map(|quote| quote.text.as_str());
        let quoted = quoted.or_else(|| replied.map(Message::text)).unwrap_or_default();
        // Our own message is an event already, without the codes and links that stand on an approval's card.
        let author = replied.and_then(|replied| replied.from.as_ref());
        let bot_id = self.account.bot_id;
        let is_own = author.is_some_and(|user| user.id == bot_id)
            || replied.is_some_and(|replied| replied.is_forward_of(bot_id))
            || is_origin(external.and_then(|reply| reply.origin.as_ref()), bot_id);
        if !quoted.is_empty() && !is_own {
            event.quote = Some(EventQuote {
                id,
                text: quoted.replace('\0', "\u{fffd}"),
                from: author.map(sender),
            });
        }
    }

    fn reaction(&self, change: &ReactionChange) -> Result<Event, RefuseUpdateError> {
        let actor = change.actor_chat.as_ref().map(|chat| chat.id);
        let actor = actor.or_else(|| change.user.as_ref().map(|user| user.id));
        let actor = actor.ok_or_else(|| RefuseUpdateError::Malformed("message_reaction: no actor".to_owned()))?;

        let names = |reactions: &[Reaction]| reactions.iter().map(Reaction::name).collect::<Vec<_>>();
        let (before, now) = (names(&change.old_reaction), names(&change.new_reaction));
        let hash = short_hash(&json!([before, now]));
        let rest = format!("/reaction/{actor}/{}-{hash}", change.date);

        let id = self.item_id(change.chat.id, change.message_id, &rest);
        let mut event = self.start_event(id, &change.chat, change.date)?;
        self.set_sender(&mut event, change.user.as_ref(), change.actor_chat.as_ref())?;
        self.refer_to(&mut event, change.message_id, "reaction");
        event.direction = EventDirection::Observed;
        event.content = now.concat();
        event
            .metadata
            .insert("reaction".to_owned(), json!({"before": before, "now": now}));

        Ok(event)
    }

    fn reaction_counts(&self, counts: &ReactionCounts) -> Result<Event, RefuseUpdateError> {
        let given: Vec<Value> = counts
            .reactions
            .iter()
            .map(|one| json!([one.reaction.name(), one.total_count]))
            .collect();

        let hash = short_hash(&json!(given));
        let rest = format!("/reactions/{}-{hash}", counts.date);
        let id = self.item_id(counts.chat.id, counts.message_id, &rest);
        let mut event = self.start_event(id, &counts.chat, counts.date)?;
        self.set_sender(&mut event, None, Some(&counts.chat))?;
        self.refer_to(&mut event, counts.message_id, "reaction");
        event.direction = EventDirection::Observed;
        event.metadata.insert("reactions".to_owned(), json!(given));

        Ok(event)
    }

    fn press(&self, query: &CallbackQuery) -> Result<Event, RefuseUpdateError> {
        // A message of inline mode is in a chat that the bot is not told.
        let no_chat = || RefuseUpdateError::NoConversation("callback_query of inline mode".to_owned());
        let message = query.message.as_ref().ok_or_else(no_chat)?;

        let rest = format!("/press/{}", query.id);
        let id = self.item_id(message.chat.id, message.message_id, &rest);
        let mut event = self.start_event(id, &message.chat, 0)?;
        // The vendor does not say when the button was pressed.
        event.timestamp = self.now;
        self.set_sender(&mut event, Some(&query.from), None)?;
        self.refer_to(&mut event, message.message_id, "press");
        event.thread_id = message.topic().map(|topic| topic.to_string());
        event.content = query.data.clone().unwrap_or_default();
        event
            .metadata
            .insert("press".to_owned(), json!({"id": query.id, "data": query.data}));

        Ok(event)
    }

    fn member_change(&self, change: &MemberChange) -> Result<Event, RefuseUpdateError> {
        let (before, now) = (&change.old_chat_member.status, &change.new_chat_member.status);
        let member = &change.new_chat_member.user;
        let hash = short_hash(self.update.payload);
        let rest = format!("member/{}/{}-{hash}", member.id, change.date);

        let id = format!("{TELEGRAM}:{}/{}/{rest}", self.account.name, change.chat.id);
        let mut event = self.start_event(id, &change.chat, change.date)?;
        self.set_sender(&mut event, Some(&change.from), None)?;
        event.direction = EventDirection::Observed;
        event.content_types = vec!["member".to_owned()];
        event.content = format!("{}: {before} → {now}", user_name(member).unwrap_or_default());
        event.metadata.insert(
            "member".to_owned(),
            json!({"id": member.id.to_string(), "before": before, "now": now, "me": member.id == self.account.bot_id}),
        );

        Ok(event)
    }

    fn join_request(&self, request: &JoinRequest) -> Result<Event, RefuseUpdateError> {
        let rest = format!("join/{}/{}", request.from.id, request.date);
        let id = format!("{TELEGRAM}:{}/{}/{rest}", self.account.name, request.chat.id);
        let mut event = self.start_event(id, &request.chat, request.date)?;
        self.set_sender(&mut event, Some(&request.from), None)?;
        event.direction = EventDirection::Observed;
        event.content_types = vec!["member".to_owned()];
        event.content = request.bio.clone().unwrap_or_default();

        Ok(event)
    }

    /// Makes `event` one of `content_type` that is about the message `about` of its chat.
    fn refer_to(&self, event: &mut Event, about: i64, content_type: &str) {
        let chat = &event.peer.id;
        event.target = Some(format!("{TELEGRAM}:{}/{chat}/{about}", self.account.name));
        event.content_types = vec![content_type.to_owned()];
    }
}

/// Sets text, content types and files of `event`, which is `message`, encoded as `payload`. Of a forwarded message of the
/// bot's own no words are kept.
fn set_content(event: &mut Event, message: &Message, payload: &Value, is_own_forward: bool) {
    let files = attachments_of(message);
    let (kinds, content) = if is_own_forward {
        (vec!["forward"], OWN_FORWARD.to_owned())
    } else {
        content_of(message)
    };

    let mut types: Vec<String> = files.iter().map(|(kind, _)| (*kind).to_owned()).collect();
    types.extend(kinds.iter().map(|kind| (*kind).to_owned()));
    event.attachments = files.into_iter().map(|(_, file)| file).collect();

    if types.is_empty() {
        // A note about the chat: a member came, a topic was made. It does not address the bot.
        types.push("service".to_owned());
        event.direction = EventDirection::Observed;
        if let Some(note) = service_note(payload) {
            event.metadata.insert("service".to_owned(), json!(note));
        }
    }

    event.content_types = types;
    event.content = content;

    if let Some(album) = &message.media_group_id {
        event.metadata.insert("album".to_owned(), json!(album));
    }
    if let Some(chat) = message.migrate_to_chat_id {
        event.metadata.insert(MIGRATED_TO.to_owned(), json!(chat.to_string()));
    }
    if let Some(chat) = message.migrate_from_chat_id {
        event.metadata.insert(MIGRATED_FROM.to_owned(), json!(chat.to_string()));
    }
}

fn peer_kind(chat: &Chat) -> Result<PeerKind, RefuseUpdateError> {
    match chat.kind.as_str() {
        "private" => Ok(PeerKind::Dm),
        "group" | "supergroup" => Ok(PeerKind::Group),
        "channel" => Ok(PeerKind::Channel),
        other => Err(RefuseUpdateError::UnknownChat(other.to_owned())),
    }
}

fn sender(user: &User) -> EventSender {
    EventSender {
        id: user.id.to_string(),
        display_name: user_name(user),
        roles: Vec::new(),
    }
}

fn user_name(user: &User) -> Option<String> {
    full_name(user.first_name.as_deref(), user.last_name.as_deref()).or_else(|| user.username.clone())
}

fn chat_name(chat: &Chat) -> Option<String> {
    let name = || full_name(chat.first_name.as_deref(), chat.last_name.as_deref());
    chat.title.clone().or_else(name).or_else(|| chat.username.clone())
}

/// Returns the beginning of the hash of `value`, in hexadecimal digits.
fn short_hash(value: &Value) -> String {
    let mut digits = hex::encode(Sha256::digest(value.to_string().as_bytes()));
    digits.truncate(HASH_DIGITS);
    digits
}

#[cfg(test)]
mod tests;
