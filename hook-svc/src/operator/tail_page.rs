//! Which messages of several streams make a page, and where the next one begins. *Pure.*
//!
//! Streams are read one after the other, so that an older message of one may come to light behind a newer one of another.
//! Every stream is therefore read twice, and a page ends with the newest message of the first reading: whatever is older
//! was stored before the second reading began.

use shared::wire::operator::tail::TailCursor;

/// Number of messages by which a reader may be behind a stream; then the reader is brought near its end.
pub(super) const MAX_BEHIND: u64 = 1_000;
/// Number of messages before the end of the stream to which such a reader is brought.
pub(super) const KEPT_BEHIND: u64 = 200;

/// Returns the first cursor in a stream that ends at `last`, with the last `wanted` messages.
pub(super) const fn first_cursor(last: u64, wanted: u64) -> TailCursor {
    let next = (last + 1).saturating_sub(wanted);
    TailCursor {
        next: if next == 0 { 1 } else { next },
        whole_until: last,
    }
}

/// Returns `cursor` as it stands in a stream that ends at `last`, and the number of messages that are left out. A stream
/// that ends before the cursor was restored or made anew, and is read from its end on.
pub(super) const fn follow_end(cursor: TailCursor, last: u64, is_whole: bool) -> (TailCursor, u64) {
    if cursor.next > last + 1 {
        let next = last + 1;
        return (
            TailCursor {
                next,
                whole_until: last,
            },
            0,
        );
    }

    let behind = last + 1 - cursor.next;
    if is_whole || cursor.next <= cursor.whole_until || behind <= MAX_BEHIND {
        return (cursor, 0);
    }
    let next = last + 1 - KEPT_BEHIND;
    (TailCursor { next, ..cursor }, next - cursor.next)
}

/// What was read of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lane<T> {
    /// Where the reading began.
    pub(super) cursor: TailCursor,
    /// Messages with sequence and time, in nanoseconds, oldest first.
    pub(super) read: Vec<(u64, i64, T)>,
    /// Number of messages that the first reading found.
    pub(super) first: usize,
    /// Whether the stream has more behind them.
    pub(super) has_more: bool,
}

impl<T> Lane<T> {
    /// Returns the lane with times that never go back: in a stream the sequence counts, and the clocks of two leaders may
    /// differ.
    fn in_order(mut self) -> Self {
        let mut latest = i64::MIN;
        for (_, at, _) in &mut self.read {
            latest = latest.max(*at);
            *at = latest;
        }
        self
    }
}

/// Returns the messages of a page in the order of time, and the cursors behind them.
/// `room` is asked of each message in that order, and ends the page.
pub(super) fn make_page<T>(lanes: Vec<Lane<T>>, mut has_room: impl FnMut(&T) -> bool) -> (Vec<T>, Vec<TailCursor>) {
    let lanes: Vec<Lane<T>> = lanes.into_iter().map(Lane::in_order).collect();
    let newest = lanes
        .iter()
        .filter_map(|lane| lane.read[..lane.first].last())
        .map(|(_, at, _)| *at);
    // Behind a part that was not read there may be messages that are older than those of other streams.
    let cut = lanes
        .iter()
        .filter(|lane| lane.has_more)
        .filter_map(|lane| lane.read.last());
    let horizon = newest.max().into_iter().chain(cut.map(|(_, at, _)| *at)).min();

    let mut cursors: Vec<TailCursor> = lanes.iter().map(|lane| lane.cursor).collect();
    let mut all: Vec<(i64, usize, u64, T)> = Vec::new();
    for (index, lane) in lanes.into_iter().enumerate() {
        let read = lane
            .read
            .into_iter()
            .map(|(sequence, at, item)| (at, index, sequence, item));
        all.extend(read.take_while(|(at, ..)| horizon.is_some_and(|horizon| *at <= horizon)));
    }
    all.sort_by_key(|(at, index, sequence, _)| (*at, *index, *sequence));

    let mut page = Vec::new();
    for (_, index, sequence, item) in all {
        if !has_room(&item) {
            break;
        }
        cursors[index].next = sequence + 1;
        page.push(item);
    }

    (page, cursors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(next: u64, whole_until: u64) -> TailCursor {
        TailCursor { next, whole_until }
    }

    #[test]
    fn a_reader_far_behind_is_brought_near_the_end_and_told_what_it_missed() {
        assert_eq!(first_cursor(50, 0), cursor(51, 50));
        assert_eq!(first_cursor(50, 20), cursor(31, 50));
        assert_eq!(first_cursor(50, u64::MAX), cursor(1, 50));

        assert_eq!(follow_end(cursor(51, 50), 1_050, false), (cursor(51, 50), 0));
        assert_eq!(follow_end(cursor(51, 50), 1_051, false), (cursor(852, 50), 801));
        assert_eq!(
            follow_end(cursor(51, 50), 9_999, true),
            (cursor(51, 50), 0),
            "all of it"
        );
        assert_eq!(
            follow_end(cursor(31, 50), 9_999, false),
            (cursor(31, 50), 0),
            "what was asked for"
        );
        assert_eq!(
            follow_end(cursor(51, 50), 7, false),
            (cursor(8, 7), 0),
            "the stream was put back"
        );
        assert_eq!(follow_end(cursor(51, 50), 50, false), (cursor(51, 50), 0));
    }

    fn lane(next: u64, read: &[(u64, i64)], first: usize, has_more: bool) -> Lane<u64> {
        Lane {
            cursor: cursor(next, 0),
            read: read.iter().map(|(sequence, at)| (*sequence, *at, *sequence)).collect(),
            first,
            has_more,
        }
    }

    fn page(lanes: Vec<Lane<u64>>, mut room: usize) -> (Vec<u64>, Vec<u64>) {
        let (page, cursors) = make_page(lanes, |_| {
            let has_room = room > 0;
            room = room.saturating_sub(1);
            has_room
        });
        (page, cursors.into_iter().map(|cursor| cursor.next).collect())
    }

    #[test]
    fn what_the_second_reading_alone_has_is_left_to_the_next_page() {
        // The first reading had 10 and 30; the second one found 20, older than 30, and 40.
        let lanes = vec![
            lane(1, &[(1, 10), (2, 40)], 1, false),
            lane(5, &[(5, 30)], 1, false),
            lane(7, &[(7, 20)], 0, false),
        ];
        assert_eq!(page(lanes.clone(), 9), (vec![1, 7, 5], vec![2, 6, 8]));
        assert_eq!(page(lanes, 2), (vec![1, 7], vec![2, 5, 8]));
        assert_eq!(page(vec![lane(3, &[], 0, false)], 9), (vec![], vec![3]));
    }

    #[test]
    fn a_page_ends_where_a_stream_was_not_read_on() {
        let lanes = vec![
            lane(1, &[(1, 10), (2, 11)], 2, true),
            lane(5, &[(5, 5), (6, 30)], 2, false),
        ];
        assert_eq!(page(lanes, 9), (vec![5, 1, 2], vec![3, 6]));
    }

    #[test]
    fn a_time_that_goes_back_within_a_stream_loses_and_doubles_nothing() {
        let lanes = vec![
            lane(1, &[(1, 10), (2, 60), (3, 20)], 3, false),
            lane(4, &[(4, 20)], 1, false),
        ];
        let (first, next) = page(lanes, 9);
        assert_eq!((first, next), (vec![1, 4, 2, 3], vec![4, 5]));
    }
}
