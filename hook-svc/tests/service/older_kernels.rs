//! `hooks.sandbox = "enforce"`, as it is shipped, with the real Bun on kernels with an older Landlock or none: hooks are
//! confined by what else denies the same, or the service does not start.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use shared::model::invocation::HookOutcome;
use shared::testing::says;

use crate::old_kernel::{landlock_version, run_on};
use crate::world::{World, event, of};

/// Says to the tests of this binary which version of Landlock the kernel is to have, 0 = none.
const PRETENDED: &str = "NEXUS_TEST_LANDLOCK";

/// Version of Landlock that has all that the rules deny.
const WHOLE: i64 = 6;

/// The test that is run on each kernel.
const INNER: &str = "older_kernels::a_service_confines_its_hooks_or_does_not_start";

/// Returns a hook that reads and writes files and connects to `port`, all of which is there for everybody, and tells what
/// was refused.
fn reaching_out(folder: &Path, port: u16) -> String {
    format!(
        "import fs from 'node:fs'; import net from 'node:net';
        const tries = async (what) => {{ try {{ await what(); return 'done'; }} catch {{ return 'refused'; }} }};
        const connect = (port) => new Promise((done, fail) => {{ net.connect(port, '127.0.0.1').on('connect', done).on('error', fail); }});
        export default async () => {{
          const read = await tries(() => fs.readFileSync('{file}', 'utf8'));
          const truncated = await tries(() => fs.truncateSync('{file}', 0));
          const written = await tries(() => fs.writeFileSync('{folder}/new', 'x'));
          const connected = await tries(() => connect({port}));
          return {{ fire: true, routing: {{ session: 's' }}, context: {{ extracted: {{ read, truncated, written, connected }} }} }};
        }};
        ",
        file = folder.join("open").display(),
        folder = folder.display(),
    )
}

/// Makes a folder and a file `open` in it which every user may write.
fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("open");
    std::fs::write(&file, "text").expect("written");
    for path in [folder.path(), &file] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("opened");
    }
    folder
}

/// Returns the command that runs [`INNER`] alone.
fn inner(version: i64) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a program"));
    command
        .args(["--exact", "--nocapture", INNER])
        .env(PRETENDED, version.to_string());
    command
}

/// Runs [`INNER`] where the kernel answers that it has no Landlock.
fn run_without_landlock() -> Output {
    let calls = [
        libc::SYS_landlock_create_ruleset,
        libc::SYS_landlock_add_rule,
        libc::SYS_landlock_restrict_self,
    ];
    let rules = calls
        .into_iter()
        .map(|call| (call, Vec::new()))
        .collect::<BTreeMap<_, _>>();
    let absent = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into().expect("a known architecture");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, absent, arch).expect("a filter");
    let filter: BpfProgram = filter.try_into().expect("a program");

    // What a thread cannot call, the processes that it starts cannot either; other threads can.
    let run = move || {
        seccompiler::apply_filter(&filter).expect("filtered");
        inner(0).output().expect("it runs")
    };
    std::thread::spawn(run).join().expect("it ends")
}

fn check(output: &Output, version: i64) {
    let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(
        output.status.success() && said[0].contains("1 passed; 0 failed"),
        "Landlock {version}:\n{}\n{}",
        said[0],
        said[1]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_service_with_enforce_starts_without_landlock() {
    if World::is_confined_whole().await {
        check(&run_without_landlock(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_with_enforce_covers_an_older_landlock() {
    if !World::is_confined_whole().await {
        return;
    }

    // The oldest, and the newest that lacks something.
    let newest = WHOLE.min(landlock_version()) - 1;
    for version in [1, newest].into_iter().filter(|version| (1..=newest).contains(version)) {
        check(&run_on(version, inner(version)), version);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the tests that run this binary again tell it how old the kernel is"
)]
#[tokio::test(flavor = "multi_thread")]
async fn a_service_confines_its_hooks_or_does_not_start() {
    // Outside of the tests above the kernel is that of the machine.
    let told = std::env::var(PRETENDED).ok();
    let version = told.map_or_else(landlock_version, |told| told.parse().expect("a version"));
    // It is the sandbox that refuses, and nothing else: the files are open, and somebody listens at the port.
    let folder = open_folder();
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    let hook = reaching_out(folder.path(), port);
    let mut world = World::new(&[("reaches-out.ts", &hook)]).await;
    let log = world.write_file("hook-svc.log", "");
    world.log = Some(log.clone());
    world.sandbox = "enforce";
    world.start("a");
    let asked = event("ann", 1, "hello");
    world.publish(&asked).await;

    let read_log = || std::fs::read_to_string(&log).expect("readable");
    if version == 0 || says("NEXUS_SANDBOX", "absent") {
        world.wait_refused("a").await;
        let said = read_log();
        assert!(said.contains("hooks cannot be confined on this machine"), "{said}");
        assert!(world.invocations().await.is_empty(), "no hook has run");
        return;
    }

    let record = world.record(&asked).await;
    let HookOutcome::Fired { result, .. } = &of(&record, "reaches-out").outcome else {
        panic!("{record:?}");
    };
    let extracted = result.context.as_ref().and_then(|context| context.extracted.clone());
    let extracted = extracted.expect("what it has reached");
    assert_eq!(extracted.len(), 4, "{extracted:?}");
    for (what, became) in &extracted {
        assert_eq!(became, "refused", "{what} with Landlock {version}");
    }
    let file = std::fs::read_to_string(folder.path().join("open"));
    assert_eq!(file.expect("readable"), "text");

    let level = if version >= WHOLE { "full" } else { "covered" };
    let said = read_log();
    let mut lines = said.lines();
    assert!(
        lines.any(|line| line.contains("sandbox tried") && line.contains(level)),
        "{level}: {said}"
    );
}
