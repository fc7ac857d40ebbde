//! Tables as text with aligned columns, for platforms that have none. *Pure.*

use pulldown_cmark::Alignment;
use unicode_width::UnicodeWidthStr;

/// Maximum width to which a column is filled up, in columns of a terminal; a longer cell stands over.
const MAX_FILL: usize = 40;

/// A table whose cells are being read.
#[derive(Debug, Default)]
pub(crate) struct Table {
    alignments: Vec<Alignment>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) const fn new(alignments: Vec<Alignment>) -> Self {
        Self {
            alignments,
            rows: Vec::new(),
        }
    }

    pub(crate) fn begin_row(&mut self) {
        self.rows.push(Vec::new());
    }

    pub(crate) fn begin_cell(&mut self) {
        if let Some(row) = self.rows.last_mut() {
            row.push(String::new());
        }
    }

    /// Returns the cell that is being read.
    pub(crate) fn cell(&mut self) -> Option<&mut String> {
        self.rows.last_mut()?.last_mut()
    }

    /// Returns the table as lines: the header, a line below it, the rows. A cell has one line.
    pub(crate) fn to_text(&self) -> String {
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| trim_row(row)).collect();
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut widths = vec![0; columns];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.width().min(MAX_FILL).max(*width);
            }
        }

        let mut lines = Vec::with_capacity(rows.len() + 1);
        for (index, row) in rows.iter().enumerate() {
            lines.push(self.row_text(row, &widths));
            if index == 0 {
                let dashes: Vec<String> = widths.iter().map(|width| "-".repeat((*width).max(1))).collect();
                lines.push(dashes.join("-+-"));
            }
        }

        lines.join("\n")
    }

    fn row_text(&self, row: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            if column > 0 {
                line.push_str(" | ");
            }

            let missing = widths[column].saturating_sub(cell.width());
            let left = match self.alignments.get(column) {
                Some(Alignment::Right) => missing,
                Some(Alignment::Center) => missing / 2,
                Some(Alignment::Left | Alignment::None) | None => 0,
            };
            // Nothing is filled up behind the last cell.
            let right = if column + 1 < row.len() { missing - left } else { 0 };
            line.extend(std::iter::repeat_n(' ', left));
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', right));
        }

        line
    }
}

/// Returns the cells without empty ones at the end, which would cost their width in every row.
fn trim_row(row: &[String]) -> Vec<String> {
    let filled = row
        .iter()
        .rposition(|cell| !cell.trim().is_empty())
        .map_or(0, |last| last + 1);
    row[..filled]
        .iter()
        .map(|cell| cell.trim().replace('\n', " "))
        .collect()
}
