//! Secrets of a stack, each made once in a file that only its owner can read. The first of them is the cluster's key.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use shared::clock::{IdSource as _, SystemIds};
use shared::wire::seal::MIN_KEY_BYTES;

/// Name of the key's file, in the directory of the configuration or below the data directory.
pub const CLUSTER_KEY: &str = "cluster.key";

/// Makes the cluster's key in `directory` unless it exists. Returns its path.
///
/// # Errors
/// Fails if the file cannot be written, or no random bytes can be read.
pub fn cluster_key(directory: &Path) -> Result<PathBuf> {
    let path = directory.join(CLUSTER_KEY);
    ensure_secret(&path, make).with_context(|| format!("failed to create the cluster key {}", path.display()))?;
    Ok(path)
}

/// Makes the secret at `path` with `make` unless it exists.
pub(crate) fn ensure_secret(path: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> std::io::Result<()> {
    // An empty file was cut off while it was being made; no process has ever started with it.
    if std::fs::metadata(path).map_or(true, |found| found.len() == 0) {
        make(path)?;
    }
    Ok(())
}

fn make(path: &Path) -> std::io::Result<()> {
    let random: [u8; MIN_KEY_BYTES] = random_bytes()?;
    write_secret(path, &format!("{}\n", data_encoding::HEXLOWER.encode(&random)))
}

/// Returns random bytes of the kernel.
pub(crate) fn random_bytes<const COUNT: usize>() -> std::io::Result<[u8; COUNT]> {
    let mut random = [0_u8; COUNT];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    Ok(random)
}

/// Returns a random text of letters and digits: two ULIDs, which have 160 random bits together.
#[must_use]
pub fn random_text() -> String {
    format!("{}{}", SystemIds.ulid(), SystemIds.ulid())
}

/// Writes `secret` to `path`. No other user can read the file from its first byte on, and the file is there whole or
/// not at all.
pub(crate) fn write_secret(path: &Path, secret: &str) -> std::io::Result<()> {
    let unfinished = path.with_extension("new");
    match std::fs::remove_file(&unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        // A file that was left behind may have been made with other rights.
        Ok(()) | Err(_) => {}
    }

    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&unfinished)?;
    file.write_all(secret.as_bytes())?;
    file.sync_all()?;

    std::fs::rename(&unfinished, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use shared::wire::seal::SealKey;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_read_by_its_owner_alone() {
        let (one, other) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("another"));
        std::fs::write(one.path().join(CLUSTER_KEY), "").expect("one that was cut off");
        let read = |directory: &Path| std::fs::read_to_string(cluster_key(directory).expect("made")).expect("read");
        let key = read(one.path());

        assert!(SealKey::parse(&key).is_ok());
        assert_eq!(read(one.path()), key, "kept");
        assert_ne!(read(other.path()), key);

        let mode = std::fs::metadata(one.path().join(CLUSTER_KEY))
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
