//! Cutting of a document into parts, each within a limit in the platform's own unit. *Pure.*
//!
//! A part is written until the next piece does not fit, and then put back to the best place before: between blocks, at
//! a line's end, at a sentence's end, between words. A word is split only if it alone does not fit, and then between
//! graphemes; a link never is. Styles that are open at the end of a part are closed there and opened again in the next
//! one: styles, quotes, preformatted text with its language.

use unicode_segmentation::UnicodeSegmentation;

use super::draft::{Draft, DraftKind, DraftState, Gap, Piece};
use super::layout::LaidBlock;
use super::plain::PlainText;
use super::signal::StyleRange;
use super::syntax::{Syntax, UNBREAKABLE};
use crate::chunk::{ChunkLimit, LengthUnit};

/// A better place is chosen only if the part is at least this share (1 / n) of the longest possible one.
const LEAST_SHARE: usize = 4;

/// A place at which a part may end; better ones come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Block = 0,
    Line = 1,
    Sentence = 2,
    Word = 3,
}

const PLACES: usize = 4;

/// Number of graphemes that are written at once while they fit.
const MAX_STEP: usize = 32;

/// A part as a platform shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RenderedPart {
    /// Text in the platform's markup.
    pub text: String,
    /// Styles of the text, on platforms that take them beside it.
    pub styles: Vec<StyleRange>,
    /// The same part as plain text, within the same limit.
    pub plain: String,
}

/// The largest part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartBounds {
    pub(crate) size: Option<ChunkLimit>,
    pub(crate) lines: Option<usize>,
}

/// Where the next piece begins.
#[derive(Debug, Clone, Copy, Default)]
struct Position {
    block: usize,
    offset: usize,
}

/// A place at which the part may end, with the drafts' states there.
#[derive(Debug, Default)]
struct Checkpoint {
    is_set: bool,
    styled: DraftState,
    plain: DraftState,
    next: Position,
}

struct Cutter<'a> {
    blocks: &'a [LaidBlock],
    bounds: PartBounds,
    styled: Draft<'a>,
    /// `None` if the form itself is plain.
    plain: Option<Draft<'a>>,
    checkpoints: [Checkpoint; PLACES],
    /// State before the piece that was written last.
    before: Checkpoint,
    parts: Vec<RenderedPart>,
}

/// Returns the parts of `blocks` in order.
pub(crate) fn cut(blocks: &[LaidBlock], syntax: &dyn Syntax, bounds: PartBounds) -> Vec<RenderedPart> {
    let unit = bounds.size.map_or(LengthUnit::Bytes, |size| size.unit);
    let mut cutter = Cutter {
        blocks,
        bounds,
        styled: Draft::new(syntax, DraftKind::Styled, blocks, unit),
        plain: syntax
            .is_markup()
            .then(|| Draft::new(&PlainText, DraftKind::Plain, blocks, unit)),
        checkpoints: Default::default(),
        before: Checkpoint::default(),
        parts: Vec::new(),
    };

    let mut at = Position::default();
    let mut gap = Gap::None;
    while at.block < blocks.len() {
        let block = &blocks[at.block];
        if at.offset >= block.text.len() {
            (at, gap) = (
                Position {
                    block: at.block + 1,
                    offset: 0,
                },
                Gap::None,
            );
            continue;
        }

        let piece = Piece {
            block: at.block,
            range: at.offset..piece_end(block, at.offset),
            gap,
            is_cut: false,
        };
        (at, gap) = cutter.put_piece(&piece);
    }

    cutter.end_part();
    cutter.parts
}

impl Cutter<'_> {
    /// Writes `piece`; ends the part before it, or in it, if it does not fit. Returns the next piece's position and the
    /// white space before it.
    fn put_piece(&mut self, piece: &Piece) -> (Position, Gap) {
        self.keep_state();
        let was_empty = self.styled.is_empty();
        self.put(piece);

        if self.fits() {
            return self.pass(piece);
        }

        self.put_back();
        if !was_empty && let Some(next) = self.end_at_best_place(piece) {
            return (next, Gap::None);
        }
        self.split_piece(piece)
    }

    /// Remembers the place behind `piece`, at which the part may end. Returns the next piece's position and the white
    /// space before it.
    fn pass(&mut self, piece: &Piece) -> (Position, Gap) {
        let (next, gap, place) = self.behind(piece);
        let checkpoint = &mut self.checkpoints[place as usize];
        checkpoint.is_set = true;
        checkpoint.styled.copy_from(self.styled.state());
        if let Some(plain) = &self.plain {
            checkpoint.plain.copy_from(plain.state());
        }
        checkpoint.next = next;
        (next, gap)
    }

    /// Remembers the state before the next piece.
    fn keep_state(&mut self) {
        self.before.styled.copy_from(self.styled.state());
        if let Some(plain) = &self.plain {
            self.before.plain.copy_from(plain.state());
        }
    }

    fn put(&mut self, piece: &Piece) {
        self.styled.put(piece);
        if let Some(plain) = &mut self.plain {
            plain.put(piece);
        }
    }

    fn put_back(&mut self) {
        self.styled.put_back(&self.before.styled);
        if let Some(plain) = &mut self.plain {
            plain.put_back(&self.before.plain);
        }
    }

    fn fits(&self) -> bool {
        let max = self.bounds.size.map_or(usize::MAX, |size| size.max.max(1));
        let fits = |draft: &Draft<'_>| draft.fits(max, self.bounds.lines);
        fits(&self.styled) && self.plain.as_ref().is_none_or(fits)
    }

    /// Ends the part at the best place that was passed, and returns where the next one begins. Returns `None` if
    /// `piece` should rather be split: no place leaves a part of some size, and it does not fit in one part.
    fn end_at_best_place(&mut self, piece: &Piece) -> Option<Position> {
        let full_plain = self.plain.as_ref().map_or(0, |plain| plain.state().used());
        let full = self.styled.state().used().max(full_plain);
        let is_large = |checkpoint: &&Checkpoint| {
            let used = checkpoint.styled.used().max(checkpoint.plain.used());
            checkpoint.is_set && used >= full / LEAST_SHARE
        };

        let best = self.checkpoints.iter().find(is_large);
        let last = self.checkpoints.iter().filter(|checkpoint| checkpoint.is_set);
        let last = last.max_by_key(|checkpoint| (checkpoint.next.block, checkpoint.next.offset));
        // A piece that is split anyway fills the part.
        let is_splittable = self.is_longer_than_part(piece) && best.is_none();
        let chosen = best.or(last).filter(|_| !is_splittable)?;

        let next = chosen.next;
        self.styled.put_back(&chosen.styled);
        if let Some(plain) = &mut self.plain {
            plain.put_back(&chosen.plain);
        }
        self.end_part();
        Some(next)
    }

    fn is_longer_than_part(&self, piece: &Piece) -> bool {
        let text = &self.blocks[piece.block].text[piece.range.clone()];
        self.bounds
            .size
            .is_some_and(|size| text.len() > size.max / 2 && size.unit.count(text) > size.max / 4 * 3)
    }

    /// Writes `piece` grapheme by grapheme, and a link as a whole, into as many parts as it takes.
    fn split_piece(&mut self, piece: &Piece) -> (Position, Gap) {
        let block = &self.blocks[piece.block];
        let mut at = piece.range.start;
        let mut gap = piece.gap.clone();
        // Many at once, as long as they fit.
        let mut count = MAX_STEP;

        while at < piece.range.end {
            let unit = Piece {
                block: piece.block,
                range: at..unit_end(block, at, piece.range.end, count),
                gap: gap.clone(),
                is_cut: true,
            };

            self.keep_state();
            let was_empty = self.styled.is_empty();
            self.put(&unit);
            if self.fits() {
                (at, gap) = (unit.range.end, Gap::None);
                continue;
            }

            self.put_back();
            if count > 1 {
                count = 1;
            } else if was_empty {
                self.split_unit(&unit);
                (at, gap) = (unit.range.end, Gap::None);
            } else {
                self.end_part();
                count = MAX_STEP;
            }
        }

        self.pass(piece)
    }

    /// Writes a grapheme that alone is larger than a part, character by character.
    fn split_unit(&mut self, unit: &Piece) {
        let text = &self.blocks[unit.block].text[unit.range.clone()];
        for (start, character) in text.char_indices() {
            let start = unit.range.start + start;
            let single = Piece {
                range: start..start + character.len_utf8(),
                gap: Gap::None,
                ..unit.clone()
            };

            self.keep_state();
            let was_empty = self.styled.is_empty();
            self.put(&single);
            if !self.fits() && !was_empty {
                self.put_back();
                self.end_part();
                self.put(&single);
            }
        }
    }

    /// Returns where the piece after `piece` begins, the white space before it, and as which place a part may end
    /// there.
    fn behind(&self, piece: &Piece) -> (Position, Gap, Place) {
        let block = &self.blocks[piece.block];
        let end = piece.range.end;
        let blank = blank_at(block, end);
        let next = Position {
            block: piece.block,
            offset: end + blank.len(),
        };

        if next.offset == block.text.len() {
            let is_bound = block.leads_on || self.blocks.get(piece.block + 1).is_some_and(|next| next.is_tight);
            let place = if is_bound { Place::Line } else { Place::Block };
            let next = Position {
                block: piece.block + 1,
                offset: 0,
            };
            return (next, Gap::None, place);
        }

        let lines = blank.matches('\n').count();
        if lines > 0 {
            return (next, Gap::Lines(lines), Place::Line);
        }

        let is_sentence = !block.is_code && ends_sentence(&block.text[piece.range.clone()]);
        let place = if is_sentence { Place::Sentence } else { Place::Word };
        let gap = if blank.is_empty() {
            Gap::None
        } else {
            Gap::Blank(end..next.offset)
        };
        (next, gap, place)
    }

    fn end_part(&mut self) {
        if self.styled.is_empty() {
            return;
        }

        let (text, styles) = self.styled.finish();
        let plain = self
            .plain
            .as_mut()
            .map_or_else(|| text.clone(), |plain| plain.finish().0);
        self.parts.push(RenderedPart { text, styles, plain });
        for checkpoint in &mut self.checkpoints {
            checkpoint.is_set = false;
        }
    }
}

/// Returns the white space at `at` that may be left out between two pieces. Preformatted text keeps its indentation.
fn blank_at(block: &LaidBlock, at: usize) -> &str {
    let rest = &block.text[at..];
    let mut blank = &rest[..rest.len() - rest.trim_start().len()];
    if block.is_code {
        return &blank[..blank.rfind('\n').map_or(0, |last| last + 1)];
    }

    // A blank can carry an accent.
    if let Some((last, c)) = blank.char_indices().next_back()
        && !ends_grapheme(rest, last + c.len_utf8())
    {
        blank = &blank[..last];
    }
    if blank.contains(is_space) { blank } else { "" }
}

/// Returns whether a grapheme of `text` ends at `at`.
fn ends_grapheme(text: &str, at: usize) -> bool {
    let next = text.as_bytes().get(at);
    // ASCII continues no grapheme but a carriage return.
    next.is_none_or(u8::is_ascii) || {
        let before = text[..at].char_indices().next_back().map_or(0, |(start, _)| start);
        let grapheme = text[before..].graphemes(true).next();
        grapheme.is_none_or(|grapheme| grapheme.len() <= at - before)
    }
}

/// Returns whether a line may be broken at `c`.
fn is_space(c: char) -> bool {
    c.is_whitespace() && !UNBREAKABLE.contains(&c)
}

fn ends_sentence(text: &str) -> bool {
    let text = text.trim_end_matches(['"', '\'', ')', ']', '»', '”', '’', '」', '』']);
    text.ends_with(['.', '!', '?', '…', '。', '！', '？'])
}

/// Returns whether a line of a script without blanks may be broken behind `c`.
const fn ends_clause(c: char) -> bool {
    matches!(c, '。' | '！' | '？' | '、' | '，' | '；' | '：' | '」' | '』')
}

/// Returns the end of the piece that begins at `start`: a word with the links that touch it. In preformatted text it
/// includes the blanks before it.
fn piece_end(block: &LaidBlock, start: usize) -> usize {
    let text = &block.text;
    let mut links = block.links[block.links.partition_point(|link| link.end <= start)..].iter();
    let mut link = links.next();
    let mut at = start;
    let mut has_text = false;

    while at < text.len() {
        if let Some(found) = link.filter(|link| link.start <= at) {
            (at, has_text, link) = (found.end, true, links.next());
            continue;
        }

        // Most characters are letters.
        if text.as_bytes()[at].is_ascii_alphanumeric() {
            (at, has_text) = (at + 1, true);
            continue;
        }

        let Some(c) = text[at..].chars().next() else { break };
        let is_space = c.is_whitespace();
        if c == '\n' || is_space && (has_text && block.is_code || !blank_at(block, at).is_empty()) {
            break;
        }

        at += c.len_utf8();
        has_text |= !is_space;
        let next = text[at..].chars().next();
        if ends_clause(c) && next.is_some_and(|next| !ends_clause(next)) && ends_grapheme(text, at) {
            break;
        }
    }

    at.max(start + text[start..].chars().next().map_or(0, char::len_utf8))
}

/// Returns the end of the link that begins at `start`, or of at most `count` graphemes before the next one.
fn unit_end(block: &LaidBlock, start: usize, end: usize, count: usize) -> usize {
    if let Some(link) = block.link_at(start).filter(|link| link.start == start) {
        return link.end.min(end);
    }
    let next_link = block.links[block.links.partition_point(|link| link.start <= start)..].first();
    let end = next_link.map_or(end, |link| end.min(link.start));
    let graphemes = block.text[start..end].graphemes(true).take(count);
    start + graphemes.map(str::len).sum::<usize>()
}
