//! One part while it is being written, in one markup. *Pure.*
//!
//! A draft can be put back to an earlier state, so that the cutter may write on until a part is full and then end it at
//! the best place before.

use std::ops::Range;

use super::document::Style;
use super::layout::runs::Run;
use super::layout::{LaidBlock, LinePrefix};
use super::signal::{MONOSPACE, StyleRange, style_name};
use super::syntax::{QuoteMarkup, Syntax, TextPiece, TextRole};
use crate::chunk::LengthUnit;

/// Which of a block's two beginnings of lines are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DraftKind {
    /// In the platform's markup.
    Styled,
    /// Plain, for platforms that refuse the markup.
    Plain,
}

/// White space between two pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Gap {
    /// The pieces touch each other.
    None,
    /// Blanks in a line, as a range of the block's text.
    Blank(Range<usize>),
    /// A number of line breaks.
    Lines(usize),
}

/// A piece of a block that is written as a whole.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    /// Index of the block.
    pub(crate) block: usize,
    /// Range of the block's text.
    pub(crate) range: Range<usize>,
    /// White space before it.
    pub(crate) gap: Gap,
    /// Whether it was cut out of a word, so that its neighbours may be in other parts.
    pub(crate) is_cut: bool,
}

/// A part that is being written.
pub(crate) struct Draft<'a> {
    syntax: &'a dyn Syntax,
    kind: DraftKind,
    blocks: &'a [LaidBlock],
    unit: LengthUnit,
    out: String,
    ranges: Vec<StyleRange>,
    state: DraftState,
}

/// The state of a draft.
#[derive(Debug, Default)]
pub(crate) struct DraftState {
    /// Length of the text, in bytes.
    length: usize,
    /// Length in the unit of the limit.
    used: usize,
    /// Length of what closes all that is open, in the unit of the limit.
    closing: usize,
    lines: usize,
    utf16: usize,
    ranges: usize,
    begins_line: bool,
    /// Block that is open.
    block: Option<usize>,
    /// Start of the block's text, for ranges.
    block_start: usize,
    in_quote: bool,
    /// Styles that are open: index of the span, start in UTF-16 units.
    open: Vec<(u32, usize)>,
}

impl DraftState {
    /// Makes the state that of `other`, without allocating.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        let Self { open, .. } = other;
        self.open.clone_from(open);
        let open = std::mem::take(&mut self.open);
        *self = Self { open, ..*other };
    }

    /// Returns the length so far, in the unit of the limit.
    pub(crate) const fn used(&self) -> usize {
        self.used
    }
}

impl<'a> Draft<'a> {
    /// Creates an empty draft.
    pub(crate) fn new(syntax: &'a dyn Syntax, kind: DraftKind, blocks: &'a [LaidBlock], unit: LengthUnit) -> Self {
        Self {
            syntax,
            kind,
            blocks,
            unit,
            out: String::new(),
            ranges: Vec::new(),
            state: DraftState::default(),
        }
    }

    pub(crate) const fn state(&self) -> &DraftState {
        &self.state
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Puts the draft back to an earlier state of it.
    pub(crate) fn put_back(&mut self, state: &DraftState) {
        self.state.copy_from(state);
        self.out.truncate(state.length);
        self.ranges.truncate(state.ranges);
    }

    /// Returns whether the part fits if it ends here.
    pub(crate) fn fits(&self, max: usize, max_lines: Option<usize>) -> bool {
        let in_fence = self.open_block().is_some_and(|block| self.fence_of(block).is_some());
        let lines = self.state.lines + 1 + usize::from(in_fence);
        self.state.used + self.state.closing <= max && max_lines.is_none_or(|most| lines <= most)
    }

    /// Ends the part and returns it; the draft is empty then.
    pub(crate) fn finish(&mut self) -> (String, Vec<StyleRange>) {
        self.end_block();
        self.end_quote();
        self.state = DraftState::default();
        (std::mem::take(&mut self.out), std::mem::take(&mut self.ranges))
    }

    /// Writes `piece`, and the white space before it unless the part begins with it.
    pub(crate) fn put(&mut self, piece: &Piece) {
        let blocks = self.blocks;
        let block = &blocks[piece.block];
        let mut run = block.run_at(piece.range.start);

        if self.state.block == Some(piece.block) {
            self.put_gap(block, piece, block.runs.get(run));
        } else {
            self.begin_block(block, piece);
        }

        let mut at = piece.range.start;
        while let Some(found) = block.runs.get(run).filter(|_| at < piece.range.end) {
            let end = found.end.min(piece.range.end);
            self.switch_styles(block, found);
            self.put_text(block, at..end, piece, found);
            self.show_url(block, found, end);
            at = end;
            run += 1;
        }

        self.state.length = self.out.len();
        self.state.ranges = self.ranges.len();
    }

    /// In plain text, the URL follows the text of its link.
    fn show_url(&mut self, block: &LaidBlock, run: &Run, end: usize) {
        if self.kind == DraftKind::Styled {
            return;
        }

        let spans = run.styles().iter().map(|index| &block.spans[*index as usize]);
        for span in spans.filter(|span| span.range.end == end) {
            if let Style::Link { url } = &span.style {
                for shown in [" (", url, ")"] {
                    self.push_mark(shown);
                }
            }
        }
    }

    fn put_text(&mut self, block: &LaidBlock, range: Range<usize>, piece: &Piece, run: &Run) {
        // A piece that is cut out of a word may have its neighbours in other parts.
        let is_alone = piece.is_cut && run.role != TextRole::Preformatted;
        let in_line = |c: Option<char>| c.filter(|c| *c != '\n' && !is_alone);
        let text = &block.text[range.clone()];
        let told = TextPiece {
            text,
            before: in_line(block.text[..range.start].chars().next_back()).filter(|_| !self.state.begins_line),
            after: in_line(block.text[range.end..].chars().next()),
            begins_line: self.state.begins_line,
            role: run.role,
        };

        let before = self.out.len();
        self.syntax.write_text(&told, &mut self.out);
        let counted = if self.syntax.counts_marks() {
            &self.out[before..]
        } else {
            text
        };
        self.state.used += self.unit.count(counted);
        if self.syntax.has_ranges() {
            self.state.utf16 += LengthUnit::Utf16.count(&self.out[before..]);
        }
        self.state.begins_line = false;
    }

    /// Writes text that is no text of a block.
    fn push_mark(&mut self, mark: &str) {
        self.out.push_str(mark);
        self.count_mark(self.out.len() - mark.len());
    }

    fn count_mark(&mut self, from: usize) {
        let mark = &self.out[from..];
        if mark.is_empty() {
            return;
        }

        // White space between blocks is seen, and always counted.
        let is_counted = self.syntax.counts_marks() || mark.trim().is_empty();
        self.state.used += if is_counted { self.unit.count(mark) } else { 0 };
        self.state.lines += mark.bytes().filter(|byte| *byte == b'\n').count();
        if self.syntax.has_ranges() {
            self.state.utf16 += LengthUnit::Utf16.count(mark);
        }
    }

    fn prefix_of<'b>(&self, block: &'b LaidBlock) -> &'b LinePrefix {
        match self.kind {
            DraftKind::Styled => &block.styled,
            DraftKind::Plain => &block.plain,
        }
    }

    fn open_block(&self) -> Option<&'a LaidBlock> {
        let blocks = self.blocks;
        self.state.block.map(|index| &blocks[index])
    }

    fn fence_of(&self, block: &LaidBlock) -> Option<&'static str> {
        self.syntax
            .fence_end(block.language.as_deref())
            .filter(|_| block.is_code)
    }

    fn quote_tags(&self) -> Option<(&'static str, &'static str)> {
        match self.syntax.quote() {
            QuoteMarkup::Tags(open, close) => Some((open, close)),
            QuoteMarkup::Prefix(_) => None,
        }
    }

    fn begin_block(&mut self, block: &'a LaidBlock, piece: &Piece) {
        let before = self.open_block();
        self.end_block();

        let quote = block.quote;
        let goes_on = before.is_some_and(|before| before.quote.is_some() && before.quote == quote);
        if !goes_on {
            self.end_quote();
        }

        let prefix = self.prefix_of(block);
        if before.is_some() {
            self.push_mark("\n");
            if !block.is_tight {
                if goes_on {
                    self.push_mark(&prefix.blank);
                }
                self.push_mark("\n");
            }
        }

        if let Some((open, _)) = self.quote_tags().filter(|_| quote.is_some() && !goes_on) {
            self.push_mark(open);
            self.state.in_quote = true;
        }

        self.push_mark(if piece.range.start == 0 {
            &prefix.first
        } else {
            &prefix.next
        });
        self.state.begins_line = true;
        self.state.block = Some(piece.block);
        self.state.block_start = self.state.utf16;

        if let Some(end) = self.fence_of(block) {
            let from = self.out.len();
            self.syntax.open_fence(block.language.as_deref(), &mut self.out);
            self.count_mark(from);
            self.state.closing += self.mark_length(end);
        }
    }

    fn mark_length(&self, mark: &str) -> usize {
        if self.syntax.counts_marks() {
            self.unit.count(mark)
        } else {
            0
        }
    }

    fn end_block(&mut self) {
        let Some(block) = self.open_block() else { return };
        self.close_styles(block, 0);

        if let Some(end) = self.fence_of(block) {
            self.state.closing -= self.mark_length(end);
            self.push_mark(end);
        }

        if block.is_code && self.syntax.has_ranges() {
            self.push_range(self.state.block_start, MONOSPACE);
        }
        self.state.block = None;
    }

    fn end_quote(&mut self) {
        if self.state.in_quote
            && let Some((_, close)) = self.quote_tags()
        {
            self.push_mark(close);
        }
        self.state.in_quote = false;
    }

    fn put_gap(&mut self, block: &LaidBlock, piece: &Piece, next: Option<&Run>) {
        match &piece.gap {
            Gap::None => {}
            Gap::Blank(range) => {
                // Blanks stand outside of the marks.
                let shared = next.map_or(0, |run| self.shared_styles(block, run));
                self.close_styles(block, shared);
                self.push_mark(&block.text[range.clone()]);
            }
            Gap::Lines(count) => {
                let shared = next.map_or(0, |run| self.shared_styles(block, run));
                let kept = if self.syntax.ends_marks_with_line() { 0 } else { shared };
                self.close_styles(block, kept);
                let prefix = &self.prefix_of(block).next;
                for rest in (0..*count).rev() {
                    self.push_mark("\n");
                    self.push_mark(if rest == 0 { prefix } else { prefix.trim_end() });
                }
                self.state.begins_line = true;
            }
        }
    }

    /// Returns how many of the open styles go on in `run`, from outside to inside.
    fn shared_styles(&self, block: &LaidBlock, run: &Run) -> usize {
        let same = |(open, wanted): (&(u32, usize), &u32)| {
            // Two styles of one kind that touch each other are one; two links are not.
            open.0 == *wanted || {
                let (open, wanted) = (
                    &block.spans[open.0 as usize].style,
                    &block.spans[*wanted as usize].style,
                );
                open == wanted && !open.is_link()
            }
        };
        self.state
            .open
            .iter()
            .zip(run.styles())
            .take_while(|pair| same(*pair))
            .count()
    }

    fn switch_styles(&mut self, block: &LaidBlock, run: &Run) {
        let shared = self.shared_styles(block, run);
        self.close_styles(block, shared);

        for index in &run.styles()[shared..] {
            let style = &block.spans[*index as usize].style;
            self.state.open.push((*index, self.state.utf16));
            let from = self.out.len();
            self.syntax.open(style, &mut self.out);
            self.count_mark(from);
            self.state.begins_line &= self.out.len() == from;
            self.state.closing += self.close_length(style);
        }
    }

    /// Closes the open styles but the first `kept`.
    fn close_styles(&mut self, block: &LaidBlock, kept: usize) {
        while self.state.open.len() > kept {
            let Some((index, start)) = self.state.open.pop() else {
                return;
            };
            let style = &block.spans[index as usize].style;
            self.state.closing -= self.close_length(style);
            let from = self.out.len();
            self.syntax.close(style, &mut self.out);
            self.count_mark(from);
            if let Some(name) = style_name(style).filter(|_| self.syntax.has_ranges()) {
                self.push_range(start, name);
            }
        }
    }

    fn close_length(&self, style: &Style) -> usize {
        let mut mark = String::new();
        self.syntax.close(style, &mut mark);
        self.mark_length(&mark)
    }

    fn push_range(&mut self, start: usize, style: &'static str) {
        let length = self.state.utf16 - start;
        self.ranges.push(StyleRange { start, length, style });
    }
}
