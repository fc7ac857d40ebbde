//! The sandbox as it is shipped: whole, or no start.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use shared::model::invocation::HookOutcome;
use shared::testing::eventually;

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
    if !World::is_confined_whole().await {
        return;
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
    fs::set_permissions(&bun, fs::Permissions::from_mode(0o755)).expect("made executable");
    world.sandbox = "enforce";
    world.sections = format!("bun = \"{}\"\n", bun.display());
    world.start("a");
    world.wait_refused("a").await;
}

/// A control group that looks like one that systemd has delegated.
struct Delegated(PathBuf);

impl Delegated {
    /// Makes it; `None`, said aloud, where the kernel or the user does not allow it.
    fn make() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
        let mount = mount.and_then(|line| line.split(' ').nth(4));
        let path = Path::new(mount.unwrap_or("/no-cgroup2")).join(format!("nexus-test-{}", std::process::id()));
        let made = fs::create_dir(&path).map_err(|error| error.to_string()).and_then(|()| {
            let mark = rustix::fs::setxattr(&path, "user.delegate", b"1", rustix::fs::XattrFlags::empty());
            mark.map_err(|error| error.to_string())
        });
        if let Err(error) = &made {
            println!("SKIPPED: {}: {error}", path.display());
            let _ = fs::remove_dir(&path);
        }
        made.ok().map(|()| Self(path))
    }

    /// Groups below it that have processes, by their path, and the processes.
    fn occupied(&self) -> Vec<(String, Vec<u32>)> {
        let mut found = Vec::new();
        let mut open = vec![self.0.clone()];
        while let Some(path) = open.pop() {
            let members = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
            let members: Vec<u32> = members.lines().filter_map(|line| line.parse().ok()).collect();
            if !members.is_empty() {
                let name = path.strip_prefix(&self.0).expect("below it");
                found.push((name.display().to_string(), members));
            }
            let below = fs::read_dir(&path).into_iter().flatten().flatten();
            open.extend(below.map(|entry| entry.path()).filter(|path| path.is_dir()));
        }
        found.sort();
        found
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        let below = |path: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
        };
        for group in below(&self.0) {
            for leaf in below(&group) {
                let _ = fs::remove_dir(leaf);
            }
            let _ = fs::remove_dir(group);
        }
        let _ = fs::remove_dir(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_run_in_groups_below_the_one_that_systemd_delegated() {
    if !World::is_confined_whole().await {
        return;
    }
    let Some(delegated) = Delegated::make() else { return };

    let mut world = World::new(&[("looks.ts", LOOKS)]).await;
    world.group = Some(delegated.0.clone());
    world.start("a");
    world.wait_for_members(1).await;
    world.publish(&event("ann", 1, "hello")).await;
    world.wait_for_records(1).await;

    let first = world.replica("a").pid();
    let workers = format!("hooks-{first}/operator-0");
    let occupied = delegated.occupied();
    let names: Vec<&str> = occupied.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, [workers.as_str(), "service"]);
    assert_eq!(occupied[1].1, [first]);

    // Killed, it leaves the groups without processes; the next one removes them.
    world.replica("a").kill();
    eventually("its workers end with it", async || delegated.occupied().is_empty()).await;
    assert!(delegated.0.join(&workers).exists());
    world.start("b");
    world.publish(&event("ann", 2, "again")).await;
    world.wait_for_records(2).await;
    assert!(!delegated.0.join(format!("hooks-{first}")).exists());

    world.replica("b").kill();
    eventually("its workers end with it", async || delegated.occupied().is_empty()).await;
}
