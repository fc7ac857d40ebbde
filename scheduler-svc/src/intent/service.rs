//! Starts the parts of intents: the service, the timers, the watcher of events and the reconciler.

use std::sync::Arc;

use anyhow::Context as _;
use shared::bus::{Bus, IncomingMessage, PullOptions, ServiceHandle, ServiceSpec};
use shared::clock::{SharedClock, SharedIds};
use shared::model::intent::event_id;
use shared::model::intent::service::{
    CancelIntent, DecideIntent, GetIntent, ListIntents, ProposeIntent, RescheduleIntent, SERVICE, TellReset,
};
use shared::model::intent::timer::IntentTimer;
use shared::process::lifecycle::ShutdownSignal;
use shared::wire::topology::INTENT_TIMERS;
use shared::wire::topology::streams::SCHEDULES;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::approvals::IntentApprovals;
use super::budget_ledger::BudgetLedger;
use super::conditions::ConditionWatcher;
use super::executor::IntentExecutor;
use super::reconcile;
use super::registry::KindRegistry;
use super::requests::IntentService;
use super::store::IntentStore;
use super::turn_listener::TurnListener;
use crate::timer_dispatch::SERVICE as OURS;

/// Timers that are handled concurrently.
const AT_ONCE: usize = 128;
/// Pause before a timer that failed is delivered again.
const RING_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

/// Resources of the process that intents use.
#[derive(Debug, Clone)]
pub struct IntentContext {
    /// Connection to the server.
    pub bus: Bus,
    /// Clock of the process.
    pub clock: SharedClock,
    /// Source of ids for intents that are proposed without one.
    pub ids: SharedIds,
    /// Id of the owner, who decides approvals; follows `identities.yaml`.
    pub owner: watch::Receiver<Option<String>>,
    /// Name of this replica.
    pub instance: String,
    /// Signal that the process must stop.
    pub shutdown: ShutdownSignal,
}

/// Reads the registry from `path`; an empty path means the one that is part of the program.
///
/// # Errors
/// Returns an error that names the file and its faults.
pub fn load_registry(path: &str) -> anyhow::Result<KindRegistry> {
    if path.is_empty() {
        return KindRegistry::shipped_registry().context("the shipped intents.yaml");
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("files.intents: failed to read {path}"))?;
    KindRegistry::parse(&text).with_context(|| format!("files.intents: {path}"))
}

/// Creates the service and its executor from `needs`, with the kinds of `registry`.
#[must_use]
pub fn new_desk(needs: &IntentContext, registry: KindRegistry) -> Arc<IntentService> {
    let clerk = Arc::new(IntentExecutor {
        bus: needs.bus.clone(),
        clock: Arc::clone(&needs.clock),
        registry,
        store: IntentStore::new(needs.bus.clone(), Arc::clone(&needs.clock), &needs.instance),
        books: BudgetLedger::new(&needs.bus, &needs.instance),
        approvals: IntentApprovals::new(&needs.bus),
        bell: TurnListener::new(needs.bus.clone(), needs.shutdown.clone()),
    });

    Arc::new(IntentService {
        clerk,
        ids: Arc::clone(&needs.ids),
        owner: needs.owner.clone(),
    })
}

/// Serves `nexus.svc.intent.*` until the handle is dropped.
///
/// # Errors
/// Returns an error if the service cannot be announced.
pub async fn serve(bus: &Bus, desk: &Arc<IntentService>) -> anyhow::Result<ServiceHandle> {
    macro_rules! endpoint {
        ($spec:expr, $name:literal, $method:ident, $question:ty) => {{
            let desk = Arc::clone(desk);
            $spec.endpoint($name, move |question: $question| {
                let desk = Arc::clone(&desk);
                async move { desk.$method(question).await.map_err(|error| error.to_answer()) }
            })
        }};
    }

    let spec = ServiceSpec::new(SERVICE, "scheduled intents of agents");
    let spec = endpoint!(spec, "propose", propose_intent, ProposeIntent);
    let spec = endpoint!(spec, "cancel", cancel_intent, CancelIntent);
    let spec = endpoint!(spec, "reschedule", reschedule_intent, RescheduleIntent);
    let spec = endpoint!(spec, "list", list, ListIntents);
    let spec = endpoint!(spec, "get", get, GetIntent);
    let spec = endpoint!(spec, "decide", decide_intent, DecideIntent);
    let spec = endpoint!(spec, "session_reset", session_reset, TellReset);

    bus.serve(spec).await.map_err(anyhow::Error::msg)
}

/// Runs intents on this replica until the process must stop.
///
/// # Errors
/// Returns an error if the service cannot be announced.
pub async fn run(needs: IntentContext, registry: KindRegistry) -> anyhow::Result<()> {
    let desk = new_desk(&needs, registry);
    let served = serve(&needs.bus, &desk).await?;
    let mut background = JoinSet::new();
    background.spawn(ConditionWatcher::new(Arc::clone(&desk.clerk)).run(needs.shutdown.clone()));
    background.spawn(reconcile::run(Arc::clone(&desk.clerk), needs.shutdown.clone()));
    run_timers(&needs, &desk.clerk).await;
    served.stop().await;
    while background.join_next().await.is_some() {}
    Ok(())
}

/// Handles fired timers until the process must stop, and then finishes those under way.
async fn run_timers(needs: &IntentContext, clerk: &Arc<IntentExecutor>) {
    let options = PullOptions { batch: AT_ONCE };
    let mut rung = needs.bus.pull(SCHEDULES, INTENT_TIMERS, options);
    let slots = Arc::new(Semaphore::new(AT_ONCE));

    let mut under_way = JoinSet::new();
    loop {
        // The slot is taken first: a timer that waits at the server can be handled by another replica.
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
            break;
        };

        let message = tokio::select! {
            message = rung.next() => message,
            () = needs.shutdown.requested() => break,
        };
        while under_way.try_join_next().is_some() {}
        let clerk = Arc::clone(clerk);
        under_way.spawn(async move {
            handle(&clerk, &message).await;
            drop(slot);
        });
    }

    // Timers under way are finished, so that the server need not deliver them again.
    while under_way.join_next().await.is_some() {}
}

async fn handle(clerk: &Arc<IntentExecutor>, message: &IncomingMessage) {
    let timer = match message.decode::<IntentTimer>() {
        Ok(timer) => timer,
        Err(error) => return message.dead_letter(&clerk.bus, OURS, &error, clerk.clock.now()).await,
    };

    match clerk.handle_timer(&timer).await {
        Ok(()) => message.ack().await,
        Err(error) => {
            let event_id = event_id(timer.intent, timer.nominal).ok();
            tracing::warn!(
                intent = %timer.intent, agent = timer.agent, event_id = event_id.map(tracing::field::display), purpose = ?timer.purpose,
                %error, "failed to handle a timer; it fires again"
            );
            message.nak(Some(RING_AGAIN)).await;
        }
    }
}
