//! The manifests render, fit the schemas of every Kubernetes that is promised, and every workload in them is as careful as it
//! says. Skipped, with a message, without kubectl; `e2e::pods` runs them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use cli::auth::folder::STANDARD;
use serde::Deserialize as _;
use serde_json::Value;
use shared::wire::rights::BusRole;
use tests::autoscaler::Autoscaler;
use tests::kubelet::objects::Objects;

const SERVICES: [&str; 5] = ["adapter-svc", "hook-svc", "broker-svc", "delivery-svc", "scheduler-svc"];

/// What is rendered: the base, and what is installed.
const SETS: [&str; 3] = ["base", "overlays/dev", "overlays/prod"];

/// Minor versions of Kubernetes that the manifests fit; the oldest is the first with `preStop.sleep`.
const KUBERNETES: std::ops::RangeInclusive<u32> = 30..=37;

fn folder(set: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../k8s").join(set)
}

/// The manifests of `set`, or `None` where kubectl is not installed.
fn text(set: &str) -> Option<String> {
    let output = match Command::new("kubectl").arg("kustomize").arg(folder(set)).output() {
        Ok(output) => output,
        Err(error) => {
            println!("SKIPPED: kubectl cannot be run: {error}");
            return None;
        }
    };

    assert!(
        output.status.success(),
        "kubectl kustomize {set}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(String::from_utf8(output.stdout).expect("kubectl writes UTF-8"))
}

/// Every object of `set`.
fn render_set(set: &str) -> Option<Vec<Value>> {
    let text = text(set)?;
    let documents = serde_yaml_ng::Deserializer::from_str(&text);
    let objects = documents.map(|document| Value::deserialize(document).expect("an object"));
    Some(objects.collect())
}

/// Every object of the base.
fn render() -> Option<Vec<Value>> {
    render_set("base")
}

/// Every workload: name and template of the pods.
fn templates(objects: &[Value]) -> Vec<(&str, &Value)> {
    let found = objects.iter().filter_map(|object| {
        let template = match object["kind"].as_str()? {
            "Deployment" | "StatefulSet" | "Job" => &object["spec"]["template"],
            "CronJob" => &object["spec"]["jobTemplate"]["spec"]["template"],
            _ => return None,
        };
        Some((name(object), template))
    });
    found.collect()
}

/// Every workload of a service: name and template of the pods.
fn services(objects: &[Value]) -> Vec<(&str, &Value)> {
    let all = templates(objects).into_iter();
    all.filter(|(workload, _)| workload.contains("-svc")).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
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
    let kinds = ["Deployment", "StatefulSet"];
    let names = kinds.iter().flat_map(|kind| of_kind(&objects, kind)).map(name);
    let names: BTreeSet<&str> = names.collect();
    let expected = SERVICES.into_iter().chain(["hook-svc-copy", "nats"]);
    assert_eq!(names, expected.collect());
}

/// Says which version does not take the manifests, and why. Needs Python's `kubernetes-validate`.
#[test]
fn every_set_fits_the_schemas() {
    let local = folder("../.tools/kubernetes-validate");
    let path = local.to_str().expect("a path");
    for set in SETS {
        let Some(text) = text(set) else { return };
        let file = tempfile::NamedTempFile::with_suffix(".yaml").expect("a file");
        std::fs::write(file.path(), text).expect("a file");
        let versions = KUBERNETES.map(|minor| format!("1.{minor}"));
        // One process for all versions: most of the time is its start.
        let code = "import sys\nfrom kubernetes_validate.__main__ import main\nfile = sys.argv[1]\n\
                    for version in sys.argv[2:]:\n    \
                    sys.argv[1:] = ['--strict', '--kubernetes-version', version, file]\n    \
                    if main(): sys.exit('Kubernetes ' + version)\n";
        let mut command = Command::new("python3");
        command
            .args(["-c", code])
            .arg(file.path())
            .args(versions)
            .env("PYTHONPATH", path);
        let (is_good, said) = command.output().map_or_else(
            |error| (false, error.to_string()),
            |output| {
                let both = [output.stdout, output.stderr].concat();
                (output.status.success(), String::from_utf8_lossy(&both).into_owned())
            },
        );
        if said.contains("No module named") || said.contains("No such file") {
            println!("SKIPPED: Python has no kubernetes-validate (pip install kubernetes-validate)");
            return;
        }
        assert!(is_good, "{set}: {said}");
    }
}

/// The profile `restricted` of the Pod Security Standards, and more.
#[test]
fn every_pod_is_restricted_and_bounded() {
    for set in SETS {
        let Some(objects) = render_set(set) else { return };
        for (workload, template) in templates(&objects) {
            let pod = &template["spec"];
            let at = format!("{set}: {workload}");
            assert_eq!(pod["automountServiceAccountToken"], false, "{at}: token");
            assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{at}: root");
            let profile = &pod["securityContext"]["seccompProfile"]["type"];
            assert_eq!(profile, "RuntimeDefault", "{at}: seccomp");
            for field in ["hostNetwork", "hostPID", "hostIPC", "ephemeralContainers"] {
                assert!(pod[field].is_null(), "{at}: {field}");
            }
            let volumes = ["configMap", "secret", "emptyDir", "persistentVolumeClaim"];
            for volume in list(&pod["volumes"]) {
                let is_plain = volumes.iter().any(|kind| !volume[kind].is_null());
                assert!(is_plain, "{at}: volume {volume}");
                let empty = &volume["emptyDir"];
                assert!(
                    empty.is_null() || !empty["sizeLimit"].is_null(),
                    "{at}: {volume} has no bound"
                );
            }

            let containers = list(&pod["initContainers"]).iter().chain(list(&pod["containers"]));
            for container in containers {
                check_container(&at, container);
            }
        }
    }
}

fn check_container(at: &str, container: &Value) {
    let security = &container["securityContext"];
    assert_eq!(security["allowPrivilegeEscalation"], false, "{at}: escalation");
    assert_eq!(security["readOnlyRootFilesystem"], true, "{at}: root file system");
    assert_eq!(
        security["capabilities"]["drop"],
        serde_json::json!(["ALL"]),
        "{at}: capabilities"
    );
    assert!(security["capabilities"]["add"].is_null(), "{at}: capabilities");
    for field in ["privileged", "procMount", "runAsUser"] {
        assert!(security[field].is_null(), "{at}: {field}");
    }
    for port in list(&container["ports"]) {
        assert!(port["hostPort"].is_null(), "{at}: {port}");
    }
    for quantity in ["/limits/memory", "/requests/cpu", "/requests/memory"] {
        assert!(container["resources"].pointer(quantity).is_some(), "{at}: {quantity}");
    }
}

/// Whatever a pod names is in the same set, or is said to be optional.
#[test]
fn every_name_leads_somewhere() {
    // Of what a person makes (docs/operations.md "Kubernetes").
    let users = STANDARD.map(|role| format!("nexus-nats-{}", role.name()));
    let by_hand = users
        .into_iter()
        .chain(["nexus-nats-server", "nexus-trust"].map(str::to_owned));
    let by_hand: BTreeSet<String> = by_hand.collect();
    for set in SETS {
        let Some(objects) = render_set(set) else { return };
        let is_there = |kind: &str, wanted: &Value| {
            let found = of_kind(&objects, kind).into_iter().any(|object| name(object) == wanted);
            found || kind == "Secret" && by_hand.iter().any(|one| wanted == one)
        };
        for (workload, template) in templates(&objects) {
            let pod = &template["spec"];
            let at = format!("{set}: {workload}");
            assert!(is_there("ServiceAccount", &pod["serviceAccountName"]), "{at}: account");
            for volume in list(&pod["volumes"]) {
                let map = &volume["configMap"];
                let is_found = map.is_null() || map["optional"] == true || is_there("ConfigMap", &map["name"]);
                assert!(is_found, "{at}: {volume}");
                let secret = &volume["secret"]["secretName"];
                assert!(secret.is_null() || is_there("Secret", secret), "{at}: {volume}");
                let claim = &volume["persistentVolumeClaim"]["claimName"];
                assert!(
                    claim.is_null() || is_there("PersistentVolumeClaim", claim),
                    "{at}: {volume}"
                );
            }
            for container in list(&pod["containers"]) {
                for variable in list(&container["env"]) {
                    let secret = &variable["valueFrom"]["secretKeyRef"];
                    assert!(
                        secret.is_null() || is_there("Secret", &secret["name"]),
                        "{at}: {variable}"
                    );
                }
                for from in list(&container["envFrom"]) {
                    assert_eq!(from["secretRef"]["optional"], true, "{at}: {from}");
                }
            }
        }
    }
}

/// What the kubelet of the tests does not understand, they would run without.
#[test]
fn the_kubelet_understands_every_set() {
    for set in SETS {
        let Some(text) = text(set) else { return };
        Objects::default()
            .apply(&text)
            .unwrap_or_else(|why| panic!("{set}: {why}"));
    }
}

/// Replicas that come and go with the load keep no copy of the read model, and those that keep one are as many as there are copies.
#[test]
fn copies_of_the_read_model_are_kept_by_the_set_of_that_size() {
    for set in SETS {
        let Some(objects) = render_set(set) else { return };
        let find = |wanted: &str| {
            let sets = of_kind(&objects, "StatefulSet");
            sets.into_iter()
                .find(|one| name(one) == wanted)
                .expect("a set of hook-svc")
        };
        let value = |one: &Value, variable: &str| {
            let env = list(&one["spec"]["template"]["spec"]["containers"][0]["env"]);
            let found = env.iter().find(|entry| entry["name"] == variable)?;
            found["value"].as_str().map(str::to_owned)
        };
        let (copies, others) = (find("hook-svc-copy"), find("hook-svc"));
        let keep = "NEXUS__HOOKS__READ_MODEL__KEEP";
        assert_eq!(value(others, keep).as_deref(), Some("false"), "{set}");
        assert_eq!(value(copies, keep), None, "{set}");
        assert!(list(&others["spec"]["volumeClaimTemplates"]).is_empty(), "{set}");

        let configured = value(copies, "NEXUS__HOOKS__READ_MODEL__COPIES");
        let configured = configured.map_or(2, |text| text.parse().expect("a number"));
        assert_eq!(copies["spec"]["replicas"], configured, "{set}");
        // The sets take no pod of each other.
        assert_ne!(copies["spec"]["selector"], others["spec"]["selector"], "{set}");
        for one in [copies, others] {
            assert_eq!(one["spec"]["podManagementPolicy"], "Parallel", "{set}");
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
    for (service, template) in services(&objects) {
        let pod = &template["spec"];
        let env = list(&pod["containers"][0]["env"]);
        let own = env
            .iter()
            .find(|one| one["name"] == "NEXUS__TELEMETRY__DRAIN_TIMEOUT_MS");
        let own = own.and_then(|one| one["value"].as_str()?.parse().ok());
        let drain_ms: i64 = own.unwrap_or(drain_ms);
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
    let files = ["identities", "personas", "channels", "hooks"].map(|file| {
        let path = folder("base/files").join(format!("{file}.yaml"));
        (
            format!("NEXUS__FILES__{}", file.to_uppercase()),
            path.display().to_string(),
        )
    });
    let bindings = folder("base/files/bindings.yaml").display().to_string();
    let files: Vec<(String, String)> = files
        .into_iter()
        .chain([("NEXUS__HOOKS__BINDINGS".to_owned(), bindings)])
        .collect();
    for service in SERVICES {
        let binary = binaries.join(service);
        let output = Command::new(&binary)
            .arg("--config")
            .arg(&settings)
            .arg("--check")
            // What the Secret gives it.
            .env("NEXUS__NATS__CREDENTIALS", "")
            .env("NEXUS__NATS__CA", "")
            .env("NEXUS_CLUSTER_KEY", "5c".repeat(32))
            // What the pod's volume and its image have, and this machine has not.
            .env("NEXUS__HOOKS__DIR", env!("CARGO_MANIFEST_DIR"))
            .env("NEXUS__HOOKS__BUN", "")
            .envs(files.clone())
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

/// Files that nexus.toml names are those of the ConfigMap that every service mounts, and are read as what they are.
#[test]
fn files_are_mounted_where_the_configuration_looks_for_them() {
    let Some(objects) = render() else { return };
    let maps = of_kind(&objects, "ConfigMap");
    let find = |start: &str| {
        let found = maps.iter().find(|map| name(map).starts_with(start));
        *found.unwrap_or_else(|| panic!("no ConfigMap {start}"))
    };
    let files = find("nexus-files");
    let settings = find("nexus-config")["data"]["nexus.toml"].as_str().expect("nexus.toml");
    let settings: toml::Table = settings.parse().expect("TOML");
    let named = settings["files"].as_table().expect("a section").values();
    let named = named.chain([&settings["hooks"]["bindings"]]);
    let named: BTreeSet<&str> = named.map(|path| path.as_str().expect("a path")).collect();

    let there = files["data"].as_object().expect("entries").keys();
    let there: BTreeSet<String> = there.map(|file| format!("/etc/nexus/files/{file}")).collect();
    assert_eq!(named, there.iter().map(String::as_str).collect());

    for (workload, template) in services(&objects) {
        let pod = &template["spec"];
        let volume = list(&pod["volumes"]).iter().find(|one| one["name"] == "files");
        // By its generated name, so that a changed file restarts the pods.
        assert_eq!(
            volume.expect("a volume")["configMap"]["name"],
            name(files),
            "{workload}"
        );
        let mounts = list(&pod["containers"][0]["volumeMounts"]);
        let mount = mounts.iter().find(|one| one["name"] == "files").expect("a mount");
        assert_eq!(mount["mountPath"], "/etc/nexus/files", "{workload}");
    }
}

/// What is inside of the cluster's network is not reached by the way to what is outside.
#[test]
fn the_way_out_leads_to_public_addresses() {
    let Some(objects) = render() else { return };
    let policies = of_kind(&objects, "NetworkPolicy");
    let out = policies
        .into_iter()
        .find(|one| name(one) == "public-egress")
        .expect("a policy");
    let blocks = list(&out["spec"]["egress"][0]["to"]);
    let except = &blocks[0]["ipBlock"]["except"];
    for inside in [
        "10.0.0.0/8",
        "100.64.0.0/10",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.168.0.0/16",
    ] {
        assert!(list(except).iter().any(|one| one == inside), "{inside}");
    }
}

/// The user of the bus that a workload shows is the one of its own role, and it has no other.
#[test]
fn every_workload_has_the_user_of_its_own_role() {
    for set in SETS {
        let Some(objects) = render_set(set) else { return };
        for (workload, template) in templates(&objects) {
            let role = workload.strip_suffix("-copy").unwrap_or(workload);
            let role = role.strip_suffix("-svc").unwrap_or(role);
            let expected = match role {
                "nats" => "nexus-nats-server".to_owned(),
                role => format!("nexus-nats-{}", BusRole::parse(role).expect("a role").name()),
            };
            let volumes = list(&template["spec"]["volumes"]).iter();
            let secrets = volumes.filter_map(|volume| volume["secret"]["secretName"].as_str());
            assert_eq!(secrets.collect::<Vec<_>>(), [expected], "{set}: {workload}");
        }
    }
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
