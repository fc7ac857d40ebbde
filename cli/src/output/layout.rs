//! Widths of columns, and texts that are cut or wrapped to them. *Pure.*

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::column::{Column, Kind};
use super::escape::escape_controls;

/// Space between two columns.
pub(super) const GAP: usize = 2;
/// Width below which no text column is cut.
pub(super) const MIN_TEXT: usize = 8;
/// Width below which no prose goes on in a further line.
const MIN_PROSE: usize = 16;

/// Returns the widths of `columns`, whose contents have the widths `natural`: text columns share the rest of `width`,
/// the narrow ones first.
pub(super) fn fit(columns: &[Column], natural: &[usize], width: Option<usize>) -> Vec<usize> {
    let mut widths = natural.to_vec();
    let gaps = GAP * columns.len().saturating_sub(1);
    let total = natural.iter().sum::<usize>() + gaps;
    let Some(width) = width.filter(|width| total > *width) else {
        return widths;
    };

    let mut texts: Vec<usize> = (0..columns.len())
        .filter(|index| matches!(columns[*index].kind, Kind::Text | Kind::Prose))
        .collect();
    texts.sort_by_key(|index| natural[*index]);

    let fixed = total - texts.iter().map(|index| natural[*index]).sum::<usize>();
    let mut room = width.saturating_sub(fixed);
    let mut left = texts.len();
    for index in texts {
        let least = if columns[index].kind == Kind::Prose {
            MIN_PROSE
        } else {
            MIN_TEXT
        };
        let share = (room / left).max(least.min(natural[index]));
        widths[index] = natural[index].min(share);
        room = room.saturating_sub(widths[index]);
        left -= 1;
    }

    widths
}

/// Returns `texts` side by side in columns of `widths`, without blanks at the end.
pub(super) fn join(columns: &[Column], widths: &[usize], texts: &[String]) -> String {
    let mut line = String::new();
    for ((column, width), text) in columns.iter().zip(widths).zip(texts) {
        if !line.is_empty() {
            line.push_str(&" ".repeat(GAP));
        }

        let text = if column.kind == Kind::Text {
            cut(text, *width)
        } else {
            text.clone()
        };
        let padding = " ".repeat(width.saturating_sub(text.width()));
        if column.kind == Kind::Number {
            line = line + &padding + &text;
        } else {
            line = line + &text + &padding;
        }
    }

    line.truncate(line.trim_end().len());
    line
}

/// Returns the first line of `text`, escaped; `…` follows it if there are more.
pub(super) fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let more = if line.trim_end().len() == text.trim_end().len() {
        ""
    } else {
        "…"
    };
    escape_controls(line) + more
}

/// Returns `text`, cut to `width` columns of a terminal; `…` is the last of them if something is missing.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }

    let mut cut = String::new();
    let mut used = 0;
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used >= width {
            break;
        }
        cut.push(c);
    }

    cut + "…"
}

/// Returns `row` as one row or, if the text of a prose column is wider than its column, several.
pub(super) fn wrapped_rows(columns: &[Column], widths: &[usize], row: &[String]) -> Vec<Vec<String>> {
    let prose = columns.last().is_some_and(|column| column.kind == Kind::Prose);
    let (Some(text), Some(width), true) = (row.last(), widths.last(), prose) else {
        return vec![row.to_vec()];
    };

    let lines = wrap(text, *width).into_iter().enumerate();
    lines
        .map(|(index, line)| {
            let before = row[..row.len() - 1].iter();
            let before = before.map(|cell| if index == 0 { cell.clone() } else { String::new() });
            before.chain([line]).collect()
        })
        .collect()
}

/// Returns `text` in lines of at most `width` columns of a terminal, broken between words. A word that is wider than
/// that has a line of its own.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        let line = &mut lines[last];
        if line.is_empty() {
            line.push_str(word);
        } else if line.width() + 1 + word.width() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_count_twice() {
        assert_eq!(cut("日本語の文", 5), "日本…");
        assert_eq!(cut("日本語の文", 10), "日本語の文");
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("abcd", 4), "abcd");
    }

    #[test]
    fn a_word_that_is_too_wide_has_a_line_of_its_own() {
        assert_eq!(wrap("one averyveryverylongword", 5), ["one", "averyveryverylongword"]);
    }
}
