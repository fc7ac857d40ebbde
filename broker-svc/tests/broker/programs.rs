//! Programs of one's own as agents: the two documented examples, and one that does not want to end.

use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use broker_svc::config::BrokerConfig;
use shared::clock::pause;
use shared::model::ledger::{LedgerEntry, TurnFailure};
use shared::testing::eventually;
use tokio::process::Command;

use crate::bench::{Bench, broker_at, child, run_broker, session, told};

/// The system user `nobody`.
const NOBODY: u32 = 65_534;

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs/examples")
        .join(name)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_examples_answer() {
    let bench = Bench::start().await;
    let programs = [
        (
            "python",
            format!("command: python3, args: ['{}']", example("agent.py").display()),
            "python heard: message 1",
        ),
        (
            "bash",
            format!("command: bash, args: ['{}']", example("agent.sh").display()),
            "bash heard: message 1",
        ),
    ];

    for (number, (name, program, expected)) in programs.into_iter().enumerate() {
        let personas = format!("personas: {{default: {{runner: process, process: {{{program}}}}}}}");
        let running = bench.run("b1", &personas).await;
        let here = session(name);
        bench.send(&here, 1).await;
        eventually("the turn", async || bench.completed(&here).await.len() == 1).await;
        let reply = bench.until_replies(number + 1).await.pop().expect("a reply");

        assert_eq!(reply.content, expected);

        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_does_not_end_is_killed_with_its_children() {
    let bench = Bench::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let children = folder.path().join("children");

    // The child outlives its parent's death unless the whole group is killed.
    let script = format!("sleep 600 & echo $! >> {}; wait", children.display());
    let personas = format!(
        "personas: {{default: {{runner: process, limits: {{wall_ms: 4000}}, process: {{command: bash, args: ['-c', '{script}']}}}}}}"
    );
    let running = bench.run("b1", &personas).await;
    let main = session("main");
    bench.send(&main, 1).await;

    eventually("the failure", async || {
        bench.entries(&main).await.iter().any(|entry| {
            matches!(entry, LedgerEntry::TurnFailed { failure: TurnFailure::Limit { limit }, .. } if limit == "wall_ms")
        })
    })
    .await;

    let pids = std::fs::read_to_string(&children).expect("it had begun");
    for pid in pids.split_whitespace() {
        let process = PathBuf::from(format!("/proc/{pid}/stat"));
        eventually("the child is gone", async || {
            let stat = std::fs::read_to_string(&process).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        })
        .await;
    }

    running.stop().await;
}

/// Names the server of a broker that is a process of its own; absent where the tests run.
const URL: &str = "NEXUS_TEST_BROKER_URL";
/// Names its personas.
const PERSONAS: &str = "NEXUS_TEST_BROKER_PERSONAS";

/// Not a test: what the child runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_of_its_own() {
    let (Some(url), Some(personas)) = (told(URL), told(PERSONAS)) else {
        return;
    };
    let broker = broker_at(&url, "child", &personas, BrokerConfig::default()).await;
    let _running = run_broker(Arc::new(broker));
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_ends_with_a_broker_that_is_killed() {
    let bench = Bench::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let lines = folder.path().join("lines");

    // Neither does it read its input, nor do its children.
    let script = format!(
        "trap '' TERM; (while true; do echo x >> {}; sleep 0.05; done) & wait",
        lines.display()
    );
    let personas =
        format!("personas: {{default: {{runner: process, process: {{command: bash, args: ['-c', \"{script}\"]}}}}}}");
    let url = bench.server.url();
    let mut broker = child("programs::a_broker_of_its_own", &[(URL, &url), (PERSONAS, &personas)]);
    bench.send(&session("main"), 1).await;

    let written = || std::fs::metadata(&lines).map_or(0, |lines| lines.len());
    eventually("it is at work", async || written() > 4).await;
    broker.kill().await.expect("SIGKILL");

    eventually("it is silent", async || {
        let before = written();
        pause(Duration::from_secs(1)).await;
        written() == before
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_says_nothing_is_told_of_with_its_complaint() {
    let bench = Bench::start().await;
    let personas =
        "personas: {default: {runner: process, process: {command: bash, args: ['-c', 'echo no key >&2; exit 3']}}}";
    let running = bench.run("b1", personas).await;
    let main = session("main");
    bench.send(&main, 1).await;

    eventually("the failure", async || {
        bench.entries(&main).await.iter().any(|entry| {
            matches!(entry, LedgerEntry::TurnFailed { failure: TurnFailure::Agent { error }, .. } if error.contains("no key"))
        })
    })
    .await;

    running.stop().await;
}

/// A program that runs as a system user without rights, where we may choose.
fn unprivileged(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    if std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.env_clear().kill_on_drop(true).stdin(Stdio::null());
    command
}

/// Why a user without rights cannot start `service`, where it is the machine that does not let them.
async fn hindrance(service: &Path) -> Option<std::io::Error> {
    let mut probe = unprivileged(service);
    let begun = probe.arg("--help").current_dir(service.parent()?).output().await;
    let hinders = [ErrorKind::PermissionDenied, ErrorKind::InvalidInput];
    begun.err().filter(|error| hinders.contains(&error.kind()))
}

/// Whether a process of the same system user reads the environment of `pid`.
async fn is_read(pid: u32) -> bool {
    let mut cat = unprivileged("/bin/cat");
    let read = cat
        .arg(format!("/proc/{pid}/environ"))
        .output()
        .await
        .expect("cat runs");
    String::from_utf8_lossy(&read.stdout).contains("s3cret")
}

#[tokio::test(flavor = "multi_thread")]
async fn no_program_of_the_same_user_reads_the_environment_of_a_broker() {
    let bench = Bench::start().await;
    let folder = tempfile::tempdir().expect("a folder");

    // Whoever we are, a user without rights can start it there.
    let service = folder.path().join("broker-svc");
    std::fs::copy(env!("CARGO_BIN_EXE_broker-svc"), &service).expect("a copy");
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("it may be read");

    if let Some(why) = hindrance(&service).await {
        return println!("SKIPPED: no user without rights can run {}: {why}", service.display());
    }

    let secret = ("NEXUS_TEST_SECRET", "s3cret");
    let mut open = unprivileged("/bin/sleep")
        .arg("600")
        .env(secret.0, secret.1)
        .spawn()
        .expect("it runs");

    eventually("of any other they read it", async || {
        is_read(open.id().expect("a process")).await
    })
    .await;
    let mut broker = unprivileged(&service)
        .env(secret.0, secret.1)
        .env("NEXUS__NATS__SERVERS", format!("[\"{}\"]", bench.server.url()))
        .env("NEXUS__TELEMETRY__LISTEN", "127.0.0.1:0")
        .env("NEXUS__TRUST__CLUSTER_KEY", "env:NEXUS_CLUSTER_KEY")
        .env("NEXUS_CLUSTER_KEY", "5c".repeat(32))
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");

    let pid = broker.id().expect("a process");
    let named = format!("/proc/{pid}/cmdline");
    eventually("it has begun", async || {
        let of_it = std::fs::read(&named).is_ok_and(|line| line.starts_with(service.as_os_str().as_bytes()));
        of_it && !is_read(pid).await
    })
    .await;

    assert_eq!(broker.try_wait().expect("a process"), None, "it lives");

    broker.kill().await.expect("SIGKILL");
    open.kill().await.expect("SIGKILL");
}
