//! Slack's mrkdwn. *Pure.*
//!
//! `& < >` are entities, so that `<!channel>` or `<@U…>` in a text is a text and notifies no user. There is no escape
//! for `*`, `_`, `~` and the backtick: a character without width beside them keeps them from being read as markup, and
//! a style that touches a letter or digit is left out, because Slack would show its marks. Fences have no language. A
//! message's text should have at most 4,000 characters; entities count as they are written.
//! Source: <https://docs.slack.dev/messaging/formatting-message-text>,
//! <https://docs.slack.dev/reference/methods/chat.postMessage#truncating>.

use std::borrow::Cow;

use super::document::Style;
use super::syntax::{
    BARE_MARKS, BREAKER, StylePlace, Syntax, TextPiece, TextRole, for_each_char, is_shown_between_words,
    write_bare_mark, write_entities, write_fenced, write_inert,
};
use crate::chunk::{ChunkLimit, LengthUnit};

/// Maximum size of a message.
pub const MESSAGE: ChunkLimit = ChunkLimit {
    max: 4_000,
    unit: LengthUnit::Characters,
};

/// Returns `text` as Slack shows it literally, in plain text too: without entities `<!channel>` would call everybody.
///
/// ```
/// assert_eq!(delivery_svc::markdown::slack::escape_text("<!here> & now"), "&lt;!here&gt; &amp; now");
/// ```
#[must_use]
pub fn escape_text(text: &str) -> Cow<'_, str> {
    if !text.contains(['&', '<', '>']) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    write_entities(text, &mut escaped);
    Cow::Owned(escaped)
}

pub(crate) struct SlackMrkdwn;

impl Syntax for SlackMrkdwn {
    fn masks_links(&self) -> bool {
        true
    }

    fn styles_links(&self) -> bool {
        false
    }

    fn fence_end(&self, _language: Option<&str>) -> Option<&'static str> {
        Some("\n```")
    }

    fn open_fence(&self, _language: Option<&str>, out: &mut String) {
        out.push_str("```\n");
    }

    fn isolates_code(&self) -> bool {
        true
    }

    fn is_bare_mark(&self, c: char) -> bool {
        BARE_MARKS.contains(&c)
    }

    fn shows(&self, style: &Style, place: &StylePlace<'_>) -> bool {
        is_shown_between_words(style, place)
    }

    fn open(&self, style: &Style, out: &mut String) {
        match style {
            Style::Bold => out.push('*'),
            Style::Italic => out.push('_'),
            Style::Strike => out.push('~'),
            Style::Code => out.push('`'),
            Style::BareLink => out.push('<'),
            Style::Link { url } => {
                out.push('<');
                write_entities(url, out);
                out.push('|');
            }
        }
    }

    fn close(&self, style: &Style, out: &mut String) {
        out.push(match style {
            Style::Bold => '*',
            Style::Italic => '_',
            Style::Strike => '~',
            Style::Code => '`',
            Style::BareLink | Style::Link { .. } => '>',
        });
    }

    fn write_text(&self, piece: &TextPiece<'_>, out: &mut String) {
        if piece.text.bytes().all(|byte| !b"&<>*_~`".contains(&byte)) {
            out.push_str(piece.text);
            return;
        }

        match piece.role {
            TextRole::Text => for_each_char(piece, |character, before, after| match character {
                mark if self.is_bare_mark(mark) => write_bare_mark(mark, before, after, out),
                '>' if before.is_none() && piece.begins_line => {
                    out.push(BREAKER);
                    out.push_str("&gt;");
                }
                '&' => out.push_str("&amp;"),
                '<' => out.push_str("&lt;"),
                '>' => out.push_str("&gt;"),
                other => out.push(other),
            }),
            TextRole::BareMark => for_each_char(piece, |mark, before, after| write_inert(mark, before, after, out)),
            TextRole::Preformatted => write_fenced(piece, out, write_entities),
            TextRole::Code | TextRole::Url | TextRole::Marker => write_entities(piece.text, out),
        }
    }
}
