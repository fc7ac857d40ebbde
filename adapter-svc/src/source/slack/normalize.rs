//! A payload → its events. *Pure.*
//!
//! Ids name the account, the conversation and the message's time stamp, which is its id at Slack: a payload that is
//! posted again is no second event. `message` and `app_mention` come for one post and make the same event. Source:
//! <https://docs.slack.dev/apis/events-api>; `docs/design/wire.md` §1.2.

use serde_json::{Map, Value, json};
use shared::model::event::{Event, EventDirection, EventSender, FROM_BOT, PlatformIds};
use shared::model::time::UnixMillis;
use shared::platform::slack::SLACK;
use shared::platform::slack_api::{message_name, parse_stamp};

use super::content::{mention_of, readable_text};
use super::files::attachment_of;
use super::payload::{
    EventEnvelope, MemberChange, MessageChange, RateLimitNotice, ReactionChange, SlackMessage, read, required,
};
use super::press::{command_event, press_events};
use super::privacy::is_own;
use super::reader::{PayloadReader, check_team, object, sender_id, shorten, shown_name, stamp};
use super::{RefusePayloadError, SlackBot};
use crate::source::port::{SourceGap, gap_event};

/// Length of the time of which a limited app got no events, in milliseconds.
const LIMITED_MS: i64 = 60_000;

/// Slack's own assistant, a bot without a bot's id.
const SLACKBOT: &str = "USLACKBOT";

/// Kind of the placeholder of a message that was deleted.
const TOMBSTONE: &str = "tombstone";

/// Content of the event of a message of the app's own that a person shares.
const OWN_SHARE: &str = "shared message of this app";

/// Keys in which `message` and `app_mention` of one post differ.
const DELIVERY_KEYS: [&str; 3] = ["type", "channel_type", "event_ts"];

/// Returns the events of the payload `raw`, which `bot` received at `now`.
///
/// # Errors
/// Returns [`RefusePayloadError`] with the reason why the payload becomes no event.
pub fn payload_events(bot: &SlackBot, raw: &Value, now: UnixMillis) -> Result<Vec<Event>, RefusePayloadError> {
    let kind = raw.get("type").and_then(Value::as_str);
    let mut events = match kind {
        Some("event_callback") => vec![callback_event(bot, raw, now)?],
        Some("block_actions") => press_events(bot, raw, now)?,
        Some("app_rate_limited") => vec![limit_event(bot, raw, now)?],
        Some(other) if !other.is_empty() => return Err(RefusePayloadError::NoConversation(shorten(other))),
        Some(_) | None if raw.get("command").is_some_and(Value::is_string) => {
            vec![command_event(bot, raw, now)?]
        }
        Some(_) | None => return Err(RefusePayloadError::Malformed("no type".to_owned())),
    };

    // Names, buttons and messages come from people.
    for event in &mut events {
        event.content = event.content.replace('\0', "\u{fffd}");
    }
    Ok(events)
}

/// Returns the event of `message`, as the history of `channel` has it, which `bot` read at `now`. It has the id of the event
/// that the payload makes which Slack posts of it.
///
/// # Errors
/// Returns [`RefusePayloadError`] with the reason why the message becomes no event.
pub fn history_event(
    bot: &SlackBot,
    channel: &str,
    message: &Value,
    now: UnixMillis,
) -> Result<Event, RefusePayloadError> {
    // A history names the conversation once, for all of its messages.
    let mut whole = object(message);
    whole.insert("channel".to_owned(), json!(channel));
    if whole.get("subtype").and_then(Value::as_str) == Some(TOMBSTONE) {
        return Err(RefusePayloadError::NoConversation(TOMBSTONE.to_owned()));
    }

    let reader = PayloadReader {
        bot,
        app_id: None,
        payload: &Value::Object(whole),
        now,
    };
    let mut event = reader.message()?;
    event.content = event.content.replace('\0', "\u{fffd}");
    Ok(event)
}

/// Returns the event of an envelope.
fn callback_event(bot: &SlackBot, raw: &Value, now: UnixMillis) -> Result<Event, RefusePayloadError> {
    let envelope: EventEnvelope = read("event_callback", raw)?;
    check_team(bot, &envelope_teams(&envelope))?;
    let kind = envelope.event.get("type").and_then(Value::as_str).unwrap_or_default();
    let reader = PayloadReader {
        bot,
        app_id: envelope.api_app_id.as_deref(),
        payload: &envelope.event,
        now,
    };

    match kind {
        // The mention is a message that may come as such too.
        "message" | "app_mention" => reader.message(),
        "reaction_added" | "reaction_removed" => reader.reaction(kind == "reaction_added"),
        "member_joined_channel" | "member_left_channel" => reader.member_change(kind == "member_joined_channel"),
        "" => Err(RefusePayloadError::Malformed("event_callback: no event".to_owned())),
        other => Err(RefusePayloadError::NoConversation(shorten(other))),
    }
}

/// Returns the workspaces through which the app sees the event of `envelope`.
fn envelope_teams(envelope: &EventEnvelope) -> Vec<&str> {
    // In a channel that is shared with another company, `team_id` may be theirs.
    let installations = envelope.authorizations.iter().flatten();
    let named: Vec<&str> = installations.filter_map(|one| one.team_id.as_deref()).collect();
    if !named.is_empty() {
        return named;
    }
    let own = [envelope.team_id.as_deref(), envelope.context_team_id.as_deref()];
    own.into_iter().flatten().collect()
}

/// Returns the event that says that Slack sent no events for a minute.
fn limit_event(bot: &SlackBot, raw: &Value, now: UnixMillis) -> Result<Event, RefusePayloadError> {
    const KIND: &str = "app_rate_limited";
    let notice: RateLimitNotice = read(KIND, raw)?;
    check_team(bot, &[notice.team_id.as_deref().unwrap_or_default()])?;
    let minute = notice
        .minute_rate_limited
        .filter(|minute| (0..=1_000_000_000_000).contains(minute));
    let minute = minute.ok_or_else(|| RefusePayloadError::Malformed(format!("{KIND}: no minute_rate_limited")))?;

    let from = UnixMillis::from_seconds(minute);
    let gap = SourceGap {
        from,
        to: from.plus(LIMITED_MS),
        item: None,
        reason: "Slack sent no events for a minute, because the app had more than 30,000 in an hour".to_owned(),
    };
    // Its time is that of the minute, so that it is the same whenever it is posted.
    let mut event = gap_event(SLACK, &bot.name, &gap, gap.to)?;
    event.received_at = now;
    Ok(event)
}

impl PayloadReader<'_> {
    fn message(&self) -> Result<Event, RefusePayloadError> {
        let subtype = self.payload.get("subtype").and_then(Value::as_str);
        match subtype {
            Some("message_changed") => self.changed_message(),
            Some("message_deleted") => self.deleted_message(),
            // A note about a thread, whose messages come as such.
            Some("message_replied") => Err(RefusePayloadError::NoConversation("message_replied".to_owned())),
            Some(_) | None => {
                let message: SlackMessage = read("message", self.payload)?;
                let channel = required("message", "channel", message.channel.as_ref())?;
                let mut event = self.posted_message(&message, channel)?;
                let mut raw = object(self.payload);
                DELIVERY_KEYS.iter().for_each(|key| drop(raw.remove(*key)));
                self.write_raw(&mut event, "message", &Value::Object(raw));
                Ok(event)
            }
        }
    }

    /// Returns the event of `message` in `channel`, without the kept part of the payload.
    fn posted_message(&self, message: &SlackMessage, channel: &str) -> Result<Event, RefusePayloadError> {
        let ts = required("message", "ts", message.ts.as_ref())?;
        let mut event = self.start_event(self.item_id(channel, ts, ""), channel, stamp("message", ts)?)?;
        self.set_sender(&mut event, message)?;
        self.set_thread(&mut event, channel, ts, message);
        event.mention = Some(mention_of(self.bot, message));
        set_content(&mut event, message, &|fields| is_own(self.bot, self.app_id, fields));

        let ids = PlatformIds {
            ids: vec![message_name(channel, ts)],
            part: 0,
        };
        ids.write_to(&mut event);
        Ok(event)
    }

    /// Sets the sender of `event`, which is `message`.
    fn set_sender(&self, event: &mut Event, message: &SlackMessage) -> Result<(), RefusePayloadError> {
        self.refuse_own(message)?;
        let is_bot = message.bot_id.is_some()
            || message.subtype.as_deref() == Some("bot_message")
            || message.user.as_deref() == Some(SLACKBOT);
        if is_bot {
            event.add_tag(FROM_BOT);
        }

        let profile = message.bot_profile.as_ref().and_then(|profile| profile.name.as_ref());
        let sender = message.user.as_ref().or(message.bot_id.as_ref());
        event.from = EventSender {
            id: sender_id("message", sender)?.to_owned(),
            display_name: message
                .username
                .as_ref()
                .or(profile)
                .map(String::as_str)
                .map(shown_name),
            roles: Vec::new(),
        };
        Ok(())
    }

    /// Refuses a message of the account's own app.
    fn refuse_own(&self, message: &SlackMessage) -> Result<(), RefusePayloadError> {
        let is_same = |id: Option<&String>, own: Option<&str>| {
            let own = own.filter(|own| !own.is_empty());
            own.is_some_and(|own| id.map(String::as_str) == Some(own))
        };
        let of_profile = message.bot_profile.as_ref().and_then(|profile| profile.app_id.as_ref());
        let is_own = is_same(message.bot_id.as_ref(), self.bot.bot_id.as_deref())
            || is_same(message.user.as_ref(), Some(&self.bot.user_id))
            || is_same(message.app_id.as_ref().or(of_profile), self.app_id);
        if is_own { Err(RefusePayloadError::Echo) } else { Ok(()) }
    }

    /// Sets the thread of `event`, and the message that it answers: the first one of the thread.
    fn set_thread(&self, event: &mut Event, channel: &str, ts: &str, message: &SlackMessage) {
        let Some(thread) = message
            .thread_ts
            .as_deref()
            .filter(|thread| parse_stamp(thread).is_some())
        else {
            return;
        };
        event.thread_id = Some(thread.to_owned());
        if thread != ts {
            event.reply_to = Some(self.item_id(channel, thread, ""));
        }
    }

    /// Returns the event of an edit. Slack names many other changes so: previews of links, a thread's number of answers.
    fn changed_message(&self) -> Result<Event, RefusePayloadError> {
        const KIND: &str = "message_changed";
        let change: MessageChange = read(KIND, self.payload)?;
        let channel = required(KIND, "channel", change.channel.as_ref())?;
        let message = change
            .message
            .as_ref()
            .ok_or_else(|| RefusePayloadError::Malformed(format!("{KIND}: no message")))?;
        let previous = change.previous_message.as_ref();

        // The placeholder of a thread's first message that was deleted.
        if message.subtype.as_deref() == Some(TOMBSTONE) {
            let ts = required(KIND, "message.ts", message.ts.as_ref())?;
            return self.deletion(&change, channel, ts);
        }

        self.refuse_own(message)?;
        let edited = |message: &SlackMessage| message.edited.as_ref().and_then(|edit| edit.ts.clone());
        let Some(edited_at) = edited(message).filter(|ts| Some(ts) != previous.and_then(edited).as_ref()) else {
            return Err(RefusePayloadError::NoEdit);
        };

        let mut event = self.posted_message(message, channel)?;
        event.direction = EventDirection::Updated;
        event.edited_at = Some(stamp(KIND, &edited_at)?);
        let kept = self.payload.get("message").cloned().unwrap_or_default();
        self.write_raw(&mut event, KIND, &kept);
        Ok(event)
    }

    fn deleted_message(&self) -> Result<Event, RefusePayloadError> {
        const KIND: &str = "message_deleted";
        let change: MessageChange = read(KIND, self.payload)?;
        let channel = required(KIND, "channel", change.channel.as_ref())?;
        let ts = required(KIND, "deleted_ts", change.deleted_ts.as_ref())?;
        self.deletion(&change, channel, ts)
    }

    /// Returns the event of the deletion of the message `ts`. It keeps nothing of the text.
    fn deletion(&self, change: &MessageChange, channel: &str, ts: &str) -> Result<Event, RefusePayloadError> {
        const KIND: &str = "message_deleted";
        let previous = change.previous_message.as_ref();
        previous.map_or(Ok(()), |previous| self.refuse_own(previous))?;

        let at = required(KIND, "ts", change.event_ts.as_ref().or(change.ts.as_ref()))?;
        let mut event = self.start_event(self.item_id(channel, ts, ""), channel, stamp(KIND, ts)?)?;
        event.direction = EventDirection::Deleted;
        event.edited_at = Some(stamp(KIND, at)?);
        if let Some(previous) = previous {
            let sender = previous.user.as_ref().or(previous.bot_id.as_ref());
            event.from.id = sender_id(KIND, sender)?.to_owned();
            self.set_thread(&mut event, channel, ts, previous);
        }

        event.metadata.insert("event_type".to_owned(), json!(KIND));
        Ok(event)
    }

    fn reaction(&self, is_added: bool) -> Result<Event, RefusePayloadError> {
        const KIND: &str = "reaction";
        let change: ReactionChange = read(KIND, self.payload)?;
        if let Some(kind) = change.item.kind.as_deref().filter(|kind| *kind != "message") {
            return Err(RefusePayloadError::NoConversation(format!(
                "reaction to {}",
                shorten(kind)
            )));
        }

        let user = required(KIND, "user", change.user.as_ref())?;
        let channel = required(KIND, "item.channel", change.item.channel.as_ref())?;
        let ts = required(KIND, "item.ts", change.item.ts.as_ref())?;
        let at = required(KIND, "event_ts", change.event_ts.as_ref())?;
        let name = required(KIND, "reaction", change.reaction.as_ref())?;
        stamp(KIND, ts)?;

        let id = self.item_id(channel, ts, &format!("/reaction/{user}/{at}"));
        let mut event = self.start_event(id, channel, stamp(KIND, at)?)?;
        self.set_user(&mut event, user)?;
        event.direction = EventDirection::Observed;
        event.target = Some(self.item_id(channel, ts, ""));
        event.content_types = vec![KIND.to_owned()];
        let (before, now): (Vec<&str>, Vec<&str>) = if is_added {
            (vec![], vec![name])
        } else {
            (vec![name], vec![])
        };
        event.content = now.concat();
        event
            .metadata
            .insert(KIND.to_owned(), json!({"before": before, "now": now}));
        self.write_raw(
            &mut event,
            if is_added { "reaction_added" } else { "reaction_removed" },
            self.payload,
        );
        Ok(event)
    }

    fn member_change(&self, is_coming: bool) -> Result<Event, RefusePayloadError> {
        const KIND: &str = "member";
        let change: MemberChange = read(KIND, self.payload)?;
        let user = required(KIND, "user", change.user.as_ref())?;
        let channel = required(KIND, "channel", change.channel.as_ref())?;
        let at = required(KIND, "event_ts", change.event_ts.as_ref())?;

        let id = format!("{SLACK}:{}/{channel}/member/{user}/{at}", self.bot.name);
        let mut event = self.start_event(id, channel, stamp(KIND, at)?)?;
        event.direction = EventDirection::Observed;
        event.from.id = sender_id(KIND, change.inviter.as_ref().or(change.user.as_ref()))?.to_owned();
        event.content_types = vec![KIND.to_owned()];
        let (before, now) = if is_coming {
            ("left", "member")
        } else {
            ("member", "left")
        };
        event.content = format!("<@{user}>: {before} → {now}");
        let told = json!({"id": user, "before": before, "now": now, "me": user == self.bot.user_id});
        event.metadata.insert(KIND.to_owned(), told);
        let kind = if is_coming {
            "member_joined_channel"
        } else {
            "member_left_channel"
        };
        self.write_raw(&mut event, kind, self.payload);
        Ok(event)
    }
}

/// Sets text, content types and files of `event`, which is `message`. `is_own` tells attachments of the app itself: a person
/// who shares an approval's card must not bring its code into an event.
fn set_content(event: &mut Event, message: &SlackMessage, is_own: &impl Fn(&Map<String, Value>) -> bool) {
    let files: Vec<_> = message.files.iter().flatten().map(attachment_of).collect();
    let mut types: Vec<String> = files.iter().map(|(kind, _)| (*kind).to_owned()).collect();
    event.attachments = files.into_iter().map(|(_, file)| file).collect();

    event.content = readable_text(message.text.as_deref().unwrap_or_default());
    if event.content.is_empty() {
        let attachments = message.attachments.iter().flatten();
        let (own, others): (Vec<_>, Vec<_>) = attachments.partition(|one| is_own(&one.fields));
        let fallbacks = others.iter().filter_map(|one| one.fallback.as_deref());
        event.content = readable_text(&fallbacks.collect::<Vec<_>>().join("\n"));
        if event.content.is_empty() && !own.is_empty() {
            types.push("forward".to_owned());
            OWN_SHARE.clone_into(&mut event.content);
        }
    }
    let is_share = types.iter().any(|kind| kind == "forward");
    if (!is_share && !event.content.is_empty()) || types.is_empty() {
        types.push("text".to_owned());
    }

    match message.subtype.as_deref() {
        None | Some("" | "file_share" | "thread_broadcast" | "me_message" | "bot_message") => {}
        // A note about the conversation, which does not address the app.
        Some(note) => {
            let is_member = matches!(note, "channel_join" | "channel_leave" | "group_join" | "group_leave");
            types = vec![if is_member { "member" } else { "service" }.to_owned()];
            event.direction = EventDirection::Observed;
            event.metadata.insert("service".to_owned(), json!(shorten(note)));
        }
    }
    event.content_types = types;
}

#[cfg(test)]
mod tests;
