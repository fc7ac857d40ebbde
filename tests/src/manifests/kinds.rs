//! Objects of Kubernetes as far as the kubelet runs them (pure). Fields are named as in its reference,
//! <https://kubernetes.io/docs/reference/kubernetes-api/>.
//!
//! What a variable, a volume, a probe or a network policy says must be understood in full: a field that is not listed is
//! refused. Of the rest, the fields that decide how a pod runs are read.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// Labels, or the entries of a ConfigMap.
pub type Map = BTreeMap<String, String>;

/// Namespace and name of an object.
pub type Key = (String, String);

/// Declares objects whose fields may all be absent.
macro_rules! objects {
    ($($(#[$about:meta])* $name:ident { $($(#[$field_about:meta])* $field:ident: $type:ty),* $(,)? })*) => {
        $(
            #[derive(Debug, Clone, Default, PartialEq, Deserialize)]
            #[serde(default, rename_all = "camelCase")]
            $(#[$about])*
            pub struct $name { $($(#[$field_about])* pub $field: $type),* }
        )*
    };
}

objects! {
    /// How an object is called.
    Meta { name: String, namespace: String, labels: Map, annotations: Map }

    /// The pods that a workload makes.
    Template { metadata: Meta, spec: PodSpec }

    /// What runs in a pod.
    PodSpec {
        init_containers: Vec<Container>, containers: Vec<Container>, volumes: Vec<Volume>,
        termination_grace_period_seconds: Option<u64>, security_context: Security,
    }

    /// Whom the processes of a pod run as.
    Security { run_as_user: u32, run_as_group: u32 }

    /// A program of a pod.
    Container {
        name: String, image: String, command: Vec<String>, args: Vec<String>, env: Vec<Variable>,
        env_from: Vec<VariablesFrom>, ports: Vec<Port>, volume_mounts: Vec<Mount>, startup_probe: Option<Probe>,
        liveness_probe: Option<Probe>, readiness_probe: Option<Probe>, lifecycle: Lifecycle, resources: Resources,
    }

    /// Orders at the end of a container's life.
    #[serde(deny_unknown_fields)]
    Lifecycle { pre_stop: Option<Handler> }

    /// Quantities that a container asks for, and may not exceed.
    #[serde(deny_unknown_fields)]
    Resources { requests: BTreeMap<String, Value>, limits: BTreeMap<String, Value> }

    /// A variable of the environment.
    #[serde(deny_unknown_fields)]
    Variable { name: String, value: String, value_from: Option<ValueFrom> }

    /// A key of a Secret or a ConfigMap.
    #[serde(deny_unknown_fields)]
    KeyRef { name: String, key: String, optional: bool }

    /// A Secret or a ConfigMap; without `items`, all of it.
    #[serde(deny_unknown_fields)]
    SourceRef {
        #[serde(alias = "secretName")]
        name: String,
        optional: bool, items: Vec<Item>, default_mode: Option<u32>,
    }

    /// A key that becomes a file.
    #[serde(deny_unknown_fields)]
    Item { key: String, path: String }

    /// All entries of a Secret or a ConfigMap as variables.
    #[serde(deny_unknown_fields)]
    VariablesFrom { prefix: String, secret_ref: Option<SourceRef>, config_map_ref: Option<SourceRef> }

    /// A port of a container.
    Port { name: String, container_port: u16 }

    /// Where a volume is seen.
    #[serde(deny_unknown_fields)]
    Mount { name: String, mount_path: String, read_only: bool }

    /// A folder of a pod.
    #[serde(deny_unknown_fields)]
    Volume {
        name: String, config_map: Option<SourceRef>, secret: Option<SourceRef>, empty_dir: Option<EmptyDir>,
        persistent_volume_claim: Option<Claim>,
    }

    /// A folder that goes with its pod, which is evicted when it exceeds the size.
    #[serde(deny_unknown_fields)]
    EmptyDir { size_limit: Option<Value> }

    /// A folder that stays.
    Claim { claim_name: String }

    /// What both Deployments and StatefulSets say; one pod if `replicas` is absent.
    WorkloadSpec {
        replicas: Option<u32>, min_ready_seconds: u64, pod_management_policy: String, service_name: String,
        template: Template, strategy: Strategy, update_strategy: Strategy, volume_claim_templates: Vec<ClaimTemplate>,
        persistent_volume_claim_retention_policy: ClaimRetention,
    }

    /// What becomes of the folders of pods that go: `Delete`, or they stay.
    #[serde(deny_unknown_fields)]
    ClaimRetention { when_scaled: String, when_deleted: String }

    /// How pods are replaced.
    Strategy {
        #[serde(rename = "type")]
        kind: String,
        rolling_update: RollingUpdate,
    }

    /// The bounds of a replacement.
    #[serde(deny_unknown_fields)]
    RollingUpdate { max_surge: Option<Amount>, max_unavailable: Option<Amount>, partition: u32 }

    /// A folder that each pod of a StatefulSet keeps.
    ClaimTemplate { metadata: Meta }

    /// Pods, or namespaces, by their labels.
    #[serde(deny_unknown_fields)]
    Selector { match_labels: Map, match_expressions: Vec<Expression> }

    /// A condition on one label.
    #[serde(deny_unknown_fields)]
    Expression { key: String, operator: String, values: Vec<String> }

    /// A name for pods.
    Service {
        #[serde(rename = "clusterIP")]
        cluster_ip: String,
        publish_not_ready_addresses: bool, selector: Map, ports: Vec<ServicePort>,
    }

    /// A port of a Service, and the one of the pods behind it.
    ServicePort { port: u16, target_port: Option<PortRef> }

    /// How many pods may be missing at once by someone's decision.
    #[serde(deny_unknown_fields)]
    Budget {
        min_available: Option<Amount>, max_unavailable: Option<Amount>, selector: Selector,
        unhealthy_pod_eviction_policy: String,
    }

    /// Who may talk to the selected pods, and to whom they may.
    #[serde(deny_unknown_fields)]
    Policy { pod_selector: Selector, policy_types: Vec<String>, ingress: Vec<Rule>, egress: Vec<Rule> }

    /// Peers and ports that are allowed; an empty list allows every one.
    #[serde(deny_unknown_fields)]
    Rule {
        #[serde(alias = "from", alias = "to")]
        peers: Vec<Peer>,
        ports: Vec<RulePort>,
    }

    /// The other side of a connection.
    #[serde(deny_unknown_fields)]
    Peer { pod_selector: Option<Selector>, namespace_selector: Option<Selector>, ip_block: Option<Block> }

    /// Addresses, without some of them.
    #[serde(deny_unknown_fields)]
    Block { cidr: String, except: Vec<String> }

    /// A port that is allowed.
    #[serde(deny_unknown_fields)]
    RulePort { protocol: String, port: u16 }

    /// A pod that runs to its end, and is tried again as often as `backoff_limit` says; 6 times if absent.
    JobSpec { template: Template, backoff_limit: Option<u32> }
}

/// A number, or a part in percent of another.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Amount {
    /// The number itself.
    Number(u32),
    /// `25%`.
    Percent(String),
}

/// Where a variable's value is.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum ValueFrom {
    /// A field of the pod.
    FieldRef { field_path: String },
    /// A quantity of the container.
    ResourceFieldRef {
        container_name: Option<String>,
        resource: String,
        divisor: Option<Value>,
    },
    /// A key of a Secret.
    SecretKeyRef(KeyRef),
    /// A key of a ConfigMap.
    ConfigMapKeyRef(KeyRef),
}

/// How a probe asks, or what is done before the end.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Handler {
    /// A request, which succeeds with a status of 200 to 399.
    HttpGet { path: String, port: PortRef },
    /// A connection.
    TcpSocket { port: PortRef },
    /// A program in the container.
    Exec { command: Vec<String> },
    /// Nothing, for a time.
    Sleep { seconds: u64 },
}

/// A port by its number or its name.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum PortRef {
    /// Its number.
    Number(u16),
    /// Its name in the container.
    Name(String),
}

/// A question that is put to a container again and again.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// The question.
    #[serde(flatten)]
    pub handler: Handler,
    /// Seconds until the first one.
    #[serde(default)]
    pub initial_delay_seconds: u64,
    /// Seconds between two; 10 if absent.
    pub period_seconds: Option<u64>,
    /// Seconds until one has failed; 1 if absent.
    pub timeout_seconds: Option<u64>,
    /// Failures in a row that count; 3 if absent.
    pub failure_threshold: Option<u64>,
    /// Successes in a row that count; 1 if absent.
    pub success_threshold: Option<u64>,
}

/// Which kind of workload makes pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadKind {
    /// Pods that are alike.
    Deployment,
    /// Pods with numbers.
    StatefulSet,
}

/// A Deployment or a StatefulSet.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Which of the two.
    pub kind: WorkloadKind,
    /// Namespace and name.
    pub key: Key,
    /// What it says.
    pub spec: WorkloadSpec,
}

impl Selector {
    /// Returns whether `labels` fulfil every condition; no condition selects everything.
    #[must_use]
    pub fn selects(&self, labels: &Map) -> bool {
        let fulfils = |one: &Expression| {
            let value = labels.get(&one.key);
            match one.operator.as_str() {
                "In" => value.is_some_and(|value| one.values.contains(value)),
                "NotIn" => value.is_none_or(|value| !one.values.contains(value)),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                other => panic!("{other} is no operator of a selector"),
            }
        };

        let mut same = self.match_labels.iter();
        same.all(|(key, value)| labels.get(key) == Some(value)) && self.match_expressions.iter().all(fulfils)
    }
}

/// Returns what `500m`, `2Gi` or `3` amounts to; `None` for anything else.
#[must_use]
pub fn quantity(value: &Value) -> Option<f64> {
    const UNITS: [(&str, f64); 9] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("m", 0.001),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
    ];

    let Some(text) = value.as_str() else {
        return value.as_f64();
    };
    let unit = UNITS.iter().find(|(unit, _)| text.ends_with(unit));
    let (unit, factor) = unit.copied().unwrap_or(("", 1.0));
    let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
    Some(number * factor)
}
