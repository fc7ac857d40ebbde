//! The process `adapter-svc`; see [`adapter_svc`].

#[global_allocator]
static ALLOCATOR: shared::process::Allocator = shared::process::Allocator;

fn main() -> std::process::ExitCode {
    shared::process::run::<adapter_svc::AdapterService>()
}
