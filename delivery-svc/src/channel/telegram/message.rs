//! The body of a `sendMessage`. *Pure.* Source: <https://core.telegram.org/bots/api#sendmessage>.

use serde::Serialize;
use shared::model::reply::Reply;
use shared::platform::telegram::{TELEGRAM, TelegramAccount};

use crate::plan::{MessagePart, TextFormat};
use crate::reply_buttons::read_buttons;

/// Topic that every forum has. It must not be named when a message is sent to it.
const GENERAL_TOPIC: i64 = 1;

/// Maximum length of a button's data, in bytes.
const MAX_DATA_BYTES: usize = 64;

/// The reply cannot be addressed on Telegram.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AddressError {
    #[error("peer `{0}` is not a chat id of Telegram")]
    Peer(String),
    #[error("thread `{0}` is not a topic id of Telegram")]
    Thread(String),
}

/// The body of a call.
#[derive(Debug, Serialize)]
pub(super) struct SendMessage<'a> {
    chat_id: i64,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parse_mode: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message_thread_id: Option<i64>,
    link_preview_options: LinkPreview,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply_parameters: Option<QuotedMessage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply_markup: Option<InlineKeyboard>,
}

#[derive(Debug, Serialize)]
struct LinkPreview {
    is_disabled: bool,
}

#[derive(Debug, Serialize)]
struct QuotedMessage {
    message_id: i64,
    allow_sending_without_reply: bool,
}

#[derive(Debug, Serialize)]
struct InlineKeyboard {
    inline_keyboard: [Vec<InlineButton>; 1],
}

#[derive(Debug, Serialize)]
struct InlineButton {
    text: String,
    callback_data: String,
}

impl<'a> SendMessage<'a> {
    /// Returns the message with `part`, of `parts` of `reply`, which `account` sends.
    pub(super) fn from_part(
        account: &TelegramAccount,
        reply: &Reply,
        part: &'a MessagePart,
        parts: u32,
    ) -> Result<Self, AddressError> {
        let peer = reply.delivery_context.peer_id.as_deref().unwrap_or_default();
        let chat_id = peer.parse().map_err(|_| AddressError::Peer(peer.to_owned()))?;

        // The first part quotes what is answered, and the last one has the buttons.
        let is_first = part.index == 0;
        let is_last = part.index + 1 >= parts;
        let quoted = quoted_message(account, reply, chat_id).filter(|_| is_first);

        Ok(Self {
            chat_id,
            text: &part.content,
            parse_mode: (part.format == TextFormat::TelegramHtml).then_some("HTML"),
            message_thread_id: topic(reply)?,
            // Telegram's servers would fetch every link of the text, which may have been written to be fetched.
            link_preview_options: LinkPreview { is_disabled: true },
            reply_parameters: quoted.map(|message_id| QuotedMessage {
                message_id,
                allow_sending_without_reply: true,
            }),
            // A press counts for the person who presses: in a group too it decides only if that person may decide.
            reply_markup: keyboard(reply).filter(|_| is_last),
        })
    }

    /// Returns the fields of a form that say where it goes.
    pub(super) fn place_fields(&self) -> Vec<(&'static str, String)> {
        let thread = self
            .message_thread_id
            .map(|thread| ("message_thread_id", thread.to_string()));
        let quoted = self.reply_parameters.as_ref().and_then(|quoted| {
            let text = serde_json::to_string(quoted).ok()?;
            Some(("reply_parameters", text))
        });
        let chat = std::iter::once(("chat_id", self.chat_id.to_string()));
        chat.chain(thread).chain(quoted).collect()
    }

    /// Returns the chat to which it is sent.
    pub(super) const fn chat(&self) -> i64 {
        self.chat_id
    }

    /// Sends it to `chat`, which the group has become. Messages of the group have other numbers there.
    pub(super) fn move_to(&mut self, chat: i64) {
        self.chat_id = chat;
        self.reply_parameters = None;
    }
}

/// Returns the topic of `reply`; `None` = none, or the general one.
fn topic(reply: &Reply) -> Result<Option<i64>, AddressError> {
    let Some(thread) = reply.delivery_context.thread_id.as_deref() else {
        return Ok(None);
    };
    let topic = thread
        .parse::<i64>()
        .map_err(|_| AddressError::Thread(thread.to_owned()))?;
    Ok(Some(topic).filter(|topic| *topic != GENERAL_TOPIC))
}

/// Returns the number of the message that `reply` answers, if it is in `chat` and answers quote there. Direct chats
/// need no quotes: only one person writes there.
fn quoted_message(account: &TelegramAccount, reply: &Reply, chat: i64) -> Option<i64> {
    let is_group = chat < 0;
    let topic = reply.delivery_context.thread_id.as_deref();
    let place = account.place_policy(chat, topic);
    let quotes = is_group && place.is_none_or(|place| place.reply_in_thread);
    if !quotes {
        return None;
    }

    // The id of a received message: `telegram:{account}/{chat}/{message}`.
    let target = &reply.delivery_context;
    let (event, name) = (target.reply_to_id.as_deref()?, target.account_id.as_deref()?);
    let place = event.strip_prefix(TELEGRAM)?.strip_prefix(':')?;
    let place = place.strip_prefix(name)?.strip_prefix('/')?;
    let (of_chat, message) = place.split_once('/')?;
    let is_here = of_chat.parse() == Ok(chat);
    message.parse().ok().filter(|_| is_here)
}

/// Returns the buttons of `reply`; `None` if it has none, or one whose words are too long for a button: the text says
/// them too.
fn keyboard(reply: &Reply) -> Option<InlineKeyboard> {
    let buttons = read_buttons(reply);
    let fits = buttons
        .iter()
        .all(|button| !button.label.is_empty() && (1..=MAX_DATA_BYTES).contains(&button.say.len()));
    if buttons.is_empty() || !fits {
        return None;
    }

    let row = buttons.into_iter().map(|button| InlineButton {
        text: button.label,
        callback_data: button.say,
    });
    Some(InlineKeyboard {
        inline_keyboard: [row.collect()],
    })
}

#[cfg(test)]
mod tests;
