//! A pod's life: its containers are started, probed, started again, and ended in order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, RwLock};
use std::time::{Duration, Instant};

use reqwest::redirect::Policy;
use shared::clock::{Clock as _, SystemClock, pause};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::sync::watch;
use tokio::time::timeout;

use super::container::{Images, Parts, Running};
use super::environment::{PodFacts, command_line, variables};
use super::memory;
use super::probe::{ProbeRecord, Verdict, back_off, patience, period};
use super::volume;
use crate::manifests::kinds::{Container, Handler, PodSpec, PortRef, Probe};
use crate::manifests::objects::Objects;
use crate::network::{self, NODE, Network};

/// Interval at which a pod looks for what it waits for, and at its volumes.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Interval at which a container's memory is compared with its limit.
const WEIGH_EVERY: Duration = Duration::from_millis(500);

/// Asks the pods from the node's address, over a connection for each question.
static PROBER: LazyLock<reqwest::Client> = LazyLock::new(|| {
    let client = reqwest::Client::builder().local_address(NODE).no_proxy();
    let client = client.pool_max_idle_per_host(0).redirect(Policy::none());
    client.build().expect("a client")
});

/// What a pod is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Runs.
    Run,
    /// Ends in good order, as told at this time.
    End(Instant),
    /// Is killed at once, as with its machine.
    Kill,
}

/// What is known of a pod.
#[derive(Debug, Clone, Default)]
pub struct PodStatus {
    /// Containers that run.
    pub running: BTreeMap<String, Arc<Running>>,
    /// Containers that are ready.
    pub ready: BTreeSet<String>,
    /// Time since which all of them are.
    pub ready_since: Option<Instant>,
    /// How often containers were started again.
    pub restarts: u32,
    /// What it waits for, or why its last container ended.
    pub message: String,
    /// Exit code with which a container ended last.
    pub code: Option<i32>,
    /// Whether it takes more room than it may, and has to make room for another pod.
    pub is_evicted: bool,
}

/// A pod.
#[derive(Debug)]
pub struct Pod {
    /// What it is known by.
    pub facts: PodFacts,
    /// What runs in it.
    pub spec: PodSpec,
    /// Interface of the node that leads to it.
    pub link: String,
    /// Where its folders and logs are.
    pub folder: PathBuf,
    /// Where claims are.
    pub claims: PathBuf,
    /// Address of its server for names.
    pub name_server: String,
    /// Programs that it may run.
    pub images: Arc<Images>,
    /// ConfigMaps and Secrets, and everything else that was applied.
    pub objects: Arc<RwLock<Objects>>,
    /// How often a pod that runs to its end is tried again; `None` for one that runs for ever.
    pub retries: Option<u32>,
    /// What is known of it.
    pub status: watch::Sender<PodStatus>,
}

impl Pod {
    /// Runs the pod until it is told to end.
    pub async fn live(self: Arc<Self>, orders: watch::Receiver<Order>) {
        std::fs::create_dir_all(&self.folder).expect("a folder");
        Network::add_pod(&self.link, &self.facts.ip).expect("a network");

        for container in &self.spec.init_containers {
            while *orders.borrow() == Order::Run && self.run_once(container, orders.clone(), true).await != Some(0) {
                pause(LOOK_EVERY).await;
            }
        }

        let mut containers = tokio::task::JoinSet::new();
        for container in self.spec.containers.clone() {
            let (pod, orders) = (Arc::clone(&self), orders.clone());
            containers.spawn(async move { pod.keep(&container, orders).await });
        }
        let mut ended = async || while containers.join_next().await.is_some() {};

        tokio::select! {
            () = ended() => {}
            why = self.watch_volumes() => {
                self.status.send_modify(|status| {
                    status.is_evicted = true;
                    status.message = why;
                });
                ended().await;
            }
        }
        Network::remove_pod(&self.link);
    }

    /// Starts `container` again whenever it ends, until the pod is told to end.
    async fn keep(&self, container: &Container, orders: watch::Receiver<Order>) {
        for times in 0.. {
            let told = async || drop(orders.clone().wait_for(|order| *order != Order::Run).await);
            tokio::select! {
                () = pause(back_off(times)) => {}
                () = told() => return,
            }
            let code = self.run_once(container, orders.clone(), self.retries.is_some()).await;
            let is_over = match self.retries {
                Some(retries) => code == Some(0) || times >= retries,
                None => false,
            };
            let is_told = *orders.borrow() != Order::Run;
            self.status.send_modify(|status| {
                status.code = code;
                status.restarts += u32::from(!is_told && !is_over);
            });
            if is_over || is_told {
                return;
            }
        }
    }

    /// Runs `container` to its end, and returns its exit code.
    async fn run_once(&self, container: &Container, mut orders: watch::Receiver<Order>, is_job: bool) -> Option<i32> {
        let log = self.folder.join(format!("{}.log", container.name));
        let (mut child, running) = loop {
            match self.parts(container).and_then(|parts| Running::start(parts, &log)) {
                Ok((child, running)) => break (child, Arc::new(running)),
                Err(why) => self.status.send_modify(|status| status.message = why),
            }
            tokio::select! {
                () = pause(LOOK_EVERY) => {}
                _ = orders.wait_for(|order| *order != Order::Run) => return None,
            }
        };
        self.status
            .send_modify(|status| drop(status.running.insert(container.name.clone(), Arc::clone(&running))));

        let mut order = Order::Run;
        let failed = tokio::select! {
            _ = child.wait() => None,
            why = self.probe(container, &running, is_job) => Some(why),
            why = exceed_memory(container, &running) => {
                order = Order::Kill;
                Some(why)
            }
            told = orders.wait_for(|order| *order != Order::Run) => {
                order = told.map_or(Order::Kill, |told| *told);
                Some("was told to end")
            }
        };
        self.set_ready(container, false);
        if let Some(why) = failed {
            self.status
                .send_modify(|status| status.message = format!("{} {why}", container.name));
            self.end(container, (&mut child, &running), order, orders).await;
        }

        let status = child.wait().await.ok();
        running.kill().await;
        self.status
            .send_modify(|status| drop(status.running.remove(&container.name)));
        status.and_then(|status| status.code())
    }

    /// Ends a container as told, or because a probe failed.
    async fn end(
        &self,
        container: &Container,
        (child, running): (&mut Child, &Running),
        order: Order,
        mut orders: watch::Receiver<Order>,
    ) {
        let told_at = match order {
            Order::Kill => return running.kill().await,
            Order::End(at) => at,
            Order::Run => SystemClock.monotonic(),
        };
        let grace = Duration::from_secs(self.spec.termination_grace_period_seconds.unwrap_or(30));
        let passed = SystemClock.monotonic().saturating_duration_since(told_at);
        let ending = timeout(grace.saturating_sub(passed), async {
            if let Some(handler) = &container.lifecycle.pre_stop {
                self.handle(container, handler, running).await;
            }
            running.ask_to_end().await;
            child.wait().await
        });
        let is_over = tokio::select! {
            ended = ending => ended.is_ok(),
            _ = orders.wait_for(|order| *order == Order::Kill) => false,
        };
        if !is_over {
            running.kill().await;
        }
    }

    /// Asks the probes of `container`; returns why it has to be started again.
    async fn probe(&self, container: &Container, running: &Running, is_job: bool) -> &'static str {
        if let Some(probe) = &container.startup_probe {
            let mut last = Verdict::Unknown;
            let heard = |verdict| {
                last = verdict;
                verdict != Verdict::Unknown
            };
            self.ask(container, probe, running, heard).await;
            if last == Verdict::Failing {
                return "failed its startup probe";
            }
        }

        let readiness = async {
            match &container.readiness_probe {
                None => self.set_ready(container, !is_job),
                Some(probe) => {
                    let heard = |verdict| {
                        self.set_ready(container, verdict == Verdict::Passing);
                        false
                    };
                    self.ask(container, probe, running, heard).await;
                }
            }
            std::future::pending().await
        };
        let liveness = async {
            match &container.liveness_probe {
                None => std::future::pending().await,
                Some(probe) => {
                    self.ask(container, probe, running, |verdict| verdict == Verdict::Failing)
                        .await;
                }
            }
            "failed its liveness probe"
        };

        tokio::select! {
            why = readiness => why,
            why = liveness => why,
        }
    }

    fn set_ready(&self, container: &Container, is_ready: bool) {
        self.status.send_if_modified(|status| {
            let is_changed = if is_ready {
                status.ready.insert(container.name.clone())
            } else {
                status.ready.remove(&container.name)
            };
            let is_all = status.ready.len() == self.spec.containers.len();
            status.ready_since = is_all.then(|| status.ready_since.unwrap_or_else(|| SystemClock.monotonic()));
            is_changed
        });
    }

    /// Puts the question of `probe` again and again, until what is heard is enough.
    async fn ask(
        &self,
        container: &Container,
        probe: &Probe,
        running: &Running,
        mut is_enough: impl FnMut(Verdict) -> bool,
    ) {
        let mut record = ProbeRecord::default();
        pause(Duration::from_secs(probe.initial_delay_seconds)).await;
        loop {
            let asked = timeout(patience(probe), self.handle(container, &probe.handler, running));
            let is_good = asked.await.unwrap_or(false);
            if is_enough(record.add(is_good, probe)) {
                return;
            }
            pause(period(probe)).await;
        }
    }

    /// Does what `handler` says, and returns whether it went well.
    async fn handle(&self, container: &Container, handler: &Handler, running: &Running) -> bool {
        let ip = &self.facts.ip;
        match handler {
            Handler::HttpGet { path, port } => {
                let url = format!("http://{ip}:{}{path}", port_of(container, port));
                let answered = PROBER.get(url).send().await;
                answered.is_ok_and(|answer| (200..400).contains(&answer.status().as_u16()))
            }
            Handler::TcpSocket { port } => TcpStream::connect(format!("{ip}:{}", port_of(container, port)))
                .await
                .is_ok(),
            Handler::Exec { command } => running
                .enter(command)
                .status()
                .await
                .is_ok_and(|status| status.success()),
            Handler::Sleep { seconds } => {
                pause(Duration::from_secs(*seconds)).await;
                true
            }
        }
    }

    /// Returns what `container` consists of at this time.
    fn parts(&self, container: &Container) -> Result<Parts, String> {
        let objects = self.objects.read().expect("no thread panics with it");
        let variables = variables(container, &self.facts, &objects)?;
        let name = container.image.rsplit('/').next().unwrap_or_default();
        let name = name.split(['@', ':']).next().unwrap_or_default();
        let image = self
            .images
            .get(name)
            .ok_or_else(|| format!("image {} is not known", container.image))?;

        let mut mounts = Vec::new();
        for mount in &container.volume_mounts {
            let volume = self.spec.volumes.iter().find(|volume| volume.name == mount.name);
            let volume = volume.ok_or_else(|| format!("volume {} is not declared", mount.name))?;
            let folder = volume::place(volume, &self.facts, &objects, &self.spec, (&self.folder, &self.claims))?;
            mounts.push((folder, mount.mount_path.clone(), mount.read_only));
        }

        let namespace = &self.facts.meta.namespace;
        Ok(Parts {
            space: network::space(&self.link),
            host: self.facts.meta.name.clone(),
            root: self.folder.join(format!("{}.root", container.name)),
            resolver: format!(
                "nameserver {}\\nsearch {namespace}.svc.cluster.local svc.cluster.local cluster.local\\noptions ndots:5\\n",
                self.name_server
            ),
            mounts,
            programs: image.programs.clone(),
            user: self.spec.security_context.clone(),
            command: command_line(container, &variables),
            // Of two variables of one name the later one stays.
            variables: image.variables.clone().into_iter().chain(variables).collect(),
        })
    }

    /// Carries changed ConfigMaps and Secrets into the volumes; returns why the pod has to be evicted.
    async fn watch_volumes(&self) -> String {
        loop {
            pause(LOOK_EVERY).await;
            if let Some(why) = volume::excess(&self.spec, &self.folder) {
                return why;
            }
            let objects = self.objects.read().expect("no thread panics with it");
            for volume in &self.spec.volumes {
                let placed = volume::place(volume, &self.facts, &objects, &self.spec, (&self.folder, &self.claims));
                // What is gone stays as it was.
                drop(placed);
            }
        }
    }
}

/// Returns once the processes of `container` have more memory than it may have.
async fn exceed_memory(container: &Container, running: &Running) -> &'static str {
    let Some(limit) = memory::limit(container) else {
        return std::future::pending().await;
    };
    loop {
        pause(WEIGH_EVERY).await;
        if memory::used(running.pid) as f64 > limit {
            return "had more memory than its limit (OOMKilled)";
        }
    }
}

/// Returns the number of a port of `container`.
pub(crate) fn port_of(container: &Container, port: &PortRef) -> u16 {
    match port {
        PortRef::Number(number) => *number,
        PortRef::Name(name) => {
            let found = container.ports.iter().find(|one| one.name == *name);
            found
                .unwrap_or_else(|| panic!("{} has no port {name}", container.name))
                .container_port
        }
    }
}
