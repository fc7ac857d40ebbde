//! The addresses of the bus: every pod and Job has them from one place, which an overlay can replace.

use serde_json::{Value, json};
use shared::bus::NatsConfig;
use tests::manifests::kinds::quantity;

use crate::sets::{
    SERVERS_OF_OTHERS, Set, containers, entries, find, list, name, of_kind, page_example, templates, try_render_all,
};

/// Start of the name of the ConfigMap with the addresses; the rest is made of its content, so that a change restarts the pods.
const SERVERS: &str = "nexus-nats-";

/// The variable that has them in each container.
const VARIABLE: &str = "NEXUS__NATS__SERVERS";

/// Returns the ConfigMap with the addresses.
fn servers_map<'a>(set: &str, objects: &'a [Value]) -> &'a Value {
    let maps = of_kind(objects, "ConfigMap").into_iter();
    let found: Vec<&Value> = maps.filter(|map| name(map).starts_with(SERVERS)).collect();
    assert_eq!(found.len(), 1, "{set}: ConfigMaps {SERVERS}…");
    found[0]
}

/// Returns the addresses of a set.
fn servers(set: &str, objects: &[Value]) -> Vec<String> {
    let map = servers_map(set, objects);
    serde_json::from_str(&entries(&map["data"])["servers"]).expect("a list of addresses")
}

#[test]
fn every_client_has_the_servers_of_one_config_map() {
    for Set { name: set, objects, .. } in try_render_all() {
        let servers = servers(set, &objects);
        assert!(
            servers.iter().all(|server| NatsConfig::is_address(server)),
            "{set}: {servers:?}"
        );
        match find(&objects, "StatefulSet", "nats") {
            Some(own) => {
                let count = own["spec"]["replicas"].as_u64().expect("a number");
                let expected = (0..count).map(|number| format!("nats://nats-{number}.nats:4222"));
                assert_eq!(servers, expected.collect::<Vec<_>>(), "{set}");
            }
            None => assert!(!servers.is_empty(), "{set}: no servers"),
        }

        let map = name(servers_map(set, &objects));
        let from = json!({"name": VARIABLE, "valueFrom": {"configMapKeyRef": {"name": map, "key": "servers"}}});
        let clients = templates(&objects)
            .into_iter()
            .filter(|(workload, _)| *workload != "nats");
        for (workload, template) in clients {
            for container in containers(template) {
                let variables = list(&container["env"]).iter();
                let found: Vec<&Value> = variables.filter(|one| one["name"] == VARIABLE).collect();
                assert_eq!(found, [&from], "{set}: {workload}");
            }
        }

        // An address in the file would be overridden, and mislead whoever reads it.
        let maps = of_kind(&objects, "ConfigMap").into_iter();
        for settings in maps.filter_map(|map| map["data"]["nexus.toml"].as_str()) {
            let settings: toml::Table = settings.parse().expect("TOML");
            assert!(settings["nats"].get("servers").is_none(), "{set}: {settings}");
        }
    }
}

#[test]
fn with_servers_of_others_nothing_of_the_own_ones_remains() {
    let overlay = page_example(SERVERS_OF_OTHERS);
    let Some(Set { text, objects, .. }) = Set::try_render(SERVERS_OF_OTHERS, &overlay) else {
        return;
    };

    for own in [
        "nats-0",
        "nats-1",
        "nats-2",
        ".nats:",
        "name: nats\n",
        "nats-config",
        "nexus-nats-server",
    ] {
        let found = text.lines().find(|line| format!("{line}\n").contains(own));
        assert_eq!(found, None, "{own}");
    }
    let workloads: Vec<&str> = templates(&objects).into_iter().map(|(workload, _)| workload).collect();
    for client in ["adapter-svc", "hook-svc-copy", "topology", "backup", "restore"] {
        assert!(workloads.contains(&client), "{workloads:?}");
    }

    // They are reached at whichever address they have.
    for policy in ["services", "jobs"] {
        let policy = find(&objects, "NetworkPolicy", policy).expect("a policy");
        let to_servers = json!({"ports": [{"protocol": "TCP", "port": 4222}]});
        let egress = list(&policy["spec"]["egress"]);
        assert!(egress.contains(&to_servers), "{}: {egress:?}", name(policy));
    }
}

/// No service can check these settings on Kubernetes, where the servers' monitoring port is closed to it: each message is synced,
/// large ones are taken, and the streams fit on the volume, with room for its file system.
#[test]
fn the_servers_are_as_the_services_expect_them() {
    for Set { name: set, objects, .. } in try_render_all() {
        let Some(servers) = find(&objects, "StatefulSet", "nats") else {
            continue;
        };
        let mut maps = of_kind(&objects, "ConfigMap").into_iter();
        let config = maps
            .find_map(|map| map["data"]["nats.conf"].as_str())
            .expect("nats.conf");
        let setting = |key: &str| {
            let mut lines = config.lines().map(str::trim);
            let found = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
            found.unwrap_or_else(|| panic!("{set}: no {key}: {config}"))
        };
        assert_eq!(setting("sync_interval"), "always", "{set}");
        assert_eq!(setting("max_payload"), "8MB", "{set}");

        // The server counts in powers of two.
        let store = setting("max_file_store").strip_suffix("GB").expect("in GB");
        let store: f64 = store.parse().expect("a number");
        let claim = &servers["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"];
        let volume = quantity(claim).expect("a size") / f64::from(1_u32 << 30);
        assert!(store * 10.0 <= volume * 9.0, "{set}: {store} of {volume} GiB");
    }
}

/// As many servers as copies, each in a zone of its own: so no server needs a tag by which copies are placed (`unique_tag`),
/// which it could have only from its node.
#[test]
fn each_copy_of_a_stream_is_in_a_zone_of_its_own_in_production() {
    for Set { objects, .. } in try_render_all()
        .into_iter()
        .filter(|set| set.name.starts_with("overlays/prod"))
    {
        let maps = of_kind(&objects, "ConfigMap").into_iter();
        let mut settings = maps.filter_map(|map| map["data"]["nexus.toml"].as_str());
        let settings: toml::Table = settings.next().expect("nexus.toml").parse().expect("TOML");
        let copies = settings["nats"]["replicas"].as_integer();
        let servers = &find(&objects, "StatefulSet", "nats").expect("servers")["spec"];
        assert_eq!((servers["replicas"].as_i64(), copies), (Some(3), Some(3)));

        let spread = list(&servers["template"]["spec"]["topologySpreadConstraints"]);
        let zones = spread
            .iter()
            .find(|one| one["topologyKey"] == "topology.kubernetes.io/zone")
            .expect("zones");
        assert_eq!(zones["whenUnsatisfiable"], "DoNotSchedule", "{zones}");
        assert_eq!(zones["maxSkew"], 1, "{zones}");
    }
}
