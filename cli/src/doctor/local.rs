//! Checks of this machine: programs, room on the disk, and access that the configuration gives to strangers.

use std::path::{Path, PathBuf};
use std::process::Command;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;

use super::{Finding, Surroundings};
use crate::launch::programs::{BUN_MINIMUM, NATS_MINIMUM, tool};

/// Free space below which a disk is reported as nearly full, in MiB.
const LITTLE_MIB: u64 = 2_048;
/// Free space below which work will stop soon, in MiB.
const TOO_LITTLE_MIB: u64 = 256;

/// Checks the programs that `nexus up` starts.
pub(super) fn programs(_: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    let found =
        [("nats-server", NATS_MINIMUM), ("bun", BUN_MINIMUM)].map(|(name, minimum)| match tool(name, minimum) {
            Ok(path) => Finding::ok(name, path.display().to_string()),
            Err(error) => Finding::fault(name, error.to_string()),
        });
    async { found.into() }.boxed_local()
}

/// Returns the data directory of the `nexus up` that the configuration belongs to, or the working directory if it
/// belongs to none.
pub(super) fn data_directory(surroundings: &Surroundings) -> PathBuf {
    let beside = Path::new(surroundings.document.source()).parent();
    // The parent of a bare name is empty, and means the working directory.
    let beside = beside.map(|directory| {
        if directory.as_os_str().is_empty() {
            Path::new(".")
        } else {
            directory
        }
    });

    let beside = beside.filter(|directory| directory.join("run").is_dir());
    let here = Some(Path::new(".nexus")).filter(|directory| directory.is_dir());

    beside.or(here).unwrap_or(Path::new(".")).to_owned()
}

/// Checks the free space on the disk of the data directory.
pub(super) fn disk(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    let directory = data_directory(surroundings);
    let finding = match free_mib(&directory) {
        Some(free) => {
            let detail = format!("{free} MiB free where {} is", directory.display());
            match free {
                0..TOO_LITTLE_MIB => Finding::fault("disk", format!("{detail}: work stops when it is full")),
                TOO_LITTLE_MIB..LITTLE_MIB => Finding::warning("disk", detail),
                LITTLE_MIB.. => Finding::ok("disk", detail),
            }
        }
        None => Finding::unknown("disk", format!("`df` does not tell about {}", directory.display())),
    };

    async { vec![finding] }.boxed_local()
}

/// Returns the free space below `directory` in MiB, as `df` reports it.
fn free_mib(directory: &Path) -> Option<u64> {
    let output = Command::new("df").arg("-Pk").arg(directory).output().ok()?;
    available_kib(&String::from_utf8_lossy(&output.stdout)).map(|kib| kib / 1_024)
}

/// Returns the fourth column of the last line of `df -Pk`, in KiB.
fn available_kib(text: &str) -> Option<u64> {
    text.lines().last()?.split_whitespace().nth(3)?.parse().ok()
}

/// Checks the access that the configuration gives to strangers.
pub(super) fn access(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    let document = &surroundings.document;
    let adapter = document.value("adapter");
    let hooks = document.value("hooks");
    let mut open = Vec::new();

    let setting = adapter.get("http").and_then(|http| http.get("open"));
    if setting.and_then(toml::Value::as_bool) == Some(true) {
        open.push("adapter.http.open: every local process may post events without a token".to_owned());
    }

    if hooks.get("dm_scope").and_then(toml::Value::as_str) == Some("main") {
        open.push("hooks.dm_scope = \"main\": all strangers share the owner's session".to_owned());
    }

    if hooks.get("sandbox").and_then(toml::Value::as_str) == Some("off") {
        open.push("hooks.sandbox = \"off\": hooks run with the rights of hook-svc".to_owned());
    }

    let found = if open.is_empty() {
        vec![Finding::ok("access", "no setting gives strangers more access")]
    } else {
        open.into_iter().map(|door| Finding::warning("access", door)).collect()
    };

    async { found }.boxed_local()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_on_a_disk_is_read_from_df() {
        let text = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/x 100 40 60 40% /\n";
        assert_eq!(available_kib(text), Some(60));
        assert_eq!(available_kib(""), None);
        assert!(free_mib(Path::new("/")).is_some());
    }
}
