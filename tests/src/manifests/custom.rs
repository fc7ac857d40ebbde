//! Objects of KEDA and of the Prometheus Operator, whose controllers do not run here (pure).
//!
//! The fields are those that the manifests use; any other one is refused, since the schemas of these kinds come with
//! their controllers and are not at hand. Sources: <https://keda.sh/docs/2.17/reference/scaledobject-spec/>,
//! <https://keda.sh/docs/2.17/scalers/prometheus/>, <https://prometheus-operator.dev/docs/api-reference/api/>.

use serde::Deserialize;

use super::kinds::Selector;

/// Version of the API that has ScaledObjects.
pub const KEDA_API: &str = "keda.sh/v1alpha1";

/// Version of the API that has ServiceMonitors.
pub const MONITORING_API: &str = "monitoring.coreos.com/v1";

/// What a ScaledObject says.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScaledObject {
    /// Workload that is scaled.
    pub scale_target_ref: ScaleTarget,
    /// Seconds between two questions while there are no replicas.
    pub polling_interval: u32,
    /// Smallest number of replicas.
    pub min_replica_count: u32,
    /// Largest number of replicas.
    pub max_replica_count: u32,
    /// Number of replicas without a metric.
    pub fallback: Fallback,
    /// Settings of the autoscaler that KEDA makes.
    pub advanced: Advanced,
    /// Metrics by which it is scaled.
    pub triggers: Vec<Trigger>,
}

/// A workload of the same namespace. All three fields are named: the defaults of KEDA and of Kubernetes differ.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScaleTarget {
    /// Version of its API.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// Number of replicas after a number of failures.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fallback {
    /// Failures in a row that are taken.
    pub failure_threshold: u32,
    /// Number of replicas after more of them.
    pub replicas: u32,
    /// What that number is compared with.
    pub behavior: FallbackBehavior,
}

/// How the number of a fallback and the present one become the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FallbackBehavior {
    /// The fallback's.
    Static,
    /// The present one.
    CurrentReplicas,
    /// The larger one.
    CurrentReplicasIfHigher,
    /// The smaller one.
    CurrentReplicasIfLower,
}

/// Settings beside the triggers.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Advanced {
    /// Those that Kubernetes' autoscaler takes over.
    pub horizontal_pod_autoscaler_config: AutoscalerConfig,
}

/// What Kubernetes' autoscaler takes over.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutoscalerConfig {
    /// How fast it may scale.
    pub behavior: ScalingBehavior,
}

/// How fast replicas come and go, as in `autoscaling/v2`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScalingBehavior {
    /// How they come.
    pub scale_up: ScalingRules,
    /// How they go.
    pub scale_down: ScalingRules,
}

/// The rules of one direction.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScalingRules {
    /// Seconds for which a number must have been wanted.
    pub stabilization_window_seconds: u32,
    /// Largest changes.
    pub policies: Vec<ScalingPolicy>,
}

/// The largest change within a period.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScalingPolicy {
    /// What `value` counts.
    #[serde(rename = "type")]
    pub kind: PolicyKind,
    /// The change.
    pub value: u32,
    /// The period.
    pub period_seconds: u32,
}

/// What a change is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum PolicyKind {
    /// Pods.
    Pods,
    /// A part of the pods.
    Percent,
}

/// A metric by which a workload is scaled.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Trigger {
    /// Where the metric comes from.
    #[serde(rename = "type")]
    pub kind: TriggerKind,
    /// What `threshold` is compared with.
    pub metric_type: MetricType,
    /// The question.
    pub metadata: PrometheusQuery,
}

/// Where a metric comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TriggerKind {
    /// A Prometheus.
    Prometheus,
}

/// What a threshold is compared with; a fallback needs `AverageValue`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum MetricType {
    /// The metric, divided by the number of replicas.
    AverageValue,
    /// The metric.
    Value,
}

/// A question to a Prometheus. All values are text in the schema.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PrometheusQuery {
    /// Address of the Prometheus.
    pub server_address: String,
    /// The expression, of one value.
    pub query: String,
    /// Target of the metric.
    pub threshold: String,
    /// `true` if no value means 0.
    pub ignore_null_values: String,
}

/// What a ServiceMonitor says. Without a selector of namespaces, its Services are in its own one.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceMonitor {
    /// Services, by their labels.
    pub selector: Selector,
    /// Ports that are scraped.
    pub endpoints: Vec<MonitorEndpoint>,
}

/// A port that is scraped.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MonitorEndpoint {
    /// Name of the port of the Service.
    pub port: String,
    /// Path of the metrics.
    pub path: String,
    /// Time between two scrapes.
    pub interval: String,
    /// Whether a label of the metric is kept if the target has one of the same name.
    pub honor_labels: bool,
}
