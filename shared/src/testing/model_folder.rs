//! Folder of the local embedding models, for tests that need one of them.

use std::path::{Path, PathBuf};

use super::says;

/// Returns the folder of the model `name`. Returns `None`, and prints a line about it, if it was not fetched.
///
/// # Panics
/// Panics in CI, which always fetches it, unless `NEXUS_MODELS=absent` states that it could not be fetched: a test
/// that was skipped must not look like one that passed.
#[must_use]
pub fn model_folder(name: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../.tools/models")
        .join(name);
    if folder.is_dir() {
        return Some(folder);
    }

    assert!(
        !says("CI", "true") || says("NEXUS_MODELS", "absent"),
        "{} is missing: `deploy/fetch-tools {name}` brings it; NEXUS_MODELS=absent leaves this out",
        folder.display()
    );

    println!("SKIPPED: no model in {}", folder.display());
    None
}
