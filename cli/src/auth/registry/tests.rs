use super::*;

fn registry() -> UserRegistry {
    let record = |account: BusAccount| AccountRecord {
        public: format!("A{}", account.name()),
        issued: 0,
        token: String::new(),
        revoked: BTreeMap::new(),
    };
    UserRegistry {
        accounts: BusAccount::ALL
            .into_iter()
            .map(|account| (account, record(account)))
            .collect(),
        ..UserRegistry::default()
    }
}

fn wanted(name: &str, role: BusRole) -> WantedUser {
    WantedUser {
        name: name.to_owned(),
        role,
        channel: None,
        personas: Vec::new(),
        expires: None,
    }
}

#[test]
fn a_rotated_key_is_refused_only_once_it_is_asked_for() {
    let mut registry = registry();
    registry
        .add(wanted("hook", BusRole::Hook), "U1".to_owned(), 10)
        .expect("added");
    registry
        .rotate("hook", "U2".to_owned(), 20, NewExpiry::At(99))
        .expect("rotated");
    assert_eq!(registry.users["hook"].state(20), UserState::Rotating);
    assert!(registry.accounts[&BusAccount::Nexus].revoked.is_empty());

    assert!(registry.revoke_retired("hook", 30).expect("there"));
    assert!(!registry.revoke_retired("hook", 31).expect("once"));
    assert_eq!(
        registry.accounts[&BusAccount::Nexus].revoked,
        [("U1".to_owned(), 30)].into()
    );
    assert_eq!(registry.users["hook"].state(98), UserState::Active);
    assert_eq!(registry.users["hook"].state(99), UserState::Expired);
}

#[test]
fn a_revoked_user_is_refused_with_all_its_keys_in_its_own_account() {
    let mut registry = registry();
    registry
        .add(wanted("one", BusRole::Agent), "U1".to_owned(), 10)
        .expect("added");
    registry
        .rotate("one", "U2".to_owned(), 50, NewExpiry::Never)
        .expect("rotated");
    // The clock is set back.
    registry.revoke("one", 40).expect("revoked");
    let refused = [("U1".to_owned(), 50), ("U2".to_owned(), 50)];
    assert_eq!(
        registry.accounts[&BusAccount::Agents].revoked,
        refused.into(),
        "whatever the clock says"
    );
    assert!(registry.accounts[&BusAccount::Nexus].revoked.is_empty());
    assert!(registry.unpushed);

    let again = registry.rotate("one", "U3".to_owned(), 60, NewExpiry::Never);
    assert_eq!(again, Err(UserRegistryError::Revoked("one".to_owned())));
    registry
        .add(wanted("one", BusRole::Agent), "U3".to_owned(), 60)
        .expect("made again");
    assert_eq!(registry.users["one"].state(60), UserState::Active);
}

#[test]
fn a_new_key_lasts_as_long_as_the_former_one_unless_it_is_said() {
    let mut registry = registry();
    let guest = WantedUser {
        expires: Some(110),
        ..wanted("guest", BusRole::Viewer)
    };
    registry.add(guest, "U1".to_owned(), 10).expect("added");
    for (now, expires, at) in [
        (100, NewExpiry::AsBefore, Some(200)),
        (150, NewExpiry::At(170), Some(170)),
        (160, NewExpiry::Never, None),
        (170, NewExpiry::AsBefore, None),
    ] {
        registry
            .rotate("guest", format!("U{now}"), now, expires)
            .expect("rotated");
        assert_eq!(registry.users["guest"].expires, at, "{expires:?}");
    }
}

#[test]
fn what_cannot_be_added_is_told() {
    let mut registry = registry();
    registry
        .add(wanted("anna", BusRole::Viewer), "U1".to_owned(), 10)
        .expect("added");
    registry
        .add(wanted("system", BusRole::System), "U2".to_owned(), 10)
        .expect("added");
    let edge = |channel: &str| WantedUser {
        channel: Some(channel.to_owned()),
        ..wanted("mac1", BusRole::Edge)
    };

    assert_eq!(registry.check_new(&edge("imessage")), Ok(()));
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
        (
            WantedUser {
                personas: vec!["shop".to_owned()],
                ..wanted("bob", BusRole::Viewer)
            },
            "only an agent",
        ),
        (
            WantedUser {
                personas: vec!["shop".to_owned(), String::new()],
                ..wanted("bob", BusRole::Agent)
            },
            "`--persona`: expected",
        ),
    ] {
        let error = registry.check_new(&wanted).expect_err(told).to_string();
        assert!(error.contains(told), "{error}");
    }

    assert_eq!(
        registry.revoke("system", 20),
        Err(UserRegistryError::Needed("system".to_owned()))
    );
    assert_eq!(
        registry.revoke("nobody", 20),
        Err(UserRegistryError::Unknown("nobody".to_owned()))
    );
}

#[test]
fn a_folder_that_is_behind_takes_over_whom_the_servers_refuse() {
    let mut registry = registry();
    for (name, key) in [("one", "U1"), ("two", "U2"), ("new", "U3")] {
        registry
            .add(wanted(name, BusRole::Agent), key.to_owned(), 10)
            .expect("added");
    }
    registry
        .rotate("two", "U4".to_owned(), 20, NewExpiry::Never)
        .expect("rotated");
    registry.revoke("new", 90).expect("revoked");

    // The copy has revoked `one` and the former key of `two`, and knows nothing of `new`.
    let theirs = [("U1".to_owned(), 50), ("U2".to_owned(), 50), ("U3".to_owned(), 40)].into();
    registry.take_over(BusAccount::Agents, 50, &theirs);

    let account = &registry.accounts[&BusAccount::Agents];
    assert_eq!(account.issued, 50);
    assert_eq!(
        account.revoked,
        [("U1".to_owned(), 50), ("U2".to_owned(), 50), ("U3".to_owned(), 90)].into()
    );
    let states = ["one", "two", "new"].map(|name| registry.users[name].state(60));
    assert_eq!(states, [UserState::Revoked, UserState::Active, UserState::Revoked]);
    assert!(registry.accounts[&BusAccount::Nexus].revoked.is_empty());
}
