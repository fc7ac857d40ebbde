//! `nexus hook push`: puts hook files in force from any directory.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use shared::model::hook_api::{HookView, OPERATOR, PushHook};

use super::{ask_hooks, show};
use crate::args::Common;
use crate::complain;
use crate::connect::connect_bus;
use crate::exit::{Exit, ExitContext as _, failure};
use crate::output::{View, plain_lines};

pub(super) async fn run(common: &Common, path: &Path, id: Option<String>) -> Result<()> {
    let is_directory = path.is_dir();
    let files = if is_directory {
        if id.is_some() {
            let text = format!("--id names one hook, {} is a directory", path.display());
            return Err(failure(Exit::Usage, text));
        }
        hook_svc::registry::directory::hook_files(path)?
    } else {
        let id = match id {
            Some(id) => id,
            None => hook_stem(path)?,
        };
        vec![(id, path.to_path_buf())]
    };

    if files.is_empty() {
        let text = format!("there is no hook in {}", path.display());
        return Err(failure(Exit::NotFound, text));
    }

    let bus = connect_bus(common).await?;
    let mut views = Vec::new();

    let mut refused = 0_usize;
    for (id, file) in files {
        let source = std::fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()));
        let source = source.exit(Exit::Usage)?;
        let question = PushHook {
            id: id.clone(),
            source,
            created_by: OPERATOR.to_owned(),
        };

        match ask_hooks::<_, HookView>(&bus, "push", &question).await {
            Ok(view) => views.push(view),
            Err(error) if !is_directory => return Err(place_fault(&file, error)),
            Err(error) => {
                complain!("{}", plain_lines(&format!("{:#}", place_fault(&file, error))));
                refused += 1;
            }
        }
    }

    let objects = match views.as_slice() {
        [only] if !is_directory => View::of(only)?,
        all => View::of(all)?,
    };
    let lines = views
        .iter()
        .map(|view| format!("{} is {}", view.id, show::name(view.status)));
    let lines: Vec<String> = lines.collect();
    objects
        .ids(views.iter().map(|view| view.id.clone()))
        .line(lines.join("\n"))
        .show(common)?;

    if refused > 0 {
        return Err(failure(Exit::Refused, format!("{refused} files were refused")));
    }

    Ok(())
}

/// Returns the error of a service about the source in `file`; a fault in a line names both: `hooks/a.ts:2: …`.
pub(super) fn place_fault(file: &Path, error: anyhow::Error) -> anyhow::Error {
    let text = format!("{error:#}");
    let shown = file.display();
    let in_line = text.strip_prefix("line ").and_then(|rest| rest.split_once(": "));
    match in_line {
        Some((line, fault)) if line.parse::<usize>().is_ok() => {
            failure(Exit::of_error(&error), format!("{shown}:{line}: {fault}"))
        }
        Some(_) | None => error.context(shown.to_string()),
    }
}

fn hook_stem(path: &Path) -> Result<String> {
    let name = PathBuf::from(path)
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let name = name.with_context(|| format!("{}: expected the path of a file", path.display()))?;
    Ok(name.strip_suffix(".ts").unwrap_or(&name).to_owned())
}
