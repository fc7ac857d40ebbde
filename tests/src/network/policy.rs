//! Services and NetworkPolicies → the rules of the node that every packet between pods passes (pure).
//!
//! A pod that a policy selects may do in that direction only what some policy allows; the node may always reach its pods.
//! Source: <https://kubernetes.io/docs/concepts/services-networking/network-policies/>.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::manifests::kinds::{Key, Map, Peer, Policy, Rule, Selector};

/// A pod as the network sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Namespace and name.
    pub key: Key,
    /// Labels of the pod.
    pub labels: Map,
    /// Address of the pod.
    pub ip: String,
    /// Interface of the node that leads to the pod.
    pub link: String,
}

/// Where connections to the address of a Service go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    /// Address of the Service.
    pub ip: String,
    /// Port of the Service.
    pub port: u16,
    /// Address and port of each pod behind it.
    pub to: Vec<(String, u16)>,
}

/// Which way a connection goes, seen from the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Ingress,
    Egress,
}

/// Returns the rules as the text of `nft -f`, which replaces those in force in one step.
#[must_use]
pub fn rules(
    node: &str,
    namespaces: &BTreeMap<String, Map>,
    pods: &[Endpoint],
    policies: &BTreeMap<Key, Policy>,
    forwards: &[Forward],
) -> String {
    let (mut jumps, mut chains) = (String::new(), String::new());
    for pod in pods {
        for (direction, name, matching) in [
            (Direction::Egress, "egress", "iifname"),
            (Direction::Ingress, "ingress", "oifname"),
        ] {
            let Some(allowed) = allowed(direction, pod, namespaces, pods, policies) else {
                continue;
            };
            let link = &pod.link;
            _ = writeln!(jumps, "    {matching} \"{link}\" jump {name}_{link}");
            _ = writeln!(chains, "  chain {name}_{link} {{\n{allowed}    drop\n  }}");
        }
    }

    let services: String = forwards.iter().map(forward).collect();
    format!(
        "table ip kubelet {{}}\ndelete table ip kubelet\ntable ip kubelet {{\n\
         {chains}  chain services {{\n    type nat hook prerouting priority dstnat;\n{services}  }}\n\
         \x20 chain forward {{\n    type filter hook forward priority filter;\n    \
         ct state established,related accept\n    ip saddr {node} accept\n{jumps}  }}\n}}\n"
    )
}

fn forward(one: &Forward) -> String {
    let Forward { ip, port, to } = one;
    if to.is_empty() {
        return format!("    ip daddr {ip} tcp dport {port} drop\n");
    }
    let numbered = to.iter().enumerate();
    let choices: Vec<String> = numbered
        .map(|(number, (ip, port))| format!("{number} : {ip} . {port}"))
        .collect();
    format!(
        "    ip daddr {ip} tcp dport {port} dnat to numgen random mod {} map {{ {} }}\n",
        to.len(),
        choices.join(", ")
    )
}

/// Returns the rules for what `pod` may do, or `None` where no policy restricts it.
fn allowed(
    direction: Direction,
    pod: &Endpoint,
    namespaces: &BTreeMap<String, Map>,
    pods: &[Endpoint],
    policies: &BTreeMap<Key, Policy>,
) -> Option<String> {
    let restricts = |policy: &Policy| {
        let name = format!("{direction:?}");
        let is_implied = direction == Direction::Ingress || !policy.egress.is_empty();
        policy.policy_types.contains(&name) || (policy.policy_types.is_empty() && is_implied)
    };
    let in_force = policies.iter().filter(|((namespace, _), policy)| {
        *namespace == pod.key.0 && policy.pod_selector.selects(&pod.labels) && restricts(policy)
    });

    let mut text: Option<String> = None;
    for ((namespace, _), policy) in in_force {
        let text = text.get_or_insert_default();
        let rules = match direction {
            Direction::Ingress => &policy.ingress,
            Direction::Egress => &policy.egress,
        };
        for rule in rules {
            text.push_str(&rule_text(direction, rule, namespace, namespaces, pods));
        }
    }
    text
}

fn rule_text(
    direction: Direction,
    rule: &Rule,
    namespace: &str,
    namespaces: &BTreeMap<String, Map>,
    pods: &[Endpoint],
) -> String {
    let side = match direction {
        Direction::Ingress => "saddr",
        Direction::Egress => "daddr",
    };
    let mut peers: Vec<String> = rule
        .peers
        .iter()
        .filter_map(|peer| peer_text(side, peer, namespace, namespaces, pods))
        .collect();
    if rule.peers.is_empty() {
        peers.push(String::new());
    }
    let mut ports: Vec<String> = rule
        .ports
        .iter()
        .map(|one| format!("{} dport {} ", one.protocol.to_lowercase(), one.port))
        .collect();
    if ports.is_empty() {
        ports.push(String::new());
    }

    let both = peers.iter().flat_map(|peer| ports.iter().map(move |port| (peer, port)));
    both.map(|(peer, port)| format!("    {peer}{port}return\n")).collect()
}

/// Returns the condition for the address of `peer`, or `None` where it has none at this time.
fn peer_text(
    side: &str,
    peer: &Peer,
    namespace: &str,
    namespaces: &BTreeMap<String, Map>,
    pods: &[Endpoint],
) -> Option<String> {
    if let Some(block) = &peer.ip_block {
        // The network of the node has addresses of version 4 alone.
        if block.cidr.contains(':') {
            return None;
        }
        let except = match block.except.as_slice() {
            [] => String::new(),
            except => format!("ip {side} != {{ {} }} ", except.join(", ")),
        };
        return Some(format!("ip {side} {} {except}", block.cidr));
    }

    let is_in_namespace = |one: &str| match &peer.namespace_selector {
        Some(selector) => namespaces.get(one).is_some_and(|labels| selector.selects(labels)),
        None => one == namespace,
    };
    let every = Selector::default();
    let selector = peer.pod_selector.as_ref().unwrap_or(&every);
    let found = pods
        .iter()
        .filter(|pod| is_in_namespace(&pod.key.0) && selector.selects(&pod.labels));
    let found: Vec<&str> = found.map(|pod| pod.ip.as_str()).collect();
    (!found.is_empty()).then(|| format!("ip {side} {{ {} }} ", found.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::objects::Objects;

    fn pod(namespace: &str, name: &str, number: u8) -> Endpoint {
        Endpoint {
            key: (namespace.to_owned(), name.to_owned()),
            labels: Map::from([("app".to_owned(), name.to_owned())]),
            ip: format!("10.244.1.{number}"),
            link: format!("p{number}"),
        }
    }

    const POLICIES: &str = "
kind: Namespace
metadata: {name: m, labels: {is: monitoring}}
---
kind: NetworkPolicy
metadata: {namespace: n, name: deny}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
---
kind: NetworkPolicy
metadata: {namespace: n, name: a}
spec:
  podSelector: {matchLabels: {app: a}}
  policyTypes: [Ingress, Egress]
  ingress:
    - from:
        - podSelector: {matchLabels: {app: b}}
        - namespaceSelector: {matchLabels: {is: monitoring}}
      ports: [{protocol: TCP, port: 4222}]
    - from: [{podSelector: {matchLabels: {app: nobody}}}]
  egress:
    - to: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}]
      ports: [{protocol: TCP, port: 443}, {protocol: UDP, port: 53}]
    - ports: [{protocol: TCP, port: 1}]
";

    fn rules_of(pods: &[Endpoint]) -> String {
        let mut objects = Objects::default();
        objects.apply(POLICIES).expect("policies");
        rules("10.244.0.1", &objects.namespaces, pods, &objects.policies, &[])
    }

    fn chain<'a>(rules: &'a str, name: &str) -> Vec<&'a str> {
        let (_, rest) = rules
            .split_once(&format!("chain {name} {{\n"))
            .unwrap_or_else(|| panic!("{name}: {rules}"));
        rest.lines().map(str::trim).take_while(|line| *line != "}").collect()
    }

    #[test]
    fn a_selected_pod_may_do_what_some_policy_allows() {
        let rules = rules_of(&[pod("n", "a", 1), pod("n", "b", 2), pod("m", "a", 3), pod("o", "b", 4)]);
        let ingress = [
            "ip saddr { 10.244.1.2 } tcp dport 4222 return",
            "ip saddr { 10.244.1.3 } tcp dport 4222 return",
            "drop",
        ];
        assert_eq!(chain(&rules, "ingress_p1"), ingress);
        let egress = [
            "ip daddr 0.0.0.0/0 ip daddr != { 10.0.0.0/8 } tcp dport 443 return",
            "ip daddr 0.0.0.0/0 ip daddr != { 10.0.0.0/8 } udp dport 53 return",
            "tcp dport 1 return",
            "drop",
        ];
        assert_eq!(chain(&rules, "egress_p1"), egress);
    }

    #[test]
    fn a_pod_that_no_policy_selects_is_free_and_one_without_rules_is_cut_off() {
        let rules = rules_of(&[pod("n", "b", 2), pod("o", "b", 4)]);
        assert_eq!(chain(&rules, "egress_p2"), ["drop"]);
        assert_eq!(chain(&rules, "ingress_p2"), ["drop"]);
        assert!(!rules.contains("p4"), "{rules}");
    }

    #[test]
    fn a_service_leads_to_its_pods() {
        let to = vec![("10.244.1.1".to_owned(), 8080), ("10.244.1.2".to_owned(), 8080)];
        let text = forward(&Forward {
            ip: "10.96.0.1".to_owned(),
            port: 80,
            to,
        });
        let expected = "    ip daddr 10.96.0.1 tcp dport 80 dnat to numgen random mod 2 map \
                        { 0 : 10.244.1.1 . 8080, 1 : 10.244.1.2 . 8080 }\n";
        assert_eq!(text, expected);
    }
}
