//! Wiring of intents: the service, the timers that ring, the events that are waited for, the reconciler.

use std::sync::Arc;

use anyhow::Context as _;
use shared::bus::{Bus, Incoming, PullOptions, ServiceHandle, ServiceSpec};
use shared::clock::{SharedClock, SharedIds};
use shared::model::intent::event_id;
use shared::model::intent::service::{
    CancelIntent, DecideIntent, GetIntent, ListIntents, ProposeIntent, RescheduleIntent, SERVICE, TellReset,
};
use shared::model::intent::timer::IntentTimer;
use shared::process::lifecycle::Shutdown;
use shared::wire::topology::INTENT_TIMERS;
use shared::wire::topology::streams::SCHEDULES;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::approvals::IntentApprovals;
use super::bell::TurnListener;
use super::books::BudgetLedger;
use super::clerk::IntentExecutor;
use super::conditions::ConditionWatcher;
use super::desk::IntentService;
use super::reconcile;
use super::registry::KindRegistry;
use super::store::IntentStore;
use crate::fired::SERVICE as OURS;

/// Timers handled at once.
const AT_ONCE: usize = 128;
/// Wait before a timer that could not be handled rings again.
const RING_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

/// What intents need of the process.
#[derive(Debug, Clone)]
pub struct IntentContext {
    /// The bus.
    pub bus: Bus,
    /// The clock.
    pub clock: SharedClock,
    /// Names for intents that come without one.
    pub ids: SharedIds,
    /// The person who decides approvals, by what `identities.yaml` says now.
    pub owner: watch::Receiver<Option<String>>,
    /// This replica.
    pub instance: String,
    /// The request to stop.
    pub shutdown: Shutdown,
}

/// The registry that `path` names; the shipped one where it is empty.
///
/// # Errors
/// What is wrong with the file.
pub fn load_registry(path: &str) -> anyhow::Result<KindRegistry> {
    if path.is_empty() {
        return KindRegistry::shipped_registry().context("the shipped intents.yaml");
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("files.intents: {path} cannot be read"))?;
    KindRegistry::parse(&text).with_context(|| format!("files.intents: {path}"))
}

/// Desk and clerk over `needs`, with the kinds of `registry`.
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
/// Where the service cannot be announced.
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

    let spec = ServiceSpec::new(SERVICE, "what agents ask of their own future");
    let spec = endpoint!(spec, "propose", propose_intent, ProposeIntent);
    let spec = endpoint!(spec, "cancel", cancel_intent, CancelIntent);
    let spec = endpoint!(spec, "reschedule", reschedule_intent, RescheduleIntent);
    let spec = endpoint!(spec, "list", list, ListIntents);
    let spec = endpoint!(spec, "get", get, GetIntent);
    let spec = endpoint!(spec, "decide", decide_intent, DecideIntent);
    let spec = endpoint!(spec, "session_reset", session_reset, TellReset);

    bus.serve(spec).await.map_err(anyhow::Error::msg)
}

/// Runs intents on this replica until the process is asked to stop.
///
/// # Errors
/// Where the service cannot be announced.
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

/// Handles the timers that ring, until the process is asked to stop; what is under way then is finished.
async fn run_timers(needs: &IntentContext, clerk: &Arc<IntentExecutor>) {
    let options = PullOptions { batch: AT_ONCE };
    let mut rung = needs.bus.pull(SCHEDULES, INTENT_TIMERS, options);
    let slots = Arc::new(Semaphore::new(AT_ONCE));

    let mut under_way = JoinSet::new();
    loop {
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

    while under_way.join_next().await.is_some() {}
}

async fn handle(clerk: &Arc<IntentExecutor>, message: &Incoming) {
    let timer = match message.decode::<IntentTimer>() {
        Ok(timer) => timer,
        Err(error) => return message.bury(&clerk.bus, OURS, &error, clerk.clock.now()).await,
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
