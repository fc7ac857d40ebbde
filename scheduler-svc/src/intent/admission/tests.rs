use serde_json::{Value, json};
use shared::model::permission::{PermissionSet, ToolRules};

use super::*;

const NOW: UnixMillis = UnixMillis(1_795_305_600_000);

fn proposal(level: PermissionLevel, wish: Value) -> ProposeIntent {
    ProposeIntent {
        id: None,
        wish: serde_json::from_value(wish).expect("a wish"),
        agent: "default".to_owned(),
        session: "telegram:group:7".to_owned(),
        turn: None,
        permissions: PermissionSet {
            level,
            tools: Some(ToolRules {
                allow: Some(vec!["send_message".to_owned()]),
                deny: Vec::new(),
            }),
            credentials: None,
        },
        delivery_context: DeliveryContext {
            channel: "telegram".to_owned(),
            peer_id: Some("7".to_owned()),
            reply_to_id: Some("telegram:1".to_owned()),
            ..DeliveryContext::default()
        },
        causation: None,
    }
}

fn remind() -> Value {
    json!({
        "kind": "remind", "parameters": { "subject": "s", "message": "m" },
        "schedule": { "type": "after", "seconds": 3_600 }
    })
}

fn with(mut wish: Value, key: &str, value: Value) -> Value {
    wish[key] = value;
    wish
}

fn check_with(proposal: &ProposeIntent, depth: u8, book: &AgentBook) -> Result<AdmissibleIntent, IntentRejection> {
    let registry = KindRegistry::shipped_registry().expect("right");
    let intent = record(&registry, proposal, Ulid::from_parts(9, 9));
    check_entitled(&registry, &intent, proposal, depth)?;
    check_fit(&registry, &intent, &intent.schedule, book, NOW)
}

fn check(level: PermissionLevel, wish: Value) -> Result<AdmissibleIntent, IntentRejection> {
    check_with(&proposal(level, wish), 0, &AgentBook::default())
}

fn refused(level: PermissionLevel, wish: Value) -> &'static str {
    check(level, wish).expect_err("refused").code()
}

#[test]
fn a_reminder_fits_and_books_its_day() {
    let fit = check(PermissionLevel::Minimal, remind()).expect("admitted");
    assert_eq!(fit.plan.due, Some(NOW.plus(3_600_000)));
    assert_eq!(
        (fit.booking.due, fit.booking.firings, fit.booking.tokens),
        (fit.plan.due, 1, 2_000)
    );
}

#[test]
fn each_refusal_has_its_code() {
    let send = json!({
        "kind": "send_message", "parameters": { "target": "email/x", "text": "t" },
        "schedule": { "type": "after", "seconds": 60 }
    });
    let group = |wish| refused(PermissionLevel::Group, wish);
    assert_eq!(group(with(remind(), "kind", json!("dance"))), "unknown_kind");
    assert_eq!(group(with(remind(), "parameters", json!({}))), "bad_parameters");
    assert_eq!(group(send.clone()), "sensitivity");
    assert_eq!(
        group(with(remind(), "scope", json!({ "within": "persona" }))),
        "no_capability"
    );

    assert_eq!(
        group(with(remind(), "schedule", json!({ "type": "after", "seconds": 0 }))),
        "bad_schedule"
    );
    assert_eq!(group(with(remind(), "expires_at", json!(NOW.0 + 1_000))), "expired");

    let mut no_tools = proposal(PermissionLevel::Restricted, send.clone());
    no_tools.permissions.tools = None;
    let refusal = check_with(&no_tools, 0, &AgentBook::default()).expect_err("not allowed");

    assert_eq!(refusal.code(), "no_capability");
    assert!(check(PermissionLevel::Restricted, send).is_ok());

    let deep = check_with(
        &proposal(PermissionLevel::Full, remind()),
        MAX_DEPTH + 1,
        &AgentBook::default(),
    );
    assert_eq!(deep.expect_err("too deep").code(), "over_budget");
}

#[test]
fn targets_are_conversations_and_others_need_leave() {
    let registry = KindRegistry::shipped_registry().expect("right");
    let target = |target: &str, level: PermissionLevel| {
        let wish = with(
            remind(),
            "parameters",
            json!({ "subject": "s", "message": "m", "target": target }),
        );
        let proposal = proposal(level, wish);

        delivery_target(&record(&registry, &proposal, Ulid::from_parts(9, 9)), &proposal)
    };

    let here = target("here", PermissionLevel::Minimal).expect("here");
    assert_eq!((here.channel.as_str(), here.reply_to_id), ("telegram", None));
    assert_eq!(
        target("telegram/7", PermissionLevel::Minimal)
            .expect("the same")
            .peer_id
            .as_deref(),
        Some("7")
    );

    let there = target("slack/work/C1", PermissionLevel::Minimal).expect("allowed");
    assert_eq!(
        (
            there.channel.as_str(),
            there.account_id.as_deref(),
            there.peer_id.as_deref()
        ),
        ("slack", Some("work"), Some("C1"))
    );
    assert_eq!(
        target("mom", PermissionLevel::Full).expect_err("not a target").code(),
        "bad_parameters"
    );
}

#[test]
fn budgets_and_numbers_are_reserved_not_hoped_for() {
    let mut book = AgentBook::default();
    let mut admitted = 0_u32;
    let fits = |book: &AgentBook, number: u32| {
        let registry = KindRegistry::shipped_registry().expect("right");
        let proposal = proposal(PermissionLevel::Full, remind());
        let intent = record(&registry, &proposal, Ulid::from_parts(1, u128::from(number)));
        check_fit(&registry, &intent, &intent.schedule, book, NOW)
    };

    let refusal = loop {
        match fits(&book, admitted) {
            Ok(fit) => {
                book.bookings
                    .insert(Ulid::from_parts(1, u128::from(admitted)), fit.booking);
                admitted += 1;
            }
            Err(refusal) => break refusal,
        }
    };

    assert_eq!((admitted, refusal.code()), (100, "too_many_pending"));
    assert!(
        fits(&book, 5).is_ok(),
        "its own booking does not count: a repeated question fits again"
    );

    for booking in book.bookings.values_mut() {
        booking.tokens = 4_000;
        booking.due = Some(NOW.plus(-1));
    }

    book.bookings.values_mut().for_each(|booking| booking.due = Some(NOW));
    assert_eq!(
        fits(&book, 200).expect_err("spent").code(),
        "over_budget",
        "what has fired today is spent"
    );
}

#[test]
fn a_condition_has_to_fit_beside_the_heaviest_day() {
    let mut book = AgentBook::default();
    let heavy = IntentBooking {
        due: Some(NOW.plus(5 * 86_400_000)),
        firings: 200,
        tokens: 0,
    };

    book.bookings.insert(Ulid::from_parts(1, 1), heavy);
    let idle = with(remind(), "schedule", json!({ "type": "chat_ended" }));
    let refusal = check_with(&proposal(PermissionLevel::Full, idle), 0, &book).expect_err("it may fire on that day");

    assert_eq!(refusal.code(), "over_budget");
    assert!(
        check_with(&proposal(PermissionLevel::Full, remind()), 0, &book).is_ok(),
        "today is free"
    );
}

#[test]
fn approval_is_the_strictest_of_kind_and_wish() {
    let registry = KindRegistry::shipped_registry().expect("right");
    let wish = with(remind(), "approval", json!("before_fire"));
    let strict = record(
        &registry,
        &proposal(PermissionLevel::Full, wish),
        Ulid::from_parts(1, 1),
    );
    assert_eq!(strict.approval, ApprovalRequirement::BeforeFire);
    assert_eq!(
        record(
            &registry,
            &proposal(PermissionLevel::Full, remind()),
            Ulid::from_parts(1, 1)
        )
        .approval,
        ApprovalRequirement::None
    );
}
