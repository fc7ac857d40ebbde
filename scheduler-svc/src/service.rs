//! The scheduler's service: ticks from the clock; events from the records and timers of schedules; and the intents.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use shared::bus::ServiceHandle;
use shared::clock::{Clock as _, OffsetClock, SharedClock, SystemClock, pause};
use shared::llm::LlmConfig;
use shared::metric::Metric;
use shared::model::schedule::ScheduleTimer;
use shared::process::config::{ConfigFault, file_faults};
use shared::process::identities::KnownPeople;
use shared::process::{CommonConfig, Service, ServiceShell, identities};
use shared::wire::topology::SCHEDULE_TIMERS;
use tokio::sync::watch;

use crate::config::SchedulerConfig;
use crate::intent;
use crate::metric_table::METRICS;
use crate::operator::{self, OperatorContext};
use crate::schedules::heartbeat::{self, heartbeat_specs};
use crate::schedules::keeper::ScheduleWriter;
use crate::schedules::{api, jobs};
use crate::ticker::TickPublisher;
use crate::timer_dispatch::{OnFire, SERVICE, TimerDispatcher};

/// Pause before the configuration's schedules are written again after an error.
const REPAIR_PAUSE: Duration = Duration::from_secs(1);

/// The scheduler: events that are caused by time.
#[derive(Debug)]
pub struct SchedulerService;

impl Service for SchedulerService {
    const NAME: &'static str = SERVICE;
    const SECTION: &'static str = "scheduler";
    // Conditions and idle checks read events, including those of edges.
    const READS_EDGES: bool = true;
    const METRICS: &'static [&'static [Metric]] = &[METRICS];
    type Config = SchedulerConfig;

    fn check(config: &Self::Config) -> Vec<String> {
        config.find_faults()
    }

    fn check_files(_config: &Self::Config, common: &CommonConfig, _llm: &LlmConfig) -> Vec<ConfigFault> {
        let files = &common.files;
        let mut faults = file_faults(&files.personas, |text| {
            let error = heartbeat_specs(text, SystemClock.now()).err();
            error.map(|error| error.0).unwrap_or_default()
        });
        faults.extend(file_faults(&files.identities, identities::faults));

        // Without a file the kinds are those that are shipped.
        if !files.intents.is_empty() {
            faults.extend(file_faults(&files.intents, |text| {
                let error = intent::registry::KindRegistry::parse(text).err();
                error.map(|error| error.0).unwrap_or_default()
            }));
        }

        faults
    }

    async fn serve(shell: ServiceShell<Self::Config>) -> anyhow::Result<()> {
        let clock: SharedClock = OffsetClock::over(Arc::clone(&shell.clock), shell.config.clock_offset_ms);
        let keeper = ScheduleWriter::new(shell.bus.clone(), Arc::clone(&clock));
        // Checked before anything is served: a fault in the schedules stops the start.
        let wanted = configured_schedules(&shell, &clock)?;
        let service = api::service_spec(&keeper, &shell.config.time_zone);
        let _service = shell.bus.serve(service).await.map_err(anyhow::Error::msg)?;
        let _operators = serve_operators(&shell, &clock).await?;
        let owner = Arc::new(keeper.clone()) as Arc<dyn OnFire<ScheduleTimer>>;
        let fired = TimerDispatcher::new(shell.bus.clone(), Arc::clone(&clock), SCHEDULE_TIMERS, owner);

        let registry = intent::service::load_registry(&shell.common.files.intents)?;
        let look_every = Duration::from_millis(shell.config.look_every_ms);
        let reconcile_every = Duration::from_millis(shell.config.reconcile_every_ms);

        // Only the intents can fail; the others run until the stop.
        let (_, _, intended, ..) = tokio::join!(
            async {
                if shell.config.ticks {
                    let ticker = TickPublisher::new(shell.bus.clone(), Arc::clone(&clock), look_every);
                    ticker.run(&shell.shutdown).await;
                }
            },
            fired.run(&shell.shutdown),
            run_intents(&shell, &clock, registry),
            keeper.run(reconcile_every, &shell.shutdown),
            write_schedules(&keeper, &wanted, &shell),
        );

        intended.context("intents")
    }
}

/// Serves the operators' services until the handles are dropped.
async fn serve_operators(
    shell: &ServiceShell<SchedulerConfig>,
    clock: &SharedClock,
) -> anyhow::Result<Vec<ServiceHandle>> {
    let mut handles = Vec::new();
    let context = OperatorContext {
        bus: shell.bus.clone(),
        clock: Arc::clone(clock),
        ids: Arc::clone(&shell.ids),
        replicas: shell.common.nats.replicas,
    };
    for spec in operator::service_specs(&context) {
        handles.push(shell.bus.serve(spec).await.map_err(anyhow::Error::msg)?);
    }
    Ok(handles)
}

/// Runs the intents; if they fail, the process stops.
async fn run_intents(
    shell: &ServiceShell<SchedulerConfig>,
    clock: &SharedClock,
    registry: intent::registry::KindRegistry,
) -> anyhow::Result<()> {
    let path = &shell.common.files.identities;
    let known = identities::load(path);
    let known = known.map_err(|faults| anyhow::anyhow!("files.identities: {}", faults.join("; ")))?;
    let known = KnownPeople::read(known, &shell.bus)
        .await
        .context("failed to read the owner's chat pages")?;
    let (put, owner) = watch::channel(known.all_identities().owner);

    let needs = intent::service::IntentContext {
        bus: shell.bus.clone(),
        clock: Arc::clone(clock),
        ids: Arc::clone(&shell.ids),
        owner,
        instance: shell.instance.clone(),
        shutdown: shell.shutdown.clone(),
    };

    // The owner may change while the process runs. The end of this future must not end the process.
    let followed = async {
        identities::follow_identities(path, known, &shell.bus, &shell.shutdown, |read| {
            put.send_replace(read.owner);
        })
        .await;
        std::future::pending::<std::convert::Infallible>().await
    };

    let ended = tokio::select! {
        ended = intent::service::run(needs, registry) => ended,
        never = followed => match never {},
    };
    if ended.is_err() {
        shell.shutdown.trigger();
    }

    ended
}

/// Returns the schedules of the configuration: jobs, and the heartbeats of `personas.yaml`, each with its prefix.
fn configured_schedules(
    shell: &ServiceShell<SchedulerConfig>,
    clock: &SharedClock,
) -> anyhow::Result<[(&'static str, Vec<shared::model::schedule::ScheduleSpec>); 2]> {
    let jobs = jobs::job_specs(&shell.config.jobs, &shell.config.time_zone)
        .map_err(|faults| anyhow::anyhow!("scheduler: {}", faults.join("; ")))?;
    let path = &shell.common.files.personas;
    let text = if path.is_empty() {
        String::new()
    } else {
        std::fs::read_to_string(Path::new(path)).with_context(|| format!("failed to read {path}"))?
    };

    let beats = heartbeat_specs(&text, clock.now())?;
    Ok([(jobs::PREFIX, jobs), (heartbeat::PREFIX, beats)])
}

/// Writes the configuration's schedules, and retries until they are stored.
async fn write_schedules(
    keeper: &ScheduleWriter,
    wanted: &[(&'static str, Vec<shared::model::schedule::ScheduleSpec>)],
    shell: &ServiceShell<SchedulerConfig>,
) {
    for (prefix, specs) in wanted {
        while !shell.shutdown.is_requested() {
            match keeper
                .schedule_book()
                .replace_schedules(prefix, specs, keeper.now())
                .await
            {
                Ok(()) => break,
                Err(error) => {
                    tracing::warn!(%error, prefix, "failed to write configured schedules; retrying later");
                    pause(REPAIR_PAUSE).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use shared::bus::OutgoingMessage;
    use shared::model::event::{Event, EventId};
    use shared::model::origin::EventOrigin;
    use shared::model::time::UnixMillis;
    use shared::process::config::{ConfigDocument, ConfigEnvironment};
    use shared::process::prepare_service;
    use shared::wire::headers::SEAL;
    use shared::wire::seal::SealKey;
    use shared::wire::subject;

    use super::*;

    const ROOF: &str = "1111111111111111111111111111111111111111111111111111111111111111";

    #[test]
    fn what_an_edge_seals_counts_for_intents_too() {
        let directory = tempfile::tempdir().expect("a directory");
        let key = directory.path().join("roof.key");
        std::fs::write(&key, ROOF).expect("a file");
        let text = format!(
            "{}[edges.roof]\nchannel = 'lora'\nkey = 'file:{}'\n",
            shared::testing::trust_section(),
            key.display()
        );

        let environment: ConfigEnvironment = std::iter::empty::<(&str, &str)>().collect();
        let document = ConfigDocument::parse(Path::new("nexus.toml"), &text, &environment);
        let prepared = prepare_service::<SchedulerService>(&document, &environment).expect("a sound configuration");

        let id = EventId::parse("lora:roof/1").expect("an id");
        let mut event = Event::new(id, "lora", "boss", UnixMillis(1));
        event.account_id = Some("roof".to_owned());
        let mut out = OutgoingMessage::new(subject::event(&event), &event);
        let origin = EventOrigin::parse("edge:roof").expect("an origin");
        let key = SealKey::parse(ROOF).expect("a key");
        out.headers.insert(SEAL, key.seal(&event.id, &out.payload, &origin));

        let stored = out.subject.replace("nexus.event.", "nexus.ev.7.");
        let read = prepared.trust.read(&stored, &out.headers, &out.payload);
        assert_eq!(read.expect("an event of the edge's").origin, origin);
    }
}
