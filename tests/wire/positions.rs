//! Samples of positions, and of what is held because of them.

use shared::model::position::StreamPosition;
use shared::model::time::UnixMillis;
use shared::wire::held::{HeldKind, HeldMessage, HeldUntil};
use shared::wire::session_mark::{PartitionFloors, SettledFloor};
use shared::wire::watermark::SourceWatermark;
use shared::wire::witness::{WaitingMark, WitnessedPosition};
use ulid::Ulid;

fn position() -> StreamPosition {
    StreamPosition {
        incarnation: "01J8ZQ0000000000000000000A".to_owned(),
        sequence: 41,
        stored_at_ns: 1_764_000_000_123_456_789,
    }
}

pub(crate) fn partition_floors() -> PartitionFloors {
    PartitionFloors {
        floors: vec![0, 41, 7],
        ..PartitionFloors::default()
    }
}

pub(crate) fn named_floors() -> PartitionFloors {
    PartitionFloors {
        stored_at_ns: vec![0, 1_764_000_000_123_456_789, 1_763_000_000_000_000_001],
        incarnation: position().incarnation,
        ..partition_floors()
    }
}

pub(crate) fn floors_with_ranges() -> PartitionFloors {
    PartitionFloors {
        read: vec![0, 59, 0],
        read_at_ns: vec![0, 1_764_000_000_223_456_789, 0],
        settled: vec![vec![], vec![1, 20, 3, 5], vec![]],
        ..named_floors()
    }
}

pub(crate) const fn settled_floor() -> SettledFloor {
    SettledFloor {
        sequence: 41,
        position: None,
    }
}

pub(crate) fn named_floor() -> SettledFloor {
    SettledFloor {
        sequence: 41,
        position: Some(position()),
    }
}

pub(crate) fn witnessed() -> WitnessedPosition {
    WitnessedPosition {
        position: position(),
        doubt_until_ms: 1_764_000_005_123,
        settled_until_ms: 0,
    }
}

pub(crate) fn witnessed_settled() -> WitnessedPosition {
    WitnessedPosition {
        settled_until_ms: 1_764_000_005_123,
        ..witnessed()
    }
}

pub(crate) const fn waiting() -> WaitingMark {
    WaitingMark {
        since: UnixMillis(1_764_000_005_123),
    }
}

pub(crate) fn watermark() -> SourceWatermark {
    SourceWatermark {
        of: "bot 77 a1b2".to_owned(),
        position: serde_json::json!({"offset": 900_001}),
        complete_until: UnixMillis(1_764_000_005_123),
        by: "01J8ZQ0000000000000000000B".to_owned(),
    }
}

pub(crate) fn held() -> HeldMessage {
    HeldMessage {
        kind: HeldKind::Dispatch,
        id: Ulid::from_parts(1_764_000_000_000, 7),
        stream: "DISPATCHES".to_owned(),
        sequence: 12,
        subject: "nexus.dispatch.5.default.main".to_owned(),
        headers: vec![("Nexus-Schema".to_owned(), "dispatch/1".to_owned())],
        payload: HeldMessage::encode_payload(b"{}"),
        why: "the ledger of default/main is older than the dispatch, which may have run".to_owned(),
        at: UnixMillis(1_764_000_009_000),
        wanted: HeldUntil::Decided,
    }
}
