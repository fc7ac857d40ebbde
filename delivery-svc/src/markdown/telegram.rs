//! Telegram's HTML. *Pure.*
//!
//! Of HTML's three special characters each is an entity; MarkdownV2 would need eighteen escapes. A message has at most
//! 4,096 UTF-16 units, a caption 1,024, both counted after the markup is taken out. Quotes cannot be nested, and code
//! is never part of another style. Telegram ignores entities beyond the hundredth of a message, whose text stays.
//! Source: <https://core.telegram.org/bots/api#html-style>, <https://core.telegram.org/bots/api#sendmessage>.

use super::document::Style;
use super::syntax::{QuoteMarkup, Syntax, TextPiece, write_entities};
use crate::chunk::{ChunkLimit, LengthUnit};

/// Maximum size of a message.
pub const MESSAGE: ChunkLimit = ChunkLimit {
    max: 4_096,
    unit: LengthUnit::Utf16,
};

/// Maximum size of a caption.
pub const CAPTION: ChunkLimit = ChunkLimit {
    max: 1_024,
    unit: LengthUnit::Utf16,
};

pub(crate) struct TelegramHtml;

impl Syntax for TelegramHtml {
    fn masks_links(&self) -> bool {
        true
    }

    fn isolates_code(&self) -> bool {
        true
    }

    fn counts_marks(&self) -> bool {
        false
    }

    fn ends_marks_with_line(&self) -> bool {
        false
    }

    fn quote(&self) -> QuoteMarkup {
        QuoteMarkup::Tags("<blockquote>", "</blockquote>")
    }

    fn fence_end(&self, language: Option<&str>) -> Option<&'static str> {
        Some(if language.is_some() { "</code></pre>" } else { "</pre>" })
    }

    fn open_fence(&self, language: Option<&str>, out: &mut String) {
        out.push_str("<pre>");
        if let Some(language) = language {
            out.push_str("<code class=\"language-");
            out.push_str(language);
            out.push_str("\">");
        }
    }

    fn open(&self, style: &Style, out: &mut String) {
        match style {
            Style::Bold => out.push_str("<b>"),
            Style::Italic => out.push_str("<i>"),
            Style::Strike => out.push_str("<s>"),
            Style::Code => out.push_str("<code>"),
            // Clients recognise a URL.
            Style::BareLink => {}
            Style::Link { url } => {
                out.push_str("<a href=\"");
                write_entities(url, out);
                out.push_str("\">");
            }
        }
    }

    fn close(&self, style: &Style, out: &mut String) {
        out.push_str(match style {
            Style::Bold => "</b>",
            Style::Italic => "</i>",
            Style::Strike => "</s>",
            Style::Code => "</code>",
            Style::BareLink => "",
            Style::Link { .. } => "</a>",
        });
    }

    fn write_text(&self, piece: &TextPiece<'_>, out: &mut String) {
        write_entities(piece.text, out);
    }
}
