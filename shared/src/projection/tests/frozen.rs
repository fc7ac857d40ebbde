//! The file as it is at one moment, while more is written.

use std::fs::File;
use std::io::Write as _;

use super::Case;
use super::samples::{chain, event_id};
use crate::projection::snapshot::FrozenFile;
use crate::projection::{FeedSource, FreezeFileError, Projection};

/// Size of a part: small, so that a file has many.
const PART: usize = 4_099;

/// Writes the parts of `frozen` from `offset` on into `to`.
fn fetch(frozen: &FrozenFile, offset: u64, to: &mut File) {
    let mut offset = offset;
    loop {
        let part = frozen.read_part(offset, PART).unwrap();
        if part.is_empty() {
            return;
        }
        to.write_all(&part).unwrap();
        offset += part.len() as u64;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_while_a_file_is_fetched_in_parts_does_not_reach_the_copy() {
    let case = Case::with((1..=200).flat_map(chain).collect()).await;
    let then = case.dump();
    let frozen = case.projection.freeze().await.unwrap();
    assert_eq!(frozen.position(), 400);
    assert!(case.projection.is_copied());

    // Half of it is fetched before, the other half after SQLite wants to move its log into the file.
    let path = case.directory.path().join("fetched.db");
    let mut to = File::create(&path).unwrap();
    let first = frozen.read_part(0, PART).unwrap();
    to.write_all(&first).unwrap();
    let other = rusqlite::Connection::open(case.projection.path()).unwrap();
    for round in 0..4 {
        let from = 201 + round * 400;
        let batch = (from..from + 400).flat_map(chain).collect();
        case.projection.apply(batch).await.unwrap();
        let moved: i64 = other
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(2))
            .unwrap();
        assert_eq!(moved, 0, "pages of the log are in the file");
    }
    fetch(&frozen, first.len() as u64, &mut to);
    assert_eq!(to.metadata().unwrap().len(), frozen.bytes());
    drop(to);

    // A second one cannot begin while the first one lives, and that one is not disturbed by it.
    let refused = case.projection.freeze().await;
    assert!(matches!(refused, Err(FreezeFileError::Log(_))), "{refused:?}");
    assert!(case.projection.is_copied());

    let copy = Case {
        projection: Projection::open(&path).unwrap(),
        directory: tempfile::tempdir().unwrap(),
    };
    assert_eq!(copy.projection.position(FeedSource::Events), 400);
    assert_eq!(copy.value::<String>("PRAGMA integrity_check"), "ok");
    assert_eq!(copy.dump(), then);

    // It goes on from there, and the log of the other one is moved into its file again.
    copy.projection.apply(chain(201)).await.unwrap();
    assert_eq!(copy.projection.first_sequence(&event_id(201)).unwrap(), Some(401));
    drop(frozen);
    assert!(!case.projection.is_copied());
    case.projection.shorten_log().await.unwrap();
    assert_eq!(case.projection.log_bytes(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_was_rebuilt_is_fetched_no_further() {
    let case = Case::with((1..=20).flat_map(chain).collect()).await;
    let frozen = case.projection.freeze().await.unwrap();
    assert_eq!(frozen.read_part(frozen.bytes(), PART).unwrap(), Vec::<u8>::new());
    assert_eq!(frozen.read_part(frozen.bytes() - 3, PART).unwrap().len(), 3);
    assert!(!frozen.is_replaced());

    case.projection
        .0
        .generation
        .fetch_add(1, std::sync::atomic::Ordering::AcqRel);
    assert!(frozen.is_replaced() && frozen.read_part(0, PART).is_err());
}
