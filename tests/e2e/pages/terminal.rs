//! Where a page's commands run: a directory, a home and ports of its own, and the binaries that were just built.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use shared::clock::pause;
use shared::process::free_port;
use shared::testing::says;
use tempfile::TempDir;
use tests::command::{PATIENCE, program};
use tests::world::root;
use tokio::process::{Child, Command};

/// Starts `nexus up` wherever the page's reader has it.
const UP: &str = "\"$NEXUS_PAGE_PROGRAM\" up";
/// What `nexus up` prints last.
const IS_UP: &str = "nexus doctor";
/// How long what was started has to end, once it is asked to.
const END: Duration = Duration::from_secs(30);
/// How often the output of what stays is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Where a checkout's files lie that commands of a page use.
const OF_THE_CHECKOUT: [&str; 4] = ["Makefile", "deploy", "k8s", ".tools"];

/// Every command of one page runs here. Variables and the working directory last from block to block.
#[derive(Debug)]
pub(super) struct Terminal {
    directory: TempDir,
    http: u16,
    receiver: u16,
    started: Vec<Started>,
}

/// What a page has started and goes on.
#[derive(Debug)]
struct Started {
    child: Child,
    is_up: bool,
}

impl Terminal {
    /// Makes a checkout and, unless the page begins in it, a directory that `nexus init` has filled, with `nexus` on the
    /// PATH.
    ///
    /// # Errors
    /// What `nexus init` says, if it fails.
    pub(super) async fn open(begins_in_checkout: bool) -> Result<Self, String> {
        let directory = tempfile::Builder::new()
            .prefix("nexus-test-")
            .tempdir()
            .expect("a directory");
        let here = directory.path();
        let [http, receiver, nats] = [(); 3].map(|()| free_port().expect("a port"));

        for name in ["checkout/target/debug", "home", "begin"] {
            std::fs::create_dir_all(here.join(name)).expect("a directory");
        }

        for name in OF_THE_CHECKOUT {
            std::os::unix::fs::symlink(root().join(name), here.join("checkout").join(name)).expect("a link");
        }

        write_program(&here.join("checkout/target/debug/nexus"), nats, http);

        let begin = if begins_in_checkout { "checkout" } else { "begin" };
        let tools = root().join(".tools/bin");
        let found = if begins_in_checkout {
            String::new()
        } else {
            format!("{}:", here.join("checkout/target/debug").display())
        };

        let state = format!(
            "export HOME='{home}'\nexport PATH=\"{found}{tools}:$PATH\"\ncd '{begin}'\n",
            home = here.join("home").display(),
            tools = tools.display(),
            begin = here.join(begin).display(),
        );

        std::fs::write(here.join("state"), state).expect("the state");
        let terminal = Self {
            directory,
            http,
            receiver,
            started: Vec::new(),
        };

        if !begins_in_checkout {
            terminal.run("nexus init").await?;
        }

        Ok(terminal)
    }

    /// Runs `script` to its end and returns what it printed.
    ///
    /// # Errors
    /// What it printed, if a command of it fails or it does not end.
    pub(super) async fn run(&self, script: &str) -> Result<String, String> {
        let keeps = "\n{ export -p; declare -f; printf 'cd %q\\n' \"$PWD\"; } > \"$NEXUS_PAGE_STATE.new\"\n\
                     mv \"$NEXUS_PAGE_STATE.new\" \"$NEXUS_PAGE_STATE\"\n";
        let path = self.directory.path().join("printed");
        let mut started = Started::begin(self.bash(&format!("{script}{keeps}")), &path, false)?;

        let ended = tokio::time::timeout(PATIENCE, started.child.wait()).await;
        let printed = std::fs::read_to_string(&path).unwrap_or_default();
        match ended {
            Ok(Ok(status)) if status.success() => Ok(printed),
            Ok(Ok(status)) => Err(format!("{status}: {printed}")),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("it does not end, and does not say `stays`: {printed}")),
        }
    }

    /// Starts `script` and waits until it has printed `text`; it goes on until the page ends.
    ///
    /// # Errors
    /// What it printed, if it ends before or does not print that.
    pub(super) async fn stay(&mut self, script: &str, text: &str) -> Result<(), String> {
        let path = self.directory.path().join(format!("stays-{}", self.started.len()));
        let is_up = script == UP || script.contains("nexus up");

        // With a trap, the shell ends behind what it has started, which SIGTERM reaches as well.
        let command = self.bash(&format!("trap : TERM\n{script}"));
        self.started.push(Started::begin(command, &path, is_up)?);

        let printed = || std::fs::read_to_string(&path).unwrap_or_default();
        let child = self.started.last_mut().map(|started| &mut started.child);
        let child = child.ok_or("nothing was started")?;

        let waited = tokio::time::timeout(PATIENCE, async {
            while !printed().contains(text) {
                if let Ok(Some(status)) = child.try_wait() {
                    return Err(format!("it ended ({status}) before it printed `{text}`: {}", printed()));
                }
                pause(LOOK_EVERY).await;
            }

            Ok(())
        });

        waited
            .await
            .unwrap_or_else(|_| Err(format!("it does not print `{text}`: {}", printed())))
    }

    /// Starts `nexus up` unless it runs.
    ///
    /// # Errors
    /// As [`Terminal::stay`].
    pub(super) async fn up(&mut self) -> Result<(), String> {
        let runs = self
            .started
            .iter_mut()
            .any(|one| one.is_up && matches!(one.child.try_wait(), Ok(None)));
        if runs { Ok(()) } else { self.stay(UP, IS_UP).await }
    }

    /// Ends what goes on.
    ///
    /// # Errors
    /// Fails if something does not end.
    pub(super) async fn close(mut self) -> Result<(), String> {
        let mut left = Ok(());
        for mut started in std::mem::take(&mut self.started) {
            started.signal("TERM");
            if tokio::time::timeout(END, started.child.wait()).await.is_err() {
                started.signal("KILL");
                left = Err("what a block has started does not end at SIGTERM".to_owned());
            }
        }
        left
    }

    /// The path of a file as the page's current directory has it.
    ///
    /// # Errors
    /// Fails if the directory cannot be told.
    pub(super) async fn here(&self, name: &str) -> Result<PathBuf, String> {
        let directory = self.run("pwd").await?;
        Ok(Path::new(directory.trim_end()).join(name))
    }

    /// The text with this terminal's ports instead of those that the pages name.
    pub(super) fn with_ports(&self, text: &str) -> String {
        text.replace("8080", &self.http.to_string())
            .replace("18099", &self.receiver.to_string())
    }

    /// A shell with the state of the block before, which ends at the first command that fails.
    fn bash(&self, script: &str) -> Command {
        let state = self.directory.path().join("state");
        let script = self.with_ports(script);
        let checkout = self.directory.path().join("checkout");
        let mut command = Command::new("bash");

        command
            .arg("-c")
            .arg(format!(
                "exec 2>&1\nset -eao pipefail\n. \"$NEXUS_PAGE_STATE\"\n{script}"
            ))
            .env("NEXUS_PAGE_STATE", state)
            .env("NEXUS_PAGE_PROGRAM", checkout.join("target/debug/nexus"))
            .envs(says("NEXUS_SANDBOX", "absent").then_some(("NEXUS__HOOKS__SANDBOX", "degraded")))
            .stdin(Stdio::null())
            .process_group(0)
            .kill_on_drop(true);

        command
    }
}

impl Started {
    /// Starts `command` in a process group of its own, its output in the file `path`.
    fn begin(mut command: Command, path: &Path, is_up: bool) -> Result<Self, String> {
        let file = std::fs::File::create(path).map_err(|error| error.to_string())?;
        let child = command.stdout(file).spawn().map_err(|error| error.to_string())?;
        Ok(Self { child, is_up })
    }

    /// Sends a signal to everything that the block has started; nothing if the block has ended.
    fn signal(&self, name: &str) {
        if let Some(id) = self.child.id() {
            let group = format!("-{id}");
            // A group that has ended meanwhile is what is wanted.
            let _sent = std::process::Command::new("kill")
                .args(["-s", name, "--", &group])
                .status();
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.signal("KILL");
    }
}

/// Writes `nexus` as the page's reader has it, whose `up` takes ports that are free here.
fn write_program(path: &Path, nats: u16, http: u16) {
    use std::os::unix::fs::PermissionsExt as _;

    let real = program();
    let text = format!(
        "#!/usr/bin/env bash\nif [ \"${{1-}}\" = up ]; then shift; exec '{real}' up --nats-port {nats} --http-port {http} \"$@\"; fi\n\
         exec '{real}' \"$@\"\n",
        real = real.display(),
    );

    std::fs::write(path, text).expect("the program");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("its mode");
}
