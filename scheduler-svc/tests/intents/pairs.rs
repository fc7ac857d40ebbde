//! Every pair of steps that two replicas may take on one intent at the same time: whoever wins, `AUDIT` tells one way
//! that the lifecycle has, of exactly those who took a step, and a turn runs for each firing in it.

use serde_json::{Value, json};
use shared::model::dispatch::Dispatch;
use shared::model::intent::IntentCode::{
    self, Admitted, ApprovalExpired, ConditionMet, DeadlinePassed, Denied, Done, Due, NextOccurrence, Proposed,
    Rearmed, Refused, Rescheduled, Superseded, TurnFailed, Withdrawn,
};
use shared::model::intent::service::{CancelIntent, DecideIntent, ProposeIntent, RescheduleIntent};
use shared::model::intent::timer::{IntentTimer, TimerPurpose};
use shared::model::intent::{Intent, IntentRecord};
use shared::model::ledger::{LedgerCursor, LedgerEntry, TurnFailure};
use shared::model::time::UnixMillis;
use ulid::Ulid;

use scheduler_svc::intent::error::HandleIntentError;
use scheduler_svc::intent::requests::IntentService;

use crate::world::{World, completed, proposal, ulid};

const ROUNDS: u128 = 8;
/// Names of intents of one pair.
const NAMES: u128 = 1_000;
/// What lies between two occurrences of one that recurs, and before everything that is due, milliseconds.
const HOUR_MS: i64 = 3_600_000;

/// Where the intent stands before.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Before {
    /// Nobody has asked for it.
    New,
    /// An approver is asked before it is admitted.
    Asked,
    /// It is due.
    Pending,
    /// It is due, and an approver is asked.
    Strict,
    /// Its condition has to hold by now.
    Conditional,
    /// Its turn runs.
    Running,
    /// Its turn has come to its end.
    Ended,
    /// Its turn has failed.
    Failed,
    /// Its turn has come to its end, and it fires again tomorrow.
    Recurring,
}

/// What a replica does.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    Ask,
    AskBadly,
    Cancel(&'static str),
    /// To so many seconds from now.
    Move(u64),
    /// What rings at its time, at its deadline, and once an approver has had their time.
    Ring,
    Met,
    Look,
    Say(bool),
    /// Another is to take its place.
    Replace,
}

type Way = &'static [IntentCode];

/// The pairs, and the ways that may come out.
const PAIRS: &[(Before, Step, Step, &[Way])] = {
    use Before::{Asked, Conditional, Ended, Failed, New, Pending, Recurring, Running, Strict};
    use Step::{Ask, AskBadly, Cancel, Look, Met, Move, Replace, Ring, Say};
    const ADA: Step = Cancel("ada");
    &[
        (New, Ask, Ask, &[&[Proposed, Admitted]]),
        (New, AskBadly, AskBadly, &[&[Proposed, Refused]]),
        (Asked, Say(true), Say(false), &[&[Admitted], &[Denied]]),
        (Asked, Say(true), ADA, &[&[Admitted, Withdrawn], &[Withdrawn]]),
        (Asked, Say(false), ADA, &[&[Denied], &[Withdrawn]]),
        (Pending, ADA, Cancel("bob"), &[&[Withdrawn]]),
        (Pending, ADA, Ring, &[&[Withdrawn], &[Due, Withdrawn]]),
        (
            Pending,
            ADA,
            Move(60),
            &[&[Withdrawn], &[Rescheduled, Rearmed, Withdrawn]],
        ),
        (Pending, ADA, Replace, &[&[Withdrawn], &[Superseded]]),
        (Pending, Ring, Ring, &[&[Due]]),
        (Pending, Ring, Move(60), &[&[Due], &[Rescheduled, Rearmed]]),
        (Pending, Ring, Replace, &[&[Superseded], &[Due, Superseded]]),
        (
            Pending,
            Move(60),
            Move(90),
            &[&[Rescheduled, Rearmed, Rescheduled, Rearmed]],
        ),
        (
            Pending,
            Move(60),
            Replace,
            &[&[Superseded], &[Rescheduled, Rearmed, Superseded]],
        ),
        (Strict, Say(true), Say(false), &[&[Due], &[Denied]]),
        (Strict, Say(true), Ring, &[&[Due]]),
        (Strict, Say(true), ADA, &[&[Due, Withdrawn], &[Withdrawn]]),
        (Strict, Say(false), ADA, &[&[Denied], &[Withdrawn]]),
        (Strict, Say(false), Ring, &[&[Denied]]),
        (Conditional, Met, Met, &[&[ConditionMet]]),
        (Conditional, Met, Ring, &[&[ConditionMet], &[DeadlinePassed]]),
        (Conditional, Met, ADA, &[&[ConditionMet, Withdrawn], &[Withdrawn]]),
        (Conditional, Ring, ADA, &[&[DeadlinePassed], &[Withdrawn]]),
        (Conditional, Ring, Ring, &[&[DeadlinePassed]]),
        (Running, ADA, Cancel("bob"), &[&[Withdrawn]]),
        (Running, ADA, Replace, &[&[Withdrawn], &[Superseded]]),
        (Ended, Look, Look, &[&[Done]]),
        (Ended, Look, ADA, &[&[Done], &[Withdrawn]]),
        (Failed, Look, Look, &[&[TurnFailed]]),
        (Failed, Look, ADA, &[&[TurnFailed], &[Withdrawn]]),
        (Recurring, Look, Look, &[&[NextOccurrence]]),
        (Recurring, Look, ADA, &[&[NextOccurrence, Withdrawn], &[Withdrawn]]),
        (
            Recurring,
            Look,
            Replace,
            &[&[NextOccurrence, Superseded], &[Superseded]],
        ),
    ]
};

fn failed(turn: Ulid, cursor: LedgerCursor) -> LedgerEntry {
    LedgerEntry::TurnFailed {
        turn,
        failure: TurnFailure::NoAgent,
        reply: None,
        cursor,
    }
}

/// The firings of `id` so far.
async fn turns(world: &World, id: Ulid) -> Vec<Dispatch> {
    let all = world.dispatches().await.into_iter().map(|(_, dispatch)| dispatch);
    all.filter(|dispatch| dispatch.event_id.as_str().contains(&id.to_string()))
        .collect()
}

/// One intent, and who asks for it.
struct Race<'a> {
    world: &'a World,
    agent: String,
    number: u128,
}

impl Race<'_> {
    fn asked(&self, number: u128, more: Value) -> ProposeIntent {
        ProposeIntent {
            agent: self.agent.clone(),
            ..proposal(number, more)
        }
    }

    /// Brings the intent to where `before` says. Answers how much of its history is that.
    async fn prepare(&self, before: Before) -> usize {
        let (world, desk) = (self.world, &self.world.desks[0]);
        let id = ulid(self.number);
        let start = jiff::Timestamp::from_millisecond(world.now().plus(HOUR_MS).0).expect("a time");

        let more = match before {
            Before::New => return 0,
            Before::Asked => json!({ "approval": "before_admission" }),
            Before::Strict => json!({ "approval": "before_fire" }),
            Before::Conditional => json!({
                "schedule": { "type": "event_matches", "match": { "from": "x" }, "deadline_seconds": 3_600 }
            }),
            Before::Recurring => json!({ "schedule": {
                "type": "rrule", "rule": "FREQ=DAILY;COUNT=3", "zone": "UTC",
                "start": start.strftime("%Y-%m-%dT%H:%M:%S").to_string()
            } }),
            Before::Pending | Before::Running | Before::Ended | Before::Failed => json!({}),
        };

        desk.propose_intent(self.asked(self.number, more))
            .await
            .expect("an answer");

        if before == Before::Asked {
            return 1;
        }

        let rings = rings(&desk.clerk.store.find(None, id).await.expect("there").value);
        world.clock.set(rings.max(world.now()));

        if before == Before::Strict {
            desk.clerk
                .handle_timer(&self.timer(rings))
                .await
                .expect("the approver is asked");
        }

        if matches!(before, Before::Pending | Before::Strict | Before::Conditional) {
            return 2;
        }

        desk.clerk.handle_timer(&self.timer(rings)).await.expect("it fires");
        let turn = turns(world, id).await.pop().expect("a dispatch");
        match before {
            Before::Ended | Before::Recurring => world.turn(&turn, completed).await,
            Before::Failed => world.turn(&turn, failed).await,
            Before::New | Before::Asked | Before::Pending | Before::Strict | Before::Conditional | Before::Running => {}
        }

        3
    }

    fn timer(&self, nominal: UnixMillis) -> IntentTimer {
        IntentTimer {
            intent: ulid(self.number),
            agent: self.agent.clone(),
            purpose: TimerPurpose::Fire,
            nominal,
        }
    }

    /// Takes `step` at `desk`; `known` is the intent as it stood when both began.
    async fn take(&self, desk: &IntentService, step: Step, known: Option<&Intent>) -> Result<(), HandleIntentError> {
        let id = ulid(self.number);
        let nominal = known.map_or(UnixMillis(0), rings);
        match step {
            Step::Ask => desk.propose_intent(self.asked(self.number, json!({}))).await.map(drop),
            Step::AskBadly => {
                let dance = self.asked(self.number, json!({ "kind": "dance" }));
                desk.propose_intent(dance).await.map(drop)
            }
            Step::Cancel(by) => {
                let question = CancelIntent {
                    id,
                    agent: None,
                    turn: None,
                    by: Some(by.to_owned()),
                    reason: "no".to_owned(),
                };

                desk.cancel_intent(question).await.map(drop)
            }
            Step::Move(seconds) => {
                let schedule = json!({ "type": "after", "seconds": seconds });
                let question = RescheduleIntent {
                    id,
                    schedule: serde_json::from_value(schedule).expect("a schedule"),
                    agent: None,
                    by: Some(format!("by {seconds}")),
                    reason: "later".to_owned(),
                };

                desk.reschedule_intent(question).await.map(drop)
            }
            Step::Ring => desk.clerk.handle_timer(&self.timer(nominal)).await,
            Step::Met => {
                desk.clerk
                    .handle_due(&self.agent, id, nominal, Some(ConditionMet))
                    .await
            }
            Step::Look => desk.clerk.look_for_end(&self.agent, id, nominal).await.map(drop),
            Step::Say(approve) => {
                let question = DecideIntent {
                    id,
                    approve,
                    by: "casey".to_owned(),
                    response: None,
                };

                desk.decide_intent(question).await.map(drop)
            }
            Step::Replace => {
                let more = json!({ "supersedes": id.to_string() });
                desk.propose_intent(self.asked(self.number + NAMES / 2, more))
                    .await
                    .map(drop)
            }
        }
    }
}

/// When what `intent` waits for, or runs for, was to come.
fn rings(intent: &Intent) -> UnixMillis {
    let running = intent.running.as_ref().map(|running| running.nominal);
    running.or(intent.due).or(intent.deadline).unwrap_or_default()
}

/// Whether `record` is of `step`.
fn is_of(step: Step, agent: &str, record: &IntentRecord) -> bool {
    let by = record.by.as_str();
    match step {
        Step::Cancel(who) => record.code == Withdrawn && by == who,
        Step::Move(seconds) => record.code == Rescheduled && by == format!("by {seconds}"),
        Step::Say(true) => matches!(record.code, Admitted | Due) && by == "casey",
        Step::Say(false) => record.code == Denied && by == "casey",
        Step::Replace => record.code == Superseded && by == format!("agent:{agent}"),
        Step::Ask | Step::AskBadly | Step::Ring | Step::Met | Step::Look => by == "runtime",
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_race_every_pair_of_steps() {
    let world = World::start(2).await;
    for (place, (before, left, right, ways)) in (0_u128..).zip(PAIRS) {
        for round in 0..ROUNDS {
            let race = Race {
                world: &world,
                agent: format!("agent-{place}"),
                number: place * NAMES + round,
            };
            let what = format!("{before:?}: {left:?} against {right:?}, round {round}");
            let done = race.prepare(*before).await;

            let id = ulid(race.number);
            let found = world.desks[0].clerk.store.get(None, id).await.expect("KV");
            let known = found.as_ref().map(|entry| &entry.value);
            let (one, other) = tokio::join!(
                race.take(&world.desks[0], *left, known),
                race.take(&world.desks[1], *right, known)
            );

            let records = world.history(id).await;
            let told = &records[done..];
            let codes: Vec<IntentCode> = told.iter().map(|record| record.code).collect();

            assert!(ways.contains(&codes.as_slice()), "{what}: {codes:?}");

            for (step, said) in [(left, &one), (right, &other)] {
                if let Err(error) = said {
                    assert_eq!(error.to_answer().0, 409, "{what}: {error}");
                    let took = told.iter().any(|record| is_of(*step, &race.agent, record));
                    assert!(
                        !took || left == right,
                        "{what}: {step:?} was refused and taken: {told:?}"
                    );
                }
            }

            let ours = |record: &IntentRecord| {
                [*left, *right].iter().any(|step| is_of(*step, &race.agent, record))
                    || matches!(record.code, Proposed | Rearmed)
            };
            assert!(told.iter().all(ours), "{what}: somebody else's step: {told:?}");

            let fired = records
                .iter()
                .filter(|record| matches!(record.code, Due | ConditionMet));
            assert_eq!(
                turns(&world, id).await.len(),
                fired.count(),
                "{what}: a turn for each firing"
            );
        }
    }
}

/// Nobody has said anything in time: it lapses once, whoever comes by, and a word that comes then is refused.
#[tokio::test(flavor = "multi_thread")]
async fn an_approval_lapses_once_on_two_replicas() {
    let world = World::start(2).await;
    for (number, before) in [(1, Before::Asked), (2, Before::Strict)] {
        let race = Race {
            world: &world,
            agent: "default".to_owned(),
            number,
        };
        let done = race.prepare(before).await;
        let known = world.desks[0]
            .clerk
            .store
            .find(None, ulid(number))
            .await
            .expect("there")
            .value;

        world.clock.advance(15 * 60_000);
        let (one, other, late) = tokio::join!(
            race.take(&world.desks[0], Step::Ring, Some(&known)),
            race.take(&world.desks[1], Step::Ring, Some(&known)),
            race.take(&world.desks[1], Step::Say(true), Some(&known))
        );

        one.and(other).expect("both are fine");
        assert_eq!(late.expect_err("too late").to_answer().0, 409);

        let records = world.history(ulid(number)).await;
        let codes: Vec<IntentCode> = records[done..].iter().map(|record| record.code).collect();
        assert_eq!(codes, [ApprovalExpired], "{before:?}");
    }
}
