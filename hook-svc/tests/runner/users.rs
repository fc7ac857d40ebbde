//! As whom hooks run where hook-svc is root.

use hook_svc::runner::{PoolConfig, SandboxMode};

use crate::hostile::{by, extracted};
use crate::pool::{TestPool, dm, timed};

/// Whether these tests are root's.
fn is_root() -> bool {
    let own = std::fs::metadata("/proc/self").expect("Linux");
    std::os::unix::fs::MetadataExt::uid(&own) == 0
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_of_root_are_nobodys() {
    if !is_root() {
        return println!("SKIPPED: only root can run hooks as somebody else");
    }

    let folder = tempfile::tempdir().expect("a folder");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("opened");

    let looks = "import fs from 'node:fs';
        export default () => {
          let secret = 'refused';
          try { secret = fs.readFileSync(process.cwd() + '/secret', 'utf8'); } catch {}
          const own = fs.readFileSync(import.meta.path, 'utf8').length > 0;
          return { fire: true, context: { extracted: { uid: process.getuid(), gid: process.getgid(), groups: process.getgroups?.() ?? [], secret, own } } };
        };";

    let pool = TestPool::start_in(vec![timed("looks", 30_000, looks)], folder.path()).await;
    let lacks = pool.pool.missing_confinement().join("; ");

    if let Some(why) = pool.pool.as_own() {
        // A checkout below root's own folder.
        println!("SKIPPED: nobody cannot reach what hooks need: {why}");
        return pool.stop().await;
    }

    if lacks.contains("nexus-jail") {
        // Nobody else can change the user.
        assert!(!TestPool::is_confined_whole().await);
        return pool.stop().await;
    }

    assert!(!lacks.contains("as root"), "{lacks}");

    // In the folder that it may read, as far as the sandbox goes.
    for entry in std::fs::read_dir(folder.path()).expect("read") {
        let secret = entry.expect("read").path().join("secret");
        std::fs::write(&secret, "ours").expect("written");
        let closed = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&secret, closed).expect("closed");
    }

    let answer = pool.evaluate(dm("web:1", "x")).await;
    let seen = |field| extracted(&answer, "looks", field);
    assert_ne!(seen("uid"), 0);
    assert_ne!(seen("gid"), 0);
    assert_eq!(seen("groups"), serde_json::json!([]));
    assert_eq!((seen("secret"), seen("own")), ("refused".into(), true.into()));

    pool.stop().await;
}

/// Whether `command`, run by the shell as the user `number`, succeeds.
fn succeeds_as(number: u64, command: &str) -> bool {
    let number = u32::try_from(number).expect("a user's number");
    let mut shell = std::process::Command::new("/bin/sh");
    std::os::unix::process::CommandExt::uid(&mut shell, number);
    std::os::unix::process::CommandExt::gid(&mut shell, number);
    let shell = shell.args(["-c", command]).current_dir("/");
    let output = shell.output().expect("a shell");
    output.status.success()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_authors_hooks_are_a_user_of_their_own() {
    if !is_root() {
        return println!("SKIPPED: only root can run hooks as somebody else");
    }

    let looks = "export default () => ({ fire: true, context: { extracted: {
        uid: process.getuid(), gid: process.getgid(), pid: process.pid, cwd: process.cwd() } } });";
    let folder = tempfile::tempdir().expect("a folder");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("opened");

    let authors = ["ann", "bob", "operator"];
    let hooks = authors.map(|author| by(author, timed(author, 30_000, looks)));
    let pool = TestPool::start_in(hooks.into(), folder.path()).await;
    if let Some(why) = pool.pool.as_own() {
        println!("SKIPPED: nobody cannot reach what hooks need: {why}");
        return pool.stop().await;
    }

    if pool.pool.missing_confinement().join("; ").contains("nexus-jail") {
        // Nobody else can change the user.
        assert!(!TestPool::is_confined_whole().await);
        return pool.stop().await;
    }

    let answer = pool.evaluate(dm("web:1", "x")).await;
    let number = |author, field| extracted(&answer, author, field).as_u64().expect("a number");
    let text = |author, field| extracted(&answer, author, field).as_str().expect("text").to_owned();
    for author in authors {
        assert_ne!(number(author, "uid"), 0, "{author}");
        assert_ne!(number(author, "gid"), 0, "{author}");
    }

    // What the kernel lets the user do whom another author's hooks run as, without any of the rest of the sandbox.
    for (one, other) in [("ann", "bob"), ("bob", "ann"), ("ann", "operator"), ("operator", "ann")] {
        let (uid, pid, cwd) = (number(one, "uid"), number(other, "pid"), text(other, "cwd"));
        assert_ne!(uid, number(other, "uid"), "{one} and {other}");
        for attempt in [
            format!("kill -0 {pid}"),
            format!("cat /proc/{pid}/environ"),
            format!("ls /proc/{pid}/fd"),
            format!("ls {cwd}"),
            format!("cat {cwd}/note-*"),
            format!("cat {cwd}/shim/worker.ts"),
        ] {
            assert!(!succeeds_as(uid, &attempt), "{one} may `{attempt}` of {other}");
        }

        assert!(succeeds_as(
            number(other, "uid"),
            &format!("kill -0 {pid} && cat {cwd}/shim/worker.ts")
        ));
    }

    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_in_a_folder_of_its_own_runs_hooks_itself() {
    if !is_root() {
        return;
    }

    let folder = tempfile::tempdir().expect("a folder");
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(folder.path(), closed).expect("closed");
    let config = PoolConfig {
        dir: Some(folder.path().to_owned()),
        ..TestPool::config()
    };

    let pool = TestPool::try_config(config.clone()).await.expect("it starts");
    if pool.missing_confinement().is_empty() {
        assert!(pool.as_own().is_some(), "nobody reaches what hooks need");

        let whole = PoolConfig {
            sandbox: SandboxMode::Enforce,
            ..config.clone()
        };
        let confined = TestPool::try_config(whole.clone()).await.expect("nothing is missing");
        confined.stop().await;
        let wished = PoolConfig {
            user: "65534:65534".to_owned(),
            ..whole
        };

        let refused = TestPool::try_config(wished).await.expect_err("that user was asked for");
        assert!(refused.contains("cannot be confined"), "{refused}");
    }

    pool.stop().await;
    let wished = PoolConfig {
        user: "65534:65534".to_owned(),
        ..config
    };

    let pool = TestPool::try_config(wished).await.expect("with what there is");
    let lacks = pool.missing_confinement().join("; ");
    assert!(
        lacks.contains("hooks run as root; running as user 65534:65534 failed"),
        "{lacks}"
    );

    pool.stop().await;
}
