//! Paths and bodies of calls that change a message, or show that the bot writes. *Pure.* Source:
//! <https://discord.com/developers/docs/resources/message#edit-message>,
//! <https://discord.com/developers/docs/resources/message#create-reaction>.

use std::fmt::Write as _;

use serde_json::{Value, json};
use shared::platform::discord::is_snowflake;

use super::message::SUPPRESS_EMBEDS;
use crate::channel::MessageReaction;
use crate::plan::MessagePart;

/// Maximum length of an emoji, in bytes: the longest joins some ten code points.
const MAX_EMOJI_BYTES: usize = 64;

/// A message by its channel and id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessageId<'a> {
    pub(super) channel: &'a str,
    message: &'a str,
}

impl<'a> MessageId<'a> {
    /// Parses a platform's id, `{channel}/{message}`.
    pub(super) fn parse(id: &'a str) -> Option<Self> {
        let (channel, message) = id.split_once('/')?;
        let is_valid = is_snowflake(channel) && is_snowflake(message);
        is_valid.then_some(Self { channel, message })
    }

    /// Returns the path of the message.
    pub(super) fn path(self) -> String {
        format!("channels/{}/messages/{}", self.channel, self.message)
    }

    /// Returns the path of the bot's own reaction.
    pub(super) fn reaction_path(self, reaction: MessageReaction<'_>) -> String {
        format!("{}/reactions/{}/@me", self.path(), escape_path(reaction.emoji))
    }
}

/// Returns whether `emoji` may be a reaction on Discord: an emoji, or `name:id` of a server's own.
pub(super) fn is_reaction(emoji: &str) -> bool {
    if let Some((name, id)) = emoji.split_once(':') {
        let is_name =
            (2..=32).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        return is_name && is_snowflake(id);
    }
    let is_emoji = |c: char| !c.is_control() && !c.is_whitespace();
    emoji.len() <= MAX_EMOJI_BYTES && !emoji.is_ascii() && emoji.chars().all(is_emoji)
}

/// Returns the body of an edit with the text of `part`: no user is notified, and no buttons are left.
pub(super) fn edit_body(part: &MessagePart) -> Value {
    json!({
        "content": part.content, "components": [], "flags": SUPPRESS_EMBEDS,
        "allowed_mentions": {"parse": [], "replied_user": false},
    })
}

/// Returns `text` escaped as one segment of a path.
fn escape_path(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 3);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_messages_are_read() {
        let id = MessageId::parse("20/7").expect("an id");
        assert_eq!(id.path(), "channels/20/messages/7");
        for wrong in ["20", "20/x", "0/7", "20/7/8"] {
            assert_eq!(MessageId::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_edit_calls_nobody_and_has_no_buttons() {
        let part = MessagePart {
            content: "@everyone done".to_owned(),
            ..MessagePart::default()
        };
        let body = edit_body(&part);
        assert_eq!(body["allowed_mentions"]["parse"], json!([]));
        assert_eq!(body["components"], json!([]));
    }

    #[test]
    fn a_reaction_is_an_emoji_or_a_servers_own() {
        assert!(["👀", "✅", "1️⃣", "party:123"].into_iter().all(is_reaction));
        assert!(!["", "eyes", ":eyes:", "party:x", "👀 ✅"].into_iter().any(is_reaction));
    }

    #[test]
    fn a_reaction_is_one_segment() {
        let id = MessageId::parse("20/7").expect("an id");
        let path = |emoji| id.reaction_path(MessageReaction { emoji, removed: false });
        assert_eq!(path("👍"), "channels/20/messages/7/reactions/%F0%9F%91%8D/@me");
        assert_eq!(path("party:123"), "channels/20/messages/7/reactions/party%3A123/@me");
        assert_eq!(path("../x"), "channels/20/messages/7/reactions/%2E%2E%2Fx/@me");
    }
}
