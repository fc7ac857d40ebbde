use super::*;

fn ring() -> Ring {
    let record = |account: BusAccount| AccountRecord {
        public: format!("A{}", account.name()),
        issued: 0,
        token: String::new(),
        revoked: BTreeMap::new(),
    };
    Ring {
        accounts: BusAccount::ALL
            .into_iter()
            .map(|account| (account, record(account)))
            .collect(),
        ..Ring::default()
    }
}

fn wanted(name: &str, role: BusRole) -> WantedUser {
    WantedUser {
        name: name.to_owned(),
        role,
        channel: None,
        expires: None,
    }
}

#[test]
fn a_rotated_key_is_refused_only_once_it_is_asked_for() {
    let mut ring = ring();
    ring.add(wanted("hook", BusRole::Hook), "U1".to_owned(), 10)
        .expect("added");
    ring.rotate("hook", "U2".to_owned(), 20, NewExpiry::At(99))
        .expect("rotated");
    assert_eq!(ring.users["hook"].state(20), UserState::Rotating);
    assert!(ring.accounts[&BusAccount::Nexus].revoked.is_empty());

    assert!(ring.revoke_retired("hook", 30).expect("there"));
    assert!(!ring.revoke_retired("hook", 31).expect("once"));
    assert_eq!(
        ring.accounts[&BusAccount::Nexus].revoked,
        [("U1".to_owned(), 30)].into()
    );
    assert_eq!(ring.users["hook"].state(98), UserState::Active);
    assert_eq!(ring.users["hook"].state(99), UserState::Expired);
}

#[test]
fn a_revoked_user_is_refused_with_all_its_keys_in_its_own_account() {
    let mut ring = ring();
    ring.add(wanted("one", BusRole::Agent), "U1".to_owned(), 10)
        .expect("added");
    ring.rotate("one", "U2".to_owned(), 50, NewExpiry::Never)
        .expect("rotated");
    // The clock is set back.
    ring.revoke("one", 40).expect("revoked");
    let refused = [("U1".to_owned(), 50), ("U2".to_owned(), 50)];
    assert_eq!(
        ring.accounts[&BusAccount::Agents].revoked,
        refused.into(),
        "whatever the clock says"
    );
    assert!(ring.accounts[&BusAccount::Nexus].revoked.is_empty());
    assert!(ring.unpushed);

    let again = ring.rotate("one", "U3".to_owned(), 60, NewExpiry::Never);
    assert_eq!(again, Err(RingError::Revoked("one".to_owned())));
    ring.add(wanted("one", BusRole::Agent), "U3".to_owned(), 60)
        .expect("made again");
    assert_eq!(ring.users["one"].state(60), UserState::Active);
}

#[test]
fn a_new_key_lasts_as_long_as_the_former_one_unless_it_is_said() {
    let mut ring = ring();
    let guest = WantedUser {
        expires: Some(110),
        ..wanted("guest", BusRole::Viewer)
    };
    ring.add(guest, "U1".to_owned(), 10).expect("added");
    for (now, expires, at) in [
        (100, NewExpiry::AsBefore, Some(200)),
        (150, NewExpiry::At(170), Some(170)),
        (160, NewExpiry::Never, None),
        (170, NewExpiry::AsBefore, None),
    ] {
        ring.rotate("guest", format!("U{now}"), now, expires).expect("rotated");
        assert_eq!(ring.users["guest"].expires, at, "{expires:?}");
    }
}

#[test]
fn what_cannot_be_added_is_told() {
    let mut ring = ring();
    ring.add(wanted("anna", BusRole::Viewer), "U1".to_owned(), 10)
        .expect("added");
    ring.add(wanted("system", BusRole::System), "U2".to_owned(), 10)
        .expect("added");
    let edge = |channel: &str| WantedUser {
        channel: Some(channel.to_owned()),
        ..wanted("mac1", BusRole::Edge)
    };

    assert_eq!(ring.check_new(&edge("imessage")), Ok(()));
    for (wanted, told) in [
        (wanted("Anna", BusRole::Viewer), "is not a user's name"),
        (wanted("a.b", BusRole::Viewer), "is not a user's name"),
        (wanted("a_b", BusRole::Viewer), "is not a user's name"),
        (wanted("a-", BusRole::Viewer), "is not a user's name"),
        (wanted("server", BusRole::Viewer), "is not a user's name"),
        (wanted("hook", BusRole::Viewer), "name of the role"),
        (wanted("anna", BusRole::Operator), "there is a user `anna`"),
        (wanted("mac1", BusRole::Edge), "`--channel` names"),
        (edge("i.*"), "`--channel`: expected"),
        (
            WantedUser {
                channel: Some("x".to_owned()),
                ..wanted("bob", BusRole::Viewer)
            },
            "only an edge",
        ),
    ] {
        let error = ring.check_new(&wanted).expect_err(told).to_string();
        assert!(error.contains(told), "{error}");
    }

    assert_eq!(ring.revoke("system", 20), Err(RingError::Needed("system".to_owned())));
    assert_eq!(ring.revoke("nobody", 20), Err(RingError::Unknown("nobody".to_owned())));
}
