//! `identities.yaml`, read at the start and followed while the process runs: who is taken out of it, or put in, is so for
//! every service a moment later.
//!
//! Source: `operations.md` "Configuration".

use super::followed;
use crate::model::identity::Identities;
use crate::process::Shutdown;

/// What the text of the file says.
///
/// # Errors
/// Its faults, all at once.
pub fn parse(text: &str) -> Result<Identities, Vec<String>> {
    let read: Option<Identities> = serde_yaml_ng::from_str(text).map_err(|error| vec![error.to_string()])?;
    let read = read.unwrap_or_default();
    let faults = read.faults();
    if faults.is_empty() { Ok(read) } else { Err(faults) }
}

/// What the file at `path` says; nobody is known where that is empty.
///
/// # Errors
/// Its faults, or why it cannot be read, each with the path.
pub fn load(path: &str) -> Result<Identities, Vec<String>> {
    followed::load(path, parse)
}

/// Hands what the file at `path` says to `put` whenever that is no more what was `known`, until `stop`. A file that cannot
/// be read or is faulty is told of once, and what was known stands.
pub async fn follow(path: &str, known: Identities, stop: &Shutdown, put: impl FnMut(Identities)) {
    followed::follow(path, parse, known, stop, put).await;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::followed::LOOK_EVERY;
    use super::*;
    use crate::clock::pause;

    #[test]
    fn a_whole_file_is_read_and_every_fault_is_told_at_once() {
        assert_eq!(parse("").expect("empty"), Identities::default());
        assert_eq!(load("").expect("none"), Identities::default());
        let text = "owner: casey\npersons:\n  - id: casey\n    addresses: {telegram: ['1']}\n  - id: mom\ngroups: {family: [mom]}\n";
        let read = parse(text).expect("valid");
        assert_eq!(
            read.person("telegram", "1").map(|person| person.id.as_str()),
            Some("casey")
        );
        let faults = parse("owner: a\npersons: [{id: b}, {id: b}]\ngroups: {g: [c]}\n").expect_err("faulty");
        assert_eq!(faults.len(), 3, "{faults:?}");
        let faults = parse("colour: red\n").expect_err("unknown key");
        assert!(faults[0].contains("colour"), "{faults:?}");
        let faults = load("/no/such/file.yaml").expect_err("absent");
        assert!(
            faults[0].starts_with("/no/such/file.yaml: cannot be read"),
            "{faults:?}"
        );
    }

    #[tokio::test]
    async fn what_changes_is_put_in_force_and_what_is_faulty_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("identities.yaml");
        let write = |text: &str| {
            let new = folder.path().join("new");
            std::fs::write(&new, text).expect("a file");
            std::fs::rename(new, &path).expect("the file");
        };
        write("owner: ann\npersons: [{id: ann}]\n");
        let path = path.display().to_string();
        let known = load(&path).expect("identities");
        let (sender, mut heard) = tokio::sync::mpsc::channel(8);
        let stop = Shutdown::default();
        let following = tokio::spawn({
            let stop = stop.clone();
            async move {
                let put = |read: Identities| sender.try_send(read.owner).expect("there is room");
                follow(&path, known, &stop, put).await;
            }
        });
        write("owner: nobody\n");
        pause(LOOK_EVERY + LOOK_EVERY / 2).await;
        write("owner: bob\npersons: [{id: ann}, {id: bob}]\n");
        let next = tokio::time::timeout(Duration::from_secs(30), heard.recv()).await;
        assert_eq!(next.expect("in time").expect("a change").as_deref(), Some("bob"));
        stop.trigger();
        following.await.expect("it ends");
        assert!(heard.recv().await.is_none(), "the faulty one was never in force");
    }
}
