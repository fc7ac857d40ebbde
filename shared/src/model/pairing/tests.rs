use super::super::pairing_api::{PairingState, may_write, view_pairings};
use super::*;

const NOW: UnixMillis = UnixMillis(1_700_000_000_000);

fn message(number: u64) -> Event {
    let id = EventId::parse(format!("telegram:main/5/{number}")).expect("an id");
    let mut event = Event::new(id, "telegram", "5", NOW);
    event.account_id = Some("main".to_owned());
    event.from.id = "5".to_owned();
    event.from.display_name = Some("Ann".to_owned());
    event
}

fn offered(at: UnixMillis) -> Pairing {
    match offer_code(None, &message(1), at, "K7Q2M9PX".to_owned()) {
        OfferStep::Store(pairing) => pairing,
        other @ (OfferStep::Repeat(_) | OfferStep::Nothing) => panic!("{other:?}"),
    }
}

fn decision(granted: bool, at: UnixMillis) -> PairingDecision {
    PairingDecision { granted, at }
}

#[test]
fn a_sender_gets_one_code_an_hour_and_the_same_message_the_same_one() {
    let first = offered(NOW);
    let step = |event: u64, at: UnixMillis| offer_code(Some(first.clone()), &message(event), at, "00000000".to_owned());

    assert_eq!(step(1, NOW), OfferStep::Repeat(first.clone()));
    assert_eq!(step(1, NOW.plus(10 * CODE_LASTS_MS)), OfferStep::Repeat(first.clone()));
    assert_eq!(step(2, NOW.plus(CODE_LASTS_MS - 1)), OfferStep::Nothing);
    // A clock that was set back.
    assert_eq!(step(2, NOW.plus(-10 * CODE_LASTS_MS)), OfferStep::Nothing);

    let OfferStep::Store(second) = step(2, NOW.plus(CODE_LASTS_MS)) else {
        panic!("an hour is over")
    };
    assert_eq!(second.offer.map(|offer| offer.code).as_deref(), Some("00000000"));
}

#[test]
fn a_new_code_keeps_what_was_decided() {
    let withdrawn = offered(NOW).decided(decision(false, NOW));
    assert_eq!(code_reply(&withdrawn, &message(1)), None, "its code is void");
    let step =
        |event: u64, at: UnixMillis| offer_code(Some(withdrawn.clone()), &message(event), at, "00000000".to_owned());
    assert_eq!([step(1, NOW), step(2, NOW)], [OfferStep::Nothing, OfferStep::Nothing]);

    let later = NOW.plus(CODE_LASTS_MS);
    let OfferStep::Store(again) = step(2, later) else {
        panic!("the hour is over")
    };
    assert_eq!(again.decision, Some(decision(false, NOW)));
    assert!(!again.is_granted() && again.is_waiting(later));
}

#[test]
fn the_message_with_the_code_is_the_same_whenever_it_is_made() {
    let pairing = offered(NOW);
    let reply = code_reply(&pairing, &message(1)).expect("a message");
    assert_eq!(Some(&reply), code_reply(&pairing, &message(1)).as_ref());
    assert!(reply.content.contains("K7Q2-M9PX"), "{}", reply.content);
    assert_eq!(reply.delivery_context.peer_id.as_deref(), Some("5"));

    let other = offered(NOW.plus(CODE_LASTS_MS));
    assert_ne!(code_reply(&other, &message(1)).expect("a message").id, reply.id);

    let notice = PairingNotice::from_interactive(reply.interactive.as_ref()).expect("a notice");
    let text = notice.redact_text(&reply.content);
    assert!(!text.contains("K7Q2") && text.contains(HIDDEN_CODE), "{text}");
    for other in [
        json!({"kind": "approval", "code": "x"}),
        json!({"kind": "pairing", "code": ""}),
        json!(null),
    ] {
        assert_eq!(PairingNotice::from_interactive(Some(&other)), None);
    }
}

#[test]
fn a_code_is_found_as_people_type_it_and_in_its_hour() {
    let find = |typed: &str, at: UnixMillis| find_by_code([offered(NOW)], typed, at).map(|found| found.sender);
    for typed in ["K7Q2-M9PX", "k7q2m9px", " K7Q2 M9PX ", "k7q2-m9px"] {
        assert_eq!(find(typed, NOW.plus(1)).as_deref(), Ok("5"), "{typed}");
    }
    for typed in ["", "K7Q2-M9P", "K7Q2-M9PXX", "K7Q2-M9P0"] {
        assert_eq!(find(typed, NOW.plus(1)), Err(UseCodeError::Unknown), "{typed}");
    }
    assert_eq!(find("K7Q2M9PX", NOW.plus(CODE_LASTS_MS)), Err(UseCodeError::Expired));

    // The answer to a first request may be lost: the second one says the same.
    let granted = offered(NOW).decided(decision(true, NOW));
    let again = find_by_code([granted.clone()], "K7Q2M9PX", NOW.plus(10 * CODE_LASTS_MS));
    assert_eq!(again.as_ref(), Ok(&granted));
    let withdrawn = granted.decided(decision(false, NOW));
    assert_eq!(find_by_code([withdrawn], "K7Q2M9PX", NOW), Err(UseCodeError::Unknown));
}

#[test]
fn letters_that_look_like_digits_are_those() {
    let mut pairing = offered(NOW);
    if let Some(offer) = &mut pairing.offer {
        offer.code = "01010101".to_owned();
    }
    assert_eq!(
        find_by_code([pairing], "oIoL-0lO1", NOW)
            .map(|found| found.sender)
            .as_deref(),
        Ok("5")
    );
}

#[test]
fn codes_are_random_letters_and_not_printed() {
    let code = make_code(Ulid::from_parts(1, 0x0123_4567_89AB_CDEF));
    assert_eq!(code.len(), CODE_CHARACTERS);
    assert_eq!(clean_code(&format_code(&code)), code);
    let printed = format!("{:?}", offered(NOW));
    assert!(!printed.contains("K7Q2"), "{printed}");
}

#[test]
fn the_owner_is_told_of_a_stranger_and_not_of_the_code() {
    let place = DeliveryContext {
        channel: "slack".to_owned(),
        account_id: Some("work".to_owned()),
        peer_id: Some("D1".to_owned()),
        ..DeliveryContext::default()
    };
    let mut pairing = offered(NOW);
    pairing.name = Some("Ann`\n# Ann".to_owned());
    let notice = stranger_notice(&pairing, &message(1), &place).expect("a notice");
    assert_eq!(Some(&notice), stranger_notice(&pairing, &message(1), &place).as_ref());
    assert_eq!((&notice.delivery_context, &notice.interactive), (&place, &None));
    assert!(
        notice
            .content
            .starts_with("A stranger (`Ann' # Ann`, id `5`) wrote to telegram/main")
    );
    assert!(!notice.content.contains("K7Q2"), "{}", notice.content);

    let code = code_reply(&pairing, &message(1)).expect("a message");
    assert_ne!(notice.id, code.id);
    let later = offered(NOW.plus(CODE_LASTS_MS));
    let again = stranger_notice(&later, &message(1), &place).expect("a notice");
    assert_ne!(again.id, notice.id);
    assert!(again.content.contains("`Ann`, id `5`"), "{}", again.content);

    pairing.name = None;
    let nameless = stranger_notice(&pairing, &message(1), &place).expect("a notice");
    assert!(
        nameless.content.starts_with("A stranger (id `5`) "),
        "{}",
        nameless.content
    );
    let withdrawn = offered(NOW).decided(decision(false, NOW));
    assert_eq!(stranger_notice(&withdrawn, &message(1), &place), None);
}

#[test]
fn a_withdrawal_in_the_record_holds_against_an_older_bucket() {
    let granted = offered(NOW).decided(decision(true, NOW.plus(1)));
    let (grant, withdrawal) = (decision(true, NOW.plus(1)), decision(false, NOW.plus(2)));
    assert!(may_write(Some(&granted), Some(&grant)));
    assert!(may_write(Some(&granted), None), "the record is lost");
    assert!(!may_write(Some(&granted), Some(&withdrawal)));
    assert!(!may_write(Some(&offered(NOW)), Some(&grant)) && !may_write(None, Some(&grant)));
    assert!(offered(NOW).is_withdrawn_by(&withdrawal) && offered(NOW.plus(2)).is_withdrawn_by(&withdrawal));
    assert!(!offered(NOW.plus(3)).is_withdrawn_by(&withdrawal), "a later code");
    assert!(!offered(NOW).is_withdrawn_by(&grant) && !granted.is_withdrawn_by(&grant));
    let done = granted.clone().decided(withdrawal.clone());
    assert!(!done.is_withdrawn_by(&withdrawal), "the value says so itself");

    let view = |pairings: Vec<Pairing>, decisions: &[&PairingDecision]| {
        let record = |decision: &&PairingDecision| PairingRecord {
            decision: (*decision).clone(),
            ..offered(NOW).record(true, NOW)
        };
        let views = view_pairings(pairings, decisions.iter().map(record).collect(), NOW.plus(3));
        views
            .into_iter()
            .map(|view| (view.state, view.is_restored))
            .collect::<Vec<_>>()
    };
    let waiting = offered(NOW);
    let withdrawn = granted.clone().decided(withdrawal.clone());
    for (pairings, decisions, expected) in [
        (vec![waiting.clone()], &[][..], (PairingState::Waiting, false)),
        (
            vec![offered(NOW.plus(-CODE_LASTS_MS))],
            &[][..],
            (PairingState::Expired, false),
        ),
        (vec![granted.clone()], &[&grant][..], (PairingState::Paired, false)),
        (
            vec![granted.clone()],
            &[&grant, &withdrawal][..],
            (PairingState::Withdrawn, true),
        ),
        (
            vec![withdrawn],
            &[&grant, &withdrawal][..],
            (PairingState::Withdrawn, false),
        ),
        (
            vec![waiting.clone()],
            &[&withdrawal][..],
            (PairingState::Withdrawn, true),
        ),
        (vec![], &[&grant, &withdrawal][..], (PairingState::Withdrawn, false)),
        (vec![], &[&grant][..], (PairingState::Lost, true)),
        (vec![waiting], &[&grant][..], (PairingState::Waiting, true)),
    ] {
        assert_eq!(view(pairings, decisions), [expected]);
    }
}
