//! What people and other controllers do to a cluster: apply, scale, restart, delete, drain, lose a node, run a job.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use shared::clock::{Clock as _, SystemClock, pause};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

use super::rollout::{may_evict, ordinal};
use super::{Cluster, LOOK_EVERY, PodEntry};
use crate::kubelet::pod::Order;
use crate::manifests::kinds::Workload;
use crate::network::{Network, OUTSIDE};

/// What a test sees of a pod.
#[derive(Debug, Clone)]
pub struct PodInfo {
    /// Name of the pod.
    pub name: String,
    /// Workload that it is of.
    pub owner: String,
    /// Node on which it runs.
    pub node: String,
    /// Address of the pod.
    pub ip: String,
    /// Whether it is ready.
    pub is_ready: bool,
    /// Whether it was told to end.
    pub is_ending: bool,
    /// Processes of its containers.
    pub pids: Vec<u32>,
    /// How often containers were started again.
    pub restarts: u32,
    /// What it waits for, or why a container ended.
    pub message: String,
}

impl Cluster {
    /// Adds the objects of a manifest, or replaces those of the same names.
    ///
    /// # Panics
    /// Panics if one of them is not understood.
    pub fn apply(&self, manifest: &str) {
        let mut objects = self.shared.objects.write().unwrap_or_else(PoisonError::into_inner);
        objects.apply(manifest).expect("manifests are understood");
    }

    /// Changes a workload, as `kubectl scale`, `set image` and `rollout restart` do.
    ///
    /// # Panics
    /// Panics if there is none of that name.
    pub fn change(&self, namespace: &str, name: &str, change: impl FnOnce(&mut Workload)) {
        let mut objects = self.shared.objects.write().unwrap_or_else(PoisonError::into_inner);
        let found = objects.workloads.get_mut(&(namespace.to_owned(), name.to_owned()));
        change(found.unwrap_or_else(|| panic!("no workload {namespace}/{name}")));
    }

    /// Changes the number of a workload's pods.
    pub fn scale(&self, namespace: &str, name: &str, replicas: u32) {
        self.change(namespace, name, |workload| workload.spec.replicas = Some(replicas));
    }

    /// Replaces the pods of a workload, as `kubectl rollout restart` does.
    pub fn restart(&self, namespace: &str, name: &str) {
        self.change(namespace, name, |workload| {
            let annotations = &mut workload.spec.template.metadata.annotations;
            let times = annotations
                .entry("kubectl.kubernetes.io/restartedAt".to_owned())
                .or_default();
            times.push('+');
        });
    }

    /// Has `name` be a host on the internet, whose port 443 is `port` of this machine's loopback.
    ///
    /// # Panics
    /// Panics if there are no more addresses.
    pub async fn add_host(&self, name: &str, port: u16) {
        let taken = self.shared.state().hosts.len();
        let address = *OUTSIDE.get(taken).expect("an address is left");
        let listener = TcpListener::bind((address, 443)).await.expect("the address is ours");
        self.shared.state().hosts.insert(name.to_owned(), address);
        tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut to = TcpStream::connect(("127.0.0.1", port)).await?;
                    tokio::io::copy_bidirectional(&mut from, &mut to).await
                });
            }
        });
    }

    /// Has pods that start from here on ask DNS in a pod of kube-system instead of the node's cache.
    pub fn use_pod_dns(&self) {
        self.shared.state().uses_pod_dns = true;
    }

    /// Returns all pods.
    #[must_use]
    pub fn pods(&self) -> Vec<PodInfo> {
        let state = self.shared.state();
        let info = |entry: &PodEntry| {
            let (facts, status) = (&entry.pod.facts, entry.status());
            PodInfo {
                name: facts.meta.name.clone(),
                owner: entry.owner.1.clone(),
                node: facts.node.clone(),
                ip: facts.ip.clone(),
                is_ready: status.ready_since.is_some(),
                is_ending: entry.is_ending(),
                pids: status.running.values().map(|running| running.pid).collect(),
                restarts: status.restarts,
                message: status.message,
            }
        };
        let living = state.pods.values().filter(|entry| !entry.life.is_finished());
        living.map(info).collect()
    }

    /// Waits until every workload has the pods that it should have, all of them available.
    ///
    /// # Panics
    /// Panics at the deadline, with the state of the pods and the ends of their logs.
    pub async fn settled(&self, deadline: Duration) {
        let is_settled = || {
            let workloads: Vec<Workload> = self.shared.read().workloads.values().cloned().collect();
            let state = self.shared.state();
            let now = SystemClock.monotonic();
            workloads.iter().all(|workload| {
                let least = Duration::from_secs(workload.spec.min_ready_seconds);
                let of_it: Vec<&PodEntry> = state
                    .pods
                    .values()
                    .filter(|entry| entry.owner == workload.key)
                    .collect();
                let partition = workload.spec.update_strategy.rolling_update.partition;
                let is_done = |entry: &PodEntry| {
                    let since = entry.status().ready_since;
                    let is_updated =
                        entry.template == workload.spec.template || ordinal(&entry.pod.facts.meta.name) < partition;
                    let is_available = since.is_some_and(|since| now.saturating_duration_since(since) >= least);
                    is_updated && !entry.is_ending() && is_available
                };
                let wanted = workload.spec.replicas.unwrap_or(1) as usize;
                of_it.len() == wanted && of_it.iter().all(|entry| is_done(entry))
            })
        };
        let waited = tokio::time::timeout(deadline, async {
            while !is_settled() {
                pause(LOOK_EVERY).await;
            }
        });
        assert!(
            waited.await.is_ok(),
            "not settled within {deadline:?}\n{}",
            self.describe()
        );
    }

    /// Returns the state of the pods, and the ends of the logs of those that are not ready.
    #[must_use]
    pub fn describe(&self) -> String {
        let pods = self.pods();
        let lines = pods.iter().map(|pod| {
            let log = if pod.is_ready {
                String::new()
            } else {
                self.log(&pod.name)
            };
            let tail: Vec<&str> = log.lines().rev().take(12).collect();
            let tail: String = tail.into_iter().rev().map(|line| format!("\n    {line}")).collect();
            let PodInfo {
                name,
                is_ready,
                restarts,
                message,
                ..
            } = pod;
            format!("{name}: ready {is_ready}, restarts {restarts}, {message}{tail}\n")
        });
        lines.collect()
    }

    /// Returns the logs of a pod.
    #[must_use]
    pub fn log(&self, pod: &str) -> String {
        let folder = self.with_pod(pod, |entry| entry.pod.folder.clone());
        let files = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|file| file.path());
        let logs = files.filter(|path| path.extension().is_some_and(|end| end == "log"));
        logs.map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned())
            .collect()
    }

    fn with_pod<T>(&self, name: &str, look: impl FnOnce(&PodEntry) -> T) -> T {
        let state = self.shared.state();
        let found = state.pods.values().find(|entry| entry.pod.facts.meta.name == name);
        look(found.unwrap_or_else(|| panic!("no pod {name}")))
    }

    /// Runs a program in the first container of a pod.
    ///
    /// # Panics
    /// Panics if the pod does not run, or the program cannot be started.
    pub async fn run_in(&self, pod: &str, words: &[&str]) -> Output {
        self.run_with(pod, words, Vec::new()).await
    }

    /// Runs a program in the first container of a pod, with `input` on its standard input.
    ///
    /// # Panics
    /// As [`Self::run_in`].
    pub async fn run_with(&self, pod: &str, words: &[&str], input: Vec<u8>) -> Output {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let running = self.with_pod(pod, |entry| entry.status().running.into_values().next());
        let running = running.unwrap_or_else(|| panic!("pod {pod} does not run"));
        let mut command = running.enter(&words);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("nsenter is there");
        let mut pipe = child.stdin.take().expect("a pipe");
        // A program that does not read it has ended.
        _ = pipe.write_all(&input).await;
        drop(pipe);
        child.wait_with_output().await.expect("it ends")
    }

    /// Tells a pod to end, as `kubectl delete pod` does.
    pub fn delete_pod(&self, name: &str) {
        self.with_pod(name, |entry| entry.tell(Order::End(SystemClock.monotonic())));
    }

    /// Tells a pod to end if its budgets allow it, as `kubectl drain` does; returns whether they do.
    #[must_use]
    pub fn evict(&self, name: &str) -> bool {
        let objects = self.shared.read();
        let state = self.shared.state();
        let found = state.pods.iter().find(|((_, pod), _)| pod == name);
        let ((namespace, _), entry) = found.unwrap_or_else(|| panic!("no pod {name}"));
        let (labels, is_ready) = (&entry.pod.facts.meta.labels, entry.status().ready_since.is_some());
        let is_allowed = objects.budgets.iter().all(|((of, _), budget)| {
            if of != namespace || !budget.selector.selects(labels) {
                return true;
            }
            let selected = |labels| budget.selector.selects(labels);
            let workloads = objects.workloads.values().filter(|one| one.key.0 == *of);
            let workloads = workloads.filter(|one| selected(&one.spec.template.metadata.labels));
            let expected = workloads.map(|one| one.spec.replicas.unwrap_or(1)).sum();
            let healthy = state.pods.values().filter(|one| {
                selected(&one.pod.facts.meta.labels) && !one.is_ending() && one.status().ready_since.is_some()
            });
            let healthy = u32::try_from(healthy.count()).unwrap_or(u32::MAX);
            may_evict(budget, is_ready, expected, healthy)
        });
        if is_allowed {
            entry.tell(Order::End(SystemClock.monotonic()));
        }
        is_allowed
    }

    /// Evicts the pods of `node` as their budgets allow it, and lets it have no others, as `kubectl drain` does.
    ///
    /// # Panics
    /// Panics at the deadline.
    pub async fn drain(&self, node: &str, deadline: Duration) {
        self.shared.state().lost_nodes.insert(node.to_owned());
        let draining = async {
            loop {
                let left: Vec<PodInfo> = self.pods().into_iter().filter(|pod| pod.node == node).collect();
                if left.is_empty() {
                    return;
                }
                for pod in left.iter().filter(|pod| !pod.is_ending) {
                    _ = self.evict(&pod.name);
                }
                pause(LOOK_EVERY).await;
            }
        };
        let drained = tokio::time::timeout(deadline, draining).await;
        assert!(drained.is_ok(), "{node} is not drained\n{}", self.describe());
    }

    /// Makes a Job of a CronJob, as `kubectl create job --from` does.
    ///
    /// # Panics
    /// Panics if there is none of that name.
    pub fn run_cron_job(&self, namespace: &str, from: &str, job: &str) {
        let mut objects = self.shared.objects.write().unwrap_or_else(PoisonError::into_inner);
        let found = objects.cron_jobs.get(&(namespace.to_owned(), from.to_owned())).cloned();
        let found = found.unwrap_or_else(|| panic!("no CronJob {namespace}/{from}"));
        objects.jobs.insert((namespace.to_owned(), job.to_owned()), found);
    }

    /// Deletes a Job and its pods, and waits until they are gone, as `kubectl delete job` does; one that is absent is.
    pub async fn delete_job(&self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        {
            let mut objects = self.shared.objects.write().unwrap_or_else(PoisonError::into_inner);
            objects.jobs.remove(&key);
        }

        let is_gone = || {
            let mut state = self.shared.state();
            state
                .pods
                .retain(|_, entry| entry.owner != key || !entry.life.is_finished());
            let mut left = state.pods.values().filter(|entry| entry.owner == key).peekable();
            let is_gone = left.peek().is_none();
            for entry in left.filter(|entry| !entry.is_ending()) {
                entry.tell(Order::End(SystemClock.monotonic()));
            }
            is_gone
        };
        while !is_gone() {
            pause(LOOK_EVERY).await;
        }
    }

    /// Has `listener` lead to `port` of a pod of `owner`, as `kubectl port-forward` does.
    pub fn forward(&self, listener: TcpListener, owner: &str, port: u16) {
        let (shared, owner) = (Arc::downgrade(&self.shared), owner.to_owned());
        tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let Some(shared) = shared.upgrade() else { return };
                let is_ready = |entry: &&PodEntry| {
                    entry.owner.1 == owner && entry.status().ready_since.is_some() && !entry.is_ending()
                };
                let ip = {
                    let state = shared.state();
                    let found = state.pods.values().find(is_ready);
                    found.map(|entry| entry.pod.facts.ip.clone())
                };
                // Without a pod the connection ends.
                let Some(ip) = ip else { continue };
                tokio::spawn(async move {
                    let mut to = TcpStream::connect((ip.as_str(), port)).await?;
                    tokio::io::copy_bidirectional(&mut from, &mut to).await
                });
            }
        });
    }

    /// Has a node fail: what runs there is gone at once, and made again elsewhere.
    pub fn lose_node(&self, node: &str) {
        let mut state = self.shared.state();
        state.lost_nodes.insert(node.to_owned());
        for entry in state.pods.values().filter(|entry| entry.pod.facts.node == node) {
            entry.tell(Order::Kill);
        }
    }

    /// Waits until a Job has ended; returns its exit code and its log.
    ///
    /// # Panics
    /// Panics at the deadline.
    pub async fn job_ended(&self, namespace: &str, name: &str, deadline: Duration) -> (Option<i32>, String) {
        let key = (namespace.to_owned(), name.to_owned());
        let look = || {
            let state = self.shared.state();
            let entry = state
                .pods
                .values()
                .find(|entry| entry.owner == key && entry.life.is_finished());
            entry.map(|entry| (entry.pod.facts.meta.name.clone(), entry.status().code))
        };
        let waited = tokio::time::timeout(deadline, async {
            loop {
                if let Some(ended) = look() {
                    return ended;
                }
                pause(LOOK_EVERY).await;
            }
        });
        let Ok((pod, code)) = waited.await else {
            panic!("job {name} does not end\n{}", self.describe());
        };
        (code, self.log(&pod))
    }

    /// Returns the memory that all processes of a pod take, in bytes; what several share counts once.
    #[must_use]
    pub fn memory(&self, pod: &str) -> u64 {
        let pids = Network::pids(&self.with_pod(pod, |entry| entry.pod.link.clone()));
        let sizes = pids.into_iter().filter_map(|pid| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
            let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
            Some(kib * 1024)
        });
        sizes.sum()
    }

    /// Loses the files on a claim's volume: the next pod finds an empty one, as after `kubectl delete pvc`.
    ///
    /// # Panics
    /// Panics if there is no such volume.
    pub fn lose_claim(&self, namespace: &str, name: &str) {
        let folder = self.claim(namespace, name);
        // The pod that has it goes on writing there until it ends.
        std::fs::rename(&folder, folder.with_extension("lost")).expect("a volume");
    }

    /// Returns the folder of a claim.
    #[must_use]
    pub fn claim(&self, namespace: &str, name: &str) -> PathBuf {
        self.shared.folder.path().join("claims").join(namespace).join(name)
    }
}
