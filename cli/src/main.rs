//! The `nexus` binary.

use std::process::ExitCode;

use clap::Parser as _;
use cli::args::Cli;
use cli::output::{ReaderGone, plain_lines};

#[global_allocator]
static ALLOCATOR: shared::process::Allocator = shared::process::Allocator;

#[tokio::main]
async fn main() -> ExitCode {
    match cli::execute(Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<ReaderGone>() => ExitCode::SUCCESS,
        Err(error) => {
            // What a service answers may repeat what a stranger wrote.
            eprintln!("nexus: {}", plain_lines(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}
