//! The course of a job: which orders are taken, and what follows from what was read. *Pure.*

use std::collections::BTreeSet;

use serde_json::Value;
use shared::model::time::UnixMillis;
use shared::wire::operator::backfill::{
    BackfillJob, BackfillState, ConversationPlace, MAX_CONVERSATION_BYTES, MAX_NAMED, MAX_SKIPPED, SkippedConversation,
    StartBackfill,
};
use ulid::Ulid;

use crate::source::port::history::HistorySpan;

/// Maximum length of a reason, in bytes.
const MAX_REASON_BYTES: usize = 400;

/// What follows from an order to start.
#[derive(Debug, Clone, PartialEq)]
pub enum StartStep {
    /// The job begins.
    Begin(BackfillJob),
    /// A job for the same runs already.
    Known(BackfillJob),
    /// Another job of the account runs.
    Busy,
}

/// Returns what follows at `now` from `order`, whose fields are sound, for an account whose last job is `last`. `id` is that
/// of a job that begins.
#[must_use]
pub fn start_job(order: &StartBackfill, last: Option<BackfillJob>, id: Ulid, now: UnixMillis) -> StartStep {
    let named: BTreeSet<&String> = order.conversations.iter().collect();
    let begun = BackfillJob {
        id,
        channel: order.channel.clone(),
        account: order.account.clone(),
        since: order.since,
        until: order.until.unwrap_or(now),
        conversations: named.into_iter().cloned().collect(),
        by: order.by.clone(),
        state: BackfillState::Running,
        reason: None,
        started_at: now,
        changed_at: now,
        read_by: None,
        found: None,
        finished: 0,
        events: 0,
        passed_over: 0,
        place: None,
        skipped: Vec::new(),
        skipped_count: 0,
    };

    match last {
        Some(last) if last.is_running() => {
            // An order that is sent again names no later end.
            let is_until = order.until.is_none_or(|until| until == last.until);
            let is_same = last.since == begun.since && last.conversations == begun.conversations && is_until;
            if is_same {
                StartStep::Known(last)
            } else {
                StartStep::Busy
            }
        }
        Some(_) | None => StartStep::Begin(begun),
    }
}

/// Checks the fields of `order` at `now`. `is_conversation` says whether a text has the form of a conversation's id.
///
/// # Errors
/// Returns what is wrong with which field.
pub fn check_order(
    order: &StartBackfill,
    is_conversation: impl Fn(&str) -> bool,
    now: UnixMillis,
) -> Result<(), String> {
    if order.since.0 < 0 || order.since > now {
        return Err("since: expected a time between 1970 and now".to_owned());
    }
    if let Some(until) = order.until
        && (until < order.since || until > now)
    {
        return Err("until: expected a time between `since` and now".to_owned());
    }

    let named = order.conversations.len();
    if named > MAX_NAMED {
        return Err(format!("conversations: {named}, at most {MAX_NAMED} are allowed"));
    }
    let is_odd = |id: &&String| id.len() > MAX_CONVERSATION_BYTES || !is_conversation(id);
    match order.conversations.iter().find(is_odd) {
        Some(odd) => {
            let shown: String = odd.chars().take(64).collect();
            let channel = &order.channel;
            Err(format!(
                "conversations: `{shown}` is no id of a conversation on {channel}"
            ))
        }
        None => Ok(()),
    }
}

/// Returns the time of which `job` reads.
#[must_use]
pub const fn span_of(job: &BackfillJob) -> HistorySpan {
    HistorySpan {
        since: job.since,
        until: job.until,
    }
}

/// Takes in that `conversations` are to be read, and that conversations could not be looked for in the places `skipped`.
/// Returns those that are left, in the order of their ids.
pub fn note_found(
    job: &mut BackfillJob,
    conversations: BTreeSet<String>,
    skipped: Vec<SkippedConversation>,
) -> Vec<String> {
    // A replica that takes over finds them anew, and counts those before the place of its predecessor as read.
    let all = conversations.len();
    let left: Vec<String> = match &job.place {
        None => conversations.into_iter().collect(),
        Some(place) => conversations
            .into_iter()
            .filter(|one| *one > place.conversation || (*one == place.conversation && !place.position.is_null()))
            .collect(),
    };
    job.found = Some(all as u64);
    job.finished = (all - left.len()) as u64;
    for place in skipped {
        note_skipped(job, place);
    }
    left
}

/// Returns the position in `conversation` from which it is read.
#[must_use]
pub fn position_in(job: &BackfillJob, conversation: &str) -> Value {
    let place = job.place.as_ref().filter(|place| place.conversation == conversation);
    place.map_or(Value::Null, |place| place.position.clone())
}

/// Takes in that a page of `conversation` with `events` events is stored, behind which `next` follows; `None` = it is read.
pub fn note_page(job: &mut BackfillJob, conversation: &str, (events, passed_over): (u64, u64), next: Option<Value>) {
    job.events += events;
    job.passed_over += passed_over;
    job.finished += u64::from(next.is_none());
    job.place = Some(ConversationPlace {
        conversation: conversation.to_owned(),
        position: next.unwrap_or(Value::Null),
    });
}

/// Takes in that `conversation` cannot be read any further, for `reason`.
pub fn give_up_conversation(job: &mut BackfillJob, conversation: &str, reason: &str) {
    note_page(job, conversation, (0, 0), None);
    note_skipped(
        job,
        SkippedConversation {
            conversation: conversation.to_owned(),
            reason: shorten(reason),
        },
    );
}

/// Takes in that a place is passed over. One that is known is not counted twice.
fn note_skipped(job: &mut BackfillJob, place: SkippedConversation) {
    if job.skipped.iter().any(|known| known.conversation == place.conversation) {
        return;
    }
    job.skipped_count += 1;
    if job.skipped.len() < MAX_SKIPPED {
        job.skipped.push(place);
    }
}

/// Ends `job` in `state`, for `reason`.
pub fn end_job(job: &mut BackfillJob, state: BackfillState, reason: Option<&str>) {
    job.state = state;
    job.reason = reason.map(shorten);
}

/// Takes in what `job` waits for; returns whether that is news.
pub fn note_wait(job: &mut BackfillJob, reason: Option<&str>) -> bool {
    let reason = reason.map(shorten);
    let is_news = job.reason != reason;
    job.reason = reason;
    is_news
}

fn shorten(text: &str) -> String {
    text.get(..text.floor_char_boundary(MAX_REASON_BYTES))
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: UnixMillis = UnixMillis(10_000);

    fn order(since: i64, until: Option<i64>, conversations: &[&str]) -> StartBackfill {
        StartBackfill {
            channel: "slack".to_owned(),
            account: "app".to_owned(),
            since: UnixMillis(since),
            until: until.map(UnixMillis),
            conversations: conversations.iter().map(|id| (*id).to_owned()).collect(),
            by: "anna".to_owned(),
        }
    }

    fn job() -> BackfillJob {
        let StartStep::Begin(job) = start_job(&order(5, None, &[]), None, Ulid::from_parts(1, 1), NOW) else {
            panic!("nothing runs");
        };
        job
    }

    fn found(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn an_order_that_is_sent_again_begins_nothing() {
        let (id, running) = (Ulid::from_parts(2, 2), job());
        let start = |order: &StartBackfill, last: &BackfillJob| start_job(order, Some(last.clone()), id, NOW.plus(5));
        assert_eq!(start(&order(5, None, &[]), &running), StartStep::Known(running.clone()));
        assert_eq!(
            start(&order(5, Some(10_000), &[]), &running),
            StartStep::Known(running.clone())
        );
        for other in [order(6, None, &[]), order(5, Some(9), &[]), order(5, None, &["C1"])] {
            assert_eq!(start(&other, &running), StartStep::Busy);
        }

        let mut ended = running;
        end_job(&mut ended, BackfillState::Done, None);
        let StartStep::Begin(begun) = start(&order(5, None, &["C2", "C1", "C2"]), &ended) else {
            panic!("the last one is over");
        };
        assert_eq!((begun.id, begun.until, begun.events), (id, NOW.plus(5), 0));
        assert_eq!(begun.conversations, ["C1", "C2"]);
    }

    #[test]
    fn an_order_names_a_time_that_was_and_conversations_of_its_platform() {
        let check = |order: &StartBackfill| check_order(order, |id| id.starts_with('C'), NOW);
        assert_eq!(check(&order(0, None, &["C1"])), Ok(()));
        assert_eq!(check(&order(10_000, Some(10_000), &[])), Ok(()));
        for (wrong, told) in [
            (order(-1, None, &[]), "since: "),
            (order(10_001, None, &[]), "since: "),
            (order(5, Some(4), &[]), "until: "),
            (order(5, Some(10_001), &[]), "until: "),
            (
                order(5, None, &["C1", "x"]),
                "conversations: `x` is no id of a conversation on slack",
            ),
        ] {
            let fault = check(&wrong).expect_err("it is wrong");
            assert!(fault.starts_with(told), "{fault}");
        }
    }

    #[test]
    fn who_takes_over_goes_on_in_the_conversation_where_the_last_one_was() {
        let mut job = job();
        let left = note_found(&mut job, found(&["C1", "C2", "C3"]), Vec::new());
        assert_eq!(left, ["C1", "C2", "C3"]);
        assert_eq!(position_in(&job, "C1"), Value::Null);
        note_page(&mut job, "C1", (10, 1), Some(json!(7)));
        assert_eq!((job.finished, position_in(&job, "C1")), (0, json!(7)));
        assert_eq!(position_in(&job, "C2"), Value::Null);

        // A conversation that is there since then, before the place, has no message of the time.
        let left = note_found(&mut job.clone(), found(&["C0", "C1", "C2", "C3"]), Vec::new());
        assert_eq!(left, ["C1", "C2", "C3"]);
        note_page(&mut job, "C1", (5, 0), None);
        let left = note_found(&mut job, found(&["C1", "C2", "C3"]), Vec::new());
        assert_eq!((left, job.finished), (vec!["C2".to_owned(), "C3".to_owned()], 1));
        assert_eq!((job.events, job.passed_over), (15, 1));
    }

    #[test]
    fn what_cannot_be_read_is_told_once() {
        let mut job = job();
        let unseen = SkippedConversation {
            conversation: "im".to_owned(),
            reason: "missing_scope".to_owned(),
        };
        for _ in 0..2 {
            note_found(&mut job, found(&["C1"]), vec![unseen.clone()]);
        }
        give_up_conversation(&mut job, "C1", &"é".repeat(1_000));
        assert_eq!((job.skipped_count, job.skipped.len(), job.finished), (2, 2, 1));
        assert_eq!(job.skipped[1].reason.len(), MAX_REASON_BYTES);
        for number in 0..200 {
            give_up_conversation(&mut job, &format!("D{number}"), "no");
        }
        assert_eq!((job.skipped_count, job.skipped.len()), (202, MAX_SKIPPED));

        assert!(note_wait(&mut job, Some("slow down")) && !note_wait(&mut job, Some("slow down")));
        assert!(note_wait(&mut job, None));
    }
}
