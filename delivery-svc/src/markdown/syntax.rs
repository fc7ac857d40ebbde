//! The seam between the cutter and a platform's markup. *Pure.*

use super::document::Style;

/// The markup of a platform.
pub(crate) trait Syntax: Sync {
    /// Returns whether the form is other than plain text.
    fn is_markup(&self) -> bool {
        true
    }

    /// Returns the sign before an item of a list without numbers.
    fn bullet(&self) -> &'static str {
        "•"
    }

    /// Returns whether a link can have a text of its own. If not, its URL is shown behind the text.
    fn masks_links(&self) -> bool {
        false
    }

    /// Returns whether a URL in running text has marks around it, so that it ends where it should.
    fn delimits_urls(&self) -> bool {
        true
    }

    /// Returns whether a mark in the URL of a link with a text of its own would end a style around the link.
    fn reads_marks_in_urls(&self) -> bool {
        false
    }

    /// Returns whether the text of a link can have styles.
    fn styles_links(&self) -> bool {
        true
    }

    /// Returns whether code can have no other style.
    fn isolates_code(&self) -> bool {
        false
    }

    /// Returns whether the platform's limit counts the markup. If not, it counts the text that a reader sees.
    fn counts_marks(&self) -> bool {
        true
    }

    /// Returns whether a mark works only on one line, so that styles are closed at its end and opened again.
    fn ends_marks_with_line(&self) -> bool {
        true
    }

    /// Returns whether `c` is a mark that has no escape.
    fn is_bare_mark(&self, _c: char) -> bool {
        false
    }

    /// Returns whether styles are told beside the text, as ranges.
    fn has_ranges(&self) -> bool {
        false
    }

    /// Returns the markup of quotes.
    fn quote(&self) -> QuoteMarkup {
        QuoteMarkup::Prefix("> ")
    }

    /// Returns whether a quote in a quote has two signs.
    fn nests_quotes(&self) -> bool {
        false
    }

    /// Returns the beginning of a heading's line; `None` if headings are bold.
    fn heading(&self, _level: u8) -> Option<&'static str> {
        None
    }

    /// Returns the end of preformatted text; `None` if it has no markup.
    fn fence_end(&self, _language: Option<&str>) -> Option<&'static str> {
        None
    }

    /// Writes the beginning of preformatted text.
    fn open_fence(&self, _language: Option<&str>, _out: &mut String) {}

    /// Returns whether the markup can show the style at this place.
    fn shows(&self, _style: &Style, _place: &StylePlace<'_>) -> bool {
        true
    }

    /// Writes the mark that begins `style`.
    fn open(&self, _style: &Style, _out: &mut String) {}

    /// Writes the mark that ends `style`.
    fn close(&self, _style: &Style, _out: &mut String) {}

    /// Writes a piece of text so that a reader sees exactly it.
    fn write_text(&self, piece: &TextPiece<'_>, out: &mut String) {
        out.push_str(piece.text);
    }
}

/// The markup of quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuoteMarkup {
    /// Begins each line.
    Prefix(&'static str),
    /// Stand around the quote.
    Tags(&'static str, &'static str),
}

/// The place of a styled text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StylePlace<'a> {
    /// Styled text.
    pub(crate) text: &'a str,
    /// Character before it, in the same line.
    pub(crate) before: Option<char>,
    /// Character after it, in the same line.
    pub(crate) after: Option<char>,
}

impl StylePlace<'_> {
    /// Returns whether no letter or digit touches the text.
    pub(crate) fn is_between_words(&self) -> bool {
        let touches = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        !touches(self.before) && !touches(self.after)
    }
}

/// Returns whether a platform without escapes can show `style` at `place`: its marks work between words alone.
pub(crate) fn is_shown_between_words(style: &Style, place: &StylePlace<'_>) -> bool {
    match style {
        Style::Bold | Style::Italic | Style::Strike => place.is_between_words(),
        Style::Code => place.is_between_words() && fits_backticks(place.text),
        Style::BareLink | Style::Link { .. } => true,
    }
}

/// A piece of text in one style.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextPiece<'a> {
    /// Text without line breaks.
    pub(crate) text: &'a str,
    /// Character before it, in the same line.
    pub(crate) before: Option<char>,
    /// Character after it, in the same line.
    pub(crate) after: Option<char>,
    /// Whether it begins a line of the part.
    pub(crate) begins_line: bool,
    /// Role of the text.
    pub(crate) role: TextRole,
}

/// The role of a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextRole {
    /// Running text.
    Text,
    /// Inline code.
    Code,
    /// Preformatted text.
    Preformatted,
    /// URL of a link without a text of its own.
    Url,
    /// Sign before a list item.
    Marker,
    /// Character that would begin or end a style, beside one.
    BareMark,
}

/// Writes `& < >` as entities, and all else as it is.
pub(crate) fn write_entities(text: &str, out: &mut String) {
    // Most words have none.
    if !text.bytes().any(|byte| matches!(byte, b'&' | b'<' | b'>')) {
        out.push_str(text);
        return;
    }

    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            other => out.push(other),
        }
    }
}

/// A character without width: it keeps a sign from being read as markup on platforms that have no escape.
pub(crate) const BREAKER: char = '\u{200b}';

/// White space at which no line is broken.
pub(crate) const UNBREAKABLE: [char; 3] = ['\u{a0}', '\u{202f}', '\u{2007}'];

/// Characters that begin and end styles on platforms that have no escape for them.
pub(crate) const BARE_MARKS: [char; 4] = ['*', '_', '~', '`'];

/// Returns whether `text`, read as inline code between backticks, ends where it should.
pub(crate) fn fits_backticks(text: &str) -> bool {
    !text.contains('`') && text.trim() == text
}

/// Calls `write` for each character of `piece`, with its neighbours in the line.
pub(crate) fn for_each_char(piece: &TextPiece<'_>, mut write: impl FnMut(char, Option<char>, Option<char>)) {
    let mut before = piece.before;
    let mut characters = piece.text.chars().peekable();
    while let Some(character) = characters.next() {
        let after = characters.peek().copied().or(piece.after);
        write(character, before, after);
        before = Some(character);
    }
}

/// Writes the mark `character` so that it neither begins nor ends a style, if marks have no escape. A mark begins a
/// style only before a character that is no white space and not behind a letter or digit, and ends one the other way
/// round; a breaker counts as white space.
pub(crate) fn write_bare_mark(character: char, before: Option<char>, after: Option<char>, out: &mut String) {
    let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    if is_word(before) && is_word(after) {
        out.push(character);
    } else {
        write_inert(character, before, after, out);
    }
}

/// Writes `character` between breakers; white space makes one superfluous.
pub(crate) fn write_inert(character: char, before: Option<char>, after: Option<char>, out: &mut String) {
    let is_blank = |c: Option<char>| c.is_some_and(char::is_whitespace);
    if !is_blank(before) {
        out.push(BREAKER);
    }
    out.push(character);
    if !is_blank(after) {
        out.push(BREAKER);
    }
}

/// Writes preformatted text for fences of three backticks, which it must not end.
pub(crate) fn write_fenced(piece: &TextPiece<'_>, out: &mut String, write: fn(&str, &mut String)) {
    // One of a row that is written in pieces.
    if piece.text.starts_with('`') && piece.before == Some('`') {
        out.push(BREAKER);
    }

    let mut parts = piece.text.split("```");
    if let Some(first) = parts.next() {
        write(first, out);
    }
    for part in parts {
        for backtick in ["`", "`", "`"] {
            out.push_str(backtick);
            out.push(BREAKER);
        }
        write(part, out);
    }
}
