//! Markdown, read once and shown as each platform shows it. *Pure.*
//!
//! Source text →[`parse`]→ [`Document`] →layout→ blocks in a platform's markup →cut→ parts, each within the platform's
//! limit by *rendered* length. The law: a reader sees the same text in all parts together as in the source, but for
//! white space where a part ends. Source: `docs/rendering.md`.

mod cut;
pub mod discord;
pub mod document;
mod draft;
pub mod email;
mod layout;
mod parse;
mod plain;
pub mod signal;
pub mod slack;
mod syntax;
mod table;
pub mod telegram;
mod url;
pub mod whatsapp;

pub use self::cut::RenderedPart;
pub use self::parse::{MAX_SOURCE_BYTES, parse};

use self::cut::{PartBounds, cut};
use self::discord::DiscordMarkdown;
use self::document::Document;
use self::layout::lay_out;
use self::plain::PlainText;
use self::signal::SignalText;
use self::slack::SlackMrkdwn;
use self::syntax::Syntax;
use self::telegram::TelegramHtml;
use self::whatsapp::WhatsappMarks;
use crate::chunk::ChunkLimit;

/// Smallest size of a part with markup, in any unit: room for marks, fences and a few words.
pub const LEAST_SIZE: usize = 100;

/// Smallest number of lines of a part: a line of code in its fence, and a line of text.
pub const LEAST_LINES: usize = 5;

/// A form in which a platform takes text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TextMarkup {
    /// Plain text.
    Plain,
    /// Slack's mrkdwn.
    Slack,
    /// Discord's Markdown.
    Discord,
    /// Telegram's HTML.
    TelegramHtml,
    /// WhatsApp's marks.
    Whatsapp,
    /// Plain text, and styles beside it as Signal takes them.
    Signal,
    /// HTML of an e-mail, never cut.
    EmailHtml,
}

impl TextMarkup {
    /// All forms.
    pub const ALL: [Self; 7] = [
        Self::Plain,
        Self::Slack,
        Self::Discord,
        Self::TelegramHtml,
        Self::Whatsapp,
        Self::Signal,
        Self::EmailHtml,
    ];

    /// Returns the platform's own limit of a message; `None` if it has none.
    #[must_use]
    pub const fn own_limit(self) -> Option<ChunkLimit> {
        match self {
            Self::Plain | Self::EmailHtml => None,
            Self::Slack => Some(slack::MESSAGE),
            Self::Discord => Some(discord::MESSAGE),
            Self::TelegramHtml => Some(telegram::MESSAGE),
            Self::Whatsapp => Some(whatsapp::MESSAGE),
            Self::Signal => Some(signal::MESSAGE),
        }
    }
}

/// Returns the parts of `source` in the form `markup`, at most `limit` large and `max_lines` long. A limit below
/// [`LEAST_SIZE`] or [`LEAST_LINES`] counts as that, except for the size of plain text.
///
/// There is at least one part; it is empty only if the source is blank.
///
/// ```
/// use delivery_svc::markdown::{TextMarkup, render_parts, slack};
///
/// let parts = render_parts("**Done**: [log](https://a.example/1)", TextMarkup::Slack, Some(slack::MESSAGE), None);
/// assert_eq!(parts[0].text, "*Done*: <https://a.example/1|log>");
/// assert_eq!(parts[0].plain, "Done: log (https://a.example/1)");
/// ```
#[must_use]
pub fn render_parts(
    source: &str,
    markup: TextMarkup,
    limit: Option<ChunkLimit>,
    max_lines: Option<usize>,
) -> Vec<RenderedPart> {
    let document = parse(source);
    let lines = max_lines.map(|lines| lines.max(LEAST_LINES));
    let with_marks = limit.map(|limit| ChunkLimit {
        max: limit.max.max(LEAST_SIZE),
        ..limit
    });

    let parts = match markup {
        TextMarkup::Plain => cut_document(&document, &PlainText, limit, lines),
        TextMarkup::Slack => cut_document(&document, &SlackMrkdwn, with_marks, lines),
        TextMarkup::Discord => cut_document(&document, &DiscordMarkdown, with_marks, lines),
        TextMarkup::TelegramHtml => cut_document(&document, &TelegramHtml, with_marks, lines),
        TextMarkup::Whatsapp => cut_document(&document, &WhatsappMarks, with_marks, lines),
        TextMarkup::Signal => cut_document(&document, &SignalText, with_marks, lines),
        TextMarkup::EmailHtml => {
            let mut parts = cut_document(&document, &PlainText, None, None);
            for part in &mut parts {
                part.text = email::render_html(&document);
            }
            parts
        }
    };

    if parts.is_empty() {
        vec![RenderedPart::default()]
    } else {
        parts
    }
}

fn cut_document(
    document: &Document,
    syntax: &dyn Syntax,
    size: Option<ChunkLimit>,
    lines: Option<usize>,
) -> Vec<RenderedPart> {
    cut(&lay_out(document, syntax, size), syntax, PartBounds { size, lines })
}
