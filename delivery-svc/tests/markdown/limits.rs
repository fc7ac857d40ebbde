//! Each limit in its own unit: one below, at it, one above. And what is done to keep within it.

use delivery_svc::chunk::{ChunkLimit, LengthUnit};
use delivery_svc::markdown::{RenderedPart, TextMarkup, discord, render_parts, signal, slack, telegram, whatsapp};

use crate::readers::visible_text;

/// Returns words of the character `c` that are `length` of them long together.
fn words(c: char, length: usize) -> String {
    (0..length)
        .map(|at| if at % 8 == 7 { ' ' } else { c })
        .collect::<String>()
        .trim_end()
        .to_owned()
}

#[track_caller]
fn check_limit(markup: TextMarkup, limit: ChunkLimit, c: char, units: usize) {
    let length = limit.max / units;
    for (length, expected) in [(length - 1, 1), (length, 1), (length + 1, 2)] {
        let text = c.to_string().repeat(length);
        let parts = render_parts(&text, markup, Some(limit), None);
        assert_eq!(parts.len(), expected, "{markup:?}: {length} of {c:?}");
        let seen: String = parts
            .iter()
            .map(|part| visible_text(part, markup).trim_end().to_owned())
            .collect();
        assert_eq!(seen, text);
    }
}

#[test]
fn limits_in_their_own_unit() {
    // An emoji has one character, two UTF-16 units, four bytes.
    check_limit(TextMarkup::TelegramHtml, telegram::MESSAGE, 'x', 1);
    check_limit(TextMarkup::TelegramHtml, telegram::MESSAGE, '😀', 2);
    check_limit(TextMarkup::TelegramHtml, telegram::CAPTION, '😀', 2);
    check_limit(TextMarkup::Slack, slack::MESSAGE, '😀', 1);
    check_limit(TextMarkup::Discord, discord::MESSAGE, '😀', 1);
    check_limit(TextMarkup::Whatsapp, whatsapp::MESSAGE, '😀', 1);
    check_limit(TextMarkup::Signal, signal::MESSAGE, 'x', 1);
    check_limit(TextMarkup::Signal, signal::MESSAGE, '😀', 4);
}

#[test]
fn what_is_written_counts_and_for_telegram_what_is_seen() {
    // Each `<` is four characters for Slack, two for Discord, one for Telegram.
    check_limit(TextMarkup::Slack, slack::MESSAGE, '<', 4);
    check_limit(TextMarkup::Discord, discord::MESSAGE, '|', 2);
    check_limit(TextMarkup::TelegramHtml, telegram::MESSAGE, '<', 1);

    // Marks and the URL of a link count where they are written.
    let bold = format!("**{}**", words('x', 4_094));
    assert_eq!(
        render_parts(&bold, TextMarkup::TelegramHtml, Some(telegram::MESSAGE), None).len(),
        1
    );
    for (length, expected) in [(1_995, 1), (1_996, 1), (1_997, 2)] {
        let bold = format!("**{}**", "x".repeat(length));
        let parts = render_parts(&bold, TextMarkup::Discord, Some(discord::MESSAGE), None);
        assert_eq!(parts.len(), expected, "{length}");
    }
}

#[test]
fn lines_are_counted() {
    for (lines, expected) in [(16, 1), (17, 1), (18, 2)] {
        let text = vec!["line"; lines].join("\n");
        let parts = render_parts(&text, TextMarkup::Discord, Some(discord::MESSAGE), Some(17));
        assert_eq!(parts.len(), expected, "{lines}");
    }

    // The lines of the fence are lines.
    for (lines, expected) in [(15, 1), (16, 2)] {
        let text = format!("```\n{}\n```", vec!["line"; lines].join("\n"));
        let parts = render_parts(&text, TextMarkup::Discord, Some(discord::MESSAGE), Some(17));
        assert_eq!(parts.len(), expected, "{lines} of code");
    }
}

fn render(source: &str, markup: TextMarkup, max: usize) -> Vec<RenderedPart> {
    let unit = LengthUnit::Characters;
    render_parts(source, markup, Some(ChunkLimit { max, unit }), None)
}

fn texts(source: &str, markup: TextMarkup, max: usize) -> Vec<String> {
    render(source, markup, max).into_iter().map(|part| part.text).collect()
}

#[test]
fn code_is_closed_and_opened_again_with_its_language() {
    let code: String = (1..=8).map(|line| format!("    let line_{line} = {line};\n")).collect();
    let source = format!("Look:\n\n```rust\n{code}```\n\nDone.");
    assert_eq!(
        texts(&source, TextMarkup::Discord, 110),
        [
            "Look:\n\n```rust\n    let line_1 = 1;\n    let line_2 = 2;\n    let line_3 = 3;\n    let line_4 = 4;\n```",
            "```rust\n    let line_5 = 5;\n    let line_6 = 6;\n    let line_7 = 7;\n    let line_8 = 8;\n```\n\nDone.",
        ]
    );
    assert_eq!(
        texts(&source, TextMarkup::TelegramHtml, 100)[1],
        "<pre><code class=\"language-rust\">    let line_5 = 5;\n    let line_6 = 6;\n    let line_7 = 7;\n    let line_8 = \
         8;</code></pre>\n\nDone."
    );
}

#[test]
fn numbers_go_on_and_styles_are_opened_again() {
    let items: String = (7..12)
        .map(|n| format!("{n}. **{}**\n", "word ".repeat(8).trim_end()))
        .collect();
    let parts = texts(&items, TextMarkup::Discord, 120);
    assert_eq!(
        parts,
        [
            "7. **word word word word word word word word**\n8. **word word word word word word word word**",
            "9. **word word word word word word word word**\n10. **word word word word word word word word**",
            "11. **word word word word word word word word**",
        ]
    );

    let long = format!("3. **{}**", "word ".repeat(40).trim_end());
    for part in texts(&long, TextMarkup::Slack, 100) {
        assert!(
            part.trim_start_matches("3. ").trim_start().starts_with('*') && part.ends_with('*'),
            "{part}"
        );
    }
}

#[test]
fn quotes_go_on() {
    let source = format!("> {}", "said ".repeat(50));
    for part in texts(&source, TextMarkup::Discord, 100) {
        assert!(part.starts_with("> said"), "{part}");
    }
    for part in texts(&source, TextMarkup::TelegramHtml, 100) {
        assert!(
            part.starts_with("<blockquote>said") && part.ends_with("said</blockquote>"),
            "{part}"
        );
    }
}

#[test]
fn blocks_are_better_ends_than_lines_lines_than_sentences_and_sentences_than_words() {
    let filler = "word ".repeat(9);
    let ends = |source: &str| {
        let parts = render(source, TextMarkup::Plain, 100);
        parts[0]
            .text
            .chars()
            .rev()
            .take(5)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .collect::<String>()
    };
    assert_eq!(
        ends(&format!("a block\n\n{filler}end.\n\n{filler}\n{filler}. {filler}")),
        " end."
    );
    assert_eq!(ends(&format!("{filler}Sentence. And\nline {filler}{filler}")), ". And");
    assert_eq!(ends(&format!("{filler}Sentence. {filler}{filler}")), "ence.");
    assert_eq!(ends(&filler.repeat(4)), " word");
}

#[test]
fn a_heading_stays_with_what_follows() {
    let source = format!("{}\n\n## Heading\n\n{}", "word ".repeat(14), "text ".repeat(10));
    assert_eq!(
        render(&source, TextMarkup::Plain, 100)[1].text.lines().next(),
        Some("Heading")
    );
}

#[test]
fn a_link_longer_than_a_part_becomes_its_text_and_its_url() {
    let url = format!("https://a.example/{}", "path/".repeat(60));
    for markup in [TextMarkup::Slack, TextMarkup::Discord, TextMarkup::TelegramHtml] {
        let parts = render(&format!("See [the page]({url}) now."), markup, 120);
        let plain: String = parts.iter().map(|part| part.plain.as_str()).collect();
        assert!(parts.len() > 2, "{markup:?}");
        assert_eq!(plain.replace(' ', ""), format!("Seethepage({url})now."), "{markup:?}");
        let whole = render(&format!("See [the page]({url}) now."), markup, 1_900);
        assert_eq!(whole.len(), 1, "{markup:?}");
        assert!(
            whole[0].text.contains(&url) && !whole[0].text.contains("page ("),
            "{markup:?}"
        );
    }
}

#[test]
fn what_is_too_small_for_markup_is_made_larger() {
    let parts = render(&"**x** y ".repeat(20), TextMarkup::Slack, 1);
    assert_eq!(parts.len(), 2);
}
