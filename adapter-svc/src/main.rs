//! The process: see [`adapter_svc`].

fn main() -> std::process::ExitCode {
    shared::process::run::<adapter_svc::AdapterService>()
}
