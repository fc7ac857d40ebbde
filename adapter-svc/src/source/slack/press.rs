//! Pressed buttons, choices in menus and commands → events. *Pure.*
//!
//! Source: <https://docs.slack.dev/reference/interaction-payloads/block_actions-payload>,
//! <https://docs.slack.dev/interactivity/implementing-slash-commands>.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use shared::model::event::{Event, EventMention, MentionForm};
use shared::model::time::UnixMillis;
use shared::platform::slack::SLACK;
use shared::platform::slack_api::parse_stamp;

use super::payload::{BlockActions, SlashCommand, read, required};
use super::reader::{PayloadReader, check_team, object, shorten, shown_name, stamp};
use super::{RefusePayloadError, SlackBot};

/// Maximum number of actions of one payload; Slack sends one.
const MAX_ACTIONS: usize = 25;

/// Number of hexadecimal digits of the hash that names an invocation of a command.
const HASH_DIGITS: usize = 16;

/// Returns an event for each block that was used.
///
/// # Errors
/// Returns [`RefusePayloadError`] if the payload is malformed, or if the blocks are not in a conversation.
pub fn press_events(bot: &SlackBot, raw: &Value, now: UnixMillis) -> Result<Vec<Event>, RefusePayloadError> {
    const KIND: &str = "block_actions";
    let payload: BlockActions = read(KIND, raw)?;
    let team = payload.team.as_ref().and_then(|team| team.id.as_deref());
    check_team(bot, &[team.unwrap_or_default()])?;

    let of_channel = payload.channel.as_ref().and_then(|channel| channel.id.as_ref());
    let Some(channel) = payload.container.channel_id.as_ref().or(of_channel) else {
        return Err(RefusePayloadError::NoConversation(
            "block_actions of a window".to_owned(),
        ));
    };
    let Some(message_ts) = payload.container.message_ts.as_deref() else {
        return Err(RefusePayloadError::NoConversation(
            "block_actions without a message".to_owned(),
        ));
    };
    stamp(KIND, message_ts)?;
    if payload.actions.is_empty() || payload.actions.len() > MAX_ACTIONS {
        return Err(RefusePayloadError::Malformed(format!(
            "{KIND}: {} actions",
            payload.actions.len()
        )));
    }

    let reader = PayloadReader {
        bot,
        app_id: raw.get("api_app_id").and_then(Value::as_str),
        payload: raw,
        now,
    };
    let user = required(KIND, "user.id", payload.user.id.as_ref())?;
    let press = |(index, action): (usize, &Value)| {
        let at = required(KIND, "action_ts", text_of(action, "action_ts").as_ref())?.to_owned();
        // The first one's id is the same for payloads with one action and with several.
        let more = if index == 0 { String::new() } else { format!("/{index}") };
        let id = reader.item_id(channel, message_ts, &format!("/press/{user}/{at}{more}"));
        let mut event = reader.start_event(id, channel, stamp(KIND, &at)?)?;
        reader.set_user(&mut event, user)?;
        event.from.display_name = payload.user.name.as_deref().map(shown_name);
        event.target = Some(reader.item_id(channel, message_ts, ""));
        event.thread_id = payload
            .container
            .thread_ts
            .clone()
            .filter(|ts| parse_stamp(ts).is_some());
        event.content_types = vec!["press".to_owned()];
        event.content = chosen_value(action);
        let told = json!({"id": at, "data": event.content, "action": text_of(action, "action_id")});
        event.metadata.insert("press".to_owned(), told);

        let mut kept = object(raw);
        // Our own message has codes and links; the app's state is that of other fields.
        ["message", "state", "view"]
            .iter()
            .for_each(|key| drop(kept.remove(*key)));
        reader.write_raw(&mut event, KIND, &Value::Object(kept));
        Ok(event)
    };
    payload.actions.iter().enumerate().map(press).collect()
}

fn text_of(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(str::to_owned)
}

/// Returns the value of a button, or the chosen or written values; several have a line each.
fn chosen_value(action: &Value) -> String {
    const TEXTS: [&str; 8] = [
        "value",
        "selected_user",
        "selected_channel",
        "selected_conversation",
        "selected_date",
        "selected_time",
        "selected_date_time",
        "rich_text_value",
    ];
    const LISTS: [&str; 4] = [
        "selected_options",
        "selected_users",
        "selected_channels",
        "selected_conversations",
    ];

    let written = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Object(option) => option.get("value").and_then(Value::as_str).map(str::to_owned),
        Value::Null | Value::Bool(_) | Value::Array(_) => None,
    };
    let one = action.get("selected_option").and_then(written);
    let text = TEXTS.iter().find_map(|key| action.get(key).and_then(written));
    let list = || {
        let items = LISTS.iter().find_map(|key| action.get(key).and_then(Value::as_array))?;
        Some(items.iter().filter_map(written).collect::<Vec<_>>().join("\n"))
    };
    one.or(text).or_else(list).unwrap_or_default()
}

/// Returns the event of a command.
///
/// # Errors
/// Returns [`RefusePayloadError`] if the form lacks a field.
pub fn command_event(bot: &SlackBot, raw: &Value, now: UnixMillis) -> Result<Event, RefusePayloadError> {
    const KIND: &str = "command";
    let command: SlashCommand = read(KIND, raw)?;
    check_team(bot, &[command.team_id.as_deref().unwrap_or_default()])?;
    let channel = required(KIND, "channel_id", command.channel_id.as_ref())?;
    let user = required(KIND, "user_id", command.user_id.as_ref())?;
    let trigger = required(KIND, "trigger_id", command.trigger_id.as_ref())?;

    let reader = PayloadReader {
        bot,
        app_id: raw.get("api_app_id").and_then(Value::as_str),
        payload: raw,
        now,
    };
    // The invocation's id is a right for three seconds, so that only its hash is kept.
    let mut digits = hex::encode(Sha256::digest(trigger.as_bytes()));
    digits.truncate(HASH_DIGITS);
    let id = format!("{SLACK}:{}/{channel}/command/{digits}", bot.name);

    // Slack does not say when it was written.
    let mut event = reader.start_event(id, channel, now)?;
    reader.set_user(&mut event, user)?;
    event.from.display_name = command.user_name.as_deref().map(shown_name);
    let text = command.text.as_deref().unwrap_or_default();
    event.content = format!("{} {text}", command.command).trim_end().to_owned();
    event.mention = Some(EventMention {
        me: true,
        how: MentionForm::Command,
    });
    event.metadata.insert(KIND.to_owned(), json!(shorten(&command.command)));
    reader.write_raw(&mut event, KIND, raw);
    Ok(event)
}
