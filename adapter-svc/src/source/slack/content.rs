//! The text of a message, and whether it mentions the account. *Pure.*
//!
//! In Slack's mrkdwn `& < >` are entities, and what stands between `<` and `>` is a reference: a user, a channel, a group,
//! a link. Source: <https://docs.slack.dev/messaging/formatting-message-text>.

use serde_json::Value;
use shared::model::event::{EventMention, MentionForm};

use super::SlackBot;
use super::payload::SlackMessage;

/// Maximum depth of blocks that are searched for mentions.
const MAX_DEPTH: usize = 32;

/// Returns `text` as a person reads it: entities are characters, links their address, channels and groups their name.
/// Users stay as `<@U…>`, because their names are not in the payload.
#[must_use]
pub fn readable_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        push_decoded(&rest[..start], &mut out);
        let inside = &rest[start + 1..];
        let Some(end) = inside
            .find(['>', '<', '\n'])
            .filter(|end| inside[*end..].starts_with('>'))
        else {
            out.push('<');
            rest = inside;
            continue;
        };
        push_reference(&inside[..end], &mut out);
        rest = &inside[end + 1..];
    }
    push_decoded(rest, &mut out);
    out
}

/// Appends the readable form of the reference `<inside>`.
fn push_reference(inside: &str, out: &mut String) {
    let (target, label) = match inside.split_once('|') {
        Some((target, label)) => (target, Some(label).filter(|label| !label.is_empty())),
        None => (inside, None),
    };

    if let Some(user) = target.strip_prefix('@') {
        out.push_str("<@");
        push_decoded(user, out);
        out.push('>');
    } else if let Some(channel) = target.strip_prefix('#') {
        out.push('#');
        push_decoded(label.unwrap_or(channel), out);
    } else if let Some(group) = target.strip_prefix('!') {
        // `<!here>`, `<!subteam^S1|@team>`, `<!date^…|in words>`.
        match label {
            Some(label) => push_decoded(label, out),
            None => {
                out.push('@');
                push_decoded(group, out);
            }
        }
    } else {
        let address = target.strip_prefix("mailto:").unwrap_or(target);
        match label.filter(|label| !address.contains(label)) {
            Some(label) => {
                push_decoded(label, out);
                out.push_str(" (");
                push_decoded(address, out);
                out.push(')');
            }
            None => push_decoded(address, out),
        }
    }
}

/// Appends `text` with its entities as characters.
fn push_decoded(text: &str, out: &mut String) {
    let mut rest = text;
    while let Some(start) = rest.find('&') {
        out.push_str(&rest[..start]);
        let entities = [("&amp;", '&'), ("&lt;", '<'), ("&gt;", '>')];
        let found = entities
            .into_iter()
            .find(|(entity, _)| rest[start..].starts_with(entity));
        match found {
            Some((entity, character)) => {
                out.push(character);
                rest = &rest[start + entity.len()..];
            }
            None => {
                out.push('&');
                rest = &rest[start + 1..];
            }
        }
    }
    out.push_str(rest);
}

/// Returns whether and how `message` addresses `bot`: by a mention, or in a thread that the bot has begun.
#[must_use]
pub fn mention_of(bot: &SlackBot, message: &SlackMessage) -> EventMention {
    let text = message.text.as_deref().unwrap_or_default();
    let how = if mentions_in_text(text, &bot.user_id) || mentions_in_blocks(&message.blocks, &bot.user_id, 0) {
        MentionForm::Native
    } else if message.parent_user_id.as_ref() == Some(&bot.user_id) {
        MentionForm::Thread
    } else {
        MentionForm::None
    };

    EventMention {
        me: how != MentionForm::None,
        how,
    }
}

fn mentions_in_text(text: &str, user: &str) -> bool {
    let mut mentions = text.split("<@").skip(1);
    // `<@U1>` and `<@U1|ann>`.
    mentions.any(|rest| rest.strip_prefix(user).is_some_and(|rest| rest.starts_with(['>', '|'])))
}

fn mentions_in_blocks(blocks: &Value, user: &str, depth: usize) -> bool {
    let inside = |value: &Value| depth < MAX_DEPTH && mentions_in_blocks(value, user, depth + 1);
    match blocks {
        Value::Object(keys) => {
            let is = |key: &str, expected: &str| keys.get(key).and_then(Value::as_str) == Some(expected);
            is("type", "user") && is("user_id", user) || keys.values().any(inside)
        }
        Value::Array(items) => items.iter().any(inside),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn text_is_what_a_person_reads() {
        for (written, read) in [
            ("plain", "plain"),
            ("1 &lt; 2 &amp;&amp; 3 &gt; 2", "1 < 2 && 3 > 2"),
            ("&amp;lt; &nbsp; &", "&lt; &nbsp; &"),
            ("<@U1> hi <@U2|ann>", "<@U1> hi <@U2>"),
            ("see <#C1|general> and <#C2>", "see #general and #C2"),
            ("<!here> <!subteam^S1|@team> <!channel|channel>", "@here @team channel"),
            ("<https://a.example/?x=1&amp;y=2>", "https://a.example/?x=1&y=2"),
            ("<https://a.example|a.example>", "https://a.example"),
            ("<https://a.example|the log>", "the log (https://a.example)"),
            ("<mailto:ann@a.example|ann@a.example>", "ann@a.example"),
            ("a < b", "a < b"),
            ("<a\nb>", "<a\nb>"),
            ("<<https://a.example>", "<https://a.example"),
            ("", ""),
        ] {
            assert_eq!(readable_text(written), read, "{written}");
        }
    }

    #[test]
    fn an_account_is_mentioned_by_its_user_id_or_in_its_own_thread() {
        let bot = SlackBot {
            name: "app".to_owned(),
            team_id: "T1".to_owned(),
            user_id: "U7".to_owned(),
            bot_id: None,
        };
        let block = |user: &str| json!([{"type": "rich_text", "elements": [{"elements": [{"type": "user", "user_id": user}]}]}]);
        for (message, how) in [
            (json!({"text": "<@U7> hi"}), MentionForm::Native),
            (json!({"text": "hi <@U7|nexus>"}), MentionForm::Native),
            (json!({"text": "<@U77> hi"}), MentionForm::None),
            (json!({"text": "&lt;@U7&gt; hi"}), MentionForm::None),
            (json!({"text": "hi", "blocks": block("U7")}), MentionForm::Native),
            (json!({"text": "hi", "blocks": block("U8")}), MentionForm::None),
            (json!({"text": "hi", "parent_user_id": "U7"}), MentionForm::Thread),
            (json!({"text": "hi", "parent_user_id": "U8"}), MentionForm::None),
            (json!({}), MentionForm::None),
        ] {
            let found = mention_of(&bot, &serde_json::from_value(message.clone()).expect("a message"));
            assert_eq!((found.how, found.me), (how, how != MentionForm::None), "{message}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic_and_plain_text_stays(text in "[<>&|@#!a-z;é\\n]{0,40}", plain in "[^&<]{0,40}") {
            let _read = readable_text(&text);
            prop_assert_eq!(readable_text(&plain), plain);
        }
    }
}
