//! The Kubernetes base renders, and every workload in it is as careful as it says. Skipped, with a message, without kubectl.

use std::path::Path;
use std::process::Command;

use serde::Deserialize as _;
use serde_json::Value;
use tests::autoscaler::Autoscaler;

const SERVICES: [&str; 5] = ["adapter-svc", "hook-svc", "broker-svc", "delivery-svc", "scheduler-svc"];

/// Every object of the base, or `None` where kubectl is not installed.
fn render() -> Option<Vec<Value>> {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../k8s/base");
    let output = match Command::new("kubectl").arg("kustomize").arg(&base).output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("skipped: kubectl cannot be run: {error}");
            return None;
        }
    };

    assert!(
        output.status.success(),
        "kubectl kustomize: {}",
        String::from_utf8_lossy(&output.stderr)
    );

    let text = String::from_utf8(output.stdout).expect("kubectl writes UTF-8");
    let documents = serde_yaml_ng::Deserializer::from_str(&text);

    Some(
        documents
            .map(|document| Value::deserialize(document).expect("an object"))
            .collect(),
    )
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("a name")
}

#[test]
fn the_base_names_the_five_services() {
    let Some(objects) = render() else { return };
    let mut deployments: Vec<&str> = of_kind(&objects, "Deployment").into_iter().map(name).collect();
    deployments.sort_unstable();
    let mut expected = SERVICES;
    expected.sort_unstable();
    assert_eq!(deployments, expected);
}

#[test]
fn every_pod_is_restricted_and_bounded() {
    let Some(objects) = render() else { return };
    for workload in of_kind(&objects, "Deployment")
        .into_iter()
        .chain(of_kind(&objects, "StatefulSet"))
    {
        let pod = &workload["spec"]["template"]["spec"];
        let workload = name(workload);
        assert_eq!(pod["automountServiceAccountToken"], false, "{workload}: token");
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{workload}: root");
        assert_eq!(
            pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault",
            "{workload}: seccomp"
        );
        assert!(
            !pod["topologySpreadConstraints"].is_null(),
            "{workload}: topology spread"
        );

        for container in pod["containers"].as_array().expect("containers") {
            let security = &container["securityContext"];
            assert_eq!(security["allowPrivilegeEscalation"], false, "{workload}: escalation");
            assert_eq!(security["readOnlyRootFilesystem"], true, "{workload}: root file system");
            assert_eq!(security["capabilities"]["drop"][0], "ALL", "{workload}: capabilities");

            for part in ["livenessProbe", "readinessProbe"] {
                assert!(!container[part].is_null(), "{workload}: {part}");
            }

            assert!(
                !container["resources"]["limits"]["memory"].is_null(),
                "{workload}: memory limit"
            );
            assert!(
                !container["resources"]["requests"]["cpu"].is_null(),
                "{workload}: cpu request"
            );
        }
    }
}

#[test]
fn every_service_keeps_replicas_and_drains() {
    let Some(objects) = render() else { return };
    let settings = of_kind(&objects, "ConfigMap")
        .into_iter()
        .find_map(|map| map["data"]["nexus.toml"].as_str());
    let settings: toml::Table = settings
        .expect("nexus.toml in a ConfigMap")
        .parse()
        .expect("nexus.toml is TOML");

    let drain_ms = settings["telemetry"]["drain_timeout_ms"]
        .as_integer()
        .expect("drain_timeout_ms");
    let budgets = of_kind(&objects, "PodDisruptionBudget");
    for deployment in of_kind(&objects, "Deployment") {
        let service = name(deployment);
        let pod = &deployment["spec"]["template"]["spec"];
        let grace_s = pod["terminationGracePeriodSeconds"].as_i64().expect("a grace period");

        assert!(
            grace_s * 1_000 > drain_ms,
            "{service}: grace {grace_s} s, drain {drain_ms} ms"
        );
        assert!(
            budgets.iter().any(|budget| name(budget) == service),
            "{service}: no disruption budget"
        );
    }
}

#[test]
fn every_service_accepts_the_configuration() {
    let settings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../k8s/base/nexus.toml");
    let deps = std::env::current_exe().expect("a test has a path");
    let binaries = deps.parent().and_then(Path::parent).expect("target/<profile>/deps");
    for service in SERVICES {
        let binary = binaries.join(service);
        let output = Command::new(&binary)
            .arg("--config")
            .arg(&settings)
            .arg("--check")
            // What the Secret gives it.
            .env("NATS_NEXUS_PASSWORD", "any")
            .env("NEXUS_CLUSTER_KEY", "5c".repeat(32))
            // What the pod's volume and its image have, and this machine has not.
            .env("NEXUS__HOOKS__DIR", env!("CARGO_MANIFEST_DIR"))
            .env("NEXUS__HOOKS__BUN", "")
            .output();

        let output = output.unwrap_or_else(|error| {
            panic!(
                "{}: {error}: `cargo build --workspace --bins` comes first",
                binary.display()
            )
        });

        assert!(
            output.status.success(),
            "{service}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn traffic_is_denied_unless_named() {
    let Some(objects) = render() else { return };
    let policies = of_kind(&objects, "NetworkPolicy");
    let deny_all = |policy: &&&Value| {
        policy["spec"]["podSelector"] == serde_json::json!({})
            && policy["spec"]["ingress"].is_null()
            && policy["spec"]["egress"].is_null()
    };

    assert!(
        policies.iter().any(|policy| deny_all(&policy)),
        "no policy denies everything first"
    );
}

/// The services that read platforms' accounts, and those that send there.
const WITH_ACCOUNTS: [&str; 2] = ["adapter-svc", "delivery-svc"];

#[test]
fn accounts_are_mounted_in_both_services_that_use_them_and_platforms_can_be_reached() {
    let Some(objects) = render() else { return };
    let maps = of_kind(&objects, "ConfigMap");
    let settings = maps.into_iter().find(|map| name(map).starts_with("nexus-channels"));
    let settings = settings.expect("a ConfigMap with the accounts");
    let text = settings["data"]["channels.yaml"].as_str().expect("a file");
    shared::platform::accounts::read_platforms(text).expect("the file is read");

    for service in WITH_ACCOUNTS {
        let deployments = of_kind(&objects, "Deployment");
        let deployment = deployments.into_iter().find(|one| name(one) == service);
        let pod = &deployment.expect("a service")["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let find = |list: &Value, what: &str| {
            let found = list.as_array().expect("a list").iter().find(|one| one["name"] == what);
            found.cloned().unwrap_or_else(|| panic!("{service}: no {what}"))
        };
        let path = find(&container["env"], "NEXUS__FILES__CHANNELS")["value"].clone();
        let mount = find(&container["volumeMounts"], "channels");
        assert_eq!(
            path.as_str().expect("a path"),
            format!("{}/channels.yaml", mount["mountPath"].as_str().expect("a path")),
            "{service}"
        );
        // By its generated name, so that a changed file restarts the pods.
        assert_eq!(
            find(&pod["volumes"], "channels")["configMap"]["name"],
            name(settings),
            "{service}"
        );
        assert_eq!(container["envFrom"][0]["secretRef"]["optional"], true, "{service}");
        // What all services have is still there.
        find(&container["env"], "NEXUS_CLUSTER_KEY");
        find(&container["volumeMounts"], "config");
    }

    let egress = of_kind(&objects, "NetworkPolicy").into_iter().find(|policy| {
        let ports = &policy["spec"]["egress"][0]["ports"];
        ports[0]["port"] == 443
    });
    let egress = egress.expect("a policy for platforms");
    let selected = &egress["spec"]["podSelector"]["matchExpressions"][0]["values"];
    assert_eq!(*selected, serde_json::json!(WITH_ACCOUNTS));
    let except = &egress["spec"]["egress"][0]["to"][0]["ipBlock"]["except"];
    assert!(except.to_string().contains("169.254.0.0/16"), "{except}");
}

/// What Kubernetes mounts has to lie below its own folder.
#[test]
fn users_may_do_the_same_everywhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("a file of ours");
    assert_eq!(read("k8s/base/permissions.conf"), read("deploy/nats/permissions.conf"));
}

/// The manifest `name` of a component.
fn component(component: &str, name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../k8s/components")
        .join(component);
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
