//! Bodies of calls that change a message. *Pure.* Source: <https://docs.slack.dev/reference/methods/chat.update>,
//! <https://docs.slack.dev/reference/methods/chat.delete>, <https://docs.slack.dev/reference/methods/reactions.add>,
//! <https://docs.slack.dev/reference/methods/reactions.remove>.

use serde_json::{Value, json};
use shared::platform::slack_api::{is_conversation_id, parse_stamp};

use super::message::part_text;
use crate::channel::MessageReaction;
use crate::plan::MessagePart;

/// Maximum length of a reaction's name, in characters.
const MAX_NAME_CHARACTERS: usize = 100;

/// Names of common emoji. Slack takes names alone.
const EMOJI_NAMES: [(&str, &str); 20] = [
    ("👍", "thumbsup"),
    ("👎", "thumbsdown"),
    ("👀", "eyes"),
    ("✅", "white_check_mark"),
    ("❌", "x"),
    ("❤️", "heart"),
    ("❤", "heart"),
    ("🎉", "tada"),
    ("🙏", "pray"),
    ("🔥", "fire"),
    ("😂", "joy"),
    ("😄", "smile"),
    ("😢", "cry"),
    ("😮", "open_mouth"),
    ("🤔", "thinking_face"),
    ("👏", "clap"),
    ("🚀", "rocket"),
    ("⚠️", "warning"),
    ("⏳", "hourglass_flowing_sand"),
    ("💯", "100"),
];

/// A message by its conversation and time stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessageStamp<'a> {
    channel: &'a str,
    ts: &'a str,
}

impl<'a> MessageStamp<'a> {
    /// Parses a platform's id, `{channel}/{ts}`.
    pub(super) fn parse(id: &'a str) -> Option<Self> {
        let (channel, ts) = id.split_once('/')?;
        let is_valid = is_conversation_id(channel) && parse_stamp(ts).is_some();
        is_valid.then_some(Self { channel, ts })
    }

    /// Returns the body of `chat.update` with the text of `part`. Its blocks, which had the buttons, are removed.
    pub(super) fn update_body(self, part: &MessagePart) -> Value {
        let (text, _) = part_text(part);
        json!({
            "channel": self.channel, "ts": self.ts, "text": text, "blocks": [], "link_names": false, "parse": "none",
        })
    }

    /// Returns the body of `chat.delete`.
    pub(super) fn delete_body(self) -> Value {
        json!({"channel": self.channel, "ts": self.ts})
    }

    /// Returns the method and the body of the call for `reaction`; `None` if Slack has no such name.
    pub(super) fn reaction_call(self, reaction: MessageReaction<'_>) -> Option<(&'static str, Value)> {
        let method = if reaction.removed {
            "reactions.remove"
        } else {
            "reactions.add"
        };
        let name = reaction_name(reaction.emoji)?;
        Some((
            method,
            json!({"channel": self.channel, "timestamp": self.ts, "name": name}),
        ))
    }
}

/// Returns whether `emoji` may be a reaction on Slack.
pub(super) fn is_reaction(emoji: &str) -> bool {
    reaction_name(emoji).is_some()
}

/// Returns Slack's name of `emoji`: that of a common emoji, or the name itself, as in `:eyes:`.
fn reaction_name(emoji: &str) -> Option<&str> {
    let known = EMOJI_NAMES.iter().find(|(symbol, _)| *symbol == emoji);
    if let Some((_, name)) = known {
        return Some(name);
    }
    let name = emoji.trim_matches(':');
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-' | '+' | '\'' | ':');
    let is_name = (1..=MAX_NAME_CHARACTERS).contains(&name.len()) && name.chars().all(is_part);
    is_name.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::TextFormat;

    const ID: &str = "C1/1700000000.000001";

    fn message() -> MessageStamp<'static> {
        MessageStamp::parse(ID).expect("an id")
    }

    #[test]
    fn ids_of_messages_are_read() {
        for wrong in ["C1", "C1/7", "U1/1700000000.000001", "C1/1700000000.000001/2"] {
            assert_eq!(MessageStamp::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_update_removes_the_blocks_and_calls_nobody() {
        let plain = MessagePart {
            content: "<!channel> done".to_owned(),
            format: TextFormat::Plain,
            ..MessagePart::default()
        };
        let body = message().update_body(&plain);
        assert_eq!(body["text"], json!("&lt;!channel&gt; done"));
        assert_eq!((&body["blocks"], &body["parse"]), (&json!([]), &json!("none")));
    }

    #[test]
    fn reactions_have_names() {
        let call = |emoji, removed| message().reaction_call(MessageReaction { emoji, removed });
        let body = json!({"channel": "C1", "timestamp": "1700000000.000001", "name": "eyes"});
        assert_eq!(call("👀", false), Some(("reactions.add", body.clone())));
        assert_eq!(call(":eyes:", true), Some(("reactions.remove", body)));
        for unknown in ["🦄", "", "::", "Eyes", "a b"] {
            assert_eq!(call(unknown, false), None, "{unknown}");
        }
    }
}
