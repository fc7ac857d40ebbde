//! Sources that are made to hurt: read and rendered in time that grows with their length, without a panic.

use std::time::Duration;

use delivery_svc::markdown::{MAX_SOURCE_BYTES, TextMarkup, parse, render_parts};
use proptest::prelude::*;
use shared::clock::{Clock as _, SystemClock};

use crate::corpus::{answers, pages};
use crate::readers::{has_long_link, normal, source_text, visible_text};

/// Time that any of the texts below may take on any platform, on any machine.
const MAX_TIME: Duration = Duration::from_secs(10);

#[test]
fn time_grows_with_the_length() {
    let size = 16 * 1024;
    for fragment in [
        ">",
        "> ",
        "- ",
        "* a\n ",
        "1. ",
        "*a ",
        "**a _b ",
        "_",
        "`",
        "``` ",
        "```\n",
        "[",
        "![",
        "[a](",
        "](x)",
        "<",
        "<a ",
        "&amp;",
        "~~",
        "\\",
        "|",
        "|a|b|\n|-|-|\n",
        "a|b\n",
        "#",
        "https://a.example/_",
        "https://",
        "(https://a.b)",
        "[a](https://a.b) ",
        "**x** ",
        "`x` ",
        "***",
        "\u{a0}",
        "e\u{301}\u{302}",
        "👨‍👩‍👧",
        "a\n",
        "\n",
        "  ",
        "\t",
        "<br>",
        "x",
        "日",
        "。",
        "*x*y",
        "_a_https://b.c",
        "[x]: y\n",
        "\0",
        "\u{200b}",
    ] {
        let source = fragment.repeat(size / fragment.len());
        for markup in TextMarkup::ALL {
            let clock = SystemClock;
            let start = clock.monotonic();
            let parts = render_parts(&source, markup, markup.own_limit(), Some(17));
            let took = clock.monotonic().duration_since(start);
            assert!(took < MAX_TIME, "{fragment:?} takes {took:?} for {markup:?}");
            assert!(!parts.is_empty());
        }
    }
}

#[test]
fn deep_nesting_keeps_the_text() {
    let source = format!("{}deep\n", "> - ".repeat(3_000));
    let nested = format!("{}deep{}", "**_".repeat(3_000), "_**".repeat(3_000));
    for source in [source, nested] {
        for markup in TextMarkup::ALL {
            let parts = render_parts(&source, markup, markup.own_limit(), None);
            let seen: String = parts.iter().map(|part| visible_text(part, markup)).collect();
            assert!(seen.contains("deep"), "{markup:?}");
        }
    }
}

#[test]
fn a_link_without_a_text_shows_its_target() {
    for (source, expected) in [
        ("[` `](é)", "é"),
        ("[` `](https://é.example)", "https://é.example"),
        ("[](x.md)", "x.md"),
        ("[\n](https://a.example)", "https://a.example"),
        ("![](https://a.example/p.png)", "https://a.example/p.png"),
        (
            "[![p](https://a.example/p.png)](https://b.example)",
            "p (https://b.example)",
        ),
    ] {
        for markup in TextMarkup::ALL {
            assert_eq!(
                render_parts(source, markup, None, None)[0].plain,
                expected,
                "{markup:?}"
            );
        }
    }
}

#[test]
fn wide_tables_do_not_explode() {
    let cell = "x".repeat(2_000);
    let header = format!("|{}\n|{}\n", " a |".repeat(500), "-|".repeat(500));
    let source = format!("{header}| {cell} |\n{}", "| b |\n".repeat(5_000));
    let text: usize = parse(&source).blocks.iter().map(|block| block.text.len()).sum();
    assert!(text < 4 * source.len(), "{text} bytes of {}", source.len());
}

#[test]
fn what_is_too_large_is_plain_text() {
    let source = "**word** ".repeat(MAX_SOURCE_BYTES / 9 + 1);
    let parts = render_parts(&source, TextMarkup::Slack, None, None);
    assert_eq!(parts.len(), 1);
    assert!(parts[0].plain.starts_with("**word** **word**"));
}

#[test]
fn a_source_without_anything_to_see_is_shown_as_it_is() {
    for source in ["[a]: https://a.example", "```\n```", ">", "#"] {
        assert_eq!(render_parts(source, TextMarkup::Plain, None, None)[0].text, source);
    }
    for source in ["", " \n\t\n"] {
        let parts = render_parts(source, TextMarkup::Slack, None, None);
        assert_eq!((parts.len(), parts[0].text.as_str()), (1, ""));
    }
}

/// Real texts with bytes taken out, put in and repeated.
fn mutated() -> impl Strategy<Value = String> {
    let texts: Vec<String> = answers().into_iter().chain(pages()).collect();
    let edits = prop::collection::vec(
        (
            any::<prop::sample::Index>(),
            0_usize..40,
            "[*_`~\\[\\]()<>|#\\-\n &a]{0,4}",
        ),
        1..40,
    );
    (prop::sample::select(texts), any::<prop::sample::Index>(), edits).prop_map(|(text, from, edits)| {
        let chars: Vec<char> = text.chars().collect();
        let start = from.index(chars.len());
        let mut chars: Vec<char> = chars[start..].iter().copied().take(3_000).collect();
        for (place, length, inserted) in edits {
            let at = place.index(chars.len() + 1);
            let end = (at + length).min(chars.len());
            chars.splice(at..end, inserted.chars());
        }
        chars.into_iter().collect()
    })
}

proptest! {
    #![proptest_config(crate::corpus::config())]

    #[test]
    fn mutated_texts(source in mutated()) {
        prop_assume!(!has_long_link(&source));
        for markup in TextMarkup::ALL {
            let parts = render_parts(&source, markup, markup.own_limit(), None);
            let seen: String = parts.iter().map(|part| visible_text(part, markup)).collect();
            prop_assert_eq!(normal(&seen, markup), normal(&source_text(&source, markup), markup));
        }
    }

    #[test]
    fn any_characters(source in "\\PC{0,400}") {
        for markup in TextMarkup::ALL {
            let parts = render_parts(&source, markup, markup.own_limit(), None);
            let seen: String = parts.iter().map(|part| visible_text(part, markup)).collect();
            prop_assert_eq!(normal(&seen, markup), normal(&source_text(&source, markup), markup));
        }
    }
}
