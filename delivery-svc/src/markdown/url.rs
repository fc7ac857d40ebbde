//! URLs in texts: which ones clients open, and those that are written without any markup. *Pure.*

use std::fmt::Write as _;
use std::ops::Range;

use super::document::{Span, Style};

/// Schemes of links that clients of all platforms open.
const SCHEMES: [&str; 4] = ["http://", "https://", "mailto:", "tel:"];

/// Beginnings of URLs that are links without markup.
const BARE: [&str; 2] = ["https://", "http://"];

/// Common beginning of [`BARE`].
const HTTP: &str = "http";

/// Returns `target` as a URL that clients open, or `None` if it is none, for example a relative path. Characters that
/// could end the URL in the markup of a platform are percent-encoded.
pub(crate) fn openable_url(target: &str) -> Option<String> {
    let is_openable = SCHEMES.iter().any(|scheme| {
        let head = target.get(..scheme.len());
        head.is_some_and(|head| head.eq_ignore_ascii_case(scheme)) && target.len() > scheme.len()
    });
    is_openable.then(|| encode_delimiters(target))
}

fn encode_delimiters(url: &str) -> String {
    let mut encoded = String::with_capacity(url.len());
    for character in url.chars() {
        let ends_url = character.is_whitespace() || character.is_control() || "<>\"`|\\^{}".contains(character);
        if ends_url {
            for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                // Writing to a string cannot fail.
                let _ = write!(encoded, "%{byte:02X}");
            }
        } else {
            encoded.push(character);
        }
    }
    encoded
}

/// Adds a span for each URL in `text` that is written without markup and lies in no code and in no link. Spans stay
/// sorted and nested: a URL ends at the border of a span.
pub(crate) fn add_bare_links(text: &str, spans: &mut Vec<Span>) {
    if !text.contains("://") {
        return;
    }

    let mut borders: Vec<usize> = spans
        .iter()
        .flat_map(|span| [span.range.start, span.range.end])
        .collect();
    borders.sort_unstable();
    let mut opaque: Vec<Range<usize>> = Vec::new();
    for span in spans
        .iter()
        .filter(|span| span.style == Style::Code || span.style.is_link())
    {
        // A range in another one is covered by it.
        if opaque.last().is_none_or(|last| last.end <= span.range.start) {
            opaque.push(span.range.clone());
        }
    }

    let mut found = Vec::new();
    let mut from = 0;
    while let Some(start) = text[from..].find(HTTP).map(|at| from + at) {
        let next_border = borders[borders.partition_point(|border| *border <= start)..].first();
        let length = bare_length(&text[start..next_border.copied().unwrap_or(text.len())]);

        let follows_word = text[..start].chars().next_back().is_some_and(char::is_alphanumeric);
        let in_opaque = opaque[..opaque.partition_point(|range| range.start <= start)]
            .last()
            .is_some_and(|range| range.contains(&start));
        if length > 0 && !follows_word && !in_opaque {
            found.push(Span {
                range: start..start + length,
                style: Style::BareLink,
            });
        }

        from = start + length.max(HTTP.len());
    }

    if !found.is_empty() {
        spans.append(&mut found);
        // Stable: of two spans of one range, the outer one stays the first.
        spans.sort_by_key(|span| (span.range.start, std::cmp::Reverse(span.range.end)));
    }
}

/// Returns the ranges of the URLs in `text`, also of those inside others.
pub(crate) fn urls_in(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(start) = text[from..].find(HTTP).map(|at| from + at) {
        let length = bare_length(&text[start..]);
        if length > 0 {
            found.push(start..start + length);
        }
        from = start + length.max(HTTP.len());
    }
    found
}

/// Returns whether `c` at the end of a URL belongs to the sentence around it.
fn is_trailing(c: char) -> bool {
    "?!.,:;*_~'\u{2019}\u{201d}]".contains(c)
}

/// Returns the length in bytes of the URL at the start of `text`; 0 if there is none. Punctuation at its end belongs to
/// the sentence, and so does a parenthesis that the URL does not open. Source: GitHub Flavored Markdown §6.9.
fn bare_length(text: &str) -> usize {
    let Some(scheme) = BARE.iter().find(|scheme| text.starts_with(**scheme)) else {
        return 0;
    };

    let ends = |c: char| c.is_whitespace() || c.is_control() || "<>\"`|\\^{}".contains(c);
    let mut url = &text[..text.find(ends).unwrap_or(text.len())];
    // A chain of unbalanced parentheses is walked through once.
    let mut surplus = url.matches(')').count().saturating_sub(url.matches('(').count());
    loop {
        let Some(last) = url.chars().next_back() else { return 0 };
        let is_surplus = last == ')' && surplus > 0;
        surplus -= usize::from(is_surplus);
        if !is_surplus && !is_trailing(last) {
            break;
        }
        url = &url[..url.len() - last.len_utf8()];
    }

    if url.len() > scheme.len() { url.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let mut spans = Vec::new();
        add_bare_links(text, &mut spans);
        let found: Vec<&str> = spans.iter().map(|span| &text[span.range.clone()]).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn urls_end_before_the_punctuation_of_the_sentence() {
        check("see https://a.example/x_y*z, and", &["https://a.example/x_y*z"]);
        check("(https://a.example/b)", &["https://a.example/b"]);
        check("https://a.example/b_(c)).", &["https://a.example/b_(c)"]);
        check("https://a.example/?q=1&r=2!", &["https://a.example/?q=1&r=2"]);
        check(
            "a https://x.example/ b http://y.example",
            &["https://x.example/", "http://y.example"],
        );
        check("日本https://a.example/日本", &[]);
        check("「https://a.example/日本」", &["https://a.example/日本」"]);
        check("https:// http://. ://x xhttps://y é://é", &[]);
    }

    #[test]
    fn only_what_clients_open_is_a_link() {
        assert_eq!(openable_url("docs/x.md"), None);
        assert_eq!(openable_url("javascript:alert(1)"), None);
        assert_eq!(openable_url("https://"), None);
        assert_eq!(
            openable_url("HTTPS://a.example/<b|c> d").as_deref(),
            Some("HTTPS://a.example/%3Cb%7Cc%3E%20d")
        );
    }
}
