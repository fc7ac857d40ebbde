//! Effect of a file of the hooks directory on its registry entry. *Pure.*
//!
//! Source: seed 003 §9.2; `docs/design/hooks.md` §1.2. Ten replicas with the same directory compute the same record,
//! and once the first one's compare-and-set succeeds, the others have nothing to write: the hash is already there.

use std::collections::BTreeMap;

use shared::model::hook::{HookMetadata, HookOrigin, HookRecord};
use shared::model::hook_api::OPERATOR;
use shared::model::time::UnixMillis;

use crate::registry::authored::is_deleted;

/// Reason for which an entry is disabled after its file was deleted.
pub const FILE_DELETED: &str = "file deleted";

/// A hook file that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookFile {
    /// Text of the file.
    pub source: String,
    /// SHA-256 of the file, in hex.
    pub hash: String,
    /// Metadata from its JSDoc, or the reason why it does not parse.
    pub parsed: Result<HookMetadata, String>,
}

/// Returns the ids whose entries differ between `before` and `now` (id → content hash).
#[must_use]
pub fn changed_ids(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Vec<String> {
    let touched = now
        .iter()
        .filter(|(id, hash)| before.get(*id) != Some(hash))
        .map(|(id, _)| id);
    let gone = before.keys().filter(|id| !now.contains_key(*id));
    touched.chain(gone).cloned().collect()
}

/// Returns the directory's content as the registry has it (id → content hash). A replica that has just started compares
/// this with the directory, so that files deleted while no replica watched are noticed.
#[must_use]
pub fn remembered_hashes<'a>(records: impl Iterator<Item = &'a HookRecord>, root: &str) -> BTreeMap<String, String> {
    records
        .filter(|record| is_of(record, root) && record.disabled_reason.as_deref() != Some(FILE_DELETED))
        .map(|record| (record.id.clone(), record.content_hash.clone()))
        .collect()
}

/// Returns the new record for the entry `id`; `None` if it needs no change, or belongs to another origin.
#[must_use]
pub fn synced_record(
    id: &str,
    file: Option<&HookFile>,
    current: Option<&HookRecord>,
    root: &str,
    now: UnixMillis,
) -> Option<HookRecord> {
    match (file, current) {
        (None, None) => None,
        (Some(file), None) => Some(created_record(id, file, root, now)),
        // A deleted hook of another origin frees its name for the file.
        (Some(file), Some(record)) if !is_of(record, root) && is_deleted(record) => {
            Some(created_record(id, file, root, now))
        }
        (_, Some(record)) if !is_of(record, root) => None,
        (None, Some(record)) => record.enabled.then(|| HookRecord {
            enabled: false,
            disabled_reason: Some(FILE_DELETED.to_owned()),
            ..record.clone()
        }),
        (Some(file), Some(record)) => updated_record(file, record, now),
    }
}

/// Returns whether `record` belongs to the directory named `root`.
#[must_use]
pub fn is_of(record: &HookRecord, root: &str) -> bool {
    match &record.origin {
        HookOrigin::File { root: own } => own == root,
        HookOrigin::Pushed | HookOrigin::Tool => false,
    }
}

fn created_record(id: &str, file: &HookFile, root: &str, now: UnixMillis) -> HookRecord {
    let (source, metadata, parse_error) = match &file.parsed {
        Ok(metadata) => (file.source.clone(), metadata.clone(), None),
        Err(error) => (
            String::new(),
            HookMetadata::from_name(id.to_owned()),
            Some(error.clone()),
        ),
    };

    HookRecord {
        id: id.to_owned(),
        source,
        content_hash: file.hash.clone(),
        metadata,
        enabled: true,
        origin: HookOrigin::File { root: root.to_owned() },
        created_by: OPERATOR.to_owned(),
        made_in: None,
        created_at: now,
        updated_at: now,
        disabled_reason: None,
        parse_error,
    }
}

fn updated_record(file: &HookFile, record: &HookRecord, now: UnixMillis) -> Option<HookRecord> {
    let returned = record.disabled_reason.as_deref() == Some(FILE_DELETED);
    // Unchanged, and not one that came back: nothing to write.
    if record.content_hash == file.hash && !returned {
        return None;
    }

    let mut next = HookRecord {
        content_hash: file.hash.clone(),
        ..record.clone()
    };
    if returned {
        next.enabled = true;
        next.disabled_reason = None;
    }

    match &file.parsed {
        Ok(metadata) => {
            // A file that came back unchanged keeps its time.
            next.updated_at = if next.source == file.source {
                record.updated_at
            } else {
                now
            };
            next.source.clone_from(&file.source);
            next.metadata = metadata.clone();
            next.parse_error = None;
        }
        // The last good version stays in force.
        Err(error) => next.parse_error = Some(error.clone()),
    }

    Some(next)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const ROOT: &str = "hooks";

    /// Returns an enabled record with some source.
    pub(crate) fn record(id: &str) -> HookRecord {
        created_record(id, &file("v1"), ROOT, UnixMillis(1))
    }

    fn file(text: &str) -> HookFile {
        HookFile {
            source: text.to_owned(),
            hash: format!("hash of {text}"),
            parsed: Ok(HookMetadata::from_name("h".to_owned())),
        }
    }

    fn broken(text: &str) -> HookFile {
        HookFile {
            parsed: Err("line 3: what is that".to_owned()),
            ..file(text)
        }
    }

    fn check(file: Option<&HookFile>, current: Option<&HookRecord>) -> Option<HookRecord> {
        synced_record("h", file, current, ROOT, UnixMillis(9))
    }

    #[test]
    fn a_new_file_is_active_and_a_known_one_changes_nothing() {
        let new = check(Some(&file("v1")), None).expect("created");
        assert!(new.enabled && new.parse_error.is_none());
        assert_eq!((new.created_by.as_str(), new.created_at), (OPERATOR, UnixMillis(9)));
        assert_eq!(check(Some(&file("v1")), Some(&new)), None);
    }

    #[test]
    fn a_changed_file_is_updated() {
        let next = check(Some(&file("v2")), Some(&record("h"))).expect("updated");
        assert_eq!(
            (next.source.as_str(), next.updated_at, next.created_at),
            ("v2", UnixMillis(9), UnixMillis(1))
        );
    }

    #[test]
    fn a_broken_file_leaves_the_last_good_version_running() {
        let next = check(Some(&broken("v2")), Some(&record("h"))).expect("noted");
        assert_eq!((next.source.as_str(), next.enabled), ("v1", true));
        assert_eq!(next.parse_error.as_deref(), Some("line 3: what is that"));
        assert_eq!(check(Some(&broken("v2")), Some(&next)), None, "noted once");

        let mended = check(Some(&file("v1")), Some(&next)).expect("mended");
        assert_eq!(
            (mended.parse_error, mended.updated_at),
            (None, UnixMillis(1)),
            "the same source as before"
        );

        let never_good = check(Some(&broken("v1")), None).expect("errored");
        assert!(never_good.source.is_empty() && never_good.parse_error.is_some());
    }

    #[test]
    fn a_deleted_file_is_disabled_and_comes_back() {
        let gone = check(None, Some(&record("h"))).expect("disabled");
        assert_eq!(
            (gone.enabled, gone.disabled_reason.as_deref()),
            (false, Some(FILE_DELETED))
        );
        assert_eq!(check(None, Some(&gone)), None);
        let back = check(Some(&file("v1")), Some(&gone)).expect("enabled");
        assert_eq!((back.enabled, back.disabled_reason), (true, None));
    }

    #[test]
    fn entries_of_others_are_left_alone() {
        for origin in [
            HookOrigin::Pushed,
            HookOrigin::Tool,
            HookOrigin::File {
                root: "other".to_owned(),
            },
        ] {
            let theirs = HookRecord { origin, ..record("h") };
            assert_eq!(check(None, Some(&theirs)), None);
            assert_eq!(check(Some(&file("v2")), Some(&theirs)), None);
        }
    }

    #[test]
    fn an_operators_switch_survives_an_edit() {
        let reason = Some("noisy".to_owned());
        let off = HookRecord {
            enabled: false,
            disabled_reason: reason.clone(),
            ..record("h")
        };
        let next = check(Some(&file("v2")), Some(&off)).expect("updated");
        assert_eq!((next.enabled, next.disabled_reason), (false, reason));
    }

    #[test]
    fn what_changed_is_what_differs_from_before() {
        let map = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(id, hash)| ((*id).to_owned(), (*hash).to_owned()))
                .collect::<BTreeMap<_, _>>()
        };
        let before = map(&[("a", "1"), ("b", "1"), ("c", "1")]);
        let now = map(&[("a", "1"), ("b", "2"), ("d", "1")]);
        assert_eq!(changed_ids(&before, &now), ["b", "d", "c"]);
    }

    #[test]
    fn a_starting_replica_remembers_what_the_registry_does() {
        let deleted = HookRecord {
            disabled_reason: Some(FILE_DELETED.to_owned()),
            ..record("gone")
        };
        let pushed = HookRecord {
            origin: HookOrigin::Pushed,
            ..record("pushed")
        };

        let records = [record("a"), deleted, pushed];
        let remembered: Vec<_> = remembered_hashes(records.iter(), ROOT).into_keys().collect();
        assert_eq!(remembered, ["a"]);
    }
}
