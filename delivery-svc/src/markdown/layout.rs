//! The blocks of a document as one platform shows them, before they are cut. *Pure.*
//!
//! Signs before list items become text. So does the URL of a link that the platform cannot hide behind the link's text,
//! or that alone would fill a part. The rest of a link is never split.

pub(crate) mod runs;

use std::ops::Range;

use self::runs::{Run, runs_of};
use super::document::{Block, BlockKind, Container, Document, Marker, Span, Style};
use super::plain::PlainText;
use super::syntax::{QuoteMarkup, StylePlace, Syntax, TextPiece, TextRole};
use super::url::urls_in;
use crate::chunk::ChunkLimit;

/// Room that is kept for marks around a link, in any unit.
const MARKS_ROOM: usize = 16;

/// Maximum indentation of a list item's level, in columns.
const MAX_INDENT: usize = 4;

/// A prefix takes at most this share (1 / n) of a part; a longer one is left out.
const PREFIX_SHARE: usize = 4;

/// A block as a platform shows it.
#[derive(Debug, Default)]
pub(crate) struct LaidBlock {
    /// Text with the signs and URLs that are shown.
    pub(crate) text: String,
    /// Styles that are shown.
    pub(crate) spans: Vec<Span>,
    /// Runs of the text in one set of styles, in order.
    pub(crate) runs: Vec<Run>,
    /// Ranges of links.
    pub(crate) links: Vec<Range<usize>>,
    /// Whether the text is preformatted.
    pub(crate) is_code: bool,
    /// Language of preformatted text.
    pub(crate) language: Option<String>,
    /// Outermost quote around it.
    pub(crate) quote: Option<u32>,
    /// Beginnings of its lines in the platform's markup.
    pub(crate) styled: LinePrefix,
    /// Beginnings of its lines in plain text.
    pub(crate) plain: LinePrefix,
    /// Whether no blank line separates it from the block before.
    pub(crate) is_tight: bool,
    /// Whether the next block should be in the same part.
    pub(crate) leads_on: bool,
}

/// The beginnings of a block's lines.
#[derive(Debug, Default)]
pub(crate) struct LinePrefix {
    /// Beginning of the first line.
    pub(crate) first: String,
    /// Beginning of the other lines.
    pub(crate) next: String,
    /// Beginning of a blank line between two blocks of one quote.
    pub(crate) blank: String,
}

impl LaidBlock {
    /// Returns the index of the run at the byte `at`.
    pub(crate) fn run_at(&self, at: usize) -> usize {
        self.runs.partition_point(|run| run.end <= at)
    }

    /// Returns the link at the byte `at`.
    pub(crate) fn link_at(&self, at: usize) -> Option<&Range<usize>> {
        let before = &self.links[..self.links.partition_point(|link| link.start <= at)];
        before.last().filter(|link| link.contains(&at))
    }
}

/// Returns the blocks of `document` in the markup of `syntax`, for parts of `limit`.
pub(crate) fn lay_out(document: &Document, syntax: &dyn Syntax, limit: Option<ChunkLimit>) -> Vec<LaidBlock> {
    let mut laid = Vec::with_capacity(document.blocks.len());
    for block in &document.blocks {
        let marker = marker_text(block, syntax);
        let is_code = matches!(block.kind, BlockKind::Code { .. });
        // The sign before preformatted text has a line of its own.
        if is_code && !marker.is_empty() {
            let alone = Block {
                kind: BlockKind::Paragraph,
                text: String::new(),
                spans: Vec::new(),
                ..block.clone()
            };
            laid.push(LaidBlock {
                leads_on: true,
                ..lay_out_block(&alone, &marker, syntax, limit)
            });

            let rest = LaidBlock {
                is_tight: true,
                ..lay_out_block(block, "", syntax, limit)
            };
            laid.push(rest);
        } else {
            laid.push(lay_out_block(block, &marker, syntax, limit));
        }
    }

    laid
}

/// Returns the signs of the list items that `block` begins.
fn marker_text(block: &Block, syntax: &dyn Syntax) -> String {
    let mut text = String::new();
    for container in &block.containers {
        let Container::Item {
            marker, is_first: true, ..
        } = container
        else {
            continue;
        };

        if !text.is_empty() {
            text.push(' ');
        }
        push_marker(*marker, syntax, &mut text);
    }
    text
}

fn push_marker(marker: Marker, syntax: &dyn Syntax, text: &mut String) {
    match marker {
        Marker::Bullet => text.push_str(syntax.bullet()),
        Marker::Number(number) => {
            text.push_str(&number.to_string());
            text.push('.');
        }
        Marker::Task(true) => text.push('☑'),
        Marker::Task(false) => text.push('☐'),
    }
}

fn lay_out_block(block: &Block, marker: &str, syntax: &dyn Syntax, limit: Option<ChunkLimit>) -> LaidBlock {
    let (is_code, language) = match &block.kind {
        BlockKind::Code { language } => (true, language.clone()),
        BlockKind::Paragraph | BlockKind::Heading(_) | BlockKind::Rule => (false, None),
    };
    let level = match block.kind {
        BlockKind::Heading(level) => Some(level),
        BlockKind::Paragraph | BlockKind::Code { .. } | BlockKind::Rule => None,
    };
    let is_fenced = is_code && syntax.fence_end(language.as_deref()).is_some();
    let in_item = block
        .containers
        .iter()
        .any(|container| matches!(container, Container::Item { .. }));
    let heading = level.and_then(|level| syntax.heading(level)).filter(|_| !in_item);

    let styled = if is_fenced {
        LinePrefix::default()
    } else {
        line_prefix(block, syntax, limit, heading.unwrap_or_default())
    };
    let plain = line_prefix(block, &PlainText, limit, "");

    let taken = styled.next.len().max(plain.next.len()) + MARKS_ROOM;
    let room = limit.map(|limit| ChunkLimit {
        max: limit.max.saturating_sub(taken),
        ..limit
    });
    let (text, spans) = show_urls(block, syntax, room);
    let (text, mut spans) = add_marker(marker, text, spans, level.is_some() && heading.is_none());

    keep_shown(&text, &mut spans, syntax);
    let links = spans.iter().filter(|span| span.style.is_link());
    let quote = block.containers.iter().find_map(|container| match container {
        Container::Quote { id } => Some(*id),
        Container::Item { .. } => None,
    });

    let runs = runs_of(&text, &spans, marker.len().min(text.len()), is_code, syntax);

    LaidBlock {
        runs,
        links: links.map(|span| span.range.clone()).collect(),
        text,
        spans,
        is_code,
        language,
        quote: quote.filter(|_| !is_fenced),
        styled,
        plain,
        is_tight: block.is_tight,
        leads_on: level.is_some(),
    }
}

/// Returns `text` and its spans with the sign `marker` before it; bold, if it is a heading that has no markup of its
/// own.
fn add_marker(marker: &str, text: String, mut spans: Vec<Span>, is_bold: bool) -> (String, Vec<Span>) {
    let before = if marker.is_empty() { 0 } else { marker.len() + 1 };
    let text = match (marker.is_empty(), text.is_empty()) {
        (true, _) => text,
        (false, true) => marker.to_owned(),
        (false, false) => format!("{marker} {text}"),
    };

    for span in &mut spans {
        span.range = span.range.start + before..span.range.end + before;
    }

    if is_bold {
        let range = before.min(text.len())..text.len();
        spans.retain(|span| span.style != Style::Bold);
        spans.insert(
            0,
            Span {
                range,
                style: Style::Bold,
            },
        );
    }
    (text, spans)
}

/// Returns the beginnings of the lines of `block`.
fn line_prefix(block: &Block, syntax: &dyn Syntax, limit: Option<ChunkLimit>, heading: &str) -> LinePrefix {
    let mut prefix = LinePrefix::default();
    let quotes = block
        .containers
        .iter()
        .filter(|container| matches!(container, Container::Quote { .. }))
        .count();
    if let QuoteMarkup::Prefix(quote) = syntax.quote() {
        // Before all blanks, because platforms look for it at the beginning of the line.
        let signs = quote.repeat(if syntax.nests_quotes() { quotes } else { quotes.min(1) });
        if quotes > 0 {
            prefix.blank = quote.trim_end().to_owned();
        }
        prefix.first.push_str(&signs);
        prefix.next.push_str(&signs);
    }

    for container in &block.containers {
        let Container::Item { marker, is_first, .. } = container else {
            continue;
        };

        let mut sign = String::new();
        push_marker(*marker, syntax, &mut sign);
        let indent = " ".repeat((sign.chars().count() + 1).min(MAX_INDENT));
        prefix.next.push_str(&indent);
        if !is_first {
            prefix.first.push_str(&indent);
        }
    }

    prefix.first.push_str(heading);
    prefix.next.push_str(heading);
    let is_too_long = limit.is_some_and(|limit| limit.unit.count(&prefix.next) > limit.max / PREFIX_SHARE);
    if is_too_long { LinePrefix::default() } else { prefix }
}

/// Writes the text of a link as it is written without styles.
fn write_label(text: &str, syntax: &dyn Syntax, out: &mut String) {
    let piece = TextPiece {
        text,
        before: None,
        after: None,
        begins_line: false,
        role: TextRole::Text,
    };
    syntax.write_text(&piece, out);
}

/// Returns the text and spans of `block`, with the URL behind each link that does not stay one. `room` is the longest
/// that a link may be.
fn show_urls(block: &Block, syntax: &dyn Syntax, room: Option<ChunkLimit>) -> (String, Vec<Span>) {
    let fits = |length: usize, parts: &[&str]| {
        room.is_none_or(|room| parts.iter().map(|part| room.unit.count(part)).sum::<usize>() + length <= room.max)
    };

    let stays = |span: &Span| {
        let text = &block.text[span.range.clone()];
        match &span.style {
            // Between angle brackets at most, and with each `&` as an entity.
            Style::BareLink => fits(2 + 4 * text.matches('&').count(), &[text]),
            Style::Link { url } if syntax.masks_links() => {
                let mut written = String::new();
                write_label(text, syntax, &mut written);
                // Parentheses and `&` in a URL are written longer, and so is a text in plain form.
                let longer = 4 * url.matches(['&', '(', ')']).count();
                fits(4 + longer, &[&written, url]) && fits(3, &[text, url])
            }
            Style::Link { .. } => false,
            Style::Bold | Style::Italic | Style::Strike | Style::Code => true,
        }
    };

    if block.spans.iter().all(|span| !span.style.is_link() || stays(span)) {
        return (block.text.clone(), block.spans.clone());
    }

    // Text that is added, by place, in the order of the places.
    let mut added: Vec<(usize, &str)> = Vec::new();
    let mut kept: Vec<&Span> = Vec::new();
    for span in &block.spans {
        if stays(span) {
            kept.push(span);
        } else if let Style::Link { url } = &span.style {
            added.push((span.range.end, url));
        }
    }
    added.sort_by_key(|(at, _)| *at);

    let (mut text, mut spans) = (String::with_capacity(block.text.len() * 2), Vec::new());
    // Length of the text that was added up to each place.
    let mut shifts = Vec::with_capacity(added.len());
    let mut from = 0;
    for (at, url) in &added {
        text.push_str(&block.text[from..*at]);
        text.push_str(" (");
        let start = text.len();
        text.push_str(url);
        if fits(2 + 4 * url.matches('&').count(), &[url]) {
            spans.push(Span {
                range: start..text.len(),
                style: Style::BareLink,
            });
        }
        text.push(')');
        shifts.push((*at, text.len() - at));
        from = *at;
    }
    text.push_str(&block.text[from..]);

    let shift_before = |count: usize| count.checked_sub(1).map_or(0, |last| shifts[last].1);
    for span in kept {
        let start = span.range.start + shift_before(shifts.partition_point(|(at, _)| *at <= span.range.start));
        let end = span.range.end + shift_before(shifts.partition_point(|(at, _)| *at < span.range.end));
        spans.push(Span {
            range: start..end,
            style: span.style.clone(),
        });
    }
    spans.sort_by_key(|span| (span.range.start, std::cmp::Reverse(span.range.end)));

    (text, spans)
}

/// Removes the spans that the markup cannot show.
fn keep_shown(text: &str, spans: &mut Vec<Span>, syntax: &dyn Syntax) {
    let urls = if syntax.delimits_urls() {
        Vec::new()
    } else {
        urls_in(text)
    };
    let has_marks = |span: &&Span| match &span.style {
        Style::Link { url } => url.contains(['*', '_', '~']),
        Style::Bold | Style::Italic | Style::Strike | Style::Code | Style::BareLink => false,
    };
    let marked: Vec<Range<usize>> = spans.iter().filter(has_marks).map(|span| span.range.clone()).collect();

    let in_url = |at: usize| {
        let before = &urls[..urls.partition_point(|url| url.start < at)];
        before.last().is_some_and(|url| at < url.end)
    };

    // Spans are sorted by start, so that those in a link follow it.
    let mut link_end = 0;
    spans.retain(|span| {
        let Range { start, end } = span.range;
        if span.style.is_link() {
            link_end = link_end.max(end);
        } else if end <= link_end && !syntax.styles_links() {
            return false;
        } else if syntax.reads_marks_in_urls() {
            let inside = &marked[marked.partition_point(|link| link.start < start)..];
            if inside.first().is_some_and(|link| link.end <= end) {
                return false;
            }
        } else if in_url(start) || in_url(end) {
            // A client would take the mark for a part of the URL.
            return false;
        }

        let in_line = |c: Option<char>| c.filter(|c| *c != '\n');
        let place = StylePlace {
            text: &text[start..end],
            before: in_line(text[..start].chars().next_back()),
            after: in_line(text[end..].chars().next()),
        };
        syntax.shows(&span.style, &place)
    });
}
