//! `nexus config check|show`: each service checks its own section, this command the shared ones.

use std::process::{Command, Output};

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};
use shared::process::WARNING;
use shared::process::config::CommonConfig as Shared;

use crate::args::{Common, ConfigAction};
use crate::complain;
use crate::connect::load_document;
use crate::exit::{Exit, failure};
use crate::launch::SERVICES;
use crate::launch::programs::absent_services;
use crate::output::View;

/// Runs the command.
///
/// # Errors
/// Fails if the configuration has a fault.
pub fn execute(common: &Common, action: ConfigAction) -> Result<()> {
    match action {
        ConfigAction::Check => check(common),
        ConfigAction::Show => show(common),
    }
}

fn check(common: &Common) -> Result<()> {
    let document = load_document(common);
    let (_, faults) = Shared::load(&document);
    let mut lines: Vec<String> = document
        .faults()
        .iter()
        .chain(&faults)
        .map(ToString::to_string)
        .collect();

    let (faults, warnings) = ask_services(document.source())?;
    lines.extend(faults);
    lines.sort();
    lines.dedup();

    let source = document.source();
    let report = json!({ "source": source, "ok": lines.is_empty(), "faults": lines, "warnings": warnings });
    let mut view = View::one(source, &report)?;
    for warning in &warnings {
        view = view.line(format!("{WARNING}{warning}"));
    }
    if lines.is_empty() {
        return view.line(format!("{source}: the configuration is sound")).show(common);
    }

    view.show(common)?;
    for line in &lines {
        complain!("{line}");
    }

    Err(failure(Exit::No, format!("{} faults", lines.len())))
}

/// Returns the faults and the warnings that the services report about the configuration at `source`, each once.
///
/// # Errors
/// Fails if a service cannot be run.
pub fn ask_services(source: &str) -> Result<(Vec<String>, Vec<String>)> {
    let (mut faults, mut warnings) = (Vec::new(), Vec::new());
    for name in SERVICES {
        let answer = ask_service(name, "--check", source)?;
        warnings.extend(warnings_in(&answer));
        faults.extend(faults_in(name, &answer));
    }

    faults.sort();
    faults.dedup();
    Ok((faults, warnings))
}

/// Runs service `name` on the configuration at `source` with `flag`.
fn ask_service(name: &str, flag: &str, source: &str) -> Result<Output> {
    let me = std::env::current_exe().context("failed to find the program file of nexus")?;
    let program = me.with_file_name(name);
    let mut command = Command::new(&program);
    command.arg(flag);
    if std::path::Path::new(source).exists() {
        command.arg("--config").arg(source);
    }
    command.output().with_context(|| {
        if program.exists() {
            format!("failed to run {}", program.display())
        } else {
            absent_services(&me)
        }
    })
}

/// Returns the warnings in the output of `{name} --check`: settings that are valid but weaker than they should be.
fn warnings_in(answer: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    text.lines()
        .filter_map(|line| line.strip_prefix(WARNING).map(str::to_owned))
        .collect()
}

/// Returns the faults in the output of `{name} --check`: exit code 2 and one line per fault.
fn faults_in(name: &str, answer: &Output) -> Vec<String> {
    if answer.status.success() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&answer.stderr).into_owned();
    let own = format!("{name}: ");
    text.lines()
        .filter(|line| !line.is_empty())
        .map(|l| l.strip_prefix(&own).unwrap_or(l).to_owned())
        .collect()
}

fn show(common: &Common) -> Result<()> {
    let document = load_document(common);
    let (shared, _) = Shared::load(&document);
    let mut texts = vec![toml::to_string(&shared).context("failed to write TOML")?];
    for name in SERVICES {
        let output = ask_service(name, "--show", document.source())?;
        texts.push(String::from_utf8_lossy(&output.stdout).into_owned());
    }

    let mut whole = Map::new();
    for text in &texts {
        let part: Map<String, Value> = toml::from_str(text).context("failed to read the configuration of a service")?;
        whole.extend(part);
    }

    let source = document.source();
    View::one(source, &whole)?
        .line(format!("# {source}\n{}", texts.join("\n")))
        .show(common)
}
