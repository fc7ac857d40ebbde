//! The accounts to which Slack posts payloads, by name.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use shared::bus::Bus;
use shared::clock::{SharedClock, SharedIds};
use shared::model::event::Event;
use shared::platform::slack::{SLACK, SlackAccount, SlackReceive};
use shared::process::{Health, ShutdownSignal};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::SlackBot;
use super::begun_threads::BegunThreads;
use super::client::open_http;
use super::identity::IdentityKeeper;
use super::post_record::PostRecord;
use super::post_source::{SlackPostSource, keep_alive};
use super::threads::apply_policy;
use crate::attachments::AttachmentFetcher;
use crate::pairing::PairingStore;
use crate::source::door::{AccountDoor, PostLetters};
use crate::source::port::{Source, apply_age_gate};
use crate::source::posts::PostQueue;
use crate::source::posts::shared_watch::SharedPosts;
use crate::source::webhook::signature::{SignatureChecks, SigningKey};

/// Maximum distance of a signed time from now, in seconds; Slack's own figure.
const TOLERANCE_S: u32 = 300;

/// Maximum wait of a request for the account's identity, which is asked for at start.
const IDENTITY_WAIT: Duration = Duration::from_secs(1);

/// Maximum time for a payload. Slack waits for three seconds, in which the payload also comes and the answer goes.
pub const PAYLOAD_WITHIN: Duration = Duration::from_millis(2_200);

/// The accounts that receive over HTTP.
pub type SlackEndpoints = HashMap<String, SlackEndpoint>;

/// An account to which Slack posts payloads.
pub struct SlackEndpoint {
    account: SlackAccount,
    /// Checks of the signature.
    pub checks: SignatureChecks,
    known: watch::Receiver<Option<SlackBot>>,
    recheck: Arc<Notify>,
    /// Steps before events are durable.
    pub door: AccountDoor,
    /// Posts, as this replica takes them.
    pub record: Arc<PostRecord>,
    /// Events that wait for those that belong to them, until the account's holder has stored them; `None` = none wait.
    pub queue: Option<PostQueue>,
    threads: BegunThreads,
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

    /// Applies the account's settings to `event`, and notes the thread that it begins for all replicas.
    pub async fn apply_settings(&self, event: &mut Event) {
        let is_begun = self.threads.knows(event);
        apply_policy(&self.account.access(), event, is_begun);
        apply_age_gate(event, self.age_gate_ms);
        self.threads.note(event).await;
    }
}

/// Parts of the process that the endpoints use.
#[derive(Debug, Clone)]
pub struct EndpointContext {
    /// Whether posts are taken while the bus is away.
    pub keeps_on_disk: bool,
    /// Bus of posted events and dead letters.
    pub bus: Bus,
    /// Watch that tells the accounts' holders the posts that wait.
    pub posts: SharedPosts,
    /// Clock of the process.
    pub clock: SharedClock,
    /// State reported by `/readyz`.
    pub health: Health,
    /// Source of randomness for waits.
    pub ids: SharedIds,
    /// Request to stop the service.
    pub shutdown: ShutdownSignal,
    /// Paired strangers, and those with a code.
    pub pairings: PairingStore,
    /// Files of messages.
    pub attachments: AttachmentFetcher,
    /// Threads that began with a message to an account.
    pub threads: BegunThreads,
    /// Age from which an event is stored and fires nothing, in milliseconds.
    pub age_gate_ms: i64,
}

/// The accounts to which Slack posts.
#[derive(Default)]
pub struct OpenedEndpoints {
    /// Doors of the accounts, by name.
    pub endpoints: SlackEndpoints,
    /// Sources that tell of which time posts may be missing.
    pub sources: Vec<Arc<dyn Source>>,
    /// Tasks that keep the accounts' identities known, and note that their posts are taken.
    pub tasks: Vec<JoinHandle<()>>,
}

/// Opens the endpoints of those of `accounts` that receive over HTTP, with the sources and tasks of each.
///
/// # Errors
/// Returns the HTTP client's error if it cannot be set up.
pub fn open_endpoints(
    accounts: &BTreeMap<String, SlackAccount>,
    context: &EndpointContext,
) -> Result<OpenedEndpoints, reqwest::Error> {
    let receives = |account: &SlackAccount| match account.receive {
        SlackReceive::Events => true,
        SlackReceive::Socket | SlackReceive::None => false,
    };
    let mut opened = OpenedEndpoints::default();
    // A host without such accounts needs no client.
    if !accounts.values().any(receives) {
        return Ok(opened);
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
        let record = Arc::new(PostRecord::new(context.keeps_on_disk));
        let (clock, shutdown) = (Arc::clone(&context.clock), context.shutdown.clone());
        let alive = keep_alive(Arc::clone(&record), known.clone(), clock, shutdown);
        opened.tasks.push(tokio::spawn(keeper.keep(context.shutdown.clone())));
        opened.tasks.push(tokio::spawn(alive));
        opened.sources.push(Arc::new(SlackPostSource {
            name: name.clone(),
            account: account.clone(),
            threads: context.threads.clone(),
            known: known.clone(),
            record: Arc::clone(&record),
            posts: context.posts.clone(),
        }));

        let secret = account.signing_secret.iter();
        let endpoint = SlackEndpoint {
            account: account.clone(),
            checks: SignatureChecks {
                keys: secret.map(|secret| SigningKey::new(secret.reveal())).collect(),
                tolerance_s: TOLERANCE_S,
            },
            known,
            recheck,
            door: AccountDoor {
                pairings: context.pairings.clone(),
                attachments: context.attachments.clone(),
                direct: account.direct,
                letters: PostLetters::new(SLACK, name.clone(), context.bus.clone(), Arc::clone(&context.clock)),
            },
            record,
            queue: (account.debounce_ms > 0).then(|| PostQueue::new(&context.bus, SLACK, name)),
            threads: context.threads.clone(),
            age_gate_ms: context.age_gate_ms,
        };
        opened.endpoints.insert(name.clone(), endpoint);
    }

    Ok(opened)
}
