//! Nexus as an operator installs it: an overlay upon a set of the manifests, rendered by kubectl, applied to a cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use shared::bus::{Bus, NatsConfig};
use tests::cluster::Cluster;
use tests::command::program;
use tests::kubelet::container::{Image, Images};
use tests::manifests::kinds::Map;
use tests::manifests::kustomize::{relative_path, try_render};
use tests::world::root;
use tokio::net::TcpListener;

/// Namespace of the installation.
pub(crate) const NAMESPACE: &str = "nexus";

/// Folder of the users of the bus, below the overlay.
const USERS: &str = "nexus-auth";

/// Programs of the image `nexus`, beside Bun.
const PROGRAMS: [&str; 8] = [
    "adapter-svc",
    "hook-svc",
    "nexus-jail",
    "nexus-tether",
    "broker-svc",
    "delivery-svc",
    "scheduler-svc",
    "nexus",
];

/// How long a story takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// A minute at most, most of it waiting: CI runs it.
    Short,
    /// Minutes of both processors.
    Long,
}

/// What an operator adds.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// Added to nexus.toml.
    pub(crate) settings: String,
    /// Files of the ConfigMap nexus-files that are replaced.
    pub(crate) files: Vec<(&'static str, String)>,
    /// Hook files.
    pub(crate) hooks: Vec<(&'static str, String)>,
    /// Secrets, as a manifest.
    pub(crate) secrets: String,
    /// Further lines of the overlay's kustomization.
    pub(crate) overlay: String,
}

/// A cluster in which Nexus is installed.
#[derive(Debug)]
pub(crate) struct Installation {
    pub(crate) cluster: Cluster,
    pub(crate) overlay: tempfile::TempDir,
}

impl Installation {
    /// Installs `set` of the manifests with `files`, or says why that cannot be done on this machine.
    ///
    /// # Panics
    /// Panics where it should be possible, in CI.
    pub(crate) async fn try_make(set: &str, files: &Files, length: Length) -> Option<Self> {
        let cluster = try_cluster(length).await?;
        let overlay = write_overlay(set, files);
        let manifests = try_render(overlay.path())?;
        cluster.apply(SECRETS);
        cluster.apply(&make_users(&overlay.path().join(USERS)));
        cluster.apply(&files.secrets);
        cluster.apply(&manifests);
        Some(Self { cluster, overlay })
    }

    /// Opens a connection to the bus over a forwarded port, as whoever looks after the installation does.
    pub(crate) async fn bus(&self) -> Bus {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        self.cluster.forward(listener, "nats", 4222);
        let file = |name: &str| self.overlay.path().join(USERS).join(name).display().to_string();
        let config = NatsConfig {
            servers: vec![format!("nats://{address}")],
            ensure: false,
            credentials: file("users/admin.creds"),
            ca: file("tls/ca.pem"),
            ..NatsConfig::default()
        };
        shared::testing::connect(&config, "test").await
    }

    /// The state of the pods and the ends of all logs, for a failing test.
    pub(crate) fn logs(&self) -> String {
        let logs = self.cluster.pods().into_iter().map(|pod| {
            let log = self.cluster.log(&pod.name);
            let tail: Vec<&str> = log.lines().rev().take(15).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            format!("--- {}\n{}\n", pod.name, tail.join("\n"))
        });
        format!("{}{}", self.cluster.describe(), logs.collect::<String>())
    }
}

/// What a person makes by hand (docs/operations.md "Kubernetes").
const SECRETS: &str = "
kind: Secret
metadata: {namespace: nexus, name: nexus-trust}
stringData: {cluster-key: 5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c}
";

/// Makes the users of the bus in `folder`, as a person does, and returns them as Secrets.
fn make_users(folder: &Path) -> String {
    let hosts = ["nats-0.nats", "nats-1.nats", "nats-2.nats"];
    let made = Command::new(program())
        .args(["auth", "init", "--offline", "--dir"])
        .arg(folder)
        .args(hosts.iter().flat_map(|host| ["--host", *host]))
        .output()
        .expect("nexus starts");
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "nexus auth init: {said}");
    std::fs::read_to_string(folder.join("secrets.yaml")).expect("the Secrets")
}

/// Returns an empty cluster that has the images, or says why this machine can have none, or none for so long.
///
/// # Panics
/// Panics in CI, unless it was found out there that it cannot.
pub(crate) async fn try_cluster(length: Length) -> Option<Cluster> {
    #[expect(
        clippy::disallowed_methods,
        reason = "what a machine lacks is said to its tests in the environment"
    )]
    let (pods, is_ci) = (
        std::env::var("NEXUS_PODS").unwrap_or_default(),
        std::env::var("CI").is_ok(),
    );
    let is_left_out = match pods.as_str() {
        "" => false,
        "short" => length == Length::Long,
        "absent" => true,
        other => panic!("NEXUS_PODS={other}: expected `short` or `absent`"),
    };
    if is_left_out {
        println!("SKIPPED: NEXUS_PODS={pods}");
        return None;
    }
    match Cluster::start(images()).await {
        Ok(cluster) => Some(cluster),
        Err(why) if is_ci => panic!("no pods can be run: {why}"),
        Err(why) => {
            println!("SKIPPED: no pods can be run here: {why}");
            None
        }
    }
}

fn images() -> Images {
    let built = program();
    let built = built.parent().expect("a folder");
    let tool = |name: &str| {
        let path = root().join(".tools/bin").join(name);
        path.canonicalize()
            .unwrap_or_else(|error| panic!("{}: {error}: `make tools` brings it", path.display()))
    };
    let mut nexus: BTreeMap<String, PathBuf> = PROGRAMS
        .iter()
        .map(|name| ((*name).to_owned(), built.join(name)))
        .collect();
    nexus.insert("bun".to_owned(), tool("bun"));
    let nexus = Image {
        programs: nexus,
        variables: image_variables(),
    };
    let nats = Image {
        programs: [("nats-server".to_owned(), tool("nats-server"))].into(),
        ..Image::default()
    };
    [("nexus", nexus), ("nats", nats), ("busybox", Image::default())]
        .map(|(name, image)| (name.to_owned(), image))
        .into()
}

/// Returns the variables of the image `nexus`, but for `PATH`, by which the programs are found that make a container here.
fn image_variables() -> Map {
    let text = std::fs::read_to_string(root().join("deploy/image/Containerfile")).expect("what the image is made by");
    let lines = text.lines().filter_map(|line| line.strip_prefix("ENV "));
    let pairs = lines
        .flat_map(str::split_whitespace)
        .filter_map(|word| word.split_once('='));
    let kept = pairs.filter(|(name, _)| *name != "PATH");
    kept.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Writes an overlay upon `set`, below the folder that cargo gives to tests, since kustomize takes relative paths alone.
fn write_overlay(set: &str, files: &Files) -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("a file");

    let base = std::fs::read_to_string(root().join("k8s/base/nexus.toml")).expect("nexus.toml");
    write("nexus.toml", &format!("{base}{}", files.settings));
    let mut generated = "  - { name: nexus-config, behavior: merge, files: [nexus.toml] }\n".to_owned();
    let listed = [
        ("nexus-files", ", behavior: merge", &files.files),
        ("nexus-hooks", "", &files.hooks),
    ];
    for (map, behaviour, list) in listed {
        for (name, text) in list {
            write(name, text);
        }
        let names: Vec<&str> = list.iter().map(|(name, _)| *name).collect();
        if !names.is_empty() {
            generated.push_str(&format!(
                "  - {{ name: {map}{behaviour}, files: [{}] }}\n",
                names.join(", ")
            ));
        }
    }

    let up = relative_path(folder.path(), &root().join("k8s").join(set));
    write(
        "kustomization.yaml",
        &format!(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: {NAMESPACE}\n\
             resources: [{up}]\nconfigMapGenerator:\n{generated}{}",
            files.overlay
        ),
    );
    folder
}
