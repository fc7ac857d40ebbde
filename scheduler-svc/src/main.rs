//! The process `scheduler-svc`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: shared::process::Allocator = shared::process::Allocator;

fn main() -> ExitCode {
    shared::process::run::<scheduler_svc::SchedulerService>()
}
