//! `nexus-jail [key=value…] -- PROGRAM [ARG…]`: becomes PROGRAM, confined.
//!
//! A process of its own, so that nothing runs between `fork` and `exec` of a threaded parent. What is confined: the files
//! that may be read, and the one that may be written (Landlock); TCP and signals beyond the process (Landlock); system
//! calls (seccomp: no sockets, no processes, no tracing, no mounts); memory, files and their size (resource limits); the
//! environment. All of it holds for every process that descends from it, and cannot be taken back.
//!
//! Of what its parent left open it has the three pipes alone, and `keep=NUMBER`; `ro=PATH` may be read, `rx=PATH` also executed, `wf=PATH` is an existing file that may be written; `env=KEY:VALUE`;
//! `parent=PID` is the process that starts it; it dies with the thread of it that did; `user=UID:GID` is what it becomes
//! before anything else. `data_mb`, `file_mb`, `files`,
//! `cpu_s` are limits; `errno=NUMBER` is what refused calls answer, EPERM where it is not said: with another one it shows
//! who refused, the filter or what lies behind it; `strict=1` refuses to run where the kernel lacks a mechanism,
//! else what is missing is said on standard error as `missing: …`. Exit code 97 = refused.
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
