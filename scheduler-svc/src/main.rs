//! The process `scheduler-svc`.

use std::process::ExitCode;

fn main() -> ExitCode {
    shared::process::run::<scheduler_svc::SchedulerService>()
}
