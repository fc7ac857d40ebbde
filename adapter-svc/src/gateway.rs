//! The gateway: which path leads to which source, and the bounds that hold for all of them.

pub mod hosts;
pub mod pace;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use shared::bus::Bus;
use shared::clock::{SharedClock, SharedIds};
use shared::process::Shutdown;
use tokio::sync::Semaphore;

use crate::approvals::{self, Callbacks};
use crate::config::AdapterConfig;
use crate::error::Refusal;
use crate::intake::Intake;
use crate::source::http::Access;
use crate::source::webhook::endpoint::Endpoint;
use crate::source::webhook::signature::Checks;
use crate::source::{http, webchat, webhook};
use hosts::Hosts;
use pace::Pace;

/// How much of a body that is too large is read and thrown away, in bytes, so that its sender gets to read why.
const MAX_DISCARD_BYTES: usize = 16 * 1024 * 1024;

/// What the handlers share.
#[derive(Clone, Debug)]
pub struct Gateway(Arc<Parts>);

/// See [`Gateway`].
#[derive(Debug)]
pub struct Parts {
    /// Where events go.
    pub intake: Intake,
    /// For the chat's answers and history.
    pub bus: Bus,
    /// When it is.
    pub clock: Clock,
    /// Ids for what nothing identifies.
    pub ids: Ids,
    /// Webhook sources by name.
    pub webhooks: HashMap<String, Endpoint>,
    /// Who may post events.
    pub access: Access,
    /// What callbacks of approvals are checked against; none where none are taken.
    pub approvals: Option<Callbacks>,
    /// What links of cards are checked against; none where there are none.
    pub links: Option<Checks>,
    /// The chat's account; none where it is not served.
    pub webchat: Option<String>,
    /// Room for open chat pages.
    pub sockets: Arc<Semaphore>,
    /// Asked to stop.
    pub shutdown: Shutdown,
    requests: Semaphore,
    timeout_ms: u64,
    hosts: Hosts,
    /// How fast an address may ask; none where that is not bounded.
    pace: Option<Mutex<Pace>>,
}

/// Who is at the other end of a request's connection: a proxy, where there is one.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub IpAddr);

/// A [`SharedClock`] that can be shown.
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

/// A [`SharedIds`] that can be shown.
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
    /// The gateway of `config`.
    ///
    /// # Errors
    /// `key: what is expected`, where the configuration was not checked before.
    pub fn new(
        config: &AdapterConfig,
        intake: Intake,
        bus: Bus,
        clock: SharedClock,
        ids: SharedIds,
        shutdown: Shutdown,
    ) -> Result<Self, String> {
        let webhooks = config
            .endpoints()
            .into_iter()
            .map(|endpoint| (endpoint.name.clone(), endpoint))
            .collect();
        Ok(Self(Arc::new(Parts {
            intake,
            bus,
            clock: Clock(clock),
            ids: Ids(ids),
            webhooks,
            access: config.access()?,
            approvals: config.approvals.callbacks()?,
            links: config.approvals.links(),
            webchat: config.webchat.enabled.then(|| config.webchat.account.clone()),
            sockets: Arc::new(Semaphore::new(config.webchat.max_sockets)),
            shutdown,
            requests: Semaphore::new(config.max_concurrent),
            timeout_ms: config.request_timeout_ms,
            hosts: Hosts::new(config.listen.ip(), &config.hosts),
            pace: config
                .per_address_per_second
                .map(|per_second| Mutex::new(Pace::new(per_second, config.per_address_burst))),
        })))
    }

    /// The routes.
    pub fn router(&self) -> Router {
        let mut router = Router::new()
            .route("/hooks/{source}", post(webhook::post).get(webhook::get))
            .route("/approvals/{id}", post(approvals::post).get(approvals::look))
            .route("/approvals/{id}/decide", post(approvals::tap))
            .route("/v1/events", post(http::post));
        if self.webchat.is_some() {
            router = router
                .route("/", get(webchat::page))
                .route("/webchat", get(webchat::page))
                .route("/webchat/webchat.js", get(webchat::script))
                .route("/webchat/webchat.css", get(webchat::style))
                .route("/webchat/ws", get(webchat::connect));
        }
        router
            .fallback(async || Refusal::UnknownPath)
            .layer(from_fn_with_state(self.clone(), bounded))
            .with_state(self.clone())
    }
}

impl Parts {
    /// Whether the address of `request` may ask now.
    fn paced(&self, request: &Request) -> Result<(), Refusal> {
        let (Some(pace), Some(Peer(from))) = (&self.pace, request.extensions().get()) else {
            return Ok(());
        };
        let now = self.clock.monotonic();
        let mut pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
        pace.admit(*from, now).map_err(Refusal::TooFast)
    }
}

/// Every request has a place among those worked on, a name of ours, an end, and safe headers on its answer.
async fn bounded(State(gateway): State<Gateway>, request: Request, next: Next) -> Response {
    if let Err(refusal) = gateway.paced(&request) {
        return refusal.into_response();
    }
    let Ok(_place) = gateway.requests.try_acquire() else {
        return Refusal::Overloaded.into_response();
    };
    if let Err(host) = gateway.hosts.admit(request.uri(), request.headers()) {
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

/// The whole body, of at most `max` bytes.
///
/// # Errors
/// [`Refusal::TooLarge`] and [`Refusal::BrokenBody`].
pub(crate) async fn read_body(headers: &HeaderMap, body: Body, max: usize) -> Result<Bytes, Refusal> {
    let said = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let mut chunks = body.into_data_stream();
    let mut whole = BytesMut::with_capacity(said.unwrap_or(0).min(max));
    let mut read = 0_usize;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| Refusal::BrokenBody(crate::error::chain(&error)))?;
        read = read.saturating_add(chunk.len());
        if read <= max {
            whole.extend_from_slice(&chunk);
        } else if read > MAX_DISCARD_BYTES {
            break;
        }
    }
    if read > max {
        Err(Refusal::TooLarge { max })
    } else {
        Ok(whole.freeze())
    }
}
