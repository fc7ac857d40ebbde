//! Where the tooling puts the local embedding models, for tests that need one.

use std::path::{Path, PathBuf};

use super::says;

/// The folder of the model `name`; none, and a line that says so, where it was not fetched.
///
/// # Panics
/// In CI, where it is always fetched, unless `NEXUS_MODELS=absent` says that it could not be: what is not tried must not
/// look like what works.
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
