//! Handling of absent, damaged and outdated files.

use std::io::{Seek, SeekFrom, Write};
use std::sync::Arc;

use super::Case;
use super::samples::{chain, event, event_id, stored};
use crate::projection::feed::store_batch;
use crate::projection::{AppliedRecord, ApplyBatchError, FeedSource, Projection};
use crate::testing::eventually;

#[tokio::test]
async fn a_restart_resumes_and_knows_its_ids() {
    let case = Case::with((1..=20).flat_map(chain).collect()).await;
    case.projection.close().await;
    let path = case.projection.path().to_path_buf();
    let again = Projection::open(&path).unwrap();

    assert_eq!(again.position(FeedSource::Events), 40);
    assert_eq!(again.position(FeedSource::Ledger), 20);
    assert_eq!(again.first_sequence(&event_id(20)).unwrap(), Some(39));
    assert!(!again.is_first(&event_id(1), 77).unwrap());
    assert!(again.is_first(&event_id(21), 41).unwrap());

    again.apply(chain(21)).await.unwrap();
    assert_eq!(again.first_sequence(&event_id(21)).unwrap(), Some(41));
}

#[tokio::test]
async fn only_what_has_no_record_up_to_where_the_file_has_come_certainly_has_none() {
    let case = Case::with((1..=20).flat_map(chain).collect()).await;
    let end = case.projection.position(FeedSource::Invocations);
    let has_none = async |n, through| case.projection.has_no_record(&event_id(n), through).await.unwrap();

    assert!(has_none(21, end).await && !has_none(20, end).await);
    assert!(
        !has_none(21, end + 1).await,
        "it may be the one that has not been taken in"
    );

    let unreadable = AppliedRecord::Unreadable {
        source: FeedSource::Invocations,
        sequence: end + 1,
    };
    case.projection.apply(vec![unreadable]).await.unwrap();
    assert!(!has_none(21, end).await, "it may be the one that was passed over");
}

#[tokio::test]
async fn a_file_that_is_no_database_or_of_another_version_is_made_anew() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deep/er/read.db");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(
        &path,
        "this is no database at all, but it is long enough to look like one".repeat(100),
    )
    .unwrap();

    let projection = Projection::open(&path).unwrap();
    projection.apply(chain(1)).await.unwrap();
    projection.close().await;
    rusqlite::Connection::open(&path)
        .unwrap()
        .pragma_update(None, "user_version", 999)
        .unwrap();

    let projection = Projection::open(&path).unwrap();
    assert_eq!(projection.position(FeedSource::Events), 0);

    projection.apply(chain(1)).await.unwrap();
    assert_eq!(projection.position(FeedSource::Events), 2);
}

#[tokio::test]
async fn damage_found_while_running_starts_from_the_beginning() {
    let case = Case::with((1..=200).flat_map(chain).collect()).await;
    case.projection.close().await;
    let path = case.projection.path().to_path_buf();
    let size = std::fs::metadata(&path).unwrap().len();
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();

    // The tables' roots come first, after the schema: everything after that is overwritten.
    file.seek(SeekFrom::Start(size / 2)).unwrap();
    file.write_all(&vec![0xa5; usize::try_from(size / 2).unwrap()]).unwrap();
    drop(file);

    let projection = Projection::open(&path).unwrap();
    let mut outcome = Ok(());
    for n in 201..400 {
        outcome = projection.apply(chain(n)).await;
        if outcome.is_err() {
            break;
        }
    }

    assert!(matches!(outcome, Err(ApplyBatchError::Rebuilt)), "{outcome:?}");
    assert_eq!(projection.position(FeedSource::Events), 0);

    projection.apply((1..=3).flat_map(chain).collect()).await.unwrap();
    assert_eq!(projection.find(Default::default()).await.unwrap().events.len(), 6);
}

#[tokio::test]
async fn waiting_for_a_position_ends_when_it_is_reached_or_never_can_be() {
    let case = Case::new();
    let waiting = case.projection.clone();
    let reached = tokio::spawn(async move { waiting.wait_reached(FeedSource::Events, 2).await });
    case.projection.apply(vec![stored(1, event(1))]).await.unwrap();
    case.projection.apply(vec![stored(2, event(2))]).await.unwrap();
    reached.await.unwrap().unwrap();
    let waiting = case.projection.clone();
    let never = tokio::spawn(async move { waiting.wait_reached(FeedSource::Events, 3).await });
    case.projection.close().await;

    assert!(never.await.unwrap().is_err());
    assert!(matches!(
        case.projection.apply(Vec::new()).await,
        Err(ApplyBatchError::Closed)
    ));
    assert!(case.directory.path().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_cut_off_once_nobody_reads_what_was_before() {
    let case = Case::with((1..=200).flat_map(chain).collect()).await;
    let reader = case.reader();
    reader.execute_batch("BEGIN; SELECT count(*) FROM events;").unwrap();
    case.projection.apply(chain(201)).await.unwrap();
    let refused = case.projection.shorten_log().await;

    assert!(matches!(refused, Err(ApplyBatchError::Passing(_))), "{refused:?}");

    case.projection.apply(chain(202)).await.unwrap();
    assert!(case.projection.log_bytes() > 0);

    reader.execute_batch("COMMIT").unwrap();
    case.projection.shorten_log().await.unwrap();
    assert_eq!(case.projection.log_bytes(), 0);

    case.projection.apply(chain(203)).await.unwrap();
    assert_eq!(case.value::<i64>("SELECT count(*) FROM events"), 406);
}

/// SQLite itself says that the file may not grow, as it does on a full disk.
#[tokio::test]
async fn a_full_disk_is_reported_and_what_waits_is_stored_once_there_is_room() {
    let case = Case::with(chain(1)).await;
    let limit = async |pages: i64| {
        let limited = case
            .projection
            .write(move |connection, _| connection.pragma_update(None, "max_page_count", pages));
        limited.await.unwrap();
    };
    // It has more pages already, which stay.
    limit(1).await;

    let mut large = event(2);
    large.content = "word ".repeat(100_000);
    let batch = vec![stored(case.projection.position(FeedSource::Events) + 1, large)];
    let projection = case.projection.clone();
    let storing = tokio::spawn(async move { store_batch(&projection, FeedSource::Events, Arc::new(batch)).await });
    eventually("it is reported", async || {
        let fault = case.projection.write_fault();
        fault.is_some_and(|fault| fault.contains("disk is full"))
    })
    .await;
    assert_eq!(case.projection.first_sequence(&event_id(1)).unwrap(), Some(1));
    assert_eq!(case.projection.first_sequence(&event_id(2)).unwrap(), None);

    limit(1_000_000).await;
    storing.await.unwrap().unwrap();
    assert_eq!(case.projection.write_fault(), None);
    assert!(case.projection.first_sequence(&event_id(2)).unwrap().is_some());
}
