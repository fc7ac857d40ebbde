//! The time that the plan of a long answer takes. `examples/markdown_speed.rs` measures it; this is the bound.

use std::time::Duration;

use delivery_svc::markdown::{TextMarkup, render_parts};
use shared::clock::{Clock as _, SystemClock};

/// Size of an answer, in bytes.
const SIZE: usize = 10 * 1024;

/// Longest time for it: the bound of a release build, and far more for one that is not optimised.
const MOST: Duration = Duration::from_millis(if cfg!(debug_assertions) { 150 } else { 1 });

/// Number of times that each is rendered. The quickest counts: the machine does other things beside it.
const TIMES: usize = 4;

#[test]
fn an_answer_of_ten_kilobytes_is_written_and_cut_in_a_millisecond_on_every_platform() {
    let texts = [
        include_str!("rich.md"),
        "See [the page](https://a.example/p?a=1&b=2) and https://b.example/x_(y)_z. ",
        "1. **Step**: check `item` and _note_ it.\n   - done\n",
    ];
    let clock = SystemClock;
    for text in texts {
        let source = text.repeat(SIZE.div_ceil(text.len()));
        for markup in TextMarkup::ALL {
            let times = (0..TIMES).map(|_| {
                let start = clock.monotonic();
                std::hint::black_box(render_parts(&source, markup, markup.own_limit(), None));
                clock.monotonic().duration_since(start)
            });
            let took = times.min().expect("a time");
            assert!(took <= MOST, "{markup:?} takes {took:?}: {}", &text[..40]);
        }
    }
}
