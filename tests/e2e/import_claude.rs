//! Hooks of a Claude Code settings file, imported, checked and run.

use serde_json::{Value, json};
use tests::command::nexus;
use tests::eventually::eventually;
use tests::world::{Setup, World};

use crate::story::{ANSWER, PATIENCE, event, send};

#[tokio::test(flavor = "multi_thread")]
async fn an_imported_hook_runs_in_a_turn_as_it_did_there() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    let pipe = format!(
        "cat | tee {0}/asked >/dev/null && echo $((6 * 7)) > {0}/done",
        here.display()
    );
    let settings = json!({"hooks": {
        "Stop": [{"hooks": [{"type": "command", "command": pipe}, {"type": "command", "command": "true"}]}],
        "Notification": [{"hooks": [{"type": "command", "command": "x"}]}],
    }});
    std::fs::write(here.join("settings.json"), settings.to_string()).expect("written");

    let import = ["hook", "import-claude", "settings.json"];
    let said = nexus(here, &import).await;
    assert_eq!(said.code, Some(1), "the rest is written: {said:?}");
    assert!(said.err.contains("not imported: Notification"), "{said:?}");

    // Nothing is written over.
    let again = nexus(here, &import).await;
    assert!(
        again.code == Some(5) && again.err.contains("exist already"),
        "{again:?}"
    );

    let hooks = here.join("hooks.yaml").display().to_string();
    let world = World::start(Setup {
        hooks: vec![("answer.ts", ANSWER.to_owned())],
        environment: vec![("NEXUS__FILES__HOOKS".to_owned(), hooks)],
        ..Setup::default()
    })
    .await;
    send(&world, &event("imported", "ann", "hello")).await;

    let asked = eventually("the script has run", PATIENCE, async || {
        let done = std::fs::read_to_string(here.join("done")).unwrap_or_default();
        let asked = std::fs::read_to_string(here.join("asked")).unwrap_or_default();
        if done == "42\n" {
            Ok(asked)
        } else {
            Err(format!("{done}{asked}\n{}", world.logs()))
        }
    })
    .await;

    let asked: Value = serde_json::from_str(&asked).expect("JSON");
    assert_eq!(asked["hook_event_name"], "Stop", "{asked}");
    world.stack.stop().await;
}
