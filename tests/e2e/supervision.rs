//! `nexus up` and all that it runs are one: whatever ends it ends them, and what dies in it is started again.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use cli::launch::hold::{holder, remains};
use cli::launch::process::{ProcessName, Signal, ignores_hangup, send};
use shared::process::free_port;
use tests::command::{PATIENCE, command, nexus, start};
use tests::eventually::eventually;
use tokio::process::Child;

/// A `nexus up` in a directory of its own.
struct Up {
    directory: tempfile::TempDir,
    ports: [String; 2],
    child: Child,
}

impl Up {
    fn begin() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("nexus-test-")
            .tempdir()
            .expect("a directory");
        let ports = [0; 2].map(|_: u8| free_port().expect("a port").to_string());
        let child = start(directory.path(), "up", &arguments(&ports));

        Self {
            directory,
            ports,
            child,
        }
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("X")
    }

    /// Waits for what `holds` says, while `nexus up` runs.
    async fn until(&mut self, what: &str, holds: impl Fn(&Path) -> bool) {
        let data = self.data();
        eventually(what, PATIENCE, async || {
            let said = std::fs::read_to_string(self.directory.path().join("up.out")).unwrap_or_default();
            assert!(
                self.child.try_wait().expect("its state").is_none(),
                "nexus up ended: {said}"
            );
            if holds(&data) { Ok(()) } else { Err(said) }
        })
        .await;
    }

    async fn came_up(&mut self) {
        let out = self.directory.path().join("up.out");
        self.until("nexus up", |_| {
            std::fs::read_to_string(&out).is_ok_and(|text| text.contains("nexus tail"))
        })
        .await;
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.id().expect("it runs");
        send(signal, &ProcessName::find(pid).expect("it runs"));
    }

    /// Every process that was started for the directory and still runs.
    fn processes(&self) -> Vec<ProcessName> {
        remains(&self.data())
    }

    async fn ends(&mut self) -> Option<i32> {
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        ended.expect("it ends").expect("it ran").code()
    }

    /// Checks that nothing of `processes` is left, nor anything else that holds the directory.
    async fn nothing_is_left(&self, processes: &[ProcessName]) {
        eventually("everything ends with nexus up", PATIENCE, async || {
            let running: Vec<u32> = processes.iter().filter(|p| p.is_running()).map(|p| p.pid).collect();
            let holding = self.processes();
            if running.is_empty() && holding.is_empty() {
                Ok(())
            } else {
                Err(format!("{running:?} run, {holding:?} hold the directory"))
            }
        })
        .await;
    }
}

fn arguments(ports: &[String; 2]) -> [&str; 7] {
    ["up", "--data", "X", "--nats-port", &ports[0], "--http-port", &ports[1]]
}

/// The processes below `of`, children first seen first, by `/proc`.
fn descendants(of: u32) -> Vec<ProcessName> {
    let parents: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let parent = stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect();

    let mut found = vec![of];
    let mut next = 0;
    while next < found.len() {
        let above = found[next];
        found.extend(
            parents
                .iter()
                .filter(|(_, parent)| *parent == above)
                .map(|(pid, _)| *pid),
        );

        next += 1;
    }

    found.into_iter().skip(1).filter_map(ProcessName::find).collect()
}

/// Whether `count` processes were started for the directory.
fn started(count: usize) -> impl Fn(&Path) -> bool {
    move |data| remains(data).len() >= count
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_outlives_a_nexus_up_that_is_killed_while_it_starts() {
    // The server alone; some services; all of them, not yet ready.
    for count in [1, 3, 6] {
        let mut up = Up::begin();
        up.until("it starts", started(count)).await;
        let pid = up.child.id().expect("it runs");
        let below = descendants(pid);

        assert!(below.len() >= count, "{below:?}");

        up.signal(Signal::KILL);
        assert_eq!(up.ends().await, None, "killed");

        up.nothing_is_left(&below).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_signal_that_ends_nexus_up_ends_what_it_runs() {
    for (signal, code) in [(Signal::HUP, 0), (Signal::TERM, 0), (Signal::INT, 0)] {
        if signal == Signal::HUP && ignores_hangup() {
            continue;
        }
        let mut up = Up::begin();
        up.until("it starts", started(2)).await;
        let below = descendants(up.child.id().expect("it runs"));
        up.signal(signal);

        assert_eq!(up.ends().await, Some(code), "{signal:?}");

        up.nothing_is_left(&below).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_nexus_restarts_what_dies_is_one_and_can_be_killed() {
    let mut up = Up::begin();
    up.came_up().await;
    let here = up.directory.path().to_owned();

    let said = nexus(&here, &arguments(&up.ports)).await;
    let pid = up.child.id().expect("it runs");
    assert_eq!(said.code, Some(5), "{said:?}");
    assert!(said.err.contains(&format!("(process {pid})")), "{}", said.err);

    // A service and the server die: both are there again, and it is said.
    let before = up.processes();
    let by_name = |name: &str| {
        let found = before.iter().find(|process| {
            let comm = std::fs::read_to_string(format!("/proc/{}/comm", process.pid));
            comm.is_ok_and(|comm| comm.trim() == name)
        });
        found.unwrap_or_else(|| panic!("{name} runs")).clone()
    };

    for name in ["delivery-svc", "nats-server"] {
        send(Signal::KILL, &by_name(name));
    }

    let log = up.data().join("log/up.log");
    for part in ["delivery-svc-0", "nats-0"] {
        up.until("it is started again", |_| {
            std::fs::read_to_string(&log).is_ok_and(|text| text.contains(&format!("{part} is started again")))
        })
        .await;
    }

    let said = std::fs::read_to_string(here.join("up.out")).expect("its output");
    assert!(said.contains("delivery-svc-0 ended (signal: 9 (SIGKILL))"), "{said}");

    let config = up.data().join("nexus.toml");
    let config = config.to_str().expect("a path in UTF-8");
    eventually("the server takes the operator's credentials", PATIENCE, async || {
        let plan = nexus(&here, &["--config", config, "topology", "plan"]).await;
        if plan.code == Some(0) {
            Ok(())
        } else {
            Err(format!("{plan:?}"))
        }
    })
    .await;

    // Whoever has no password does nothing.
    let url = format!("nats://127.0.0.1:{}", up.ports[0]);
    let stranger = nexus(Path::new("/"), &["--server", &url, "topology", "plan"]).await;
    assert_eq!(stranger.code, Some(5), "{stranger:?}");

    let below = descendants(pid);
    up.signal(Signal::KILL);
    assert_eq!(up.ends().await, None, "killed");

    // At once: what the killed one left has perhaps not ended yet.
    let mut again = command(&here, &arguments(&up.ports))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("nexus starts");
    eventually("the next one holds the directory", PATIENCE, async || {
        match holder(&up.data()) {
            Some(next) if Some(next.pid) == again.id() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;

    // Workers of hooks hold nothing of the directory: they end a moment after the service that they die with.
    eventually("all of the killed one ends", PATIENCE, async || {
        let left: Vec<&ProcessName> = below.iter().filter(|process| process.is_running()).collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    })
    .await;

    let down = nexus(&here, &["down", "--data", "X"]).await;
    assert_eq!(down.code, Some(0), "{down:?}");
    assert!(again.wait().await.expect("it ran").success());

    let down = nexus(&here, &["down", "--data", "X"]).await;
    assert!(down.code == Some(3) && down.err.contains("nothing runs in"), "{down:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn down_ends_what_holds_the_directory_and_nobody_else() {
    let mut up = Up::begin();
    up.until("it starts", started(2)).await;
    let here = up.directory.path().to_owned();
    up.signal(Signal::KILL);
    up.ends().await;
    up.nothing_is_left(&[]).await;

    // A stray that holds the directory, and a record that names a process which has only the id of one that was ours.
    let handle = std::fs::File::open(up.data()).expect("opened");
    let mut stray = std::process::Command::new("sleep")
        .arg("600")
        .stdin(handle)
        .spawn()
        .expect("it starts");

    let mut stranger = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .expect("it starts");
    let other = ProcessName::find(stranger.id()).expect("it runs").to_string();
    let words: Vec<&str> = other.split(' ').collect();
    let recycled = format!("{} 1 {}\n", words[0], words[2]);
    std::fs::write(up.data().join("run/nexus.pid"), &recycled).expect("written");

    let children = up.data().join("run/children");
    std::fs::write(children.join(words[0]), &recycled).expect("written");

    let down = nexus(&here, &["down", "--data", "X"]).await;
    assert_eq!(down.code, Some(0), "{down:?}");
    assert!(
        down.out.contains(&format!("of a killed `nexus up`: {}", stray.id())),
        "{}",
        down.out
    );

    stray.wait().expect("it ended");
    assert!(stranger.try_wait().expect("its state").is_none(), "a stranger goes on");

    stranger.kill().expect("it ends");
    stranger.wait().expect("it ended");
}
