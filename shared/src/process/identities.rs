//! Identities of persons: `identities.yaml`, and the chat pages that were bound to the owner. Both are read at the
//! start and followed while the process runs: an added or removed person takes effect in every service a moment later.
//!
//! Source: `docs/design/operations.md` §1; [`crate::model::owner`].

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::config::{KeyFault, read_yaml};
use super::file_watch;
use crate::bus::{Bus, Kv, KvEvent, ReadStreamError};
use crate::model::identity::Identities;
use crate::model::owner::{ChatVisitor, OwnerLink};
use crate::model::time::UnixMillis;
use crate::process::ShutdownSignal;
use crate::wire::topology::buckets;

/// Parses the text of the file.
///
/// # Errors
/// Returns its faults, all at once.
pub fn parse(text: &str) -> Result<Identities, Vec<String>> {
    let read = read_yaml(text, key_faults);
    let read = read.map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    Ok(read.unwrap_or_default())
}

/// The faults in the text of the file, each with its key.
#[must_use]
pub fn faults(text: &str) -> Vec<KeyFault> {
    read_yaml(text, key_faults).err().unwrap_or_default()
}

fn key_faults(read: &Identities) -> Vec<KeyFault> {
    let faults = read.find_faults().into_iter();
    faults.map(|(key, problem)| KeyFault::new(key, problem)).collect()
}

/// Reads the file at `path`; no person is known if the path is empty.
///
/// # Errors
/// Returns the file's faults, or the reason why it cannot be read, each with the path.
pub fn load(path: &str) -> Result<Identities, Vec<String>> {
    file_watch::load(path, parse)
}

/// Identities from the file, and the owner's chat pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownPeople {
    file: Identities,
    pages: BTreeMap<String, ChatVisitor>,
}

impl KnownPeople {
    /// Combines `file` with the chat pages that KV `identities` binds to the owner.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the bucket cannot be read.
    pub async fn read(file: Identities, bus: &Bus) -> Result<Self, ReadStreamError> {
        let links = bus.kv::<OwnerLink>(buckets::IDENTITIES).entries().await?;
        let claimed = links
            .into_iter()
            .filter_map(|(key, link)| Some((key, link.value.claimed_by?)));
        Ok(Self {
            file,
            pages: claimed.collect(),
        })
    }

    /// Returns all persons, with the owner's chat pages.
    #[must_use]
    pub fn all_identities(&self) -> Identities {
        self.file.clone().with_owner_pages(self.pages.values())
    }
}

/// Removes the links among `links` that were not claimed in time at `now`.
///
/// # Errors
/// Returns [`ReadStreamError`] if they cannot be read.
pub async fn remove_stale_links(links: &Kv<OwnerLink>, now: UnixMillis) -> Result<(), ReadStreamError> {
    for (key, link) in links.entries().await? {
        if link.value.is_stale(now) {
            // A link that changes at this moment is checked again next time.
            let _ = links.delete(&key, Some(link.revision)).await;
        }
    }
    Ok(())
}

/// Passes the identities to `put` each time the file at `path` or the owner's chat pages differ from those `known`
/// before, until `stop`. A file that cannot be read or is faulty is logged once, and the known identities stay in use.
pub async fn follow_identities(
    path: &str,
    known: KnownPeople,
    bus: &Bus,
    stop: &ShutdownSignal,
    put: impl FnMut(Identities),
) {
    let file = known.file.clone();
    let state = Mutex::new((known, put));
    // Both futures change the same state, one at a time.
    let change = |apply: &dyn Fn(&mut KnownPeople)| {
        let mut state = state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let before = state.0.clone();
        apply(&mut state.0);

        if state.0 != before {
            let all = state.0.all_identities();
            (state.1)(all);
        }
    };

    let pages = async {
        let mut watch = bus.kv::<OwnerLink>(buckets::IDENTITIES).watch_all();
        loop {
            match watch.next().await {
                KvEvent::Put { key, value, .. } => change(&|people| match &value.claimed_by {
                    Some(visitor) => drop(people.pages.insert(key.clone(), visitor.clone())),
                    None => drop(people.pages.remove(&key)),
                }),
                KvEvent::Gone { key, .. } => change(&|people| drop(people.pages.remove(&key))),
                KvEvent::Bad { key, error, .. } => tracing::warn!(key, error, "failed to read an owner link"),
                KvEvent::Anew | KvEvent::Current => {}
            }
        }
    };

    let files = async {
        file_watch::follow_file(path, parse, file, stop, |read| {
            change(&|people| people.file.clone_from(&read));
        })
        .await;
        // Following ends at once if the path is empty; the chat pages are followed until the stop.
        stop.requested().await;
    };

    tokio::select! {
        () = files => {}
        () = pages => {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::file_watch::LOOK_EVERY;
    use super::*;
    use crate::clock::pause;

    #[test]
    fn a_whole_file_is_read_and_every_fault_is_told_at_once() {
        assert_eq!(parse("").expect("empty"), Identities::default());
        assert_eq!(load("").expect("none"), Identities::default());

        let text = "owner: casey\npersons:\n  - id: casey\n    addresses: {telegram: ['1']}\n  - id: mom\ngroups: {family: [mom]}\n";
        let read = parse(text).expect("valid");
        assert_eq!(
            read.find_person("telegram", "1").map(|person| person.id.as_str()),
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
    async fn a_page_that_was_bound_is_the_owners_at_once_and_no_more_when_it_is_removed() {
        let nats = crate::testing::nats::NatsServer::start().await;
        let bus = bus(&nats).await;
        let kv = bus.kv::<OwnerLink>(buckets::IDENTITIES);

        let link = |id: &str| OwnerLink {
            claimed_by: Some(ChatVisitor {
                account: "default".to_owned(),
                id: id.to_owned(),
            }),
            ..OwnerLink::offered(UnixMillis(1), 15)
        };

        kv.put("link.one", &link("v1")).await.expect("stored");
        let known = KnownPeople::read(Identities::default(), &bus).await.expect("read");
        assert!(
            known.all_identities().find_person("webchat", "v1").is_some(),
            "from the start on"
        );

        let (sender, mut heard) = tokio::sync::mpsc::channel(8);
        let stop = ShutdownSignal::default();
        let following = tokio::spawn({
            let (stop, bus) = (stop.clone(), bus.clone());
            async move {
                let put = |read: Identities| sender.try_send(read).expect("there is room");
                follow_identities("", known, &bus, &stop, put).await;
            }
        });

        let mut next = async || {
            tokio::time::timeout(Duration::from_secs(30), heard.recv())
                .await
                .expect("in time")
        };
        kv.put("link.two", &link("v2")).await.expect("stored");
        assert!(next().await.expect("a change").find_person("webchat", "v2").is_some());

        kv.delete("link.one", None).await.expect("removed");
        let left = next().await.expect("a change");
        assert!(left.find_person("webchat", "v1").is_none() && left.find_person("webchat", "v2").is_some());

        stop.trigger();
        following.await.expect("it ends");
    }

    async fn bus(nats: &crate::testing::nats::NatsServer) -> Bus {
        let bus = crate::testing::connect_to(&nats.url(), "test").await;
        let mut streams = crate::wire::topology::topology(1).streams;
        streams.retain(|stream| stream.name == format!("KV_{}", buckets::IDENTITIES));

        let topology = crate::wire::topology::Topology {
            streams,
            consumers: Vec::new(),
        };
        bus.ensure_topology(&topology, false).await.expect("the bucket");

        bus
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
        let nats = crate::testing::nats::NatsServer::start().await;
        let bus = bus(&nats).await;
        let known = KnownPeople::read(load(&path).expect("identities"), &bus)
            .await
            .expect("read");

        let (sender, mut heard) = tokio::sync::mpsc::channel(8);
        let stop = ShutdownSignal::default();
        let following = tokio::spawn({
            let stop = stop.clone();
            async move {
                let put = |read: Identities| sender.try_send(read.owner).expect("there is room");
                follow_identities(&path, known, &bus, &stop, put).await;
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
