//! `nexus-jail [key=value…] -- PROGRAM [ARG…]`: executes PROGRAM, confined.
//!
//! The jail is a process of its own, so that nothing runs between `fork` and `exec` of a threaded parent. It confines:
//! the files that may be read, and the one that may be written (Landlock); TCP and signals beyond the process
//! (Landlock); system calls (seccomp: no sockets, no processes, no tracing, no mounts); memory, files and their size
//! (resource limits); the environment. All of it holds for every descendant, and cannot be undone.
//!
//! Of the descriptors that its parent left open it keeps the three pipes and `keep=NUMBER`. `ro=PATH` may be read,
//! `rx=PATH` also executed, `wf=PATH` is an existing file that may be written; `env=KEY:VALUE` sets a variable.
//! `parent=PID` is the process that starts the jail; the jail dies with the thread that started it. `user=UID:GID` is
//! the user that it becomes first. `data_mb`, `file_mb`, `files`, `cpu_s` are limits. `errno=NUMBER` is the
//! error of refused calls, by default EPERM; another number shows whether the filter or the kernel refused. `strict=1`
//! refuses to run if the kernel lacks a mechanism; otherwise standard error has a line `missing: …` for each. With
//! `report=1` it has a line `older: Landlock` if the kernel's Landlock is older than the rules, which the filter of system
//! calls makes up for. Exit code 97 means refused.
//!
//! Source: `docs/design/hooks.md` §6.5, sandbox; kernel `Documentation/userspace-api/landlock.rst`.

#[cfg(target_os = "linux")]
#[path = "../jail.rs"]
mod jail;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    jail::run(&std::env::args().skip(1).collect::<Vec<_>>())
}

#[cfg(not(target_os = "linux"))]
fn main() -> std::process::ExitCode {
    eprintln!("missing: this system has neither Landlock nor seccomp");
    std::process::ExitCode::from(97)
}
