//! The source port: how the account of a platform is read.
//!
//! One replica holds an account's lease and runs its source ([`accounts`]). The source hands its events to its
//! [`SourceSink`], and confirms it to the platform when that returns. Its watermark names the thing that it counts, and
//! is written once everything before it is in JetStream: a crash, or a watermark that was restored to an older state,
//! only lets it read again, and repetitions have the same ids. Source: `docs/design/channels.md` §1;
//! `docs/design/trust.md` §2.

pub mod access;
pub mod accounts;
pub mod event_store;
pub mod history;
pub mod history_calls;
pub mod merged;
pub mod sink;
pub mod strangers;
pub mod unreadable;

use std::time::Duration;

use async_trait::async_trait;
use shared::model::event::{BACKFILLED, Event, EventDirection, EventId, EventPeer, ParseEventIdError, PeerKind};
use shared::model::origin::EventOrigin;
use shared::model::time::UnixMillis;
use shared::platform::policy::DirectPolicy;
use shared::retry::RetrySchedule;
use shared::wire::watermark::SourceWatermark;

pub use event_store::{SinkContext, SourceFenced};
pub use sink::{PutEventsError, SettledEvents, SourceSink};

/// Prefix of the ids of gaps.
pub const GAP: &str = "gap";

/// Waits after calls of a platform that failed, without end.
pub const CALL_RETRY: RetrySchedule = RetrySchedule {
    initial_ms: 500,
    max_ms: 30_000,
    factor: 2.0,
    max_attempts: 0,
    jitter: 0.5,
};

/// Time after which a source is tried again whose watermark is too large.
const TOO_LARGE_AGAIN: Duration = Duration::from_mins(5);

/// Reads from one account of a platform.
#[async_trait]
pub trait Source: Send + Sync + 'static {
    /// Returns the name of the channel.
    fn channel(&self) -> &'static str;

    /// Returns the name of the account.
    fn account(&self) -> &str;

    /// Returns the rule for users that write to the account directly. With [`DirectPolicy::Pairing`] the sink lifts the
    /// tag `unpaired` of paired senders, and sends codes to the others.
    fn direct_policy(&self) -> DirectPolicy;

    /// Returns whether `/readyz` shows the state of this reading as the account's. Otherwise another part of the process
    /// reports the account.
    fn is_reported(&self) -> bool {
        true
    }

    /// Reads until it cannot go on. `from` is the watermark that was last written; `None` = there is none, or it was
    /// lost, and everything that the platform still has is read. The future is dropped when the account is no longer
    /// held, at any await.
    async fn run(&self, from: Option<SourceWatermark>, sink: &SourceSink) -> SourceEnd;
}

/// The reason why a source does not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceEnd {
    /// An operator must do something; `reason` names it. It is tried again after the time, or at the next start.
    Stopped {
        /// State of the account, for people. It contains no secret.
        reason: String,
        /// Time after which it is tried again; `None` = at the next start.
        again: Option<Duration>,
    },
    /// Another replica reads from the account.
    Fenced,
}

impl From<SourceFenced> for SourceEnd {
    fn from(SourceFenced: SourceFenced) -> Self {
        Self::Fenced
    }
}

impl From<PutEventsError> for SourceEnd {
    fn from(error: PutEventsError) -> Self {
        match error {
            PutEventsError::Fenced(fenced) => fenced.into(),
            PutEventsError::WatermarkTooLarge { .. } => Self::Stopped {
                reason: error.to_string(),
                again: Some(TOO_LARGE_AGAIN),
            },
        }
    }
}

/// A time of which a platform no longer has everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceGap {
    /// Time up to which everything is stored.
    pub from: UnixMillis,
    /// Time from which everything will be read.
    pub to: UnixMillis,
    /// Part of the account that has the gap, e.g. a channel; `None` = the whole account.
    pub item: Option<String>,
    /// Reason, for people.
    pub reason: String,
}

/// Returns the event that says that `account` on `channel` has a gap. It is only observed: no binding routes it.
///
/// # Errors
/// Returns [`ParseEventIdError`] if the account or the item makes no event id.
pub fn gap_event(channel: &str, account: &str, gap: &SourceGap, now: UnixMillis) -> Result<Event, ParseEventIdError> {
    // Several parts may have gaps that begin at one time.
    let item = gap.item.iter().map(|item| format!("{item}/")).collect::<String>();
    let id = EventId::parse(format!("{GAP}:{channel}/{account}/{item}{}", gap.from.0))?;
    let mut event = Event::new(id, channel, account, now);

    event.account_id = Some(account.to_owned());
    event.origin = EventOrigin::account(channel, account);
    event.direction = EventDirection::Observed;
    event.peer = EventPeer {
        kind: PeerKind::Channel,
        id: account.to_owned(),
        ..EventPeer::default()
    };
    event.content_types = vec!["gap".to_owned()];
    event.content.clone_from(&gap.reason);
    let times = serde_json::json!({"from": gap.from, "to": gap.to});
    event.metadata.insert("gap".to_owned(), times);

    Ok(event)
}

/// Tags `event` as backfilled if it happened more than `gate_ms` before it was received. Of an edit the time of the edit
/// counts, as of a deletion; a deletion whose time the platform does not say counts as one of the time of its reception,
/// because the message's own time says nothing about it. Of a message that was edited before it was read, as a history has
/// it, its own time counts: otherwise the edit of an old message would be a message of now.
pub fn apply_age_gate(event: &mut Event, gate_ms: i64) {
    let happened = match (event.direction, event.edited_at) {
        (EventDirection::Deleted, None) => return,
        (EventDirection::Deleted | EventDirection::Updated, Some(edited)) => edited.max(event.timestamp),
        (
            EventDirection::Updated
            | EventDirection::Received
            | EventDirection::Sent
            | EventDirection::Observed
            | EventDirection::Created,
            Some(_) | None,
        ) => event.timestamp,
    };
    if event.received_at.since(happened) > gate_ms {
        event.add_tag(BACKFILLED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_the_gate_is_backfilled() {
        let tags_of = |direction: EventDirection, timestamp: i64, edited_at: Option<i64>| {
            let id = EventId::parse("telegram:main/5/1").expect("an id");
            let mut event = Event::new(id, "telegram", "5", UnixMillis(timestamp));
            event.received_at = UnixMillis(10_000);
            event.direction = direction;
            event.edited_at = edited_at.map(UnixMillis);
            apply_age_gate(&mut event, 1_000);
            apply_age_gate(&mut event, 1_000);
            event.tags
        };
        let tags = |timestamp: i64, edited_at: Option<i64>| tags_of(EventDirection::Updated, timestamp, edited_at);
        assert_eq!(tags(9_000, None), Vec::<String>::new());
        assert_eq!(tags(8_999, None), [BACKFILLED]);
        assert_eq!(tags(1, Some(9_500)), Vec::<String>::new());
        assert_eq!(tags(11_000, None), Vec::<String>::new());

        // A message that was edited before it was read is as old as it is.
        let received = |edited_at: Option<i64>| tags_of(EventDirection::Received, 1, edited_at);
        assert_eq!(
            (received(None), received(Some(9_500))),
            (vec![BACKFILLED.to_owned()], vec![BACKFILLED.to_owned()])
        );

        // The message is old, and when it was deleted is not said, or is.
        let deleted = |edited_at: Option<i64>| tags_of(EventDirection::Deleted, 1, edited_at);
        assert_eq!(deleted(None), Vec::<String>::new());
        assert_eq!(
            (deleted(Some(9_500)), deleted(Some(2))),
            (Vec::new(), vec![BACKFILLED.to_owned()])
        );
    }

    #[test]
    fn a_gap_is_an_event_of_its_account() {
        let gap = SourceGap {
            from: UnixMillis(5),
            to: UnixMillis(9),
            item: None,
            reason: "away".to_owned(),
        };
        let of_channel = SourceGap {
            item: Some("1006".to_owned()),
            ..gap.clone()
        };
        let event = gap_event("discord", "main", &of_channel, UnixMillis(10)).expect("an event");
        assert_eq!(event.id.as_str(), "gap:discord/main/1006/5");
        let event = gap_event("telegram", "main", &gap, UnixMillis(10)).expect("an event");
        assert_eq!(event.id.as_str(), "gap:telegram/main/5");
        assert_eq!(
            (event.content_types, event.direction),
            (vec!["gap".to_owned()], EventDirection::Observed)
        );
        assert_eq!(event.metadata["gap"], serde_json::json!({"from": 5, "to": 9}));
    }
}
