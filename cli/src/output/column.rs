//! Columns of tables. *Pure.*

/// Contents of a column; decides whether it is cut and on which side it is aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Names a thing: never cut. `--quiet` prints the first column of this kind.
    Id,
    /// Words: cut if the table is too wide.
    Text,
    /// Words that are read to their end: if the table is too wide, they go on below. Only the last column.
    Prose,
    /// A date and time.
    Time,
    /// A time of day with milliseconds.
    Clock,
    /// A number: aligned to the right.
    Number,
}

/// A column of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Whether the column is shown with `--wide` alone.
    pub(super) is_extra: bool,
}

impl Column {
    const fn new(name: &'static str, kind: Kind) -> Self {
        Self {
            name,
            kind,
            is_extra: false,
        }
    }

    /// Returns the column as one that is shown with `--wide` alone.
    #[must_use]
    pub const fn extra(self) -> Self {
        Self { is_extra: true, ..self }
    }

    /// Returns a column of ids.
    #[must_use]
    pub const fn id(name: &'static str) -> Self {
        Self::new(name, Kind::Id)
    }

    /// Returns a column of words.
    #[must_use]
    pub const fn text(name: &'static str) -> Self {
        Self::new(name, Kind::Text)
    }

    /// Returns a column of words that are read to their end.
    #[must_use]
    pub const fn prose(name: &'static str) -> Self {
        Self::new(name, Kind::Prose)
    }

    /// Returns a column of dates with times.
    #[must_use]
    pub const fn time(name: &'static str) -> Self {
        Self::new(name, Kind::Time)
    }

    /// Returns a column of times of day.
    #[must_use]
    pub const fn clock(name: &'static str) -> Self {
        Self::new(name, Kind::Clock)
    }

    /// Returns a column of numbers.
    #[must_use]
    pub const fn number(name: &'static str) -> Self {
        Self::new(name, Kind::Number)
    }
}
