//! Process of hook-svc.

#[global_allocator]
static ALLOCATOR: shared::process::Allocator = shared::process::Allocator;

fn main() -> std::process::ExitCode {
    shared::process::run::<hook_svc::HookService>()
}
