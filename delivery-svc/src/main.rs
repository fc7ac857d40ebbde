//! The process `delivery-svc`.

use std::process::ExitCode;

fn main() -> ExitCode {
    shared::process::run::<delivery_svc::DeliveryService>()
}
