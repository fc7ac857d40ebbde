//! The sets of manifests that the tests look at, rendered, and how their objects are found.

use std::path::{Path, PathBuf};

use serde::Deserialize as _;
use serde_json::Value;
use tests::manifests::kinds::Map;
use tests::manifests::kustomize::{relative_path, try_render};

/// Kustomizations, as they would be in a folder beside `k8s`: the base, and what is installed. Together with those of the
/// page they have every component.
const SETS: [(&str, &str); 3] = [
    ("base", "resources: [../k8s/base]"),
    ("overlays/dev", "resources: [../k8s/overlays/dev]"),
    ("overlays/prod", "resources: [../k8s/overlays/prod]"),
];

/// Names of the kustomizations of docs/operations.md.
const EXAMPLES: [&str; 3] = [
    "hpa instead of keda",
    "neither autoscaler nor monitor",
    SERVERS_OF_OTHERS,
];

/// Name of the one without servers of its own.
pub(crate) const SERVERS_OF_OTHERS: &str = "servers of others";

/// Rendered manifests.
#[derive(Debug)]
pub(crate) struct Set {
    pub(crate) name: &'static str,
    pub(crate) text: String,
    pub(crate) objects: Vec<Value>,
}

impl Set {
    /// Renders a kustomization, or returns `None` if kubectl cannot be run.
    pub(crate) fn try_render(name: &'static str, kustomization: &str) -> Option<Self> {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let k8s = relative_path(folder.path(), &k8s_folder(""));
        let text = kustomization.replace("../k8s/", &format!("{k8s}/"));
        std::fs::write(folder.path().join("kustomization.yaml"), text).expect("a file");

        let text = try_render(folder.path())?;
        let documents = serde_yaml_ng::Deserializer::from_str(&text);
        let objects = documents
            .map(|document| Value::deserialize(document).expect("an object"))
            .collect();
        Some(Self { name, text, objects })
    }
}

/// Returns every set, or none if kubectl cannot be run.
pub(crate) fn try_render_all() -> Vec<Set> {
    let sets = SETS.map(|(name, text)| (name, text.to_owned()));
    let examples = EXAMPLES.map(|name| (name, page_example(name)));
    let all = sets.into_iter().chain(examples);
    // Without kubectl the first one says so.
    all.map_while(|(name, text)| Set::try_render(name, &text)).collect()
}

/// Returns every object of the base.
pub(crate) fn try_render_base() -> Option<Vec<Value>> {
    let [(name, text), ..] = SETS;
    Set::try_render(name, text).map(|set| set.objects)
}

/// Returns the kustomization of docs/operations.md that says that it is rendered here as `name`.
pub(crate) fn page_example(name: &str) -> String {
    let page = std::fs::read_to_string(k8s_folder("../docs/operations.md")).expect("the page");
    let opening = format!("```yaml norun=\"rendered by tests/k8s.rs: {name}\"\n");
    let (_, rest) = page
        .split_once(&opening)
        .unwrap_or_else(|| panic!("docs/operations.md has no block `{name}`"));
    let (text, _) = rest.split_once("```").expect("the block ends");
    text.to_owned()
}

/// Returns what is at `path` below the folder `k8s`.
pub(crate) fn k8s_folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../k8s").join(path)
}

/// Every workload: name and template of the pods.
pub(crate) fn templates(objects: &[Value]) -> Vec<(&str, &Value)> {
    let found = objects.iter().filter_map(|object| {
        let template = match object["kind"].as_str()? {
            "Deployment" | "StatefulSet" | "Job" => &object["spec"]["template"],
            "CronJob" => &object["spec"]["jobTemplate"]["spec"]["template"],
            _ => return None,
        };
        Some((name(object), template))
    });
    found.collect()
}

/// Every workload of a service: name and template of the pods.
pub(crate) fn services(objects: &[Value]) -> Vec<(&str, &Value)> {
    let all = templates(objects).into_iter();
    all.filter(|(workload, _)| workload.contains("-svc")).collect()
}

/// Every container of a pod.
pub(crate) fn containers(template: &Value) -> impl Iterator<Item = &Value> {
    let pod = &template["spec"];
    list(&pod["initContainers"]).iter().chain(list(&pod["containers"]))
}

/// The elements of a list, or none.
pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The objects of one kind.
pub(crate) fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

/// The object `wanted` of one kind.
pub(crate) fn find<'a>(objects: &'a [Value], kind: &str, wanted: &str) -> Option<&'a Value> {
    of_kind(objects, kind).into_iter().find(|object| name(object) == wanted)
}

/// The name of an object.
pub(crate) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("a name")
}

/// Labels, or the entries of a ConfigMap.
pub(crate) fn entries(value: &Value) -> Map {
    Map::deserialize(value).expect("entries of text")
}
