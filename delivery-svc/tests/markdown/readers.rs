//! Small readers of the platforms' markup, strict and independent of the renderers: they return what a person sees, and
//! fail on markup that a platform would refuse or show.

mod discord;
mod html;
mod marks;

use delivery_svc::markdown::document::{Block, Container, Document, Marker, Style};
use delivery_svc::markdown::{RenderedPart, TextMarkup, parse};

/// The character that keeps signs from being read as markup.
pub(crate) const BREAKER: char = '\u{200b}';

/// Returns the text that a person sees of `part`.
pub(crate) fn visible_text(part: &RenderedPart, markup: TextMarkup) -> String {
    match markup {
        TextMarkup::Plain => part.text.clone(),
        TextMarkup::Signal => {
            check_ranges(part);
            part.text.clone()
        }
        TextMarkup::Slack => marks::read(&part.text, marks::Platform::Slack),
        TextMarkup::Whatsapp => marks::read(&part.text, marks::Platform::Whatsapp),
        TextMarkup::Discord => discord::read(&part.text),
        TextMarkup::TelegramHtml => html::read_telegram(&part.text),
        TextMarkup::EmailHtml => html::read_email(&part.text),
    }
}

/// Fails if a range lies outside of the text, is empty, or splits a surrogate pair.
fn check_ranges(part: &RenderedPart) {
    let units: Vec<u16> = part.text.encode_utf16().collect();
    for range in &part.styles {
        let end = range.start + range.length;
        assert!(range.length > 0 && end <= units.len(), "{range} in {:?}", part.text);
        assert!(
            String::from_utf16(&units[range.start..end]).is_ok(),
            "{range} in {:?}",
            part.text
        );
    }
}

/// Returns `text` without white space and signs that are not seen. Of plain forms the `>` before quoted lines is left
/// out, and with it every other one.
pub(crate) fn normal(text: &str, markup: TextMarkup) -> String {
    let is_seen = |c: &char| !c.is_whitespace() && *c != BREAKER;
    let is_quote_sign = |c: &char| *c == '>' && matches!(markup, TextMarkup::Plain | TextMarkup::Signal);
    text.chars().filter(|c| is_seen(c) && !is_quote_sign(c)).collect()
}

/// Returns the text that a person should see of `source`, written in `markup`.
pub(crate) fn source_text(source: &str, markup: TextMarkup) -> String {
    document_text(&parse(source), markup)
}

/// Returns whether `source` has a link that may be too long for a part of some platform.
pub(crate) fn has_long_link(source: &str) -> bool {
    parse(source).blocks.iter().any(|block| {
        block.spans.iter().any(|span| match &span.style {
            Style::Link { url } => span.range.len() + url.len() > 300,
            Style::BareLink => span.range.len() > 300,
            Style::Bold | Style::Italic | Style::Strike | Style::Code => false,
        })
    })
}

fn document_text(document: &Document, markup: TextMarkup) -> String {
    let blocks: Vec<String> = document.blocks.iter().map(|block| block_text(block, markup)).collect();
    blocks.join("\n")
}

fn block_text(block: &Block, markup: TextMarkup) -> String {
    let mut text = String::new();
    for container in &block.containers {
        let Container::Item {
            marker, is_first: true, ..
        } = container
        else {
            continue;
        };
        match marker {
            Marker::Bullet => text.push_str(match markup {
                TextMarkup::Plain | TextMarkup::Discord => "- ",
                TextMarkup::Slack
                | TextMarkup::TelegramHtml
                | TextMarkup::Whatsapp
                | TextMarkup::Signal
                | TextMarkup::EmailHtml => "• ",
            }),
            Marker::Number(number) => text.push_str(&format!("{number}. ")),
            Marker::Task(true) => text.push_str("☑ "),
            Marker::Task(false) => text.push_str("☐ "),
        }
    }

    let hides_urls = match markup {
        TextMarkup::Slack | TextMarkup::Discord | TextMarkup::TelegramHtml | TextMarkup::EmailHtml => true,
        TextMarkup::Plain | TextMarkup::Whatsapp | TextMarkup::Signal => false,
    };
    for (at, c) in block.text.char_indices() {
        text.push(c);
        for span in block.spans.iter().filter(|span| span.range.end == at + c.len_utf8()) {
            if let (Style::Link { url }, false) = (&span.style, hides_urls) {
                text.push_str(&format!(" ({url})"));
            }
        }
    }

    text
}

/// Returns the length of the URL that begins here as clients recognise it; 0 if there is none.
fn url_length(chars: &[char]) -> usize {
    let head: String = chars.iter().take(8).collect();
    let Some(scheme) = ["http://", "https://"]
        .into_iter()
        .find(|scheme| head.starts_with(scheme))
    else {
        return 0;
    };
    let ends = |c: &char| c.is_whitespace() || "<>\"`|\\^{}".contains(*c) || *c == BREAKER;
    let whole = chars.iter().position(ends).unwrap_or(chars.len());
    let trailing = |c: &char| "?!.,:;*_~')]\u{2019}\u{201d}".contains(*c);
    let kept = chars[..whole]
        .iter()
        .rposition(|c| !trailing(c))
        .map_or(0, |last| last + 1);
    if kept > scheme.len() { kept } else { 0 }
}
