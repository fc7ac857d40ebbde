//! `nexus config check|show`: each service checks its own section, this command the shared ones.

use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail};
use shared::process::config::Common as Shared;

use crate::args::{Common, ConfigAction};
use crate::launch::SERVICES;
use crate::output::{document, print};

/// Runs the command.
///
/// # Errors
/// Where something is wrong with the configuration.
pub fn execute(common: &Common, action: ConfigAction) -> Result<()> {
    match action {
        ConfigAction::Check => check(common),
        ConfigAction::Show => show(common),
    }
}

fn check(common: &Common) -> Result<()> {
    let document = document(common);
    let (_, faults) = Shared::load(&document);
    let mut lines: Vec<String> = document
        .faults()
        .iter()
        .chain(&faults)
        .map(ToString::to_string)
        .collect();
    for name in SERVICES {
        lines.extend(service_faults(name, document.source())?);
    }
    lines.sort();
    lines.dedup();
    if lines.is_empty() {
        println!("{}: the configuration is sound", document.source());
        return Ok(());
    }
    for line in &lines {
        eprintln!("{line}");
    }
    bail!("{} faults", lines.len());
}

/// Runs service `name` on the configuration at `source` with `flag`.
fn ask_service(name: &str, flag: &str, source: &str) -> Result<Output> {
    let me = std::env::current_exe().context("find this binary")?;
    let program = me.with_file_name(name);
    let mut command = Command::new(&program);
    command.arg(flag);
    if std::path::Path::new(source).exists() {
        command.arg("--config").arg(source);
    }
    command.output().with_context(|| format!("run {}", program.display()))
}

/// What `{name} --check` says of the file: exit code 2 and a line a fault.
fn service_faults(name: &str, source: &str) -> Result<Vec<String>> {
    let output = ask_service(name, "--check", source)?;
    if output.status.success() {
        return Ok(Vec::new());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let own = format!("{name}: ");
    Ok(text
        .lines()
        .filter(|line| !line.is_empty())
        .map(|l| l.strip_prefix(&own).unwrap_or(l).to_owned())
        .collect())
}

fn show(common: &Common) -> Result<()> {
    let document = document(common);
    let (shared, _) = Shared::load(&document);
    let text = toml::to_string(&shared).context("write TOML")?;
    print(&format!("# {}\n{text}", document.source()))?;
    for name in SERVICES {
        let output = ask_service(name, "--show", document.source())?;
        print(&format!("\n{}", String::from_utf8_lossy(&output.stdout)))?;
    }
    Ok(())
}
