//! The broker's process.

use std::process::ExitCode;

fn main() -> ExitCode {
    shared::process::run::<broker_svc::BrokerService>()
}
