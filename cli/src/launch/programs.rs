//! Paths of the programs: the services beside this binary, the tools in `.tools/bin` or on the PATH.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::SERVICES;

/// Oldest nats-server with the features that are needed (message schedules, per-message time to live, consumer reset).
pub const NATS_MINIMUM: (u32, u32) = (2, 15);
/// Oldest Bun that hooks are tested with.
pub const BUN_MINIMUM: (u32, u32) = (1, 4);

/// Paths of all programs that are started.
#[derive(Debug, Clone)]
pub struct Programs {
    /// Directory of the service binaries.
    pub services: PathBuf,
    /// Path of the NATS server.
    pub nats_server: PathBuf,
    /// Path of the Bun program.
    pub bun: PathBuf,
}

impl Programs {
    /// Finds all programs.
    ///
    /// # Errors
    /// Fails if a program is missing or too old; the error says which one, and how to get it.
    pub fn find() -> Result<Self> {
        let services = services_directory()?;
        let nats_server = tool("nats-server", NATS_MINIMUM)?;
        let bun = tool("bun", BUN_MINIMUM)?;
        Ok(Self {
            services,
            nats_server,
            bun,
        })
    }

    /// Returns the same programs with the services in `directory`; without one, with those beside this program.
    ///
    /// # Errors
    /// Fails if a service is not there; the error names it.
    pub fn with_services(self, directory: Option<&Path>) -> Result<Self> {
        let Some(directory) = directory else {
            let services = services_directory()?;
            return Ok(Self { services, ..self });
        };

        if let Some(absent) = SERVICES.iter().find(|name| !directory.join(name).is_file()) {
            bail!("{absent} is not in {}", directory.display());
        }

        Ok(Self {
            services: directory.to_owned(),
            ..self
        })
    }
}

/// Returns the directory of the service binaries: this binary's own, or the one above it (tests live in `deps`).
fn services_directory() -> Result<PathBuf> {
    let me = std::env::current_exe().context("failed to find the program file of nexus")?;
    let mut directories = me.ancestors().skip(1).take(2);

    directories
        .find(|directory| directory.join("hook-svc").is_file())
        .map(Path::to_owned)
        .with_context(|| absent_services(&me))
}

/// Returns the error text if the services are not in the directory of the program `me`.
pub(crate) fn absent_services(me: &Path) -> String {
    format!(
        "{} are not in {}; install all programs into one directory (from source: cargo build --workspace)",
        SERVICES.join(", "),
        me.parent().unwrap_or(me).display()
    )
}

/// Finds the tool `name`, at least version `minimum`: in `.tools/bin` above the working directory or above this binary,
/// else on the PATH.
///
/// # Errors
/// Fails if no version is new enough; the error says which versions were found, where, and how to get one that fits.
pub fn tool(name: &str, minimum: (u32, u32)) -> Result<PathBuf> {
    let here = std::env::current_dir().unwrap_or_default();
    let me = std::env::current_exe().unwrap_or_default();
    let local = here
        .ancestors()
        .chain(me.ancestors())
        .map(|directory| directory.join(".tools/bin").join(name));

    #[expect(
        clippy::disallowed_methods,
        reason = "programs are looked for where the shell looks for them"
    )]
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path: Vec<PathBuf> = std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .collect();

    let mut refused = Vec::new();
    for candidate in local.chain(on_path).filter(|candidate| candidate.is_file()) {
        match version(&candidate) {
            Some(found) if found >= minimum => return Ok(candidate),
            Some((major, minor)) => refused.push(format!("{} is {major}.{minor}", candidate.display())),
            None => refused.push(format!("{} does not say its version", candidate.display())),
        }
    }

    let found = if refused.is_empty() {
        "none was found".to_owned()
    } else {
        refused.join(", ")
    };
    let (major, minor) = minimum;
    bail!("{name} {major}.{minor} or newer is required ({found}); run `make tools` to install it into .tools/bin")
}

/// Returns the major and minor version that `program --version` prints.
fn version(program: &Path) -> Option<(u32, u32)> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = text
        .split(|c: char| !c.is_ascii_digit() && c != '.')
        .find(|part| part.contains('.'))?;
    let mut parts = number.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_of_another_directory_are_taken_if_all_are_there() {
        let directory = tempfile::tempdir().expect("a directory");
        let programs = Programs {
            services: PathBuf::from("/here"),
            nats_server: PathBuf::from("/tools/nats-server"),
            bun: PathBuf::from("/tools/bun"),
        };

        for name in SERVICES {
            let refused = programs.clone().with_services(Some(directory.path()));
            let error = refused.expect_err("one is absent").to_string();
            assert!(error.starts_with(name), "{error}");
            std::fs::write(directory.path().join(name), "").expect("written");
        }

        let taken = programs.with_services(Some(directory.path())).expect("all are there");
        assert_eq!(taken.services, directory.path());
        assert_eq!(taken.bun, PathBuf::from("/tools/bun"));
    }
}
