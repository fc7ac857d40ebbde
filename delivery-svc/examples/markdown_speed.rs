//! How long the plan of a reply takes (read, rendered, cut), for each form of text. In release mode:
//! `cargo run --release -p delivery-svc --example markdown_speed`.

use std::time::Duration;

use delivery_svc::markdown::{TextMarkup, render_parts};
use shared::clock::{Clock as _, SystemClock};

/// Size of each text, in bytes.
const SIZE: usize = 10 * 1024;

/// Number of times that each text is rendered.
const TIMES: usize = 300;

fn main() {
    let texts = [
        ("rich", include_str!("../tests/markdown/rich.md")),
        (
            "prose",
            "The quick brown fox jumps over the **lazy dog**, and again; see `code`. ",
        ),
        ("code", "```rust\nfn main() { println!(\"<{}>\", 1 & 2); }\n```\n\n"),
        (
            "links",
            "See [the page](https://a.example/p?a=1&b=2) and https://b.example/x_(y)_z. ",
        ),
        ("list", "1. **Step**: check `item` and _note_ it.\n   - done\n"),
        (
            "Japanese",
            "日本語の文章です。とても長い文章になります、しかし空白はありません。",
        ),
        ("one word", "x"),
        ("emoji", "👨‍👩‍👧‍👦"),
    ];

    println!(
        "{:10} {}",
        "median µs",
        TextMarkup::ALL.map(|markup| format!("{markup:>14?}")).concat()
    );
    for (name, text) in texts {
        let source = text.repeat(SIZE.div_ceil(text.len()));
        let cells = TextMarkup::ALL.map(|markup| format!("{:>14}", median(&source, markup).as_micros()));
        println!("{name:10} {}", cells.concat());
    }
}

fn median(source: &str, markup: TextMarkup) -> Duration {
    let clock = SystemClock;
    let mut times: Vec<Duration> = (0..TIMES)
        .map(|_| {
            let start = clock.monotonic();
            std::hint::black_box(render_parts(source, markup, markup.own_limit(), None));
            clock.monotonic().duration_since(start)
        })
        .collect();
    times.sort_unstable();
    times[TIMES / 2]
}
