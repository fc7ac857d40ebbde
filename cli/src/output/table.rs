//! Tables as text. A table fits the width it is given: its text columns are cut with `…`; ids, times and numbers are
//! never cut, so that they can be copied. *Pure.*

use shared::model::time::UnixMillis;
use unicode_width::UnicodeWidthStr as _;

use super::column::{Column, Kind};
use super::escape::escape_controls;
use super::layout::{GAP, MIN_TEXT, first_line, fit, join, wrapped_rows};
use super::zone::Zone;

/// Widest id for which a column makes room: a longer one moves the rest of its own line on.
const MAX_ID: usize = 40;

/// A value in a table or beside a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// Text, as it came; it is escaped when it is shown.
    Text(String),
    /// A point in time, shown in the reader's zone.
    Time(UnixMillis),
}

impl Cell {
    /// Returns the cell as one line of text.
    fn line(&self, kind: Kind, zone: &Zone) -> String {
        match self {
            Self::Time(at) if kind == Kind::Clock => zone.clock(*at),
            Self::Time(at) => zone.date_time(*at),
            Self::Text(text) if kind == Kind::Text => first_line(text),
            Self::Text(text) if kind == Kind::Prose => escape_controls(&text.replace('\n', " ")),
            Self::Text(text) => escape_controls(text),
        }
    }

    /// Returns the cell as a value beside a label: all of its lines.
    pub(super) fn whole(&self, zone: &Zone) -> String {
        match self {
            Self::Time(at) => zone.date_time(*at),
            Self::Text(text) => super::escape::plain_lines(text),
        }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<&String> for Cell {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl From<UnixMillis> for Cell {
    fn from(at: UnixMillis) -> Self {
        Self::Time(at)
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        Self::Text(number.to_string())
    }
}

impl From<u32> for Cell {
    fn from(number: u32) -> Self {
        Self::Text(number.to_string())
    }
}

impl From<usize> for Cell {
    fn from(number: usize) -> Self {
        Self::Text(number.to_string())
    }
}

impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or_else(|| Self::Text(String::new()), Into::into)
    }
}

/// A table: columns and rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Returns a table with `columns` and no rows.
    #[must_use]
    pub fn new(columns: &[Column]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row with one cell for each column.
    pub fn add<const N: usize>(&mut self, cells: [Cell; N]) {
        debug_assert_eq!(N, self.columns.len(), "a cell for each column");
        self.rows.push(cells.into());
    }

    /// Returns the table with a row for each of `items`.
    #[must_use]
    pub fn with<T, const N: usize>(
        mut self,
        items: impl IntoIterator<Item = T>,
        cells: impl Fn(T) -> [Cell; N],
    ) -> Self {
        for item in items {
            self.add(cells(item));
        }
        self
    }

    /// Returns the ids of the first column of ids.
    pub(super) fn ids(&self) -> Vec<String> {
        let Some(column) = self.columns.iter().position(|column| column.kind == Kind::Id) else {
            return Vec::new();
        };
        let ids = self.rows.iter().filter_map(|row| row.get(column));
        ids.map(|cell| cell.line(Kind::Id, &Zone::utc())).collect()
    }

    /// Returns the header and a line for each row, not wider than `width` as far as its text columns can be cut.
    pub(super) fn lines(&self, width: Option<usize>, zone: &Zone) -> Vec<String> {
        let shown: Vec<usize> = (0..self.columns.len())
            .filter(|index| width.is_none() || !self.columns[*index].is_extra)
            .collect();
        let columns: Vec<Column> = shown.iter().map(|index| self.columns[*index]).collect();

        let header = columns.iter().map(|column| column.name.to_owned()).collect();
        let row_texts = |row: &Vec<Cell>| -> Vec<String> {
            let cells = shown.iter().filter_map(|index| row.get(*index));
            cells
                .zip(&columns)
                .map(|(cell, column)| cell.line(column.kind, zone))
                .collect()
        };
        let texts: Vec<Vec<String>> = std::iter::once(header).chain(self.rows.iter().map(row_texts)).collect();

        let mut natural = vec![0; columns.len()];
        for row in &texts {
            for ((widest, text), column) in natural.iter_mut().zip(row).zip(&columns) {
                let is_outlier = width.is_some() && column.kind == Kind::Id && text.width() > MAX_ID;
                *widest = if is_outlier { *widest } else { text.width().max(*widest) };
            }
        }

        let widths = fit(&columns, &natural, width);
        let lines = texts.iter().flat_map(|row| wrapped_rows(&columns, &widths, row));
        lines.map(|row| join(&columns, &widths, &row)).collect()
    }
}

/// Lines of a table that has no end: its columns have fixed widths, and the last one is cut.
#[derive(Debug, Clone)]
pub(super) struct LineLayout {
    columns: Vec<Column>,
    widths: Vec<usize>,
    width: Option<usize>,
    zone: Zone,
}

impl LineLayout {
    pub(super) fn new(columns: &[(Column, usize)], width: Option<usize>, zone: Zone) -> Self {
        Self {
            columns: columns.iter().map(|(column, _)| *column).collect(),
            widths: columns.iter().map(|(_, width)| *width).collect(),
            width,
            zone,
        }
    }

    /// Returns `cells` as one line. A cell that is wider than its column moves the others on; the last one is cut.
    pub(super) fn line(&self, cells: &[Cell]) -> String {
        let texts: Vec<String> = self
            .columns
            .iter()
            .zip(cells)
            .map(|(column, cell)| cell.line(column.kind, &self.zone))
            .collect();
        let mut widths: Vec<usize> = self
            .widths
            .iter()
            .zip(&texts)
            .map(|(least, text)| text.width().max(*least))
            .collect();

        if let (Some(width), Some(last)) = (self.width, widths.last().copied()) {
            let before: usize = widths.iter().map(|width| width + GAP).sum::<usize>() - last - GAP;
            let rest = width.saturating_sub(before).max(MIN_TEXT);
            if let Some(last) = widths.last_mut() {
                *last = rest.min(*last);
            }
        }

        join(&self.columns, &widths, &texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An id as long as that of a webhook's event.
    const LONG: &str = "webhook:github/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn table() -> Table {
        let columns = [
            Column::id("ID"),
            Column::time("AT"),
            Column::number("N"),
            Column::text("WHO"),
            Column::text("TEXT"),
        ];
        Table::new(&columns).with([1_u64, 20_000], |number| {
            [
                format!("e2e:{number:026}").into(),
                UnixMillis(0).into(),
                number.into(),
                "ann".into(),
                "a text that is much longer than its column may be\nand goes on".into(),
            ]
        })
    }

    #[test]
    fn a_table_fits_its_width_and_keeps_its_ids() {
        for width in [60, 80, 100, 120] {
            let lines = table().lines(Some(width), &Zone::utc());
            for (line, id) in lines[1..].iter().zip(table().ids()) {
                assert!(line.starts_with(&id), "{line}");
                assert!(line.contains("1970-01-01 00:00:00") && line.ends_with('…'), "{line}");
            }
            let widest = lines.iter().map(|line| line.width()).max();
            assert!(width == 60 || widest <= Some(width), "{lines:#?}");
        }

        let whole = table().lines(None, &Zone::utc());
        assert!(whole[1].contains("than its column may be…"), "{whole:#?}");
        assert_eq!(
            whole[0],
            "ID                              AT                       N  WHO  TEXT"
        );
    }

    #[test]
    fn an_id_that_is_wider_than_the_table_is_whole() {
        let columns = [Column::id("EVENT"), Column::text("TEXT")];
        let table = Table::new(&columns).with([LONG], |id| [id.into(), "a long text beside it".into()]);
        assert_eq!(table.ids(), [LONG]);
        let lines = table.lines(Some(80), &Zone::utc());
        assert_eq!(lines, ["EVENT  TEXT", &format!("{LONG}  a long text beside it")]);
    }

    #[test]
    fn extra_columns_are_shown_with_wide_alone() {
        let columns = [Column::id("ID"), Column::text("WHY").extra(), Column::number("N")];
        let table = Table::new(&columns).with([7_u64], |n| ["a".into(), "because".into(), n.into()]);
        assert_eq!(table.lines(Some(80), &Zone::utc()), ["ID  N", "a   7"]);
        assert_eq!(table.lines(None, &Zone::utc()), ["ID  WHY      N", "a   because  7"]);
    }

    #[test]
    fn prose_goes_on_below_its_first_line() {
        let columns = [Column::id("ID"), Column::prose("DETAIL")];
        let text = "a detail that has more words than fit beside the id";
        let table = Table::new(&columns).with([text], |text| ["abc".into(), text.into()]);
        assert_eq!(
            table.lines(Some(30), &Zone::utc()),
            [
                "ID   DETAIL",
                "abc  a detail that has more",
                "     words than fit beside the",
                "     id",
            ]
        );
        assert_eq!(table.lines(None, &Zone::utc())[1], format!("abc  {text}"));
    }

    #[test]
    fn what_steers_a_terminal_is_escaped_before_it_is_measured() {
        let columns = [Column::id("ID"), Column::text("TEXT")];
        let table = Table::new(&columns).with(["a\u{1b}[2J"], |id| [id.into(), "x\u{202e}y\r\nz".into()]);
        assert_eq!(table.lines(None, &Zone::utc())[1], "a\\u{1b}[2J  x\\u{202e}y…");
    }

    #[test]
    fn a_line_without_an_end_is_cut_at_its_last_column() {
        let columns = [
            (Column::clock("AT"), 12),
            (Column::id("ID"), 4),
            (Column::text("TEXT"), 0),
        ];
        let layout = LineLayout::new(&columns, Some(30), Zone::utc());
        let line = layout.line(&[UnixMillis(0).into(), "a".into(), "words and more words".into()]);
        assert_eq!(line, "00:00:00.000  a     words and…");

        let line = layout.line(&[UnixMillis(0).into(), LONG.into(), "words and more words".into()]);
        assert_eq!(line, format!("00:00:00.000  {LONG}  words a…"));
    }
}
