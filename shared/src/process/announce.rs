//! Announcing a process's addresses to other processes of this machine: one small file per process.
//!
//! With it every port can be configured as 0. The file is replaced as a whole, so a reader never sees half of it. It
//! is removed at the end; a file left behind by a killed process names a process that is gone.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value, json};

use super::ProcessName;

/// Announcement of this process. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServiceAnnouncement {
    shared: Arc<Mutex<AnnouncedEntries>>,
}

#[derive(Debug, Default)]
struct AnnouncedEntries {
    path: Option<PathBuf>,
    service: String,
    instance: String,
    addresses: BTreeMap<String, SocketAddr>,
}

impl ServiceAnnouncement {
    /// Builds an announcement in `directory`, or one without a file. Nothing is written before the first address.
    pub(crate) fn new(directory: Option<&Path>, service: &str, instance: &str) -> Self {
        let path = directory.map(|directory| directory.join(format!("{service}-{instance}.json")));
        let (service, instance) = (service.to_owned(), instance.to_owned());
        let entries = AnnouncedEntries {
            path,
            service,
            instance,
            addresses: BTreeMap::new(),
        };

        Self {
            shared: Arc::new(Mutex::new(entries)),
        }
    }

    /// Adds an address, or replaces the one of that name, and writes the file.
    pub(crate) fn add(&self, what: &str, address: SocketAddr) {
        let mut entries = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        entries.addresses.insert(what.to_owned(), address);
        if let Some(path) = &entries.path
            && let Err(error) = write(path, &entries)
        {
            tracing::error!(path = %path.display(), %error, "failed to announce addresses");
        }
    }

    /// Removes the file of this process.
    pub(crate) fn remove_file(&self) {
        let entries = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(path) = &entries.path {
            // The file may be gone already, with its directory.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn write(path: &Path, entries: &AnnouncedEntries) -> std::io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }

    let mut fields = Map::new();
    let own = ProcessName::own().map_err(std::io::Error::other)?;
    fields.insert("process".to_owned(), json!(own.to_string()));
    fields.insert("service".to_owned(), json!(entries.service));
    fields.insert("instance".to_owned(), json!(entries.instance));

    fields.extend(
        entries
            .addresses
            .iter()
            .map(|(what, address)| (what.clone(), json!(address.to_string()))),
    );

    // A rename replaces the file as a whole.
    let whole = path.with_extension("json.new");
    std::fs::write(&whole, Value::Object(fields).to_string())?;

    std::fs::rename(whole, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_holds_every_address_and_goes_away() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let announcement = ServiceAnnouncement::new(Some(directory.path()), "hook-svc", "h1");
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        announcement.add("http", address(1));
        announcement.add("gateway", address(2));
        announcement.add("http", address(3));
        let path = directory.path().join("hook-svc-h1.json");
        let read: Value = serde_json::from_slice(&std::fs::read(&path).expect("written")).expect("JSON");

        assert_eq!(read["http"], "127.0.0.1:3");
        assert_eq!(read["gateway"], "127.0.0.1:2");

        let said = ProcessName::parse(read["process"].as_str().expect("named"));
        assert!(said.is_some_and(|process| process.is_running() && process.pid == std::process::id()));

        announcement.remove_file();
        assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 0);
    }
}
