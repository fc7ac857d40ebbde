//! The network of the node: a namespace for the node, one for each pod, and this process as everything outside.
//!
//! Pods have an address each and reach one another through the node, whose rules every packet passes. What the kubelet
//! itself sends comes from [`NODE`]; what listens at [`OUTSIDE`] is on the internet, as the pods see it. There is one such
//! network on a machine at a time: the next one waits for it. [`policy`] makes the rules of it, and [`names`] the answers of
//! its DNS.

pub mod names;
pub mod policy;

use std::fs::File;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};

/// Address from which the kubelet asks its pods.
pub const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 244, 0, 1));

/// Addresses outside of the cluster, on the internet.
pub const OUTSIDE: [Ipv4Addr; 4] = [
    Ipv4Addr::new(44, 12, 0, 1),
    Ipv4Addr::new(44, 12, 0, 2),
    Ipv4Addr::new(44, 12, 0, 3),
    Ipv4Addr::new(44, 12, 0, 4),
];

/// Address of the DNS cache on each node (<https://kubernetes.io/docs/tasks/administer-cluster/nodelocaldns/>).
pub const LOCAL_DNS: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 20, 10));

/// Address of the pod that answers DNS.
pub const POD_DNS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 244, 0, 10));

/// Name of the node's namespace, and the start of the pods'.
const NODE_NAMESPACE: &str = "nexus-node";

/// The node's network; removed when dropped.
#[derive(Debug)]
pub struct Network {
    _lock: File,
}

impl Network {
    /// Makes it, once no other test has one.
    ///
    /// # Errors
    /// Says what this machine lacks: the right to make namespaces, `ip`, or `nft`.
    pub fn make() -> Result<Self, String> {
        let path = std::env::temp_dir().join("nexus-kubelet.lock");
        let lock = File::create(&path).and_then(|file| file.lock().map(|()| file));
        let network = Self {
            _lock: lock.map_err(|error| format!("{}: {error}", path.display()))?,
        };

        // A test that was killed has left its own.
        network.remove();
        let commands = format!(
            "ip netns add {NODE_NAMESPACE}
             ip link add nexus-up type veth peer name uplink netns {NODE_NAMESPACE}
             ip addr add {NODE}/32 dev nexus-up
             ip addr add {LOCAL_DNS}/32 dev nexus-up
             ip addr add {POD_DNS}/32 dev nexus-up
             ip link set nexus-up up
             ip route add 10.244.0.2 dev nexus-up src {NODE}
             ip route add 10.244.0.0/16 via 10.244.0.2 src {NODE}
             ip -n {NODE_NAMESPACE} link set lo up
             ip -n {NODE_NAMESPACE} addr add 10.244.0.2/32 dev uplink
             ip -n {NODE_NAMESPACE} link set uplink up
             ip -n {NODE_NAMESPACE} route add {NODE} dev uplink
             ip -n {NODE_NAMESPACE} route add default via {NODE}
             ip netns exec {NODE_NAMESPACE} nft list tables"
        );
        run_all(&commands)?;
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        output("ip", &["netns", "exec", NODE_NAMESPACE, "sh", "-c", forward])?;
        for address in OUTSIDE {
            run_all(&format!("ip addr add {address}/32 dev nexus-up"))?;
        }
        Ok(network)
    }

    /// Adds a pod with `ip` behind the node's interface `link`, which is also the name of its namespace.
    ///
    /// # Errors
    /// Says which command failed.
    pub fn add_pod(link: &str, ip: &str) -> Result<(), String> {
        let space = space(link);
        run_all(&format!(
            "ip netns add {space}
             ip -n {NODE_NAMESPACE} link add {link} type veth peer name eth0 netns {space}
             ip -n {NODE_NAMESPACE} addr add 169.254.1.1/32 dev {link}
             ip -n {NODE_NAMESPACE} link set {link} up
             ip -n {NODE_NAMESPACE} route add {ip} dev {link}
             ip -n {space} link set lo up
             ip -n {space} addr add {ip}/32 dev eth0
             ip -n {space} link set eth0 up
             ip -n {space} route add 169.254.1.1 dev eth0
             ip -n {space} route add default via 169.254.1.1"
        ))
    }

    /// Returns the processes of a pod.
    #[must_use]
    pub fn pids(link: &str) -> Vec<u32> {
        let listed = output("ip", &["netns", "pids", &space(link)]).unwrap_or_default();
        listed.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// Kills what still runs in a pod, and removes its namespace.
    pub fn remove_pod(link: &str) {
        remove(&space(link));
    }

    /// Puts `rules` in force, all at once.
    ///
    /// # Errors
    /// Says what `nft` does not take.
    pub fn enforce(rules: &str) -> Result<(), String> {
        let arguments = ["netns", "exec", NODE_NAMESPACE, "nft", "-f", "-"];
        let mut command = Command::new("ip");
        let mut child = command
            .args(arguments)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("ip: {error}"))?;
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(rules.as_bytes()).map_err(|error| error.to_string())?;
        drop(input);

        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr);
        output
            .status
            .success()
            .then_some(())
            .ok_or_else(|| format!("nft: {said}\n{rules}"))
    }

    fn remove(&self) {
        for space in output("ip", &["netns", "list"]).unwrap_or_default().lines() {
            let name = space.split_whitespace().next().unwrap_or_default();
            if name.starts_with("nexus-") {
                remove(name);
            }
        }
        // Goes with the node's namespace, but perhaps later.
        _ = output("ip", &["link", "del", "nexus-up"]);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Returns the name of the namespace of the pod behind `link`.
#[must_use]
pub fn space(link: &str) -> String {
    format!("nexus-{link}")
}

fn remove(space: &str) {
    let pids = output("ip", &["netns", "pids", space]).unwrap_or_default();
    for pid in pids.split_whitespace() {
        _ = output("kill", &["-KILL", pid]);
    }
    _ = output("ip", &["netns", "del", space]);
}

fn run_all(commands: &str) -> Result<(), String> {
    for line in commands.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        output(words[0], &words[1..])?;
    }
    Ok(())
}

/// Runs a program that ends by itself, and returns what it prints.
fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {}: {said}", arguments.join(" ")))
}
