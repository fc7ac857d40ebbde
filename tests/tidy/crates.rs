//! Which crate may use which: invariants 1 and 2, and the reason of each dependency.

use crate::source::{MEMBERS, names_crate, read, root, sources};
use crate::{SERVICES, check};

/// Crate, and the one room that may name it (a file `room.rs` and the files under `room/`).
const GUARDED_CRATES: [(&str, &str); 11] = [
    ("async_nats", "shared/src/bus"),
    ("nkeys", "shared/src/credentials"),
    ("rcgen", "cli/src/auth"),
    ("aws_lc_rs", "shared/src/platform/token_seal"),
    ("sled", "shared/src/store"),
    ("backoff", "shared/src/retry"),
    ("rusqlite", "shared/src/projection"),
    ("jsonschema", "shared/src/json_schema"),
    ("ndarray", "shared/src/embed/minilm"),
    ("icu_normalizer", "shared/src/embed/minilm"),
    ("icu_properties", "shared/src/embed/minilm"),
];

fn manifest(member: &str) -> toml::Table {
    read(&root().join(member).join("Cargo.toml"))
        .parse()
        .expect("a manifest is TOML")
}

/// Names of everything that a crate depends on, tests included.
fn dependencies(member: &str) -> Vec<String> {
    let manifest = manifest(member);
    ["dependencies", "dev-dependencies", "build-dependencies"]
        .into_iter()
        .filter_map(|section| manifest.get(section)?.as_table())
        .flat_map(|table| table.keys().cloned())
        .collect()
}

#[test]
fn services_share_nothing_but_shared() {
    let mut faults = Vec::new();
    for member in SERVICES.iter().chain(["shared"].iter()) {
        let strangers = dependencies(member)
            .into_iter()
            .filter(|name| SERVICES.contains(&name.as_str()));
        faults.extend(strangers.map(|name| format!("{member}/Cargo.toml: depends on {name}")));
    }
    check("invariant 1: service crates never depend on each other", faults);
}

#[test]
fn guarded_crates_are_named_in_one_room() {
    let mut faults = Vec::new();
    for (name, room) in GUARDED_CRATES {
        for source in sources().iter().filter(|source| !source.is_in(room)) {
            let uses = source.lines().filter(|(_, line)| names_crate(line, name));
            faults.extend(
                uses.map(|(number, _)| format!("{}:{number}: names {name}, which belongs to {room}", source.path)),
            );
        }

        let owner = room.split('/').next().unwrap_or_default();
        let owners = MEMBERS.iter().filter(|&&member| member != owner);
        let declared = owners.filter(|member| dependencies(member).iter().any(|found| found.replace('-', "_") == name));
        faults.extend(declared.map(|member| format!("{member}/Cargo.toml: declares {name}, which belongs to {room}")));
    }

    check("invariant 2: one room names each of these crates", faults);
}

#[test]
fn every_dependency_has_its_reason() {
    let reasons = read(&root().join("docs/contribute/dependencies.md"));
    let workspace = manifest(".");
    let declared = workspace["workspace"]["dependencies"]
        .as_table()
        .expect("[workspace.dependencies]");
    let unnamed = declared
        .keys()
        .filter(|name| !MEMBERS.contains(&name.as_str()) && !reasons.contains(&format!("`{name}`")));

    check(
        "docs/contribute/dependencies.md names every dependency with its reason",
        unnamed.map(|name| format!("Cargo.toml: {name}")),
    );
}

/// Returns whether `line` makes a wait grow by itself.
fn grows_wait(line: &str) -> bool {
    let mut words = ["wait", "delay", "pause", "backoff"].iter();
    words.any(|word| line.contains(&format!("{word} * 2")) || line.contains(&format!("{word} *= ")))
}

#[test]
fn waits_that_grow_are_computed_in_one_room() {
    assert!(grows_wait("wait = (wait * 2).min(MAX);") && grows_wait("delay *= factor;"));
    assert!(!grows_wait("pause(waits.next_wait()).await;"));

    let mut faults = Vec::new();
    for source in sources().iter().filter(|source| !source.is_in("shared/src/retry")) {
        let growing = source.shipped_lines().filter(|(_, line)| grows_wait(line));
        let fault = |(number, _)| format!("{}:{number}: computes a wait, which shared::retry does", source.path);
        faults.extend(growing.map(fault));
    }
    check("one formula for all waits that grow", faults);
}
