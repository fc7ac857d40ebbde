//! Discord's Markdown. *Pure.*
//!
//! A backslash escapes characters that would be markup. `@everyone`, `@here` and mentions in a text get a character
//! without width behind their `@`; the `allowed_mentions` of the call see to it that no user is notified. A URL stands
//! between `<` and `>`, where it ends as it should and shows no preview. A message has at most 2,000 characters. Italic
//! is left out where it touches a letter or digit, because `_` does not work there, and a style around a link whose URL
//! contains marks is too. Headings have three levels. Source:
//! <https://discord.com/developers/docs/reference#message-formatting>,
//! <https://support.discord.com/hc/en-us/articles/210298617>.

use super::document::Style;
use super::syntax::{BREAKER, StylePlace, Syntax, TextPiece, TextRole, fits_backticks, for_each_char, write_fenced};
use crate::chunk::{ChunkLimit, LengthUnit};

/// Maximum size of a message.
pub const MESSAGE: ChunkLimit = ChunkLimit {
    max: 2_000,
    unit: LengthUnit::Characters,
};

pub(crate) struct DiscordMarkdown;

impl Syntax for DiscordMarkdown {
    fn bullet(&self) -> &'static str {
        "-"
    }

    fn masks_links(&self) -> bool {
        true
    }

    fn reads_marks_in_urls(&self) -> bool {
        true
    }

    fn heading(&self, level: u8) -> Option<&'static str> {
        match level {
            1 => Some("# "),
            2 => Some("## "),
            3 => Some("### "),
            _ => None,
        }
    }

    fn fence_end(&self, _language: Option<&str>) -> Option<&'static str> {
        Some("\n```")
    }

    fn open_fence(&self, language: Option<&str>, out: &mut String) {
        out.push_str("```");
        out.push_str(language.unwrap_or_default());
        out.push('\n');
    }

    fn shows(&self, style: &Style, place: &StylePlace<'_>) -> bool {
        match style {
            Style::Italic => place.is_between_words(),
            Style::Code => fits_backticks(place.text),
            Style::Bold | Style::Strike | Style::BareLink | Style::Link { .. } => true,
        }
    }

    fn open(&self, style: &Style, out: &mut String) {
        match style {
            Style::Bold => out.push_str("**"),
            Style::Italic => out.push('_'),
            Style::Strike => out.push_str("~~"),
            Style::Code => out.push('`'),
            Style::BareLink => out.push('<'),
            Style::Link { .. } => out.push('['),
        }
    }

    fn close(&self, style: &Style, out: &mut String) {
        match style {
            Style::Bold => out.push_str("**"),
            Style::Italic => out.push('_'),
            Style::Strike => out.push_str("~~"),
            Style::Code => out.push('`'),
            Style::BareLink => out.push('>'),
            Style::Link { url } => {
                out.push_str("](");
                out.push_str(&url.replace('(', "%28").replace(')', "%29"));
                out.push(')');
            }
        }
    }

    fn write_text(&self, piece: &TextPiece<'_>, out: &mut String) {
        if piece.text.bytes().all(|byte| !b"@\\*_~`|<[]>#-+".contains(&byte)) {
            out.push_str(piece.text);
            return;
        }

        match piece.role {
            TextRole::Text | TextRole::BareMark => {
                let mut rest = piece.text.chars();
                for_each_char(piece, |character, before, after| {
                    let is_first = rest.as_str().len() == piece.text.len();
                    rest.next();
                    let is_inside = !is_first && !rest.as_str().is_empty();
                    let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
                    if character == '_' && is_inside && is_word(before) && is_word(after) {
                        // Names with underscores stay readable.
                        out.push('_');
                    } else {
                        write_char(character, (before, after), piece.begins_line, rest.as_str(), out);
                    }
                });
            }
            TextRole::Preformatted => write_fenced(piece, out, |text, out| out.push_str(text)),
            TextRole::Code | TextRole::Url | TextRole::Marker => out.push_str(piece.text),
        }
    }
}

/// Writes a character of running text that is followed by `rest`.
fn write_char(
    character: char,
    (before, after): (Option<char>, Option<char>),
    begins_line: bool,
    rest: &str,
    out: &mut String,
) {
    match character {
        '@' => {
            out.push('@');
            // The rest may be in the next piece of the word.
            let ends_word = after.is_some_and(char::is_whitespace);
            let calls_all = |name: &str| rest.starts_with(name) || !ends_word && name.starts_with(rest);
            let calls_one = before == Some('<') && matches!(after, Some('!' | '&' | '0'..='9'));
            if calls_one || ["everyone", "here"].into_iter().any(calls_all) {
                out.push(BREAKER);
            }
        }
        '\\' | '*' | '_' | '~' | '`' | '|' | '<' | '[' | ']' => {
            out.push('\\');
            out.push(character);
        }
        '>' | '#' | '-' | '+' if before.is_none() && begins_line => {
            out.push('\\');
            out.push(character);
        }
        other => out.push(other),
    }
}
