//! The manifests render, fit the schemas of every Kubernetes that is promised, and every workload in them is as careful as
//! it says. Skipped, with a message, without kubectl; `e2e::pods` runs them.

#[path = "k8s/images.rs"]
mod images;
#[path = "k8s/lives.rs"]
mod lives;
#[path = "k8s/scaling.rs"]
mod scaling;
#[path = "k8s/servers.rs"]
mod servers;
#[path = "k8s/sets.rs"]
mod sets;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use cli::auth::folder::STANDARD;
use serde_json::Value;
use shared::wire::rights::BusRole;
use tests::manifests::objects::Objects;

use sets::{Set, containers, k8s_folder, list, name, of_kind, services, templates, try_render_all, try_render_base};

const SERVICES: [&str; 5] = ["adapter-svc", "hook-svc", "broker-svc", "delivery-svc", "scheduler-svc"];

/// Kinds that come with their controllers, whose schemas are those of `tests::manifests::custom`.
const CUSTOM_KINDS: [&str; 2] = ["ScaledObject", "ServiceMonitor"];

/// Minor versions of Kubernetes that the manifests fit; the oldest is the first with `preStop.sleep`.
const KUBERNETES: std::ops::RangeInclusive<u32> = 30..=37;

#[test]
fn the_base_names_the_five_services() {
    let Some(objects) = try_render_base() else { return };
    let kinds = ["Deployment", "StatefulSet"];
    let names = kinds.iter().flat_map(|kind| of_kind(&objects, kind)).map(name);
    let names: BTreeSet<&str> = names.collect();
    let expected = SERVICES.into_iter().chain(["hook-svc-copy", "nats"]);
    assert_eq!(names, expected.collect());
}

/// Says which version does not take which object, and why. Needs Python's `kubernetes-validate`.
#[test]
fn every_object_fits_the_schemas() {
    // What sets have in common is checked once. JSON is YAML.
    let sets = try_render_all();
    let objects = sets.iter().flat_map(|set| set.objects.iter().map(Value::to_string));
    let objects: BTreeSet<String> = objects.collect();
    let text: Vec<String> = objects.into_iter().collect();
    let file = tempfile::NamedTempFile::with_suffix(".yaml").expect("a file");
    std::fs::write(file.path(), text.join("\n---\n")).expect("a file");
    if text.is_empty() {
        return;
    }

    // One process for all versions: most of the time is its start.
    let code = "import sys\nfrom kubernetes_validate.__main__ import main\nfile = sys.argv[1]\n\
                for version in sys.argv[2:]:\n    \
                sys.argv[1:] = ['--strict', '--kubernetes-version', version, file]\n    \
                if main(): sys.exit('Kubernetes ' + version)\n";
    let mut command = Command::new("python3");
    command
        .args(["-c", code])
        .arg(file.path())
        .args(KUBERNETES.map(|minor| format!("1.{minor}")))
        .env("PYTHONPATH", k8s_folder("../.tools/kubernetes-validate"));
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

    assert!(is_good, "{said}");
    // A kind or a version that it does not know is a warning to it.
    let unchecked = said.lines().filter(|line| line.contains("find schema"));
    let mut unchecked = unchecked.filter(|line| !CUSTOM_KINDS.iter().any(|kind| line.contains(kind)));
    assert_eq!(unchecked.next(), None);
}

/// The profile `restricted` of the Pod Security Standards, and more.
#[test]
fn every_pod_is_restricted_and_bounded() {
    for Set { name: set, objects, .. } in try_render_all() {
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
            for field in ["sysctls", "seLinuxOptions", "windowsOptions", "appArmorProfile"] {
                assert!(pod["securityContext"][field].is_null(), "{at}: {field}");
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

            for container in containers(template) {
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
    for Set { name: set, objects, .. } in try_render_all() {
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
            for container in containers(template) {
                for variable in list(&container["env"]) {
                    for (kind, field) in [("Secret", "secretKeyRef"), ("ConfigMap", "configMapKeyRef")] {
                        let entry = &variable["valueFrom"][field];
                        assert!(entry.is_null() || is_there(kind, &entry["name"]), "{at}: {variable}");
                    }
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
    for Set { name: set, text, .. } in try_render_all() {
        Objects::default()
            .apply(&text)
            .unwrap_or_else(|why| panic!("{set}: {why}"));
    }
}

/// Replicas that come and go with the load keep no copy of the read model, and those that keep one are as many as there are copies.
#[test]
fn copies_of_the_read_model_are_kept_by_the_set_of_that_size() {
    for Set { name: set, objects, .. } in try_render_all() {
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
fn every_service_accepts_the_configuration() {
    let settings = k8s_folder("base/nexus.toml");
    let deps = std::env::current_exe().expect("a test has a path");
    let binaries = deps.parent().and_then(Path::parent).expect("target/<profile>/deps");
    let files = ["identities", "personas", "channels", "hooks"].map(|file| {
        let path = k8s_folder("base/files").join(format!("{file}.yaml"));
        (
            format!("NEXUS__FILES__{}", file.to_uppercase()),
            path.display().to_string(),
        )
    });
    let bindings = k8s_folder("base/files/bindings.yaml").display().to_string();
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
    let Some(objects) = try_render_base() else { return };
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
    let Some(objects) = try_render_base() else { return };
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
    let Some(objects) = try_render_base() else { return };
    let policies = of_kind(&objects, "NetworkPolicy");
    let out = policies
        .into_iter()
        .find(|one| name(one) == "public-egress")
        .expect("a policy");
    let [rule] = list(&out["spec"]["egress"]) else {
        panic!("{out}");
    };
    assert_eq!(rule["ports"], serde_json::json!([{"protocol": "TCP", "port": 443}]));
    // By both protocols of the internet; of the sixth version, addresses that are routed there.
    let [fourth, sixth] = list(&rule["to"]) else {
        panic!("{rule}");
    };
    assert_eq!(sixth["ipBlock"], serde_json::json!({"cidr": "2000::/3"}));
    assert_eq!(fourth["ipBlock"]["cidr"], "0.0.0.0/0");
    let except = &fourth["ipBlock"]["except"];
    for inside in [
        "10.0.0.0/8",
        "100.64.0.0/10",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "240.0.0.0/4",
    ] {
        assert!(list(except).iter().any(|one| one == inside), "{inside}");
    }
}

/// Every pod may ask for the address of a name, over both protocols of the DNS, and asks nobody but the cluster.
#[test]
fn every_pod_may_ask_for_names() {
    for Set { name: set, objects, .. } in try_render_all() {
        let policies = of_kind(&objects, "NetworkPolicy").into_iter();
        let mut of_all = policies.filter(|policy| policy["spec"]["podSelector"] == serde_json::json!({}));
        let names = of_all.find(|policy| !policy["spec"]["egress"].is_null());
        let rule = &names.expect("a policy for all pods")["spec"]["egress"][0];
        let ports = ["UDP", "TCP"].map(|protocol| serde_json::json!({"protocol": protocol, "port": 53}));
        assert_eq!(list(&rule["ports"]), ports, "{set}");
        assert!(!list(&rule["to"]).is_empty(), "{set}: {rule}");
    }
}

/// The user of the bus that a workload shows is the one of its own role, and it has no other.
#[test]
fn every_workload_has_the_user_of_its_own_role() {
    for Set { name: set, objects, .. } in try_render_all() {
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

            // The services seal with the cluster's key, and a backup says which one it was: nothing else has it.
            let variables = containers(template).flat_map(|container| list(&container["env"]));
            let secrets = variables.filter_map(|variable| variable["valueFrom"]["secretKeyRef"]["name"].as_str());
            let secrets: Vec<&str> = secrets.collect();
            match role {
                "nats" | "topology" => assert!(secrets.is_empty(), "{set}: {workload}: {secrets:?}"),
                _ => assert_eq!(secrets, ["nexus-trust"], "{set}: {workload}"),
            }
        }
    }
}
