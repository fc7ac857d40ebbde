//! `nexus backup` and `nexus restore`: every stream and bucket as the server's own snapshot, in an order that loses
//! nothing while work goes on.

mod held;
mod later;
pub mod manifest;
mod order;
pub(crate) mod quiesce;
mod restore;
mod rotation;
mod take;

pub use restore::execute as restore;
pub use take::execute as take;

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

/// Number of bytes that are hashed at once.
const BUFFER: usize = 256 * 1024;

/// Returns the SHA-256 of the file at `path`, in hexadecimal, and its size in bytes.
fn checksum(path: &Path) -> Result<(String, u64)> {
    let mut file = std::fs::File::open(path).with_context(|| format!("failed to open {}", path.display()))?;
    let (mut hash, mut bytes, mut buffer) = (Sha256::new(), 0_u64, vec![0; BUFFER]);
    loop {
        let count = file
            .read(&mut buffer)
            .with_context(|| format!("failed to read {}", path.display()))?;
        if count == 0 {
            return Ok((hex::encode(hash.finalize()), bytes));
        }
        hash.update(&buffer[..count]);
        bytes += count as u64;
    }
}
