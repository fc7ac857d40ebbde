//! `hook_health`: statistics of each hook's last 100 invocations.

use super::Case;
use super::samples::{self, HOOK, event_id, fired};
use crate::breaker::BreakerState;
use crate::model::hook::{HookMetadata, HookOrigin, HookRecord, HookState, HookStatus};
use crate::model::invocation::{HookInvocation, HookOutcome, HookPasses};
use crate::projection::{AppliedRecord, ListedHook};

fn failed(n: u64) -> HookInvocation {
    HookInvocation {
        latency_us: 9_000,
        outcome: HookOutcome::Failed {
            error: "boom".to_owned(),
            stack: None,
        },
        llm_cost_usd: 0.5,
        ..fired(n)
    }
}

/// Returns record `n` of event `n`.
fn record(n: u64, hooks: Vec<HookInvocation>, passes: &[u32]) -> AppliedRecord {
    let mut applied = samples::invocations(n, event_id(n), hooks);
    if let AppliedRecord::Invocations { record, .. } = &mut applied
        && !passes.is_empty()
    {
        record.passes.push(HookPasses {
            hook_id: HOOK.to_owned(),
            count: passes.len() as u32,
            latencies_us: passes.to_vec(),
        });
    }

    applied
}

/// Count, successes, errors, fires, errors in a row.
fn counts(case: &Case) -> [i64; 5] {
    [
        "invocation_count",
        "success_count",
        "error_count",
        "fire_count",
        "consecutive_errors",
    ]
    .map(|column| case.value(&format!("SELECT {column} FROM hook_health WHERE hook_id = '{HOOK}'")))
}

fn number(case: &Case, column: &str) -> f64 {
    case.value(&format!("SELECT {column} FROM hook_health"))
}

#[tokio::test]
async fn it_tells_of_fires_passes_and_failures() {
    let batch = vec![
        record(1, vec![fired(1)], &[100, 200, 300]),
        record(2, vec![failed(2)], &[]),
        record(3, vec![failed(3)], &[]),
    ];
    let case = Case::with(batch).await;
    assert_eq!(counts(&case), [6, 4, 2, 1, 2]);
    assert_eq!(number(&case, "total_cost_usd"), 1.0);
    assert_eq!(number(&case, "p95_latency_ms"), 9.0);

    let average = (1_500.0 + 600.0 + 18_000.0) / 6.0 / 1_000.0;
    assert!((number(&case, "avg_latency_ms") - average).abs() < 1e-9);
    assert_eq!(
        case.value::<i64>("SELECT last_error_at FROM hook_health"),
        samples::at(5).0
    );
    assert_eq!(case.value::<String>("SELECT circuit_state FROM hook_health"), "closed");
}

#[tokio::test]
async fn the_last_hundred_count_whatever_the_batches() {
    let history: Vec<AppliedRecord> = (1..=250)
        .map(|n| {
            let hooks = if n % 10 == 0 { vec![failed(n)] } else { Vec::new() };
            record(n, hooks, &[100])
        })
        .collect();

    let together = Case::with(history.clone()).await;
    let apart = Case::new();
    for applied in history {
        apart.projection.apply(vec![applied]).await.unwrap();
    }

    assert_eq!(together.dump(), apart.dump());
    assert_eq!(counts(&together)[0], 100);
    assert_eq!(counts(&together)[2], 9, "one in eleven");
}

#[tokio::test]
async fn a_second_record_of_an_event_does_not_count() {
    let again = samples::invocations(2, event_id(1), vec![fired(1)]);
    let case = Case::with(vec![record(1, vec![fired(1)], &[]), again]).await;
    assert_eq!(counts(&case), [1, 1, 0, 1, 0]);
}

/// Returns a hook of the registry; `status` and `circuit` come from the other buckets.
fn listed(id: &str, status: HookStatus, circuit: BreakerState) -> ListedHook {
    let metadata = HookMetadata::from_name(id.to_owned());
    let record = HookRecord {
        id: id.to_owned(),
        source: String::new(),
        content_hash: String::new(),
        metadata,
        enabled: true,
        origin: HookOrigin::Pushed,
        created_by: "operator".to_owned(),
        made_in: None,
        created_at: samples::at(1),
        updated_at: samples::at(1),
        disabled_reason: None,
        parse_error: None,
    };

    let state = HookState {
        status,
        ..HookState::default()
    };

    ListedHook { record, state, circuit }
}

#[tokio::test]
async fn a_breaker_has_three_states() {
    let case = Case::new();
    let open = || BreakerState::Open { until: samples::at(9) };
    let probed = || BreakerState::HalfOpen {
        by: "a/x:1".to_owned(),
        until: samples::at(9),
    };

    let states = async |hooks: Vec<ListedHook>| {
        case.projection.list_hooks(hooks).await.unwrap();
        case.value::<String>(
            "SELECT group_concat(hook_id || ' ' || circuit_state, ', ') FROM (SELECT * FROM hook_health ORDER BY hook_id)",
        )
    };

    let said = states(vec![
        listed("a", HookStatus::Active, BreakerState::Closed),
        listed("b", HookStatus::Paused, open()),
        listed("c", HookStatus::Paused, probed()),
        listed("d", HookStatus::Paused, BreakerState::Closed),
    ]);

    assert_eq!(said.await, "a closed, b open, c half-open, d open");

    let said = states(vec![
        listed("b", HookStatus::Paused, probed()),
        listed("c", HookStatus::Active, BreakerState::Closed),
    ]);
    assert_eq!(said.await, "a closed, b half-open, c closed, d closed");
}
