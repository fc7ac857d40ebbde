//! Positions: how far a reader has come in a stream, and whether that still counts. *Pure.* Source:
//! `docs/design/trust.md` §2.

use serde::{Deserialize, Serialize};

/// A message of a stream. Its sequence alone names none: a stream that is put back or cut gives sequences out again.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Position {
    /// The stream's incarnation: random, written into its metadata when it was made.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub incarnation: String,
    /// Stream sequence of the message; 0 = before the first.
    pub sequence: u64,
    /// When the server stored that message, nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stored_at_ns: i64,
}

/// Which message of a stream that a queue drains: its sequence alone names none, for a queue that is put back to an older
/// state, or made anew, gives sequences out again. Written `{sequence}@{nanoseconds}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Its sequence.
    pub sequence: u64,
    /// When the server stored it, nanoseconds since 1970.
    pub stored_at_ns: i64,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.sequence, self.stored_at_ns)
    }
}

impl Place {
    /// The one that `text` names; none = it names none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (sequence, stored_at_ns) = text.split_once('@')?;
        Some(Self {
            sequence: sequence.parse().ok()?,
            stored_at_ns: stored_at_ns.parse().ok()?,
        })
    }

    /// Whether it was in the stream when that had come to `last`: one that has an old sequence and is younger came after the
    /// stream was put back.
    #[must_use]
    pub const fn is_up_to(&self, last: &Self) -> bool {
        self.sequence <= last.sequence && self.stored_at_ns <= last.stored_at_ns
    }
}

/// A former life of a restored stream: up to `through` the stream has the messages that it had then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormerLife {
    /// The incarnation that was copied.
    pub incarnation: String,
    /// The last sequence of the copy.
    pub through: u64,
}

/// The former lives of a stream, the oldest first; as a text `{incarnation}:{through}`, joined by commas.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lineage(Vec<FormerLife>);

impl Lineage {
    /// Former lives that are remembered; positions of older ones are void.
    pub const MOST: usize = 16;

    /// Reads the text of a stream's metadata; what is no former life tells nothing.
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

    /// It, of a stream that is restored from a copy of `incarnation` that ends at `through`.
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

    /// Whether the stream was never restored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Up to which sequence the stream has what `incarnation` had; none = that is none of its former lives.
    #[must_use]
    pub fn through(&self, incarnation: &str) -> Option<u64> {
        let life = self.0.iter().find(|life| life.incarnation == incarnation)?;
        Some(life.through)
    }
}

impl std::fmt::Display for Lineage {
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

/// The leader's answer about the stream, and about the place that a position names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<'a> {
    /// The stream's incarnation.
    pub incarnation: &'a str,
    /// Its former lives, where it was restored.
    pub lineage: &'a Lineage,
    /// Sequence of its first message; where it has none, of the next.
    pub first: u64,
    /// When the message at the position's sequence was stored, nanoseconds since 1970; `None` if there is no such message.
    pub stored_at_ns: Option<i64>,
}

/// Whether a position counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Everything up to it is what it was when the position was taken.
    Holds,
    /// The stream is not what it was; the reason in words.
    Void(&'static str),
}

impl Standing {
    /// Whether it holds.
    #[must_use]
    pub const fn holds(self) -> bool {
        matches!(self, Self::Holds)
    }
}

/// Whether `position` holds in a stream of which the leader says `found`: the stream has the same incarnation, or was restored
/// from a copy of it that reaches so far, and gives the same message at that sequence or has dropped it by age already.
#[must_use]
pub fn judge(position: &Position, found: &Found<'_>) -> Standing {
    if position.sequence == 0 {
        return Standing::Holds;
    }

    let is_inherited = || {
        let through = found.lineage.through(&position.incarnation);
        through.is_some_and(|through| position.sequence <= through)
    };
    if position.incarnation != found.incarnation && !is_inherited() {
        return Standing::Void("the stream was created again or restored");
    }

    if position.sequence < found.first {
        return Standing::Holds;
    }

    match found.stored_at_ns {
        Some(at) if at == position.stored_at_ns => Standing::Holds,
        Some(_) => Standing::Void("another message has this sequence now"),
        None => Standing::Void("the stream has no message with this sequence"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(sequence: u64) -> Position {
        Position {
            incarnation: "a".to_owned(),
            sequence,
            stored_at_ns: 700,
        }
    }

    fn found(incarnation: &str, first: u64, stored_at_ns: Option<i64>) -> Found<'_> {
        static NEVER_RESTORED: Lineage = Lineage(Vec::new());
        Found {
            incarnation,
            lineage: &NEVER_RESTORED,
            first,
            stored_at_ns,
        }
    }

    #[test]
    fn a_position_holds_where_the_same_message_stands_or_was_dropped_by_age() {
        assert!(judge(&position(20), &found("a", 1, Some(700))).holds());
        assert!(judge(&position(20), &found("a", 21, None)).holds());
        assert!(
            judge(&Position::default(), &found("a", 1, None)).holds(),
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
            assert!(!judge(&position(20), &found).holds(), "{found:?}");
        }
    }

    #[test]
    fn a_position_of_a_former_life_holds_as_far_as_the_copy_reaches() {
        let lineage = Lineage::default().restored_from("a", 20).restored_from("b", 30);
        let check = |position: &Position, stored_at_ns, expected: bool| {
            let found = Found {
                incarnation: "c",
                lineage: &lineage,
                first: 1,
                stored_at_ns,
            };

            assert_eq!(
                judge(position, &found).holds(),
                expected,
                "{position:?} {stored_at_ns:?}"
            );
        };

        check(&position(20), Some(700), true);
        check(&position(20), Some(701), false);
        check(&position(21), Some(700), false);

        let of_b = |sequence| Position {
            incarnation: "b".to_owned(),
            ..position(sequence)
        };
        check(&of_b(30), Some(700), true);
        check(&of_b(31), Some(700), false);
    }

    #[test]
    fn a_lineage_reads_back_and_forgets_its_oldest_lives() {
        let mut lineage = Lineage::default();
        assert_eq!(Lineage::parse(""), lineage);
        assert_eq!(lineage.clone().restored_from("", 5), lineage, "made by somebody else");

        for life in 0..20_u64 {
            lineage = lineage.restored_from(&format!("life{life}"), life);
        }

        assert_eq!(Lineage::parse(&lineage.to_string()), lineage);
        assert_eq!(lineage.through("life3"), None);
        assert_eq!(lineage.through("life4"), Some(4));
        assert_eq!(Lineage::parse("nothing,:7,x:y"), Lineage::default());
    }
}
