//! The `nexus` binary.

use std::process::ExitCode;

use clap::Parser as _;
use cli::args::Cli;
use cli::output::ReaderGone;

#[global_allocator]
static ALLOCATOR: shared::process::Allocator = shared::process::Allocator;

#[tokio::main]
async fn main() -> ExitCode {
    match cli::execute(Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<ReaderGone>() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nexus: {error:#}");
            ExitCode::FAILURE
        }
    }
}
