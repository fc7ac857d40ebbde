//! The pod of a copy of the read model: what the manifests of `k8s/base` say of it, and what its processes take.

use std::time::Duration;

use serde::Deserialize as _;
use serde_json::Value;
use shared::testing::memory_kib;
use tests::manifests::kinds::quantity;
use tests::world::root;

/// What the manifests say of a pod that keeps a copy.
#[derive(Debug)]
pub(super) struct PodBounds {
    /// Most memory, in bytes.
    pub(super) memory: u64,
    /// Processors that it asks for, rounded up.
    pub(super) processors: u64,
    /// Time from SIGTERM to SIGKILL.
    pub(super) grace: Duration,
}

impl PodBounds {
    pub(super) fn read() -> Self {
        let set = manifest("hook-svc.yaml", "StatefulSet", "hook-svc-copy");
        let resources = &set["spec"]["template"]["spec"]["containers"][0]["resources"];
        let amount = |value: &Value| quantity(value).expect("a quantity");
        let common = manifest("service-pod.yaml", "Deployment", "any");
        let grace = &common["spec"]["template"]["spec"]["terminationGracePeriodSeconds"];

        Self {
            memory: amount(&resources["limits"]["memory"]) as u64,
            processors: amount(&resources["requests"]["cpu"]).ceil() as u64,
            grace: Duration::from_secs(grace.as_u64().expect("seconds")),
        }
    }
}

/// The object of `kind` called `name` in a file of `k8s/base`.
fn manifest(file: &str, kind: &str, name: &str) -> Value {
    let path = root().join("k8s/base").join(file);
    let text = std::fs::read_to_string(&path).expect("a manifest");
    let documents = serde_yaml_ng::Deserializer::from_str(&text);
    let mut objects = documents.map(|document| Value::deserialize(document).expect("YAML"));
    let found = objects.find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name} in {}", path.display()))
}

/// Memory of a process and of all that it has started, as of a pod. What processes share is counted for each of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct PodMemory {
    pub(super) processes: usize,
    /// Bytes now.
    pub(super) resident: u64,
    /// Sum of the most that each of them ever had, in bytes.
    pub(super) peak: u64,
}

impl PodMemory {
    pub(super) fn of(pid: u32) -> Self {
        let pids = with_children(pid);
        let sum = |field: &str| {
            let sizes = pids.iter().filter_map(|pid| memory_kib(*pid, field));
            sizes.sum::<u64>() << 10
        };

        Self {
            processes: pids.len(),
            resident: sum("VmRSS"),
            peak: sum("VmHWM"),
        }
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "{} processes with {} MiB, at most {} MiB",
            self.processes,
            self.resident >> 20,
            self.peak >> 20
        )
    }
}

/// Process `pid`, and all below it.
fn with_children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let mut children: Vec<u32> = Vec::new();
    for thread in threads.into_iter().flatten().flatten() {
        let listed = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        children.extend(listed.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
    }

    std::iter::once(pid)
        .chain(children.into_iter().flat_map(with_children))
        .collect()
}
