//! The search of a conversation for a part that may have been sent: each of our messages carries the id of its event as
//! metadata. A message of the app's own bot without it may be any part.
//!
//! Source: <https://docs.slack.dev/reference/methods/conversations.history>,
//! <https://docs.slack.dev/reference/methods/conversations.replies>,
//! <https://docs.slack.dev/reference/methods/auth.test>.

use std::collections::BTreeSet;

use reqwest::Url;
use serde::Deserialize;
use shared::model::time::UnixMillis;
use shared::platform::http_answer::parse_retry_after;
use shared::platform::slack::SlackAccount;
use shared::platform::slack_api::{WebAnswer, is_conversation_id, is_credential_error, message_name};

use super::message::METADATA_TYPE;
use crate::attempt::{CallOutcome, PartSearch, Refusal};
use crate::channel::raw_answer::RawAnswer;
use crate::part_file::PartFile;

/// Number of messages asked for at once; an app outside the marketplace gets fewer.
const PAGE: &str = "50";

/// Time before the first call from which messages are read, in milliseconds: Slack's clock is not ours.
const SKEW_MS: i64 = 300_000;

/// Error of an app that may send to a conversation and not read it.
const MISSING_SCOPE: &str = "missing_scope";

/// What is searched for, and where.
#[derive(Debug)]
pub(super) struct SearchTerms<'a> {
    channel: &'a str,
    thread: Option<&'a str>,
    /// Id of the event of the part.
    event: &'a str,
    since: UnixMillis,
    /// File that the part is. Messages of files have no metadata: the file's name and size tell.
    file: Option<&'a PartFile>,
}

/// The result of one page of a search.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PageResult {
    /// The search has ended.
    Ended(PartSearch),
    /// It goes on with the page of this cursor.
    Next(String),
}

#[derive(Debug, Deserialize)]
struct HistoryPage {
    #[serde(default)]
    messages: Vec<FoundMessage>,
    #[serde(default)]
    has_more: bool,
    #[serde(default)]
    response_metadata: Option<PageCursor>,
}

#[derive(Debug, Deserialize)]
struct PageCursor {
    #[serde(default)]
    next_cursor: String,
}

#[derive(Debug, Deserialize)]
struct FoundMessage {
    ts: String,
    /// Bot that wrote it; `None` = a person.
    #[serde(default)]
    bot_id: Option<String>,
    #[serde(default)]
    metadata: Option<FoundMetadata>,
    #[serde(default)]
    files: Vec<FoundFile>,
}

#[derive(Debug, Deserialize)]
struct FoundFile {
    #[serde(default)]
    name: String,
    #[serde(default)]
    size: u64,
}

/// The answer to `auth.test`.
#[derive(Debug, Deserialize)]
struct TestedToken {
    ok: bool,
    #[serde(default)]
    bot_id: Option<String>,
}

#[derive(Debug, Deserialize)]
struct FoundMetadata {
    event_type: String,
    #[serde(default)]
    event_payload: FoundPayload,
}

#[derive(Debug, Default, Deserialize)]
struct FoundPayload {
    #[serde(default)]
    event: String,
}

impl<'a> SearchTerms<'a> {
    /// Returns the terms for the part with `event`, sent to `thread` of `channel` at `since` or later. Returns `None` if
    /// the conversation has no id yet: the peer is a person.
    pub(super) fn new(channel: &'a str, thread: Option<&'a str>, event: &'a str, since: UnixMillis) -> Option<Self> {
        is_conversation_id(channel).then_some(Self {
            channel,
            thread,
            event,
            since,
            file: None,
        })
    }

    /// Returns the terms for a part that is `file`, if it is one.
    pub(super) const fn with_file(self, file: Option<&'a PartFile>) -> Self {
        Self { file, ..self }
    }

    /// Returns the URL of the page at `cursor`.
    pub(super) fn page_url(&self, account: &SlackAccount, cursor: Option<&str>) -> Url {
        let method = match self.thread {
            Some(_) => "conversations.replies",
            None => "conversations.history",
        };
        let oldest = self.since.plus(-SKEW_MS).0.max(0);
        let oldest = format!("{}.{:03}000", oldest / 1_000, oldest % 1_000);

        let mut url = account.method_url(method);
        let mut query = url.query_pairs_mut();
        query.append_pair("channel", self.channel);
        query.append_pair("oldest", &oldest);
        query.append_pair("limit", PAGE);
        query.append_pair("include_all_metadata", "true");
        if let Some(thread) = self.thread {
            query.append_pair("ts", thread);
        }
        if let Some(cursor) = cursor {
            query.append_pair("cursor", cursor);
        }
        drop(query);
        url
    }

    /// Returns the result of the page `answer`, asked for at `now`. Adds the bots of messages without our metadata to
    /// `nameless`: if one of them is the app's own, the part may be there.
    pub(super) fn read_page(&self, answer: &RawAnswer, nameless: &mut BTreeSet<String>, now: UnixMillis) -> PageResult {
        let Ok(read) = serde_json::from_slice::<WebAnswer>(&answer.body) else {
            return PageResult::Ended(foreign_result(answer, now));
        };
        if !read.ok {
            return PageResult::Ended(error_result(&read.error.unwrap_or_default(), answer, now));
        }
        let Ok(page) = serde_json::from_slice::<HistoryPage>(&answer.body) else {
            return PageResult::Ended(PartSearch::Unknown);
        };

        let is_ours = |message: &&FoundMessage| {
            let metadata = message.metadata.as_ref();
            metadata.is_some_and(|found| found.event_type == METADATA_TYPE && found.event_payload.event == self.event)
        };
        if let Some(file) = self.file {
            return self.file_result(&page, file, nameless);
        }
        if let Some(found) = page.messages.iter().find(is_ours) {
            return PageResult::Ended(PartSearch::Found {
                platform_ids: vec![message_name(self.channel, &found.ts)],
            });
        }

        let is_nameless = |message: &FoundMessage| {
            let metadata = message.metadata.as_ref();
            metadata.is_none_or(|found| found.event_type != METADATA_TYPE || found.event_payload.event.is_empty())
        };
        let bots = page.messages.iter().filter(|message| is_nameless(message));
        nameless.extend(bots.filter_map(|message| message.bot_id.clone()));

        page.next_result()
    }

    /// Returns the result of `page` for the part `file`. A message with such a file may be that of another delivery: it is
    /// then found for this one, so that the file is there once and not twice.
    fn file_result(&self, page: &HistoryPage, file: &PartFile, nameless: &mut BTreeSet<String>) -> PageResult {
        let has_file = |message: &&FoundMessage| {
            let is_it = |found: &FoundFile| found.name == file.name && found.size == file.size;
            message.bot_id.is_some() && message.files.iter().any(is_it)
        };
        match page.messages.iter().find(has_file) {
            Some(found) => PageResult::Ended(PartSearch::Found {
                platform_ids: vec![message_name(self.channel, &found.ts)],
            }),
            None => {
                nameless.clear();
                page.next_result()
            }
        }
    }
}

impl HistoryPage {
    /// Returns the result of the page if the part is not on it.
    fn next_result(&self) -> PageResult {
        let cursor = self.response_metadata.as_ref().map(|page| page.next_cursor.clone());
        match cursor.filter(|cursor| !cursor.is_empty()) {
            Some(cursor) => PageResult::Next(cursor),
            // There is more, and no way to it.
            None if self.has_more => PageResult::Ended(PartSearch::Unknown),
            None => PageResult::Ended(PartSearch::Absent),
        }
    }
}

/// Returns the id of the app's bot in the answer to `auth.test`.
pub(super) fn read_own_bot(answer: &RawAnswer) -> Option<String> {
    let tested = serde_json::from_slice::<TestedToken>(&answer.body).ok()?;
    tested.bot_id.filter(|_| tested.ok)
}

/// Returns the result of a search that Slack refused with the name `error`.
fn error_result(error: &str, answer: &RawAnswer, now: UnixMillis) -> PartSearch {
    match error {
        "ratelimited"
        | "rate_limited"
        | "fatal_error"
        | "internal_error"
        | "service_unavailable"
        | "request_timeout" => later(error, answer, now),
        error if is_credential_error(error) && error != MISSING_SCOPE => PartSearch::Failed {
            outcome: CallOutcome::Reauth {
                reason: error.to_owned(),
            },
        },
        // The app may not read the conversation, or it is gone.
        _ => PartSearch::Unknown,
    }
}

/// Returns the result of a search whose answer is none of the Web API's.
fn foreign_result(answer: &RawAnswer, now: UnixMillis) -> PartSearch {
    match answer.status {
        429 | 500..=599 => later(&format!("status {}", answer.status), answer, now),
        _ => PartSearch::Unknown,
    }
}

/// Returns the result of a search that may succeed later. It counts as an attempt, so that it ends: the limit is that of
/// reading, and no part is held back by it.
fn later(reason: &str, answer: &RawAnswer, now: UnixMillis) -> PartSearch {
    let after = answer.retry_after().and_then(|value| parse_retry_after(value, now));
    PartSearch::Failed {
        outcome: CallOutcome::Refused {
            refusal: Refusal::Passing {
                after: after.filter(|after| !after.is_zero()),
            },
            reason: format!("search for a part: {reason}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const NOW: UnixMillis = UnixMillis(1_700_000_000_000);

    fn terms(thread: Option<&'static str>) -> SearchTerms<'static> {
        SearchTerms::new("C1", thread, "out:x/0", NOW).expect("a conversation")
    }

    fn read(status: u16, retry_after: Option<&str>, body: &str) -> PageResult {
        let answer = RawAnswer::with_retry_after(status, retry_after, body);
        terms(None).read_page(&answer, &mut BTreeSet::new(), NOW)
    }

    fn message(ts: &str, kind: &str, event: &str) -> String {
        format!(
            r#"{{"type": "message", "ts": "{ts}", "metadata": {{"event_type": "{kind}", "event_payload": {{"event": "{event}"}}}}}}"#
        )
    }

    #[test]
    fn a_person_without_a_conversation_is_not_searched() {
        assert!(SearchTerms::new("U1", None, "out:x/0", NOW).is_none());
    }

    #[test]
    fn a_part_is_known_by_its_event_alone() {
        let page =
            |messages: &[String], rest: &str| format!(r#"{{"ok": true, "messages": [{}]{rest}}}"#, messages.join(","));
        let others = [
            message("1.000001", METADATA_TYPE, "out:x/1"),
            message("1.000002", "other", "out:x/0"),
            r#"{"ts": "1.000003", "text": "out:x/0"}"#.to_owned(),
        ];
        assert_eq!(
            read(200, None, &page(&others, "")),
            PageResult::Ended(PartSearch::Absent)
        );
        assert_eq!(
            read(200, None, &page(&others, r#", "has_more": true"#)),
            PageResult::Ended(PartSearch::Unknown)
        );
        let more = r#", "has_more": true, "response_metadata": {"next_cursor": "bmV4dA=="}"#;
        assert_eq!(
            read(200, None, &page(&others, more)),
            PageResult::Next("bmV4dA==".to_owned())
        );

        let mut with_ours = others.to_vec();
        with_ours.push(message("1.000004", METADATA_TYPE, "out:x/0"));
        let found = PartSearch::Found {
            platform_ids: vec!["C1/1.000004".to_owned()],
        };
        assert_eq!(read(200, None, &page(&with_ours, more)), PageResult::Ended(found));
    }

    #[test]
    fn bots_of_messages_without_our_metadata_are_kept() {
        let ours = message("1.000001", METADATA_TYPE, "out:x/1").replacen('{', r#"{"bot_id": "B1", "#, 1);
        let body = format!(
            r#"{{"ok": true, "messages": [{ours}, {{"ts": "1.000002", "bot_id": "B2"}}, {{"ts": "1.000003"}}]}}"#
        );
        let (answer, mut nameless) = (RawAnswer::with_retry_after(200, None, &body), BTreeSet::new());
        let page = terms(None).read_page(&answer, &mut nameless, NOW);
        assert_eq!(page, PageResult::Ended(PartSearch::Absent));
        assert_eq!(nameless, BTreeSet::from(["B2".to_owned()]));

        let own = |body| read_own_bot(&RawAnswer::with_retry_after(200, None, body));
        assert_eq!(own(r#"{"ok": true, "bot_id": "B2"}"#), Some("B2".to_owned()));
        assert_eq!(own(r#"{"ok": false, "bot_id": "B2"}"#), None);
        assert_eq!(own(r#"{"ok": true}"#), None);
    }

    #[test]
    fn refusals_are_unknown_limits_wait_and_a_revoked_token_stops_the_account() {
        let failed = |body: &str, retry_after: Option<&str>| read(200, retry_after, body);
        for name in [
            "missing_scope",
            "not_in_channel",
            "channel_not_found",
            "thread_not_found",
        ] {
            let body = format!(r#"{{"ok": false, "error": "{name}"}}"#);
            assert_eq!(failed(&body, None), PageResult::Ended(PartSearch::Unknown), "{name}");
        }

        let limited = failed(r#"{"ok": false, "error": "ratelimited"}"#, Some("60"));
        let PageResult::Ended(PartSearch::Failed {
            outcome:
                CallOutcome::Refused {
                    refusal: Refusal::Passing { after },
                    ..
                },
        }) = limited
        else {
            panic!("{limited:?}");
        };
        assert_eq!(after, Some(Duration::from_mins(1)));

        let revoked = failed(r#"{"ok": false, "error": "token_revoked"}"#, None);
        assert!(matches!(
            revoked,
            PageResult::Ended(PartSearch::Failed {
                outcome: CallOutcome::Reauth { .. }
            })
        ));
        assert!(matches!(
            read(502, None, "<html>"),
            PageResult::Ended(PartSearch::Failed { .. })
        ));
        assert_eq!(read(403, None, "<html>"), PageResult::Ended(PartSearch::Unknown));
    }

    proptest! {
        #[test]
        fn any_page_is_read_without_panic(status in 100_u16..600, body in "\\PC*") {
            let _ = read(status, None, &body);
        }
    }
}
