use std::sync::Arc;

use shared::model::ledger::TurnUsage;

use super::*;
use crate::sample::{pending, session};

fn turn() -> Turn {
    Turn::for_pendings(
        &session(),
        &SessionState::default(),
        &[pending(4, 1, "a", 50)],
        &PersonaLimits::default(),
        &PermissionPresets::default(),
    )
}

fn refused(retryable: bool) -> Result<AgentAnswer, AskAgentError> {
    Err(AskAgentError::Refused {
        error: "no".to_owned(),
        retryable,
    })
}

#[test]
fn a_turn_run_again_is_the_same_turn_with_the_same_reply() {
    let answer = AgentAnswer {
        content: "hi".to_owned(),
        ..AgentAnswer::default()
    };
    assert_eq!(turn(), turn());
    assert_eq!(
        turn().completed_entries(answer.clone(), LedgerCursor::default()),
        turn().completed_entries(answer, LedgerCursor::default())
    );
}

#[test]
fn an_answer_in_the_ledger_is_not_asked_for_again() {
    let mut fold = SessionState::default();
    assert_eq!(turn().recorded_answer(&fold), None);

    fold.apply_entry(&turn().started_entry());
    assert_eq!(turn().recorded_answer(&fold), Some(None));

    let answered = LedgerEntry::ModelAnswered {
        opaque: None,
        attachments: Vec::new(),
        model: None,
        step: 1,
        content: "hi".to_owned(),
        tool_calls: Vec::new(),
        usage: TurnUsage::default(),
    };

    fold.apply_entry(&answered);
    assert_eq!(
        turn().recorded_answer(&fold).flatten().map(|answer| answer.content),
        Some("hi".to_owned())
    );
}

#[test]
fn nothing_said_is_nothing_delivered() {
    let [_, completed] = turn().completed_entries(AgentAnswer::default(), LedgerCursor::default());
    assert!(matches!(completed, LedgerEntry::TurnCompleted { reply: None, .. }));
}

#[test]
fn a_failure_tells_the_user() {
    let failed = turn().failed_entry(TurnFailure::NoAgent, LedgerCursor::default());
    let LedgerEntry::TurnFailed { reply: Some(reply), .. } = failed else {
        panic!("{failed:?}")
    };
    assert!(reply.content.contains("default") && reply.id == turn().id, "{reply:?}");
}

#[test]
fn an_answer_too_long_is_cut_and_marked() {
    let answer = AgentAnswer {
        content: "ü".repeat(MAX_ANSWER_BYTES),
        ..AgentAnswer::default()
    };
    let [LedgerEntry::ModelAnswered { content, .. }, _] = turn().completed_entries(answer, LedgerCursor::default())
    else {
        panic!()
    };
    assert!(content.len() <= MAX_ANSWER_BYTES && content.ends_with(CUT_MARK));
}

#[test]
fn what_follows_a_question() {
    let limits = PersonaLimits {
        wall_ms: 1_000,
        no_agent_ms: 300,
        ..PersonaLimits::default()
    };
    let check =
        |outcome, left, absent, expected: NextStep| assert_eq!(next_after(outcome, left, absent, 0, &limits), expected);
    let late = TurnFailure::Limit {
        limit: "wall_ms".to_owned(),
    };

    check(
        Ok(AgentAnswer::default()),
        0,
        0,
        NextStep::Complete(AgentAnswer::default()),
    );
    check(
        refused(false),
        1_000,
        0,
        NextStep::Fail(TurnFailure::Agent { error: "no".to_owned() }),
    );
    check(refused(true), 1_000, 0, NextStep::AskAgain);
    check(refused(true), 0, 0, NextStep::Fail(late.clone()));
    check(Err(AskAgentError::NoAgent), 701, 299, NextStep::AskAgain);

    check(
        Err(AskAgentError::NoAgent),
        700,
        300,
        NextStep::Fail(TurnFailure::NoAgent),
    );
    check(Err(AskAgentError::Silent(60)), 1, 0, NextStep::AskAgain);
    check(Err(AskAgentError::Silent(60)), 0, 0, NextStep::Fail(late));
}

#[test]
fn an_agent_that_cannot_be_understood_is_asked_three_times() {
    let check = |malformed| {
        let outcome = Err(AskAgentError::Malformed("no JSON".to_owned()));
        next_after(outcome, 1_000, 0, malformed, &PersonaLimits::default())
    };
    assert_eq!(
        (check(1), check(MAX_MALFORMED - 1)),
        (NextStep::AskAgain, NextStep::AskAgain)
    );

    let failed = check(MAX_MALFORMED);
    let NextStep::Fail(TurnFailure::Agent { error }) = failed else {
        panic!("{failed:?}")
    };

    assert!(error.contains("no JSON"), "{error}");
}

#[test]
fn a_turn_has_the_files_of_its_messages_and_no_others() {
    let stored = |digit: &str| {
        let mut file = Attachment::default();
        file.set_stored(&digit.repeat(64), 5);
        file
    };
    let mut asked = pending(4, 1, "a", 50);
    Arc::make_mut(&mut asked.dispatch).message.attachments = vec![stored("a"), Attachment::default()];
    let turn = Turn::for_pendings(
        &session(),
        &SessionState::default(),
        &[asked],
        &PersonaLimits::default(),
        &PermissionPresets::default(),
    );

    let files = turn.origin().files;
    assert!(files.contains(&"a".repeat(64)) && !files.contains(&"b".repeat(64)));
    let uri = |digit: &str| format!("nexus-object:{}", digit.repeat(64));
    assert_eq!(files.get_uri(&uri("a")), Some(&stored("a")));
    assert_eq!(files.get_uri(&uri("b")), None);
}
