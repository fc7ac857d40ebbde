//! The sandbox as it is shipped: whole, or no start.

use std::os::unix::fs::PermissionsExt as _;

use shared::model::invocation::HookOutcome;
use shared::testing::{eventually, says};

use crate::world::{World, event, of};

const LOOKS: &str = "import fs from 'node:fs';
export default ({ dbPath }) => {
  let seen = 'nothing';
  try { seen = fs.readFileSync('/etc/passwd', 'utf8'); } catch {}
  return { fire: true, routing: { session: 's' }, context: { extracted: { seen, model: (() => { try { fs.closeSync(fs.openSync(dbPath, 'r')); return true; } catch { return false; } })() } } };
};
";

#[tokio::test(flavor = "multi_thread")]
async fn hooks_run_where_they_are_confined_whole() {
    if says("NEXUS_SANDBOX", "absent") {
        return println!("SKIPPED: NEXUS_SANDBOX=absent");
    }

    let mut world = World::new(&[("looks.ts", LOOKS)]).await;
    world.sandbox = "enforce";
    world.start("a");
    world.wait_for_members(1).await;
    let asked = event("ann", 1, "hello");
    world.publish(&asked).await;
    let record = world.record(&asked).await;
    let HookOutcome::Fired { result, .. } = &of(&record, "looks").outcome else {
        panic!("{record:?}");
    };

    let extracted = result.context.as_ref().and_then(|context| context.extracted.clone());
    let seen = serde_json::json!({"seen": "nothing", "model": false});
    assert_eq!(extracted.map(serde_json::Value::Object), Some(seen));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_cannot_confine_hooks_whole_runs_none() {
    let mut world = World::new(&[("looks.ts", LOOKS)]).await;
    // It runs, but not in the sandbox, which has no shell.
    let bun = world.write_file("bun", "#!/bin/sh\necho 1.4.5\n");
    std::fs::set_permissions(&bun, std::fs::Permissions::from_mode(0o755)).expect("made executable");
    world.sandbox = "enforce";
    world.sections = format!("bun = \"{}\"\n", bun.display());
    world.start("a");
    let mut ended = None;
    eventually("it refuses to start", async || {
        ended = world.replica("a").ended();
        ended.is_some()
    })
    .await;

    assert!(ended.is_some_and(|status| !status.success()), "{ended:?}");
}
