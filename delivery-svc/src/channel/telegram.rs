//! Channel `telegram`: each part is a `sendMessage` of an account's bot.
//!
//! The text is Telegram's HTML. A platform's id of a part is `{chat}/{message}`, as in the event of a received message.
//! Telegram recognises no repetition of a call: `on_doubt` of the account decides about one without an answer.
//! Each URL contains the account's token, so that none is in an outcome, a log line or a receipt; redirects are not
//! followed. Source: <https://core.telegram.org/bots/api#sendmessage>, <https://core.telegram.org/bots/faq#my-bot-is-hitting-limits-how-do-i-avoid-this>.

mod answer;
mod change;
mod file;
mod message;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use shared::model::dispatch::DeliveryContext;
use shared::platform::telegram::TelegramAccount;

use super::http::CallTimeouts;
use super::raw_answer::{ANSWER_BYTES, USER_AGENT, call_for_answer, open_client, upload_time};
use super::{Acknowledgement, Channel, ChannelTraits, MessageReaction, SendRequest, TypingPlace};
use crate::account_gate::{CallRate, ChatPace, SendPace};
use crate::attempt::{CallOutcome, Refusal};
use crate::chunk::{ChunkLimit, LengthUnit};
use crate::markdown::telegram::MESSAGE;
use crate::outgoing_files::MAX_FILE_BYTES;
use crate::plan::{PartLayout, TextFormat};
use answer::{AnswerMeaning, read_answer, read_change, read_typing};
use change::{MessageNumber, typing_body};
use file::{FileKind, file_form};
use message::SendMessage;

/// Time for which Telegram shows that a bot writes.
const TYPING_LASTS: Duration = Duration::from_secs(5);

/// Returns whether Telegram takes `emoji` as a reaction.
pub(crate) fn is_reaction(emoji: &str) -> bool {
    change::is_reaction(emoji)
}

/// The rates at which a bot may send.
#[derive(Debug, Clone, Copy)]
pub struct TelegramPaces {
    /// Rate of all messages of an account.
    pub account: CallRate,
    /// Rate of the messages to a person.
    pub direct: CallRate,
    /// Rate of the messages to a group.
    pub group: CallRate,
}

impl TelegramPaces {
    /// Telegram's own figures: 30 a second in all, one a second to a chat, 20 a minute to a group. A group's burst and
    /// rate together stay within 20 of any minute.
    pub const OFFICIAL: Self = Self {
        account: CallRate {
            burst: 1,
            interval: Duration::from_millis(34),
        },
        direct: CallRate {
            burst: 3,
            interval: Duration::from_secs(1),
        },
        group: CallRate {
            burst: 5,
            interval: Duration::from_secs(4),
        },
    };
}

/// Channel `telegram`; see the module.
#[derive(Debug)]
pub struct TelegramChannel {
    client: reqwest::Client,
    accounts: BTreeMap<String, TelegramAccount>,
    paces: TelegramPaces,
    /// Maximum time until the whole answer has arrived.
    whole: Duration,
}

impl TelegramChannel {
    /// Creates the channel with `accounts` by name, which call at `paces`.
    ///
    /// # Errors
    /// Returns the HTTP client's error if it cannot be set up, for example without TLS.
    pub fn new(
        accounts: BTreeMap<String, TelegramAccount>,
        timeouts: CallTimeouts,
        paces: TelegramPaces,
    ) -> Result<Self, reqwest::Error> {
        Ok(Self {
            client: open_client(timeouts.connect, USER_AGENT)?,
            accounts,
            paces,
            whole: timeouts.whole,
        })
    }

    /// Makes a change of the message `id` by `method`, with the body that `body` makes of its number.
    async fn change(
        &self,
        shipment: &SendRequest<'_>,
        id: &str,
        method: &str,
        body: impl Fn(MessageNumber) -> serde_json::Value + Send,
    ) -> CallOutcome {
        let Some(account) = self.accounts.get(shipment.account()) else {
            return shipment.unknown_account();
        };
        let Some(message) = MessageNumber::parse(id) else {
            return shipment.unknown_message(id);
        };
        let request = self.client.post(account.method_url(method)).json(&body(message));
        match call_for_answer(request, self.whole, ANSWER_BYTES).await {
            Ok(answer) => read_change(&answer, message, shipment.now),
            Err(outcome) => outcome,
        }
    }

    /// Sends `message`, or the file of `shipment` where it goes; returns the meaning of the answer, or the outcome of a call
    /// without one.
    async fn call(
        &self,
        account: &TelegramAccount,
        message: &SendMessage<'_>,
        shipment: &SendRequest<'_>,
    ) -> AnswerMeaning {
        let Some((file, bytes)) = shipment.part.file.as_ref().zip(shipment.file) else {
            let request = self.client.post(account.method_url("sendMessage")).json(message);
            return self.ask(request, self.whole, message.chat(), shipment).await;
        };

        let whole = upload_time(self.whole, file.size);
        let send = async |kind: FileKind| {
            let (method, _) = kind.method();
            let form = file_form(message, kind, file, bytes);
            let request = self.client.post(account.method_url(method)).multipart(form);
            self.ask(request, whole, message.chat(), shipment).await
        };
        let kind = FileKind::of_file(file);
        let meaning = send(kind).await;
        // A picture or a sound of a form that Telegram does not show is a document: nothing was shown.
        let is_refused = matches!(
            &meaning,
            AnswerMeaning::Outcome(CallOutcome::Refused { refusal: Refusal::Permanent, reason }) if reason.starts_with("400")
        );
        if is_refused && kind != FileKind::Document && shipment.lease.is_live() {
            return send(FileKind::Document).await;
        }
        meaning
    }

    /// Makes the call `request` for `chat`, within `whole`.
    async fn ask(
        &self,
        request: reqwest::RequestBuilder,
        whole: Duration,
        chat: i64,
        shipment: &SendRequest<'_>,
    ) -> AnswerMeaning {
        match call_for_answer(request, whole, ANSWER_BYTES).await {
            Ok(answer) => read_answer(&answer, chat, shipment.now),
            Err(outcome) => AnswerMeaning::Outcome(outcome),
        }
    }
}

#[async_trait]
impl Channel for TelegramChannel {
    fn traits(&self, account: &str) -> ChannelTraits {
        let account = self.accounts.get(account);
        let limit = account.and_then(|account| account.text_limit).map(|max| ChunkLimit {
            max,
            unit: LengthUnit::Utf16,
        });
        let on_doubt = account.map(|account| account.on_doubt).unwrap_or_default();

        ChannelTraits {
            layout: PartLayout {
                format: TextFormat::TelegramHtml,
                limit: Some(limit.unwrap_or(MESSAGE)),
                max_lines: None,
            },
            waits_for_remote: true,
            repetition: on_doubt.into(),
            finds_parts: false,
            typing_lasts: Some(TYPING_LASTS),
            previews: account.is_some_and(|account| account.previews),
            max_file_bytes: Some(MAX_FILE_BYTES),
        }
    }

    fn pace<'a>(&self, target: &'a DeliveryContext) -> Option<ChatPace<'a>> {
        // The topics of a group are one chat.
        let chat = target.peer_id.as_deref().unwrap_or_default();
        let is_group = chat.starts_with('-');
        Some(ChatPace {
            chat,
            pace: SendPace {
                account: self.paces.account,
                chat: if is_group { self.paces.group } else { self.paces.direct },
            },
        })
    }

    async fn send(&self, shipment: &SendRequest<'_>) -> CallOutcome {
        let Some(account) = self.accounts.get(shipment.account()) else {
            return shipment.unknown_account();
        };
        let mut message = match SendMessage::from_part(account, shipment.reply, shipment.part, shipment.parts) {
            Ok(message) => message,
            Err(error) => {
                return CallOutcome::Refused {
                    refusal: Refusal::Permanent,
                    reason: error.to_string(),
                };
            }
        };

        let first = self.call(account, &message, shipment).await;
        let chat = match first {
            AnswerMeaning::Outcome(outcome) => return outcome,
            AnswerMeaning::Moved { chat } => chat,
        };
        // The group has become a supergroup: the message goes there, once, if the partition is still ours.
        if !shipment.lease.is_live() {
            return CallOutcome::Withheld;
        }

        message.move_to(chat);
        match self.call(account, &message, shipment).await {
            AnswerMeaning::Outcome(outcome) => outcome,
            AnswerMeaning::Moved { chat } => CallOutcome::Refused {
                refusal: Refusal::Permanent,
                reason: format!("the group has moved twice, last to {chat}"),
            },
        }
    }

    async fn edit(&self, shipment: &SendRequest<'_>, message: &str) -> CallOutcome {
        let body = |number: MessageNumber| number.edit_body(shipment.part);
        self.change(shipment, message, "editMessageText", body).await
    }

    async fn delete(&self, shipment: &SendRequest<'_>, message: &str) -> CallOutcome {
        self.change(shipment, message, "deleteMessage", MessageNumber::delete_body)
            .await
    }

    fn acknowledgement(&self, account: &str) -> Option<Acknowledgement<'_>> {
        let account = self.accounts.get(account)?;
        // A bot has one reaction to a message.
        Some(Acknowledgement {
            policy: &account.acknowledge,
            is_replaced: true,
        })
    }

    async fn react(&self, shipment: &SendRequest<'_>, message: &str, reaction: MessageReaction<'_>) -> CallOutcome {
        let body = |number: MessageNumber| number.reaction_body(reaction);
        self.change(shipment, message, "setMessageReaction", body).await
    }

    async fn typing(&self, place: &TypingPlace<'_>) -> CallOutcome {
        let refused = |reason| CallOutcome::Refused {
            refusal: Refusal::Permanent,
            reason,
        };
        let Some(account) = self.accounts.get(place.account) else {
            return refused(format!("no account `{}`", place.account));
        };
        let (chat, body) = match typing_body(place) {
            Ok(called) => called,
            Err(error) => return refused(error.to_string()),
        };
        let request = self.client.post(account.method_url("sendChatAction")).json(&body);
        match call_for_answer(request, self.whole, ANSWER_BYTES).await {
            Ok(answer) => read_typing(&answer, chat, place.now),
            Err(outcome) => outcome,
        }
    }
}
