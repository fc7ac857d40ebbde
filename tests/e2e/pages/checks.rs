//! Checks of blocks that are no commands: by the parsers that read such files.

use serde_json::Value;

use super::fence::{Fence, fences};
use super::terminal::Terminal;

/// A secret that every scheme takes.
const SECRET: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
/// A token of the form that a platform gives out, for variables of such tokens.
const TOKEN: &str = "123456:AbC-dEf_1";
/// The same, of another platform.
const DISCORD_TOKEN: &str = "MTk4NjI.Cl2FMQ.ZnCjm1XV";
/// Files beside `nexus.toml`, and the key that names each.
const FILES: [(&str, &str); 6] = [
    ("identities.yaml", "files.identities"),
    ("personas.yaml", "files.personas"),
    ("channels.yaml", "files.channels"),
    ("hooks.yaml", "files.hooks"),
    ("intents.yaml", "files.intents"),
    ("bindings.yaml", "hooks.bindings"),
];

/// Checks a block that is no command.
///
/// # Errors
/// What is wrong with it.
pub(super) async fn check(terminal: &Terminal, fence: &Fence) -> Result<(), String> {
    if let Some(name) = fence.attribute("file").or(fence.attribute("append")) {
        return written(terminal, fence, name).await;
    }
    match fence.language.as_str() {
        "json" => json(&fence.text),
        "toml" => configuration("nexus.toml", &fence.text).await,
        "yaml" => configuration(fence.attribute("as").unwrap_or_default(), &fence.text).await,
        _ => Ok(()),
    }
}

/// One value, or one on each line.
fn json(text: &str) -> Result<(), String> {
    let whole: Result<Value, _> = serde_json::from_str(text);
    let Err(error) = whole else { return Ok(()) };
    let mut lines = text.lines().map(serde_json::from_str::<Value>);
    if lines.all(|line| line.is_ok()) {
        Ok(())
    } else {
        Err(format!("no JSON: {error}"))
    }
}

/// Writes the block where the page says, and checks the configuration that it is part of.
async fn written(terminal: &Terminal, fence: &Fence, name: &str) -> Result<(), String> {
    let path = terminal.here(name).await?;
    let before = match fence.attribute("append") {
        Some(_) => std::fs::read_to_string(&path).unwrap_or_default(),
        None => String::new(),
    };

    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(|error| error.to_string())?;
    }

    let text = terminal.with_ports(&fence.text);
    std::fs::write(&path, before + &text).map_err(|error| error.to_string())?;

    if fence.language == "ts" {
        return Ok(());
    }

    // A subshell: the page itself sets the variables, later perhaps.
    let secrets: String = secrets(&text)
        .map(|name| format!("{name}=${{{name}:-{}}}\n", example_value(name)))
        .collect();
    terminal
        .run(&format!("(\n{secrets}nexus config check\n)"))
        .await
        .map(drop)
}

/// Variables that `text` names as `env:NAME`.
fn secrets(text: &str) -> impl Iterator<Item = &str> {
    let names = text.split("env:").skip(1);
    names.map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    })
}

/// A value that the key with a reference to the variable `name` takes.
fn example_value(name: &str) -> &'static str {
    let platforms = [
        ("TELEGRAM_TOKEN", TOKEN),
        ("TELEGRAM_WEBHOOK_SECRET", "0123456789abcdef0123456789abcdef"),
        ("DISCORD_TOKEN", DISCORD_TOKEN),
        ("SLACK_TOKEN", "xoxb-1-2-AbC"),
        ("SLACK_APP_TOKEN", "xapp-1-A1-2-c"),
        ("SLACK_SIGNING_SECRET", "8f742231b10e8888abcd99yyyzzz85a5"),
    ];
    let known = platforms.iter().find(|(part, _)| name.contains(part));
    known.map_or(SECRET, |(_, value)| *value)
}

/// Checks `text` as the file `name` of an installation that has nothing else.
async fn configuration(name: &str, text: &str) -> Result<(), String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let key = FILES.iter().find(|(file, _)| *file == name).map(|(_, key)| *key);
    let main = match key {
        Some(key) => format!("{key} = {name:?}\n"),
        None if name == "nexus.toml" => text.to_owned(),
        None => return Err(format!("no file of a configuration is called `{name}`")),
    };

    std::fs::write(directory.path().join(name), text).map_err(|error| error.to_string())?;
    let key = |section: &str, key: &str| {
        let is_there = main.contains(&format!("[{section}"));
        if is_there {
            String::new()
        } else {
            format!("{section}.{key} = \"env:NEXUS_PAGE_SECRET\"\n")
        }
    };

    let keys = key("trust", "cluster_key") + &key("llm", "api_key");
    std::fs::write(directory.path().join("nexus.toml"), format!("{keys}{main}")).map_err(|error| error.to_string())?;

    let mut command = tests::command::command(directory.path(), &["config", "check"]);
    command.env("NEXUS_PAGE_SECRET", "0123456789abcdef".repeat(4));

    for name in secrets(text) {
        command.env(name, example_value(name));
    }

    let output = command.output().await.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }

    let said = [output.stdout, output.stderr].concat();
    Err(String::from_utf8_lossy(&said).into_owned())
}

/// Shows one event to every hook of the pages; returns what is wrong with them.
pub(super) async fn hooks(pages: &[(String, String)]) -> Vec<String> {
    let terminal = match Terminal::open(false).await {
        Ok(mut terminal) => terminal.up().await.map(|()| terminal),
        Err(why) => Err(why),
    };
    let terminal = match terminal {
        Ok(terminal) => terminal,
        Err(why) => return vec![format!("hooks of the pages: {why}")],
    };

    let mut faults = Vec::new();
    for (name, text) in pages {
        let mut all = fences(text).unwrap_or_default();
        all.retain(|fence| fence.language == "ts" && fence.attribute("norun").is_none());

        for fence in all {
            if let Err(why) = hook(&terminal, &fence).await {
                faults.push(format!("{name}:{}: {why}", fence.line));
            }
        }
    }

    faults.extend(terminal.close().await.err());
    faults
}

async fn hook(terminal: &Terminal, fence: &Fence) -> Result<(), String> {
    let text = if fence.attribute("body").is_some() {
        whole(&fence.text)
    } else {
        fence.text.clone()
    };
    let path = terminal.here("hook.ts").await?;
    std::fs::write(&path, text).map_err(|error| error.to_string())?;

    let said = terminal.run("nexus hook test hook.ts --text 'two pears'").await;
    let is_for_others = fence.attribute("loads").is_some();
    match said {
        // It was loaded and called, and missed something in the message.
        Err(said) if is_for_others && said.contains("outcome  failed") && !said.contains("failed to load") => Ok(()),
        said => said.map(drop),
    }
}

/// A hook with `lines` in its function; imports and comments of a header stand before it.
fn whole(lines: &str) -> String {
    let is_before = |line: &&str| line.starts_with("import ") || line.starts_with("/**");
    let (before, inside): (Vec<&str>, Vec<&str>) = lines.lines().partition(is_before);
    format!(
        "{}\nexport default async function (ctx) {{\n{}\nreturn {{ fire: false }};\n}}\n",
        before.join("\n"),
        inside.join("\n")
    )
}
