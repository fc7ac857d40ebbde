//! The runner where the sandbox is not whole, as `hooks.sandbox = "degraded"` allows: without Landlock, without seccomp, and
//! without the launcher. Hooks are less confined there; what they answer, and who pays for whom, is the same. With an older
//! Landlock hooks are confined as well.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hook_svc::runner::SandboxLevel;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use shared::testing::says;

use crate::old_kernel::{landlock_version, run_on};
use crate::pool::TestPool;

/// Says to the tests of this binary which mechanism the machine is to lack.
const LACKS: &str = "NEXUS_TEST_LACKS";

/// What [`LACKS`] says of a machine with an older Landlock.
const NEWER_LANDLOCK: &str = "newer Landlock";

/// Version of Landlock that has all that the rules deny.
const WHOLE: i64 = 6;

/// Tests of whatever hooks are denied, and of hooks that work.
const CONFINED: [&str; 6] = [
    "levels::the_machine_lacks_what_it_is_to_lack",
    "hostile::what_is_denied_is_refused",
    "hostile::no_hook_has_what_hook_svc_was_left_open",
    "jail::the_filter_itself_refuses_what_reaches_out",
    "verdicts::verdicts_of_all_hooks_of_an_event",
    "model::both_libraries_ask_the_host",
];

/// Tests of every part of the runner that does not rest on the kernel.
const PORTABLE: [&str; 14] = [
    "levels::the_machine_lacks_what_it_is_to_lack",
    "verdicts::verdicts_of_all_hooks_of_an_event",
    "verdicts::what_scripts_see",
    "verdicts::every_hook_has_its_own_time_out",
    "calls::answers_find_who_asked",
    "reload::every_event_meets_one_set_once",
    "reload::what_a_deleted_hook_left_to_run_ends_with_it",
    "forged::who_counts_its_own_steps_is_stuck",
    "forged::who_blocks_is_found_though_it_computes_nothing",
    "deaths::a_loop",
    "deaths::what_had_answered_does_not_run_again",
    "model::both_libraries_ask_the_host",
    "frozen::patched_built_ins_are_an_error_of_the_patcher",
    "hostile::an_event_ends_whatever_is_written_to_the_pipe",
];

/// Runs [`PORTABLE`] by `program`, which is this binary, as if the kernel did not have `calls`.
fn run_without(calls: &[i64], program: PathBuf, lacks: &'static str) -> Output {
    let rules = calls.iter().map(|call| (*call, Vec::new())).collect::<BTreeMap<_, _>>();
    let absent = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into().expect("a known architecture");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, absent, arch).expect("a filter");
    let filter: BpfProgram = filter.try_into().expect("a program");

    // What a thread cannot call, the processes that it starts cannot either; other threads can.
    let hides = !calls.is_empty();
    let run = move || {
        if hides {
            seccompiler::apply_filter(&filter).expect("filtered");
        }
        Command::new(program)
            .args(["--exact", "--test-threads=2"])
            .args(PORTABLE)
            .env(LACKS, lacks)
            .output()
            .expect("it runs")
    };

    std::thread::spawn(run).join().expect("it ends")
}

fn check(output: &Output) {
    check_passed(output, PORTABLE.len());
}

fn check_passed(output: &Output, count: usize) {
    let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let passed = format!("{count} passed; 0 failed");
    assert!(
        output.status.success() && said[0].contains(&passed),
        "{}\n{}",
        said[0],
        said[1]
    );
}

fn this_program() -> PathBuf {
    std::env::current_exe().expect("a program")
}

#[tokio::test]
async fn hooks_run_without_landlock() {
    // Without seccomp nothing can be hidden.
    if !TestPool::is_confined_whole().await {
        return;
    }
    let calls = [
        libc::SYS_landlock_create_ruleset,
        libc::SYS_landlock_add_rule,
        libc::SYS_landlock_restrict_self,
    ];
    check(&run_without(&calls, this_program(), "Landlock"));
}

#[tokio::test]
async fn every_older_landlock_is_covered() {
    if !TestPool::is_confined_whole().await {
        return;
    }

    // The filter is tried by calls of one architecture.
    let is_here = |test: &&&str| cfg!(target_arch = "x86_64") || !test.starts_with("jail::");
    let tests: Vec<&str> = CONFINED.iter().filter(is_here).copied().collect();
    for version in 1..WHOLE.min(landlock_version()) {
        let mut command = Command::new(this_program());
        command.args(["--exact", "--test-threads=2"]).args(&tests);
        command.env(LACKS, NEWER_LANDLOCK);
        check_passed(&run_on(version, command), tests.len());
    }
}

#[tokio::test]
async fn hooks_run_without_seccomp() {
    if !TestPool::is_confined_whole().await {
        return;
    }
    // The filter that hides it is in place before it is hidden.
    check(&run_without(&[libc::SYS_seccomp], this_program(), "seccomp"));
}

#[test]
fn hooks_run_without_the_launcher() {
    let folder = tempfile::tempdir().expect("a folder");
    let alone = folder.path().join("deeper").join("runner");
    std::fs::create_dir(folder.path().join("deeper")).expect("made");
    link_or_copy(&this_program(), &alone);
    check(&run_without(&[], alone, "nexus-jail"));
}

fn link_or_copy(from: &Path, to: &Path) {
    if std::fs::hard_link(from, to).is_err() {
        std::fs::copy(from, to).expect("copied");
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the test that runs this binary again tells it what the machine lacks"
)]
#[tokio::test(flavor = "multi_thread")]
async fn the_machine_lacks_what_it_is_to_lack() {
    let pool = TestPool::start(&[]).await;
    let missing = pool.pool.missing_confinement().join("; ");

    let level = pool.pool.sandbox_level();
    match std::env::var(LACKS) {
        Ok(lacks) if lacks == NEWER_LANDLOCK => assert_eq!((level, missing.as_str()), (SandboxLevel::Covered, "")),
        Ok(lacks) => {
            assert_eq!(level, SandboxLevel::Degraded);
            assert!(missing.contains(&lacks), "`{lacks}` is to be missing, `{missing}` is");
        }
        // Outside of the tests above the machine is to be whole.
        Err(_) if says("NEXUS_SANDBOX", "absent") => assert_ne!(missing, "", "NEXUS_SANDBOX=absent"),
        Err(_) => {
            assert_eq!(missing, "", "NEXUS_SANDBOX=absent leaves this out");
            let is_whole = landlock_version() >= WHOLE;
            assert_eq!(
                level,
                if is_whole {
                    SandboxLevel::Full
                } else {
                    SandboxLevel::Covered
                }
            );
        }
    }

    pool.stop().await;
}
