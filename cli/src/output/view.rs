//! Output of a command: one value that is shown as a table, as JSON, or as ids alone.

use std::io::IsTerminal as _;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::Value;
use unicode_width::UnicodeWidthStr as _;

use super::column::Column;
use super::escape::{escape_controls, plain_lines};
use super::layout::wrap;
use super::table::{Cell, LineLayout, Table};
use super::writer::{json_line, print, print_json};
use super::zone::Zone;
use crate::args::Common;

/// Width of tables if the output is no terminal.
const DEFAULT_WIDTH: usize = 80;
/// Width below which a terminal's size is not believed.
const MIN_WIDTH: usize = 40;

/// Result of a command.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    json: Value,
    ids: Vec<String>,
    blocks: Vec<Block>,
}

/// Part of a result, as people read it.
#[derive(Debug, Clone, PartialEq)]
enum Block {
    Table(Table),
    Fields(Vec<(&'static str, Cell)>),
    Lines(String),
    /// The beginning of a line, and words that go on below each other after it.
    Entry(String, String),
}

impl View {
    /// Returns a list: `items` are its JSON array, people see `table`, and `--quiet` prints its first column of ids.
    ///
    /// # Errors
    /// Fails if an item has no JSON form.
    pub fn list<T: Serialize>(items: &[T], table: Table) -> Result<Self> {
        Ok(Self {
            json: serde_json::to_value(items).context("failed to write JSON")?,
            ids: table.ids(),
            blocks: vec![Block::Table(table)],
        })
    }

    /// Returns one thing: `item` is its JSON object, and `--quiet` prints `id`.
    ///
    /// # Errors
    /// Fails if `item` has no JSON form.
    pub fn one<T: Serialize + ?Sized>(id: impl Into<String>, item: &T) -> Result<Self> {
        let view = Self::of(item)?;
        Ok(view.ids([id.into()]))
    }

    /// Returns a view whose JSON is `value`, without ids.
    ///
    /// # Errors
    /// Fails if `value` has no JSON form.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        Ok(Self {
            json: serde_json::to_value(value).context("failed to write JSON")?,
            ids: Vec::new(),
            blocks: Vec::new(),
        })
    }

    /// Returns the view with `ids`, which `--quiet` prints.
    #[must_use]
    pub fn ids(mut self, ids: impl IntoIterator<Item = String>) -> Self {
        self.ids = ids.into_iter().collect();
        self
    }

    /// Returns the view with labeled values for people; values without text are left out.
    #[must_use]
    pub fn fields(mut self, fields: impl IntoIterator<Item = (&'static str, Cell)>) -> Self {
        let shown = fields
            .into_iter()
            .filter(|(_, cell)| !matches!(cell, Cell::Text(text) if text.is_empty()));
        self.blocks.push(Block::Fields(shown.collect()));
        self
    }

    /// Returns the view with a table for people.
    #[must_use]
    pub fn table(mut self, table: Table) -> Self {
        self.blocks.push(Block::Table(table));
        self
    }

    /// Returns the view with a sentence, or a text of several lines, for people.
    #[must_use]
    pub fn line(mut self, text: impl Into<String>) -> Self {
        self.blocks.push(Block::Lines(text.into()));
        self
    }

    /// Returns the view with a line that begins with `head`; `text` after it goes on in further lines if it is too
    /// wide.
    #[must_use]
    pub fn entry(mut self, head: impl Into<String>, text: impl Into<String>) -> Self {
        self.blocks.push(Block::Entry(head.into(), text.into()));
        self
    }

    /// Prints the view as `common` asks for it.
    ///
    /// # Errors
    /// Returns `ReaderGone` if the reader has gone, and an error if the output cannot be written.
    pub fn show(&self, common: &Common) -> Result<()> {
        match Format::of(common) {
            Format::Json => print_json(&self.json),
            Format::Quiet => print(&lines_of(&self.ids)),
            Format::Table { width, zone } => print(&lines_of(&self.text(width, &zone))),
        }
    }

    fn text(&self, width: Option<usize>, zone: &Zone) -> Vec<String> {
        let blocks = self.blocks.iter().map(|block| match block {
            Block::Table(table) => table.lines(width, zone),
            Block::Fields(fields) => field_lines(fields, zone),
            Block::Lines(text) => plain_lines(text).lines().map(str::to_owned).collect(),
            Block::Entry(head, text) => entry_lines(&escape_controls(head), &escape_controls(text), width),
        });
        blocks.flatten().collect()
    }
}

/// How a command prints its result.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Format {
    /// For people.
    Table {
        /// Greatest width of a table; `None` with `--wide`.
        width: Option<usize>,
        /// Zone in which times are shown.
        zone: Zone,
    },
    /// For programs.
    Json,
    /// Ids alone, one a line.
    Quiet,
}

impl Format {
    /// Returns the format that the options of `common` ask for.
    #[must_use]
    fn of(common: &Common) -> Self {
        if common.json {
            return Self::Json;
        }
        if common.quiet {
            return Self::Quiet;
        }
        Self::Table {
            width: (!common.wide).then(terminal_width),
            zone: reader_zone(common),
        }
    }
}

/// Returns the zone in which `common` asks for times.
#[must_use]
pub fn reader_zone(common: &Common) -> Zone {
    if common.utc { Zone::utc() } else { Zone::of_reader() }
}

/// Returns whether sentences for people are wanted, rather than JSON or ids.
#[must_use]
pub fn is_for_people(common: &Common) -> bool {
    !common.json && !common.quiet
}

/// Prints a list that has no end, one line at a time: with `--json` one object a line.
#[derive(Debug, Clone)]
pub struct LinePrinter {
    format: Format,
    layout: LineLayout,
}

impl LinePrinter {
    /// Returns a printer for `columns`, each with its least width; the last column is cut to the terminal.
    #[must_use]
    pub fn new(common: &Common, columns: &[(Column, usize)]) -> Self {
        let format = Format::of(common);
        let (width, zone) = match &format {
            Format::Table { width, zone } => (*width, zone.clone()),
            Format::Json | Format::Quiet => (None, Zone::utc()),
        };
        Self {
            format,
            layout: LineLayout::new(columns, width, zone),
        }
    }

    /// Prints one entry: `id` with `--quiet`, `item` with `--json`, else `cells`.
    ///
    /// # Errors
    /// Returns `ReaderGone` if the reader has gone, and an error if the output cannot be written.
    pub fn print<T: Serialize>(&self, id: &str, item: &T, cells: &[Cell]) -> Result<()> {
        match &self.format {
            Format::Json => json_line(item),
            Format::Quiet => print(&format!("{}\n", escape_controls(id))),
            Format::Table { .. } => print(&format!("{}\n", self.layout.line(cells))),
        }
    }
}

/// Returns `head` and, after a blank, the words of `text`, those that are too many for `width` below each other.
fn entry_lines(head: &str, text: &str, width: Option<usize>) -> Vec<String> {
    let indent = head.width() + 1;
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(indent));
    let lines = wrap(text, room.max(MIN_WIDTH / 2)).into_iter().enumerate();
    lines
        .map(|(index, line)| {
            if index == 0 {
                format!("{head} {line}")
            } else {
                format!("{:indent$}{line}", "")
            }
        })
        .collect()
}

fn lines_of(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Returns labels and values below each other; further lines of a value begin below its first.
fn field_lines(fields: &[(&'static str, Cell)], zone: &Zone) -> Vec<String> {
    let widest = fields.iter().map(|(label, _)| label.width()).max().unwrap_or_default();
    let mut lines = Vec::new();
    for (label, cell) in fields {
        let value = cell.whole(zone);
        for (index, line) in value.lines().enumerate() {
            let label = if index == 0 { *label } else { "" };
            lines.push(format!("{label:<widest$}  {line}").trim_end().to_owned());
        }
    }
    lines
}

/// Returns the width of the terminal, or [`DEFAULT_WIDTH`] if the output is none.
fn terminal_width() -> usize {
    if !std::io::stdout().is_terminal() {
        return DEFAULT_WIDTH;
    }

    let size = ratatui::crossterm::terminal::size();
    let width = size.map_or(DEFAULT_WIDTH, |(columns, _)| usize::from(columns));
    if width < MIN_WIDTH { DEFAULT_WIDTH } else { width }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shared::model::time::UnixMillis;

    use super::*;

    #[test]
    fn fields_stand_below_each_other_and_empty_ones_are_left_out() {
        let view = View::one("a", &json!({ "id": "a" })).expect("a view").fields([
            ("id", "a".into()),
            ("at", UnixMillis(0).into()),
            ("reason", "".into()),
            ("last error", "two\nlines \u{1b}".into()),
        ]);
        assert_eq!(
            view.text(Some(80), &Zone::utc()),
            [
                "id          a",
                "at          1970-01-01 00:00:00",
                "last error  two",
                "            lines \\u{1b}",
            ]
        );
    }

    #[test]
    fn a_list_is_an_array_a_table_and_its_ids() {
        let table =
            Table::new(&[Column::number("N"), Column::id("ID")]).with(["x", "y"], |id| [1_u32.into(), id.into()]);
        let view = View::list(&[json!({ "id": "x" }), json!({ "id": "y" })], table)
            .expect("a view")
            .line("two");
        assert_eq!(view.json, json!([{ "id": "x" }, { "id": "y" }]));
        assert_eq!(view.ids, ["x", "y"]);
        assert_eq!(view.text(None, &Zone::utc()), ["N  ID", "1  x", "1  y", "two"]);
    }

    #[test]
    fn an_entry_goes_on_below_its_text() {
        let view = View::of(&json!([]))
            .expect("a view")
            .entry("BAD  x   ", "some words that are too many");
        let lines = view.text(Some(30), &Zone::utc());
        assert_eq!(lines, ["BAD  x    some words that are", "          too many"]);
    }

    #[test]
    fn the_options_decide_the_format() {
        let format = |json, quiet, wide| {
            Format::of(&Common {
                json,
                quiet,
                wide,
                utc: true,
                ..Common::default()
            })
        };
        assert_eq!(format(true, false, false), Format::Json);
        assert_eq!(format(false, true, false), Format::Quiet);
        let zone = Zone::utc();
        assert_eq!(format(false, false, true), Format::Table { width: None, zone });
    }
}
