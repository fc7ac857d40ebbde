//! The routes from paths to sources, and the limits that apply to all of them.

use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use super::GatewayState;
use super::client_address::{ClientAddress, ConnectionPeer};
use crate::approvals;
use crate::error::{RejectionNote, RequestRejection};
use crate::source::{post_events, slack, telegram, webchat, webhook};

/// Number of bytes of a rejected request's path that are logged.
const MAX_LOGGED_PATH: usize = 200;

impl GatewayState {
    /// Returns the routes of the gateway.
    pub fn router(&self) -> Router {
        let mut router = Router::new()
            .route("/hooks/{source}", post(webhook::post_webhook).get(webhook::get))
            .route(
                "/approvals/{id}",
                post(approvals::post_decision).get(approvals::show_link_page),
            )
            .route("/approvals/{id}/decide", post(approvals::post_link_decision))
            .route("/slack/{account}", post(slack::post_payload::post_payload))
            .route("/telegram/{account}", post(telegram::post_update::post_update))
            .route("/v1/events", post(post_events::post_events));

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
            .layer(from_fn_with_state(self.clone(), handle_request))
            .with_state(self.clone())
    }
}

/// Handles a request within the limits, and logs its rejection with its path, which names the source.
async fn handle_request(State(gateway): State<GatewayState>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let path = path[..path.floor_char_boundary(MAX_LOGGED_PATH)].to_owned();

    let response = bound_request(gateway, request, next).await;
    if let Some(note) = response.extensions().get::<RejectionNote>() {
        let (status, RejectionNote { code, error, place }) = (response.status(), note);
        tracing::info!(%status, code, path, error, place, "request rejected");
    }

    response
}

/// Applies the limits to every request: its client's rate, the number of requests at once, the host name, the time,
/// and the headers of its response.
async fn bound_request(gateway: GatewayState, mut request: Request, next: Next) -> Response {
    // The rate comes first, because every later step costs more.
    if let Some(peer) = request.extensions().get::<ConnectionPeer>() {
        let client = ClientAddress::from_request(*peer, request.headers(), &gateway.trusted);
        request.extensions_mut().insert(client);
        if let Err(refusal) = gateway.check_rate(client) {
            return refusal.into_response();
        }
    }

    // A request with a body takes its permit after the body has arrived: see `BodyReader::read_body`.
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
