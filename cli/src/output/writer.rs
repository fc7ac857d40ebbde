//! The one writer of all commands: it never panics if its reader has gone, and escapes text that could control a
//! terminal.

use std::io::Write as _;
use std::sync::OnceLock;

use anyhow::{Context as _, Result};

use super::escape::{harmless, plain_json};

/// The reader of this process's output has gone (`nexus … | head`): no fault, and no more output is wanted.
#[derive(Debug, Clone, Copy)]
pub struct ReaderGone;

impl std::fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the reader of the output has gone")
    }
}

impl std::error::Error for ReaderGone {}

/// Prints `text`, with the characters escaped that could control the terminal.
///
/// # Errors
/// Returns [`ReaderGone`] if the reader has gone, and an error if the output cannot be written.
pub fn print(text: &str) -> Result<()> {
    let text = harmless(text.to_owned());
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        written => written.context("failed to write to the standard output"),
    }
}

/// First write of `say!` that failed, if any.
static FAILED: OnceLock<std::io::Error> = OnceLock::new();

/// Writes `line` to the standard output for `say!`, with the characters escaped that could control the terminal. A
/// command that has effects goes on with them if its reader goes, so this returns no error: [`check_written`] returns it
/// at the end.
pub fn say_line(line: std::fmt::Arguments<'_>) {
    let text = harmless(format!("{line}\n"));
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        FAILED.get_or_init(|| error);
    }
}

/// Writes `line` to the standard error for `complain!`, with the characters escaped that could control the terminal. A
/// failed write is ignored: there is no other place to report it.
pub fn complain_line(line: std::fmt::Arguments<'_>) {
    let text = harmless(format!("{line}\n"));
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Checks that everything that was given to `say!` could be written.
///
/// # Errors
/// Fails if the standard output could not be written, for example to a full disk. A reader that has gone is no error.
pub fn check_written() -> Result<()> {
    match FAILED.get() {
        Some(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(anyhow::anyhow!("write to the standard output: {error}"))
        }
        Some(_) | None => Ok(()),
    }
}

/// Prints a line to the standard output, as `println!` does, but never panics: a command whose reader has gone still
/// ends its work.
#[macro_export]
macro_rules! say {
    () => { $crate::output::say_line(format_args!("")) };
    ($($text:tt)*) => { $crate::output::say_line(format_args!($($text)*)) };
}

/// Prints a line to the standard error, as `eprintln!` does, but never panics.
#[macro_export]
macro_rules! complain {
    ($($text:tt)*) => { $crate::output::complain_line(format_args!($($text)*)) };
}

/// Prints `value` as JSON.
///
/// # Errors
/// Fails if `value` has no JSON form. Returns [`ReaderGone`] if the reader has gone.
pub fn print_json(value: &impl serde::Serialize) -> Result<()> {
    print(&(json_text(value)? + "\n"))
}

/// Returns `value` as JSON over several lines, with the characters escaped that could control the terminal.
///
/// # Errors
/// Fails if `value` has no JSON form.
pub fn json_text(value: &impl serde::Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value).context("failed to write JSON")?;
    Ok(plain_json(&text))
}

/// Prints `value` as one line of JSON.
///
/// # Errors
/// Fails if `value` has no JSON form. Returns [`ReaderGone`] if the reader has gone.
pub fn json_line(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string(value).context("failed to write JSON")?;
    print(&(plain_json(&text) + "\n"))
}
