use super::*;
use crate::examples::reply;

const AT: UnixMillis = UnixMillis(1_000);

const MINE: Ulid = Ulid::from_parts(5, 5);

const fn at(sequence: u64) -> StreamPlace {
    StreamPlace {
        sequence,
        stored_at_ns: 9,
    }
}

fn of(delivery: Ulid, copy: StreamPlace, step: ReceiptStep) -> Option<LastReceipt> {
    let reply = reply("x");
    let receipt = Receipt {
        delivery,
        session: reply.session,
        target: reply.delivery_context,
        causation: reply.causation,
        at: AT,
        card: false,
        changes: None,
        step,
    };

    Some(LastReceipt { copy, receipt })
}

fn last(sequence: u64, step: ReceiptStep) -> Option<LastReceipt> {
    of(MINE, at(sequence), step)
}

fn plan() -> PlanReference {
    PlanReference {
        parts: 3,
        sha256: "ab".to_owned(),
        pieces: vec![2],
    }
}

fn delivered() -> ReceiptStep {
    ReceiptStep::Delivered {
        attempts: 1,
        parts: 2,
        platform_ids: Vec::new(),
        unconfirmed: vec![1],
        live: None,
        plan: None,
    }
}

fn finished(outcome: AttemptOutcome) -> ReceiptStep {
    ReceiptStep::AttemptFinished {
        attempt: 3,
        part: 1,
        platform_ids: vec![Vec::new(), vec!["a".to_owned()]],
        unconfirmed: vec![1],
        uncounted: 1,
        plan: Some(plan()),
        outcome,
    }
}

#[test]
fn receipts_of_other_deliveries_tell_nothing_whatever_their_sequence() {
    let other = reply("x").id;
    assert_eq!(
        standing_after(MINE, at(5), None),
        DeliveryStanding::Open(RemainingWork::ALL)
    );
    for sequence in [4, 5, 6, 4_000] {
        let told = standing_after(MINE, at(5), of(other, at(sequence), delivered()));
        assert_eq!(told, DeliveryStanding::Open(RemainingWork::ALL), "{sequence}");
    }
}

#[test]
fn a_second_copy_of_a_made_delivery_is_made_and_of_a_given_up_one_is_not() {
    for sequence in [4, 6] {
        let made = standing_after(MINE, at(5), last(sequence, delivered()));
        assert_eq!(made, DeliveryStanding::Past, "{sequence}");

        let gave_up = ReceiptStep::GaveUp {
            attempts: 8,
            reason: "gone".to_owned(),
        };
        let told = standing_after(MINE, at(5), last(sequence, gave_up));
        assert_eq!(told, DeliveryStanding::Open(RemainingWork::ALL), "{sequence}");
    }
}

#[test]
fn another_copy_at_the_same_sequence_of_a_queue_that_was_put_back_is_another_copy() {
    let again = StreamPlace {
        stored_at_ns: 10,
        ..at(5)
    };
    let gave_up = ReceiptStep::GaveUp {
        attempts: 8,
        reason: "gone".to_owned(),
    };

    assert_eq!(
        standing_after(MINE, again, last(5, gave_up)),
        DeliveryStanding::Open(RemainingWork::ALL)
    );
    assert_eq!(
        standing_after(MINE, again, last(5, delivered())),
        DeliveryStanding::Past
    );
}

#[test]
fn settled() {
    assert_eq!(
        standing_after(MINE, at(5), last(5, delivered())),
        DeliveryStanding::Delivered {
            last: SentPart {
                index: 1,
                at: AT,
                platform_ids: Vec::new(),
                is_unconfirmed: true,
            },
            plan: StandingPlan::Whole,
        }
    );

    let gave_up = ReceiptStep::GaveUp {
        attempts: 8,
        reason: "gone".to_owned(),
    };
    assert_eq!(
        standing_after(MINE, at(5), last(5, gave_up)),
        DeliveryStanding::GaveUp {
            attempts: 8,
            reason: "gone".to_owned()
        }
    );

    let denied = ReceiptStep::DeniedByPolicy {
        rule: "default".to_owned(),
    };
    assert_eq!(standing_after(MINE, at(5), last(5, denied)), DeliveryStanding::Denied);
}

/// What is left after an attempt at the second part that asked for half a second, when `uncounted` attempts count for nothing.
fn waiting(uncounted: u32) -> RemainingWork {
    RemainingWork {
        attempt: 4,
        uncounted,
        part: 1,
        platform_ids: vec![Vec::new(), vec!["a".to_owned()]],
        unconfirmed: vec![1],
        not_before: UnixMillis(1_500),
        plan: StandingPlan::Parts(plan()),
        recorded_at: AT,
        ..RemainingWork::ALL
    }
}

#[test]
fn a_failed_attempt_waits_from_its_receipt() {
    let retry = AttemptOutcome::Retry {
        after_ms: 500,
        reason: "busy".to_owned(),
    };
    assert_eq!(
        standing_after(MINE, at(5), last(5, finished(retry))),
        DeliveryStanding::Open(waiting(1))
    );
}

#[test]
fn a_wait_that_the_platform_asks_for_is_no_counted_attempt() {
    let limited = AttemptOutcome::Limited {
        after_ms: 500,
        reason: "status 429".to_owned(),
    };
    assert_eq!(
        standing_after(MINE, at(5), last(5, finished(limited))),
        DeliveryStanding::Open(waiting(2))
    );
}

#[test]
fn a_part_that_is_out_is_not_sent_again() {
    let expected = RemainingWork {
        attempt: 3,
        uncounted: 2,
        part: 2,
        platform_ids: vec![Vec::new(), vec!["a".to_owned()]],
        unconfirmed: vec![1],
        event_due: Some(SentPart {
            index: 1,
            at: AT,
            platform_ids: vec!["a".to_owned()],
            is_unconfirmed: true,
        }),
        plan: StandingPlan::Parts(plan()),
        recorded_at: AT,
        ..RemainingWork::ALL
    };

    assert_eq!(
        standing_after(MINE, at(5), last(5, finished(AttemptOutcome::Done))),
        DeliveryStanding::Open(expected)
    );
}

#[test]
fn ids_are_kept_at_the_place_of_their_part() {
    let mut kept = Vec::new();
    keep_ids(&mut kept, 0, Vec::new());
    keep_ids(&mut kept, 2, vec!["c".to_owned(), "d".to_owned()]);
    keep_ids(&mut kept, 3, vec!["e".to_owned()]);

    let of = |index| sent_part(index, AT, &kept, &[]).platform_ids;
    assert_eq!(
        [of(0), of(1), of(3), of(4)],
        [vec![], vec![], vec!["e".to_owned()], vec![]]
    );
    assert_eq!(of(2), ["c", "d"]);
}

#[test]
fn a_plan_without_a_call_is_made_again_from_its_first_part() {
    let planned = ReceiptStep::Planned {
        first: 2,
        parts: Vec::new(),
    };
    let expected = RemainingWork {
        part: 2,
        ..RemainingWork::ALL
    };
    assert_eq!(
        standing_after(MINE, at(5), last(5, planned)),
        DeliveryStanding::Open(expected)
    );
}

#[test]
fn a_call_without_an_outcome_is_told_with_whoever_made_it() {
    let by = "a".to_owned();
    let platform_ids = vec![vec!["first".to_owned()]];
    let expected = RemainingWork {
        attempt: 2,
        part: 1,
        platform_ids: platform_ids.clone(),
        unconfirmed: vec![0],
        begun: Some(OpenCall { by: by.clone() }),
        plan: StandingPlan::Whole,
        recorded_at: AT,
        ..RemainingWork::ALL
    };

    let started = ReceiptStep::AttemptStarted {
        attempt: 2,
        part: 1,
        by,
        platform_ids,
        unconfirmed: vec![0],
        uncounted: 0,
        plan: None,
    };
    assert_eq!(
        standing_after(MINE, at(5), last(5, started)),
        DeliveryStanding::Open(expected)
    );
}
