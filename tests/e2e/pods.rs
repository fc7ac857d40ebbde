//! The Kubernetes manifests, run: a cluster of pretended nodes in which every pod has a network of its own, and reaches what
//! its NetworkPolicies let it reach.
//!
//! Left out, with a message, where there are no network namespaces, no nftables or no kubectl.

mod evening;
mod installation;
mod rolled;

use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use shared::testing::model_server::ScriptedAnswer;
use shared::testing::{ModelServer, eventually_within};
use tests::cluster::Cluster;
use tests::cluster::verbs::PodInfo;
use tests::network::{LOCAL_DNS, POD_DNS};
use tests::receiver::Receiver;
use tokio::net::TcpListener;

use installation::{Files, Installation, Length, NAMESPACE};

/// How long a cluster may take to be there, all of whose processes share this machine.
const SETTLED: Duration = Duration::from_secs(300);

/// How long a message may take through all services.
const PATIENCE: Duration = Duration::from_secs(90);

/// Number of pods from which addresses are tried at once: each that is not reached takes its time-out.
const ASKED_AT_ONCE: usize = 3;

/// Lines of an overlay by which servers of the bus count as available at once.
const AT_ONCE: &str = "
patches:
  - target: { kind: StatefulSet, name: nats }
    patch: |-
      - { op: replace, path: /spec/minReadySeconds, value: 0 }
";

/// Secret of the webhook source.
const WEBHOOK_SECRET: &str = "a secret of sixteen bytes at least";

/// Answers what came by the webhook, by the account `shop`.
const HOOK: &str = "/** @name answers */
export default ({ event }) => ({ fire: event.direction === 'received',
  routing: { persona: 'helper', session: 'shop' },
  deliveryContext: { channel: 'webhook', accountId: 'shop', peerId: 'orders', replyToId: event.id } });
";

/// Whoever else runs in the cluster: the ingress controller, the monitoring, and somebody who is nobody's business.
const NEIGHBOURS: &str = "
{kind: Namespace, metadata: {name: edge, labels: {nexus/ingress: allowed}}}
---
{kind: Namespace, metadata: {name: monitoring}}
---
{kind: Namespace, metadata: {name: other}}
---
kind: StatefulSet
metadata: {namespace: edge, name: gate}
spec:
  template:
    metadata: {labels: {app.kubernetes.io/name: stranger}}
    spec: {containers: [{name: sleeps, image: busybox, command: [sleep, infinity]}], securityContext: {runAsUser: 10002, runAsGroup: 10002}}
---
kind: StatefulSet
metadata: {namespace: monitoring, name: prometheus}
spec:
  template:
    spec: {containers: [{name: sleeps, image: busybox, command: [sleep, infinity]}], securityContext: {runAsUser: 10002, runAsGroup: 10002}}
---
kind: StatefulSet
metadata: {namespace: other, name: stranger}
spec:
  template:
    spec: {containers: [{name: sleeps, image: busybox, command: [sleep, infinity]}], securityContext: {runAsUser: 10002, runAsGroup: 10002}}
---
kind: StatefulSet
metadata: {namespace: nexus, name: intruder}
spec:
  template:
    spec: {containers: [{name: sleeps, image: busybox, command: [sleep, infinity]}], securityContext: {runAsUser: 10002, runAsGroup: 10002}}
";

/// Two pods whose program takes 100 MiB; one of them may take less.
const EATERS: &str = "
{kind: Namespace, metadata: {name: memory}}
---
kind: StatefulSet
metadata: {namespace: memory, name: eats}
spec:
  template:
    spec:
      containers: [{name: eats, image: busybox, command: [bash, -c, 'head -c 100M /dev/zero | tail | sleep infinity'], resources: {limits: {memory: 32Mi}}}]
      securityContext: {runAsUser: 10002, runAsGroup: 10002}
---
kind: StatefulSet
metadata: {namespace: memory, name: fits}
spec:
  template:
    spec:
      containers: [{name: fits, image: busybox, command: [bash, -c, 'head -c 100M /dev/zero | tail | sleep infinity'], resources: {limits: {memory: 256Mi}}}]
      securityContext: {runAsUser: 10002, runAsGroup: 10002}
";

/// Two sets whose pods have volumes; one of them lets these go with its pods.
const KEEPERS: &str = "
{kind: Namespace, metadata: {name: volumes}}
---
kind: StatefulSet
metadata: {namespace: volumes, name: keeps}
spec:
  template:
    spec:
      containers: [{name: sleeps, image: busybox, command: [sleep, infinity], volumeMounts: [{name: data, mountPath: /data}]}]
      securityContext: {runAsUser: 10002, runAsGroup: 10002}
  volumeClaimTemplates: [{metadata: {name: data}}]
---
kind: StatefulSet
metadata: {namespace: volumes, name: drops}
spec:
  persistentVolumeClaimRetentionPolicy: {whenScaled: Delete, whenDeleted: Delete}
  template:
    spec:
      containers: [{name: sleeps, image: busybox, command: [sleep, infinity], volumeMounts: [{name: data, mountPath: /data}]}]
      securityContext: {runAsUser: 10002, runAsGroup: 10002}
  volumeClaimTemplates: [{metadata: {name: data}}]
";

/// The configuration of a shop: a webhook source, a model and an account that are outside.
fn shop() -> Files {
    Files {
        settings: "
[adapter.webhook.github]
scheme = \"github\"
secret = \"env:SHOP_SECRET\"

[llm]
provider = \"openai\"
model = \"any\"
base_url = \"http://model.example:443/openai/v1\"
api_key = \"env:MODEL_KEY\"
prices.any = { input = 0, output = 0 }
"
        .to_owned(),
        files: vec![
            (
                "personas.yaml",
                "personas: {default: {runner: echo}, helper: {runner: llm}}".to_owned(),
            ),
            (
                "channels.yaml",
                "webhook: {accounts: {shop: {url: 'http://receiver.example:443/in', secret: 'env:RECEIVER_SECRET'}}}"
                    .to_owned(),
            ),
        ],
        hooks: vec![("answers.ts", HOOK.to_owned())],
        secrets: format!(
            "{{kind: Secret, metadata: {{namespace: {NAMESPACE}, name: nexus-webhooks}}, stringData: {{SHOP_SECRET: \
             {WEBHOOK_SECRET:?}}}}}
---
{{kind: Secret, metadata: {{namespace: {NAMESPACE}, name: nexus-models}}, stringData: {{MODEL_KEY: key-of-the-model}}}}
---
{{kind: Secret, metadata: {{namespace: {NAMESPACE}, name: nexus-platforms}}, stringData: {{RECEIVER_SECRET: \
             'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'}}}}"
        ),
        ..Files::default()
    }
}

/// A configuration that takes the events of the tests' load.
fn token_settings() -> Files {
    Files {
        settings: format!("\n{}", tests::world::tokens()),
        ..Files::default()
    }
}

/// Posts a signed webhook from the pod of the ingress controller.
async fn post(cluster: &Cluster, delivery: &str) -> String {
    let body = format!(
        "{{\"action\":\"opened\",\"number\":{},\"delivery\":{delivery:?}}}",
        delivery.len()
    );
    let mut mac = Hmac::<Sha256>::new_from_slice(WEBHOOK_SECRET.as_bytes()).expect("a key");
    mac.update(body.as_bytes());
    let signature = hex(&mac.finalize().into_bytes());

    let (event, id) = ("X-GitHub-Event: pull_request", format!("X-GitHub-Delivery: {delivery}"));
    let signature = format!("X-Hub-Signature-256: sha256={signature}");
    let url = "http://adapter-svc.nexus.svc.cluster.local/hooks/github";
    let words = [
        "curl",
        "-sS",
        "-m",
        "20",
        "-w",
        " %{http_code}",
        "-H",
        event,
        "-H",
        &id,
        "-H",
        &signature,
        "-d",
        &body,
        url,
    ];
    let output = cluster.run_in("gate-0", &words).await;
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns which of `addresses` take a connection from `pod`.
async fn reached(cluster: &Cluster, pod: &str, addresses: &[String]) -> Vec<String> {
    let script = "for one in \"$@\"; do \
                  (timeout 3 bash -c \"exec 3<>/dev/tcp/${one%:*}/${one#*:}\" 2>/dev/null && echo \"$one\") & done; wait";
    let mut words = vec!["bash", "-c", script, "bash"];
    words.extend(addresses.iter().map(String::as_str));
    let output = cluster.run_in(pod, &words).await;
    let mut found: Vec<String> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect();
    found.sort();
    found
}

/// Every port of the pods that serve something: pod, port, address.
fn ports(cluster: &Cluster) -> Vec<(String, u16, String)> {
    let mut all = Vec::new();
    for pod in cluster.pods() {
        let ports: &[u16] = match pod.owner.as_str() {
            "nats" => &[4222, 6222, 8222],
            "adapter-svc" => &[8080, 9464],
            "broker-svc" | "delivery-svc" | "scheduler-svc" | "hook-svc" | "hook-svc-copy" => &[9464],
            _ => &[],
        };
        all.extend(
            ports
                .iter()
                .map(|port| (pod.name.clone(), *port, format!("{}:{port}", pod.ip))),
        );
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn the_base_answers_a_webhook_and_lets_nobody_else_in() {
    if let Some(installation) = Installation::try_make("base", &shop(), Length::Long).await {
        answers_a_webhook_and_lets_nobody_else_in(&installation).await;
    }
}

/// The same with one pod of each kind, whose server of the bus is not waited for until it has been ready for a while.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_each_answers_a_webhook_and_lets_nobody_else_in() {
    let files = Files {
        overlay: AT_ONCE.to_owned(),
        ..shop()
    };
    if let Some(installation) = Installation::try_make("overlays/dev", &files, Length::Short).await {
        answers_a_webhook_and_lets_nobody_else_in(&installation).await;
    }
}

/// A webhook that is signed comes in through the ingress; a hook fires; a model outside is asked; the answer leaves. Everybody
/// else is kept out.
async fn answers_a_webhook_and_lets_nobody_else_in(installation: &Installation) {
    let cluster = &installation.cluster;
    let model = ModelServer::ruled(|_, _| ScriptedAnswer::text("your order is on its way")).await;
    let receiver = Receiver::start(Duration::ZERO).await;
    cluster.add_host("model.example", model.port()).await;
    cluster.add_host("receiver.example", receiver.port()).await;
    cluster.apply(NEIGHBOURS);
    cluster.settled(SETTLED).await;

    let answer = post(cluster, "one").await;
    assert!(
        answer.ends_with("200") || answer.ends_with("202"),
        "{answer}\n{}",
        installation.logs()
    );
    eventually_within("the answer is delivered", PATIENCE, async || {
        let calls = receiver.calls();
        let said = calls
            .iter()
            .filter(|call| call.body.to_string().contains("your order is on its way"));
        match said.count() {
            1 => Ok(()),
            count => Err(format!("{count} of {calls:?}\n{}", installation.logs())),
        }
    })
    .await;
    let keys: Vec<_> = model
        .requests()
        .into_iter()
        .map(|one| one.headers["authorization"].clone())
        .collect();
    assert_eq!(keys, ["Bearer key-of-the-model"]);

    lets_nobody_else_in(cluster).await;
}

/// Checks of every port of every pod who reaches it.
async fn lets_nobody_else_in(cluster: &Cluster) {
    let ports = ports(cluster);
    let all: Vec<String> = ports.iter().map(|(_, _, address)| address.clone()).collect();
    let of = |wanted: &[u16]| {
        let found = ports.iter().filter(|(_, port, _)| wanted.contains(port));
        let mut found: Vec<String> = found.map(|(_, _, address)| address.clone()).collect();
        found.sort();
        found
    };
    let nothing: [String; 0] = [];
    assert_eq!(reached(cluster, "stranger-0", &all).await, nothing);
    assert_eq!(reached(cluster, "intruder-0", &all).await, nothing);
    assert_eq!(reached(cluster, "gate-0", &all).await, of(&[8080]));
    assert_eq!(reached(cluster, "prometheus-0", &all).await, of(&[8222, 9464]));

    // Inside, too, somebody listens at the port by which the services reach what is outside: at an address of the cluster's, and at
    // a link-local one, as that is by which clouds give out rights.
    let listening = [POD_DNS, LOCAL_DNS].map(|address| TcpListener::bind((address, 443)));
    let _listening = try_join_all(listening).await.expect("the addresses are ours");
    let inside = [POD_DNS, LOCAL_DNS].map(|address| format!("{address}:443"));
    assert_eq!(
        reached(cluster, "gate-0", &inside).await,
        inside,
        "no policy keeps it away"
    );

    // The services reach the bus and what is public, and neither one another nor what is inside.
    let mut asked = all.clone();
    asked.extend(["44.12.0.1:443", "44.12.0.1:80"].map(str::to_owned));
    asked.extend(inside);
    let services = cluster.pods().into_iter().filter(|pod| pod.name.contains("-svc-"));
    let services: Vec<PodInfo> = services.collect();
    for some in services.chunks(ASKED_AT_ONCE) {
        let answers = join_all(some.iter().map(|pod| reached(cluster, &pod.name, &asked))).await;
        for (pod, reached) in some.iter().zip(answers) {
            let mut expected = of(&[4222]);
            if pod.owner != "scheduler-svc" {
                expected.push("44.12.0.1:443".to_owned());
            }
            // Its own ports are not the network's.
            let own = format!("{}:", pod.ip);
            let reached: Vec<String> = reached.into_iter().filter(|one| !one.starts_with(&own)).collect();
            assert_eq!(reached, expected, "{}", pod.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_takes_more_memory_than_it_may_is_killed_and_started_again() {
    let Some(cluster) = installation::try_cluster(Length::Short).await else {
        return;
    };
    cluster.apply(EATERS);
    let pod = |name: &str| cluster.pods().into_iter().find(|pod| pod.name == name);
    eventually_within("one is killed, and the other one is not", PATIENCE, async || {
        let (Some(eats), Some(fits)) = (pod("eats-0"), pod("fits-0")) else {
            return Err(cluster.describe());
        };
        let is_killed = eats.restarts > 0 && eats.message.contains("OOMKilled");
        if is_killed && cluster.memory("fits-0") > 90 << 20 {
            assert_eq!(fits.restarts, 0, "{fits:?}");
            return Ok(());
        }
        Err(cluster.describe())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_goes_with_its_pod_where_the_set_says_so() {
    let Some(cluster) = installation::try_cluster(Length::Short).await else {
        return;
    };
    cluster.apply(KEEPERS);
    cluster.settled(PATIENCE).await;
    let volume = |set: &str| cluster.claim("volumes", &format!("data-{set}-0"));
    std::fs::write(volume("drops").join("file"), "kept").expect("written");

    // A pod that is replaced finds its volume again.
    cluster.delete_pod("drops-0");
    cluster.settled(PATIENCE).await;
    assert!(volume("drops").join("file").exists());

    for set in ["keeps", "drops"] {
        cluster.scale("volumes", set, 0);
    }
    eventually_within("the volume is gone", PATIENCE, async || {
        if volume("drops").exists() {
            return Err(cluster.describe());
        }
        Ok(())
    })
    .await;
    cluster.settled(PATIENCE).await;
    assert!(volume("keeps").exists());
}
