use std::borrow::Cow;

use proptest::prelude::*;
use shared::model::event::EventId;
use shared::model::time::UnixMillis;
use tokio::sync::mpsc;

use super::*;
use crate::runner::HookSet;
use crate::runner::author_slots::AuthorSlots;

const FIRES: &str = r#"{"fire":true}"#;

/// An event under way against hooks 0 to 4, of which those of `only` are called, and the receiver of its steps.
fn flight(only: Option<Vec<u32>>) -> (InFlightEvent, mpsc::Receiver<(usize, EvaluationStep)>) {
    let hook = |index: u32| HookSource {
        id: format!("h{index}"),
        name: String::new(),
        source: String::new(),
        content_hash: String::new(),
        timeout_ms: 1_000,
        created_at: UnixMillis(0),
        created_by: "operator".to_owned(),
        sees: crate::runner::HookScope::Everything,
        net: Vec::new(),
    };

    let (sender, steps) = mpsc::channel(16);
    let job = EvaluationJob {
        event_id: EventId::parse("webchat:1").expect("valid"),
        event_json: bytes::Bytes::new(),
        sequence: 0,
        now: UnixMillis(0),
        only,
    };

    let set = Arc::new(HookSet::new((0..5).map(hook)));
    let folder = tempfile::tempdir().expect("a folder");
    let loaded = LoadedHooks::unpack_set(set, &LoadedHooks::empty_set(), folder.path()).expect("written");
    let seat = AuthorSlots::new(1).free_seat().expect("free");

    (
        InFlightEvent::new(job, Arc::new(loaded), StepSender::for_only_part(sender), seat),
        steps,
    )
}

fn silent(passed: u32) -> EventAnswer<'static> {
    EventAnswer {
        slot: 0,
        passed,
        latencies_us: Vec::new(),
        results: Vec::new(),
        failures: Vec::new(),
        waiting: Vec::new(),
        late: Vec::new(),
    }
}

fn waiting(waiting: Vec<u32>) -> EventAnswer<'static> {
    EventAnswer { waiting, ..silent(0) }
}

fn late(late: Vec<u32>, passed: u32) -> EventAnswer<'static> {
    EventAnswer { late, ..silent(passed) }
}

fn result(index: u32) -> (u32, u32, Cow<'static, str>) {
    (index, 1, Cow::Borrowed(FIRES))
}

#[test]
#[expect(clippy::too_many_lines, reason = "a story or a table is read from top to bottom")]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let forged: Vec<(&str, EventAnswer<'_>)> = vec![
        ("waiting beyond the set", waiting(vec![9_999])),
        ("waiting of one not called", waiting(vec![2])),
        ("waiting twice", waiting(vec![1, 1])),
        ("waiting in disorder", waiting(vec![3, 1])),
        ("more passes than hooks", silent(4)),
        ("no number of passes", silent(u32::MAX)),
        (
            "a result of one not called",
            EventAnswer {
                results: vec![result(0)],
                ..silent(0)
            },
        ),
        (
            "two results of one",
            EventAnswer {
                results: vec![result(1), result(1)],
                ..silent(0)
            },
        ),
        (
            "a failure of one that waits",
            EventAnswer {
                failures: vec![(1, 1, "e".to_owned(), None)],
                waiting: vec![1],
                ..silent(0)
            },
        ),
        (
            "more latencies than hooks",
            EventAnswer {
                latencies_us: vec![1; 4],
                ..silent(3)
            },
        ),
        ("half a late pass", late(vec![1], 1)),
        ("late without having passed", late(vec![1, 5], 0)),
        ("late beyond the set", late(vec![77, 5], 1)),
    ];

    for (what, answer) in forged {
        let (mut flight, mut steps) = flight(Some(vec![1, 3, 4]));
        assert!(flight.absorb_answer(answer).is_err(), "{what}");
        assert!(steps.try_recv().is_err() && !flight.is_answered(), "{what}");

        let honest = EventAnswer {
            latencies_us: vec![1, 2, 3],
            results: vec![result(3)],
            waiting: vec![4],
            ..silent(1)
        };

        assert_eq!(flight.absorb_answer(honest), Ok(FlightStage::UnderWay), "{what}");
        assert_eq!(
            flight.absorb_answer(EventAnswer {
                late: vec![4, 9],
                ..silent(1)
            }),
            Ok(FlightStage::Over),
            "{what}"
        );

        let Ok((_, EvaluationStep::Verdict(verdict))) = steps.try_recv() else {
            panic!("{what}: no verdict")
        };
        assert_eq!(verdict.hook.id, "h3");
        assert!(
            matches!(steps.try_recv(), Ok((_, EvaluationStep::Waiting(waiting))) if waiting == [4]),
            "{what}"
        );

        let done = EvaluationEnd {
            passed: 2,
            latencies_us: vec![0, 1, 0, 2, 9],
        };
        assert_eq!(steps.try_recv().ok(), Some((0, EvaluationStep::Done(done))), "{what}");
    }
}

#[test]
fn deaths_end_an_event_whoever_is_blamed() {
    for blamed in [true, false] {
        let (mut flight, mut steps) = flight(None);
        let deaths = (1..100).find(|_| flight.lost_worker(blamed, "no progress") == FlightStage::Over);
        assert_eq!(deaths, Some(if blamed { MAX_DEATHS_BLAMED } else { MAX_DEATHS }));
        let said: Vec<_> = std::iter::from_fn(|| steps.try_recv().ok()).collect();
        assert_eq!(said.len(), 6, "five failures and the end: {said:?}");
    }
}

#[test]
fn suspects_are_called_after_the_others_and_one_at_a_time() {
    let (mut flight, mut steps) = flight(None);
    assert_eq!(flight.set_apart(&[1, 3]), FlightStage::UnderWay);
    assert_eq!(flight.open(), [0, 2, 4]);

    let others = EventAnswer {
        latencies_us: vec![5, 6, 7],
        ..waiting(vec![4])
    };
    assert_eq!(
        flight.absorb_answer(EventAnswer { passed: 2, ..others }),
        Ok(FlightStage::UnderWay)
    );
    assert!(matches!(steps.try_recv(), Ok((_, EvaluationStep::Waiting(waiting))) if waiting == [1, 3, 4]));
    assert_eq!(flight.absorb_answer(late(vec![4, 9], 1)), Ok(FlightStage::Apart));
    assert_eq!(flight.open(), [1, 3]);

    flight.open_for(3);
    assert!(flight.awaits_hook("h1") && flight.awaits_hook("h3") && !flight.awaits_hook("h4"));

    let answer = |index| EventAnswer {
        latencies_us: vec![8],
        results: vec![result(index)],
        ..silent(0)
    };
    assert_eq!(flight.absorb_answer(answer(3)), Ok(FlightStage::Apart));
    assert_eq!(flight.open(), [1]);
    assert!(flight.absorb_answer(answer(3)).is_err(), "it has answered");
    assert_eq!(flight.absorb_answer(answer(1)), Ok(FlightStage::Over));

    let said: Vec<EvaluationStep> = std::iter::from_fn(|| steps.try_recv().ok())
        .map(|(_, step)| step)
        .collect();
    let done = EvaluationEnd {
        passed: 3,
        latencies_us: vec![5, 8, 6, 8, 9],
    };

    assert_eq!(said.last(), Some(&EvaluationStep::Done(done)));
    assert_eq!(said.len(), 3, "{said:?}");
}

#[test]
fn what_was_noted_is_taken_once_and_what_cannot_be_is_left_out() {
    let (mut flight, mut steps) = flight(Some(vec![0, 1, 3, 4]));
    let noted = |index, what| CrashNote {
        slot: 0,
        index,
        latency_us: 1,
        what,
    };

    let journal = [
        noted(0, NotedOutcome::Passed),
        noted(0, NotedOutcome::Failed("again".to_owned())),
        noted(2, NotedOutcome::Passed),
        noted(9_999, NotedOutcome::Passed),
        noted(3, NotedOutcome::Result(FIRES.to_owned())),
        noted(4, NotedOutcome::Failed("broke".to_owned())),
    ];

    assert_eq!(flight.salvage_noted(journal), FlightStage::UnderWay);
    assert_eq!(flight.open(), [1]);
    assert_eq!(flight.lost_worker(true, "no progress"), FlightStage::UnderWay);
    assert_eq!(flight.absorb_answer(silent(1)), Ok(FlightStage::Over));

    let said: Vec<EvaluationStep> = std::iter::from_fn(|| steps.try_recv().ok())
        .map(|(_, step)| step)
        .collect();
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(
        matches!(said.last(), Some(EvaluationStep::Done(done)) if done.passed == 2),
        "{said:?}"
    );
}

fn answers() -> impl Strategy<Value = EventAnswer<'static>> {
    let index = || prop_oneof![4 => 0..5_u32, 1 => any::<u32>()];
    let few = || proptest::collection::vec(index(), 0..4);
    let number = prop_oneof![4 => 0..6_u32, 1 => any::<u32>()];

    (number, few(), few(), few(), few(), few()).prop_map(|(passed, latencies_us, results, failures, waiting, late)| {
        EventAnswer {
            slot: 0,
            passed,
            latencies_us,
            results: results.into_iter().map(result).collect(),
            failures: failures
                .into_iter()
                .map(|index| (index, 1, "e".to_owned(), None))
                .collect(),
            waiting,
            late,
        }
    })
}

proptest! {
    #[test]
    fn an_event_ends_once_whatever_is_answered(
        only in proptest::option::of(proptest::sample::subsequence(vec![0_u32, 1, 2, 3, 4], 1..=5)),
        answers in proptest::collection::vec(answers(), 0..6),
    ) {
        let called = only.as_ref().map_or(5, Vec::len);
        let (mut flight, mut steps) = flight(only);
        let mut ended = answers.into_iter().any(|answer| flight.absorb_answer(answer) == Ok(FlightStage::Over));
        ended = ended || flight.fail_hooks(&[0, 1, 2, 3, 4], "given up") == FlightStage::Over;
        prop_assert!(ended);
        let said: Vec<EvaluationStep> = std::iter::from_fn(|| steps.try_recv().ok()).map(|(_, step)| step).collect();
        let ends = said.iter().filter(|step| matches!(step, EvaluationStep::Done(_))).count();
        let mut told: Vec<&str> = said
            .iter()
            .filter_map(|step| match step {
                EvaluationStep::Verdict(verdict) => Some(verdict.hook.id.as_str()),
                EvaluationStep::Waiting(_) | EvaluationStep::Done(_) => None,
            })
            .collect();
        let verdicts = told.len();
        told.sort_unstable();
        told.dedup();
        prop_assert_eq!((ends, told.len()), (1, verdicts));
        prop_assert!(matches!(said.last(), Some(EvaluationStep::Done(done)) if done.passed as usize + verdicts <= called), "{:?}", said);
    }
}
