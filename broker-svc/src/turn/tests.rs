use shared::model::ledger::Usage;

use super::*;
use crate::sample::{pending, session};

fn turn() -> Turn {
    Turn::of(
        &session(),
        &Fold::default(),
        &[pending(4, 1, "a", 50)],
        &Limits::default(),
        &PermissionPresets::default(),
    )
}

fn refused(retryable: bool) -> Result<Answer, AskAgentError> {
    Err(AskAgentError::Refused {
        error: "no".to_owned(),
        retryable,
    })
}

#[test]
fn a_turn_run_again_is_the_same_turn_with_the_same_reply() {
    let answer = Answer {
        content: "hi".to_owned(),
        ..Answer::default()
    };
    assert_eq!(turn(), turn());
    assert_eq!(
        turn().completed(answer.clone(), Cursor::default()),
        turn().completed(answer, Cursor::default())
    );
}

#[test]
fn an_answer_in_the_ledger_is_not_asked_for_again() {
    let mut fold = Fold::default();
    assert_eq!(turn().recovered(&fold), None);

    fold.apply_entry(&turn().started());
    assert_eq!(turn().recovered(&fold), Some(None));

    let answered = LedgerEntry::ModelAnswered {
        opaque: None,
        attachments: Vec::new(),
        model: None,
        step: 1,
        content: "hi".to_owned(),
        tool_calls: Vec::new(),
        usage: Usage::default(),
    };

    fold.apply_entry(&answered);
    assert_eq!(
        turn().recovered(&fold).flatten().map(|answer| answer.content),
        Some("hi".to_owned())
    );
}

#[test]
fn nothing_said_is_nothing_delivered() {
    let [_, completed] = turn().completed(Answer::default(), Cursor::default());
    assert!(matches!(completed, LedgerEntry::TurnCompleted { reply: None, .. }));
}

#[test]
fn a_failure_tells_the_user() {
    let failed = turn().failed(TurnFailure::NoAgent, Cursor::default());
    let LedgerEntry::TurnFailed { reply: Some(reply), .. } = failed else {
        panic!("{failed:?}")
    };
    assert!(reply.content.contains("default") && reply.id == turn().id, "{reply:?}");
}

#[test]
fn an_answer_too_long_is_cut_and_marked() {
    let answer = Answer {
        content: "ü".repeat(MAX_ANSWER_BYTES),
        ..Answer::default()
    };
    let [LedgerEntry::ModelAnswered { content, .. }, _] = turn().completed(answer, Cursor::default()) else {
        panic!()
    };
    assert!(content.len() <= MAX_ANSWER_BYTES && content.ends_with(CUT_MARK));
}

#[test]
fn what_follows_a_question() {
    let limits = Limits {
        wall_ms: 1_000,
        no_agent_ms: 300,
        ..Limits::default()
    };
    let check = |outcome, left, absent, expected: Next| assert_eq!(after(outcome, left, absent, 0, &limits), expected);
    let late = TurnFailure::Limit {
        limit: "wall_ms".to_owned(),
    };

    check(Ok(Answer::default()), 0, 0, Next::Complete(Answer::default()));
    check(
        refused(false),
        1_000,
        0,
        Next::Fail(TurnFailure::Agent { error: "no".to_owned() }),
    );
    check(refused(true), 1_000, 0, Next::AskAgain);
    check(refused(true), 0, 0, Next::Fail(late.clone()));
    check(Err(AskAgentError::NoAgent), 701, 299, Next::AskAgain);

    check(Err(AskAgentError::NoAgent), 700, 300, Next::Fail(TurnFailure::NoAgent));
    check(Err(AskAgentError::Silent(60)), 1, 0, Next::AskAgain);
    check(Err(AskAgentError::Silent(60)), 0, 0, Next::Fail(late));
}

#[test]
fn an_agent_that_cannot_be_understood_is_asked_three_times() {
    let check = |malformed| {
        let outcome = Err(AskAgentError::Malformed("no JSON".to_owned()));
        after(outcome, 1_000, 0, malformed, &Limits::default())
    };
    assert_eq!((check(1), check(MAX_MALFORMED - 1)), (Next::AskAgain, Next::AskAgain));

    let failed = check(MAX_MALFORMED);
    let Next::Fail(TurnFailure::Agent { error }) = failed else {
        panic!("{failed:?}")
    };

    assert!(error.contains("no JSON"), "{error}");
}
