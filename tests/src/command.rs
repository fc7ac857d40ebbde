//! The binary `nexus`, run as an operator runs it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::process::{Child, Command};

use crate::world::World;

/// How long a command may take that ends by itself, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// What a command said, and how it ended.
#[derive(Debug)]
pub struct Said {
    /// Its exit code; none = killed.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Where the binary is: beside the services, above the tests.
///
/// # Panics
/// Where it was not built.
#[must_use]
pub fn program() -> PathBuf {
    let me = std::env::current_exe().expect("this binary");
    let found = me
        .ancestors()
        .skip(1)
        .map(|directory| directory.join("nexus"))
        .find(|path| path.is_file());
    found.expect("`cargo build --workspace --bins` makes target/debug/nexus")
}

/// `nexus` with `arguments` in `directory`, not yet started, killed with the test.
#[must_use]
pub fn command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Starts `nexus` and lets it run, its output in `{directory}/{name}.out`.
///
/// # Panics
/// Where it does not start.
#[must_use]
pub fn start(directory: &Path, name: &str, arguments: &[&str]) -> Child {
    let file = std::fs::File::create(directory.join(format!("{name}.out"))).expect("a file");
    let copy = file.try_clone().expect("a file");
    command(directory, arguments)
        .stdout(file)
        .stderr(copy)
        .spawn()
        .expect("nexus starts")
}

/// Runs `nexus` with `arguments` in `directory` to its end.
///
/// # Panics
/// Where it does not end within [`PATIENCE`].
pub async fn nexus(directory: &Path, arguments: &[&str]) -> Said {
    let output = tokio::time::timeout(PATIENCE, command(directory, arguments).output()).await;
    let output = output
        .unwrap_or_else(|_| panic!("nexus {arguments:?} does not end"))
        .expect("nexus starts");
    Said {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl World {
    /// Runs `nexus` with `arguments` upon this world's server to its end, as its operator types it. Nothing is cut.
    pub async fn nexus(&self, arguments: &[&str]) -> Said {
        let server = self.stack.nats[0].url();
        nexus(self.path(), &[&["--server", &server, "--wide"], arguments].concat()).await
    }

    /// What the command says, or why it is refused.
    ///
    /// # Errors
    /// What it said, where it ends with another exit code than 0.
    pub async fn tried(&self, arguments: &[&str]) -> Result<String, String> {
        let said = self.nexus(arguments).await;
        if said.code == Some(0) {
            Ok(said.out)
        } else {
            Err(format!("nexus {arguments:?}: {}{}", said.out, said.err))
        }
    }

    /// What the command says.
    ///
    /// # Panics
    /// Where it ends with another exit code than 0.
    pub async fn words(&self, arguments: &[&str]) -> String {
        let said = self.tried(arguments).await;
        said.unwrap_or_else(|error| panic!("{error}\n{}", self.logs()))
    }

    /// What the command says in JSON.
    ///
    /// # Panics
    /// As [`World::words`], and where that is no JSON.
    pub async fn json(&self, arguments: &[&str]) -> Value {
        let out = self.words(&[&["--json"], arguments].concat()).await;
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("nexus {arguments:?}: {error}: {out}"))
    }
}
