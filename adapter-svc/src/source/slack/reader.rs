//! Parts that all events of a payload have in common: ids, the conversation, the sender, and the kept part of the
//! payload. *Pure.*

use serde_json::{Map, Value, json};
use shared::model::event::{Event, EventId, EventPeer, PeerKind};
use shared::model::origin::EventOrigin;
use shared::model::time::UnixMillis;
use shared::platform::slack::SLACK;
use shared::platform::slack_api::{is_conversation_id, is_user_id, message_name, parse_stamp};

use super::payload::required;
use super::privacy::kept_payload;
use super::{RefusePayloadError, SlackBot};
use crate::source::raw_payload::keep_raw;

/// A payload, its account and the time of its reception.
pub(super) struct PayloadReader<'a> {
    pub(super) bot: &'a SlackBot,
    /// Id of the app, which the signed envelope names.
    pub(super) app_id: Option<&'a str>,
    pub(super) payload: &'a Value,
    pub(super) now: UnixMillis,
}

impl PayloadReader<'_> {
    /// Returns the id of the message `ts` of `channel`, or of an incident of it, which `rest` names.
    pub(super) fn item_id(&self, channel: &str, ts: &str, rest: &str) -> String {
        format!("{SLACK}:{}/{}{rest}", self.bot.name, message_name(channel, ts))
    }

    /// Returns the event `id` in `channel` at `at`, without content.
    pub(super) fn start_event(&self, id: String, channel: &str, at: UnixMillis) -> Result<Event, RefusePayloadError> {
        let kind = peer_kind(channel)?;
        let mut event = Event::new(EventId::parse(id)?, SLACK, channel, at);
        event.received_at = self.now;
        event.account_id = Some(self.bot.name.clone());
        event.origin = EventOrigin::account(SLACK, &self.bot.name);
        event.peer = EventPeer {
            kind,
            id: channel.to_owned(),
            team_id: Some(self.bot.team_id.clone()),
            ..EventPeer::default()
        };

        event
            .metadata
            .insert("is_group".to_owned(), json!(kind != PeerKind::Dm));
        Ok(event)
    }

    /// Writes the part of `payload`, whose kind is `kind`, that the event keeps.
    pub(super) fn write_raw(&self, event: &mut Event, kind: &str, payload: &Value) {
        event.metadata.insert("event_type".to_owned(), json!(kind));
        let raw = kept_payload(self.bot, self.app_id, payload);
        keep_raw(&mut event.metadata, raw);
    }

    /// Sets the user `id` as the sender of `event`. An action of the bot itself is no event.
    pub(super) fn set_user(&self, event: &mut Event, id: &str) -> Result<(), RefusePayloadError> {
        if id == self.bot.user_id {
            return Err(RefusePayloadError::Echo);
        }
        if !is_user_id(id) {
            return Err(RefusePayloadError::Malformed(format!("user `{}`", shorten(id))));
        }
        id.clone_into(&mut event.from.id);
        Ok(())
    }
}

/// Checks that `teams` has the account's workspace.
///
/// # Errors
/// Returns [`RefusePayloadError::WrongTeam`], or [`RefusePayloadError::Malformed`] if there are none.
pub fn check_team(bot: &SlackBot, teams: &[&str]) -> Result<(), RefusePayloadError> {
    if teams.contains(&bot.team_id.as_str()) {
        return Ok(());
    }
    // A payload of no workspace is none of another one: it has another form than the vendor documents.
    match teams.iter().find(|team| !team.is_empty()) {
        Some(other) => Err(RefusePayloadError::WrongTeam(shorten(other))),
        None => Err(RefusePayloadError::Malformed("no workspace".to_owned())),
    }
}

/// Returns the kind of a conversation by the first letter of its id: an `app_mention` says nothing else about it.
fn peer_kind(channel: &str) -> Result<PeerKind, RefusePayloadError> {
    let first = channel.chars().next().filter(|_| is_conversation_id(channel));
    match first {
        Some('D') => Ok(PeerKind::Dm),
        Some('G') => Ok(PeerKind::Group),
        Some('C') => Ok(PeerKind::Channel),
        Some(_) | None => Err(RefusePayloadError::Malformed(format!("channel `{}`", shorten(channel)))),
    }
}

/// Returns the time of the stamp `ts` of a payload of `kind`.
pub(super) fn stamp(kind: &str, ts: &str) -> Result<UnixMillis, RefusePayloadError> {
    parse_stamp(ts).ok_or_else(|| RefusePayloadError::Malformed(format!("{kind}: time stamp `{}`", shorten(ts))))
}

/// Returns the id of a user or a bot.
pub(super) fn sender_id<'a>(kind: &str, id: Option<&'a String>) -> Result<&'a str, RefusePayloadError> {
    let id = required(kind, "user or bot_id", id)?;
    if id.chars().all(|c| c.is_ascii_alphanumeric()) {
        return Ok(id);
    }
    Err(RefusePayloadError::Malformed(format!(
        "{kind}: sender `{}`",
        shorten(id)
    )))
}

/// Returns the name of a person or a bot without control characters.
pub(super) fn shown_name(name: &str) -> String {
    name.replace(char::is_control, "\u{fffd}")
}

/// Returns a text from outside, shortened for a log line.
pub(super) fn shorten(text: &str) -> String {
    text.chars().take(64).collect()
}

/// Returns the object `value`, or an empty one.
pub(super) fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}
