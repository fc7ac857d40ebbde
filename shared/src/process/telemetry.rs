//! Logs, traces and metrics of a process.
//!
//! None of them may slow or stop the service: traces go through a bounded queue that drops spans if it is full,
//! metrics are kept in memory until they are scraped, and an unreachable collector causes only a line in the log.

use std::io::IsTerminal;
use std::sync::OnceLock;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider, Tracer};
use tracing_subscriber::filter::{EnvFilter, LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use super::config::{LogFormat, TelemetryConfig};
use crate::clock::pause;

/// Maximum number of spans that wait for export; further ones are dropped.
const SPAN_QUEUE: usize = 16_384;

/// Time for which a span waits for its batch.
const EXPORT_EVERY: Duration = Duration::from_millis(500);

/// Timeout of the collector for a batch.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(3);

/// Interval at which recorded values are folded into their histograms, which bounds the memory between two scrapes.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// Histogram buckets of metrics ending in `_seconds`.
const SECONDS: [f64; 16] = [
    0.000_5, 0.001, 0.002, 0.003, 0.005, 0.008, 0.015, 0.025, 0.04, 0.075, 0.15, 0.4, 1.0, 2.5, 5.0, 10.0,
];

/// Histogram buckets of metrics ending in `_bytes`.
const BYTES: [f64; 8] = [
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
];

/// Histogram buckets of everything else: counts and milliseconds.
const COUNTS: [f64; 13] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0,
];

/// Reason why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum StartTelemetryError {
    /// The collector's address or its TLS settings cannot be used.
    #[error("failed to export traces to {endpoint}")]
    Exporter {
        /// Address from `telemetry.otlp_endpoint`.
        endpoint: String,
        /// Error of the exporter.
        #[source]
        source: opentelemetry_otlp::ExporterBuildError,
    },
    /// The histogram buckets cannot be used.
    #[error("failed to set up metrics")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
    /// A log filter cannot be parsed.
    #[error("invalid log filter `{filter}`")]
    Filter {
        /// Text of the filter, from `NEXUS_LOG` or `telemetry.level`.
        filter: String,
        /// Error of the parser.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
}

/// Telemetry of a running process.
#[derive(Debug)]
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
    metrics: PrometheusHandle,
}

impl Telemetry {
    /// Starts logging, exporting and recording for the whole process. Call it within the runtime, once.
    ///
    /// `filter` overrides the configured level.
    pub fn start(
        config: &TelemetryConfig,
        service: &'static str,
        instance: &str,
        filter: Option<&str>,
    ) -> Result<Self, StartTelemetryError> {
        let filter = filter.unwrap_or(&config.level);
        let logged = filter.parse::<EnvFilter>();
        let logged = logged.map_err(|source| StartTelemetryError::Filter {
            filter: filter.to_owned(),
            source,
        })?;

        let provider = match config.otlp_endpoint.as_str() {
            "" => None,
            endpoint => Some(otlp_provider(endpoint, service, instance)?),
        };
        let metrics = install_recorder()?;
        let tracer = provider.as_ref().map(|provider| provider.tracer(service));
        let subscriber = tracing_subscriber::registry()
            .with(line_layer(config.log).with_filter(logged))
            .with(trace_layer(tracer));

        // A second start in one process (tests) keeps the first one's log.
        let _ = subscriber.try_init();
        metrics::gauge!("nexus_build_info", "service" => service, "version" => env!("CARGO_PKG_VERSION")).set(1.0);

        Ok(Self { provider, metrics })
    }

    /// Handle that renders `/metrics`.
    #[must_use]
    pub fn metrics(&self) -> PrometheusHandle {
        self.metrics.clone()
    }

    /// Exports the remaining spans and ends exporting; takes a few seconds at most.
    pub async fn stop(self) {
        let Some(provider) = self.provider else { return };
        let stopped = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(EXPORT_TIMEOUT)).await;
        if let Ok(Err(error)) = stopped {
            tracing::warn!(%error, "failed to export the last traces");
        }
    }
}

fn otlp_provider(
    endpoint: &str,
    service: &'static str,
    instance: &str,
) -> Result<SdkTracerProvider, StartTelemetryError> {
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_timeout(EXPORT_TIMEOUT)
        .build();
    let exporter = exporter.map_err(|source| StartTelemetryError::Exporter {
        endpoint: endpoint.to_owned(),
        source,
    })?;

    let batches = BatchConfigBuilder::default()
        .with_max_queue_size(SPAN_QUEUE)
        .with_scheduled_delay(EXPORT_EVERY);
    let processor = BatchSpanProcessor::builder(exporter)
        .with_batch_config(batches.build())
        .build();
    let resource = Resource::builder().with_service_name(service).with_attributes([
        KeyValue::new("service.namespace", "nexus"),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", instance.to_owned()),
    ]);

    Ok(SdkTracerProvider::builder()
        .with_span_processor(processor)
        .with_resource(resource.build())
        .build())
}

/// Returns the process's registry of metrics. There is only one: services that tests start in one process share it.
fn install_recorder() -> Result<PrometheusHandle, StartTelemetryError> {
    static REGISTRY: OnceLock<PrometheusHandle> = OnceLock::new();

    let recorder = PrometheusBuilder::new()
        .set_buckets(&COUNTS)?
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_bytes".to_owned()), &BYTES)?
        .build_recorder();
    let handle = REGISTRY.get_or_init(|| {
        let handle = recorder.handle();
        // Fails only if another recorder is installed already; its metrics are not ours to render.
        let _ = metrics::set_global_recorder(recorder);
        handle
    });

    let upkeep = handle.clone();
    tokio::spawn(async move {
        loop {
            pause(UPKEEP_EVERY).await;
            upkeep.run_upkeep();
        }
    });

    Ok(handle.clone())
}

fn line_layer<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    let lines = fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
        LogFormat::Pretty => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
    }
}

/// Exports our own spans, independent of the log level, but not those of the libraries that send them to the
/// collector.
fn trace_layer<S>(tracer: Option<Tracer>) -> Option<impl Layer<S>>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    // A span of the exporter's own request would cause another request, and so without end.
    let ours = Targets::new()
        .with_default(LevelFilter::INFO)
        .with_target("h2", LevelFilter::OFF)
        .with_target("hyper", LevelFilter::OFF)
        .with_target("hyper_util", LevelFilter::OFF)
        .with_target("tonic", LevelFilter::OFF)
        .with_target("tower", LevelFilter::OFF)
        .with_target("opentelemetry", LevelFilter::OFF)
        .with_target("opentelemetry_sdk", LevelFilter::OFF);

    let layer = |tracer| {
        tracing_opentelemetry::layer()
            .with_location(false)
            .with_threads(false)
            .with_tracer(tracer)
    };

    tracer.map(|tracer| layer(tracer).with_filter(ours))
}
