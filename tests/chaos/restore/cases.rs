//! Which streams and buckets are put back, how, and what may follow.

use std::collections::BTreeSet;

use shared::wire::topology::topology;

/// How a stream is put back, while nothing runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// To a copy of an older state: the same incarnation, and its sequences are given out again.
    Older,
    /// Its messages are lost, and its sequences begin again: the same incarnation.
    Emptied,
    /// Deleted: whoever starts first makes it anew.
    Anew,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Older, Self::Emptied, Self::Anew];
}

/// What the product says of it in any case, beside that everything is handled (`said`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Says {
    /// Nothing counts with a place in it that the records do not make up for.
    Nothing,
    /// That positions in it are void.
    Void,
}

/// Everything that a server keeps, each with what is said of it.
pub(super) const KEPT: &[(&str, Says)] = &[
    ("EVENTS", Says::Void),
    ("DISPATCHES", Says::Void),
    ("DELIVERIES", Says::Nothing),
    ("LEDGER", Says::Void),
    ("RECEIPTS", Says::Void),
    ("INVOCATIONS", Says::Void),
    ("CLAIMS", Says::Nothing),
    ("PARKED", Says::Nothing),
    ("SCHEDULES", Says::Nothing),
    ("AUDIT", Says::Nothing),
    ("DLQ", Says::Void),
    ("KV_attempts", Says::Nothing),
    ("KV_positions", Says::Nothing),
    ("KV_watermarks", Says::Nothing),
    ("KV_backfills", Says::Nothing),
    ("KV_session_checkpoints", Says::Nothing),
    ("KV_hooks", Says::Nothing),
    ("KV_hook_state", Says::Nothing),
    ("KV_channels", Says::Nothing),
    ("KV_breakers", Says::Nothing),
    ("KV_intents", Says::Nothing),
    ("KV_schedules", Says::Nothing),
    ("KV_identities", Says::Nothing),
    ("KV_session_overrides", Says::Nothing),
    ("KV_restore", Says::Nothing),
    ("KV_approvals", Says::Nothing),
    ("KV_leases", Says::Nothing),
    ("KV_members", Says::Nothing),
    ("KV_hook_spend", Says::Nothing),
    ("KV_hook_results", Says::Nothing),
    ("KV_hook_limits", Says::Nothing),
    ("KV_stopped_accounts", Says::Nothing),
    ("KV_account_tokens", Says::Nothing),
    ("KV_pairings", Says::Nothing),
    ("KV_held", Says::Nothing),
    ("KV_fetches", Says::Nothing),
    ("KV_posts", Says::Nothing),
    ("KV_merges", Says::Nothing),
    ("KV_threads", Says::Nothing),
    ("OBJ_snapshots", Says::Nothing),
    ("OBJ_attachments", Says::Nothing),
];

/// What counts with places in it, or is counted by them: each also with a spool that is larger than the gap.
pub(super) const COUNTED: [&str; 9] = [
    "EVENTS",
    "DISPATCHES",
    "DELIVERIES",
    "LEDGER",
    "RECEIPTS",
    "INVOCATIONS",
    "CLAIMS",
    "KV_attempts",
    "KV_positions",
];

/// One stream, put back one way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    pub(super) stream: &'static str,
    pub(super) way: Way,
    pub(super) says: Says,
}

pub(super) fn case(stream: &'static str, way: Way) -> Case {
    let found = KEPT.iter().find(|(name, _)| *name == stream);
    let says = found.map(|(_, says)| *says);
    Case {
        stream,
        way,
        says: says.unwrap_or_else(|| panic!("{stream} is not in the matrix")),
    }
}

/// Every stream, every way.
pub(super) fn all() -> Vec<Case> {
    let of = |way| KEPT.iter().map(move |(stream, _)| case(stream, way));
    Way::ALL.into_iter().flat_map(of).collect()
}

/// Those that count, every way.
pub(super) fn counted() -> Vec<Case> {
    let of = |stream| Way::ALL.into_iter().map(move |way| case(stream, way));
    COUNTED.into_iter().flat_map(of).collect()
}

/// Those of `cases` that `NEXUS_CHAOS_CASES` names, as in `LEDGER/Older,KV_held/Anew`; all of them without it.
pub(super) fn chosen(cases: Vec<Case>) -> Vec<Case> {
    #[expect(clippy::disallowed_methods, reason = "a variable chooses the cases of a long run")]
    let named = std::env::var("NEXUS_CHAOS_CASES");
    let Ok(named) = named else {
        return cases;
    };
    let names: BTreeSet<&str> = named.split(',').map(str::trim).collect();
    let is_named = |case: &Case| names.contains(format!("{}/{:?}", case.stream, case.way).as_str());
    cases.into_iter().filter(is_named).collect()
}

/// What the short form tries: what each of these did wrong once.
pub(super) fn worst() -> Vec<Case> {
    vec![
        case("KV_attempts", Way::Older),
        case("DISPATCHES", Way::Older),
        case("DELIVERIES", Way::Anew),
        case("RECEIPTS", Way::Older),
        case("LEDGER", Way::Emptied),
        case("INVOCATIONS", Way::Older),
        case("KV_approvals", Way::Older),
        case("PARKED", Way::Emptied),
    ]
}

#[test]
fn the_matrix_names_everything_that_a_server_keeps() {
    let named: BTreeSet<String> = KEPT.iter().map(|(name, _)| (*name).to_owned()).collect();
    let kept: BTreeSet<String> = topology(1).streams.into_iter().map(|stream| stream.name).collect();
    assert_eq!(named, kept);
    assert_eq!(named.len(), KEPT.len(), "each once");
}
