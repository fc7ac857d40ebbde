//! The users that may write to an account, and the messages that are addressed to it, on every platform. *Pure.*
//!
//! Every event is stored. An event that is not allowed is tagged and thereby withheld from bindings and hooks, except
//! hooks that ask for the tag; a group's message that does not address the account is only observed. Source:
//! `docs/telegram.md`, "Allowed senders".

use std::str::FromStr;

use shared::model::event::{Event, EventDirection, PeerKind, UNLISTED, UNPAIRED};
use shared::platform::policy::AccessPolicy;
use shared::platform::topic::topic_of;

/// Tags `event`, or makes it an observed one, as `policy` says.
pub fn apply_access<U: Ord + FromStr>(policy: &AccessPolicy<'_, U>, event: &mut Event) {
    let sender: Option<U> = event.from.id.parse().ok();

    match event.peer.kind {
        PeerKind::Dm => {
            if !policy.admits_directly(sender.as_ref()) {
                event.add_tag(UNPAIRED);
            }
        }
        PeerKind::Group | PeerKind::Channel => {
            let Some(place) = policy.place_policy(&event.peer.id, event.former_peer(), topic_of(event)) else {
                event.add_tag(UNLISTED);
                return;
            };
            let is_admitted = || sender.is_some_and(|sender| place.allow.contains(&sender));
            if !place.allow.is_empty() && !is_admitted() {
                event.add_tag(UNLISTED);
            }

            // A button is the account's own, so pressing it addresses the account.
            let is_press = event.content_types.iter().any(|kind| kind == "press");
            let is_addressed = is_press || event.mention.is_some_and(|mention| mention.me);
            if place.require_mention && !is_addressed && event.direction == EventDirection::Received {
                event.direction = EventDirection::Observed;
            }
        }
    }
}

/// Returns whether `event` is a message with which a stranger begins: written directly, by a person, just now. It is
/// answered with a code where pairing is allowed. Edits, reactions, presses and notes about the chat are no messages.
#[must_use]
pub fn is_strangers_message(event: &Event) -> bool {
    let is_direct = event.peer.kind == PeerKind::Dm && event.direction == EventDirection::Received;
    let is_only_unpaired = event.withheld_tags().eq([UNPAIRED]);
    is_direct && is_only_unpaired && event.target.is_none() && !event.from.id.is_empty()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use shared::model::event::{BACKFILLED, EventId, EventMention, FROM_BOT, MIGRATED_FROM, MentionForm};
    use shared::model::origin::EventOrigin;
    use shared::model::time::UnixMillis;
    use shared::platform::policy::{ANY_GROUP, DirectPolicy, GroupPolicy};

    use super::*;

    /// A message of user 5 in the conversation `peer`, with or without a mention.
    fn message(kind: PeerKind, peer: &str, mentions: bool) -> Event {
        let id = EventId::parse("telegram:main/1/1").expect("an id");
        let mut event = Event::new(id, "telegram", peer, UnixMillis(1));
        event.peer.kind = kind;
        event.from.id = "5".to_owned();
        let how = if mentions {
            MentionForm::Native
        } else {
            MentionForm::None
        };
        event.mention = Some(EventMention { me: mentions, how });
        event
    }

    /// The policy of an account to which all may write directly, with `groups`.
    fn open_to(groups: Option<&BTreeMap<String, GroupPolicy<String>>>) -> AccessPolicy<'_, String> {
        static NOBODY: BTreeSet<String> = BTreeSet::new();
        AccessPolicy {
            direct: DirectPolicy::Open,
            allow: &NOBODY,
            groups,
        }
    }

    #[test]
    fn direct_messages_are_for_those_who_may_write() {
        let (open, pairing, allowlist) = (DirectPolicy::Open, DirectPolicy::Pairing, DirectPolicy::Allowlist);
        for (direct, allowed, expected) in [
            (open, None, &[][..]),
            (pairing, None, &[UNPAIRED][..]),
            (pairing, Some(5), &[][..]),
            (allowlist, None, &[UNPAIRED][..]),
            (allowlist, Some(6), &[UNPAIRED][..]),
            (allowlist, Some(5), &[][..]),
        ] {
            let allow: BTreeSet<i64> = allowed.into_iter().collect();
            let policy = AccessPolicy {
                direct,
                allow: &allow,
                groups: None,
            };
            let mut event = message(PeerKind::Dm, "5", false);
            apply_access(&policy, &mut event);
            assert_eq!(event.tags, expected, "{policy:?}");
            assert_eq!(event.direction, EventDirection::Received, "{policy:?}");
        }
    }

    #[test]
    fn only_a_fresh_direct_message_of_a_person_is_answered_with_a_code() {
        let stranger = |change: &dyn Fn(&mut Event)| {
            let mut event = message(PeerKind::Dm, "5", false);
            event.add_tag(UNPAIRED);
            change(&mut event);
            is_strangers_message(&event)
        };
        assert!(stranger(&|_| {}) && stranger(&|event| event.add_tag("urgent")));
        assert!(!stranger(&|event| event.remove_tag(UNPAIRED)));
        assert!(!stranger(&|event| event.add_tag(BACKFILLED)));
        assert!(!stranger(&|event| event.add_tag(FROM_BOT)));
        assert!(!stranger(&|event| event.peer.kind = PeerKind::Group));
        assert!(!stranger(&|event| event.direction = EventDirection::Updated));
        assert!(!stranger(&|event| event.direction = EventDirection::Observed));
        assert!(!stranger(&|event| event.target = Some("telegram:main/5/1".to_owned())));
        assert!(!stranger(&|event| event.from.id.clear()));
    }

    #[test]
    fn an_id_that_is_not_of_the_platform_is_no_allowed_sender() {
        let allow = BTreeSet::from([5_i64]);
        let policy = AccessPolicy {
            direct: DirectPolicy::Allowlist,
            allow: &allow,
            groups: None,
        };
        let mut event = message(PeerKind::Dm, "5", false);
        event.from.id = "U5".to_owned();
        apply_access(&policy, &mut event);
        assert_eq!(event.tags, [UNPAIRED]);
    }

    #[test]
    fn groups_are_listed_and_mentions_required() {
        let (received, observed) = (EventDirection::Received, EventDirection::Observed);
        let of = |require_mention: bool, allow: &[&str]| GroupPolicy {
            require_mention,
            allow: allow.iter().map(|user| (*user).to_owned()).collect(),
            ..GroupPolicy::default()
        };
        for (groups, mentions, tag, direction) in [
            (None, true, Some(UNLISTED), received),
            (Some((ANY_GROUP, of(true, &[]))), false, None, observed),
            (Some((ANY_GROUP, of(true, &[]))), true, None, received),
            (Some((ANY_GROUP, of(false, &[]))), false, None, received),
            (Some(("-6", of(false, &[]))), false, None, received),
            (Some(("-7", of(true, &[]))), true, Some(UNLISTED), received),
            (Some(("-6", of(true, &["5"]))), true, None, received),
            (Some(("-6", of(true, &["6"]))), true, Some(UNLISTED), received),
        ] {
            let groups: Option<BTreeMap<String, GroupPolicy<String>>> =
                groups.map(|(name, policy)| BTreeMap::from([(name.to_owned(), policy)]));
            let policy = open_to(groups.as_ref());
            let mut event = message(PeerKind::Group, "-6", mentions);
            apply_access(&policy, &mut event);
            let tags: Vec<String> = tag.map(str::to_owned).into_iter().collect();
            assert_eq!((event.tags, event.direction), (tags, direction), "{policy:?}");
        }
    }

    #[test]
    fn a_topics_settings_go_before_its_groups() {
        let text = r#"{"-6": {"allow": ["5"], "topics": {
            "7": {"require_mention": false}, "8": {"allow": ["9"]}, "9": {"allow": []}}}}"#;
        let groups: BTreeMap<String, GroupPolicy<String>> = serde_json::from_str(text).expect("groups");
        let policy = open_to(Some(&groups));
        let applied = |sender: &str, topic: Option<&str>| {
            let mut event = message(PeerKind::Group, "-6", false);
            sender.clone_into(&mut event.from.id);
            event.thread_id = topic.map(str::to_owned);
            apply_access(&policy, &mut event);
            (event.tags, event.direction)
        };

        let (received, observed) = (EventDirection::Received, EventDirection::Observed);
        let unlisted = || vec![UNLISTED.to_owned()];
        assert_eq!(applied("5", None), (Vec::new(), observed));
        assert_eq!(applied("5", Some("7")), (Vec::new(), received));
        assert_eq!(
            applied("6", Some("7")),
            (unlisted(), received),
            "the group's list holds"
        );
        assert_eq!(applied("5", Some("8")), (unlisted(), observed));
        assert_eq!(applied("9", Some("8")), (Vec::new(), observed));
        assert_eq!(applied("6", Some("9")), (Vec::new(), observed), "all members");
    }

    #[test]
    fn a_group_with_another_id_has_the_settings_of_its_former_one() {
        let text = r#"{"-6": {"require_mention": false}, "-1007": {}, "-7": {"require_mention": false}}"#;
        let groups: BTreeMap<String, GroupPolicy<String>> = serde_json::from_str(text).expect("groups");
        let policy = open_to(Some(&groups));
        let applied = |peer: &str, former: &str, origin: EventOrigin| {
            let mut event = message(PeerKind::Group, peer, false);
            event.account_id = Some("main".to_owned());
            event.metadata.insert(MIGRATED_FROM.to_owned(), former.into());
            event.origin = origin;
            apply_access(&policy, &mut event);
            (event.tags, event.direction)
        };

        let own = || EventOrigin::account("telegram", "main");
        let (received, observed) = (EventDirection::Received, EventDirection::Observed);
        let unlisted = || vec![UNLISTED.to_owned()];
        assert_eq!(applied("-1006", "-6", own()), (Vec::new(), received));
        assert_eq!(
            applied("-1006", "-6", EventOrigin::Open),
            (unlisted(), received),
            "not proven"
        );
        assert_eq!(
            applied("-1007", "-7", own()),
            (Vec::new(), observed),
            "its own go before"
        );
        assert_eq!(applied("-1008", "-8", own()), (unlisted(), received));
    }

    #[test]
    fn an_edit_stays_one_and_a_press_is_addressed() {
        let groups = BTreeMap::from([(ANY_GROUP.to_owned(), GroupPolicy::<String>::default())]);
        let policy = open_to(Some(&groups));

        let mut edit = message(PeerKind::Group, "-6", false);
        edit.direction = EventDirection::Updated;
        let mut press = message(PeerKind::Channel, "-6", false);
        press.content_types = vec!["press".to_owned()];
        for (mut event, direction) in [(edit, EventDirection::Updated), (press, EventDirection::Received)] {
            apply_access(&policy, &mut event);
            assert_eq!(event.direction, direction);
        }
    }
}
