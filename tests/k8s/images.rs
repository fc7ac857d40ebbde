//! The images: the program that a pod starts is in the one that it names, which is of this version, and finds its configuration.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::sets::{Set, containers, k8s_folder, list, templates, try_render_all};

/// Folder of the configuration, as the image says.
const CONFIGURATION: &str = "/etc/nexus/config";

/// Folder of the programs in the image.
const PROGRAMS: &str = "/usr/local/bin/";

fn read(path: &str) -> String {
    std::fs::read_to_string(k8s_folder("..").join(path)).expect("a file of this repository")
}

/// Returns the words of an array of a shell script.
fn array<'a>(script: &'a str, name: &str) -> BTreeSet<&'a str> {
    let (_, rest) = script
        .split_once(&format!("\n{name}=("))
        .unwrap_or_else(|| panic!("no array {name}"));
    let (words, _) = rest.split_once(')').expect("it ends");
    words.split_whitespace().collect()
}

/// Every container with its workload, and the name and the tag of its image.
fn images(objects: &[Value]) -> Vec<(&str, &Value, &str, &str)> {
    let all = templates(objects).into_iter().flat_map(|(workload, template)| {
        containers(template).map(move |container| {
            let image = container["image"].as_str().expect("an image");
            let (name, tag) = image.split_once(':').expect("a tag");
            (workload, container, name, tag)
        })
    });
    all.collect()
}

/// The image sets `NEXUS_CONFIG`, and no program of ours starts without the file that it names.
#[test]
fn what_a_pod_starts_is_in_its_image_and_finds_its_configuration() {
    let script = read("deploy/image/build");
    let programs = array(&script, "all");
    let variable = format!("NEXUS_CONFIG={CONFIGURATION}/nexus.toml");
    assert!(read("deploy/image/Containerfile").contains(&variable), "{variable}");

    for Set { name: set, objects, .. } in try_render_all() {
        for (workload, container, image, tag) in images(&objects) {
            let at = format!("{set}: {workload}");
            if image == "nats" {
                continue;
            }
            assert_eq!((image, tag), ("nexus", env!("CARGO_PKG_VERSION")), "{at}");
            let program = container["command"][0].as_str().expect("a program");
            let program = program.strip_prefix(PROGRAMS).expect("by its path");
            assert!(programs.contains(program), "{at}: {program} is not in {programs:?}");

            let mut mounts = list(&container["volumeMounts"]).iter();
            let is_mounted = mounts.any(|mount| mount["mountPath"] == CONFIGURATION);
            assert!(is_mounted, "{at}: nothing is at {CONFIGURATION}");
        }
    }
}

/// The server that is tried on this machine is the one that is installed.
#[test]
fn the_server_is_the_one_of_the_tests() {
    let pinned = read("deploy/tools.lock");
    let mut lines = pinned.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let version = lines.find_map(|words| match words.as_slice() {
        ["nats-server", version, ..] => Some((*version).to_owned()),
        _ => None,
    });
    let version = version.expect("a pinned server");

    for Set { name: set, objects, .. } in try_render_all() {
        for (_, _, _, tag) in images(&objects).into_iter().filter(|(_, _, image, _)| *image == "nats") {
            assert_eq!(tag.split('-').next(), Some(version.as_str()), "{set}");
        }
    }
}
