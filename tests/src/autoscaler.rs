//! The arithmetic of KEDA and of Kubernetes' HorizontalPodAutoscaler for one external metric per replica, as documented.
//! *Pure.*
//!
//! Source: <https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/> ("Algorithm details",
//! "Configurable scaling behavior") and <https://keda.sh/docs/2.17/reference/scaledobject-spec/> ("fallback").

use std::time::Duration;

use serde_json::Value;

/// Difference from the target below which nothing is changed, as a part of it.
const TOLERANCE: f64 = 0.1;

/// The largest change within a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RatePolicy {
    Pods(u32),
    Percent(u32),
}

/// The rules of one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ScalingRules {
    window: Duration,
    policies: Vec<(RatePolicy, Duration)>,
}

/// The number of replicas while there is no metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fallback {
    failures: u32,
    replicas: u32,
}

/// An autoscaler with what it remembers.
#[derive(Debug, Clone)]
pub struct Autoscaler {
    min: u32,
    max: u32,
    /// Target of the metric for each replica.
    pub threshold: f64,
    /// Query of the metric.
    pub query: String,
    fallback: Option<Fallback>,
    up: ScalingRules,
    down: ScalingRules,
    failures: u32,
    /// Recommended numbers, with their times.
    recommended: Vec<(Duration, u32)>,
    /// Changes that were made, with their times.
    changes: Vec<(Duration, i64)>,
}

impl Autoscaler {
    /// Reads a `ScaledObject` with one Prometheus trigger of type `AverageValue`.
    ///
    /// # Panics
    /// If it is none, or ignores missing values.
    #[must_use]
    pub fn of_scaled_object(object: &Value) -> Self {
        assert_eq!(object["kind"], "ScaledObject");
        let spec = &object["spec"];
        let triggers = spec["triggers"].as_array().expect("triggers");
        let [trigger] = triggers.as_slice() else {
            panic!("a fallback overrides other triggers: {triggers:?}");
        };
        assert_eq!(
            (&trigger["type"], &trigger["metricType"]),
            (&"prometheus".into(), &"AverageValue".into())
        );
        let metadata = &trigger["metadata"];
        assert_eq!(metadata["ignoreNullValues"], "false", "no value must not be 0");

        let fallback = &spec["fallback"];
        assert_eq!(fallback["behavior"], "currentReplicasIfHigher");
        let behavior = &spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"];
        Self {
            threshold: metadata["threshold"]
                .as_str()
                .and_then(|text| text.parse().ok())
                .expect("a threshold"),
            query: metadata["query"].as_str().expect("a query").to_owned(),
            fallback: Some(Fallback {
                failures: number(&fallback["failureThreshold"]),
                replicas: number(&fallback["replicas"]),
            }),
            ..Self::bare(
                number(&spec["minReplicaCount"]),
                number(&spec["maxReplicaCount"]),
                behavior,
            )
        }
    }

    /// Reads a `HorizontalPodAutoscaler` with one external metric of type `AverageValue`; its query is the metric's name.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn of_hpa(object: &Value) -> Self {
        assert_eq!(object["kind"], "HorizontalPodAutoscaler");
        let spec = &object["spec"];
        let [metric] = spec["metrics"].as_array().expect("metrics").as_slice() else {
            panic!("one metric");
        };
        let target = &metric["external"]["target"];
        assert_eq!(target["type"], "AverageValue");
        Self {
            threshold: target["averageValue"]
                .as_str()
                .and_then(|text| text.parse().ok())
                .expect("a number"),
            query: metric["external"]["metric"]["name"]
                .as_str()
                .expect("a name")
                .to_owned(),
            ..Self::bare(
                number(&spec["minReplicas"]),
                number(&spec["maxReplicas"]),
                &spec["behavior"],
            )
        }
    }

    fn bare(min: u32, max: u32, behavior: &Value) -> Self {
        Self {
            min,
            max,
            threshold: 0.0,
            query: String::new(),
            fallback: None,
            up: rules(&behavior["scaleUp"]),
            down: rules(&behavior["scaleDown"]),
            failures: 0,
            recommended: Vec::new(),
            changes: Vec::new(),
        }
    }

    /// Returns whether `other` scales by the same numbers, apart from a fallback.
    #[must_use]
    pub fn agrees_with(&self, other: &Self) -> bool {
        let numbers = |one: &Self| (one.min, one.max, one.threshold.to_bits());
        numbers(self) == numbers(other) && self.up == other.up && self.down == other.down
    }

    /// Returns the smallest and the largest number of replicas.
    #[must_use]
    pub const fn bounds(&self) -> (u32, u32) {
        (self.min, self.max)
    }

    /// Returns the number of replicas after one look at `now`, with `current` of them; `metric` is none if the query failed
    /// or has no value.
    pub fn look(&mut self, metric: Option<f64>, current: u32, now: Duration) -> u32 {
        let Some(wanted) = self.wanted(metric, current) else {
            return current;
        };
        let wanted = wanted.clamp(self.min, self.max);
        let steady = self.steady(wanted, current, now);
        let next = self.limit(steady, current, now).clamp(self.min, self.max);

        if next != current {
            self.changes.push((now, i64::from(next) - i64::from(current)));
        }
        next
    }

    /// Returns the number that the metric asks for; none = it is not known, and nothing is changed.
    fn wanted(&mut self, metric: Option<f64>, current: u32) -> Option<u32> {
        let Some(metric) = metric.filter(|metric| metric.is_finite()) else {
            self.failures += 1;
            let fallback = self.fallback.filter(|fallback| self.failures > fallback.failures)?;
            return Some(fallback.replicas.max(current));
        };

        self.failures = 0;
        let ratio = metric / (self.threshold * f64::from(current.max(1)));
        if (ratio - 1.0).abs() <= TOLERANCE {
            return Some(current);
        }
        let wanted = (metric / self.threshold).ceil();
        Some(if wanted >= f64::from(self.max) {
            self.max
        } else {
            wanted as u32
        })
    }

    /// Returns `wanted`, or the number nearest to it that was wanted all the time of the window.
    fn steady(&mut self, wanted: u32, current: u32, now: Duration) -> u32 {
        self.recommended.push((now, wanted));
        let longest = self.up.window.max(self.down.window);
        self.recommended.retain(|(at, _)| now.saturating_sub(*at) < longest);
        let within = |window: Duration| {
            let recent = self
                .recommended
                .iter()
                .filter(move |(at, _)| now.saturating_sub(*at) < window);
            recent.map(|(_, wanted)| *wanted)
        };

        let least = within(self.up.window).min().unwrap_or(wanted);
        let most = within(self.down.window).max().unwrap_or(wanted);
        current.max(least).min(most.max(least))
    }

    /// Returns `wanted` as far as the policies allow it.
    fn limit(&mut self, wanted: u32, current: u32, now: Duration) -> u32 {
        let longest = self
            .up
            .policies
            .iter()
            .chain(&self.down.policies)
            .map(|(_, period)| *period)
            .max();
        let longest = longest.unwrap_or_default();
        self.changes.retain(|(at, _)| now.saturating_sub(*at) < longest);

        let changed = |period: Duration, sign: i64| -> i64 {
            let recent = self.changes.iter().filter(|(at, _)| now.saturating_sub(*at) < period);
            recent.map(|(_, change)| (change * sign).max(0)).sum()
        };
        let current = i64::from(current);
        let bound = if i64::from(wanted) > current {
            let highest = self.up.policies.iter().map(|(policy, period)| {
                let begun = current - changed(*period, 1);
                match policy {
                    RatePolicy::Pods(pods) => begun + i64::from(*pods),
                    RatePolicy::Percent(percent) => (begun * i64::from(100 + percent) + 99) / 100,
                }
            });
            i64::from(wanted).min(highest.max().unwrap_or(i64::MAX).max(current))
        } else {
            let lowest = self.down.policies.iter().map(|(policy, period)| {
                let begun = current + changed(*period, -1);
                match policy {
                    RatePolicy::Pods(pods) => begun - i64::from(*pods),
                    RatePolicy::Percent(percent) => begun * i64::from(100_u32.saturating_sub(*percent)) / 100,
                }
            });
            i64::from(wanted).max(lowest.min().unwrap_or(0).min(current))
        };
        u32::try_from(bound).unwrap_or(0)
    }
}

fn number(value: &Value) -> u32 {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.unwrap_or_else(|| panic!("{value} is no number of replicas"))
}

fn rules(value: &Value) -> ScalingRules {
    let seconds = |value: &Value| Duration::from_secs(u64::from(number(value)));
    let policies = value["policies"].as_array().expect("policies").iter().map(|policy| {
        let amount = number(&policy["value"]);
        let kind = match policy["type"].as_str() {
            Some("Pods") => RatePolicy::Pods(amount),
            Some("Percent") => RatePolicy::Percent(amount),
            other => panic!("{other:?} is no policy"),
        };
        (kind, seconds(&policy["periodSeconds"]))
    });
    ScalingRules {
        window: seconds(&value["stabilizationWindowSeconds"]),
        policies: policies.collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scaler() -> Autoscaler {
        Autoscaler::of_scaled_object(&json!({"kind": "ScaledObject", "spec": {
            "minReplicaCount": 2, "maxReplicaCount": 16,
            "fallback": {"failureThreshold": 4, "replicas": 3, "behavior": "currentReplicasIfHigher"},
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {
                "scaleUp": {"stabilizationWindowSeconds": 30,
                    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 60}]},
                "scaleDown": {"stabilizationWindowSeconds": 600,
                    "policies": [{"type": "Pods", "value": 1, "periodSeconds": 180}]}}}},
            "triggers": [{"type": "prometheus", "metricType": "AverageValue",
                "metadata": {"query": "q", "threshold": "5000", "ignoreNullValues": "false"}}],
        }}))
    }

    /// Looks each 15 s from second `from` through `to` and answers each change with its second.
    fn run(scaler: &mut Autoscaler, current: &mut u32, metric: Option<f64>, from: u64, to: u64) -> Vec<(u64, u32)> {
        let mut changes = Vec::new();
        for second in (from..=to).step_by(15) {
            let next = scaler.look(metric, *current, Duration::from_secs(second));
            if next != *current {
                changes.push((second, next));
                *current = next;
            }
        }
        changes
    }

    #[test]
    fn a_backlog_doubles_the_replicas_each_minute_up_to_what_it_needs() {
        let (mut scaler, mut current) = (scaler(), 2);
        assert_eq!(run(&mut scaler, &mut current, Some(0.0), 0, 60), []);
        assert_eq!(
            run(&mut scaler, &mut current, Some(20_000.0), 75, 300),
            [(90, 4)],
            "once nothing of the last 30 s says less"
        );
        assert_eq!(
            run(&mut scaler, &mut current, Some(1e9), 315, 700),
            [(330, 8), (390, 16)]
        );
    }

    #[test]
    fn replicas_go_one_by_one_ten_minutes_after_the_last_need() {
        let (mut scaler, mut current) = (scaler(), 2);
        run(&mut scaler, &mut current, Some(20_000.0), 0, 60);
        assert_eq!(current, 4);
        let gone = run(&mut scaler, &mut current, Some(0.0), 75, 1_200);
        assert_eq!(gone, [(660, 3), (840, 2)], "and never fewer than two");
    }

    #[test]
    fn near_the_target_nothing_changes() {
        let (mut scaler, mut current) = (scaler(), 4);
        assert_eq!(run(&mut scaler, &mut current, Some(21_900.0), 0, 900), []);
    }

    #[test]
    fn without_the_metric_there_are_never_fewer_and_never_the_most() {
        for metric in [None, Some(f64::NAN)] {
            let (mut scaler, mut current) = (scaler(), 2);
            run(&mut scaler, &mut current, Some(0.0), 0, 600);
            assert_eq!(
                run(&mut scaler, &mut current, metric, 615, 3_000),
                [(675, 3)],
                "three after a minute"
            );

            let mut current = 8;
            assert_eq!(
                run(&mut scaler.clone(), &mut current, metric, 3_015, 9_000),
                [],
                "and as many as there are"
            );
        }
    }
}
