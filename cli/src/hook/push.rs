//! `nexus hook push`: puts hook files in force from any directory.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use shared::model::hook_api::{HookView, OPERATOR, PushHook};

use super::{ask, show};
use crate::args::Common;
use crate::output::{bus, json, plain_lines};
use crate::{complain, say};

pub(super) async fn run(common: &Common, path: &Path, id: Option<String>) -> Result<()> {
    let files = if path.is_dir() {
        if id.is_some() {
            bail!("--id names one hook, {} is a directory", path.display());
        }
        hook_svc::registry::directory::hook_files(path)?
    } else {
        let id = match id {
            Some(id) => id,
            None => stem(path)?,
        };
        vec![(id, path.to_path_buf())]
    };

    if files.is_empty() {
        bail!("there is no hook in {}", path.display());
    }

    let bus = bus(common).await?;
    let mut views = Vec::new();

    let mut refused = 0_usize;
    for (id, file) in files {
        let source = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let question = PushHook {
            id: id.clone(),
            source,
            created_by: OPERATOR.to_owned(),
        };

        match ask::<_, HookView>(&bus, "push", &question).await {
            Ok(view) => views.push(view),
            Err(error) => {
                complain!("{}: {}", file.display(), plain_lines(&format!("{error:#}")));
                refused += 1;
            }
        }
    }

    if common.json {
        json(&views)?;
    } else {
        for view in &views {
            say!("{} is {}", view.id, show::name(view.status));
        }
    }

    if refused > 0 {
        bail!("{refused} files were refused");
    }

    Ok(())
}

fn stem(path: &Path) -> Result<String> {
    let name = PathBuf::from(path)
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    let name = name.with_context(|| format!("{} names no file", path.display()))?;
    Ok(name.strip_suffix(".ts").unwrap_or(&name).to_owned())
}
