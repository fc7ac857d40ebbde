//! The token by which this machine's own command line posts events: a file that only its owner can read.
//!
//! adapter-svc reads the same file (`adapter.http.local_token`). The token is valid for the channels `cli` and `http`
//! and speaks for no person.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::keys::{ensure_secret, random_text, write_secret};

/// Name of the token's file below the data directory.
pub const FILE: &str = "local-token";

/// Returns the path of the token below the data directory `data`.
#[must_use]
pub fn file(data: &Path) -> PathBuf {
    data.join(FILE)
}

/// Makes a random token at `path`.
fn make(path: &Path) -> std::io::Result<()> {
    write_secret(path, &format!("p{}", random_text()))
}

/// Makes the token at `path` if there is none, and returns it.
///
/// # Errors
/// Fails if the file cannot be written or read.
pub fn ensure(path: &Path) -> Result<String> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("failed to create {}", directory.display()))?;
    }
    ensure_secret(path, make).with_context(|| format!("failed to create the token {}", path.display()))?;
    read(path)
}

/// Returns the token at `path`.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn read(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| {
        format!(
            "failed to read the token {}; run `nexus init` to create it, or name another file with --token-file",
            path.display()
        )
    })?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_token_is_made_once_and_read_by_its_owner_alone() {
        let data = tempfile::tempdir().expect("a directory");
        let path = file(&data.path().join(".nexus"));
        let made = ensure(&path).expect("a token");
        assert!(made.len() >= 32, "{made}");
        assert_eq!(ensure(&path).expect("a token"), made, "kept");
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(&path, "").expect("written");
        assert_ne!(ensure(&path).expect("a token"), "", "what was cut off is made again");
    }
}
