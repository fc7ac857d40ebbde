//! A cluster of pretended nodes, which runs the manifests that are applied to it: [`rollout`] says how many pods there are, and
//! [`verbs`] has the actions of people. Each pod runs by the [`crate::kubelet`], on the [`crate::network`].

pub mod rollout;
pub mod verbs;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use shared::clock::{Clock as _, SystemClock, pause};
use tempfile::TempDir;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use self::rollout::{PodView, Step, steps};
use crate::kubelet::container::Images;
use crate::kubelet::environment::PodFacts;
use crate::kubelet::pod::{Order, Pod, PodStatus, port_of};
use crate::manifests::kinds::{Claim, JobSpec, Key, Service, Template, Volume, Workload};
use crate::manifests::objects::Objects;
use crate::network::names;
use crate::network::policy::{Endpoint, Forward, rules};
use crate::network::{LOCAL_DNS, NODE, Network, POD_DNS};

/// Interval at which the controllers look.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Names of the nodes.
const NODES: [&str; 3] = ["node-0", "node-1", "node-2"];

/// Longest question to the DNS server, in bytes.
const MAX_QUESTION: usize = 1232;

/// The cluster. Everything that it runs is killed when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
    _network: Network,
}

#[derive(Debug)]
struct Shared {
    objects: Arc<RwLock<Objects>>,
    state: Mutex<State>,
    images: Arc<Images>,
    folder: TempDir,
}

#[derive(Debug, Default)]
struct State {
    pods: BTreeMap<Key, PodEntry>,
    /// Template of each workload before the one that is being rolled out.
    former: BTreeMap<Key, Template>,
    service_ips: BTreeMap<Key, String>,
    /// Addresses of names outside of the cluster.
    hosts: BTreeMap<String, Ipv4Addr>,
    /// Number of pods that there ever were.
    number: u32,
    lost_nodes: BTreeSet<String>,
    enforced: String,
    uses_pod_dns: bool,
}

#[derive(Debug)]
struct PodEntry {
    pod: Arc<Pod>,
    owner: Key,
    template: Template,
    order: watch::Sender<Order>,
    life: JoinHandle<()>,
}

impl PodEntry {
    fn status(&self) -> PodStatus {
        self.pod.status.borrow().clone()
    }

    fn is_ending(&self) -> bool {
        *self.order.borrow() != Order::Run
    }

    fn tell(&self, order: Order) {
        self.order.send_if_modified(|present| {
            let is_new = *present == Order::Run || order == Order::Kill;
            if is_new {
                *present = order;
            }
            is_new
        });
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Objects> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what the controllers say, until the cluster is dropped.
    async fn control(self: Arc<Self>) {
        loop {
            let workloads: Vec<Workload> = self.read().workloads.values().cloned().collect();
            let now = SystemClock.monotonic();
            for workload in &workloads {
                self.control_one(workload, now);
            }
            self.state()
                .pods
                .retain(|_, entry| !entry.life.is_finished() || entry.pod.retries.is_some());
            self.control_jobs();
            self.connect();
            pause(LOOK_EVERY).await;
        }
    }

    /// Starts the Jobs that have not been started.
    fn control_jobs(&self) {
        let jobs: Vec<(Key, JobSpec)> = self.read().jobs.clone().into_iter().collect();
        let mut state = self.state();
        for (key, job) in jobs {
            if state.pods.values().any(|entry| entry.owner == key) {
                continue;
            }
            let mut pod = job.template.clone();
            pod.metadata.namespace.clone_from(&key.0);
            pod.metadata.name = format!("{}-{:05x}", key.1, state.number + 1);
            let retries = Some(job.backoff_limit.unwrap_or(6));
            self.run(&mut state, pod, job.template, key, retries);
        }
    }

    fn control_one(&self, workload: &Workload, now: Instant) {
        let mut state = self.state();
        let least = Duration::from_secs(workload.spec.min_ready_seconds);
        let mut views = Vec::new();
        for entry in state.pods.values().filter(|entry| entry.owner == workload.key) {
            let status = entry.status();
            if status.is_evicted {
                entry.tell(Order::End(now));
            }
            views.push(PodView {
                name: entry.pod.facts.meta.name.clone(),
                is_updated: entry.template == workload.spec.template,
                is_ready: status.ready_since.is_some(),
                is_available: status
                    .ready_since
                    .is_some_and(|since| now.saturating_duration_since(since) >= least),
                is_ending: entry.is_ending(),
            });
        }
        if views.iter().all(|view| view.is_updated && view.is_available) {
            state
                .former
                .insert(workload.key.clone(), workload.spec.template.clone());
        }

        for step in steps(workload, &views) {
            match step {
                Step::Stop(name) => state.pods[&(workload.key.0.clone(), name)].tell(Order::End(now)),
                Step::Start => self.start(&mut state, workload, None, true),
                Step::StartOrdinal { ordinal, is_updated } => {
                    self.start(&mut state, workload, Some(ordinal), is_updated);
                }
            }
        }
        self.remove_claims(&state, workload);
    }

    /// Removes the volumes of the pods that a StatefulSet has no more since it was scaled down, if it says so. Source:
    /// <https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#persistentvolumeclaim-retention>.
    fn remove_claims(&self, state: &State, workload: &Workload) {
        let (spec, (namespace, set)) = (&workload.spec, &workload.key);
        if spec.persistent_volume_claim_retention_policy.when_scaled != "Delete" {
            return;
        }

        let claims = self.folder.path().join("claims").join(namespace);
        for claim in std::fs::read_dir(claims).into_iter().flatten().flatten() {
            let name = claim.file_name().to_string_lossy().into_owned();
            let number = spec.volume_claim_templates.iter().find_map(|template| {
                let number = name.strip_prefix(&format!("{}-{set}-", template.metadata.name))?;
                number.parse::<u32>().ok()
            });
            let Some(number) = number.filter(|number| *number >= spec.replicas.unwrap_or(1)) else {
                continue;
            };
            if !state.pods.contains_key(&(namespace.clone(), format!("{set}-{number}"))) {
                // What cannot be removed now is tried again.
                _ = std::fs::remove_dir_all(claim.path());
            }
        }
    }

    /// Starts a pod of `workload`.
    fn start(&self, state: &mut State, workload: &Workload, ordinal: Option<u32>, is_updated: bool) {
        let former = state.former.get(&workload.key).filter(|_| !is_updated);
        let template = former.unwrap_or(&workload.spec.template).clone();
        let number = state.number + 1;
        let suffix = ordinal.map_or_else(|| format!("{number:05x}"), |ordinal| ordinal.to_string());
        let name = format!("{}-{suffix}", workload.key.1);

        let mut spec = template.spec.clone();
        spec.volumes
            .extend(workload.spec.volume_claim_templates.iter().map(|claim| {
                let claim_name = format!("{}-{name}", claim.metadata.name);
                Volume {
                    name: claim.metadata.name.clone(),
                    persistent_volume_claim: Some(Claim { claim_name }),
                    ..Volume::default()
                }
            }));
        let mut pod = template.clone();
        pod.spec = spec;
        pod.metadata.name = name;
        pod.metadata.namespace.clone_from(&workload.key.0);
        if let Some(ordinal) = ordinal {
            let label = "apps.kubernetes.io/pod-index".to_owned();
            pod.metadata.labels.insert(label, ordinal.to_string());
        }
        self.run(state, pod, template, workload.key.clone(), None);
    }

    /// Runs a pod on the node that has the fewest of its owner.
    fn run(&self, state: &mut State, pod: Template, template: Template, owner: Key, retries: Option<u32>) {
        state.number += 1;
        let number = state.number;
        let load = |node: &&str| {
            let of_owner = |entry: &&PodEntry| entry.owner == owner && entry.pod.facts.node == **node;
            state.pods.values().filter(of_owner).count()
        };
        let nodes = NODES.iter().copied().filter(|node| !state.lost_nodes.contains(*node));
        let node = nodes.min_by_key(load).expect("a node is left").to_owned();

        let key = (pod.metadata.namespace.clone(), pod.metadata.name.clone());
        let folder = self.folder.path().join(format!("{}.{number}", key.1));
        let pod = Arc::new(Pod {
            facts: PodFacts {
                meta: pod.metadata,
                ip: format!("10.244.{}.{}", 1 + number / 250, 1 + number % 250),
                node,
                uid: number.to_string(),
            },
            spec: pod.spec,
            link: format!("p{number}"),
            folder,
            claims: self.folder.path().join("claims"),
            name_server: if state.uses_pod_dns { POD_DNS } else { LOCAL_DNS }.to_string(),
            images: Arc::clone(&self.images),
            objects: Arc::clone(&self.objects),
            retries,
            status: watch::Sender::default(),
        });
        let (order, orders) = watch::channel(Order::Run);
        let life = tokio::spawn(Arc::clone(&pod).live(orders));
        let entry = PodEntry {
            pod,
            owner,
            template,
            order,
            life,
        };
        state.pods.insert(key, entry);
    }

    /// Returns the pods behind a Service.
    fn behind<'a>(state: &'a State, namespace: &str, service: &Service) -> Vec<&'a PodEntry> {
        let is_behind = |entry: &&PodEntry| {
            let facts = &entry.pod.facts.meta;
            let takes = !entry.is_ending() && entry.status().ready_since.is_some();
            let is_selected = service
                .selector
                .iter()
                .all(|(key, value)| facts.labels.get(key) == Some(value));
            facts.namespace == namespace && is_selected && (takes || service.publish_not_ready_addresses)
        };
        state.pods.values().filter(is_behind).collect()
    }

    /// Puts the rules of the network in force, if they have changed.
    fn connect(&self) {
        let objects = self.read();
        let mut state = self.state();

        let mut endpoints = vec![Endpoint {
            key: ("kube-system".to_owned(), "kube-dns".to_owned()),
            labels: [("k8s-app".to_owned(), "kube-dns".to_owned())].into(),
            ip: POD_DNS.to_string(),
            link: "uplink".to_owned(),
        }];
        endpoints.extend(state.pods.iter().map(|(key, entry)| Endpoint {
            key: key.clone(),
            labels: entry.pod.facts.meta.labels.clone(),
            ip: entry.pod.facts.ip.clone(),
            link: entry.pod.link.clone(),
        }));

        let mut forwards = Vec::new();
        for (key, service) in objects
            .services
            .iter()
            .filter(|(_, service)| service.cluster_ip != "None")
        {
            let count = state.service_ips.len();
            let fresh = || format!("10.96.0.{}", count + 1);
            let ip = state.service_ips.entry(key.clone()).or_insert_with(fresh).clone();
            for port in &service.ports {
                let to = Self::behind(&state, &key.0, service).into_iter().map(|entry| {
                    let container = &entry.pod.spec.containers[0];
                    let port = port
                        .target_port
                        .as_ref()
                        .map_or(port.port, |target| port_of(container, target));
                    (entry.pod.facts.ip.clone(), port)
                });
                let to = to.collect();
                forwards.push(Forward {
                    ip: ip.clone(),
                    port: port.port,
                    to,
                });
            }
        }

        let text = rules(
            &NODE.to_string(),
            &objects.namespaces,
            &endpoints,
            &objects.policies,
            &forwards,
        );
        if text != state.enforced {
            Network::enforce(&text).expect("the rules are taken");
            state.enforced = text;
        }
    }

    /// Returns the addresses of a name.
    fn find(&self, name: &str) -> Option<Vec<Ipv4Addr>> {
        let objects = self.read();
        let state = self.state();
        if let Some(address) = state.hosts.get(name) {
            return Some(vec![*address]);
        }

        let parts: Vec<&str> = name.strip_suffix(".svc.cluster.local")?.rsplit('.').collect();
        let (key, host) = match *parts.as_slice() {
            [namespace, service] => ((namespace.to_owned(), service.to_owned()), None),
            [namespace, service, host] => ((namespace.to_owned(), service.to_owned()), Some(host)),
            _ => return None,
        };
        let service = objects.services.get(&key)?;
        if service.cluster_ip != "None" {
            return host
                .is_none()
                .then(|| state.service_ips.get(&key)?.parse().ok().map(|ip| vec![ip]))?;
        }
        let behind = Self::behind(&state, &key.0, service)
            .into_iter()
            .map(|entry| &entry.pod.facts);
        let named = behind.filter(|facts| host.is_none_or(|host| facts.meta.name == host));
        let found: Vec<Ipv4Addr> = named.filter_map(|facts| facts.ip.parse().ok()).collect();
        (!found.is_empty()).then_some(found)
    }

    async fn serve_names(self: Arc<Self>, socket: UdpSocket) {
        let mut buffer = [0; MAX_QUESTION];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            if let Some(answer) = names::answer(&buffer[..length], |name| self.find(name)) {
                // Who asked asks again.
                _ = socket.send_to(&answer, from).await;
            }
        }
    }
}

impl Cluster {
    /// Makes an empty cluster that has `images`.
    ///
    /// # Errors
    /// Says what this machine lacks for it.
    pub async fn start(images: Images) -> Result<Self, String> {
        let network = tokio::task::spawn_blocking(Network::make)
            .await
            .map_err(|error| error.to_string())??;
        let folder = tempfile::Builder::new().prefix("nexus-test-").tempdir();
        let folder = folder.map_err(|error| error.to_string())?;
        // The users of the containers go through it.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).map_err(|error| error.to_string())?;

        let shared = Arc::new(Shared {
            objects: Arc::default(),
            state: Mutex::default(),
            images: Arc::new(images),
            folder,
        });
        let mut tasks = JoinSet::new();
        for address in [LOCAL_DNS, POD_DNS] {
            let socket = UdpSocket::bind((address, 53))
                .await
                .map_err(|error| format!("{address}:53: {error}"))?;
            tasks.spawn(Arc::clone(&shared).serve_names(socket));
        }
        tasks.spawn(Arc::clone(&shared).control());
        let cluster = Self {
            shared,
            _tasks: tasks,
            _network: network,
        };
        cluster.apply("{kind: Namespace, metadata: {name: kube-system}}");
        Ok(cluster)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for entry in self.shared.state().pods.values() {
            entry.life.abort();
        }
    }
}
