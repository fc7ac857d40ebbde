//! The body of a `chat.postMessage`. *Pure.* Source: <https://docs.slack.dev/reference/methods/chat.postMessage>,
//! <https://docs.slack.dev/reference/block-kit/blocks/actions-block>.

use std::borrow::Cow;

use serde::Serialize;
use shared::model::reply::Reply;
use shared::platform::slack::{SLACK, SlackAccount};
use shared::platform::slack_api::{is_conversation_id, is_user_id, parse_stamp};

use crate::markdown::slack::escape_text;
use crate::plan::{MessagePart, TextFormat};
use crate::reply_buttons::{ReplyButton, read_buttons};

/// Maximum length of a section's text, in characters. A longer message has no buttons.
const MAX_SECTION_CHARACTERS: usize = 3_000;
/// Maximum length of a button's label, in characters.
const MAX_LABEL_CHARACTERS: usize = 75;
/// Maximum length of a button's value, in characters.
const MAX_VALUE_CHARACTERS: usize = 2_000;
/// Maximum number of buttons of a message.
const MAX_BUTTONS: usize = 25;

/// Kind of the metadata of our messages.
pub(super) const METADATA_TYPE: &str = "nexus_part";

/// The reply cannot be addressed on Slack.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AddressError {
    #[error("peer `{0}` is not a channel's or user's id of Slack")]
    Peer(String),
    #[error("thread `{0}` is not a time stamp of Slack")]
    Thread(String),
}

/// The body of a call.
#[derive(Debug, Serialize)]
pub(super) struct PostMessage<'a> {
    channel: &'a str,
    text: Cow<'a, str>,
    mrkdwn: bool,
    link_names: bool,
    unfurl_links: bool,
    unfurl_media: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread_ts: Option<&'a str>,
    metadata: MessageMetadata<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<[MessageBlock<'a>; 2]>,
}

#[derive(Debug, Serialize)]
struct MessageMetadata<'a> {
    event_type: &'static str,
    event_payload: MetadataPayload<'a>,
}

#[derive(Debug, Serialize)]
struct MetadataPayload<'a> {
    /// Id of the event of the sent part.
    event: &'a str,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum MessageBlock<'a> {
    Section { text: SectionText<'a> },
    Actions { elements: Vec<BlockButton> },
}

#[derive(Debug, Serialize)]
struct SectionText<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
    /// Names that a model wrote stay text.
    verbatim: bool,
}

#[derive(Debug, Serialize)]
struct BlockButton {
    #[serde(rename = "type")]
    kind: &'static str,
    text: ButtonLabel,
    value: String,
    action_id: String,
}

#[derive(Debug, Serialize)]
struct ButtonLabel {
    #[serde(rename = "type")]
    kind: &'static str,
    text: String,
}

impl<'a> PostMessage<'a> {
    /// Returns the message with `part`, of `parts` of `reply`, which `account` sends. `event` is the id of the part's
    /// event.
    pub(super) fn from_part(
        account: &SlackAccount,
        reply: &'a Reply,
        part: &'a MessagePart,
        parts: u32,
        event: &'a str,
    ) -> Result<Self, AddressError> {
        let channel = reply.delivery_context.peer_id.as_deref().unwrap_or_default();
        if !is_conversation_id(channel) && !is_user_id(channel) {
            return Err(AddressError::Peer(channel.to_owned()));
        }

        let (text, is_markup) = part_text(part);

        // A press counts for the person who presses: in a channel too it decides only if that person may decide.
        let is_last = part.index + 1 >= parts;
        let is_short = part.content.chars().count() <= MAX_SECTION_CHARACTERS;
        let buttons = reply_buttons(reply).filter(|_| is_markup && is_last && is_short);
        let blocks = buttons.map(|elements| {
            let text = SectionText {
                kind: "mrkdwn",
                text: &part.content,
                verbatim: true,
            };
            [MessageBlock::Section { text }, MessageBlock::Actions { elements }]
        });

        Ok(Self {
            channel,
            text,
            mrkdwn: is_markup,
            link_names: false,
            // Slack's servers would fetch every link of the text, which may have been written to be fetched.
            unfurl_links: false,
            unfurl_media: false,
            thread_ts: thread_of(account, reply, channel)?,
            metadata: MessageMetadata {
                event_type: METADATA_TYPE,
                event_payload: MetadataPayload { event },
            },
            blocks,
        })
    }
}

/// Returns the text of `part` as Slack reads it, and whether it has markup.
pub(super) fn part_text(part: &MessagePart) -> (Cow<'_, str>, bool) {
    match part.format {
        TextFormat::Slack => (Cow::Borrowed(part.content.as_str()), true),
        // References such as `<!channel>` are read in plain text too.
        TextFormat::Markdown
        | TextFormat::Plain
        | TextFormat::Discord
        | TextFormat::TelegramHtml
        | TextFormat::Whatsapp
        | TextFormat::Signal
        | TextFormat::EmailHtml => (escape_text(&part.content), false),
    }
}

/// Returns the thread of `reply` in `channel`: its own, or in a channel that of the message that it answers.
pub(super) fn thread_of<'a>(
    account: &SlackAccount,
    reply: &'a Reply,
    channel: &str,
) -> Result<Option<&'a str>, AddressError> {
    let target = &reply.delivery_context;
    if let Some(thread) = target.thread_id.as_deref() {
        return match parse_stamp(thread) {
            Some(_) => Ok(Some(thread)),
            None => Err(AddressError::Thread(thread.to_owned())),
        };
    }

    let is_group = channel.starts_with(['C', 'G']);
    let place = account.access().place_policy(channel, None, None);
    if !is_group || place.is_some_and(|place| !place.reply_in_thread) {
        return Ok(None);
    }

    // The id of a received message: `slack:{account}/{channel}/{ts}`.
    let answered = || {
        let (event, name) = (target.reply_to_id.as_deref()?, target.account_id.as_deref()?);
        let place = event.strip_prefix(SLACK)?.strip_prefix(':')?;
        let place = place.strip_prefix(name)?.strip_prefix('/')?;
        let (of_channel, ts) = place.split_once('/')?;
        (of_channel == channel && parse_stamp(ts).is_some()).then_some(ts)
    };
    Ok(answered())
}

/// Returns the buttons of `reply`; `None` if it has none, or one whose words are too long for a button: the text says
/// them too.
fn reply_buttons(reply: &Reply) -> Option<Vec<BlockButton>> {
    let buttons = read_buttons(reply);
    let fits = |button: &ReplyButton| {
        (1..=MAX_LABEL_CHARACTERS).contains(&button.label.chars().count())
            && (1..=MAX_VALUE_CHARACTERS).contains(&button.say.chars().count())
    };
    if buttons.is_empty() || buttons.len() > MAX_BUTTONS || !buttons.iter().all(fits) {
        return None;
    }

    let elements = (0..).zip(buttons).map(|(number, button): (u32, _)| BlockButton {
        kind: "button",
        text: ButtonLabel {
            kind: "plain_text",
            text: button.label,
        },
        value: button.say,
        action_id: format!("say_{number}"),
    });
    Some(elements.collect())
}

#[cfg(test)]
mod tests;
