//! `nexus-tether BYTES|all -- PROGRAM [ARG…]`: runs PROGRAM, and ends it with all that it started once nobody holds the
//! other end of our standard input.
//!
//! A broker that is killed kills nobody: without this its programs would go on beside those of the broker that takes its
//! sessions over. So the broker keeps our input open as long as it wants the program. The first BYTES of it are the
//! program's, which then sees its end; with `all` every byte is, and the program has a moment to end by itself. Our
//! process group, which whoever starts us makes ours alone, is killed whole. Output, errors and exit code are the
//! program's. Exit code 127 = it cannot be started.

use std::io::{ErrorKind, Read as _, Write as _, stdin};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::time::Duration;

use rustix::process::{Signal, kill_current_process_group};

/// How long a program that was given all may take to end once its input has.
const GRACE: Duration = Duration::from_secs(2);
/// Bytes read at once.
const BUFFER: usize = 64 * 1024;
/// Exit code where the program cannot be started, or nothing is said that can be done.
const NOT_STARTED: u8 = 127;
/// Exit code of a program that a signal ended, before the signal's number.
const SIGNALLED: i32 = 128;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let handed = args.next().and_then(|handed| handed.into_string().ok());
    let handed = match handed.as_deref() {
        Some("all") => Some(None),
        Some(bytes) => bytes.parse::<u64>().ok().map(Some),
        None => None,
    };
    let (Some(handed), Some(_), Some(program)) = (handed, args.next(), args.next()) else {
        eprintln!("nexus-tether: expected BYTES|all -- PROGRAM [ARG…]");
        return ExitCode::from(NOT_STARTED);
    };
    let mut child = match Command::new(&program).args(args).stdin(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("{} cannot be started: {error}", program.display());
            return ExitCode::from(NOT_STARTED);
        }
    };
    let input = child.stdin.take();
    let (_ended, end) = sync_channel::<()>(0);
    std::thread::spawn(move || hold(input, handed, &end));
    let Ok(status) = child.wait() else {
        return ExitCode::from(NOT_STARTED);
    };
    let code = status.code().unwrap_or(SIGNALLED + status.signal().unwrap_or_default());
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

/// Hands the program what is its, then waits for the end of our input. `end` is closed when the program has ended.
fn hold(program: Option<ChildStdin>, handed: Option<u64>, end: &Receiver<()>) {
    let (chunks, handing) = channel();
    // On a thread of its own: a program that does not read holds up the writing, and must not hold up the reading.
    std::thread::spawn(move || hand(program, handing));
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
            // One that has ended, or reads no more, is none the worse.
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

/// Writes what comes of `handing` to the program's input, and ends it.
fn hand(program: Option<ChildStdin>, handing: Receiver<Vec<u8>>) {
    let Some(mut program) = program else { return };
    for chunk in handing {
        if program.write_all(&chunk).is_err() {
            return;
        }
    }
}
