//! What a reader of the source and of the pages can check: the invariants of ARCHITECTURE.md, and that what is said of
//! the repository is there.

#[path = "tidy/base_commit.rs"]
mod base_commit;
#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/citations.rs"]
mod citations;
#[path = "tidy/crates.rs"]
mod crates;
#[path = "tidy/error_texts.rs"]
mod error_texts;
#[path = "tidy/files.rs"]
mod files;
#[path = "tidy/map.rs"]
mod map;
#[path = "tidy/metrics.rs"]
mod metrics;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/pages.rs"]
mod pages;
#[path = "tidy/source.rs"]
mod source;

use std::fmt::Write as _;

/// Crates that run as processes of their own, and therefore share nothing but `shared`.
const SERVICES: [&str; 5] = ["adapter-svc", "hook-svc", "broker-svc", "delivery-svc", "scheduler-svc"];
/// Fails with every fault at once.
fn check(rule: &str, faults: impl IntoIterator<Item = String>) {
    let mut listing = String::new();
    for fault in faults {
        write!(listing, "\n  {fault}").expect("write to a string");
    }
    assert!(listing.is_empty(), "{rule}:{listing}");
}
