//! The body of a message to create. *Pure.* Source:
//! <https://discord.com/developers/docs/resources/message#create-message>.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use shared::model::reply::Reply;
use shared::platform::discord::{ChannelPlace, DISCORD, DiscordAccount, is_snowflake};
use ulid::Ulid;

use crate::plan::MessagePart;
use crate::reply_buttons::read_buttons;

/// Number of characters of a nonce: the vendor takes 25, and 22 have 132 bits of the hash.
const NONCE_CHARACTERS: usize = 22;

/// Flag of a message whose links show no previews.
pub(super) const SUPPRESS_EMBEDS: u32 = 1 << 2;

/// Maximum number of buttons in a row.
const MAX_BUTTONS: usize = 5;

/// Maximum length of a button's label, in characters.
const MAX_LABEL: usize = 80;

/// Maximum length of a button's id, in characters.
const MAX_CUSTOM_ID: usize = 100;

/// Component that holds buttons.
const ACTION_ROW: u32 = 1;

/// Component that is a button.
const BUTTON: u32 = 2;

/// Style of a button that stands back.
const SECONDARY: u32 = 2;

/// The reply cannot be addressed on Discord.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AddressError {
    #[error("peer `{0}` is not a channel id of Discord")]
    Peer(String),
    #[error("thread `{0}` is not a channel id of Discord")]
    Thread(String),
}

/// The body of a call.
#[derive(Debug, Serialize)]
pub(super) struct CreateMessage<'a> {
    content: &'a str,
    nonce: String,
    enforce_nonce: bool,
    flags: u32,
    allowed_mentions: AllowedMentions,
    #[serde(skip_serializing_if = "Option::is_none")]
    message_reference: Option<MessageReference>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    components: Vec<ButtonRow>,
}

/// None: a text that a model wrote notifies no user.
#[derive(Debug, Serialize)]
struct AllowedMentions {
    parse: [&'static str; 0],
    replied_user: bool,
}

#[derive(Debug, Serialize)]
struct MessageReference {
    message_id: String,
    fail_if_not_exists: bool,
}

#[derive(Debug, Serialize)]
struct ButtonRow {
    #[serde(rename = "type")]
    kind: u32,
    components: Vec<Button>,
}

#[derive(Debug, Serialize)]
struct Button {
    #[serde(rename = "type")]
    kind: u32,
    style: u32,
    label: String,
    custom_id: String,
}

/// Returns the channel to which `reply` is sent: its thread, which is a channel of its own, or its peer.
pub(super) fn target_channel(reply: &Reply) -> Result<&str, AddressError> {
    let target = &reply.delivery_context;
    let peer = target.peer_id.as_deref().unwrap_or_default();
    match target.thread_id.as_deref() {
        Some(thread) if is_snowflake(thread) => Ok(thread),
        Some(thread) => Err(AddressError::Thread(thread.to_owned())),
        None if is_snowflake(peer) => Ok(peer),
        None => Err(AddressError::Peer(peer.to_owned())),
    }
}

/// Returns the nonce of a part, the same for each call that sends it.
pub(super) fn part_nonce(delivery: Ulid, part: u32) -> String {
    let digest = Sha256::digest(format!("{delivery}/{part}").as_bytes());
    let mut nonce = URL_SAFE_NO_PAD.encode(digest);
    nonce.truncate(NONCE_CHARACTERS);
    nonce
}

/// Fields that only the first part of a reply has (the message that it answers, if that is in the same channel), or only the last
/// one (buttons).
#[derive(Debug, Default)]
pub(super) struct PlaceNeeds {
    /// Message of the channel that the part answers.
    answered: Option<String>,
    buttons: Vec<Button>,
}

impl PlaceNeeds {
    /// Returns those of `part`, of `parts` of `reply` to `channel`.
    pub(super) fn of_part(reply: &Reply, part: &MessagePart, parts: u32, channel: &str) -> Self {
        // The first part refers to what is answered, and the last one has the buttons.
        let is_first = part.index == 0;
        let is_last = part.index + 1 >= parts;
        Self {
            answered: is_first.then(|| answered_message(reply, channel)).flatten(),
            buttons: if is_last { buttons(reply) } else { Vec::new() },
        }
    }

    /// Returns whether the channel must be known.
    pub(super) const fn place_matters(&self) -> bool {
        self.answered.is_some()
    }
}

impl<'a> CreateMessage<'a> {
    /// Returns the message with `part` of `reply`, which has `needs` in `place`; `None` = unknown place, where it refers to no
    /// other message.
    pub(super) fn from_part(
        account: &DiscordAccount,
        reply: &Reply,
        part: &'a MessagePart,
        needs: PlaceNeeds,
        place: Option<&ChannelPlace>,
    ) -> Self {
        let refers = place.is_some_and(|place| refers_to_answered(account, reply, place));
        // A press counts for the person who presses: in a server too it decides only if that person may decide.
        let components = if needs.buttons.is_empty() {
            Vec::new()
        } else {
            vec![ButtonRow {
                kind: ACTION_ROW,
                components: needs.buttons,
            }]
        };

        Self {
            content: &part.content,
            nonce: part_nonce(reply.id, part.index),
            enforce_nonce: true,
            // Discord's servers would fetch every link of the text, which may have been written to be fetched.
            flags: SUPPRESS_EMBEDS,
            allowed_mentions: AllowedMentions {
                parse: [],
                replied_user: false,
            },
            message_reference: needs.answered.filter(|_| refers).map(|message_id| MessageReference {
                message_id,
                fail_if_not_exists: false,
            }),
            components,
        }
    }
}

/// Returns whether answers in `place` refer to the message that they answer. In a direct channel only one person writes.
fn refers_to_answered(account: &DiscordAccount, reply: &Reply, place: &ChannelPlace) -> bool {
    let target = &reply.delivery_context;
    let peer = target.peer_id.as_deref().unwrap_or_default();
    let policy = account.channel_policy(peer, place.guild_id.as_deref());
    let policy = policy.map(|policy| policy.in_topic(target.thread_id.as_deref()));
    !place.is_direct() && policy.is_none_or(|policy| policy.reply_in_thread)
}

/// Returns the id of the message that `reply` answers, if it is in `channel`.
fn answered_message(reply: &Reply, channel: &str) -> Option<String> {
    // The id of a received message: `discord:{account}/{channel}/{message}`.
    let target = &reply.delivery_context;
    let (event, name) = (target.reply_to_id.as_deref()?, target.account_id.as_deref()?);
    let place = event.strip_prefix(DISCORD)?.strip_prefix(':')?;
    let place = place.strip_prefix(name)?.strip_prefix('/')?;
    let (of_channel, message) = place.split_once('/')?;
    (of_channel == channel && is_snowflake(message)).then(|| message.to_owned())
}

/// Returns the buttons of `reply`; none if it has one that Discord does not take: the text says the words too.
fn buttons(reply: &Reply) -> Vec<Button> {
    let buttons = read_buttons(reply);

    let is_within = |text: &str, max: usize| (1..=max).contains(&text.chars().count());
    let fits = buttons
        .iter()
        .all(|button| is_within(&button.label, MAX_LABEL) && is_within(&button.say, MAX_CUSTOM_ID));
    if !fits || buttons.len() > MAX_BUTTONS {
        return Vec::new();
    }

    let row = buttons.into_iter().map(|button| Button {
        kind: BUTTON,
        style: SECONDARY,
        label: button.label,
        custom_id: button.say,
    });
    row.collect()
}

#[cfg(test)]
mod tests;
