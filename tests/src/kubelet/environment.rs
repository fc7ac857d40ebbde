//! The environment and the command of a container (pure).

use std::collections::BTreeMap;

use serde_json::Value;

use crate::manifests::kinds::{Container, Key, KeyRef, Map, Meta, SourceRef, ValueFrom, quantity};
use crate::manifests::objects::Objects;

/// What a pod is known by.
#[derive(Debug, Clone)]
pub struct PodFacts {
    /// Name, namespace, labels and annotations of the pod.
    pub meta: Meta,
    /// Address of the pod.
    pub ip: String,
    /// Node on which it runs.
    pub node: String,
    /// Id of the pod, unlike that of every other.
    pub uid: String,
}

/// Returns the variables of `container`, of which the last one of a name counts, as in Kubernetes.
///
/// # Errors
/// Says which Secret, ConfigMap, key or field is missing: the container waits for it.
pub fn variables(container: &Container, facts: &PodFacts, objects: &Objects) -> Result<Map, String> {
    let mut all = Map::new();
    for from in &container.env_from {
        let found = match (&from.secret_ref, &from.config_map_ref) {
            (Some(secret), _) => entries(secret, facts, &objects.secrets)?,
            (None, Some(map)) => entries(map, facts, &objects.config_maps)?,
            (None, None) => Map::new(),
        };
        all.extend(
            found
                .into_iter()
                .map(|(key, value)| (format!("{}{key}", from.prefix), value)),
        );
    }

    for variable in &container.env {
        let value = match &variable.value_from {
            None => Some(expand(&variable.value, &all)),
            Some(ValueFrom::FieldRef { field_path }) => Some(field(field_path, facts)?),
            Some(ValueFrom::ResourceFieldRef { resource, divisor, .. }) => {
                Some(resource_field(container, resource, divisor.as_ref())?)
            }
            Some(ValueFrom::SecretKeyRef(key)) => entry(key, facts, &objects.secrets)?,
            Some(ValueFrom::ConfigMapKeyRef(key)) => entry(key, facts, &objects.config_maps)?,
        };
        if let Some(value) = value {
            all.insert(variable.name.clone(), value);
        }
    }

    Ok(all)
}

/// Returns the program and the arguments of `container`.
#[must_use]
pub fn command_line(container: &Container, variables: &Map) -> Vec<String> {
    let words = container.command.iter().chain(&container.args);
    words.map(|word| expand(word, variables)).collect()
}

/// Returns all entries of a Secret or a ConfigMap; none of an optional one that is absent.
///
/// # Errors
/// Says which one is missing.
pub fn entries(source: &SourceRef, facts: &PodFacts, of: &BTreeMap<Key, Map>) -> Result<Map, String> {
    match of.get(&(facts.meta.namespace.clone(), source.name.clone())) {
        Some(found) if source.items.is_empty() => Ok(found.clone()),
        Some(found) => {
            let items = source.items.iter();
            let files = items.map(|item| {
                let value = found.get(&item.key).cloned();
                let value = value.ok_or_else(|| format!("{} has no key {}", source.name, item.key))?;
                Ok((item.path.clone(), value))
            });
            files.collect()
        }
        None if source.optional => Ok(Map::new()),
        None => Err(format!("{} is not there", source.name)),
    }
}

fn entry(wanted: &KeyRef, facts: &PodFacts, of: &BTreeMap<Key, Map>) -> Result<Option<String>, String> {
    let found = of.get(&(facts.meta.namespace.clone(), wanted.name.clone()));
    match found.and_then(|map| map.get(&wanted.key)) {
        Some(value) => Ok(Some(value.clone())),
        None if wanted.optional => Ok(None),
        None => Err(format!("{} has no key {}", wanted.name, wanted.key)),
    }
}

fn field(path: &str, facts: &PodFacts) -> Result<String, String> {
    let labelled = |start: &str, of: &Map| {
        let key = path.strip_prefix(start)?.strip_suffix("']")?;
        Some(of.get(key).cloned().unwrap_or_default())
    };

    match path {
        "metadata.name" => Ok(facts.meta.name.clone()),
        "metadata.namespace" => Ok(facts.meta.namespace.clone()),
        "metadata.uid" => Ok(facts.uid.clone()),
        "status.podIP" => Ok(facts.ip.clone()),
        "spec.nodeName" => Ok(facts.node.clone()),
        _ => labelled("metadata.labels['", &facts.meta.labels)
            .or_else(|| labelled("metadata.annotations['", &facts.meta.annotations))
            .ok_or_else(|| format!("{path} is no field of a pod")),
    }
}

/// Returns a quantity of the container in units of `divisor`, rounded up.
fn resource_field(container: &Container, resource: &str, divisor: Option<&Value>) -> Result<String, String> {
    let (list, name) = resource
        .split_once('.')
        .ok_or_else(|| format!("{resource} is no resource"))?;
    let list = match list {
        "requests" => &container.resources.requests,
        "limits" => &container.resources.limits,
        _ => return Err(format!("{resource} is no resource")),
    };

    let asked = list
        .get(name)
        .and_then(quantity)
        .ok_or_else(|| format!("{resource} is not set"))?;
    // Zero stands for the default, as an absent divisor does.
    let unit = divisor.and_then(quantity).filter(|unit| *unit > 0.0).unwrap_or(1.0);
    Ok(format!("{:.0}", (asked / unit).ceil()))
}

/// Returns `text` with `$(NAME)` replaced where the name is known, and `$$(NAME)` as `$(NAME)`.
fn expand(text: &str, variables: &Map) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        expanded.push_str(before);
        let name = from.strip_prefix("$(").and_then(|name| name.split_once(')'));
        rest = match (from.strip_prefix("$$"), name) {
            (Some(escaped), _) => {
                expanded.push('$');
                escaped
            }
            (None, Some((name, after))) => {
                match variables.get(name) {
                    Some(value) => expanded.push_str(value),
                    None => expanded.push_str(&from[..name.len() + 3]),
                }
                after
            }
            (None, None) => {
                expanded.push('$');
                &from[1..]
            }
        };
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> PodFacts {
        PodFacts {
            meta: Meta {
                name: "nats-0".to_owned(),
                namespace: "nexus".to_owned(),
                ..Meta::default()
            },
            ip: "10.244.0.7".to_owned(),
            node: "node-1".to_owned(),
            uid: "7".to_owned(),
        }
    }

    fn container(text: &str) -> Container {
        let value: Value = serde_yaml_ng::from_str(text).expect("YAML");
        serde_json::from_value(value).expect("a container")
    }

    fn objects() -> Objects {
        let mut objects = Objects::default();
        let text = "{kind: Secret, metadata: {namespace: nexus, name: s}, stringData: {KEY: '1', b: x}}";
        objects.apply(text).expect("a Secret");
        objects
    }

    #[test]
    fn variables_come_from_values_fields_resources_and_secrets() {
        let one = container(
            "{env: [{name: A, value: a}, {name: B, value: '$(A)-$$(A)-$(NONE)'},
               {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}},
               {name: CPU, valueFrom: {resourceFieldRef: {resource: requests.cpu}}},
               {name: MIB, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}},
               {name: S, valueFrom: {secretKeyRef: {name: s, key: b}}},
               {name: O, valueFrom: {secretKeyRef: {name: none, key: b, optional: true}}}],
              envFrom: [{prefix: P_, secretRef: {name: s}}, {configMapRef: {name: none, optional: true}}],
              resources: {requests: {cpu: 1500m}, limits: {memory: 2Gi}}}",
        );
        let found = variables(&one, &facts(), &objects()).expect("variables");
        let expected = [
            ("A", "a"),
            ("B", "a-$(A)-$(NONE)"),
            ("CPU", "2"),
            ("MIB", "2048"),
            ("POD", "nats-0"),
            ("P_KEY", "1"),
            ("P_b", "x"),
            ("S", "x"),
        ];
        let expected: Map = expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_missing_is_named() {
        let secret = container("{env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: none}}}]}");
        assert_eq!(
            variables(&secret, &facts(), &objects()),
            Err("s has no key none".to_owned())
        );
        let map = container("{envFrom: [{configMapRef: {name: none}}]}");
        assert_eq!(
            variables(&map, &facts(), &objects()),
            Err("none is not there".to_owned())
        );
    }

    #[test]
    fn a_command_uses_the_variables() {
        let one = container("{command: [run, '$(A)'], args: ['--$(A)']}");
        let variables = Map::from([("A".to_owned(), "x".to_owned())]);
        assert_eq!(command_line(&one, &variables), ["run", "x", "--x"]);
    }
}
