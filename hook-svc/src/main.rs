//! The process of hook-svc.

fn main() -> std::process::ExitCode {
    shared::process::run::<hook_svc::HookService>()
}
