//! Autoscalers and monitors: what they name is there, and is what they take it for.

use std::collections::BTreeSet;

use serde::Deserialize as _;
use serde_json::Value;
use tests::autoscaler::Autoscaler;
use tests::manifests::custom::{
    FallbackBehavior, KEDA_API, MONITORING_API, MetricType, ScaleTarget, ScaledObject, ServiceMonitor,
};

use crate::SERVICES;
use crate::sets::{Set, containers, entries, find, k8s_folder, list, name, of_kind, templates, try_render_all};

/// Returns the metric of a query for the largest value in `namespace`.
fn metric_of<'a>(query: &'a str, namespace: &Value) -> &'a str {
    let namespace = namespace.as_str().expect("a namespace");
    let end = format!("{{namespace=\"{namespace}\"}})");
    let metric = query.strip_prefix("max(").and_then(|rest| rest.strip_suffix(&end));
    metric.unwrap_or_else(|| panic!("{query} is not the largest value in {namespace}"))
}

/// Returns what a ScaledObject scales, and by which metric.
fn read_scaled_object(object: &Value) -> (ScaleTarget, String) {
    assert_eq!(object["apiVersion"], KEDA_API);
    let spec = ScaledObject::deserialize(&object["spec"]).expect("documented fields");
    let [trigger] = spec.triggers.as_slice() else {
        panic!("a fallback overrides other triggers: {:?}", spec.triggers);
    };

    // A metric that is missing is no 0, and neither lowers the number of replicas nor raises it to the largest.
    assert_eq!(trigger.metric_type, MetricType::AverageValue, "a fallback needs it");
    assert_eq!(trigger.metadata.ignore_null_values, "false");
    assert_eq!(spec.fallback.behavior, FallbackBehavior::CurrentReplicasIfHigher);
    assert!(spec.fallback.replicas >= spec.min_replica_count && spec.fallback.replicas < spec.max_replica_count);
    assert!(spec.min_replica_count >= 2);
    // The namespace from which the NetworkPolicies let scrapes in.
    let address = &trigger.metadata.server_address;
    assert!(address.contains(".monitoring.svc:"), "{address}");

    let metric = metric_of(&trigger.metadata.query, &object["metadata"]["namespace"]);
    (spec.scale_target_ref, metric.to_owned())
}

/// Returns what a HorizontalPodAutoscaler scales, and by which metric, for which there must be a rule.
fn read_autoscaler(object: &Value, objects: &[Value]) -> (ScaleTarget, String) {
    let spec = &object["spec"];
    let target = ScaleTarget::deserialize(&spec["scaleTargetRef"]).expect("a target");
    let metric = spec["metrics"][0]["external"]["metric"]["name"].as_str();
    let metric = metric.expect("an external metric").to_owned();

    let rules = find(objects, "ConfigMap", "nexus-adapter-rules").expect("rules of the adapter");
    let rules: Value = serde_yaml_ng::from_str(&entries(&rules["data"])["adapter-rules.yaml"]).expect("YAML");
    let has_rule = list(&rules["externalRules"])
        .iter()
        .any(|rule| rule["name"]["as"] == metric);
    assert!(has_rule, "no rule for {metric}");
    (target, metric)
}

/// Returns whether the service `service` exports the gauge `metric`, and the page for operators explains it.
fn is_exported(service: &str, metric: &str) -> bool {
    let read = |path: String| std::fs::read_to_string(k8s_folder("..").join(path)).expect("a file");
    let quoted = format!("\"{metric}\"");
    let table = read(format!("{service}/src/metric_table.rs"));
    let is_gauge = table
        .split("Metric::gauge(")
        .any(|entry| entry.trim_start().starts_with(&quoted));
    is_gauge && read("docs/operations.md".to_owned()).contains(&format!("`{metric}`"))
}

/// A workload has a number of replicas or one autoscaler, which asks for a metric of its own service.
#[test]
fn every_number_of_replicas_has_one_owner() {
    for Set { name: set, objects, .. } in try_render_all() {
        let scaled = of_kind(&objects, "ScaledObject").into_iter().map(read_scaled_object);
        let others = of_kind(&objects, "HorizontalPodAutoscaler").into_iter();
        let others = others.map(|object| read_autoscaler(object, &objects));
        let mut owned = BTreeSet::new();
        for (target, metric) in scaled.chain(others) {
            assert!(is_exported(&target.name, &metric), "{set}: {metric} of {target:?}");
            assert!(owned.insert(target.clone()), "{set}: {target:?} is scaled twice");
        }

        let workloads = ["Deployment", "StatefulSet"].map(|kind| of_kind(&objects, kind));
        for workload in workloads.into_iter().flatten() {
            let target = ScaleTarget {
                api_version: workload["apiVersion"].as_str().expect("a version").to_owned(),
                kind: workload["kind"].as_str().expect("a kind").to_owned(),
                name: name(workload).to_owned(),
            };
            let is_owned = owned.remove(&target);
            let has_number = workload["spec"]["replicas"].is_u64();
            assert_ne!(is_owned, has_number, "{set}: replicas of {target:?}");
        }
        assert!(owned.is_empty(), "{set}: no such workload: {owned:?}");
    }
}

/// Both services that follow the load have an autoscaler in `prod`, and the monitor that feeds it.
#[test]
fn prod_is_scaled_and_scraped() {
    for Set { name: set, objects, .. } in try_render_all() {
        if set.starts_with("overlays/prod") {
            let scaled = of_kind(&objects, "ScaledObject").into_iter().map(name);
            assert_eq!(scaled.collect::<BTreeSet<_>>(), ["broker-svc", "hook-svc"].into());
            assert_eq!(of_kind(&objects, "ServiceMonitor").len(), 1);
        }
    }
}

/// The monitor finds the Service of every service, at a port that its pods have and that the network lets through.
#[test]
fn every_service_is_scraped_at_a_port_that_it_has() {
    for Set { name: set, objects, .. } in try_render_all() {
        for monitor in of_kind(&objects, "ServiceMonitor") {
            assert_eq!(monitor["apiVersion"], MONITORING_API);
            let spec = ServiceMonitor::deserialize(&monitor["spec"]).expect("documented fields");
            let [endpoint] = spec.endpoints.as_slice() else {
                panic!("{set}: one port: {spec:?}");
            };
            assert_eq!(endpoint.path, "/metrics");

            let all = of_kind(&objects, "Service").into_iter();
            let chosen: Vec<&Value> = all
                .filter(|service| spec.selector.selects(&entries(&service["metadata"]["labels"])))
                .collect();
            let names: BTreeSet<&str> = chosen.iter().copied().map(name).collect();
            assert_eq!(names, SERVICES.into(), "{set}");
            for service in chosen {
                check_port(set, &objects, service, &endpoint.port);
            }
        }
    }
}

/// Checks that the port `wanted` of a Service is one of its pods, and that the namespace `monitoring` reaches it there.
fn check_port(set: &str, objects: &[Value], service: &Value, wanted: &str) {
    let at = format!("{set}: {}", name(service));
    let ports = list(&service["spec"]["ports"]);
    let port = ports.iter().find(|port| port["name"] == wanted);
    let port = port.unwrap_or_else(|| panic!("{at}: no port {wanted}"));

    let selector = entries(&service["spec"]["selector"]);
    let pods = templates(objects).into_iter().filter(|(_, template)| {
        let labels = entries(&template["metadata"]["labels"]);
        selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    });
    let policy = find(objects, "NetworkPolicy", "services").expect("a policy");
    let rule = &policy["spec"]["ingress"][0];
    let from = &rule["from"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"];
    assert_eq!(from, "monitoring", "{at}");

    let mut count = 0;
    for (workload, template) in pods {
        let mut ports = containers(template).flat_map(|container| list(&container["ports"]));
        let behind = ports.find(|one| one["name"] == port["targetPort"]);
        let behind = behind.unwrap_or_else(|| panic!("{at}: {workload} has no port {}", port["targetPort"]));
        let is_let_in = list(&rule["ports"])
            .iter()
            .any(|one| one["port"] == behind["containerPort"]);
        assert!(is_let_in, "{at}: {workload}");
        count += 1;
    }
    assert!(count > 0, "{at}: no pods");
}

/// The manifest `name` of a component.
fn component(component: &str, name: &str) -> Value {
    let path = k8s_folder("components").join(component);
    let text = std::fs::read_to_string(path.join(name)).expect("the manifest");
    serde_yaml_ng::from_str(&text).expect("YAML")
}

#[test]
fn both_autoscalers_scale_by_the_same_numbers() {
    for name in ["hook-svc.yaml", "broker-svc.yaml"] {
        let (keda, hpa) = (component("keda", name), component("hpa", name));
        assert_eq!(keda["spec"]["scaleTargetRef"], hpa["spec"]["scaleTargetRef"], "{name}");
        let (keda, hpa) = (Autoscaler::of_scaled_object(&keda), Autoscaler::of_hpa(&hpa));
        assert!(keda.agrees_with(&hpa), "{name}: {keda:?} and {hpa:?}");
        assert_eq!(
            keda.query,
            format!("max({}{{namespace=\"nexus\"}})", hpa.query),
            "{name}"
        );

        // The adapter's rule asks the same.
        let rules = component("hpa", "adapter-rules.yaml");
        let rules = rules["externalRules"].as_array().expect("rules");
        let rule = rules
            .iter()
            .find(|rule| rule["name"]["as"] == hpa.query.as_str())
            .expect("a rule");
        assert_eq!(rule["metricsQuery"], "max(<<.Series>>{<<.LabelMatchers>>})", "{name}");
    }
}
