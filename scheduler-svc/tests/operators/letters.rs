//! Dead letters: redriven or dropped once.

use serde_json::{Value, json};
use shared::bus::{OutgoingMessage, claim};
use shared::model::position::StreamPlace;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::headers::{Headers, MSG_ID, TraceCarrier};
use shared::wire::held::HELD_LETTER;
use shared::wire::operator::audit::{ListRecords, RecordList};
use shared::wire::operator::letters::{
    DecideLetter, LetterDropped, LetterList, LetterRedriven, LetterStep, ListLetters, ShowLetter, ShownLetter,
};
use shared::wire::subject;
use shared::wire::topology::streams::EVENTS;
use ulid::Ulid;

use crate::world::{World, request};

fn letter(payload: &str) -> DeadLetter {
    DeadLetter {
        service: "hook-svc".to_owned(),
        subject: "nexus.ev.7.e2e.default.p".to_owned(),
        redrive_subject: "nexus.event.e2e.default.p".to_owned(),
        stream: EVENTS.to_owned(),
        sequence: 5,
        headers: vec![
            (MSG_ID.to_owned(), "of the first".to_owned()),
            ("Kept".to_owned(), "yes".to_owned()),
        ],
        payload: DeadLetter::encode_payload(payload.as_bytes()),
        reason: "malformed".to_owned(),
        detail: "it is bad".to_owned(),
        attempts: 1,
        at: UnixMillis(7),
    }
}

fn begun() -> LetterStep {
    LetterStep::RedriveBegun {
        subject: "nexus.event.e2e.default.p".to_owned(),
        service: "hook-svc".to_owned(),
        reason: "malformed".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redrive_is_recorded_and_then_done_once() {
    let world = World::start().await;
    let place = world.letter(&letter("one")).await;
    let done = world.redrive(place.sequence).await.expect("redriven");
    assert_eq!(
        (done.sequence, done.subject.as_str(), done.repeated),
        (1, "nexus.event.e2e.default.p", false)
    );

    let stored = world
        .bus
        .at_sequence(EVENTS, 1)
        .await
        .expect("readable")
        .expect("it is there");
    assert_eq!(
        (stored.payload.as_ref(), stored.headers.get("Kept")),
        (&b"one"[..], Some("yes"))
    );
    let id = stored.headers.get(MSG_ID).expect("an id of its own");
    assert!(id.starts_with("redrive:1:"), "{id}");

    assert!(!world.is_there(1).await);
    assert_eq!(world.steps(1).await, ["redrive_begun", "redriven"]);

    // The answer may have been lost: whoever asks again is told the same.
    let again = world.redrive(1).await.expect("told again");
    assert_eq!(again, LetterRedriven { repeated: true, ..done });
    assert_eq!(world.payloads(EVENTS).await, ["one"]);
    let (code, text) = world.drop_letter(1).await.expect_err("it is gone");
    assert!(code == 404 && text.contains("no dead letter 1"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_who_ask_at_once_do_one_thing() {
    let world = World::start().await;
    for number in 1..=10 {
        world.letter(&letter(&format!("letter {number}"))).await;
    }

    // Of those who want it redriven and those who want it dropped, one is first.
    for number in 1..=10 {
        let (redriven, dropped) = tokio::join!(
            futures_util::future::join_all((0..4).map(|_| world.redrive(number))),
            futures_util::future::join_all((0..4).map(|_| world.drop_letter(number))),
        );
        let published = world.payloads(EVENTS).await;
        let of_this = published
            .iter()
            .filter(|text| **text == format!("letter {number}"))
            .count();
        let (redriven, dropped) = (redriven.iter().any(Result::is_ok), dropped.iter().any(Result::is_ok));
        assert!(redriven != dropped, "{number}: {redriven} {dropped}");
        assert_eq!(of_this, usize::from(redriven), "{number}: {published:?}");
        assert!(!world.is_there(number).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_replica_goes_on_where_one_was_killed() {
    let world = World::start().await;
    let operation = Ulid::from_parts(1, 7);

    // Killed before the message was published.
    let place = world.letter(&letter("a")).await;
    world.record(place, operation, begun()).await;
    let (code, text) = world.drop_letter(1).await.expect_err("it may be published");
    assert!(
        code == 409 && text.contains("`nexus dlq redrive 1` ends that"),
        "{text}"
    );
    assert_eq!(world.redrive(1).await.expect("redriven").sequence, 1);

    // Killed after it was published, within the server's duplicate window and beyond it.
    for (number, id) in [
        (2, format!("redrive:2:{operation}")),
        (3, format!("redrive:3:{operation}")),
    ] {
        let place = world.letter(&letter(&format!("b{number}"))).await;
        world.record(place, operation, begun()).await;
        // A server whose duplicate window is over knows the id no more, as one that does not know this spelling.
        let name = if number == 2 {
            MSG_ID.to_owned()
        } else {
            MSG_ID.to_lowercase()
        };
        let out = OutgoingMessage::raw("nexus.event.e2e.default.p".to_owned(), Headers::new(), "b".into());
        world.bus.publish(out.header(&name, id)).await.expect("stored");
        let done = world.redrive(number).await.expect("redriven");
        assert_eq!((done.sequence, done.repeated), (number, true));
    }

    // Killed before the letter was deleted.
    let place = world.letter(&letter("c")).await;
    world.record(place, operation, begun()).await;
    let position = world
        .bus
        .position_at(EVENTS, 3)
        .await
        .expect("readable")
        .expect("a position");
    let step = LetterStep::Redriven {
        subject: "nexus.event.e2e.default.p".to_owned(),
        stream: EVENTS.to_owned(),
        position,
    };
    world.record(place, operation, step).await;
    assert_eq!(world.redrive(4).await.expect("confirmed").sequence, 3);
    assert!(!world.is_there(4).await);
    assert_eq!(world.payloads(EVENTS).await, ["a", "b", "b"]);

    // Killed between the record of a drop and the deletion.
    let place = world.letter(&letter("d")).await;
    let dropped = LetterStep::Dropped {
        service: "hook-svc".to_owned(),
        reason: "malformed".to_owned(),
    };
    world.record(place, operation, dropped).await;
    let (code, text) = world.redrive(5).await.expect_err("it is dropped");
    assert!(
        code == 409 && text.contains("dead letter 5 was dropped by anna at 1970"),
        "{text}"
    );
    let done = world.drop_letter(5).await.expect("dropped");
    assert!(done.repeated && done.service == "hook-svc", "{done:?}");
    assert!(!world.is_there(5).await);
    assert!(world.drop_letter(5).await.expect("told again").repeated);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_restored_stream_lost_is_redriven_again() {
    let world = World::start().await;
    let place = world.letter(&letter("one")).await;
    let position = world.redrive(1).await.map(|done| done.sequence).expect("redriven");
    assert_eq!(position, 1);

    // As in a DLQ that was put back: the letter is there again, its records say that it was redriven.
    let again = world.letter(&letter("one")).await;
    let stored = world
        .bus
        .position_at(EVENTS, 1)
        .await
        .expect("readable")
        .expect("a position");
    let step = |position| LetterStep::Redriven {
        subject: "nexus.event.e2e.default.p".to_owned(),
        stream: EVENTS.to_owned(),
        position,
    };
    world.record(again, Ulid::from_parts(2, 2), step(stored.clone())).await;
    let done = world.redrive(again.sequence).await.expect("confirmed");
    assert!(done.repeated && world.payloads(EVENTS).await.len() == 1, "{done:?}");

    // EVENTS was put back too, and has lost the message.
    let third = world.letter(&letter("one")).await;
    world.record(third, Ulid::from_parts(3, 3), step(stored)).await;
    world
        .bus
        .renew_incarnation(EVENTS)
        .await
        .expect("as a stream made anew");
    let done = world.redrive(third.sequence).await.expect("redriven");
    assert_eq!((done.repeated, done.sequence), (false, 2));
    assert_eq!(world.payloads(EVENTS).await, ["one", "one"]);

    // A number that a stream made anew gives to another letter says nothing of it; who listed the old one is told.
    let other = world.letter(&letter("other")).await;
    let former = StreamPlace {
        stored_at_ns: place.stored_at_ns,
        ..other
    };
    world
        .record(
            former,
            Ulid::from_parts(4, 4),
            LetterStep::RedriveRefused { error: "no".to_owned() },
        )
        .await;
    let listed = DecideLetter {
        stored_at_ns: Some(place.stored_at_ns),
        ..request(other.sequence)
    };
    let (code, text) = world
        .ask::<_, LetterRedriven>("dlq.redrive", &listed)
        .await
        .expect_err("another");
    assert!(code == 409 && text.contains("is not the one that was listed"), "{text}");
    assert!(!world.redrive(other.sequence).await.expect("redriven").repeated);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_redriven_is_told_at_once_and_can_be_dropped() {
    let world = World::start().await;
    let nowhere = DeadLetter {
        redrive_subject: "nexus.nowhere".to_owned(),
        ..letter("x")
    };
    let held = DeadLetter {
        service: HELD_LETTER.to_owned(),
        ..letter("x")
    };
    // CLAIMS keeps one message a session, and one waits there.
    let session = SessionRef {
        persona: "default".to_owned(),
        session: "main".to_owned(),
    };
    claim::publish(&world.bus, &session, &TraceCarrier::default())
        .await
        .expect("claimed");
    let full = DeadLetter {
        redrive_subject: subject::claim(&session),
        headers: Vec::new(),
        ..letter("{}")
    };
    for (number, bad, told) in [
        (1, nowhere, "no stream has the subject nexus.nowhere"),
        (2, held, "nexus recover list"),
        (3, full, "the subject already has a message"),
    ] {
        world.letter(&bad).await;
        let (code, text) = world.redrive(number).await.expect_err("refused");
        assert!(code == 409 && text.contains(told), "{text}");
    }

    let unreadable = OutgoingMessage::raw(subject::dlq("x"), Headers::new(), "{".into());
    world.bus.publish(unreadable).await.expect("stored");
    let (code, text) = world.redrive(4).await.expect_err("unreadable");
    assert!(code == 409 && text.contains("dead letter 4 cannot be read"), "{text}");

    assert_eq!(world.steps(1).await, Vec::<String>::new(), "nothing was begun");
    assert_eq!(world.steps(3).await, ["redrive_begun", "redrive_refused"]);
    for number in [1, 3, 4] {
        world.drop_letter(number).await.expect("dropped");
    }
    let (code, _) = world.drop_letter(2).await.expect_err("held");
    assert_eq!(code, 409);
    let nobody = DecideLetter {
        by: String::new(),
        ..request(2)
    };
    let (code, text) = world
        .ask::<_, LetterDropped>("dlq.drop", &nobody)
        .await
        .expect_err("nobody asks");
    assert!(code == 400 && text.starts_with("by: "), "{text}");
    assert_eq!(world.payloads(EVENTS).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_are_listed_by_pages_and_shown_with_what_was_done() {
    let world = World::start().await;
    for number in 0..7_u64 {
        let service = if number % 2 == 0 { "hook-svc" } else { HELD_LETTER };
        let letter = DeadLetter {
            service: service.to_owned(),
            detail: "ä".repeat(1_000),
            ..letter("x")
        };
        world.letter(&letter).await;
    }

    let list = async |question: ListLetters| world.ask::<_, LetterList>("dlq.list", &question).await.expect("listed");
    let numbers = |list: &LetterList| list.letters.iter().map(|one| one.number).collect::<Vec<u64>>();
    let all = list(ListLetters::default()).await;
    assert_eq!((numbers(&all), all.total, all.before), ((1..=7).collect(), 7, None));
    let head = all.letters[0].letter.as_ref().expect("readable");
    assert!(head.detail.len() < 600 && head.detail.ends_with('…'), "{}", head.detail);

    let without = ListLetters {
        without_held: true,
        limit: 3,
        ..ListLetters::default()
    };
    let page = list(without.clone()).await;
    assert_eq!((numbers(&page), page.total), (vec![3, 5, 7], 4));
    let rest = list(ListLetters {
        before: page.before,
        ..without
    })
    .await;
    assert_eq!((numbers(&rest), rest.before), (vec![1], None));

    let dropped = DecideLetter {
        stored_at_ns: Some(all.letters[2].stored_at_ns),
        ..request(3)
    };
    let begun_place = StreamPlace {
        sequence: 5,
        stored_at_ns: all.letters[4].stored_at_ns,
    };
    world.record(begun_place, Ulid::from_parts(1, 1), begun()).await;
    world
        .ask::<_, LetterDropped>("dlq.drop", &dropped)
        .await
        .expect("dropped");
    let shown: ShownLetter = world.ask("dlq.show", &ShowLetter { number: 5 }).await.expect("shown");
    assert_eq!((shown.history.len(), shown.payload_bytes), (1, 1));
    assert_eq!(shown.letter.detail.chars().count(), 1_000, "whole");
    let (code, _) = world
        .ask::<_, Value>("dlq.show", &ShowLetter { number: 3 })
        .await
        .expect_err("gone");
    assert_eq!(code, 404);

    let records: RecordList = world.ask("audit.list", &ListRecords::default()).await.expect("listed");
    let told: Vec<(&str, &Value)> = records
        .records
        .iter()
        .map(|one| (one.subject.as_str(), &one.record.as_ref().expect("readable")["by"]))
        .collect();
    let expected = [
        ("nexus.audit.dlq.5", &json!("anna")),
        ("nexus.audit.dlq.3", &json!("bob")),
    ];
    assert_eq!(told, expected);
    let about = ListRecords {
        topic: Some("dlq".to_owned()),
        about: Some("3".to_owned()),
        ..ListRecords::default()
    };
    let about: RecordList = world.ask("audit.list", &about).await.expect("listed");
    assert_eq!(about.records.len(), 1);
    assert_eq!(about.records[0].schema.as_deref(), Some("letter_record/1"));
}
