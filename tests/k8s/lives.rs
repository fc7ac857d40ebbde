//! How pods begin, live and end: no probe kills one that is slow, waits fit into the grace period, a node can be emptied, and
//! a pod takes the share of a node that it asks for.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::sets::{Set, containers, entries, find, list, name, of_kind, services, templates, try_render_all};

/// Least time without an answer after which a container may be restarted, in seconds.
const LEAST_SILENCE: i64 = 30;

/// Least time for a start, in seconds.
const LEAST_START: i64 = 60;

/// Least time for one answer to the question whether a container lives, in seconds.
const LEAST_ANSWER: i64 = 5;

/// Returns the value of a variable that a container names as text.
fn variable<'a>(container: &'a Value, wanted: &str) -> Option<&'a str> {
    let mut all = list(&container["env"]).iter();
    all.find(|one| one["name"] == wanted)?["value"].as_str()
}

/// Returns the text of `file` in some ConfigMap of a set.
fn file<'a>(objects: &'a [Value], file: &str) -> Option<&'a str> {
    let mut maps = of_kind(objects, "ConfigMap").into_iter();
    maps.find_map(|map| map["data"][file].as_str())
}

/// Returns the seconds after `key: ` in a configuration of NATS.
fn seconds(config: &str, key: &str) -> i64 {
    let mut lines = config.lines().map(str::trim);
    let found = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(": ")?.strip_suffix('s'));
    found
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("{key} in seconds: {config}"))
}

#[test]
fn every_pod_has_time_to_end_in_good_order() {
    for Set { name: set, objects, .. } in try_render_all() {
        let grace_s = |template: &Value| {
            let seconds = template["spec"]["terminationGracePeriodSeconds"].as_i64();
            seconds.expect("a grace period")
        };

        let settings = file(&objects, "nexus.toml").expect("nexus.toml in a ConfigMap");
        let settings: toml::Table = settings.parse().expect("TOML");
        let drain_ms = settings["telemetry"]["drain_timeout_ms"].as_integer();
        for (service, template) in services(&objects) {
            let container = &template["spec"]["containers"][0];
            let own_ms = variable(container, "NEXUS__TELEMETRY__DRAIN_TIMEOUT_MS");
            let own_ms: Option<i64> = own_ms.map(|text| text.parse().expect("a number"));
            let drain_ms = own_ms.or(drain_ms).expect("drain_timeout_ms");

            // The wait before the signal counts as well.
            let wait_s = container["lifecycle"]["preStop"]["sleep"]["seconds"].as_i64();
            let (wait_s, grace_s) = (wait_s.unwrap_or(0), grace_s(template));
            assert!(
                grace_s * 1_000 > wait_s * 1_000 + drain_ms,
                "{set}: {service}: {wait_s} s before the signal, {drain_ms} ms after it, and {grace_s} s in all"
            );
        }

        if let Some(servers) = find(&objects, "StatefulSet", "nats") {
            let config = file(&objects, "nats.conf").expect("nats.conf in a ConfigMap");
            let ends_s = seconds(config, "lame_duck_grace_period") + seconds(config, "lame_duck_duration");
            let grace_s = grace_s(&servers["spec"]["template"]);
            assert!(grace_s > ends_s, "{set}: {ends_s} s of {grace_s} s");
        }
    }
}

#[test]
fn no_probe_kills_a_pod_that_is_slow() {
    for Set { name: set, objects, .. } in try_render_all() {
        for (workload, template) in templates(&objects) {
            for container in containers(template) {
                check_probes(&format!("{set}: {workload}"), container);
            }
        }
    }
}

fn check_probes(at: &str, container: &Value) {
    let [startup, liveness, readiness] =
        ["startupProbe", "livenessProbe", "readinessProbe"].map(|probe| &container[probe]);
    // A host of a probe is an address that somebody else could have; the Pod Security Standards forbid it since 1.34.
    for handler in [startup, liveness, readiness, &container["lifecycle"]["preStop"]] {
        for kind in ["httpGet", "tcpSocket"] {
            assert!(handler[kind]["host"].is_null(), "{at}: {handler}");
        }
    }
    // A container that runs to its end has none.
    if liveness.is_null() {
        return;
    }

    let number = |probe: &Value, field: &str| {
        let number = probe[field].as_i64();
        number.unwrap_or_else(|| panic!("{at}: no {field}: {probe}"))
    };
    let longest = |probe: &Value| number(probe, "periodSeconds") * number(probe, "failureThreshold");
    assert!(longest(startup) >= LEAST_START, "{at}: {startup}");
    assert!(longest(liveness) >= LEAST_SILENCE, "{at}: {liveness}");
    assert!(number(liveness, "timeoutSeconds") >= LEAST_ANSWER, "{at}: {liveness}");
    // One that cannot work at this time, because another one is away, is not helped by a restart.
    assert_ne!(liveness["httpGet"], readiness["httpGet"], "{at}");
}

/// The API server evicts no pod that two budgets select, and none that is not ready unless its budget says so
/// (`tests::cluster::rollout::may_evict`).
#[test]
fn no_budget_keeps_a_node_from_being_emptied() {
    for Set { name: set, objects, .. } in try_render_all() {
        let budgets = of_kind(&objects, "PodDisruptionBudget");
        let kinds = ["Deployment", "StatefulSet"];
        for workload in kinds.into_iter().flat_map(|kind| of_kind(&objects, kind)) {
            let at = format!("{set}: {}", name(workload));
            let labels = entries(&workload["spec"]["template"]["metadata"]["labels"]);
            let selects = |budget: &Value| {
                let wanted = entries(&budget["spec"]["selector"]["matchLabels"]);
                wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
            };
            let found: Vec<&Value> = budgets.iter().copied().filter(|budget| selects(budget)).collect();
            let [budget] = found.as_slice() else {
                panic!("{at}: {} budgets", found.len());
            };

            let spec = &budget["spec"];
            assert_eq!(spec["maxUnavailable"], 1, "{at}");
            assert!(spec["minAvailable"].is_null(), "{at}");
            // A server that catches up keeps the others where they are, as long as there are others.
            let waits = name(workload) == "nats" && workload["spec"]["replicas"] != 1;
            let policy = spec["unhealthyPodEvictionPolicy"].as_str();
            assert_eq!(policy, Some("AlwaysAllow").filter(|_| !waits), "{at}");
        }
    }
}

/// A node may have 64 processors, of which a pod may take as many as it asked for.
#[test]
fn threads_and_workers_follow_what_the_pod_asks_for() {
    for Set { name: set, objects, .. } in try_render_all() {
        for (service, template) in services(&objects) {
            let container = &template["spec"]["containers"][0];
            let wanted = json!({"resourceFieldRef": {"containerName": container["name"], "resource": "requests.cpu"}});
            let variables = list(&container["env"]).iter();
            let found = variables.filter(|one| one["valueFrom"] == wanted).map(name_of);
            let found: BTreeSet<&str> = found.collect();

            let workers = service.starts_with("hook-svc").then_some("NEXUS__HOOKS__WORKERS");
            let expected = workers.into_iter().chain(["NEXUS__RUNTIME__THREADS"]);
            assert_eq!(found, expected.collect(), "{set}: {service}");
        }
    }
}

fn name_of(variable: &Value) -> &str {
    variable["name"].as_str().expect("a name")
}

/// An operator whose newest backup is damaged names another one (docs/operations.md "Kubernetes").
#[test]
fn the_way_back_leads_to_the_newest_backup_or_to_the_one_that_is_named() {
    let mut sets = 0;
    for Set { name: set, objects, .. } in try_render_all() {
        let all = templates(&objects).into_iter();
        for (_, template) in all.filter(|(workload, _)| *workload == "restore") {
            let container = containers(template).next().expect("a container");
            let words: Vec<&str> = list(&container["command"]).iter().filter_map(Value::as_str).collect();
            assert!(
                words.ends_with(&["restore", "/backup/$(BACKUP)", "--replace"]),
                "{set}: {words:?}"
            );
            assert_eq!(variable(container, "BACKUP"), Some(""), "{set}");
            sets += 1;
        }
    }
    println!("{sets} sets have it");
}
