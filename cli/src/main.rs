//! The `nexus` binary.

use std::process::ExitCode;

use clap::Parser as _;
use cli::args::Cli;
use cli::exit::Exit;
use cli::output::{ReaderGone, check_written, plain_lines};

#[global_allocator]
static ALLOCATOR: shared::process::Allocator = shared::process::Allocator;

#[tokio::main]
async fn main() -> ExitCode {
    let done = cli::execute(Cli::parse()).await.and_then(|()| check_written());
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<ReaderGone>() => ExitCode::SUCCESS,
        Err(error) => {
            // A service's answer may repeat a stranger's text.
            cli::complain!("nexus: {}", plain_lines(&format!("{error:#}")));
            Exit::of_error(&error).into()
        }
    }
}
