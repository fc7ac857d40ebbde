//! Telegram's Bot API as far as both directions use it: the envelope of each answer, and names of messages. *Pure.*
//!
//! Source: <https://core.telegram.org/bots/api#making-requests>, <https://core.telegram.org/bots/api#responseparameters>.

use serde::Deserialize;

/// The answer to a call. `ok` decides, and not the HTTP status.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct BotAnswer<T> {
    /// Whether the call succeeded; `result` is present then.
    pub ok: bool,
    /// Result of the call.
    pub result: Option<T>,
    /// Code of the error, mostly an HTTP status.
    pub error_code: Option<i64>,
    /// Description of the error, for people.
    pub description: Option<String>,
    /// Values by which a program may handle the error.
    pub parameters: Option<AnswerParameters>,
}

/// Values by which a program may handle an error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct AnswerParameters {
    /// The group has become a supergroup with this id.
    pub migrate_to_chat_id: Option<i64>,
    /// Seconds to wait before the call may be made again.
    pub retry_after: Option<u64>,
}

/// The bot of a token, as `getMe` says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct BotUser {
    /// Id of the bot.
    pub id: i64,
    /// User name, without `@`.
    #[serde(default)]
    pub username: String,
    /// Whether the bot may be added to groups.
    #[serde(default)]
    pub can_join_groups: bool,
    /// Whether the bot sees every message of its groups: its privacy mode is off.
    #[serde(default)]
    pub can_read_all_group_messages: bool,
}

/// The webhook of a bot, as `getWebhookInfo` says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct WebhookInfo {
    /// Its URL; empty if there is none. It may contain a secret.
    #[serde(default)]
    pub url: String,
    /// Number of updates that wait.
    #[serde(default)]
    pub pending_update_count: u64,
    /// Time of the last post that failed, in seconds since 1970.
    #[serde(default)]
    pub last_error_date: Option<i64>,
    /// Reason for which it failed, for people.
    #[serde(default)]
    pub last_error_message: Option<String>,
}

/// A file, as `getFile` says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct BotFile {
    /// Size in bytes.
    pub file_size: Option<u64>,
    /// Path below the server's files, valid for an hour.
    pub file_path: Option<String>,
}

/// Returns the name of a message within its account: `{chat}/{message}`. Behind `telegram:{account}/` it is the id of
/// the event of a received message.
#[must_use]
pub fn message_name(chat: i64, message: i64) -> String {
    format!("{chat}/{message}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_with_fields_that_are_not_used() {
        let answer: BotAnswer<i64> = serde_json::from_str(r#"{"ok": true, "result": 7, "new": {}}"#).expect("read");
        assert_eq!((answer.ok, answer.result), (true, Some(7)));

        let answer: BotAnswer<i64> = serde_json::from_str(
            r#"{"ok": false, "error_code": 429, "description": "Too Many Requests: retry after 5",
                "parameters": {"retry_after": 5, "other": 1}}"#,
        )
        .expect("read");
        assert_eq!(answer.parameters.and_then(|parameters| parameters.retry_after), Some(5));
        assert_eq!((answer.ok, answer.error_code), (false, Some(429)));
    }

    #[test]
    fn a_message_is_named_by_its_chat_and_number() {
        assert_eq!(message_name(-1_001_234, 5), "-1001234/5");
    }
}
