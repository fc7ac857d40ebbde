use serde_json::json;
use shared::model::approval::{ApprovalParty, ApprovalRequest, ApprovalTrail, DeciderScope, DecisionProof};
use shared::model::dispatch::{DeliveryContext, DispatchCause};
use shared::model::event::EventId;
use shared::model::identity::KnownPerson;
use ulid::Ulid;

use super::*;
use crate::approval::scope::identify_party;
use crate::sample::session;
use ApprovalStatus::{Approved, Canceled, Consumed, Denied, Expired, Pending, Superseded};

const ALL: [ApprovalStatus; 7] = [Pending, Approved, Denied, Expired, Canceled, Superseded, Consumed];
const ASKED: UnixMillis = UnixMillis(1_000);
const EXPIRES: UnixMillis = UnixMillis(2_000);

/// Ann is the owner, Bob and Cid are others.
pub(crate) fn identities() -> Identities {
    let person = |id: &str, telegram: &str, webchat: &str| KnownPerson {
        id: id.to_owned(),
        addresses: [("telegram", telegram), ("webchat", webchat)]
            .into_iter()
            .map(|(channel, id)| (channel.to_owned(), vec![id.to_owned()]))
            .collect(),
        ..KnownPerson::default()
    };

    Identities {
        owner: Some("ann".to_owned()),
        persons: vec![
            person("ann", "1", "a"),
            person("bob", "2", "b"),
            person("cid", "3", "c"),
        ],
        ..Identities::default()
    }
}

/// Details of a question that Bob asks on Telegram, for the owner to decide.
pub(crate) fn asked_in() -> AskedIn {
    AskedIn {
        session: session(),
        turn: Ulid::nil(),
        scope: DeciderScope::Owner,
        initiator: Some(ApprovalParty {
            channel: "telegram".to_owned(),
            id: "2".to_owned(),
            proof: DecisionProof::Vouched,
            person: None,
        }),
        reason: None,
        escalate_at: None,
        place: DeliveryContext::default(),
        causation: DispatchCause {
            event: EventId::parse("test:1").expect("an id"),
            hops: 0,
        },
        outside: None,
    }
}

pub(crate) fn confirmation(status: ApprovalStatus) -> ConfirmationTerms {
    let arguments = json!({"amount": 60_000});
    ConfirmationTerms {
        request: ApprovalRequest {
            id: "01".to_owned(),
            call: "1-1".to_owned(),
            tool: "pay".to_owned(),
            arguments_hash: args_hash(&arguments),
            arguments,
            policy: "payments".to_owned(),
            approvers: Vec::new(),
            expires_at: EXPIRES,
            asked_in: Some(Box::new(asked_in())),
        },
        status,
        requested_by: "agent:default".to_owned(),
        requested_at: ASKED,
        decided_at: None,
        decided_by: None,
        response: None,
        trail: ApprovalTrail::default(),
    }
}

fn word(approve: bool) -> DecisionInput {
    DecisionInput {
        approve,
        arguments: None,
        shown_hash: None,
        response: None,
        via: "test".to_owned(),
    }
}

fn says(
    standing: &ConfirmationTerms,
    scope: &DeciderScope,
    by: &str,
    word: &DecisionInput,
    now: UnixMillis,
) -> DecisionEffect {
    let asked = AskedIn {
        scope: scope.clone(),
        ..asked_in()
    };
    let party = ApprovalParty {
        channel: "cli".to_owned(),
        id: by.to_owned(),
        proof: DecisionProof::Vouched,
        person: None,
    };

    apply_decision(
        standing,
        &asked,
        &identify_party(&party, &identities()),
        word,
        &identities(),
        now,
    )
}

fn code(outcome: &DecisionEffect) -> usize {
    match outcome {
        DecisionEffect::Unchanged | DecisionEffect::Changed(_) => 200,
        DecisionEffect::Lapsed => 409,
        DecisionEffect::Refused(refused) => refused.http_code(),
    }
}

#[test]
fn the_whole_table_of_words() {
    for status in ALL {
        for approve in [true, false] {
            let outcome = says(
                &confirmation(status),
                &DeciderScope::Owner,
                "ann",
                &word(approve),
                UnixMillis(1_500),
            );

            let expected = match (status, approve) {
                (Pending, _) => {
                    let DecisionEffect::Changed(next) = &outcome else {
                        panic!("{outcome:?}")
                    };

                    let to = if approve { Approved } else { Denied };
                    assert_eq!((next.status, next.decided_by.as_deref()), (to, Some("ann")));
                    assert_eq!(
                        (next.decided_at, next.trail.via.as_deref()),
                        (Some(UnixMillis(1_500)), Some("test"))
                    );

                    200
                }
                (Approved | Consumed, true) | (Denied, false) => {
                    assert_eq!(outcome, DecisionEffect::Unchanged);
                    200
                }
                (Approved | Consumed | Denied | Expired | Canceled | Superseded, _) => 409,
            };

            assert_eq!(code(&outcome), expected, "{status:?} {approve}");

            let stranger = says(
                &confirmation(status),
                &DeciderScope::Owner,
                "cid",
                &word(approve),
                UnixMillis(1_500),
            );

            assert_eq!(code(&stranger), 403, "{status:?}: a stranger learns nothing");
        }
    }
}

#[test]
fn the_whole_table_of_transitions() {
    let allowed = [
        (Pending, Approved),
        (Pending, Denied),
        (Pending, Expired),
        (Pending, Canceled),
        (Pending, Superseded),
        (Approved, Consumed),
        (Approved, Canceled),
        (Approved, Superseded),
    ];

    for from in ALL {
        for to in ALL {
            assert_eq!(may_follow(from, to), allowed.contains(&(from, to)), "{from:?} → {to:?}");
            let next = advance_status(&confirmation(from), to, UnixMillis(1_700));
            assert_eq!(next.is_some(), allowed.contains(&(from, to)));
        }
    }

    let consumed = advance_status(&confirmation(Approved), Consumed, UnixMillis(1_700)).expect("once");
    assert_eq!(consumed.trail.consumed_at, Some(UnixMillis(1_700)));
    assert_eq!(
        advance_status(&consumed, Consumed, UnixMillis(1_800)),
        None,
        "and not twice"
    );
}

#[test]
fn a_word_at_the_very_end_comes_too_late_and_is_no_denial() {
    let pending = confirmation(Pending);
    assert_eq!(
        says(&pending, &DeciderScope::Owner, "ann", &word(false), EXPIRES),
        DecisionEffect::Lapsed
    );
    assert_eq!(
        code(&says(
            &pending,
            &DeciderScope::Owner,
            "ann",
            &word(true),
            EXPIRES.plus(-1)
        )),
        200
    );

    let lapsed = advance_status(&pending, Expired, EXPIRES).expect("lapsed");
    let late = says(&lapsed, &DeciderScope::Owner, "ann", &word(true), EXPIRES.plus(1));
    assert_eq!(
        late,
        DecisionEffect::Refused(DecisionRejection::Decided {
            status: Expired,
            by: None
        })
    );
}

#[test]
fn several_must_agree_on_the_same_arguments() {
    let quorum = DeciderScope::Quorum {
        n: 2,
        of: ["ann", "bob", "cid"].map(str::to_owned).to_vec(),
    };
    let changed = |outcome: DecisionEffect| {
        let DecisionEffect::Changed(next) = outcome else {
            panic!("{outcome:?}")
        };
        *next
    };

    let now = UnixMillis(1_500);
    let one = changed(says(&confirmation(Pending), &quorum, "ann", &word(true), now));
    assert_eq!((one.status, one.trail.votes.len()), (Pending, 1));
    assert_eq!(
        says(&one, &quorum, "ann", &word(true), now),
        DecisionEffect::Unchanged,
        "one person is one vote"
    );

    let two = changed(says(&one, &quorum, "cid", &word(true), now));
    assert_eq!((two.status, two.decided_by.as_deref()), (Approved, Some("cid")));

    let no = changed(says(&one, &quorum, "bob", &word(false), now));
    assert_eq!(no.status, Denied, "one no is enough");

    let less = DecisionInput {
        arguments: Some(json!({"amount": 10})),
        ..word(true)
    };
    let edited = changed(says(&one, &quorum, "bob", &less, now));
    assert_eq!(
        (edited.status, edited.trail.votes.len()),
        (Pending, 1),
        "Ann said yes to something else"
    );

    assert_eq!(edited.standing_hash(), args_hash(&json!({"amount": 10})));

    let agreed = changed(says(&edited, &quorum, "ann", &word(true), now));
    assert_eq!(agreed.status, Approved);
}

#[test]
fn where_several_policies_ask_one_yes_is_not_that_of_another() {
    let all = DeciderScope::All {
        of: vec![
            DeciderScope::Owner,
            DeciderScope::Quorum {
                n: 2,
                of: ["ann", "bob", "cid"].map(str::to_owned).to_vec(),
            },
        ],
    };

    let now = UnixMillis(1_500);
    let stands_after = |words: &[&str]| {
        let mut standing = confirmation(Pending);
        for by in words {
            if let DecisionEffect::Changed(next) = says(&standing, &all, by, &word(true), now) {
                standing = *next;
            }
        }

        standing.status
    };

    assert_eq!(stands_after(&["bob"]), Pending);
    assert_eq!(stands_after(&["bob", "cid"]), Pending, "the owner was not heard");
    assert_eq!(stands_after(&["bob", "cid", "ann"]), Approved);
    assert_eq!(stands_after(&["ann", "ann"]), Pending, "one person is one vote");
    assert_eq!(stands_after(&["ann", "bob"]), Approved, "the owner's counts for both");
    assert_eq!(code(&says(&confirmation(Pending), &all, "dan", &word(true), now)), 403);

    let DecisionEffect::Changed(no) = says(&confirmation(Pending), &all, "bob", &word(false), now) else {
        panic!("one no is enough")
    };
    assert_eq!(no.status, Denied);
}

#[test]
fn a_word_is_about_the_arguments_that_were_shown() {
    let now = UnixMillis(1_500);
    let shown = |hash: &str| DecisionInput {
        shown_hash: Some(hash.to_owned()),
        ..word(true)
    };

    let pending = confirmation(Pending);
    assert_eq!(
        says(&pending, &DeciderScope::Owner, "ann", &shown("00"), now),
        DecisionEffect::Refused(DecisionRejection::Stale)
    );

    let right = shown(&pending.request.arguments_hash);
    assert_eq!(code(&says(&pending, &DeciderScope::Owner, "ann", &right, now)), 200);

    let edit = DecisionInput {
        arguments: Some(json!({"amount": 5})),
        ..word(true)
    };
    let conflict = says(&confirmation(Approved), &DeciderScope::Owner, "ann", &edit, now);
    assert_eq!(code(&conflict), 409, "a yes to other arguments is another decision");
}

#[test]
fn what_cannot_be_taken_is_refused() {
    let long = "x".repeat(MAX_EDITED_BYTES);
    let with = |approve, arguments| DecisionInput {
        arguments: Some(arguments),
        ..word(approve)
    };
    for bad in [
        with(false, json!({})),
        with(true, json!(5)),
        with(true, json!({ "a": long })),
    ] {
        let outcome = says(
            &confirmation(Pending),
            &DeciderScope::Owner,
            "ann",
            &bad,
            UnixMillis(1_500),
        );
        assert_eq!(code(&outcome), 400);
    }
}

#[test]
fn edited_arguments_must_fit_the_tools_schema() {
    let mut standing = confirmation(Pending);
    let schema = json!({"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]});
    standing.trail.schema = Some(Box::new(schema));
    let edited = |arguments| DecisionInput {
        arguments: Some(arguments),
        ..word(true)
    };

    let said = |word: &DecisionInput| says(&standing, &DeciderScope::Owner, "ann", word, ASKED);

    for wrong in [json!({"amount": "a lot"}), json!({})] {
        match said(&edited(wrong.clone())) {
            DecisionEffect::Refused(DecisionRejection::Bad(why)) => {
                assert!(why.contains("amount") && why.contains("schema"), "{why}");
            }
            other @ (DecisionEffect::Unchanged
            | DecisionEffect::Changed(_)
            | DecisionEffect::Lapsed
            | DecisionEffect::Refused(_)) => {
                panic!("{wrong}: {other:?}")
            }
        }
    }

    assert!(matches!(
        said(&edited(json!({"amount": 4}))),
        DecisionEffect::Changed(_)
    ));
    // The model's own arguments were checked before a human was asked.
    assert!(matches!(said(&word(true)), DecisionEffect::Changed(_)));
}
