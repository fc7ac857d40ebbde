//! `identities.yaml` and the permission presets of `personas.yaml`: what dispatches are built by, and who is who in the
//! read model, follow the files.
//!
//! Source: `operations.md` "Configuration"; `hooks.md` "Dispatch building".

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use shared::clock::{SharedClock, pause};
use shared::model::identity::{Identities, PermissionPresets};
use shared::model::permission::ToolRules;
use shared::process::identities::{LOOK_EVERY, parse};
use shared::projection::Projection;
use tokio::sync::watch;

use crate::dispatch::Rules;
use crate::error::LoadIdentitiesError;

/// The levels that a preset may stand for.
const LEVELS: [&str; 4] = ["full", "restricted", "group", "minimal"];

/// What hook-svc reads of `personas.yaml`; the personas themselves are broker-svc's.
#[derive(Debug, Default, Deserialize)]
struct PersonasFile {
    #[serde(default)]
    permission_levels: BTreeMap<String, ToolRules>,
}

/// Reads both files; an empty path stands for the defaults.
///
/// # Errors
/// All faults of both files at once, each naming file, key and expectation.
pub fn load(identities: &str, personas: &str) -> Result<(Identities, PermissionPresets), LoadIdentitiesError> {
    let mut faults = Vec::new();
    let known = part(identities, parse, &mut faults);
    let presets = part(personas, parse_presets, &mut faults);
    if faults.is_empty() {
        Ok((known, presets))
    } else {
        Err(LoadIdentitiesError { faults })
    }
}

/// Where the files are; empty = none.
#[derive(Debug, Clone)]
pub struct Files {
    /// `identities.yaml`.
    pub identities: String,
    /// `personas.yaml`.
    pub personas: String,
}

/// Puts what the files say in force whenever they change: into `rules`, for dispatches built from then on, and the
/// identities into the read model as well. A file that cannot be read or is faulty is told of once, and what was known
/// of it stands.
pub async fn follow(files: Files, rules: watch::Sender<Arc<Rules>>, projection: Projection, clock: SharedClock) {
    let mut told = Vec::new();
    let mut linked = rules.borrow().identities.clone();
    loop {
        pause(LOOK_EVERY).await;
        let known = Arc::clone(&rules.borrow());
        let (read, faults) = look(&files, &known);
        if !faults.is_empty() && faults != told {
            tracing::warn!(
                faults = faults.join("; "),
                "changed identities or presets are not taken over"
            );
        }
        told = faults;
        if read != *known {
            tracing::info!(persons = read.identities.persons.len(), "identities or presets changed");
            rules.send_replace(Arc::new(read.clone()));
        }
        if read.identities == linked {
            continue;
        }
        match projection.identify(read.identities.clone(), clock.now()).await {
            Ok(()) => {
                tracing::info!("contacts are linked anew");
                linked = read.identities;
            }
            Err(error) => tracing::warn!(%error, "changed identities cannot be written to the read model yet"),
        }
    }
}

/// What the files say now, where they are without fault; else what was `known`. And their faults.
fn look(files: &Files, known: &Rules) -> (Rules, Vec<String>) {
    let (mut faults, mut further) = (Vec::new(), Vec::new());
    let identities = part(&files.identities, parse, &mut faults);
    let presets = part(&files.personas, parse_presets, &mut further);
    let rules = Rules {
        identities: if faults.is_empty() {
            identities
        } else {
            known.identities.clone()
        },
        presets: if further.is_empty() {
            presets
        } else {
            known.presets.clone()
        },
        dm_scope: known.dm_scope,
    };
    faults.append(&mut further);
    (rules, faults)
}

fn part<T: Default>(path: &str, parse: fn(&str) -> Result<T, Vec<String>>, faults: &mut Vec<String>) -> T {
    if path.is_empty() {
        return T::default();
    }
    let parsed = match std::fs::read_to_string(path) {
        Ok(text) => parse(&text),
        Err(error) => Err(vec![format!("cannot be read: {error}")]),
    };
    parsed.unwrap_or_else(|found| {
        faults.extend(found.into_iter().map(|fault| format!("{path}: {fault}")));
        T::default()
    })
}

/// The configured levels; those not named keep their default.
fn parse_presets(text: &str) -> Result<PermissionPresets, Vec<String>> {
    let read: Option<PersonasFile> = serde_yaml_ng::from_str(text).map_err(|error| vec![error.to_string()])?;
    let levels = read.unwrap_or_default().permission_levels;
    let unknown = levels.keys().filter(|level| !LEVELS.contains(&level.as_str()));
    let faults: Vec<String> = unknown
        .map(|level| format!("permission_levels.{level}: one of {} is expected", LEVELS.join(", ")))
        .collect();
    if !faults.is_empty() {
        return Err(faults);
    }
    let mut presets = PermissionPresets::default();
    presets.0.extend(levels);
    Ok(presets)
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
        assert_eq!(presets["minimal"].allow, Some(vec!["web_search".to_owned()]));
        assert!(parse_presets("permission_levels: {godlike: {}}\n").is_err());
    }
}
