//! Threads that messages to the account begin. *Pure.*
//!
//! Where answers go to threads, the first message belongs to the thread that its answer begins: otherwise the thread's
//! later messages would be another session, which does not know the first one. Those later messages address the account, as
//! on other platforms, in a thread that it has begun itself.

use shared::model::event::{Event, EventDirection, EventMention, FROM_BOT, MentionForm, PeerKind};
use shared::platform::policy::AccessPolicy;
use shared::platform::slack_api::parse_stamp;

use crate::source::port::access::apply_access;

/// Applies the account's `policy` to `event`: its tags, its direction and its thread. `is_begun` says whether it is in a thread
/// that began with a message to the account ([`begun_by`]).
pub fn apply_policy(policy: &AccessPolicy<'_, String>, event: &mut Event, is_begun: bool) {
    if is_begun {
        continue_thread(event);
    }
    apply_access(policy, event);
    begin_thread(policy, event);
}

/// Lets `event` address the account by its thread, if it is a message that does not do so by itself. One of another bot does
/// not: two bots would answer each other there without end.
fn continue_thread(event: &mut Event) {
    let is_message = match event.direction {
        EventDirection::Received | EventDirection::Updated => true,
        EventDirection::Sent | EventDirection::Observed | EventDirection::Created | EventDirection::Deleted => false,
    };
    let is_unaddressed = event.mention.is_some_and(|mention| !mention.me);
    if is_message && is_unaddressed && !event.tags.iter().any(|tag| tag == FROM_BOT) {
        event.mention = Some(EventMention {
            me: true,
            how: MentionForm::Thread,
        });
    }
}

/// Returns whether `event`, to which the account's policy was applied, begins its thread with words to the account. The words
/// of those who may not write to it begin none.
#[must_use]
pub fn begun_by(event: &Event) -> bool {
    let is_for_us = event.direction == EventDirection::Received && event.mention.is_some_and(|mention| mention.me);
    let ts = event.id.as_str().rsplit('/').next();
    let is_first = event.thread_id.is_some() && event.thread_id.as_deref() == ts;
    is_for_us && is_first && event.withheld_tags().next().is_none()
}

/// Sets the thread of `event` if it is for the account, is in no thread, and is answered in one according to `policy`.
pub fn begin_thread(policy: &AccessPolicy<'_, String>, event: &mut Event) {
    let is_answered = match event.peer.kind {
        PeerKind::Dm => false,
        PeerKind::Group | PeerKind::Channel => policy
            .place_policy(&event.peer.id, None, event.thread_id.as_deref())
            .is_some_and(|place| place.reply_in_thread),
    };
    // An edit belongs where its message does, no matter how its text reads now.
    let is_addressed = event.mention.is_some_and(|mention| mention.me);
    let is_for_us = match event.direction {
        EventDirection::Received => true,
        EventDirection::Updated => is_addressed,
        EventDirection::Sent | EventDirection::Observed | EventDirection::Created | EventDirection::Deleted => false,
    };
    if event.thread_id.is_some() || !is_answered || !is_for_us {
        return;
    }

    // The message itself, or the one whose button was pressed: `{account}/{channel}/{ts}`.
    let of_event = event.target.as_deref().unwrap_or(event.id.as_str());
    let ts = of_event.rsplit('/').next().unwrap_or_default();
    if parse_stamp(ts).is_some() {
        event.thread_id = Some(ts.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use shared::model::event::{EventId, UNLISTED};
    use shared::model::time::UnixMillis;
    use shared::platform::policy::{DirectPolicy, GroupPolicy};

    use super::*;

    fn begun(id: &str, change: impl FnOnce(&mut Event)) -> Option<String> {
        let allow = BTreeSet::new();
        let off = GroupPolicy {
            reply_in_thread: false,
            ..GroupPolicy::default()
        };
        let groups = BTreeMap::from([("C1".to_owned(), GroupPolicy::default()), ("C2".to_owned(), off)]);
        let policy = AccessPolicy {
            direct: DirectPolicy::Open,
            allow: &allow,
            groups: Some(&groups),
        };

        let mut event = Event::new(EventId::parse(id).expect("an id"), "slack", "C1", UnixMillis(1));
        event.peer.kind = PeerKind::Channel;
        change(&mut event);
        begin_thread(&policy, &mut event);
        event.thread_id
    }

    #[test]
    fn a_message_for_the_account_begins_the_thread_of_its_answer() {
        const ID: &str = "slack:app/C1/1.000001";
        let begins = Some("1.000001".to_owned());
        assert_eq!(begun(ID, |_| ()), begins);
        assert_eq!(
            begun("slack:app/C1/9.000000/press/U1/2.000000", |event| event.target =
                Some(ID.to_owned())),
            begins
        );
        assert_eq!(
            begun(ID, |event| event.thread_id = Some("0.000001".to_owned())),
            Some("0.000001".to_owned())
        );

        assert_eq!(begun(ID, |event| event.direction = EventDirection::Observed), None);
        assert_eq!(begun(ID, |event| event.direction = EventDirection::Updated), None);
        let addressed = |event: &mut Event| {
            event.direction = EventDirection::Updated;
            event.mention = Some(EventMention {
                me: true,
                how: MentionForm::Native,
            });
        };
        assert_eq!(begun(ID, addressed), begins);
        assert_eq!(begun(ID, |event| event.peer.kind = PeerKind::Dm), None);
        assert_eq!(begun(ID, |event| event.peer.id = "C2".to_owned()), None);
        assert_eq!(begun(ID, |event| event.peer.id = "C3".to_owned()), None);
        assert_eq!(begun("slack:app/C1/command/ab12", |_| ()), None);
    }

    /// The message `ts` of a person in channel C1, in the thread `thread`, after the policy of an account that all of `allow` may
    /// mention there.
    fn applied(ts: &str, thread: Option<&str>, is_begun: bool, change: impl FnOnce(&mut Event)) -> Event {
        let nobody = BTreeSet::new();
        let place = GroupPolicy {
            allow: BTreeSet::from(["U5".to_owned()]),
            ..GroupPolicy::default()
        };
        let groups = BTreeMap::from([("C1".to_owned(), place)]);
        let policy = AccessPolicy {
            direct: DirectPolicy::Open,
            allow: &nobody,
            groups: Some(&groups),
        };

        let id = EventId::parse(format!("slack:app/C1/{ts}")).expect("an id");
        let mut event = Event::new(id, "slack", "C1", UnixMillis(1));
        event.peer.kind = PeerKind::Channel;
        event.from.id = "U5".to_owned();
        event.thread_id = thread.map(str::to_owned);
        event.mention = Some(mention(MentionForm::None));
        change(&mut event);
        apply_policy(&policy, &mut event, is_begun);
        event
    }

    fn mention(how: MentionForm) -> EventMention {
        EventMention {
            me: how != MentionForm::None,
            how,
        }
    }

    #[test]
    fn what_people_say_in_a_thread_that_began_with_a_mention_is_for_the_account() {
        const FIRST: &str = "1.000001";
        let mentions = |event: &mut Event| event.mention = Some(mention(MentionForm::Native));
        let first = applied(FIRST, None, false, mentions);
        assert!(begun_by(&first));

        let said = |is_begun: bool, change: &dyn Fn(&mut Event)| {
            let event = applied("1.000002", Some(FIRST), is_begun, change);
            assert!(!begun_by(&event), "a later message begins no thread");
            (event.direction, event.mention.expect("it is known").how)
        };
        let (received, observed) = (EventDirection::Received, EventDirection::Observed);
        assert_eq!(said(true, &|_| ()), (received, MentionForm::Thread));
        assert_eq!(said(false, &|_| ()), (observed, MentionForm::None));
        assert_eq!(said(true, &mentions), (received, MentionForm::Native));
        // Neither a note about the channel nor a message of another bot.
        let note = |event: &mut Event| event.direction = EventDirection::Observed;
        assert_eq!(said(true, &note), (observed, MentionForm::None));
        assert_eq!(
            said(true, &|event| event.add_tag(FROM_BOT)),
            (observed, MentionForm::None)
        );
        // A person who may not write in the channel may not in the thread either.
        let stranger = |event: &mut Event| event.from.id = "U6".to_owned();
        assert_eq!(applied("1.000002", Some(FIRST), true, stranger).tags, [UNLISTED]);
    }

    #[test]
    fn only_a_first_message_to_the_account_of_somebody_who_may_write_begins_a_thread() {
        let mentions = |event: &mut Event| event.mention = Some(mention(MentionForm::Native));
        assert!(!begun_by(&applied("1.000001", None, false, |_| ())));
        assert!(!begun_by(&applied("1.000002", Some("1.000001"), false, mentions)));
        assert!(begun_by(&applied("1.000001", Some("1.000001"), false, mentions)));
        let edited = |event: &mut Event| {
            mentions(event);
            event.direction = EventDirection::Updated;
        };
        assert!(!begun_by(&applied("1.000001", None, false, edited)));
        let by = |change: &dyn Fn(&mut Event)| {
            begun_by(&applied("1.000001", None, false, |event| {
                mentions(event);
                change(event);
            }))
        };
        assert!(by(&|_| ()));
        assert!(!by(&|event| event.from.id = "U6".to_owned()));
        assert!(!by(&|event| event.add_tag(FROM_BOT)));
    }
}
