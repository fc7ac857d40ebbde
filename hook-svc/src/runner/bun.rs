//! Bun: finds a binary that is new enough, and unpacks the worker's source.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

/// The oldest Bun that the shim runs on: `better-sqlite3` statements iterate, `Bun.peek.status`, `drainMicrotasks`.
pub(super) const MIN_VERSION: (u32, u32) = (1, 4);

/// Path of the tool below the checkout's root.
const TOOL: &str = ".tools/bin/bun";

/// Source of the worker, by file name.
const SHIM: [(&str, &str); 14] = [
    ("calls.ts", include_str!("shim/calls.ts")),
    ("worker.ts", include_str!("shim/worker.ts")),
    ("evaluate.ts", include_str!("shim/evaluate.ts")),
    ("event.ts", include_str!("shim/event.ts")),
    ("frames.ts", include_str!("shim/frames.ts")),
    ("hooks.ts", include_str!("shim/hooks.ts")),
    ("lives.ts", include_str!("shim/lives.ts")),
    ("note.ts", include_str!("shim/note.ts")),
    ("harden.ts", include_str!("shim/harden.ts")),
    ("probe.ts", include_str!("shim/probe.ts")),
    // The probe tries to empty it.
    ("probe.txt", "not empty"),
    ("query.ts", include_str!("shim/query.ts")),
    ("sqlite.ts", include_str!("shim/sqlite.ts")),
    ("timers.ts", include_str!("shim/timers.ts")),
];

/// Reason why no Bun can be used.
#[derive(Debug, thiserror::Error)]
pub enum FindBunError {
    /// No Bun was found.
    #[error("bun was not found in .tools/bin or on the PATH; run `make tools`, or set hooks.bun to its path")]
    Absent,
    /// The binary cannot be run.
    #[error("failed to run {path}")]
    Run {
        /// Path of the binary.
        path: PathBuf,
        /// Cause of the failure.
        source: std::io::Error,
    },
    /// The binary is too old, or is not Bun.
    #[error("{path} has version `{version}`; at least {}.{} is required", MIN_VERSION.0, MIN_VERSION.1)]
    Version {
        /// Path of the binary.
        path: PathBuf,
        /// Text that `--version` printed.
        version: String,
    },
}

/// Returns the Bun to use: `configured`, else the checkout's own tool, else the one on the `PATH`. Fails if it is too
/// old.
pub(super) async fn find(configured: Option<&Path>) -> Result<PathBuf, FindBunError> {
    let path = match configured {
        Some(path) => path.to_owned(),
        None => discover_bun().ok_or(FindBunError::Absent)?,
    };
    let output = Command::new(&path)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|source| FindBunError::Run {
            path: path.clone(),
            source,
        })?;

    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if is_new_enough(&version) {
        Ok(path)
    } else {
        Err(FindBunError::Version { path, version })
    }
}

fn discover_bun() -> Option<PathBuf> {
    let starts = [std::env::current_exe().ok(), std::env::current_dir().ok()];
    let above = starts
        .iter()
        .flatten()
        .flat_map(|start| start.ancestors().map(|dir| dir.join(TOOL)));

    #[expect(
        clippy::disallowed_methods,
        reason = "searching the PATH as a shell does is no configuration of ours"
    )]
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path)
        .map(|dir| dir.join("bun"))
        .collect::<Vec<_>>();

    above.chain(on_path).find(|candidate| candidate.is_file())
}

fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= MIN_VERSION,
        (_, _) => false,
    }
}

/// Writes the worker's source below `dir`.
pub(super) fn unpack_shim(dir: &Path) -> std::io::Result<()> {
    let shim = dir.join("shim");
    std::fs::create_dir_all(&shim)?;
    SHIM.iter()
        .try_for_each(|(name, source)| std::fs::write(shim.join(name), source))
}

#[cfg(test)]
mod tests {
    use super::is_new_enough;

    #[test]
    fn versions() {
        for (version, fits) in [
            ("1.4.0", true),
            ("1.4.5-canary.1", true),
            ("1.10.0", true),
            ("2.0.0", true),
            ("1.3.9", false),
            ("", false),
            ("v20.1", false),
        ] {
            assert_eq!(is_new_enough(version), fits, "{version}");
        }
    }
}
