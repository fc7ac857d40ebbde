//! `identities.yaml` and the permission presets of `personas.yaml`: the rules for dispatches, and the persons in the
//! read model, follow the files.
//!
//! Source: `docs/design/operations.md` §1; `docs/design/hooks.md` §4.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use shared::bus::Bus;
use shared::clock::{SharedClock, pause};
use shared::model::identity::Identities;
use shared::model::permission::{PermissionPresets, ToolRules};
use shared::process::config::{KeyFault, read_yaml};
use shared::process::file_watch;
use shared::process::file_watch::LOOK_EVERY;
use shared::process::identities::{self, KnownPeople, parse};
use shared::process::lifecycle::ShutdownSignal;
use shared::projection::Projection;
use tokio::sync::watch;

use crate::error::LoadIdentitiesError;
use crate::routing::RoutingRules;

/// Levels that may have a preset.
const LEVELS: [&str; 4] = ["full", "restricted", "group", "minimal"];

/// Part of `personas.yaml` that hook-svc reads; the personas themselves belong to broker-svc.
#[derive(Debug, Default, Deserialize)]
struct PersonasFile {
    #[serde(default)]
    permission_levels: BTreeMap<String, ToolRules>,
}

/// Reads both files; an empty path means the defaults.
///
/// # Errors
/// Returns all faults of both files at once, each naming file, key and expectation.
pub fn load(identities: &str, personas: &str) -> Result<(Identities, PermissionPresets), LoadIdentitiesError> {
    match (
        file_watch::load(identities, parse),
        file_watch::load(personas, parse_presets),
    ) {
        (Ok(known), Ok(presets)) => Ok((known, presets)),
        (known, presets) => {
            let faults = [known.err(), presets.err()].into_iter().flatten().flatten();
            Err(LoadIdentitiesError {
                faults: faults.collect(),
            })
        }
    }
}

/// Paths of the files; empty means none.
#[derive(Debug, Clone)]
pub struct IdentityFiles {
    /// Path of `identities.yaml`.
    pub identities: String,
    /// Path of `personas.yaml`.
    pub personas: String,
}

/// Applies changes of the files until `stop`: updates `rules`, for dispatches built from then on. An unreadable or faulty
/// file is logged once, and its last valid content stays in force.
pub async fn follow_files(
    files: IdentityFiles,
    people: KnownPeople,
    bus: Bus,
    rules: watch::Sender<Arc<RoutingRules>>,
    stop: ShutdownSignal,
) {
    let known = Arc::clone(&rules.borrow());
    let people = identities::follow_identities(&files.identities, people, &bus, &stop, |read| {
        rules.send_modify(|rules| Arc::make_mut(rules).identities = read);
    });
    // The two files are followed apart: a fault in one must not hold back the other.
    let presets = file_watch::follow_file(&files.personas, parse_presets, known.presets.clone(), &stop, |read| {
        rules.send_modify(|rules| Arc::make_mut(rules).presets = read);
    });
    tokio::join!(people, presets);
}

/// Writes the identities to the read model whenever they differ from `linked`.
pub(crate) async fn follow_links(
    mut linked: Identities,
    mut changed: watch::Receiver<Arc<RoutingRules>>,
    projection: Projection,
    clock: SharedClock,
) {
    loop {
        let wanted = changed.borrow_and_update().identities.clone();
        if wanted != linked {
            if let Err(error) = projection.set_identities(wanted.clone(), clock.now()).await {
                tracing::warn!(%error, "failed to write changed identities to the read model; retrying");
                pause(LOOK_EVERY).await;
                continue;
            }

            tracing::info!(persons = wanted.persons.len(), "contacts linked again");
            linked = wanted;
        }

        if changed.changed().await.is_err() {
            return;
        }
    }
}

/// Parses the configured levels; those not named keep their default.
fn parse_presets(text: &str) -> Result<PermissionPresets, Vec<String>> {
    let read = read_yaml(text, level_faults);
    let read = read.map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    Ok(PermissionPresets::from(read.unwrap_or_default().permission_levels))
}

/// Returns the faults of the text of a `personas.yaml`, as far as hook-svc reads it.
pub(crate) fn preset_faults(text: &str) -> Vec<KeyFault> {
    read_yaml(text, level_faults).err().unwrap_or_default()
}

fn level_faults(file: &PersonasFile) -> Vec<KeyFault> {
    let levels = &file.permission_levels;
    let unknown = levels.keys().filter(|level| !LEVELS.contains(&level.as_str()));
    let unknown = unknown.map(|level| {
        let problem = format!("expected one of {}", LEVELS.join(", "));
        KeyFault::new(format!("permission_levels.{level}"), problem)
    });

    let presets = PermissionPresets::from(levels.clone());
    let wrong = presets.find_faults().map(|(key, problem)| KeyFault::new(key, problem));
    unknown.chain(wrong).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_configured_is_the_default() {
        assert_eq!(
            load("", "").expect("defaults"),
            (Identities::default(), PermissionPresets::default())
        );
    }

    #[test]
    fn the_faults_of_both_files_are_told_at_once() {
        let error = load("/no/such/file.yaml", "/nor/this.yaml").expect_err("absent");
        assert_eq!(error.faults.len(), 2);
    }

    #[test]
    fn configured_presets_stand_beside_the_defaults() {
        let text = "personas: {atlas: {}}\npermission_levels:\n  group: {allow: ['search_*'], deny: [shell]}\n";
        let presets = parse_presets(text).expect("valid").0;
        assert_eq!(presets["group"].deny, ["shell"]);
        assert_eq!(
            presets["minimal"].allow,
            Some(vec!["web_search".to_owned(), "*__web_search".to_owned()])
        );
        assert!(parse_presets("permission_levels: {godlike: {}}\n").is_err());

        let faults = parse_presets("permission_levels: {group: {deny: ['group:fs', '']}}\n").expect_err("two");
        assert!(
            faults
                .iter()
                .all(|fault| fault.starts_with("permission_levels.group.deny: "))
                && faults.len() == 2
        );
    }
}
