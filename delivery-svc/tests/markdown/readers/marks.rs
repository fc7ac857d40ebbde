//! The marks of Slack and WhatsApp: `*bold*`, `_italic_`, `~struck~`, code between backticks, `> ` before quoted lines.

use super::html::decoded;
use super::{BREAKER, url_length};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Platform {
    Slack,
    Whatsapp,
}

/// Returns what the platform shows.
pub(crate) fn read(text: &str, platform: Platform) -> String {
    let mut seen = String::new();
    let mut fence: Option<Vec<&str>> = None;
    for line in text.split('\n') {
        match &mut fence {
            Some(code) if line == "```" => {
                assert!(!code.is_empty(), "an empty fence in {text:?}");
                for line in fence.take().into_iter().flatten() {
                    assert!(!line.contains("```"), "a fence ends early in {text:?}");
                    seen.push_str(&plain(line, platform, text));
                    seen.push('\n');
                }
            }
            Some(code) => code.push(line),
            None if line == "```" => fence = Some(Vec::new()),
            None => {
                assert!(!line.contains("```"), "a fence inside a line of {text:?}");
                let mut line = line;
                while let Some(rest) = line.strip_prefix("> ").or((line == ">").then_some("")) {
                    line = rest.trim_start_matches(' ');
                }
                assert!(!line.starts_with('>'), "a quote that is none in {text:?}");
                read_line(line, platform, text, &mut seen);
                seen.push('\n');
            }
        }
    }
    assert!(fence.is_none(), "a fence has no end in {text:?}");
    seen
}

/// Decodes entities where the platform has them.
fn plain(text: &str, platform: Platform, whole: &str) -> String {
    match platform {
        Platform::Slack => decoded(text, whole),
        Platform::Whatsapp => text.to_owned(),
    }
}

fn read_line(line: &str, platform: Platform, whole: &str, seen: &mut String) {
    let chars: Vec<char> = line.chars().collect();
    let mut at = 0;
    let mut text = String::new();
    while at < chars.len() {
        if platform == Platform::Slack && chars[at] == '<' {
            seen.push_str(&plain(&std::mem::take(&mut text), platform, whole));
            let end = chars[at..]
                .iter()
                .position(|c| *c == '>')
                .unwrap_or_else(|| panic!("{whole:?}"))
                + at;
            let inner: String = chars[at + 1..end].iter().collect();
            let is_url = ["http://", "https://", "mailto:", "tel:"]
                .iter()
                .any(|scheme| inner.to_lowercase().starts_with(scheme));
            assert!(is_url, "<{inner}> calls somebody in {whole:?}");
            let label = inner.split_once('|').map_or(inner.as_str(), |(_, label)| label);
            seen.push_str(&decoded(label, whole));
            at = end + 1;
            continue;
        }

        let length = url_length(&chars[at..]);
        if platform == Platform::Whatsapp && length > 0 && !(at > 0 && chars[at - 1].is_alphanumeric()) {
            text.extend(&chars[at..at + length]);
            at += length;
            continue;
        }

        if "*_~`".contains(chars[at])
            && let Some(end) = end_of_style(&chars, at, platform)
        {
            seen.push_str(&plain(&std::mem::take(&mut text), platform, whole));
            let inner: String = chars[at + 1..end].iter().collect();
            if chars[at] == '`' {
                seen.push_str(&plain(&inner, platform, whole));
            } else {
                read_line(&inner, platform, whole, seen);
            }
            at = end + 1;
            continue;
        }

        text.push(chars[at]);
        at += 1;
    }
    seen.push_str(&plain(&text, platform, whole));
}

/// Returns the index of the mark that ends the style that begins at `at`, if one begins there.
fn end_of_style(chars: &[char], at: usize, platform: Platform) -> Option<usize> {
    let is_word = |c: Option<&char>| c.is_some_and(|c| c.is_alphanumeric());
    let is_blank = |c: Option<&char>| c.is_none_or(|c| c.is_whitespace() || *c == BREAKER);
    let opens = !is_word(at.checked_sub(1).map(|before| &chars[before])) && !is_blank(chars.get(at + 1));
    if !opens {
        return None;
    }

    let ends = |end: usize| chars[end] == chars[at] && !is_blank(Some(&chars[end - 1])) && !is_word(chars.get(end + 1));
    let mut in_link = false;
    let mut url_end = 0;
    for end in at + 1..chars.len() {
        // Links are read first.
        if platform == Platform::Whatsapp && end >= url_end && !chars[end - 1].is_alphanumeric() {
            url_end = end + url_length(&chars[end..]);
        }
        in_link = platform == Platform::Slack && (chars[end] == '<' || in_link && chars[end] != '>');
        if end > at + 1 && end >= url_end && !in_link && ends(end) {
            return Some(end);
        }
    }
    None
}
