use super::*;

const HOOK: &str = "export default async () => ({ fire: false });\n";

fn ids(root: &Path) -> Vec<String> {
    scan_directory(root).expect("readable").files.into_keys().collect()
}

/// Collects the log lines written while it is in force.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("the log").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_half_written_file_is_told_by_what_goes_on_meanwhile() {
    let logged = |parse_error: &str, source: &str, is_present: bool| {
        let log = Logged::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone());
        let mut record = sync::tests::record("half");
        record.parse_error = Some(parse_error.to_owned());
        source.clone_into(&mut record.source);

        tracing::subscriber::with_default(subscriber.with_ansi(false).finish(), || log_record(&record, is_present));
        let bytes = log.0.lock().expect("the log").clone();
        String::from_utf8(bytes).expect("text")
    };

    let new = logged("line 1: expected a name", "", true);
    assert!(
        new.contains(" WARN ") && new.contains("waiting for a valid version"),
        "{new}"
    );
    assert!(new.contains("half") && new.contains("line 1: expected a name"), "{new}");

    let known = logged(
        "line 1: expected a name",
        "export default () => ({ fire: false });",
        true,
    );
    assert!(
        known.contains("ERROR") && known.contains("its last valid version stays active"),
        "{known}"
    );

    let gone = logged("line 1: expected a name", "", false);
    assert!(
        gone.contains(" INFO ") && gone.contains("hook file removed; hook disabled"),
        "{gone}"
    );
}

#[test]
fn hooks_are_the_ts_files_of_all_levels_that_are_not_hidden() {
    let root = tempfile::tempdir().expect("a directory");
    let sub = root.path().join("work/deep");
    std::fs::create_dir_all(&sub).expect("made");
    std::fs::create_dir_all(root.path().join("..data")).expect("made");

    for name in [
        "a.ts",
        "nexus.d.ts",
        "notes.md",
        ".hidden.ts",
        "work/deep/b.ts",
        "..data/c.ts",
    ] {
        std::fs::write(root.path().join(name), HOOK).expect("written");
    }

    assert_eq!(ids(root.path()), ["a", "work/deep/b"]);
}

/// Creates a directory as kubelet mounts configuration: each file is a link into a hidden directory.
#[test]
#[cfg(unix)]
fn links_are_followed_to_files_of_the_directory_alone_and_pipes_hold_nobody_up() {
    use std::os::unix::fs::symlink;

    let outside = tempfile::tempdir().expect("a directory");
    std::fs::write(outside.path().join("x.ts"), HOOK).expect("written");
    let root = tempfile::tempdir().expect("a directory");
    let at = |name: &str| root.path().join(name);
    std::fs::create_dir_all(at("..2026")).expect("made");
    std::fs::create_dir_all(at("sub")).expect("made");
    std::fs::write(at("..2026/mounted.ts"), HOOK).expect("written");

    let link = |to: &Path, name: &str| symlink(to, at(name)).expect("linked");
    link(Path::new("..2026"), "..data");
    link(Path::new("..data/mounted.ts"), "mounted.ts");
    link(Path::new("mounted.ts"), "twice.ts");
    link(&outside.path().join("x.ts"), "out.ts");
    link(Path::new("nowhere.ts"), "dangling.ts");
    link(Path::new("loop.ts"), "loop.ts");
    link(root.path(), "sub/up");
    std::fs::create_dir(at("folder.ts")).expect("made");

    let pipe = std::process::Command::new("mkfifo").arg(at("pipe.ts")).status();
    assert!(pipe.expect("mkfifo").success());

    let scanned = scan_directory(root.path()).expect("readable");
    assert_eq!(scanned.files.keys().collect::<Vec<_>>(), ["mounted"]);

    let names = scanned
        .ignored
        .keys()
        .map(|path| path.strip_prefix(root.path()).expect("below"));
    let names: Vec<&Path> = names.collect();
    let expected = ["dangling.ts", "loop.ts", "out.ts", "pipe.ts", "sub/up", "twice.ts"];

    assert_eq!(names, expected.map(Path::new));
}

#[test]
fn a_file_that_is_no_text_or_too_large_is_an_error_of_that_hook() {
    let root = tempfile::tempdir().expect("a directory");
    std::fs::write(root.path().join("bytes.ts"), [0xff, 0xfe]).expect("written");
    std::fs::write(root.path().join("large.ts"), vec![b' '; metadata::MAX_SOURCE_BYTES + 1]).expect("written");
    std::fs::write(root.path().join("good.ts"), HOOK).expect("written");
    let files = scan_directory(root.path()).expect("readable").files;
    let parsed = |id: &str| parse(id, &files[id]).parsed;
    assert!(parsed("bytes").is_err() && parsed("large").is_err());
    assert!(parsed("good").is_ok(), "{:?}", parsed("good"));
}

#[test]
fn an_absent_directory_is_an_error_and_not_an_empty_one() {
    assert!(scan_directory(Path::new("/no/such/directory")).is_err());
}

#[test]
fn a_scan_leads_to_no_other_scan() {
    use notify::event::{AccessKind, AccessMode, CreateKind, EventAttributes, ModifyKind, RemoveKind};

    let event = |kind| {
        Ok(notify::Event {
            kind,
            paths: Vec::new(),
            attrs: EventAttributes::default(),
        })
    };
    for read in [
        AccessKind::Any,
        AccessKind::Read,
        AccessKind::Open(AccessMode::Any),
        AccessKind::Close(AccessMode::Read),
        AccessKind::Other,
    ] {
        assert!(!may_change_files(&event(EventKind::Access(read))), "{read:?}");
    }

    for change in [
        EventKind::Any,
        EventKind::Access(AccessKind::Close(AccessMode::Write)),
        EventKind::Create(CreateKind::File),
        EventKind::Modify(ModifyKind::Any),
        EventKind::Remove(RemoveKind::Any),
        EventKind::Other,
    ] {
        assert!(may_change_files(&event(change)), "{change:?}");
    }
    assert!(may_change_files(&Err(notify::Error::generic("events were lost"))));
}

#[test]
fn the_events_of_a_scan_are_of_files_that_are_opened_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("one.ts"), HOOK).expect("written");
    let (events, received) = std::sync::mpsc::channel();
    let mut watcher = notify::recommended_watcher(move |event| {
        let _ended = events.send(event);
    })
    .expect("a watcher");
    watcher
        .watch(folder.path(), RecursiveMode::Recursive)
        .expect("a watched folder");

    assert_eq!(ids(folder.path()), ["one"]);
    std::fs::create_dir(folder.path().join("last")).expect("made");
    loop {
        let event = received.recv_timeout(Duration::from_secs(30)).expect("an event");
        let is_last = event
            .as_ref()
            .is_ok_and(|event| event.paths.iter().any(|path| path.ends_with("last")));
        if is_last {
            break;
        }
        assert!(!may_change_files(&event), "{event:?}");
    }
}
