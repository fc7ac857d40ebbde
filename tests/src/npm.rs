//! Stand-ins of platforms that others have written, from the registry of npm, run by Node.
//!
//! They show that what Nexus sends is understood by somebody who has read the platform's documentation too.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::driver::on_path;

/// How long the registry may take.
const INSTALL: Duration = Duration::from_secs(180);
/// How long the program may take to say where it listens.
const START: Duration = Duration::from_secs(60);

/// A program that listens; it ends with this value.
#[derive(Debug)]
pub struct Emulator {
    /// Base URL at which it listens.
    pub base: String,
    _program: Child,
    _packages: TempDir,
}

impl Emulator {
    /// Installs `package` (name and version, as `name@1.2.3`) and runs `script`, which listens at the port that is its
    /// first argument and then prints a line.
    ///
    /// Returns none, and says why, where Node is not installed or the registry does not answer.
    ///
    /// # Panics
    /// Where the package is there and the script does not start.
    pub async fn start(package: &str, script: &str) -> Option<Self> {
        let (Some(npm), Some(node)) = (on_path("npm"), on_path("node")) else {
            eprintln!("skipped: {package} needs node and npm on the PATH");
            return None;
        };
        let packages = tempfile::Builder::new().prefix("nexus-npm-").tempdir();
        let packages = packages.expect("a temporary directory");
        if let Err(reason) = install(&npm, package, packages.path()).await {
            eprintln!("skipped: {package} cannot be installed: {reason}");
            return None;
        }

        let port = shared::process::free_port().expect("a free port");
        let file = packages.path().join("start.mjs");
        std::fs::write(&file, script).expect("the script is written");
        let mut program = Command::new(node)
            .arg(&file)
            .arg(port.to_string())
            .current_dir(packages.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("node starts");
        let mut said = BufReader::new(program.stdout.take().expect("its output")).lines();
        let line = tokio::time::timeout(START, said.next_line()).await;
        let line = line.expect("it starts in time").expect("it says something");
        assert!(line.is_some(), "{package} has ended at its start");

        Some(Self {
            base: format!("http://localhost:{port}"),
            _program: program,
            _packages: packages,
        })
    }
}

async fn install(npm: &PathBuf, package: &str, directory: &Path) -> Result<(), String> {
    let mut command = Command::new(npm);
    command
        .args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"])
        .arg(directory)
        .arg(package)
        .current_dir(directory)
        .stdin(Stdio::null())
        .kill_on_drop(true);

    let output = tokio::time::timeout(INSTALL, command.output()).await;
    let output = output.map_err(|_| format!("npm took longer than {INSTALL:?}"))?;
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}
