//! The accounts to which Slack posts payloads, by name.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shared::clock::{SharedClock, SharedIds};
use shared::error_chain::describe_error;
use shared::model::event::Event;
use shared::platform::slack::{SlackAccount, SlackReceive};
use shared::process::{Health, ShutdownSignal};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::SlackBot;
use super::client::open_http;
use super::identity::IdentityKeeper;
use super::threads::apply_policy;
use crate::attachments::AttachmentFetcher;
use crate::error::RequestRejection;
use crate::pairing::{PairingError, PairingStore};
use crate::source::port::apply_age_gate;
use crate::source::port::strangers::{settle_remembered, settle_strangers};
use crate::source::webhook::signature::{SignatureChecks, SigningKey};

/// Maximum distance of a signed time from now, in seconds; Slack's own figure.
const TOLERANCE_S: u32 = 300;

/// Maximum wait of a request for the account's identity, which is asked for at start.
const IDENTITY_WAIT: Duration = Duration::from_secs(1);

/// Maximum time for reading the pairings of a payload's senders, which leaves time for storing its events.
const PAIRINGS_WITHIN: Duration = Duration::from_millis(900);

/// Maximum time for which a payload's events wait for their files.
const FILES_WITHIN: Duration = Duration::from_secs(1);

/// Maximum time for noting the files that are still to be fetched.
const NOTE_WITHIN: Duration = Duration::from_millis(500);

/// Time that is left for storing a payload's events, whatever came before.
const STORE_TIME: Duration = Duration::from_millis(300);

/// Maximum time for a payload. Slack waits for three seconds, in which the payload also comes and the answer goes.
const PAYLOAD_WITHIN: Duration = Duration::from_millis(2_200);

/// The time that is left for a payload.
#[derive(Debug, Clone)]
pub struct PayloadTime {
    clock: SharedClock,
    end: Instant,
}

impl PayloadTime {
    /// Returns the time for a payload that has come now.
    #[must_use]
    pub fn start(clock: &SharedClock) -> Self {
        Self {
            end: clock.monotonic() + PAYLOAD_WITHIN,
            clock: Arc::clone(clock),
        }
    }

    /// Returns the time that is left.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(self.clock.monotonic())
    }

    /// Returns the time that is left if `reserve` of it is kept for other steps.
    fn left_but(&self, reserve: Duration) -> Duration {
        self.left().saturating_sub(reserve)
    }
}

/// The accounts that receive over HTTP.
pub type SlackEndpoints = HashMap<String, SlackEndpoint>;

/// An account to which Slack posts payloads.
pub struct SlackEndpoint {
    account: SlackAccount,
    /// Checks of the signature.
    pub checks: SignatureChecks,
    known: watch::Receiver<Option<SlackBot>>,
    recheck: Arc<Notify>,
    pairings: PairingStore,
    attachments: AttachmentFetcher,
    age_gate_ms: i64,
}

// By hand: the account's secrets must not be printed.
impl std::fmt::Debug for SlackEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SlackEndpoint(…)")
    }
}

impl SlackEndpoint {
    /// Returns who the account is. Waits for a moment if Slack has not said it yet; `None` if it does not in time.
    pub async fn identity(&self) -> Option<SlackBot> {
        let mut known = self.known.clone();
        let found = tokio::time::timeout(IDENTITY_WAIT, known.wait_for(Option::is_some)).await;
        found.ok()?.ok()?.clone()
    }

    /// Has the account asked for again, because its rights may have changed.
    pub fn recheck(&self) {
        self.recheck.notify_one();
    }

    /// Applies the account's settings to `event`.
    pub fn apply_settings(&self, event: &mut Event) {
        let policy = self.account.access();
        apply_policy(&policy, event);
        apply_age_gate(event, self.age_gate_ms);
    }

    /// Lets those of the senders of `events` in who are paired, has `store` make the events durable, and sends the others
    /// their codes. No step takes more than is left of `time`. After an error the same payload may be handled again.
    ///
    /// # Errors
    /// Returns [`RequestRejection::UnknownPairings`] if the pairings cannot be read or written now,
    /// [`RequestRejection::UnnotedFiles`] if files that are not there in time cannot be noted now, or the error of `store`.
    pub async fn store_with_pairings(
        &self,
        mut events: Vec<Event>,
        time: &PayloadTime,
        store: impl AsyncFnOnce(&[Event]) -> Result<(), RequestRejection>,
    ) -> Result<(), RequestRejection> {
        let failed = |error: PairingError| {
            let error = describe_error(&error);
            tracing::warn!(
                error,
                "failed to read or write a pairing; Slack posts the payload again"
            );
            RequestRejection::UnknownPairings
        };
        let settled = settle_strangers(&self.pairings, self.account.direct, &mut events);
        let within = PAIRINGS_WITHIN.min(time.left_but(NOTE_WITHIN + STORE_TIME));
        let settled = tokio::time::timeout(within, settled).await;
        let strangers = match settled.map(|settled| settled.map_err(failed)) {
            Ok(Ok(strangers)) => strangers,
            // Slack posts a payload for five minutes only: those who were paired a moment ago need not wait for the bus.
            Ok(Err(_)) | Err(_) if settle_remembered(&self.pairings, self.account.direct, &mut events) => Vec::new(),
            Ok(Err(rejection)) => return Err(rejection),
            Err(_) => return Err(RequestRejection::UnknownPairings),
        };
        let within = FILES_WITHIN.min(time.left_but(NOTE_WITHIN + STORE_TIME));
        self.attachments.fetch_new(&mut events, within).await;
        self.note_files(&mut events, NOTE_WITHIN.min(time.left_but(STORE_TIME)))
            .await?;
        store(&events).await?;
        for message in &strangers {
            self.pairings.offer_code(message).await.map_err(failed)?;
        }
        Ok(())
    }

    /// Notes the files of `events` that are still to be fetched.
    async fn note_files(&self, events: &mut [Event], within: Duration) -> Result<(), RequestRejection> {
        let Err(error) = self.attachments.note_open(events, within).await else {
            return Ok(());
        };
        let error = describe_error(&error);
        if events.iter().any(|event| self.attachments.has_open(event)) {
            tracing::warn!(error, "failed to note open files; Slack posts the payload again");
            return Err(RequestRejection::UnnotedFiles);
        }
        // An edit or a deletion is worth more than the note of an earlier version, whose text no reader takes after it.
        tracing::warn!(error, "failed to remove the note of an earlier version");
        Ok(())
    }
}

/// Parts of the process that the endpoints use.
#[derive(Debug, Clone)]
pub struct EndpointContext {
    /// State reported by `/readyz`.
    pub health: Health,
    /// Source of randomness for waits.
    pub ids: SharedIds,
    /// Request to stop the service.
    pub shutdown: ShutdownSignal,
    /// Strangers who may write, and those who have a code.
    pub pairings: PairingStore,
    /// Files of messages.
    pub attachments: AttachmentFetcher,
    /// Age from which an event is stored and fires nothing, in milliseconds.
    pub age_gate_ms: i64,
}

/// Opens the endpoints of those of `accounts` that receive over HTTP, and a task for each that keeps its identity known.
///
/// # Errors
/// Returns the HTTP client's error if it cannot be set up.
pub fn open_endpoints(
    accounts: &BTreeMap<String, SlackAccount>,
    context: &EndpointContext,
) -> Result<(SlackEndpoints, Vec<JoinHandle<()>>), reqwest::Error> {
    let receives = |account: &SlackAccount| match account.receive {
        SlackReceive::Events => true,
        SlackReceive::Socket | SlackReceive::None => false,
    };
    let (mut endpoints, mut tasks) = (SlackEndpoints::new(), Vec::new());
    // A host without such accounts needs no client.
    if !accounts.values().any(receives) {
        return Ok((endpoints, tasks));
    }

    let http = open_http()?;
    for (name, account) in accounts.iter().filter(|(_, account)| receives(account)) {
        let (sender, known) = watch::channel(None);
        let recheck = Arc::new(Notify::new());
        let keeper = IdentityKeeper {
            name: name.clone(),
            account: account.clone(),
            http: http.clone(),
            known: sender,
            recheck: Arc::clone(&recheck),
            health: context.health.clone(),
            ids: context.ids.clone(),
        };
        tasks.push(tokio::spawn(keeper.keep(context.shutdown.clone())));

        let secret = account.signing_secret.iter();
        let endpoint = SlackEndpoint {
            account: account.clone(),
            checks: SignatureChecks {
                keys: secret.map(|secret| SigningKey::new(secret.reveal())).collect(),
                tolerance_s: TOLERANCE_S,
            },
            known,
            recheck,
            pairings: context.pairings.clone(),
            attachments: context.attachments.clone(),
            age_gate_ms: context.age_gate_ms,
        };
        endpoints.insert(name.clone(), endpoint);
    }

    Ok((endpoints, tasks))
}
