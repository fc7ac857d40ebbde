//! The runs of a block's text, each in one set of styles. *Pure.*

use std::ops::Range;

use crate::markdown::document::{MAX_STYLES, Span, Style};
use crate::markdown::syntax::{Syntax, TextRole, UNBREAKABLE};

/// Length of a word up to which a mark inside it stays as it is, in bytes as it is written: a longer one may be split.
const MAX_PLAIN_WORD: usize = 50;

/// A run of text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    /// End of the run in bytes; it begins where the one before ends.
    pub(crate) end: usize,
    /// Role of its text.
    pub(crate) role: TextRole,
    stack: [u32; MAX_STYLES],
    depth: u8,
}

impl Run {
    /// Returns the indexes of its spans, from outside to inside.
    pub(crate) fn styles(&self) -> &[u32] {
        &self.stack[..usize::from(self.depth)]
    }

    /// Returns the run in the role `role`, with none of its styles but a link.
    fn without_styles(mut self, spans: &[Span], role: TextRole) -> Self {
        let link = self
            .styles()
            .iter()
            .copied()
            .find(|index| spans[*index as usize].style.is_link());
        self.depth = u8::from(link.is_some());
        self.stack[0] = link.unwrap_or_default();
        self.role = role;
        self
    }
}

/// Returns the runs of `text`, whose sign before it ends at `marker_end`.
pub(super) fn runs_of(text: &str, spans: &[Span], marker_end: usize, is_code: bool, syntax: &dyn Syntax) -> Vec<Run> {
    let mut runs = Vec::with_capacity(spans.len() * 2 + 2);
    let mut stack: Vec<usize> = Vec::new();
    let mut at = 0;

    let mut push_run = |end: usize, stack: &[usize], role: Option<TextRole>| {
        if end > at {
            let role = role.unwrap_or(if is_code {
                TextRole::Preformatted
            } else {
                TextRole::Text
            });
            runs.push(run_of(end, stack, spans, role, syntax));
            at = end;
        }
    };

    push_run(marker_end, &[], Some(TextRole::Marker));
    for (index, span) in spans.iter().enumerate() {
        while let Some(top) = stack
            .last()
            .copied()
            .filter(|top| spans[*top].range.end <= span.range.start)
        {
            push_run(spans[top].range.end, &stack, None);
            stack.pop();
        }
        push_run(span.range.start, &stack, None);
        stack.push(index);
    }

    while let Some(top) = stack.last().copied() {
        push_run(spans[top].range.end, &stack, None);
        stack.pop();
    }
    push_run(text.len(), &[], None);

    let has_loose = !text.is_ascii() || text.contains(|c| syntax.is_bare_mark(c));
    if syntax.ends_marks_with_line() && has_loose {
        runs = part_loose_characters(text, &runs, spans, syntax);
    }
    runs
}

/// Returns the run that ends at `end` and has the spans of `stack`.
fn run_of(end: usize, stack: &[usize], spans: &[Span], role: TextRole, syntax: &dyn Syntax) -> Run {
    let find = |wanted: fn(&Style) -> bool| stack.iter().copied().find(|index| wanted(&spans[*index].style));
    let code = find(|style| *style == Style::Code);
    let link = find(Style::is_link);
    let alone = [link.or(code).unwrap_or_default()];
    let shown = if code.is_some() && syntax.isolates_code() {
        &alone
    } else {
        stack
    };

    let mut run = Run {
        end,
        role: match (link, code) {
            (Some(link), _) if spans[link].style == Style::BareLink => TextRole::Url,
            (_, Some(_)) => TextRole::Code,
            (_, None) => role,
        },
        stack: [0; MAX_STYLES],
        depth: 0,
    };
    for (slot, index) in run.stack.iter_mut().zip(shown) {
        *slot = u32::try_from(*index).unwrap_or(u32::MAX);
        run.depth += 1;
    }

    run
}

/// Returns `runs` with some characters in runs of their own, outside of all styles: marks that have no escape, where
/// they could be taken for the marks of a style beside them, and white space that does not end a word, because no mark
/// may stand beside it.
fn part_loose_characters(text: &str, runs: &[Run], spans: &[Span], syntax: &dyn Syntax) -> Vec<Run> {
    let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let mut parted = Vec::with_capacity(runs.len());
    let mut word = 0..0;
    let mut start = 0;
    for run in runs {
        let run_start = std::mem::replace(&mut start, run.end);
        let is_code = run.role == TextRole::Code;
        if run.role != TextRole::Text && !is_code {
            parted.push(*run);
            continue;
        }

        for (at, mark) in text[run_start..run.end].char_indices() {
            let at = run_start + at;
            // A blank before another character than ASCII may carry it as an accent.
            let next = text.as_bytes().get(at + mark.len_utf8());
            let carries_accent = mark.is_whitespace() && next.is_some_and(|next| !next.is_ascii());
            let is_blank = carries_accent || UNBREAKABLE.contains(&mark);
            let is_mark = syntax.is_bare_mark(mark) && !is_code;
            if !is_mark && !is_blank {
                continue;
            }

            let (before, after) = (
                text[..at].chars().next_back(),
                text[at + mark.len_utf8()..].chars().next(),
            );
            if at >= word.end {
                word = word_around(text, at);
            }
            let is_short = written_length(&text[word.clone()]) <= MAX_PLAIN_WORD;
            let in_word = !is_blank && is_word(before) && is_word(after) && is_short;
            let at_border = at == run_start || at + mark.len_utf8() == run.end;
            if at_border && !is_blank || run.depth > 0 && !in_word {
                let role = if is_blank { TextRole::Text } else { TextRole::BareMark };
                let ends = [(at, *run), (at + mark.len_utf8(), run.without_styles(spans, role))];
                let from = parted.last().map_or(0, |run: &Run| run.end);
                let not_empty = ends.into_iter().filter(|(end, _)| *end > from);
                parted.extend(not_empty.map(|(end, run)| Run { end, ..run }));
            }
        }

        if parted.last().is_none_or(|last| last.end < run.end) {
            parted.push(*run);
        }
    }

    parted
}

/// Returns the range of the word around `at`, up to white space at which a line is broken.
fn word_around(text: &str, at: usize) -> Range<usize> {
    let breaks = |c: char| c.is_whitespace() && !UNBREAKABLE.contains(&c);
    let before = text[..at].char_indices().rfind(|(_, c)| breaks(*c));
    let start = before.map_or(0, |(before, c)| before + c.len_utf8());
    let end = text[at..].find(breaks).map_or(text.len(), |after| at + after);
    start..end
}

/// Returns the length of `word` in bytes, with entities and breakers; of a long one, more than [`MAX_PLAIN_WORD`].
fn written_length(word: &str) -> usize {
    let lengths = word.bytes().take(MAX_PLAIN_WORD + 1).map(|byte| match byte {
        b'&' | b'<' | b'>' => 5,
        b'*' | b'_' | b'~' | b'`' => 7,
        _ => 1,
    });
    lengths.sum()
}
