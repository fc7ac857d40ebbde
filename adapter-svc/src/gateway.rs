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
use shared::process::ShutdownSignal;

use crate::approvals::{self, CallbackAuth};
use crate::config::AdapterConfig;
use crate::error::RequestRejection;
use crate::intake::EventIntake;
use crate::source::events::access::TokenAccess;
use crate::source::webhook::endpoint::WebhookEndpoint;
use crate::source::webhook::signature::SignatureChecks;
use crate::source::{http, webchat, webhook};
use client::{ClientAddress, ConnectionPeer, TrustedNetworks};
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

impl std::ops::Deref for GatewayState {
    type Target = GatewayParts;
    fn deref(&self) -> &GatewayParts {
        &self.0
    }
}

impl GatewayState {
    /// Creates the gateway of `config`.
    ///
    /// # Errors
    /// Returns `key: expected value` if the configuration is invalid and was not checked before.
    pub fn new(
        config: &AdapterConfig,
        intake: EventIntake,
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

        // Without the web chat its paths do not exist: they cannot be probed.
        if self.webchat.is_some() {
            router = router
                .route("/", get(webchat::assets::page))
                .route("/webchat", get(webchat::assets::page))
                .route("/webchat/webchat.css", get(webchat::assets::style))
                .route("/webchat/ws", get(webchat::connect))
                .route("/webchat/{script}", get(webchat::assets::script));
        }

        router
            .fallback(async || RequestRejection::UnknownPath)
            .layer(from_fn_with_state(self.clone(), bound_request))
            .with_state(self.clone())
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

/// Applies the limits to every request: its client's rate, the number of requests at once, the host name, the time,
/// and the headers of its response.
async fn bound_request(State(gateway): State<GatewayState>, mut request: Request, next: Next) -> Response {
    // The rate comes first, because every later step costs more.
    if let Some(peer) = request.extensions().get::<ConnectionPeer>() {
        let client = ClientAddress::from_request(*peer, request.headers(), &gateway.trusted);
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

    // Against pages of other sites that reach this machine under a name of their own.
    if let Err(host) = gateway.hosts.check_host(request.uri(), request.headers()) {
        return RequestRejection::ForeignHost(host).into_response();
    }

    let begun = gateway.clock.monotonic();
    let limit = Duration::from_millis(gateway.timeout_ms);
    // The time includes the body, so that a slow sender cannot hold a permit for ever.
    let answer = tokio::time::timeout(limit, next.run(request)).await;
    let mut response = answer.unwrap_or_else(|_| RequestRejection::Timeout(gateway.timeout_ms).into_response());

    let took = gateway.clock.monotonic().duration_since(begun);
    metrics::histogram!("nexus_adapter_request_seconds").record(took.as_secs_f64());
    // Responses must not be read as another type than the one they state.
    response
        .headers_mut()
        .insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));

    response
}
