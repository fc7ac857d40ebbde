//! Refuses operators' questions to the read model while no copy answers them, and says why. Without a listener the asker
//! would be told that hook-svc is not running.

use std::time::{Duration, Instant};

use serde_json::Value;
use shared::bus::{Bus, ServiceHandle, ServiceSpec};
use shared::clock::{SharedClock, pause};
use shared::model::time::UnixMillis;

use super::access::{ModelAccess, ModelStanding};
use super::events_api;

/// Error code of a question that is refused.
const UNAVAILABLE: usize = 503;

/// Time without an answering copy after which questions are refused: a replica that has just started does not know yet
/// which copies answer, and must not speak for them.
const SILENT: Duration = Duration::from_secs(3);

/// Interval at which the copies are looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Refuses questions while no copy answers them; never returns while the replica runs.
pub(crate) async fn run(bus: Bus, model: ModelAccess, clock: SharedClock) {
    let mut own = model.follow_own();
    let mut silent_since: Option<Instant> = None;
    let mut served: Option<ServiceHandle> = None;
    loop {
        let now = clock.monotonic();
        let is_silent = refusal(&model, clock.now()).is_some();
        silent_since = is_silent.then(|| silent_since.unwrap_or(now));
        let is_due = silent_since.is_some_and(|since| now.saturating_duration_since(since) >= SILENT);

        match (is_due, served.take()) {
            (true, None) => match bus.serve(service_spec(&model, &clock)).await {
                Ok(handle) => served = Some(handle),
                Err(error) => tracing::debug!(
                    error,
                    "failed to serve the state of the read model to operators; retrying"
                ),
            },
            (false, Some(handle)) => handle.stop().await,
            (_, kept) => served = kept,
        }

        tokio::select! {
            () = pause(LOOK) => {}
            changed = own.changed() => if changed.is_err() { return },
        }
    }
}

fn service_spec(model: &ModelAccess, clock: &SharedClock) -> ServiceSpec {
    let spec = ServiceSpec::new(events_api::SERVICE, "why the read model does not answer");
    events_api::ENDPOINTS.into_iter().fold(spec, |spec, endpoint| {
        let (model, clock) = (model.clone(), clock.clone());
        spec.endpoint(endpoint, move |_: Value| {
            // A copy that answers by now answers the next time.
            let why =
                refusal(&model, clock.now()).unwrap_or_else(|| "the read model is ready now; try again".to_owned());
            async move { Err::<Value, _>((UNAVAILABLE, why)) }
        })
    })
}

/// Returns why no copy answers, if this replica is one that has to say so: it keeps a copy, or no replica does.
fn refusal(model: &ModelAccess, now: UnixMillis) -> Option<String> {
    // The only copy answers as far as it has come, and so does one that has fallen behind.
    if model.is_served() {
        return None;
    }

    let holders = model.peers().holders();
    let is_opening = holders.iter().any(|holder| holder == model.peers().me());
    let why = match model.standing(now) {
        ModelStanding::Own(_) | ModelStanding::Peers(_) => return None,
        ModelStanding::Building(_) => return Some(building_text(model.remaining_messages())),
        ModelStanding::Undecided | ModelStanding::Lost if is_opening => {
            "the file of the read model is being fetched or opened; try again later"
        }
        ModelStanding::Lost if holders.is_empty() => {
            "no replica of hook-svc keeps a copy of the read model (hooks.read_model.keep)"
        }
        // Before it is decided whether this replica keeps a copy, it does not know either who else does.
        ModelStanding::Undecided | ModelStanding::Lost => return None,
    };
    Some(why.to_owned())
}

fn building_text(remaining: Option<u64>) -> String {
    let remaining = remaining.map_or_else(
        || "it is not known yet how many messages are left to read".to_owned(),
        |messages| format!("about {messages} messages are left to read"),
    );
    format!("the read model is being built: {remaining}; try again later")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use shared::bus::RequestError;
    use shared::clock::SystemClock;
    use shared::projection::Projection;
    use shared::testing::{eventually, world};
    use shared::wire::headers::Headers;
    use tokio::sync::watch;

    use super::super::access::OwnCopy;
    use super::super::peer_copies::PeerCopies;
    use super::*;

    async fn ask(bus: &Bus) -> RequestError {
        let question = json!({"event_id": "webchat:a/1"});
        let patience = Duration::from_secs(10);
        let asked = bus.request::<_, Value>("nexus.svc.events.trace", Headers::new(), &question, patience);
        asked.await.expect_err("nobody answers")
    }

    async fn wait_refused(bus: &Bus, expected: &str) {
        eventually(expected, async || match ask(bus).await {
            RequestError::Service { code, text, .. } => code == 503 && text.contains(expected),
            RequestError::NoResponder { .. } | RequestError::Timeout { .. } | RequestError::Answer { .. } => false,
        })
        .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn askers_are_told_that_the_read_model_is_being_built_until_a_copy_answers() {
        let (_server, bus) = world().await;
        let (_told, holders) = watch::channel(vec!["h-0".to_owned(), "h-1".to_owned()]);
        let clock: SharedClock = Arc::new(SystemClock);
        let peers = PeerCopies::new(&bus, "h-1", holders, Arc::clone(&clock));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("read-model.sqlite");
        let (model, _asker) = ModelAccess::new(path.clone(), peers);
        let standing_in = tokio::spawn(run(bus.clone(), model.clone(), clock));
        wait_refused(&bus, "being fetched or opened").await;

        let projection = Projection::open(&path).expect("it opens");
        model.set_own(OwnCopy::Building(projection.clone()));
        wait_refused(&bus, "the read model is being built").await;

        // From now on the copy's own service answers, which does not run here.
        model.set_own(OwnCopy::Ready(projection));
        eventually("nobody stands in", async || {
            matches!(ask(&bus).await, RequestError::NoResponder { .. })
        })
        .await;
        standing_in.abort();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_replica_that_does_not_know_yet_who_keeps_a_copy_does_not_say_that_nobody_does() {
        let (_server, bus) = world().await;
        let (_told, holders) = watch::channel(Vec::new());
        let peers = PeerCopies::new(&bus, "h-1", holders, Arc::new(SystemClock));
        let folder = tempfile::tempdir().expect("a folder");
        let (model, _asker) = ModelAccess::new(folder.path().join("read-model.sqlite"), peers);
        let why = || refusal(&model, UnixMillis(0));
        assert_eq!(why(), None);

        model.decide_none();
        assert!(why().is_some_and(|why| why.contains("no replica of hook-svc keeps a copy")));
    }

    #[test]
    fn a_copy_that_is_built_is_described_with_the_messages_that_are_left() {
        assert!(building_text(Some(1_200)).contains("about 1200 messages"));
        assert!(building_text(None).contains("not known yet"));
    }
}
