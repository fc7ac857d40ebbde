//! The same messages give the same tables, in any order of the streams.

use proptest::prelude::*;

use super::Case;
use super::samples::{self, chain, event, event_id, only, stored};
use crate::model::event::{EventDirection, EventMention, MentionForm};
use crate::projection::{AppliedRecord, FeedSource};

/// Messages of all streams, in which ids repeat, items change and turns span messages.
fn messages() -> Vec<AppliedRecord> {
    let mut all: Vec<AppliedRecord> = (1..=6).flat_map(chain).collect();
    let mut edited = event(3);
    edited.direction = EventDirection::Updated;
    edited.content = "changed".to_owned();
    edited.edited_at = Some(samples::at(3));
    edited.target = Some(event_id(1).to_string());
    edited.mention = Some(EventMention {
        me: true,
        how: MentionForm::Native,
    });
    let mut gone = event(4);
    gone.direction = EventDirection::Deleted;
    all.extend([stored(13, event(2)), stored(14, edited), stored(15, gone)]);

    all.extend([
        samples::dispatch(7, 2),
        samples::ledger(7, vec![samples::started(9)]),
        samples::ledger(8, vec![samples::answered(9)]),
        samples::ledger(9, vec![samples::completed(9)]),
        samples::invocations(13, event_id(2), Vec::new()),
        AppliedRecord::Unreadable {
            source: FeedSource::Receipts,
            sequence: 7,
        },
    ]);

    all
}

/// Mixes the streams in the order of `picks`; each stream keeps its own order.
fn interleave(all: &[AppliedRecord], picks: &[usize]) -> Vec<AppliedRecord> {
    let mut streams: Vec<Vec<AppliedRecord>> = FeedSource::ALL.iter().map(|source| only(all, *source)).collect();
    let mut mixed = Vec::new();
    let mut picks = picks.iter().cycle();
    while streams.iter().any(|stream| !stream.is_empty()) {
        let full: Vec<usize> = (0..streams.len()).filter(|&index| !streams[index].is_empty()).collect();
        let chosen = full[picks.next().unwrap() % full.len()];
        mixed.push(streams[chosen].remove(0));
    }
    mixed
}

async fn tables(mixed: &[AppliedRecord], cut: usize, again_from: usize) -> Vec<String> {
    let case = Case::new();
    for batch in mixed.chunks(cut) {
        case.projection.apply(batch.to_vec()).await.unwrap();
    }
    case.projection.apply(mixed[again_from..].to_vec()).await.unwrap();
    case.dump()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn order_of_streams_cuts_and_repeats_cannot_show(
        picks in prop::collection::vec(0_usize..5, 1..60),
        cut in 1_usize..20,
        again in 0_usize..40,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let all = messages();
        let (plain, mixed) = runtime.block_on(async {
            (tables(&all, all.len(), 0).await, tables(&interleave(&all, &picks), cut, again).await)
        });
        prop_assert!(plain.len() > 40);
        prop_assert_eq!(plain, mixed);
    }
}

#[tokio::test]
async fn the_first_occurrence_decides() {
    let mut other = event(1);
    other.content = "another text under the same id".to_owned();
    let case = Case::with(vec![stored(5, event(1)), stored(9, other)]).await;
    assert_eq!(case.value::<String>("SELECT content FROM events"), "hello number 1");
    assert_eq!(case.projection.first_sequence(&event_id(1)).unwrap(), Some(5));
    assert!(case.projection.is_first(&event_id(1), 5).unwrap());
    assert!(!case.projection.is_first(&event_id(1), 9).unwrap());
    assert!(case.projection.is_first(&event_id(2), 10).unwrap());
    assert_eq!(case.projection.first_sequence(&event_id(2)).unwrap(), None);
}

#[tokio::test]
async fn an_update_changes_the_row_and_keeps_its_place() {
    let mut edited = event(1);
    edited.direction = EventDirection::Updated;
    edited.content = "edited".to_owned();
    edited.metadata.insert("previous_hash".to_owned(), "abc".into());
    let case = Case::with(vec![stored(1, event(1)), stored(2, edited)]).await;

    let row: (String, String, String, i64, i64) = case
        .reader()
        .query_row(
            "SELECT content, direction, metadata_json, sequence, revised_at FROM events",
            [],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)),
        )
        .unwrap();

    assert_eq!((row.0.as_str(), row.1.as_str(), row.3), ("edited", "received", 1));
    assert!(row.2.contains("previous_hash"));
    assert_eq!(row.4, samples::at(2).0);
}

#[tokio::test]
async fn hostile_text_is_kept_as_it_is() {
    let mut hostile = event(1);
    hostile.content = "NUL \0, quote ' and \u{202e} and 😀'; DROP TABLE events; --".to_owned();
    hostile.peer.id = "a.*> \0".to_owned();
    let content = hostile.content.clone();
    let case = Case::with(vec![stored(1, hostile)]).await;
    let found = case.projection.find(Default::default()).await.unwrap();

    assert_eq!(
        (found.events[0].content.as_str(), found.events[0].peer_id.as_str()),
        (content.as_str(), "a.*> \0")
    );
}
