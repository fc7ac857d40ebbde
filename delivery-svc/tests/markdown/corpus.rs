//! Texts as models and people write them, and a generator of others.

use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// One answer with everything in it.
pub(crate) const RICH: &str = include_str!("rich.md");

/// Answers as models write them.
pub(crate) fn answers() -> Vec<String> {
    let words = "The quick brown fox jumps over the lazy dog, again and again. ".repeat(90);
    let code = (0..220).map(|n| format!("    let value_{n} = compute(\"<{n}>\") && a[{n}] * b; // ``` & {n}\n"));
    let numbered: String = (1..=120)
        .map(|n| format!("{n}. Step **{n}** of the plan: _check_ `item_{n}`.\n"))
        .collect();
    let quoted = "> It was said, *and said again*, that <this> & `that` hold.\n".repeat(80);
    let table: String = (0..60).map(|n| format!("| row {n} | **{n}** | 日本 {n} |\n")).collect();
    vec![
        RICH.to_owned(),
        RICH.repeat(9),
        words,
        format!(
            "Here it is:\n\n```rust\nfn main() {{\n{}}}\n```\n\nThat is all.",
            code.collect::<String>()
        ),
        numbered,
        quoted,
        format!("| Name | Count | Place |\n|:--|--:|:-:|\n{table}"),
        "日本語の文章です。とても長い文章になります、しかし空白はありません。「引用」もあります！".repeat(120),
        "👨‍👩‍👧‍👦 e\u{301} 🇩🇪🇫🇷 नमस्ते ".repeat(300),
        "See [the page](https://a.example/p?a=1&b=2) and https://b.example/x_(y)_z, (http://c.example). ".repeat(80),
        "***both** it* and **bold *nested* ~~struck `code` x~~ bold** `a*b` 2*3*4 snake_case \\*lit\\* ".repeat(90),
        "- a\n  - b\n    1. c\n       > d\n       >\n       > ```\n       > e\n       > ```\n    2. f\n\n      g\n"
            .repeat(60),
        format!(
            "# {}\n\n## Second\n\ntext\n",
            "A long heading with *style* ".repeat(100)
        ),
        "x".repeat(9_000),
        format!("**{}**", "unbroken*".repeat(1_000)),
        "line one  \nline two<br>line three\n\n<div>html</div>\n\n***\n\n    indented\n".repeat(90),
        "- [ ] open task with words\n- [x] done task with *words*\n".repeat(90),
        "> # said\n> 1. one\n> 2. two\n>    - deep\n\nback\n\n".repeat(70),
        "a * b * c ** d _ e __ f ~ g ` h > i < j & k | l # m - n + o = p @everyone <!here> <@U1> <#C1>\n\n".repeat(60),
    ]
}

/// The pages of the repository.
pub(crate) fn pages() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut found = Vec::new();
    for folder in [".", "docs", "docs/design", "docs/contribute", "docs/adr"] {
        for entry in std::fs::read_dir(root.join(folder)).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "md") {
                found.push(std::fs::read_to_string(path).expect("a page"));
            }
        }
    }
    assert!(found.len() > 30, "{} pages", found.len());
    found
}

/// Any Markdown: fragments of markup in any order, well-formed or not.
pub(crate) fn any_markdown() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        6 => "[a-z]{1,9}",
        6 => Just(" ".to_owned()),
        3 => Just("\n".to_owned()),
        3 => Just("\n\n".to_owned()),
        2 => prop::sample::select(vec!["**", "*", "_", "__", "~~", "`", "``", "***", "\\", "|", "<", ">", "&", "#", "[", "]", "("]).prop_map(str::to_owned),
        2 => prop::sample::select(vec!["\n- ", "\n1. ", "\n7) ", "\n> ", "\n## ", "\n   ", "\n    ", "\n- [ ] ", "\n---\n", "\n> - "]).prop_map(str::to_owned),
        1 => prop::sample::select(vec!["\n```rust\n", "\n```\n", "\n~~~\n", "```", "\n| a | b |\n|--|--|\n| c | d |\n"]).prop_map(str::to_owned),
        1 => prop::sample::select(vec!["[a b](https://e.example/x)", "https://e.example/_a_", "<https://e.example>", "![p](https://e.example/p.png)", "[r](docs/x.md)", "@everyone", "<@U1>", "<!channel>", "<br>", "&amp;"]).prop_map(str::to_owned),
        2 => prop::sample::select(vec!["👨‍👩‍👧", "e\u{301}", "日本", "。", "🇩🇪", "\u{a0}", "«é»", "İ", "x \u{301}y", "。\u{200d}a", "x\u{a0}\u{301}"]).prop_map(str::to_owned),
        2 => "(\\*\\*|_|~~|`)[a-z]{1,5}(\\*\\*|_|~~|`)",
        1 => "[a-z&<>*_`]{30,90}",
    ];
    prop::collection::vec(fragment, 0..120).prop_map(|fragments| fragments.concat())
}

/// Returns the configuration of the properties: the same texts in each run, and others if `PROPTEST_CASES` asks for a
/// long one.
#[expect(clippy::disallowed_methods, reason = "a long run is asked for by the environment")]
pub(crate) fn config() -> ProptestConfig {
    let is_long = std::env::var_os("PROPTEST_CASES").is_some();
    ProptestConfig {
        rng_seed: if is_long {
            RngSeed::Random
        } else {
            RngSeed::Fixed(20_261_126)
        },
        ..ProptestConfig::default()
    }
}
