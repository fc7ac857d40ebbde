//! Manifests → the objects in force (pure).

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize as _;
use serde::de::{DeserializeOwned, Error as _};
use serde_json::Value;

use super::custom::{KEDA_API, MONITORING_API, ScaledObject, ServiceMonitor};
use super::kinds::{Budget, JobSpec, Key, Map, Meta, Policy, Service, Workload, WorkloadKind};

/// Everything that was applied.
#[derive(Debug, Clone, Default)]
pub struct Objects {
    /// Labels of each namespace.
    pub namespaces: BTreeMap<String, Map>,
    /// Deployments and StatefulSets.
    pub workloads: BTreeMap<Key, Workload>,
    /// Services.
    pub services: BTreeMap<Key, Service>,
    /// NetworkPolicies.
    pub policies: BTreeMap<Key, Policy>,
    /// PodDisruptionBudgets.
    pub budgets: BTreeMap<Key, Budget>,
    /// Entries of each ConfigMap.
    pub config_maps: BTreeMap<Key, Map>,
    /// Entries of each Secret, decoded.
    pub secrets: BTreeMap<Key, Map>,
    /// Jobs, each of which runs once.
    pub jobs: BTreeMap<Key, JobSpec>,
    /// Jobs of CronJobs, which run when somebody makes a Job of them.
    pub cron_jobs: BTreeMap<Key, JobSpec>,
}

/// Objects without effect here: rights on the API server, and what other controllers act upon.
const WITHOUT_EFFECT: [&str; 3] = ["ServiceAccount", "HorizontalPodAutoscaler", "PersistentVolumeClaim"];

impl Objects {
    /// Adds the objects of a manifest, or replaces those of the same names.
    ///
    /// # Errors
    /// Says which object is not understood, and why.
    pub fn apply(&mut self, manifest: &str) -> Result<(), String> {
        for document in serde_yaml_ng::Deserializer::from_str(manifest) {
            let object = Value::deserialize(document).map_err(|error| error.to_string())?;
            if !object.is_null() {
                let name = format!("{} {}", object["kind"], object["metadata"]["name"]);
                self.apply_one(object).map_err(|error| format!("{name}: {error}"))?;
            }
        }
        Ok(())
    }

    fn apply_one(&mut self, mut object: Value) -> Result<(), serde_json::Error> {
        let meta: Meta = serde_json::from_value(object["metadata"].take())?;
        let (kind, key) = (object["kind"].take(), (meta.namespace, meta.name));
        let kind = kind.as_str().unwrap_or_default();

        match kind {
            "Namespace" => {
                let mut labels = meta.labels;
                labels.insert("kubernetes.io/metadata.name".to_owned(), key.1.clone());
                self.namespaces.insert(key.1, labels);
            }
            "Deployment" | "StatefulSet" => {
                let (kind, spec) = match kind {
                    "Deployment" => (WorkloadKind::Deployment, read(&mut object)?),
                    _ => (WorkloadKind::StatefulSet, read(&mut object)?),
                };
                let mut workload = Workload { kind, key, spec };
                // Who scales it owns the number.
                let present = self.workloads.get(&workload.key).and_then(|one| one.spec.replicas);
                workload.spec.replicas = workload.spec.replicas.or(present);
                self.workloads.insert(workload.key.clone(), workload);
            }
            "Service" => drop(self.services.insert(key, read(&mut object)?)),
            "NetworkPolicy" => drop(self.policies.insert(key, read(&mut object)?)),
            "PodDisruptionBudget" => drop(self.budgets.insert(key, read(&mut object)?)),
            "ConfigMap" => drop(
                self.config_maps
                    .insert(key, entries(&object, |text| Ok(text.to_owned()))?),
            ),
            "Secret" => drop(self.secrets.insert(key, entries(&object, decoded)?)),
            "CronJob" => {
                let spec = object["spec"]["jobTemplate"]["spec"].take();
                self.cron_jobs.insert(key, serde_json::from_value(spec)?);
            }
            "Job" => {
                let spec = read(&mut object)?;
                if self.jobs.get(&key).is_some_and(|present| *present != spec) {
                    return Err(serde_json::Error::custom("spec.template: field is immutable"));
                }
                self.jobs.insert(key, spec);
            }
            // Without effect as well, but nobody else checks them before a cluster does.
            "ScaledObject" if object["apiVersion"] == KEDA_API => drop(read::<ScaledObject>(&mut object)?),
            "ServiceMonitor" if object["apiVersion"] == MONITORING_API => drop(read::<ServiceMonitor>(&mut object)?),
            other if WITHOUT_EFFECT.contains(&other) => {}
            other => return Err(serde_json::Error::custom(format!("the kind {other} is not known"))),
        }
        Ok(())
    }
}

fn read<T: DeserializeOwned>(object: &mut Value) -> Result<T, serde_json::Error> {
    serde_json::from_value(object["spec"].take())
}

/// Returns the entries of a ConfigMap or a Secret as text; `read` reads a value of `data`.
fn entries(object: &Value, read: impl Fn(&str) -> Result<String, serde_json::Error>) -> Result<Map, serde_json::Error> {
    let of = |field: &str| Option::<Map>::deserialize(&object[field]).map(Option::unwrap_or_default);
    let data = of("data")?.into_iter().map(|(key, value)| Ok((key, read(&value)?)));
    let mut all = data.collect::<Result<Map, serde_json::Error>>()?;
    all.extend(of("stringData")?);
    Ok(all)
}

fn decoded(value: &str) -> Result<String, serde_json::Error> {
    // Written over several lines, as YAML may have it.
    let bytes = BASE64.decode(value.split_whitespace().collect::<String>());
    String::from_utf8(bytes.map_err(serde_json::Error::custom)?).map_err(serde_json::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// <https://kubernetes.io/docs/concepts/workloads/controllers/job/>: the template of a Job that exists is not changed.
    #[test]
    fn a_job_that_is_there_is_not_changed() {
        let job = |image: &str| {
            format!(
                "{{kind: Job, metadata: {{name: once}}, spec: {{template: {{spec: {{containers: [{{image: {image}}}]}}}}}}}}"
            )
        };
        let mut objects = Objects::default();
        objects.apply(&job("one")).expect("created");
        objects.apply(&job("one")).expect("the same");
        let refused = objects.apply(&job("other")).expect_err("immutable");
        assert!(refused.contains("immutable"), "{refused}");
    }

    #[test]
    fn a_kind_that_is_not_listed_is_refused() {
        let apply = |manifest: &str| Objects::default().apply(manifest);
        apply("{kind: ServiceAccount, metadata: {name: any}}").expect("listed");
        let refused = apply("{kind: Issuer, metadata: {name: any}}").expect_err("not listed");
        assert!(refused.contains("the kind Issuer is not known"), "{refused}");
    }

    #[test]
    fn a_field_of_a_custom_resource_that_is_not_listed_is_refused() {
        let monitor = |version: &str, more: &str| {
            let manifest = format!(
                "{{apiVersion: {version}, kind: ServiceMonitor, metadata: {{name: any}}, spec: {{selector: {{}}, endpoints: \
                 [{{port: health, path: /metrics, interval: 15s, honorLabels: true{more}}}]}}}}"
            );
            Objects::default().apply(&manifest)
        };

        monitor(MONITORING_API, "").expect("every field is listed");
        let refused = monitor(MONITORING_API, ", targetPort: 1").expect_err("not listed");
        assert!(refused.contains("targetPort"), "{refused}");
        monitor("monitoring.coreos.com/v2", "").expect_err("another schema");
    }
}
