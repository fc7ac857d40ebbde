//! Threads that messages to the account begin. *Pure.*
//!
//! Where answers go to threads, the first message belongs to the thread that its answer begins: otherwise the thread's
//! later messages would be another session, which does not know the first one.

use shared::model::event::{Event, EventDirection, PeerKind};
use shared::platform::policy::AccessPolicy;
use shared::platform::slack_api::parse_stamp;

use crate::source::port::access::apply_access;

/// Applies the account's `policy` to `event`: its tags, its direction and its thread.
pub fn apply_policy(policy: &AccessPolicy<'_, String>, event: &mut Event) {
    apply_access(policy, event);
    begin_thread(policy, event);
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

    use shared::model::event::{EventId, EventMention, MentionForm};
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
}
