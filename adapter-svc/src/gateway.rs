//! The gateway: the routes from paths to sources, and the limits that apply to all of them.

pub mod bodies;
pub mod client;
pub mod hosts;
pub mod pace;
pub mod reception;
pub mod shares;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use shared::bus::Bus;
use shared::clock::{SharedClock, SharedIds};
use shared::process::Shutdown;

use crate::approvals::{self, Callbacks};
use crate::config::AdapterConfig;
use crate::error::Refusal;
use crate::intake::Intake;
use crate::source::events::access::Access;
use crate::source::webhook::endpoint::Endpoint;
use crate::source::webhook::signature::Checks;
use crate::source::{http, webchat, webhook};
use client::{Client, Networks, Peer};
use hosts::Hosts;
use pace::Pace;
use reception::Reception;
use shares::Shares;

/// The state that all handlers share.
#[derive(Clone, Debug)]
pub struct Gateway(Arc<Parts>);

/// The parts of a [`Gateway`].
#[derive(Debug)]
pub struct Parts {
    /// Destination of accepted events.
    pub intake: Intake,
    /// Bus for the chat's replies and history.
    pub bus: Bus,
    /// Clock of the process.
    pub clock: Clock,
    /// Source of ids for events that have no other identity.
    pub ids: Ids,
    /// Webhook sources by name.
    pub webhooks: HashMap<String, Endpoint>,
    /// Access rules of `/v1/events`.
    pub access: Access,
    /// Keys that check callbacks of approvals; `None` = callbacks are refused.
    pub approvals: Option<Callbacks>,
    /// Keys that check links of cards; `None` = there are no links.
    pub links: Option<Checks>,
    /// Account of the chat page; `None` = the page is not served.
    pub webchat: Option<String>,
    /// Limits for open chat pages.
    pub sockets: Shares,
    /// Request to stop the service.
    pub shutdown: Shutdown,
    /// Reader of bodies, with the permits of requests in progress.
    pub reception: Reception,
    timeout_ms: u64,
    hosts: Hosts,
    /// Rate limit per address; `None` = unlimited.
    pace: Option<Mutex<Pace>>,
    /// Proxies whose `X-Forwarded-For` is trusted.
    trusted: Networks,
}

/// A [`SharedClock`] that implements `Debug`.
#[derive(Clone)]
pub struct Clock(SharedClock);

impl std::ops::Deref for Clock {
    type Target = dyn shared::clock::Clock;
    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

/// A [`SharedIds`] that implements `Debug`.
#[derive(Clone)]
pub struct Ids(SharedIds);

impl std::ops::Deref for Ids {
    type Target = dyn shared::clock::IdSource;
    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl std::fmt::Debug for Ids {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ids")
    }
}

impl std::ops::Deref for Gateway {
    type Target = Parts;
    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl Gateway {
    /// Creates the gateway of `config`.
    ///
    /// # Errors
    /// Returns `key: expected value` if the configuration is invalid and was not checked before.
    pub fn new(
        config: &AdapterConfig,
        intake: Intake,
        bus: Bus,
        clock: SharedClock,
        ids: SharedIds,
        shutdown: Shutdown,
    ) -> Result<Self, String> {
        let webhooks = config
            .webhook_endpoints()
            .into_iter()
            .map(|endpoint| (endpoint.name.clone(), endpoint))
            .collect();

        Ok(Self(Arc::new(Parts {
            intake,
            bus,
            clock: Clock(clock),
            ids: Ids(ids),
            webhooks,
            access: config.token_access().map_err(|faults| faults.join("; "))?,
            approvals: config.approvals.callback_auth()?,
            links: config.approvals.link_checks(),
            webchat: config.webchat.enabled.then(|| config.webchat.account.clone()),
            sockets: Shares::new(config.webchat.max_sockets, config.webchat.max_sockets_per_address),
            shutdown,
            reception: Reception::new(config.max_concurrent),
            timeout_ms: config.request_timeout_ms,
            hosts: Hosts::new(config.listen.ip(), &config.hosts),
            pace: config
                .per_address_per_second
                .map(|per_second| Mutex::new(Pace::new(per_second, config.per_address_burst))),
            trusted: config.trusted_networks()?,
        })))
    }

    /// Returns the routes of the gateway.
    pub fn router(&self) -> Router {
        let mut router = Router::new()
            .route("/hooks/{source}", post(webhook::post_webhook).get(webhook::get))
            .route(
                "/approvals/{id}",
                post(approvals::post_decision).get(approvals::show_link_page),
            )
            .route("/approvals/{id}/decide", post(approvals::post_link_decision))
            .route("/v1/events", post(http::post_events));

        if self.webchat.is_some() {
            router = router
                .route("/", get(webchat::assets::page))
                .route("/webchat", get(webchat::assets::page))
                .route("/webchat/webchat.css", get(webchat::assets::style))
                .route("/webchat/ws", get(webchat::connect))
                .route("/webchat/{script}", get(webchat::assets::script));
        }

        router
            .fallback(async || Refusal::UnknownPath)
            .layer(from_fn_with_state(self.clone(), bound_request))
            .with_state(self.clone())
    }
}

impl Parts {
    /// Counts a request, or a message of a chat page, of `client`.
    ///
    /// # Errors
    /// Returns [`Refusal::TooFast`] if the client has reached its rate limit.
    pub fn check_rate(&self, client: Client) -> Result<(), Refusal> {
        let Some(pace) = &self.pace else {
            return Ok(());
        };
        let now = self.clock.monotonic();
        let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
        pace.admit_request(client.0, now).map_err(Refusal::TooFast)
    }
}

/// Applies the limits to every request: its client's rate, the number of requests at once, the host name, the time,
/// and the headers of its response.
async fn bound_request(State(gateway): State<Gateway>, mut request: Request, next: Next) -> Response {
    if let Some(peer) = request.extensions().get::<Peer>() {
        let client = Client::from_request(*peer, request.headers(), &gateway.trusted);
        request.extensions_mut().insert(client);
        if let Err(refusal) = gateway.check_rate(client) {
            return refusal.into_response();
        }
    }

    // A request with a body takes its permit after the body has arrived: see `Reception::receive`.
    let place = match *request.method() {
        Method::GET | Method::HEAD => gateway.reception.take_place().map(Some),
        _ => Ok(None),
    };
    let _place = match place {
        Ok(place) => place,
        Err(refusal) => return refusal.into_response(),
    };

    if let Err(host) = gateway.hosts.check_host(request.uri(), request.headers()) {
        return Refusal::ForeignHost(host).into_response();
    }

    let begun = gateway.clock.monotonic();
    let limit = Duration::from_millis(gateway.timeout_ms);
    let answer = tokio::time::timeout(limit, next.run(request)).await;
    let mut response = answer.unwrap_or_else(|_| Refusal::Timeout(gateway.timeout_ms).into_response());

    let took = gateway.clock.monotonic().duration_since(begun);
    metrics::histogram!("nexus_adapter_request_seconds").record(took.as_secs_f64());
    response
        .headers_mut()
        .insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));

    response
}
