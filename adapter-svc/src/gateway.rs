//! The gateway: the state that all handlers of HTTP requests share, and in [`routes`] which of them gets a request.

pub mod bodies;
pub mod client_address;
pub mod hosts;
pub mod pace;
pub mod reception;
pub mod routes;
pub mod shares;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use shared::bus::Bus;
use shared::clock::{SharedClock, SharedIds};
use shared::process::ShutdownSignal;

use crate::approvals::callback_auth::CallbackAuth;
use crate::config::AdapterConfig;
use crate::error::RequestRejection;
use crate::intake::EventIntake;
use crate::source::events::access::TokenAccess;
use crate::source::slack::endpoint::SlackEndpoints;
use crate::source::telegram::webhook::TelegramDoors;
use crate::source::webhook::endpoint::WebhookEndpoint;
use crate::source::webhook::signature::SignatureChecks;
use client_address::{ClientAddress, TrustedNetworks};
use hosts::AllowedHosts;
use pace::RateLimiter;
use reception::BodyReader;
use shares::PageSlots;

/// The state that all handlers share.
#[derive(Clone, Debug)]
pub struct GatewayState(Arc<GatewayParts>);

/// The parts of a [`GatewayState`].
#[derive(Debug)]
pub struct GatewayParts {
    /// Destination of accepted events.
    pub intake: EventIntake,
    /// Bus for the chat's replies and history.
    pub bus: Bus,
    /// Clock of the process.
    pub clock: SharedClock,
    /// Source of ids for events that have no other identity.
    pub ids: SharedIds,
    /// Webhook sources by name.
    pub webhooks: HashMap<String, WebhookEndpoint>,
    /// Accounts of Slack that receive over HTTP.
    pub slack: SlackEndpoints,
    /// Accounts of Telegram that receive over HTTP.
    pub telegram: TelegramDoors,
    /// Access rules of `/v1/events`.
    pub access: TokenAccess,
    /// Keys that check callbacks of approvals; `None` = callbacks are refused.
    pub approvals: Option<CallbackAuth>,
    /// Keys that check links of cards; `None` = there are no links.
    pub links: Option<SignatureChecks>,
    /// Account of the chat page; `None` = the page is not served.
    pub webchat: Option<String>,
    /// Limits for open chat pages.
    pub sockets: PageSlots,
    /// Request to stop the service.
    pub shutdown: ShutdownSignal,
    /// Reader of bodies, with the permits of requests in progress.
    pub reception: BodyReader,
    timeout_ms: u64,
    hosts: AllowedHosts,
    /// Rate limit per address; `None` = unlimited.
    pace: Option<Mutex<RateLimiter>>,
    /// Proxies whose `X-Forwarded-For` is trusted.
    trusted: TrustedNetworks,
}

/// The doors of the accounts to which platforms post.
#[derive(Debug, Default)]
pub struct PlatformDoors {
    /// Accounts of Slack.
    pub slack: SlackEndpoints,
    /// Accounts of Telegram.
    pub telegram: TelegramDoors,
}

impl std::ops::Deref for GatewayState {
    type Target = GatewayParts;
    fn deref(&self) -> &GatewayParts {
        &self.0
    }
}

impl GatewayState {
    /// Creates the gateway of `config`, with the `doors` of accounts.
    ///
    /// # Errors
    /// Returns `key: expected value` if the configuration is invalid and was not checked before.
    pub fn new(
        config: &AdapterConfig,
        intake: EventIntake,
        doors: PlatformDoors,
        bus: Bus,
        clock: SharedClock,
        ids: SharedIds,
        shutdown: ShutdownSignal,
    ) -> Result<Self, String> {
        let webhooks = config
            .webhook_endpoints()
            .into_iter()
            .map(|endpoint| (endpoint.name.clone(), endpoint))
            .collect();

        Ok(Self(Arc::new(GatewayParts {
            intake,
            bus,
            clock,
            ids,
            webhooks,
            slack: doors.slack,
            telegram: doors.telegram,
            access: config.token_access().map_err(|faults| faults.join("; "))?,
            approvals: config.approvals.callback_auth()?,
            links: config.approvals.link_checks(),
            webchat: config.webchat.enabled.then(|| config.webchat.account.clone()),
            sockets: PageSlots::new(config.webchat.max_sockets, config.webchat.max_sockets_per_address),
            shutdown,
            reception: BodyReader::new(config.max_concurrent),
            timeout_ms: config.request_timeout_ms,
            hosts: AllowedHosts::new(config.listen.ip(), &config.hosts),
            pace: config
                .per_address_per_second
                .map(|per_second| Mutex::new(RateLimiter::new(per_second, config.per_address_burst))),
            trusted: config.trusted_networks()?,
        })))
    }
}

impl GatewayParts {
    /// Counts a request, or a message of a chat page, of `client`.
    ///
    /// # Errors
    /// Returns [`RequestRejection::TooFast`] if the client has reached its rate limit.
    pub fn check_rate(&self, client: ClientAddress) -> Result<(), RequestRejection> {
        let Some(pace) = &self.pace else {
            return Ok(());
        };
        let now = self.clock.monotonic();
        let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
        pace.admit_request(client.0, now).map_err(RequestRejection::TooFast)
    }
}
