//! HTML as Telegram takes it, and as a mail program shows it.

use delivery_svc::markdown::document::RULE;

use super::BREAKER;

/// Returns what Telegram shows.
pub(crate) fn read_telegram(html: &str) -> String {
    let known = ["b", "i", "s", "code", "a", "pre", "blockquote"];
    let mut seen = String::new();
    let mut open: Vec<String> = Vec::new();
    for token in tokens(html) {
        match token {
            Token::Text(text) => seen.push_str(&text),
            Token::Open { name, attribute } => {
                assert!(known.contains(&name.as_str()), "<{name}> in {html:?}");
                check_nesting(&open, &name, html);
                match name.as_str() {
                    "a" => assert!(
                        attribute.is_some_and(|href| href.contains(':')),
                        "no target in {html:?}"
                    ),
                    "code" => assert_eq!(
                        attribute.is_some(),
                        open.last().is_some_and(|last| last == "pre"),
                        "{html:?}"
                    ),
                    _ => assert_eq!(attribute, None, "{html:?}"),
                }
                open.push(name);
            }
            Token::Close(name) => assert_eq!(open.pop().as_ref(), Some(&name), "{html:?}"),
        }
    }
    assert!(open.is_empty(), "{open:?} is open at the end of {html:?}");
    assert!(!seen.contains(BREAKER), "{html:?}");
    seen
}

/// Code is part of no other style, and contains none; quotes are not nested, links neither.
fn check_nesting(open: &[String], name: &str, html: &str) {
    let is_in = |names: &[&str]| open.iter().any(|open| names.contains(&open.as_str()));
    let fits = match name {
        "code" => open.last().is_some_and(|last| last == "pre") || !is_in(&["b", "i", "s", "a", "code", "pre"]),
        "pre" => open.is_empty(),
        "blockquote" => open.is_empty(),
        "a" => !is_in(&["a", "code", "pre"]),
        _ => !is_in(&["code", "pre", name]),
    };
    assert!(fits, "<{name}> in {open:?} of {html:?}");
}

/// Returns what a mail program shows.
pub(crate) fn read_email(html: &str) -> String {
    let mut seen = String::new();
    let mut open: Vec<String> = Vec::new();
    let mut lists: Vec<Option<u64>> = Vec::new();
    for token in tokens(html) {
        match token {
            Token::Text(text) => seen.push_str(&text),
            Token::Open { name, attribute } => {
                match name.as_str() {
                    "br" => seen.push('\n'),
                    "hr" => seen.push_str(RULE),
                    "ul" => lists.push(None),
                    "ol" => lists.push(Some(attribute.expect("a start").parse().expect("a number"))),
                    "li" => {
                        assert!(open.last().is_some_and(|last| last == "ul" || last == "ol"), "{html:?}");
                        match lists.last_mut().expect("a list") {
                            Some(number) => {
                                seen.push_str(&format!("{number}. "));
                                *number += 1;
                            }
                            None => seen.push_str("• "),
                        }
                    }
                    "p" | "b" | "i" | "s" | "a" | "code" | "pre" | "blockquote" | "h1" | "h2" | "h3" | "h4" | "h5"
                    | "h6" => {}
                    other => panic!("<{other}> in {html:?}"),
                }
                if name != "br" && name != "hr" {
                    open.push(name);
                }
            }
            Token::Close(name) => {
                assert_eq!(open.pop().as_ref(), Some(&name), "{html:?}");
                if name == "ul" || name == "ol" {
                    lists.pop();
                }
            }
        }
    }
    assert!(open.is_empty(), "{open:?} is open at the end of {html:?}");
    // The box takes the place of the bullet.
    seen.replace("• ☐", "☐").replace("• ☑", "☑")
}

enum Token {
    Text(String),
    Open { name: String, attribute: Option<String> },
    Close(String),
}

fn tokens(html: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut rest = html;
    while !rest.is_empty() {
        if let Some(tag) = rest.strip_prefix('<') {
            let end = tag.find('>').unwrap_or_else(|| panic!("a tag has no end in {html:?}"));
            let (inner, after) = (&tag[..end], &tag[end + 1..]);
            rest = after;
            if let Some(name) = inner.strip_prefix('/') {
                found.push(Token::Close(name.to_owned()));
                continue;
            }
            let (name, attribute) = match inner.split_once(' ') {
                Some((name, attribute)) => {
                    let value = attribute
                        .split_once("=\"")
                        .and_then(|(_, value)| value.strip_suffix('"'));
                    (
                        name,
                        Some(decoded(value.unwrap_or_else(|| panic!("{attribute:?}")), html)),
                    )
                }
                None => (inner, None),
            };
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "<{name}> in {html:?}");
            found.push(Token::Open {
                name: name.to_owned(),
                attribute,
            });
        } else {
            let end = rest.find('<').unwrap_or(rest.len());
            found.push(Token::Text(decoded(&rest[..end], html)));
            rest = &rest[end..];
        }
    }
    found
}

/// Returns the text of `escaped`, which has no other entities than these three and no bare special character.
pub(super) fn decoded(escaped: &str, whole: &str) -> String {
    let mut text = String::new();
    let mut rest = escaped;
    while let Some(c) = rest.chars().next() {
        assert!(c != '<' && c != '>', "a bare {c} in {whole:?}");
        let entity = [("&amp;", '&'), ("&lt;", '<'), ("&gt;", '>')]
            .into_iter()
            .find(|(entity, _)| rest.starts_with(entity));
        assert!(c != '&' || entity.is_some(), "a bare & in {whole:?}");
        let (length, c) = entity.map_or((c.len_utf8(), c), |(entity, c)| (entity.len(), c));
        text.push(c);
        rest = &rest[length..];
    }
    text
}
