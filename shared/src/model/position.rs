//! Positions: the progress of a reader in a stream, and the check whether it is still valid. *Pure.* Source:
//! `docs/design/trust.md` §2.

use serde::{Deserialize, Serialize};

/// A message of a stream. A sequence alone does not identify a message: a restored or truncated stream reuses
/// sequences.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamPosition {
    /// Incarnation of the stream: a random value in its metadata, set when the stream was created.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub incarnation: String,
    /// Stream sequence of the message; 0 = before the first.
    pub sequence: u64,
    /// Time the server stored the message, in nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stored_at_ns: i64,
}

/// A message of a stream that a queue drains, written as `{sequence}@{nanoseconds}`. A sequence alone does not
/// identify a message: a queue that is restored to an older state, or created again, reuses sequences.
///
/// ```
/// use shared::model::position::StreamPlace;
///
/// let place = StreamPlace { sequence: 20, stored_at_ns: 1_700 };
/// assert_eq!(place.to_string(), "20@1700");
/// assert_eq!(StreamPlace::parse("20@1700"), Some(place));
/// // The same sequence in a restored stream is another message.
/// assert_ne!(StreamPlace::parse("20@1800"), Some(place));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StreamPlace {
    /// Stream sequence of the message.
    pub sequence: u64,
    /// Time the server stored it, in nanoseconds since 1970.
    pub stored_at_ns: i64,
}

impl std::fmt::Display for StreamPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.sequence, self.stored_at_ns)
    }
}

impl StreamPlace {
    /// Parses a place. Returns `None` if `text` is not of the form `{sequence}@{nanoseconds}`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (sequence, stored_at_ns) = text.split_once('@')?;
        Some(Self {
            sequence: sequence.parse().ok()?,
            stored_at_ns: stored_at_ns.parse().ok()?,
        })
    }

    /// Returns whether the message was in the stream when `last` was its last message. A message with an older
    /// sequence and a later time arrived after the stream was restored.
    #[must_use]
    pub const fn is_up_to(&self, last: &Self) -> bool {
        self.sequence <= last.sequence && self.stored_at_ns <= last.stored_at_ns
    }
}

/// A former life of a restored stream. Up to `through`, the stream has the messages of that life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormerLife {
    /// Incarnation that was copied.
    pub incarnation: String,
    /// Last sequence of the copy.
    pub through: u64,
}

/// The former lives of a stream, oldest first; as text `{incarnation}:{through}`, joined by commas.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamLineage(Vec<FormerLife>);

impl StreamLineage {
    /// Maximum number of former lives that are kept; positions of older ones are void.
    pub const MOST: usize = 16;

    /// Parses the text in a stream's metadata. Entries that are not former lives are ignored.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let lives = text.split(',').filter_map(|one| {
            let (incarnation, through) = one.rsplit_once(':')?;
            let through = through.parse().ok()?;
            (!incarnation.is_empty()).then(|| FormerLife {
                incarnation: incarnation.to_owned(),
                through,
            })
        });
        Self(lives.collect())
    }

    /// Returns the lineage of a stream that is restored from a copy of `incarnation` that ends at `through`.
    #[must_use]
    pub fn restored_from(mut self, incarnation: &str, through: u64) -> Self {
        if !incarnation.is_empty() {
            self.0.push(FormerLife {
                incarnation: incarnation.to_owned(),
                through,
            });
        }
        let surplus = self.0.len().saturating_sub(Self::MOST);
        self.0.drain(..surplus);
        self
    }

    /// Returns whether the stream was never restored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the last sequence that the stream shares with `incarnation`; `None` if that is not a former life.
    #[must_use]
    pub fn through(&self, incarnation: &str) -> Option<u64> {
        let life = self.0.iter().find(|life| life.incarnation == incarnation)?;
        Some(life.through)
    }
}

impl std::fmt::Display for StreamLineage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (place, life) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            write!(f, "{comma}{}:{}", life.incarnation, life.through)?;
        }
        Ok(())
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(value: &i64) -> bool {
    *value == 0
}

/// The stream leader's data about the stream, and about the message at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundPosition<'a> {
    /// Incarnation of the stream.
    pub incarnation: &'a str,
    /// Former lives of the stream, if it was restored.
    pub lineage: &'a StreamLineage,
    /// Sequence of the first message, or of the next message if the stream is empty.
    pub first: u64,
    /// Time the message at the position's sequence was stored, in nanoseconds since 1970; `None` if there is no such
    /// message.
    pub stored_at_ns: Option<i64>,
}

/// The validity of a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PositionStanding {
    /// The stream is unchanged up to the position.
    Holds,
    /// The stream has changed; the value is the reason.
    Void(&'static str),
}

impl PositionStanding {
    /// Returns whether the position is valid.
    #[must_use]
    pub const fn holds(self) -> bool {
        matches!(self, Self::Holds)
    }
}

/// Returns whether `position` is valid in a stream with the data `found`. It is valid if the stream has the same
/// incarnation, or was restored from a copy of it that includes the position, and if the stream has the same message
/// at that sequence or has already dropped it by age.
#[must_use]
pub fn judge_position(position: &StreamPosition, found: &FoundPosition<'_>) -> PositionStanding {
    if position.sequence == 0 {
        return PositionStanding::Holds;
    }

    let is_inherited = || {
        let through = found.lineage.through(&position.incarnation);
        through.is_some_and(|through| position.sequence <= through)
    };
    if position.incarnation != found.incarnation && !is_inherited() {
        return PositionStanding::Void("the stream was created again or restored");
    }

    // The message was dropped by age, so it cannot be compared any more.
    if position.sequence < found.first {
        return PositionStanding::Holds;
    }

    match found.stored_at_ns {
        Some(at) if at == position.stored_at_ns => PositionStanding::Holds,
        Some(_) => PositionStanding::Void("another message has this sequence now"),
        None => PositionStanding::Void("the stream has no message with this sequence"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(sequence: u64) -> StreamPosition {
        StreamPosition {
            incarnation: "a".to_owned(),
            sequence,
            stored_at_ns: 700,
        }
    }

    fn found(incarnation: &str, first: u64, stored_at_ns: Option<i64>) -> FoundPosition<'_> {
        static NEVER_RESTORED: StreamLineage = StreamLineage(Vec::new());
        FoundPosition {
            incarnation,
            lineage: &NEVER_RESTORED,
            first,
            stored_at_ns,
        }
    }

    #[test]
    fn a_position_holds_where_the_same_message_stands_or_was_dropped_by_age() {
        assert!(judge_position(&position(20), &found("a", 1, Some(700))).holds());
        assert!(judge_position(&position(20), &found("a", 21, None)).holds());
        assert!(
            judge_position(&StreamPosition::default(), &found("a", 1, None)).holds(),
            "nothing was counted"
        );
    }

    #[test]
    fn a_position_is_void_where_the_stream_is_another_or_gives_another_message() {
        for found in [
            found("b", 1, Some(700)),
            found("b", 21, None),
            found("", 1, Some(700)),
            found("a", 1, Some(701)),
            found("a", 1, None),
            found("a", 20, None),
        ] {
            assert!(!judge_position(&position(20), &found).holds(), "{found:?}");
        }
    }

    #[test]
    fn a_position_of_a_former_life_holds_as_far_as_the_copy_reaches() {
        let lineage = StreamLineage::default().restored_from("a", 20).restored_from("b", 30);
        let check = |position: &StreamPosition, stored_at_ns, expected: bool| {
            let found = FoundPosition {
                incarnation: "c",
                lineage: &lineage,
                first: 1,
                stored_at_ns,
            };

            assert_eq!(
                judge_position(position, &found).holds(),
                expected,
                "{position:?} {stored_at_ns:?}"
            );
        };

        check(&position(20), Some(700), true);
        check(&position(20), Some(701), false);
        check(&position(21), Some(700), false);

        let of_b = |sequence| StreamPosition {
            incarnation: "b".to_owned(),
            ..position(sequence)
        };
        check(&of_b(30), Some(700), true);
        check(&of_b(31), Some(700), false);
    }

    #[test]
    fn a_lineage_reads_back_and_forgets_its_oldest_lives() {
        let mut lineage = StreamLineage::default();
        assert_eq!(StreamLineage::parse(""), lineage);
        assert_eq!(lineage.clone().restored_from("", 5), lineage, "made by somebody else");

        for life in 0..20_u64 {
            lineage = lineage.restored_from(&format!("life{life}"), life);
        }

        assert_eq!(StreamLineage::parse(&lineage.to_string()), lineage);
        assert_eq!(lineage.through("life3"), None);
        assert_eq!(lineage.through("life4"), Some(4));
        assert_eq!(StreamLineage::parse("nothing,:7,x:y"), StreamLineage::default());
    }
}
