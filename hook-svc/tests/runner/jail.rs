//! What the launcher's filter of system calls refuses, told from what the kernel would refuse anyway: refused calls answer
//! an error here that nothing else answers.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::pool::TestPool;

/// EISNAM: none of the calls below answers it of itself.
const REFUSAL: i32 = 120;

/// Makes each call by its number, as the C library would, and tells the error of each, 0 where there was none.
const CALLS: &str = r#"import { dlopen, read } from "bun:ffi";
import fs from "node:fs";
const types = { syscall: { args: ["i64", "i64", "i64", "i64", "i64"], returns: "i64" }, __errno_location: { args: [], returns: "ptr" } };
const { syscall, __errno_location } = dlopen("libc.so.6", types).symbols;
const errno = __errno_location();
const said = JSON.parse(process.argv[2]).map((call) => (Number(syscall(...call)) === -1 ? read.i32(errno) : 0));
const status = fs.readFileSync("/proc/self/status", "utf8");
const field = (name) => status.match(new RegExp(`^${name}:\\s*(\\d+)`, "m"))?.[1];
console.log(JSON.stringify({ said, seccomp: field("Seccomp"), privileges: field("NoNewPrivs"), pid: process.pid }));
"#;

/// Runs [`CALLS`] in a jail with a filter that answers [`REFUSAL`].
fn run(folder: &Path, calls: &[[i64; 5]]) -> Value {
    let script = folder.join("calls.ts");
    std::fs::write(&script, CALLS).expect("written");
    let bun = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/bin/bun");
    let bun = bun.canonicalize().expect("make tools");

    let output = Command::new(env!("CARGO_BIN_EXE_nexus-jail"))
        .args(["strict=0", &format!("errno={REFUSAL}")])
        .arg(format!("ro={}", folder.display()))
        .args(["ro=/proc/self", "ro=/dev/null", "ro=/dev/urandom"])
        .args(["/lib/x86_64-linux-gnu", "/lib64"].map(|path| format!("rx={path}")))
        .arg(format!("rx={}", bun.display()))
        .arg("--")
        .arg(&bun)
        .args(["--no-install", "run"])
        .arg(&script)
        .arg(json!(calls).to_string())
        .current_dir(folder)
        .output()
        .expect("the launcher runs");

    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        let said = String::from_utf8_lossy(&output.stderr);
        panic!("{error}: {}, {said}", output.status)
    })
}

/// Calls that reach out of a process, by name and number.
#[expect(clippy::too_many_lines, reason = "a story or a table is read from top to bottom")]
fn refused() -> Vec<(&'static str, [i64; 5])> {
    let plain = [
        ("socket", libc::SYS_socket),
        ("socketpair", libc::SYS_socketpair),
        ("connect", libc::SYS_connect),
        ("bind", libc::SYS_bind),
        ("listen", libc::SYS_listen),
        ("accept4", libc::SYS_accept4),
        ("io_uring_enter", libc::SYS_io_uring_enter),
        ("io_uring_register", libc::SYS_io_uring_register),
        ("ptrace", libc::SYS_ptrace),
        ("process_vm_readv", libc::SYS_process_vm_readv),
        ("process_vm_writev", libc::SYS_process_vm_writev),
        ("kill", libc::SYS_kill),
        ("tkill", libc::SYS_tkill),
        ("tgkill", libc::SYS_tgkill),
        ("pidfd_open", libc::SYS_pidfd_open),
        ("pidfd_send_signal", libc::SYS_pidfd_send_signal),
        ("pidfd_getfd", libc::SYS_pidfd_getfd),
        ("bpf", libc::SYS_bpf),
        ("perf_event_open", libc::SYS_perf_event_open),
        ("userfaultfd", libc::SYS_userfaultfd),
        ("mount", libc::SYS_mount),
        ("umount2", libc::SYS_umount2),
        ("unshare", libc::SYS_unshare),
        ("setns", libc::SYS_setns),
        ("keyctl", libc::SYS_keyctl),
        ("add_key", libc::SYS_add_key),
        ("request_key", libc::SYS_request_key),
        ("init_module", libc::SYS_init_module),
        ("finit_module", libc::SYS_finit_module),
        ("delete_module", libc::SYS_delete_module),
        ("kexec_load", libc::SYS_kexec_load),
        ("open_by_handle_at", libc::SYS_open_by_handle_at),
        ("chroot", libc::SYS_chroot),
        ("pivot_root", libc::SYS_pivot_root),
        ("fsopen", libc::SYS_fsopen),
        ("move_mount", libc::SYS_move_mount),
        ("open_tree", libc::SYS_open_tree),
        ("mount_setattr", libc::SYS_mount_setattr),
        ("setuid", libc::SYS_setuid),
        ("setgid", libc::SYS_setgid),
        ("setresuid", libc::SYS_setresuid),
        ("setresgid", libc::SYS_setresgid),
        ("setreuid", libc::SYS_setreuid),
        ("setregid", libc::SYS_setregid),
        ("setgroups", libc::SYS_setgroups),
        ("capset", libc::SYS_capset),
        ("personality", libc::SYS_personality),
        ("fchmod", libc::SYS_fchmod),
        ("fchmodat", libc::SYS_fchmodat),
        ("fchown", libc::SYS_fchown),
        ("fchownat", libc::SYS_fchownat),
        ("utimensat", libc::SYS_utimensat),
        ("setxattr", libc::SYS_setxattr),
        ("lsetxattr", libc::SYS_lsetxattr),
        ("fsetxattr", libc::SYS_fsetxattr),
        ("removexattr", libc::SYS_removexattr),
        ("setrlimit", libc::SYS_setrlimit),
        ("prlimit64", libc::SYS_prlimit64),
        ("execveat", libc::SYS_execveat),
        ("clock_settime", libc::SYS_clock_settime),
        ("settimeofday", libc::SYS_settimeofday),
        ("adjtimex", libc::SYS_adjtimex),
        ("clock_adjtime", libc::SYS_clock_adjtime),
        ("swapon", libc::SYS_swapon),
        ("syslog", libc::SYS_syslog),
        ("quotactl", libc::SYS_quotactl),
        ("shmget", libc::SYS_shmget),
        ("shmat", libc::SYS_shmat),
        ("semget", libc::SYS_semget),
        ("msgget", libc::SYS_msgget),
        ("memfd_create", libc::SYS_memfd_create),
        ("sched_setscheduler", libc::SYS_sched_setscheduler),
        ("sched_setattr", libc::SYS_sched_setattr),
        ("sched_setaffinity", libc::SYS_sched_setaffinity),
        ("setpriority", libc::SYS_setpriority),
        ("inotify_init1", libc::SYS_inotify_init1),
        ("inotify_add_watch", libc::SYS_inotify_add_watch),
        ("flock", libc::SYS_flock),
        ("seccomp", libc::SYS_seccomp),
        ("unlinkat", libc::SYS_unlinkat),
        ("ftruncate", libc::SYS_ftruncate),
        ("prctl, but for names", libc::SYS_prctl),
        ("fcntl, but for what Bun does", libc::SYS_fcntl),
        ("ioctl, but for what Bun does", libc::SYS_ioctl),
    ];

    // Without a filter these arguments would be wrong, and nothing would happen.
    let mut calls: Vec<_> = plain.map(|(name, number)| (name, [number, -1, -1, -1, -1])).into();
    calls.push(("clone as a process", [libc::SYS_clone, libc::SIGCHLD.into(), 0, 0, 0]));
    let (nowhere, empties) = (-1, libc::O_TRUNC.into());
    calls.push(("an open that empties", [libc::SYS_openat, nowhere, 0, empties, 0]));
    let (own_death, no_lock_of_a_file) = (libc::PR_SET_PDEATHSIG, libc::F_OFD_SETLK);
    calls.push(("prctl of its death", [libc::SYS_prctl, own_death.into(), 0, 0, 0]));
    calls.push(("a lock of a file", [libc::SYS_fcntl, 0, no_lock_of_a_file.into(), 0, 0]));

    calls
}

/// The first version, as `1.2.3`, behind the first `before` in `text`.
fn version_behind<'a>(text: &'a str, before: &str) -> &'a str {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no `{before}`"));
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(rest.len());
    rest[..end].trim_end_matches('.')
}

/// Another Bun may need other calls: they are recorded again with it (`docs/hooks-isolation.md`, "Working on it").
#[test]
fn the_calls_were_recorded_with_the_bun_that_is_fetched() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect(path);

    let lock = read("deploy/tools.lock");
    let versions: std::collections::BTreeSet<&str> = lock
        .lines()
        .filter_map(|line| line.strip_prefix("bun ")?.split_ascii_whitespace().next())
        .collect();
    assert_eq!(versions.len(), 1, "one Bun for all platforms: {versions:?}");

    for page in ["hook-svc/src/jail/calls.rs", "docs/hooks-isolation.md"] {
        let recorded = version_behind(&read(page), "Bun 1.").to_owned();
        assert!(
            versions.contains(format!("1.{recorded}").as_str()),
            "{page}: Bun 1.{recorded}, fetched is {versions:?}"
        );
    }
}

#[tokio::test]
async fn the_filter_itself_refuses_what_reaches_out() {
    if !TestPool::is_confined_whole().await {
        return;
    }

    let folder = tempfile::tempdir().expect("a folder");
    let refused = refused();
    let mut calls: Vec<[i64; 5]> = refused.iter().map(|(_, call)| *call).collect();

    // Of those that are judged by their arguments, what is left.
    let own_limit = [libc::SYS_prlimit64, 0, 7, 0, 0];
    calls.extend([own_limit, [libc::SYS_getpid, 0, 0, 0, 0]]);

    // Refused by somebody else: the error is not the filter's.
    calls.push([libc::SYS_close, -1, 0, 0, 0]);
    // Neither needed nor known to reach out, by an old and by an unheard-of number: they are not there.
    calls.extend([libc::SYS_getitimer, libc::SYS_lookup_dcookie, 9_999].map(|call| [call, -1, -1, -1, -1]));
    let told = run(folder.path(), &calls);

    assert_eq!(
        (&told["seccomp"], &told["privileges"]),
        (&json!("2"), &json!("1")),
        "{told}"
    );

    let said: Vec<i64> = serde_json::from_value(told["said"].clone()).expect("numbers");
    for ((name, _), error) in refused.iter().zip(&said) {
        assert_eq!(*error, i64::from(REFUSAL), "{name}");
    }

    let absent = i64::from(libc::ENOSYS);
    assert_eq!(
        said[refused.len()..],
        [0, 0, libc::EBADF.into(), absent, absent, absent]
    );
}
