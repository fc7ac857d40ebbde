//! `nexus-tether [hide=PATH…] BYTES|all -- PROGRAM [ARG…]`: runs PROGRAM, and ends it with all processes that it
//! started once the other end of standard input is closed.
//!
//! A broker that is killed cannot end its programs: without this launcher they would go on beside those of the broker
//! that takes its sessions over. So the broker keeps the launcher's input open as long as it wants the program. The
//! first BYTES of the input are the program's, which then sees the end of its input; with `all` every byte is, and
//! the program has a moment to end by itself. The launcher's process group, which the parent creates for it alone, is
//! killed as a whole. Output, errors and exit code are the program's. Exit code 127 = the program cannot be started.
//!
//! PROGRAM and all processes that it starts can neither read nor change the files at each PATH ([`hiding`]).
//!
//! `nexus-tether until=PID -- PROGRAM [ARG…]` becomes PROGRAM, which the kernel kills when the thread of process PID
//! that started it ends. `nexus up` starts the server and the services in this way: they end when it ends, by any
//! signal and at any moment.

use std::ffi::OsString;
use std::io::{ErrorKind, Read as _, Write as _, stdin};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::time::Duration;

use rustix::process::{Signal, kill_current_process_group};

/// Prefix of a path to be hidden.
const HIDE: &str = "hide=";
/// Time in which a program that was given all input must end after the input has ended.
const GRACE: Duration = Duration::from_secs(2);
/// Number of bytes read at once.
const BUFFER: usize = 64 * 1024;
/// Exit code if the program cannot be started, or the arguments are invalid.
const NOT_STARTED: u8 = 127;
/// Exit code of a program that a signal ended, to which the signal's number is added.
const SIGNALLED: i32 = 128;

#[cfg(target_os = "linux")]
#[path = "../hiding.rs"]
mod hiding;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1).peekable();
    let mut hidden = Vec::new();
    while let Some(path) = args.peek().and_then(|arg| arg.to_str()?.strip_prefix(HIDE)) {
        hidden.push(PathBuf::from(path));
        args.next();
    }

    let handed = args.next().and_then(|handed| handed.into_string().ok());
    if let Some(parent) = handed.as_deref().and_then(|handed| handed.strip_prefix("until=")) {
        return become_program(parent, args.skip(1));
    }

    let handed = match handed.as_deref() {
        Some("all") => Some(None),
        Some(bytes) => bytes.parse::<u64>().ok().map(Some),
        None => None,
    };
    let (Some(handed), Some(_), Some(program)) = (handed, args.next(), args.next()) else {
        eprintln!("nexus-tether: expected BYTES|all -- PROGRAM [ARG…]");
        return ExitCode::from(NOT_STARTED);
    };

    // Before the child exists: hidden files must be hidden from its first instruction.
    if let Err(error) = hide(&hidden) {
        eprintln!("nexus-tether: {} is not started: {error}", program.display());
        return ExitCode::from(NOT_STARTED);
    }

    let mut child = match Command::new(&program).args(args).stdin(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("{} cannot be started: {error}", program.display());
            return ExitCode::from(NOT_STARTED);
        }
    };

    // A thread waits for the end of our input, which means that the broker is gone.
    let input = child.stdin.take();
    let (_ended, end) = sync_channel::<()>(0);
    std::thread::spawn(move || hold_until_end(input, handed, &end));
    let Ok(status) = child.wait() else {
        return ExitCode::from(NOT_STARTED);
    };

    // Shells report a signal as 128 and its number; callers expect the same.
    let code = status.code().unwrap_or(SIGNALLED + status.signal().unwrap_or_default());
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

#[cfg(target_os = "linux")]
fn hide(hidden: &[PathBuf]) -> Result<(), String> {
    if hidden.is_empty() {
        return Ok(());
    }
    hiding::hide(hidden)
}

#[cfg(not(target_os = "linux"))]
fn hide(_hidden: &[PathBuf]) -> Result<(), String> {
    Ok(())
}

/// Becomes the program of `words`, which ends with process `parent`; returns only if that fails.
fn become_program(parent: &str, mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(program) = words.next() else {
        eprintln!("nexus-tether: expected until=PID -- PROGRAM [ARG…]");
        return ExitCode::from(NOT_STARTED);
    };

    if let Err(error) = end_with(parent) {
        eprintln!("nexus-tether: {} is not started: {error}", program.display());
        return ExitCode::from(NOT_STARTED);
    }

    let error = Command::new(&program).args(words).exec();
    eprintln!("{} cannot be started: {error}", program.display());

    ExitCode::from(NOT_STARTED)
}

/// Has the kernel kill this process, and the program that it becomes, when its parent ends.
#[cfg(target_os = "linux")]
fn end_with(parent: &str) -> Result<(), String> {
    use rustix::process::{getppid, set_parent_process_death_signal};

    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| error.to_string())?;
    // The parent may have ended before the kernel got the request: then another process is our parent now.
    let found = getppid().map(|pid| pid.as_raw_nonzero().to_string());
    if found.as_deref() == Some(parent) {
        Ok(())
    } else {
        Err(format!("process {parent} has ended"))
    }
}

/// Other systems have no such signal: a started program outlives a parent that is killed.
#[cfg(not(target_os = "linux"))]
fn end_with(_parent: &str) -> Result<(), String> {
    Ok(())
}

/// Hands the program its part of the input, then waits for the end of our input. `end` is closed when the program has
/// ended.
fn hold_until_end(program: Option<ChildStdin>, handed: Option<u64>, end: &Receiver<()>) {
    let (chunks, handing) = channel();
    // A program that does not read blocks the writing, which must not block the reading: it has its own thread.
    std::thread::spawn(move || write_chunks(program, handing));
    let (mut input, mut buffer) = (stdin().lock(), vec![0; BUFFER]);
    let mut chunks = Some(chunks).filter(|_| handed != Some(0));

    let mut left = handed.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    loop {
        let count = match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count.min(left),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => break,
        };

        if let Some(program) = &chunks {
            // It does not matter if the program has ended or reads no more.
            let _ = program.send(buffer[..count].to_vec());
        }

        if handed.is_some() {
            left -= count;
            chunks = chunks.filter(|_| left > 0);
        }
    }

    drop(chunks);

    if handed.is_none() {
        let _ = end.recv_timeout(GRACE);
    }

    let _ = kill_current_process_group(Signal::KILL);
}

/// Writes the chunks of `handing` to the program's input, then closes it.
fn write_chunks(program: Option<ChildStdin>, handing: Receiver<Vec<u8>>) {
    let Some(mut program) = program else { return };
    for chunk in handing {
        if program.write_all(&chunk).is_err() {
            return;
        }
    }
}
