//! The page's Markdown, hostile and not, in the Bun that hooks run in.

use std::path::Path;

use tokio::process::Command;

#[tokio::test]
async fn the_pages_markdown_is_read_safely_and_as_it_is_meant() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let bun = root.join("../.tools/bin/bun");
    let tests = root.join("tests/gateway/markdown.test.js");

    let ran = Command::new(&bun)
        .arg("test")
        // The test bounds each text itself; a busy machine takes longer for all of them together.
        .args(["--timeout", "60000"])
        .arg(&tests)
        .output()
        .await
        .unwrap_or_else(|error| panic!("{}: {error}", bun.display()));

    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}
