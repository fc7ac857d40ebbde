//! WhatsApp's marks. *Pure.*
//!
//! `*bold*`, `_italic_`, `~struck~`, inline code and code blocks between backticks, lines that begin with `> `. There
//! is no escape and no link with a text of its own: literal marks get a character without width beside them, a style
//! that touches a letter or digit is left out, and a URL is shown behind the text of its link. A message has at most
//! 4,096 characters. Source: <https://faq.whatsapp.com/539178204879377>,
//! <https://developers.facebook.com/docs/whatsapp/cloud-api/messages/text-messages>.

use super::document::Style;
use super::syntax::{
    BARE_MARKS, BREAKER, StylePlace, Syntax, TextPiece, TextRole, for_each_char, is_shown_between_words,
    write_bare_mark, write_fenced, write_inert,
};
use crate::chunk::{ChunkLimit, LengthUnit};

/// Maximum size of a message.
pub const MESSAGE: ChunkLimit = ChunkLimit {
    max: 4_096,
    unit: LengthUnit::Characters,
};

pub(crate) struct WhatsappMarks;

impl Syntax for WhatsappMarks {
    fn fence_end(&self, _language: Option<&str>) -> Option<&'static str> {
        Some("\n```")
    }

    fn open_fence(&self, _language: Option<&str>, out: &mut String) {
        out.push_str("```\n");
    }

    fn delimits_urls(&self) -> bool {
        false
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
        out.push_str(mark_of(style));
    }

    fn close(&self, style: &Style, out: &mut String) {
        out.push_str(mark_of(style));
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
                    out.push('>');
                }
                other => out.push(other),
            }),
            TextRole::BareMark => for_each_char(piece, |mark, before, after| write_inert(mark, before, after, out)),
            TextRole::Preformatted => write_fenced(piece, out, |text, out| out.push_str(text)),
            TextRole::Code | TextRole::Url | TextRole::Marker => out.push_str(piece.text),
        }
    }
}

const fn mark_of(style: &Style) -> &'static str {
    match style {
        Style::Bold => "*",
        Style::Italic => "_",
        Style::Strike => "~",
        Style::Code => "`",
        Style::BareLink | Style::Link { .. } => "",
    }
}
