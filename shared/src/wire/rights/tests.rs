use super::*;
use crate::wire::topology::topology;

#[test]
fn what_a_role_reads_or_writes_is_in_the_topology() {
    let streams: BTreeSet<String> = topology(1).streams.into_iter().map(|stream| stream.name).collect();
    for role in BusRole::ALL {
        for right in role.rights() {
            let named = match *right {
                Right::Read(stream) | Right::Delete(stream) | Right::Purge(stream) => Some(stream.to_owned()),
                Right::ReadKeys(bucket) | Right::WriteKeys(bucket) => Some(format!("KV_{bucket}")),
                Right::ReadFiles(bucket) | Right::WriteFiles(bucket) => Some(format!("OBJ_{bucket}")),
                Right::Publish(_) | Right::Hear(_) | Right::Ask(_) | Right::Serve(_) | Right::Api(_) => None,
            };
            assert!(
                named.as_ref().is_none_or(|name| streams.contains(name)),
                "{role:?}: {named:?}"
            );
        }
    }
}

#[test]
fn what_a_role_asks_is_served_by_another() {
    let served: Vec<&str> = BusRole::ALL
        .iter()
        .flat_map(|role| role.rights())
        .filter_map(|right| match right {
            Right::Serve(endpoint) => Some(*endpoint),
            Right::Publish(_)
            | Right::Hear(_)
            | Right::Ask(_)
            | Right::Api(_)
            | Right::Read(_)
            | Right::Delete(_)
            | Right::Purge(_)
            | Right::ReadKeys(_)
            | Right::WriteKeys(_)
            | Right::ReadFiles(_)
            | Right::WriteFiles(_) => None,
        })
        .collect();

    for role in BusRole::ALL {
        for right in role.rights() {
            if let Right::Ask(asked) = right {
                assert!(
                    served.iter().any(|endpoint| covers(endpoint, asked)),
                    "{role:?} asks {asked}"
                );
            }
        }
    }
}

#[test]
fn no_service_changes_streams_and_nobody_outside_reaches_one() {
    for role in BusRole::ALL {
        let subjects = role.subjects();
        for call in [
            "STREAM.CREATE.EVENTS",
            "STREAM.UPDATE.EVENTS",
            "STREAM.DELETE.EVENTS",
            "STREAM.PURGE.LEDGER",
        ] {
            let may = subjects.may_publish(role.name(), &format!("$JS.API.{call}"));
            assert!(!(role.is_service() && may), "{role:?}: {call}");
        }

        let calls_streams = subjects.may_publish(role.name(), "$JS.API.STREAM.INFO.EVENTS");
        assert!(!calls_streams || role.account().has_streams(), "{role:?}");
    }
}

#[test]
fn nobody_hears_the_answers_to_others() {
    for role in BusRole::ALL {
        let subjects = role.subjects();
        let own = |name: &str| format!("{}.x", role.inboxes(name));
        assert!(subjects.may_hear(role.name(), &own(role.name())), "{role:?}");
        // Users have any name, not that of their role alone.
        for inbox in [own("anna"), own("mac1"), "_INBOX.x".to_owned()] {
            assert!(!subjects.may_hear(role.name(), &inbox), "{role:?} hears {inbox}");
        }

        for other in BusRole::ALL.into_iter().filter(|other| *other != role) {
            let inbox = format!("{}.x", other.inboxes(other.name()));
            assert!(!subjects.may_hear(role.name(), &inbox), "{role:?} hears {inbox}");
            // A stolen key of a role makes users of that role, also with the names of others.
            let is_apart = role.account() != other.account();
            assert!(
                is_apart || !subjects.may_hear(other.name(), &inbox),
                "{role:?} hears {inbox}"
            );
        }
    }
}

#[test]
fn people_reach_streams_by_the_services_alone() {
    for role in [BusRole::Operator, BusRole::Viewer] {
        for subject in role.subjects().publish {
            assert!(subject.starts_with("nexus.svc."), "{role:?}: {subject}");
        }
    }
}

/// Whose requests the server itself answers, in the account that has the streams, can have its answer stored in any of them.
#[test]
fn the_page_about_walls_names_whom_none_keeps_out_of_the_streams() {
    let text = include_str!("../../../../docs/security.md");
    let line = text
        .lines()
        .find(|line| line.starts_with("- **A service, and the users "));
    let named = line.expect("who is not kept out").split('`').skip(1).step_by(2);
    let mut named: Vec<&str> = named.take_while(|name| BusRole::parse(name).is_some()).collect();

    let is_kept_out = |role: &BusRole| {
        let mut published = role.subjects().publish.into_iter();
        !role.account().has_streams() || published.all(|subject| subject.starts_with("nexus.svc."))
    };
    let reach = BusRole::ALL.into_iter().filter(|role| !is_kept_out(role));
    let mut reach: Vec<&str> = reach.filter(|role| !role.is_service()).map(BusRole::name).collect();
    named.sort_unstable();
    reach.sort_unstable();
    assert_eq!(reach, named);
}

#[test]
fn no_right_stands_twice_or_is_covered_by_another() {
    for role in BusRole::ALL {
        let rights = role.rights();
        for (index, right) in rights.iter().enumerate() {
            for (_, other) in rights.iter().enumerate().filter(|(at, _)| *at != index) {
                let within = |part: &[String], whole: &[String]| {
                    part.iter().all(|one| whole.iter().any(|filter| covers(filter, one)))
                };
                let is_covered =
                    within(&right.publishes(), &other.publishes()) && within(&right.subscribes(), &other.subscribes());
                assert!(!is_covered, "{role:?}: {right:?} is within {other:?}");
            }
        }
    }
}

#[test]
fn unreadable_messages_are_removed_by_those_who_read_the_stream() {
    assert!(BusRole::Hook.may_clear("EVENTS") && BusRole::Delivery.may_clear("RECEIPTS"));
    assert!(BusRole::Scheduler.may_clear("KV_leases") && BusRole::Admin.may_clear("EVENTS"));
    // It writes the keys, and reads none.
    assert!(!BusRole::Broker.may_clear("KV_leases") && !BusRole::Broker.may_clear("LEDGER"));

    for role in BusRole::ALL {
        let streams = topology(1).streams;
        let clears = streams.iter().any(|stream| role.may_clear(&stream.name));
        assert_eq!(role.clears_streams(), clears, "{role:?}");
    }
}
