//! Metrics as data: every metric of the project with its kind, meaning and labels.
//!
//! Each crate has one table. At the start of a process its metrics are described, and every counter is there with 0: an
//! expression such as `increase()` sees the first event of a series only if the series was there before it.

mod tables;

use metrics::{Label, Unit, counter, describe_counter, describe_gauge, describe_histogram};

pub use self::tables::{
    BUS, LETTER_REASONS, MODELS, PLATFORMS, PROCESS, PROJECTION, READ_EVENT_REASONS, letter_reason,
};

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows while the process lives.
    Counter,
    /// A number that is now so.
    Gauge,
    /// A distribution of values.
    Histogram,
}

/// A label of a metric, with all its values; none if the configuration or the deployment decides about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricLabel {
    /// Name of the label.
    pub name: &'static str,
    /// All values that the code gives it; empty = open. A counter with an open label is not there from the start.
    pub values: &'static [&'static str],
}

/// A metric that the code names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Name on `/metrics`. Its ending says the unit: `_seconds`, `_bytes`, otherwise a number of things.
    pub name: &'static str,
    /// Kind of the metric.
    pub kind: MetricKind,
    /// Meaning in one line, as `# HELP` shows it.
    pub help: &'static str,
    /// Labels in the order in which they are written.
    pub labels: &'static [MetricLabel],
}

impl Metric {
    /// Returns a counter without labels.
    #[must_use]
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self::new(MetricKind::Counter, name, help)
    }

    /// Returns a gauge without labels.
    #[must_use]
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self::new(MetricKind::Gauge, name, help)
    }

    /// Returns a histogram without labels.
    #[must_use]
    pub const fn histogram(name: &'static str, help: &'static str) -> Self {
        Self::new(MetricKind::Histogram, name, help)
    }

    const fn new(kind: MetricKind, name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            kind,
            help,
            labels: &[],
        }
    }

    /// Returns the metric with `labels`.
    #[must_use]
    pub const fn by(mut self, labels: &'static [MetricLabel]) -> Self {
        self.labels = labels;
        self
    }

    /// Returns the unit that the name says.
    #[must_use]
    pub fn unit(&self) -> Unit {
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        match name {
            _ if name.ends_with("_seconds") => Unit::Seconds,
            _ if name.ends_with("_bytes") => Unit::Bytes,
            _ => Unit::Count,
        }
    }

    /// Returns the labels of every series that is there from the start: each combination of values. None if a label is
    /// open.
    #[must_use]
    pub fn series(&self) -> Vec<Vec<(&'static str, &'static str)>> {
        let mut all = vec![Vec::new()];
        for label in self.labels {
            let mut longer = Vec::with_capacity(all.len() * label.values.len());
            for one in &all {
                for value in label.values {
                    let mut one: Vec<_> = one.clone();
                    one.push((label.name, *value));
                    longer.push(one);
                }
            }
            all = longer;
        }
        all
    }

    /// Describes the metric to the process's recorder, and makes a counter start at 0.
    fn register(&self) {
        match self.kind {
            MetricKind::Counter => {
                describe_counter!(self.name, self.unit(), self.help);
                for series in self.series() {
                    let labels: Vec<Label> = series.iter().map(|(name, value)| Label::new(*name, *value)).collect();
                    counter!(self.name, labels).increment(0);
                }
            }
            MetricKind::Gauge => describe_gauge!(self.name, self.unit(), self.help),
            MetricKind::Histogram => describe_histogram!(self.name, self.unit(), self.help),
        }
    }
}

/// Returns a label with all its values.
#[must_use]
pub const fn label(name: &'static str, values: &'static [&'static str]) -> MetricLabel {
    MetricLabel { name, values }
}

/// Returns a label whose values the configuration or the deployment decides.
#[must_use]
pub const fn open_label(name: &'static str) -> MetricLabel {
    MetricLabel { name, values: &[] }
}

/// Value of a gauge that is not there: the page leaves it out, because the recorder forgets none.
pub const ABSENT: f64 = f64::NAN;

/// Returns `page`, in Prometheus' text format, without the series that are absent.
#[must_use]
pub fn without_absent(page: &str) -> String {
    let there = page
        .lines()
        .filter(|line| !line.ends_with(" NaN") || line.starts_with('#'));
    there.fold(String::with_capacity(page.len()), |page, line| page + line + "\n")
}

/// Registers every metric of `tables` at the process's recorder.
pub fn register(tables: &[&[Metric]]) {
    for metric in tables.iter().copied().flatten() {
        metric.register();
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    const TRIED: Metric = Metric::counter("nexus_tried_total", "tries")
        .by(&[label("source", &["a", "b"]), label("outcome", &["good", "bad"])]);
    const OPEN: Metric = Metric::counter("nexus_open_total", "x").by(&[open_label("channel")]);

    #[test]
    fn a_counter_starts_at_zero_in_every_series_and_says_what_it_is() {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            register(&[&[TRIED, OPEN]]);
            counter!("nexus_tried_total", "source" => "b", "outcome" => "bad").increment(1);
        });

        let page = recorder.handle().render();
        assert!(page.contains("# HELP nexus_tried_total tries"), "{page}");
        let series: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("nexus_tried_total{"))
            .collect();
        assert_eq!(series.len(), 4, "{page}");
        assert_eq!(series.iter().filter(|line| line.ends_with(" 0")).count(), 3, "{page}");
        assert!(!page.contains("\nnexus_open_total"), "{page}");
    }

    #[test]
    fn an_absent_gauge_is_not_on_the_page() {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            metrics::gauge!("nexus_a").set(ABSENT);
            metrics::gauge!("nexus_b").set(1.0);
        });

        let page = without_absent(&recorder.handle().render());
        assert!(!page.contains("\nnexus_a ") && page.contains("\nnexus_b 1\n"), "{page}");
        metrics::with_local_recorder(&recorder, || metrics::gauge!("nexus_a").set(2.0));
        assert!(without_absent(&recorder.handle().render()).contains("\nnexus_a 2\n"));
    }

    #[test]
    fn names_say_the_unit() {
        assert_eq!(Metric::gauge("nexus_a_seconds", "").unit(), Unit::Seconds);
        assert_eq!(Metric::counter("nexus_a_bytes_total", "").unit(), Unit::Bytes);
        assert_eq!(TRIED.unit(), Unit::Count);
    }
}
