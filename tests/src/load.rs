//! Events in over HTTP, from a sender that does what senders do: it asks again, elsewhere, until it is answered 200.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use shared::clock::pause;

use crate::world::token;

/// How long one request may take before the sender tries elsewhere.
const PATIENCE: Duration = Duration::from_secs(5);

/// Addresses of the adapters that run at this moment; the test keeps it up to date.
pub type Gateways = Arc<Mutex<Vec<String>>>;

/// What is sent: `events` at `rate` a second, over `sessions` conversations, each `copies` times.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// How many.
    pub events: u64,
    /// A second.
    pub rate: u32,
    /// Conversations.
    pub sessions: u64,
    /// How often each is sent.
    pub copies: u32,
}

fn pick(gateways: &Gateways, turn: usize) -> Option<String> {
    let known = gateways.lock().unwrap_or_else(PoisonError::into_inner);
    known.get(turn % known.len().max(1)).cloned()
}

/// Sends all of it; answers the ids that were accepted, which in the end are all.
pub async fn send(load: Load, gateways: Gateways) -> BTreeSet<String> {
    let client = cli::http::client().expect("an HTTP client");
    let mut conversations = Vec::new();
    for session in 0..load.sessions {
        let (client, gateways) = (client.clone(), Arc::clone(&gateways));
        conversations.push(tokio::spawn(conversation(load, session, client, gateways)));
    }

    let mut accepted = BTreeSet::new();
    for sender in conversations {
        accepted.extend(sender.await.expect("a sender panicked"));
    }

    accepted
}

/// One conversation's events, each after the one before was accepted, at the load's pace.
async fn conversation(load: Load, session: u64, client: reqwest::Client, gateways: Gateways) -> Vec<String> {
    let mut accepted = Vec::new();
    let gap = Duration::from_secs_f64(load.sessions as f64 / f64::from(load.rate));
    pause(gap.mul_f64(session as f64 / load.sessions as f64)).await;

    let mut tick = tokio::time::interval(gap);
    let step = usize::try_from(load.sessions).unwrap_or(usize::MAX);
    for number in (session..load.events).step_by(step) {
        tick.tick().await;
        let id = format!("chaos:{session}/{number}");
        let event = json!({
            "id": id, "timestamp": 1_700_000_000_000_i64 + i64::try_from(number).unwrap_or(0), "channel": "chaos",
            "peer": { "kind": "dm", "id": session.to_string() }, "from": { "id": session.to_string() },
            "content": number.to_string(), "content_types": ["text"],
        });

        for copy in 0..load.copies {
            post(&client, &gateways, &event, session as usize + copy as usize).await;
        }

        accepted.push(id);
    }

    accepted
}

async fn post(client: &reqwest::Client, gateways: &Gateways, event: &serde_json::Value, first: usize) {
    for turn in first.. {
        if let Some(gateway) = pick(gateways, turn) {
            let request = client
                .post(format!("{gateway}/v1/events"))
                .bearer_auth(token("chaos"))
                .json(event)
                .timeout(PATIENCE);

            match request.send().await {
                Ok(answer) if answer.status().is_success() => return,
                Ok(answer) if answer.status().as_u16() == 503 => {}
                Ok(answer) => panic!(
                    "answered {}: {}",
                    answer.status(),
                    answer.text().await.unwrap_or_default()
                ),
                Err(_) => {}
            }
        }

        pause(Duration::from_millis(50)).await;
    }
}
