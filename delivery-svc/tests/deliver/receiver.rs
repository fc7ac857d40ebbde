//! A webhook receiver on loopback that verifies every signature by its own means and answers as it is told.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;
use sha2::Sha256;
use shared::clock::{Clock as _, SystemClock};
use shared::model::time::UnixMillis;
use tokio::sync::watch;

use crate::world::SECRET;

/// A call that came.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
    pub(crate) at: UnixMillis,
}

struct Book {
    calls: Vec<Call>,
    /// Whether calls are noted and not answered.
    is_holding: watch::Receiver<bool>,
    /// Status and `Retry-After` of the next calls; 200 when it is empty.
    answers: VecDeque<(u16, Option<&'static str>)>,
}

#[derive(Clone)]
pub(crate) struct Receiver {
    book: Arc<Mutex<Book>>,
    url: String,
    holds: Arc<watch::Sender<bool>>,
}

impl Receiver {
    /// Starts one that answers the first calls as `answers` say.
    pub(crate) async fn start(answers: &[(u16, Option<&'static str>)]) -> Self {
        let (holds, is_holding) = watch::channel(false);
        let book = Arc::new(Mutex::new(Book {
            calls: Vec::new(),
            is_holding,
            answers: answers.iter().copied().collect(),
        }));

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/hook", listener.local_addr().expect("an address"));
        let router = Router::new().fallback(receive).with_state(Arc::clone(&book));
        tokio::spawn(async move { axum::serve(listener, router).await });
        let holds = Arc::new(holds);

        Self { book, url, holds }
    }

    /// Whether calls are noted and not answered, until they are.
    pub(crate) fn hold(&self, whether: bool) {
        self.holds.send_replace(whether);
    }

    pub(crate) fn url(&self) -> Option<String> {
        Some(self.url.clone())
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.book.lock().expect("not poisoned").calls.clone()
    }

    /// The contents of the calls, in order.
    pub(crate) fn contents(&self) -> Vec<String> {
        self.calls()
            .iter()
            .map(|call| call.body["data"]["content"].as_str().unwrap_or_default().to_owned())
            .collect()
    }
}

async fn receive(State(book): State<Arc<Mutex<Book>>>, headers: HeaderMap, body: Bytes) -> Response {
    let Some(id) = verified(&headers, &body) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };

    let body = serde_json::from_slice(&body).expect("JSON");
    let (mut is_holding, answer) = {
        let mut book = book.lock().expect("not poisoned");
        book.calls.push(Call {
            id,
            headers,
            body,
            at: SystemClock.now(),
        });

        (book.is_holding.clone(), book.answers.pop_front())
    };

    is_holding.wait_for(|holding| !holding).await.expect("the test goes on");

    match answer {
        None => StatusCode::OK.into_response(),
        Some((status, retry_after)) => {
            let status = StatusCode::from_u16(status).expect("a status");
            let header = retry_after.map(|value| [(RETRY_AFTER, value)]);
            header.map_or_else(|| status.into_response(), |header| (status, header).into_response())
        }
    }
}

/// The message's id, where its signature holds and its time is now.
fn verified(headers: &HeaderMap, body: &[u8]) -> Option<String> {
    let header = |name: &str| headers.get(name)?.to_str().ok();
    let (id, timestamp, signature) = (
        header("webhook-id")?,
        header("webhook-timestamp")?,
        header("webhook-signature")?,
    );

    let age = SystemClock.now().seconds() - timestamp.parse::<i64>().ok()?;
    let secret = STANDARD.decode(SECRET.strip_prefix("whsec_")?).ok()?;
    let mut mac = Hmac::<Sha256>::new_from_slice(&secret).ok()?;
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(body);
    let given = STANDARD.decode(signature.strip_prefix("v1,")?).ok()?;

    (mac.verify_slice(&given).is_ok() && (0..300).contains(&age)).then(|| id.to_owned())
}
