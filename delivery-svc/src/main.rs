//! The process `delivery-svc`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: shared::process::Allocator = shared::process::Allocator;

fn main() -> ExitCode {
    shared::process::run::<delivery_svc::DeliveryService>()
}
