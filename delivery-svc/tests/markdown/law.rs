//! The law: what is seen of all parts is what is seen of the source.

use delivery_svc::chunk::{ChunkLimit, LengthUnit};
use delivery_svc::markdown::document::RULE;
use delivery_svc::markdown::{LEAST_SIZE, RenderedPart, TextMarkup, parse, render_parts};
use proptest::prelude::*;
use pulldown_cmark::{Event, Options, Parser, Tag};
use unicode_segmentation::UnicodeSegmentation;

use crate::corpus::{answers, any_markdown, pages};
use crate::readers::{normal, source_text, visible_text};

const UNITS: [LengthUnit; 3] = [LengthUnit::Bytes, LengthUnit::Characters, LengthUnit::Utf16];

/// Renders `source` and checks everything that holds of its parts; returns them.
#[track_caller]
fn check(source: &str, markup: TextMarkup, limit: Option<ChunkLimit>, lines: Option<usize>) -> Vec<RenderedPart> {
    let parts = render_parts(source, markup, limit, lines);
    let told = format!("{markup:?} {limit:?} {lines:?} of {source:?}");

    let mut seen = String::new();
    let mut plain = String::new();
    for part in &parts {
        let shown = visible_text(part, markup);
        if let Some(limit) = limit.filter(|_| markup != TextMarkup::EmailHtml) {
            // Telegram counts what is left when the markup is taken out.
            let counted = if markup == TextMarkup::TelegramHtml {
                &shown
            } else {
                &part.text
            };
            assert!(
                limit.unit.count(counted) <= limit.max,
                "{counted:?} is too long in {told}"
            );
            assert!(
                limit.unit.count(&part.plain) <= limit.max,
                "{:?} is too long in {told}",
                part.plain
            );
        }
        if let Some(lines) = lines.filter(|_| markup != TextMarkup::EmailHtml) {
            assert!(
                part.text.matches('\n').count() < lines,
                "{:?} has too many lines in {told}",
                part.text
            );
        }
        assert!(
            parts.len() == 1 || !part.text.trim().is_empty(),
            "a blank part in {told}"
        );
        seen.push_str(&shown);
        seen.push('\n');
        plain.push_str(&part.plain);
        plain.push('\n');
    }

    assert_eq!(
        normal(&seen, markup),
        normal(&source_text(source, markup), markup),
        "{told}"
    );
    check_plain(source, markup, &plain, &told);
    parts
}

/// The plain form of the parts shows the same text, with the URLs of links.
#[track_caller]
fn check_plain(source: &str, markup: TextMarkup, plain: &str, told: &str) {
    let expected = normal(&source_text(source, TextMarkup::Signal), TextMarkup::Signal);
    // The sign of a bullet is the platform's.
    let unified = |text: &str| text.replace(['•', '-'], "");
    assert_eq!(
        unified(&normal(plain, TextMarkup::Signal)),
        unified(&expected),
        "plain form of {markup:?}: {told}"
    );
}

#[test]
fn answers_within_the_platforms_own_limits() {
    for source in answers() {
        for markup in TextMarkup::ALL {
            check(&source, markup, markup.own_limit(), None);
        }
        check(&source, TextMarkup::Discord, TextMarkup::Discord.own_limit(), Some(17));
    }
}

#[test]
fn pages_within_the_platforms_own_limits() {
    for source in pages() {
        for markup in TextMarkup::ALL {
            check(&source, markup, markup.own_limit(), None);
        }
        check(&source, TextMarkup::Discord, TextMarkup::Discord.own_limit(), Some(17));
    }
}

#[test]
fn no_grapheme_is_split() {
    for source in answers() {
        for markup in TextMarkup::ALL {
            let unsplit = parse(&source)
                .blocks
                .iter()
                .map(|block| block.text.graphemes(true).count())
                .sum::<usize>();
            let parts = render_parts(&source, TextMarkup::Plain, markup.own_limit(), None);
            let whole = render_parts(&source, TextMarkup::Plain, None, None);
            let count = |parts: &[RenderedPart]| -> usize {
                let texts = parts
                    .iter()
                    .map(|part| part.plain.split_whitespace().collect::<Vec<_>>().join(" "));
                texts
                    .map(|text| {
                        text.graphemes(true)
                            .filter(|g| !g.trim().is_empty() && *g != ">")
                            .count()
                    })
                    .sum()
            };
            assert_eq!(
                count(&parts),
                count(&whole),
                "{markup:?}: {unsplit} graphemes of {source:?}"
            );
        }
    }
}

#[test]
fn words_stay_whole_where_they_fit() {
    let source = answers().swap_remove(2);
    for markup in TextMarkup::ALL {
        let parts = render_parts(&source, markup, markup.own_limit(), None);
        let seen: Vec<String> = parts.iter().map(|part| visible_text(part, markup)).collect();
        let seen: Vec<&str> = seen.iter().flat_map(|text| text.split_whitespace()).collect();
        assert_eq!(seen, source.split_whitespace().collect::<Vec<_>>(), "{markup:?}");
    }
}

#[test]
fn links_stay_whole() {
    let source = answers().swap_remove(9);
    for (markup, link) in [
        (TextMarkup::Slack, "<https://a.example/p?a=1&amp;b=2|the page>"),
        (TextMarkup::Discord, "[the page](https://a.example/p?a=1&b=2)"),
        (
            TextMarkup::TelegramHtml,
            "<a href=\"https://a.example/p?a=1&amp;b=2\">the page</a>",
        ),
        (TextMarkup::Whatsapp, "(https://a.example/p?a=1&b=2)"),
        (TextMarkup::Signal, "https://b.example/x_(y)_z"),
        (TextMarkup::Plain, "https://b.example/x_(y)_z"),
    ] {
        for max in [150, 151, 199, 256, 400] {
            let limit = ChunkLimit {
                max,
                unit: LengthUnit::Characters,
            };
            let parts = check(&source, markup, Some(limit), None);
            let found: usize = parts.iter().map(|part| part.text.matches(link).count()).sum();
            assert_eq!(found, 80, "{markup:?} {max}");
        }
    }
}

/// Returns the text of the events of `source`, or `None` if it has tables or links, which are shown in another way.
fn text_of_events(source: &str) -> Option<String> {
    let options = Options::ENABLE_TABLES | Options::ENABLE_TASKLISTS | Options::ENABLE_STRIKETHROUGH;
    let mut text = String::new();
    for event in Parser::new_ext(source, options) {
        match event {
            Event::Start(Tag::Table(_) | Tag::Link { .. } | Tag::Image { .. }) => return None,
            Event::InlineHtml(html) if &*html == "<br>" => {}
            Event::Text(told) | Event::Code(told) | Event::Html(told) | Event::InlineHtml(told) => text.push_str(&told),
            Event::Rule => text.push_str(RULE),
            Event::Start(_)
            | Event::End(_)
            | Event::InlineMath(_)
            | Event::DisplayMath(_)
            | Event::FootnoteReference(_)
            | Event::SoftBreak
            | Event::HardBreak
            | Event::TaskListMarker(_) => {}
        }
    }
    Some(text).filter(|text| !text.trim().is_empty())
}

proptest! {
    #![proptest_config(crate::corpus::config())]

    #[test]
    fn any_markdown_within_the_platforms_own_limits(source in any_markdown()) {
        for markup in TextMarkup::ALL {
            check(&source, markup, markup.own_limit(), None);
        }
    }

    #[test]
    fn any_markdown_within_small_limits(source in any_markdown(), max in LEAST_SIZE..260, lines in 5_usize..12) {
        // Links of some length lose their markup in parts as small as these.
        let source = source.replace("[a b](https://e.example/x)", "[a](http://e.x)").replace("![p](https://e.example/p.png)", "x");
        for markup in TextMarkup::ALL {
            for unit in UNITS {
                let limit = Some(ChunkLimit { max, unit });
                check(&source, markup, limit, None);
                check(&source, markup, limit, Some(lines));
            }
        }
    }

    #[test]
    fn no_part_begins_within_a_grapheme(source in any_markdown(), max in LEAST_SIZE..160) {
        for markup in TextMarkup::ALL {
            for unit in UNITS {
                for part in render_parts(&source, markup, Some(ChunkLimit { max, unit }), None) {
                    // What belongs to the character before it joins any.
                    let joined = format!("a{}", part.plain);
                    prop_assert_eq!(joined.graphemes(true).next(), Some("a"), "{:?} of {:?}", part.plain, source);
                }
            }
        }
    }

    #[test]
    fn the_document_has_all_text_of_the_source(source in any_markdown()) {
        // Emphasis in a URL is none.
        let source = source.replace("://", "");
        if let Some(expected) = text_of_events(&source) {
            let blocks: String = parse(&source).blocks.iter().map(|block| block.text.as_str()).collect();
            prop_assert_eq!(normal(&blocks, TextMarkup::Slack), normal(&expected, TextMarkup::Slack), "{}", source);
        }
    }

    #[test]
    fn plain_text_within_any_limit(source in any_markdown(), max in 1_usize..40) {
        for unit in UNITS {
            let limit = ChunkLimit { max, unit };
            let parts = render_parts(&source, TextMarkup::Plain, Some(limit), None);
            for part in &parts {
                let is_single = part.text.chars().count() == 1;
                prop_assert!(unit.count(&part.text) <= max || is_single, "{:?} > {max}", part.text);
            }
            let seen: String = parts.iter().map(|part| part.text.as_str()).collect();
            prop_assert_eq!(
                normal(&seen, TextMarkup::Plain),
                normal(&source_text(&source, TextMarkup::Plain), TextMarkup::Plain)
            );
        }
    }
}
