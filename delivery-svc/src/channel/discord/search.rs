//! The search of a channel for a part that may have been sent: each of our messages has the nonce of its part. *Pure*.
//!
//! The newest messages are read first, back to the time of the first call: a bot that may not read the history gets
//! an empty answer, which must not be taken for "not there". A message of the bot without a nonce may be any part.
//! Source: <https://discord.com/developers/docs/resources/message#get-channel-messages>.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::Deserialize;
use serde_json::Value;
use shared::model::time::UnixMillis;
use shared::platform::discord::message_name;
use shared::platform::discord::snowflake::first_id_at;

use super::answer::{ApiAnswer, error_outcome};
use crate::attempt::{CallOutcome, PartSearch, Refusal};

/// Number of messages asked for at once.
pub(super) const PAGE: usize = 50;

/// Time before the first call to which messages are read, in milliseconds: Discord's clock is not ours.
const SKEW_MS: i64 = 300_000;

/// What is searched for, and where.
#[derive(Debug)]
pub(super) struct SearchTerms<'a> {
    pub(super) channel: &'a str,
    pub(super) nonce: &'a str,
    /// User id of the account's bot; `None` = unknown, so that it may be any bot.
    pub(super) own: Option<u64>,
    pub(super) since: UnixMillis,
}

/// The result of one page of a search.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PageResult {
    /// The search has ended.
    Ended(PartSearch),
    /// It goes on with the messages before this one.
    Before(u64),
}

#[derive(Debug, Deserialize)]
struct FoundMessage {
    id: String,
    #[serde(default)]
    nonce: Option<Value>,
    #[serde(default)]
    author: FoundAuthor,
}

#[derive(Debug, Default, Deserialize)]
struct FoundAuthor {
    #[serde(default)]
    id: String,
    #[serde(default)]
    bot: bool,
}

impl SearchTerms<'_> {
    /// Returns the result of the page `answer`, asked for at `now`; `is_first` means that it has the newest messages.
    pub(super) fn read_page(&self, answer: &ApiAnswer, is_first: bool, now: UnixMillis) -> PageResult {
        if !(200..=299).contains(&answer.status) {
            return PageResult::Ended(error_result(answer, now));
        }
        let Ok(messages) = serde_json::from_slice::<Vec<FoundMessage>>(&answer.body) else {
            return PageResult::Ended(PartSearch::Unknown);
        };

        let is_ours = |message: &&FoundMessage| message.nonce.as_ref().is_some_and(|nonce| nonce == self.nonce);
        if let Some(found) = messages.iter().find(is_ours) {
            return PageResult::Ended(PartSearch::Found {
                platform_ids: vec![message_name(self.channel, &found.id)],
            });
        }

        let ids: Option<Vec<u64>> = messages.iter().map(|message| message.id.parse().ok()).collect();
        let Some(ids) = ids else {
            return PageResult::Ended(PartSearch::Unknown);
        };

        // The vendor may not keep nonces: what the bot has said since may be the part.
        let first = first_id_at(self.since.plus(-SKEW_MS));
        let mut recent = messages.iter().zip(&ids).filter(|(_, id)| **id >= first);
        if recent.any(|(message, _)| message.nonce.is_none() && self.may_be_own(&message.author)) {
            return PageResult::Ended(PartSearch::Unknown);
        }

        // A page may be short and yet not the last: messages are left out that the bot may not see.
        match ids.into_iter().min() {
            Some(oldest) if oldest < first => PageResult::Ended(PartSearch::Absent),
            Some(oldest) => PageResult::Before(oldest),
            // The history ends here, or it cannot be read.
            None if is_first => PageResult::Ended(PartSearch::Unknown),
            None => PageResult::Ended(PartSearch::Absent),
        }
    }

    /// Returns whether `author` may be the account's bot.
    fn may_be_own(&self, author: &FoundAuthor) -> bool {
        match self.own {
            Some(own) => author.id.parse() == Ok(own),
            None => author.bot,
        }
    }
}

/// Returns the user id of the bot with `token`, whose first part is that id in Base64; `None` if it is another text.
pub(super) fn bot_user(token: &str) -> Option<u64> {
    let (id, _) = token.split_once('.')?;
    let id = STANDARD_NO_PAD.decode(id.trim_end_matches('=')).ok()?;
    String::from_utf8(id).ok()?.parse().ok()
}

/// Returns the result of a search that ended with an error.
fn error_result(answer: &ApiAnswer, now: UnixMillis) -> PartSearch {
    let outcome = match (answer.status, error_outcome(answer, now)) {
        (_, Some(outcome @ CallOutcome::Reauth { .. })) => outcome,
        // It counts as an attempt, so that it ends.
        (_, Some(CallOutcome::Limited { after, reason, .. })) => CallOutcome::Refused {
            refusal: Refusal::Passing { after: Some(after) },
            reason: format!("search for a part: {reason}"),
        },
        (429 | 500..=599, _) => CallOutcome::Refused {
            refusal: Refusal::Passing { after: None },
            reason: format!("search for a part: status {}", answer.status),
        },
        // No access to the channel or its history.
        (_, Some(_) | None) => return PartSearch::Unknown,
    };
    PartSearch::Failed { outcome }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// 2023-11-14, whose ids begin at 1,173,…
    const SINCE: UnixMillis = UnixMillis(1_700_000_000_000);

    const TERMS: SearchTerms<'static> = SearchTerms {
        channel: "20",
        nonce: "abc",
        own: Some(5),
        since: SINCE,
    };

    fn read(status: u16, body: &Value, is_first: bool) -> PageResult {
        let answer = ApiAnswer {
            status,
            body: body.to_string().into_bytes(),
            ..ApiAnswer::default()
        };
        TERMS.read_page(&answer, is_first, SINCE)
    }

    /// A message `minutes` after the first call.
    fn message(minutes: i64, nonce: Option<&str>, is_bot: bool, content: &str) -> Value {
        let id = first_id_at(SINCE.plus(minutes * 60_000));
        json!({"id": id.to_string(), "nonce": nonce, "content": content, "author": {"id": "5", "bot": is_bot}})
    }

    #[test]
    fn a_part_is_known_by_its_nonce() {
        let ours = message(1, Some("abc"), true, "hello");
        let id = ours["id"].as_str().expect("an id").to_owned();
        let found = PartSearch::Found {
            platform_ids: vec![format!("20/{id}")],
        };
        assert_eq!(read(200, &json!([ours]), true), PageResult::Ended(found));

        // A whole window without it.
        let before = message(-10, Some("xyz"), true, "hello");
        let mut said = message(1, None, false, "hello");
        said["author"]["id"] = json!("6");
        assert_eq!(
            read(200, &json!([said, before]), true),
            PageResult::Ended(PartSearch::Absent)
        );
    }

    #[test]
    fn an_own_message_without_a_nonce_and_an_empty_history_decide_nothing() {
        // The page is short, and the next one is empty.
        let said = |author: &str, is_bot: bool, minutes| {
            let mut said = message(minutes, None, is_bot, "anything");
            said["author"]["id"] = json!(author);
            said
        };
        let oldest = |said: &Value| said["id"].as_str().and_then(|id| id.parse().ok()).expect("an id");
        let other = said("6", true, 1);
        assert_eq!(read(200, &json!([other]), true), PageResult::Before(oldest(&other)));
        let before = said("5", true, -10);
        assert_eq!(
            read(200, &json!([other, before]), true),
            PageResult::Ended(PartSearch::Absent)
        );
        let own = said("5", true, 1);
        assert_eq!(
            read(200, &json!([other, own]), true),
            PageResult::Ended(PartSearch::Unknown)
        );

        // Any bot may be the account's if its id is not known.
        let unknown = SearchTerms { own: None, ..TERMS };
        let answer = |page: &Value| ApiAnswer {
            status: 200,
            body: page.to_string().into_bytes(),
            ..ApiAnswer::default()
        };
        let page = unknown.read_page(&answer(&json!([other])), true, SINCE);
        assert_eq!(page, PageResult::Ended(PartSearch::Unknown));

        assert_eq!(read(200, &json!([]), true), PageResult::Ended(PartSearch::Unknown));
        assert_eq!(read(200, &json!([]), false), PageResult::Ended(PartSearch::Absent));
        assert_eq!(read(200, &json!({}), true), PageResult::Ended(PartSearch::Unknown));
    }

    #[test]
    fn a_token_names_its_bot() {
        assert_eq!(bot_user("MTk4NjI.Cl2FMQ.ZnCjm1XV"), Some(19_862));
        assert_eq!(bot_user("MTk4NjIyNDgzNDcxOTI1MjQ4.x.y"), Some(198_622_483_471_925_248));
        for other in ["", "x", "abc.d", "====.", "MTk4NjI"] {
            assert_eq!(bot_user(other), None, "{other}");
        }
    }

    #[test]
    fn a_full_page_of_the_window_goes_on_before_its_oldest_message() {
        let page: Vec<Value> = (1..=50)
            .rev()
            .map(|minutes| message(minutes, None, false, "x"))
            .collect();
        let page: Vec<Value> = page
            .into_iter()
            .map(|mut said| {
                said["author"]["id"] = json!("6");
                said
            })
            .collect();
        let oldest = page[49]["id"].as_str().and_then(|id| id.parse().ok()).expect("an id");
        assert_eq!(read(200, &json!(page), true), PageResult::Before(oldest));
    }

    #[test]
    fn no_access_is_unknown_a_limit_waits_and_a_refused_token_stops_the_account() {
        let error = |code: u64| json!({"message": "no", "code": code});
        assert_eq!(read(403, &error(50_001), true), PageResult::Ended(PartSearch::Unknown));
        assert!(matches!(
            read(401, &error(0), true),
            PageResult::Ended(PartSearch::Failed {
                outcome: CallOutcome::Reauth { .. }
            })
        ));
        let limit = json!({"message": "slow", "retry_after": 2.5, "global": false});
        let PageResult::Ended(PartSearch::Failed { outcome }) = read(429, &limit, true) else {
            panic!("no failure");
        };
        assert!(matches!(
            outcome,
            CallOutcome::Refused { refusal: Refusal::Passing { after: Some(after) }, .. } if after.as_millis() == 2_500
        ));
    }

    proptest! {
        #[test]
        fn any_page_is_read_without_panic(status in 100_u16..600, body in "\\PC*", is_first: bool) {
            let answer = ApiAnswer { status, body: body.into_bytes(), ..ApiAnswer::default() };
            let _ = TERMS.read_page(&answer, is_first, SINCE);
        }
    }
}
