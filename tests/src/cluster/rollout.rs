//! How many pods there are, and which ones: the arithmetic of Deployments, StatefulSets and PodDisruptionBudgets (pure).
//!
//! Sources: <https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#rolling-update-deployment>,
//! <https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#deployment-and-scaling-guarantees>,
//! <https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#rolling-updates>,
//! <https://kubernetes.io/docs/tasks/run-application/configure-pdb/>.

use crate::manifests::kinds::{Amount, Budget, Workload, WorkloadKind};

/// A pod of a workload as its controller sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodView {
    /// Name of the pod.
    pub name: String,
    /// Whether it was made from the template that is in force.
    pub is_updated: bool,
    /// Whether it takes requests.
    pub is_ready: bool,
    /// Whether it has done so for `minReadySeconds`.
    pub is_available: bool,
    /// Whether it was told to end.
    pub is_ending: bool,
}

/// What a controller does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Starts a pod of a Deployment.
    Start,
    /// Starts the pod of a StatefulSet with this number, from the template in force or from the one before it.
    StartOrdinal { ordinal: u32, is_updated: bool },
    /// Tells the pod with this name to end.
    Stop(String),
}

/// Returns the steps that bring `pods` nearer to what `workload` says.
#[must_use]
pub fn steps(workload: &Workload, pods: &[PodView]) -> Vec<Step> {
    match workload.kind {
        WorkloadKind::Deployment => deployment(workload, pods),
        WorkloadKind::StatefulSet => stateful_set(workload, pods),
    }
}

/// Returns the number that `amount` is of `whole`; a part is rounded up or down.
fn number(amount: &Amount, whole: u32, rounds_up: bool) -> u32 {
    match amount {
        Amount::Number(number) => *number,
        Amount::Percent(text) => {
            let percent: u32 = text.trim_end_matches('%').parse().expect("a percentage");
            let hundredfold = whole * percent;
            if rounds_up {
                hundredfold.div_ceil(100)
            } else {
                hundredfold / 100
            }
        }
    }
}

fn count(pods: &[&PodView], is: impl Fn(&PodView) -> bool) -> u32 {
    u32::try_from(pods.iter().filter(|pod| is(pod)).count()).unwrap_or(u32::MAX)
}

fn deployment(workload: &Workload, pods: &[PodView]) -> Vec<Step> {
    let wanted = workload.spec.replicas.unwrap_or(1);
    let bounds = &workload.spec.strategy.rolling_update;
    let quarter = Amount::Percent("25%".to_owned());
    let surge = number(bounds.max_surge.as_ref().unwrap_or(&quarter), wanted, true);
    let mut missing = number(bounds.max_unavailable.as_ref().unwrap_or(&quarter), wanted, false);
    if surge == 0 && missing == 0 {
        missing = 1;
    }

    let pods: Vec<&PodView> = pods.iter().filter(|pod| !pod.is_ending).collect();
    let (new, old): (Vec<&PodView>, Vec<&PodView>) = pods.iter().partition(|pod| pod.is_updated);
    let (total, made) = (count(&pods, |_| true), count(&new, |_| true));

    // Too many of the newest: those that are not ready go first.
    if made > wanted {
        let mut spare = new;
        spare.sort_by_key(|pod| (pod.is_available, pod.is_ready));
        let spare = spare.into_iter().take((made - wanted) as usize);
        return spare.map(|pod| Step::Stop(pod.name.clone())).collect();
    }

    let room = (wanted + surge).saturating_sub(total);
    let mut steps = vec![Step::Start; room.min(wanted - made) as usize];

    // Old pods end while enough others are available; the ones that are not available are missed by nobody.
    let kept = wanted.saturating_sub(missing);
    let waiting = count(&new, |pod| !pod.is_available);
    let may_end = total.saturating_sub(kept + waiting);
    let useless = old.iter().filter(|pod| !pod.is_available).take(may_end as usize);
    let useless: Vec<&&PodView> = useless.collect();
    let spare = count(&pods, |pod| pod.is_available).saturating_sub(kept);
    let spare = spare.min(may_end - u32::try_from(useless.len()).unwrap_or(may_end));
    let replaced = old.iter().filter(|pod| pod.is_available).take(spare as usize);
    steps.extend(
        useless
            .into_iter()
            .chain(replaced)
            .map(|pod| Step::Stop(pod.name.clone())),
    );

    steps
}

/// Returns the number at the end of a pod's name.
#[must_use]
pub fn ordinal(name: &str) -> u32 {
    let number = name.rsplit_once('-').and_then(|(_, number)| number.parse().ok());
    number.unwrap_or(u32::MAX)
}

fn stateful_set(workload: &Workload, pods: &[PodView]) -> Vec<Step> {
    let wanted = workload.spec.replicas.unwrap_or(1);
    let partition = workload.spec.update_strategy.rolling_update.partition;
    let is_parallel = workload.spec.pod_management_policy == "Parallel";
    let find = |number: u32| pods.iter().find(|pod| ordinal(&pod.name) == number);

    let mut steps = Vec::new();
    for number in 0..wanted {
        let is_updated = number >= partition;
        match find(number) {
            None => steps.push(Step::StartOrdinal {
                ordinal: number,
                is_updated,
            }),
            Some(pod) if is_parallel || (pod.is_available && !pod.is_ending) => continue,
            // One after the other: the next ones wait for this one.
            Some(_) => return steps,
        }
        if !is_parallel {
            return steps;
        }
    }

    let mut surplus: Vec<&PodView> = pods.iter().filter(|pod| ordinal(&pod.name) >= wanted).collect();
    surplus.sort_by_key(|pod| std::cmp::Reverse(ordinal(&pod.name)));
    let at_once = if is_parallel { surplus.len() } else { 1 };
    let ending = surplus.iter().take(at_once).filter(|pod| !pod.is_ending);
    steps.extend(ending.map(|pod| Step::Stop(pod.name.clone())));
    if !steps.is_empty() || (!is_parallel && !surplus.is_empty()) || workload.spec.update_strategy.kind == "OnDelete" {
        return steps;
    }

    // From the last to the first, each of which has to be available before the next one.
    for pod in (partition..wanted).rev().filter_map(find) {
        if !pod.is_updated && !pod.is_ending {
            return vec![Step::Stop(pod.name.clone())];
        }
        if !pod.is_available || pod.is_ending {
            return Vec::new();
        }
    }
    Vec::new()
}

/// Returns how many of `expected` pods have to be ready.
fn needed(budget: &Budget, expected: u32) -> u32 {
    match (&budget.min_available, &budget.max_unavailable) {
        (Some(least), _) => number(least, expected, true),
        (None, Some(most)) => expected.saturating_sub(number(most, expected, true)),
        (None, None) => 0,
    }
}

/// Returns how many of `expected` pods may be evicted now, `healthy` of which are ready.
#[must_use]
pub fn evictions_allowed(budget: &Budget, expected: u32, healthy: u32) -> u32 {
    healthy.saturating_sub(needed(budget, expected))
}

/// Returns whether a pod may be evicted now, which is ready or not, if `healthy` of `expected` pods are ready.
///
/// One that is not ready may leave where the budget always allows it, and else only while enough others are ready. A budget
/// that needs none of them ready counts as not kept, as in the API server (`pkg/registry/core/pod/storage/eviction.go`): so
/// the only pod of a workload, if it is not ready, stays for ever.
#[must_use]
pub fn may_evict(budget: &Budget, is_ready: bool, expected: u32, healthy: u32) -> bool {
    let needed = needed(budget, expected);
    let is_free =
        !is_ready && (budget.unhealthy_pod_eviction_policy == "AlwaysAllow" || (needed > 0 && healthy >= needed));
    is_free || evictions_allowed(budget, expected, healthy) > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::kinds::WorkloadSpec;

    fn workload(kind: WorkloadKind, spec: &str) -> Workload {
        let value: serde_json::Value = serde_yaml_ng::from_str(spec).expect("YAML");
        let spec: WorkloadSpec = serde_json::from_value(value).expect("a workload");
        let key = ("n".to_owned(), "w".to_owned());
        Workload { kind, key, spec }
    }

    /// Pods by a word each: `u` updated or `o` old, then `+` available, `-` not, `x` ending.
    fn pods(words: &str) -> Vec<PodView> {
        let views = words.split_whitespace().enumerate().map(|(number, word)| PodView {
            name: format!("w-{number}"),
            is_updated: word.starts_with('u'),
            is_ready: word.contains('+'),
            is_available: word.contains('+'),
            is_ending: word.contains('x'),
        });
        views.collect()
    }

    fn stop(number: u32) -> Step {
        Step::Stop(format!("w-{number}"))
    }

    fn begin(ordinal: u32) -> Step {
        Step::StartOrdinal {
            ordinal,
            is_updated: true,
        }
    }

    /// Makes every step at once, and has what was started become available, until nothing is left to do.
    fn roll(workload: &Workload, begun: &str) -> (u32, u32) {
        let mut all = pods(begun);
        let (mut most, mut least) = (0, u32::MAX);
        for round in 0..100 {
            let next = steps(workload, &all);
            if next.is_empty() && all.iter().all(|pod| pod.is_available) {
                assert!(all.iter().all(|pod| pod.is_updated));
                return (most, least);
            }
            for step in next {
                match step {
                    Step::Start => {
                        all.push(PodView {
                            name: format!("w-{round}-{}", all.len()),
                            is_updated: true,
                            is_ready: false,
                            is_available: false,
                            is_ending: false,
                        });
                        most = most.max(count(&all.iter().collect::<Vec<_>>(), |_| true));
                    }
                    Step::StartOrdinal { .. } => panic!("a Deployment has no ordinals"),
                    Step::Stop(name) => all.retain(|pod| pod.name != name),
                }
            }
            let every: Vec<&PodView> = all.iter().collect();
            most = most.max(count(&every, |_| true));
            least = least.min(count(&every, |pod| pod.is_available));
            let waiting = all.iter_mut().find(|pod| !pod.is_available);
            waiting.into_iter().for_each(|pod| pod.is_available = true);
        }
        panic!("it does not end: {all:?}");
    }

    #[test]
    fn a_deployment_keeps_between_its_bounds() {
        let rolled = |spec: &str, begun: &str| roll(&workload(WorkloadKind::Deployment, spec), begun);
        // "If this value is set to 30%, ... the total number of old and new Pods does not exceed 130% of desired Pods."
        let thirty = "{replicas: 10, strategy: {rollingUpdate: {maxSurge: 30%, maxUnavailable: 30%}}}";
        assert_eq!(rolled(thirty, "o+ o+ o+ o+ o+ o+ o+ o+ o+ o+"), (13, 7));
        // The defaults are 25 %, rounded up and down: of 3, one more and none less.
        assert_eq!(rolled("{replicas: 3}", "o+ o+ o+"), (4, 3));
        let none_less = "{replicas: 2, strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}}";
        assert_eq!(rolled(none_less, "o+ o+"), (3, 2));
        let none_more = "{replicas: 4, strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 25%}}}";
        assert_eq!(rolled(none_more, "o+ o+ o+ o+"), (4, 3));
    }

    #[test]
    fn a_deployment_replaces_what_is_not_available_first_and_scales() {
        let two = workload(
            WorkloadKind::Deployment,
            "{replicas: 2, strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}}",
        );
        assert_eq!(
            steps(&two, &pods("o+ o+ u-")),
            [],
            "the new one has to be available first"
        );
        assert_eq!(steps(&two, &pods("o+ o+ u+")), [stop(0)]);
        assert_eq!(steps(&two, &pods("o- o+ u+")), [stop(0)]);
        assert_eq!(steps(&two, &pods("u+ u- u+")), [stop(1)]);
        assert_eq!(steps(&two, &[]), [Step::Start, Step::Start]);
        assert_eq!(steps(&two, &pods("u+ ux")), [Step::Start], "what ends does not count");
    }

    #[test]
    fn ordered_pods_come_and_go_one_by_one() {
        let three = workload(WorkloadKind::StatefulSet, "{replicas: 3}");
        assert_eq!(steps(&three, &[]), [begin(0)]);
        // "web-1 is not launched until web-0 is Running and Ready."
        assert_eq!(steps(&three, &pods("u-")), []);
        assert_eq!(steps(&three, &pods("u+")), [begin(1)]);
        let one = workload(WorkloadKind::StatefulSet, "{replicas: 1}");
        // "web-1 is not terminated until web-2 is fully shut down and deleted."
        assert_eq!(steps(&one, &pods("u+ u+ u+")), [stop(2)]);
        assert_eq!(steps(&one, &pods("u+ u+ ux")), []);
    }

    #[test]
    fn parallel_pods_come_and_go_at_once() {
        let three = workload(
            WorkloadKind::StatefulSet,
            "{replicas: 3, podManagementPolicy: Parallel}",
        );
        assert_eq!(steps(&three, &[]), [begin(0), begin(1), begin(2)]);
        assert_eq!(steps(&three, &pods("u-")), [begin(1), begin(2)]);
        let one = workload(
            WorkloadKind::StatefulSet,
            "{replicas: 1, podManagementPolicy: Parallel}",
        );
        assert_eq!(steps(&one, &pods("u+ u+ u+")), [stop(2), stop(1)]);
    }

    #[test]
    fn a_stateful_set_is_updated_from_its_last_pod_on() {
        for policy in ["OrderedReady", "Parallel"] {
            let spec = format!("{{replicas: 3, podManagementPolicy: {policy}}}");
            let three = workload(WorkloadKind::StatefulSet, &spec);
            assert_eq!(steps(&three, &pods("o+ o+ o+")), [stop(2)], "{policy}");
            assert_eq!(steps(&three, &pods("o+ o+ ox")), [], "{policy}");
            assert_eq!(
                steps(&three, &pods("o+ o+ u-")),
                [],
                "{policy}: it waits until that is available"
            );
            assert_eq!(steps(&three, &pods("o+ o+ u+")), [stop(1)], "{policy}");
            assert_eq!(steps(&three, &pods("u+ u+ u+")), [], "{policy}");
        }
        let by_hand = workload(
            WorkloadKind::StatefulSet,
            "{replicas: 1, updateStrategy: {type: OnDelete}}",
        );
        assert_eq!(steps(&by_hand, &pods("o+")), []);
    }

    #[test]
    fn pods_below_the_partition_stay_as_they_were() {
        let spec = "{replicas: 3, podManagementPolicy: Parallel, updateStrategy: {rollingUpdate: {partition: 2}}}";
        let three = workload(WorkloadKind::StatefulSet, spec);
        assert_eq!(steps(&three, &pods("o+ o+ o+")), [stop(2)]);
        assert_eq!(steps(&three, &pods("o+ o+ u+")), []);
        // "Even if they are deleted, they will be recreated at the previous version."
        let former = |ordinal| Step::StartOrdinal {
            ordinal,
            is_updated: false,
        };
        assert_eq!(steps(&three, &[]), [former(0), former(1), begin(2)]);
    }

    #[test]
    fn budgets_round_in_favour_of_the_pods() {
        let budget = |spec: &str| -> Budget {
            let value: serde_json::Value = serde_yaml_ng::from_str(spec).expect("YAML");
            serde_json::from_value(value).expect("a budget")
        };
        // "if you have 7 Pods and you set minAvailable to 50%, ... 4 Pods must always be available."
        assert_eq!(evictions_allowed(&budget("{minAvailable: 50%}"), 7, 7), 3);
        // "with maxUnavailable 30% evictions are allowed as long as no more than 30% are unhealthy", rounded up.
        assert_eq!(evictions_allowed(&budget("{maxUnavailable: 30%}"), 2, 2), 1);
        assert_eq!(evictions_allowed(&budget("{maxUnavailable: 1}"), 3, 3), 1);
        assert_eq!(evictions_allowed(&budget("{maxUnavailable: 1}"), 3, 2), 0);
        assert_eq!(evictions_allowed(&budget("{minAvailable: 2}"), 3, 1), 0);
    }

    /// <https://kubernetes.io/docs/tasks/run-application/configure-pdb/#unhealthy-pod-eviction-policy>
    #[test]
    fn a_pod_that_is_not_ready_may_leave_where_the_budget_says_so() {
        let budget = |more: &str| -> Budget {
            let value = serde_yaml_ng::from_str::<serde_json::Value>(&format!("{{maxUnavailable: 1{more}}}"));
            serde_json::from_value(value.expect("YAML")).expect("a budget")
        };
        let (by_default, always) = (budget(""), budget(", unhealthyPodEvictionPolicy: AlwaysAllow"));

        // Three pods, of which one, two and none are ready.
        let of_three = [1, 2, 0].map(|healthy| may_evict(&by_default, false, 3, healthy));
        assert_eq!(of_three, [false, true, false]);
        assert!(!may_evict(&by_default, false, 1, 0), "the only one");
        for healthy in 0..3 {
            assert!(may_evict(&always, false, 3, healthy), "{healthy}");
        }
        assert!(may_evict(&always, false, 1, 0), "the only one");

        // One that is ready is protected either way.
        for budget in [&by_default, &always] {
            assert!(!may_evict(budget, true, 3, 2));
            assert!(may_evict(budget, true, 3, 3));
        }
    }
}
