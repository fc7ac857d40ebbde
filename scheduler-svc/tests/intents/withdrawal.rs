//! An intent that is withdrawn while it runs: its dispatch is taken back, whoever is cut off on the way.

use serde_json::json;
use shared::model::dispatch::Dispatch;
use shared::model::intent::service::{CancelIntent, DecideIntent, ProposeIntent};
use shared::model::intent::timer::{IntentTimer, TimerPurpose};
use shared::model::intent::{IntentCode, IntentStatus};
use shared::model::order::{OrderKind, SessionOrder};
use shared::model::time::UnixMillis;
use shared::wire::topology::streams::DISPATCHES;
use ulid::Ulid;

use scheduler_svc::intent::machine::{self, StepCause};

use crate::world::{World, proposal, ulid};

impl World {
    /// The orders to the session of `dispatch` so far.
    async fn orders(&self) -> Vec<SessionOrder> {
        let stored = self.bus.read_history(DISPATCHES, "nexus.dispatch.>", 1, 1_000).await;
        let stored = stored.expect("what sessions are told");
        stored.iter().filter_map(|stored| stored.decode().ok()).collect()
    }

    /// Intent `number` runs; the dispatch of its turn.
    async fn runs(&self, number: u128) -> Dispatch {
        let due = self.propose(number, json!({})).await.due.expect("a time");
        self.clock.set(due);
        let fire = timer(number, TimerPurpose::Fire, due);
        self.desks[0].clerk.handle_timer(&fire).await.expect("it fires");
        let (_, dispatch) = self.dispatches().await.pop().expect("a dispatch");
        assert!(dispatch.event_id.as_str().contains(&ulid(number).to_string()));
        dispatch
    }
}

fn timer(number: u128, purpose: TimerPurpose, nominal: UnixMillis) -> IntentTimer {
    IntentTimer {
        intent: ulid(number),
        agent: "default".to_owned(),
        purpose,
        nominal,
    }
}

fn cancel(number: u128, turn: Option<Ulid>) -> CancelIntent {
    CancelIntent {
        id: ulid(number),
        agent: Some("default".to_owned()),
        turn,
        by: None,
        reason: "changed my mind".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dispatch_of_a_running_intent_is_taken_back_once() {
    let world = World::start(2).await;
    let (one, two) = (&world.desks[0], &world.desks[1]);
    let dispatch = world.runs(1).await;
    let (left, right) = tokio::join!(one.cancel_intent(cancel(1, None)), two.cancel_intent(cancel(1, None)));
    let status = left.and(right).expect("withdrawn is withdrawn").status;

    assert_eq!(status, IntentStatus::Canceled);

    let look = timer(1, TimerPurpose::Outcome, dispatch.timestamp);
    two.clerk.handle_timer(&look).await.expect("nothing is left to do");
    let orders = world.orders().await;

    assert_eq!(orders.len(), 1, "{orders:?}");
    assert_eq!(
        (&orders[0].target, orders[0].by.as_str()),
        (&dispatch.target, "agent:default")
    );

    let wanted = |dispatch: &Dispatch, spares_turn| OrderKind::Withdraw {
        dispatch: dispatch.id,
        spares_turn,
    };
    assert_eq!(orders[0].wanted, wanted(&dispatch, false));

    // Its own turn wants it, then another while its own runs, and one before its own has begun.
    let dispatch = world.runs(2).await;
    let own = world.begin(&dispatch).await;
    one.cancel_intent(cancel(2, Some(own))).await.expect("withdrawn");

    assert_eq!(world.orders().await[1].wanted, wanted(&dispatch, true));

    let dispatch = world.runs(3).await;
    world.begin(&dispatch).await;
    one.cancel_intent(cancel(3, Some(own))).await.expect("withdrawn");

    assert_eq!(world.orders().await[2].wanted, wanted(&dispatch, false));

    let dispatch = world.runs(5).await;
    one.cancel_intent(cancel(5, Some(own))).await.expect("withdrawn");
    assert_eq!(world.orders().await[3].wanted, wanted(&dispatch, false));

    // One that waits has nothing to be taken back.
    world.propose(4, json!({})).await;
    one.cancel_intent(cancel(4, None)).await.expect("withdrawn");
    assert_eq!(world.orders().await.len(), 4);
}

/// A human lets the one that supersedes in only when the turn that asked for it is over: the other's firing, which waited
/// behind that turn, has a turn of its own by then.
#[tokio::test(flavor = "multi_thread")]
async fn a_firing_that_waited_behind_the_asking_turn_is_not_spared() {
    let world = World::start(1).await;
    let desk = &world.desks[0];
    let asks = |number: u128, old: u128, turn: Ulid| {
        let more = json!({ "supersedes": ulid(old).to_string(), "approval": "before_admission" });
        ProposeIntent {
            turn: Some(turn),
            ..proposal(number, more)
        }
    };

    let yes = |number: u128| DecideIntent {
        id: ulid(number),
        approve: true,
        by: "casey".to_owned(),
        response: None,
    };

    let behind = world.runs(1).await;
    let asking = ulid(90);
    desk.propose_intent(asks(2, 1, asking)).await.expect("an answer");
    world.begin(&behind).await;
    desk.decide_intent(yes(2)).await.expect("agreed");

    // The turn of a firing asks for what takes its place.
    let own = world.runs(3).await;
    let asking = world.begin(&own).await;
    desk.propose_intent(asks(4, 3, asking)).await.expect("an answer");
    desk.decide_intent(yes(4)).await.expect("agreed");
    let spared = |order: &SessionOrder| match order.wanted {
        OrderKind::Withdraw { spares_turn, .. } => Some(spares_turn),
        OrderKind::Abort
        | OrderKind::Interrupt
        | OrderKind::Reset
        | OrderKind::Queue { .. }
        | OrderKind::Send { .. }
        | OrderKind::Edit { .. } => None,
    };

    let spared: Vec<_> = world.orders().await.iter().map(spared).collect();
    assert_eq!(spared, [Some(false), Some(true)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_cut_off_behind_the_word_leaves_it_to_the_timer() {
    let world = World::start(2).await;
    let clerk = &world.desks[0].clerk;
    let dispatch = world.runs(1).await;
    let entry = clerk.store.find(None, ulid(1)).await.expect("there");
    let mut next = machine::next_value(&entry.value);
    let cause = StepCause {
        by: "casey",
        why: "no",
        at: world.now(),
    };

    machine::cancel_intent(&mut next, IntentCode::Withdrawn, false, cause).expect("it runs");
    clerk.store.advance_intent(&entry, next).await.expect("written");
    assert!(world.orders().await.is_empty());

    let look = timer(1, TimerPurpose::Outcome, dispatch.timestamp);
    world.desks[1].clerk.handle_timer(&look).await.expect("it is seen to");
    assert_eq!(world.orders().await.len(), 1);

    world.clock.advance(3_600_001);
    clerk.handle_timer(&look).await.expect("long over");
    assert_eq!(world.orders().await.len(), 1);
}
