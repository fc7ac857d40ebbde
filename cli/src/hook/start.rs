//! `nexus hook new`: writes the first file of a hook.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::say;

/// Types by which an editor completes hooks.
const TYPES: &str = include_str!("../../../hook-svc/types/nexus.d.ts");

/// Writes a hook named `name`, and the types beside it.
///
/// # Errors
/// Fails if the hook exists already, or if a file cannot be written.
pub(super) fn write(name: &str, dir: &Path) -> Result<()> {
    hook_svc::registry::authored::check_id(name)?;
    let path = dir.join(format!("{name}.ts"));
    if path.exists() {
        bail!("{} is there already", path.display());
    }

    let types = dir.join("nexus.d.ts");
    put(&path, &template(name))?;

    if !types.exists() {
        put(&types, TYPES)?;
    }

    let path = path.display();
    say!("next: nexus hook test {path} --text hello; nexus hook push {path}");

    Ok(())
}

/// Writes `text` to `path`, makes the directories above it, and names the file.
pub(super) fn put(path: &Path, text: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
    }
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    say!("wrote {}", path.display());
    Ok(())
}

/// Returns the source of a first hook; the path to the types is relative to the hook's file.
fn template(name: &str) -> String {
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
    use super::template;

    #[test]
    fn the_template_is_a_hook() {
        for name in ["greet", "work/greet"] {
            let metadata = hook_svc::registry::metadata::parse(name, &template(name)).expect("a hook");
            assert_eq!(metadata.name, "greet");
        }
        assert!(template("work/deep/x").contains("path=\"../../nexus.d.ts\""));
    }
}
