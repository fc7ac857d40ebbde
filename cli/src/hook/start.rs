//! `nexus hook new`: writes the first file of a hook.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::args::Common;
use crate::exit::{Exit, ExitContext as _, failure};
use crate::output::View;

/// Types by which an editor completes hooks.
const TYPES: &str = include_str!("../../../hook-svc/types/nexus.d.ts");

/// Writes a hook named `name`, and the types beside it.
///
/// # Errors
/// Fails if the hook exists already, or if a file cannot be written.
pub(super) fn write(common: &Common, name: &str, dir: &Path) -> Result<()> {
    hook_svc::registry::authored::check_id(name).exit(Exit::Usage)?;
    let path = dir.join(format!("{name}.ts"));
    if path.exists() {
        return Err(failure(Exit::Refused, format!("{} exists already", path.display())));
    }

    let mut written = vec![path.display().to_string()];
    let types = dir.join("nexus.d.ts");
    write_file(&path, &hook_template(name))?;
    if !types.exists() {
        write_file(&types, TYPES)?;
        written.push(types.display().to_string());
    }

    let next = format!("nexus hook test {0} --text hello; nexus hook push {0}", path.display());
    written_view(&written, &next)?.show(common)
}

/// Returns the result of a command that has written the files `written`, with the next step.
pub(super) fn written_view(written: &[String], next: &str) -> Result<View> {
    let lines: Vec<String> = written.iter().map(|path| format!("wrote {path}")).collect();
    let view = View::of(&json!({ "written": written }))?;
    Ok(view
        .ids(written.iter().cloned())
        .line(lines.join("\n"))
        .line(format!("next: {next}")))
}

/// Writes `text` to `path`, and makes the directories above it.
pub(super) fn write_file(path: &Path, text: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("failed to create {}", parent.display()))?;
    }
    std::fs::write(path, text).with_context(|| format!("failed to write {}", path.display()))
}

/// Returns the source of a first hook; the path to the types is relative to the hook's file.
fn hook_template(name: &str) -> String {
    let up = match name.matches('/').count() {
        0 => "./".to_owned(),
        levels => "../".repeat(levels),
    };
    let title = name.rsplit('/').next().unwrap_or(name);
    format!(
        r#"/// <reference path="{up}nexus.d.ts" />
/**
 * @name {title}
 * @description Answers whoever says hello.
 * @mode persistent
 * @priority 50
 */
export default async function (ctx: HookContext): Promise<HookResult> {{
  const {{ event }} = ctx;
  if (event.direction !== "received" || !/\bhello\b/i.test(event.content)) return {{ fire: false }};

  return {{
    fire: true,
    routing: {{ persona: "default" }},
    context: {{ systemPrompt: "Somebody says hello. Greet them in one sentence." }},
  }};
}}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::hook_template;

    #[test]
    fn the_template_is_a_hook() {
        for name in ["greet", "work/greet"] {
            let metadata = hook_svc::registry::metadata::parse(name, &hook_template(name)).expect("a hook");
            assert_eq!(metadata.name, "greet");
        }
        assert!(hook_template("work/deep/x").contains("path=\"../../nexus.d.ts\""));
    }
}
