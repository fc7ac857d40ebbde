//! An evening on Kubernetes, as docs/operations.md has it: its blocks are run, with a `kubectl` that acts upon the cluster of
//! this test. What needs no API server is done by the real one: rendering, and making objects from arguments.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use shared::testing::model_server::ScriptedAnswer;
use shared::testing::{ModelServer, eventually};
use tests::cluster::Cluster;
use tests::command::program;
use tests::receiver::Receiver;
use tests::world::root;
use tokio::net::TcpListener;
use tokio::process::Command;

use super::SETTLED;
use super::installation::{Length, NAMESPACE, try_cluster};
use crate::pages::fence::fences;

/// What the blocks of the page say that this test runs.
const MARK: &str = "runs in the cluster of tests/e2e/pods/evening.rs";

/// How long one block may take.
const BLOCK: Duration = Duration::from_secs(400);

/// Hands a command to the test; objects are made by the real kubectl.
const SHIM: &str = r#"#!/bin/bash
set -euo pipefail
hand() { # what is done, with standard input as its content
    local answer code
    answer=$(curl -sS --noproxy '*' --data-binary @- -H "x-words: $1" -w '\n%{http_code}' "$NEXUS_CLUSTER")
    code=${answer##*$'\n'}
    printf '%s\n' "${answer%$'\n'*}"
    [ "$code" = 200 ]
}
words=("$@"); [ "${words[0]}" != -n ] || words=("${words[@]:2}")
case "${words[0]} ${words[1]}" in
    "create namespace" | "create secret" | "create configmap")
        "$REAL_KUBECTL" "$@" --dry-run=client -o yaml | hand apply ;;
    "apply -k") "$REAL_KUBECTL" kustomize "${words[2]}" | hand apply ;;
    "apply -f") hand apply < "${words[2]}" ;;
    "exec -i") hand "$(printf '%s\t' "${words[@]}")" ;;
    *) hand "$(printf '%s\t' "${words[@]}")" </dev/null ;;
esac
"#;

/// The cluster, and the ports of this machine that lead into it.
struct Evening {
    cluster: Cluster,
    forwarded: Mutex<BTreeSet<u16>>,
}

impl Evening {
    /// Has a port of this machine lead to one of a pod of `owner`, from the first time on.
    async fn forward(&self, owner: &str, ports: &str) -> Result<(), String> {
        let (here, there) = ports.split_once(':').ok_or("no two ports")?;
        let port = |text: &str| text.parse::<u16>().map_err(|error| format!("{text}: {error}"));
        let (here, there) = (port(here)?, port(there)?);
        if self.forwarded.lock().expect("not poisoned").insert(here) {
            let listener = TcpListener::bind(("127.0.0.1", here)).await;
            let listener = listener.map_err(|error| format!("port {here}: {error}"))?;
            self.cluster.forward(listener, owner, there);
        }
        Ok(())
    }
}

/// Does what the words of a command say, with `input` on its standard input.
async fn act(evening: &Evening, words: &[&str], input: String) -> Result<String, String> {
    let cluster = &evening.cluster;
    let target = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
    match words {
        ["port-forward", owner, ports] => evening.forward(&target(owner), ports).await?,
        ["delete", "job", name, ..] => cluster.delete_job(NAMESPACE, name).await,
        ["apply"] => cluster.apply(&input),
        ["create", "job", name, from] => {
            let job = from.strip_prefix("--from=cronjob/").ok_or("only from a CronJob")?;
            cluster.run_cron_job(NAMESPACE, job, name);
        }
        ["wait", "--for=condition=complete", job, ..] => {
            let (code, log) = cluster.job_ended(NAMESPACE, &target(job), BLOCK).await;
            return if code == Some(0) { Ok(log) } else { Err(log) };
        }
        ["wait", "--for=delete", ..] | ["rollout", "status", ..] => cluster.settled(SETTLED).await,
        ["scale", rest @ ..] => {
            let count = rest.iter().find_map(|word| word.strip_prefix("--replicas="));
            let count = count
                .and_then(|count| count.parse().ok())
                .ok_or("no number of replicas")?;
            for name in rest.iter().filter(|word| word.contains('/')) {
                cluster.scale(NAMESPACE, &target(name), count);
            }
        }
        ["drain", node, ..] => cluster.drain(node, SETTLED).await,
        ["delete", "node", node] => cluster.lose_node(node),
        ["exec", rest @ ..] => {
            let at = rest.iter().position(|word| *word == "--").ok_or("no command")?;
            let owner = target(rest[at - 1]);
            let pods = cluster.pods().into_iter();
            let pod = pods
                .filter(|pod| pod.owner == owner && pod.is_ready && !pod.is_ending)
                .map(|pod| pod.name)
                .next();
            let pod = pod.ok_or_else(|| format!("no pod of {owner} is ready"))?;
            let output = cluster.run_with(&pod, &rest[at + 1..], input.into_bytes()).await;
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            return if output.status.success() { Ok(said) } else { Err(said) };
        }
        other => return Err(format!("kubectl {other:?} is not known here")),
    }
    Ok(String::new())
}

async fn answer(State(evening): State<Arc<Evening>>, headers: HeaderMap, input: String) -> (StatusCode, String) {
    let words = headers["x-words"].to_str().unwrap_or_default();
    let words: Vec<&str> = words.trim_end_matches('\t').split('\t').collect();
    match act(&evening, &words, input).await {
        Ok(said) => (StatusCode::OK, said),
        Err(why) => (StatusCode::INTERNAL_SERVER_ERROR, why),
    }
}

/// Where `name` is on the PATH, beside what was fetched.
async fn which(name: &str) -> Option<String> {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {name}")])
        .output()
        .await
        .ok()?;
    found
        .status
        .success()
        .then(|| String::from_utf8_lossy(&found.stdout).trim().to_owned())
}

/// Runs a block in `place`, and returns what it prints.
async fn run(place: &Path, address: &str, kubectl: &str, text: &str) -> Result<String, String> {
    let path = format!(
        "{}:{}:/usr/local/bin:/usr/bin:/bin",
        place.join("bin").display(),
        root().join(".tools/bin").display()
    );
    let running = Command::new("bash")
        .args(["-euo", "pipefail", "-c", text])
        .current_dir(place)
        .env("PATH", path)
        .env("NEXUS_CLUSTER", address)
        .env("REAL_KUBECTL", kubectl)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(BLOCK, running)
        .await
        .map_err(|_| "it does not end".to_owned())?;
    let output = output.map_err(|error| error.to_string())?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    if output.status.success() { Ok(said) } else { Err(said) }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_evening_of_the_page_goes_as_written() {
    let Some(cluster) = try_cluster(Length::Long).await else {
        return;
    };
    let Some(kubectl) = which("kubectl").await else {
        println!("SKIPPED: kubectl is not on the PATH");
        return;
    };
    let evening = Arc::new(Evening {
        cluster,
        forwarded: Mutex::default(),
    });
    let cluster = &evening.cluster;
    let model = ModelServer::ruled(|_, _| ScriptedAnswer::text("And a good evening to you.")).await;
    let receiver = Receiver::start(Duration::ZERO).await;
    cluster.add_host("model.example", model.port()).await;
    cluster.add_host("receiver.example", receiver.port()).await;

    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let place = place.path();
    std::fs::create_dir(place.join("bin")).expect("a folder");
    std::os::unix::fs::symlink(root().join("deploy"), place.join("deploy")).expect("a link");
    std::os::unix::fs::symlink(program(), place.join("bin/nexus")).expect("a link");
    copy(&root().join("k8s"), &place.join("k8s"));
    let shim = place.join("bin/kubectl");
    std::fs::write(&shim, SHIM).expect("a file");
    std::fs::set_permissions(&shim, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("its rights");

    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}/", listener.local_addr().expect("an address"));
    let router = Router::new().route("/", post(answer)).with_state(Arc::clone(&evening));
    tokio::spawn(async move { axum::serve(listener, router).await });

    let page = std::fs::read_to_string(root().join("docs/operations.md")).expect("the page");
    let blocks = fences(&page).expect("the page is read");
    let blocks: Vec<_> = blocks
        .iter()
        .filter(|fence| fence.attribute("norun") == Some(MARK))
        .collect();
    assert_eq!(blocks.len(), 4, "install, configure, operate, restore");

    for (number, block) in blocks.iter().enumerate() {
        let said = run(place, &address, &kubectl, &block.text).await;
        let said = said.unwrap_or_else(|why| panic!("line {}: {why}\n{}", block.line, cluster.describe()));
        println!("line {}: {said}", block.line);
        match number {
            0 => assert!(said.contains("hook-svc"), "the services say that they run: {said}"),
            1 => {
                assert!(said.contains("delivered"), "{said}");
                eventually("the answer is outside", async || {
                    receiver
                        .calls()
                        .iter()
                        .any(|call| call.body.to_string().contains("And a good evening to you."))
                })
                .await;
            }
            2 => {
                let pods = cluster.pods();
                assert!(pods.iter().all(|pod| pod.node == "node-0"), "{pods:?}");
            }
            _ => assert!(said.contains("evening:one"), "{said}"),
        }
    }
    assert_eq!(
        receiver.calls().len(),
        1,
        "what was answered before the backup is not answered again"
    );
}

/// Copies a folder with everything in it.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("a file");
        }
    }
}
