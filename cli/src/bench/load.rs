//! Load of a run: events in over HTTP, answers out over NATS.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use shared::bus::{Bus, CoreSubscription};
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::event::Event;

use crate::launch::{Stack, token};

/// Time without an answer after which the run has failed.
const SILENCE: Duration = Duration::from_secs(60);
/// Time until a post is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(20);
/// Number of tries of a post whose connection fails.
const TRIES: u32 = 5;

/// Posts events to the gateway.
#[derive(Debug, Clone)]
pub(super) struct Sender {
    client: reqwest::Client,
    url: String,
    token: String,
}

impl Sender {
    /// Returns a sender with the bench's token, which [`super::setting`] made.
    pub(super) fn new(stack: &Stack) -> Result<Self> {
        let config = stack.config_path();
        Ok(Self {
            client: crate::http::client()?,
            url: format!("{}/v1/events", stack.gateway()?),
            token: token::read(&config.with_file_name(super::setting::TOKEN_FILE))?,
        })
    }

    /// Posts a batch; retries while the service is full, and if the connection fails: the gateway closes one that was
    /// idle for some time, also if a request is on its way. It recognises events that it has by their ids.
    pub(super) async fn post(&self, events: &[Event]) -> Result<()> {
        let body = serde_json::to_vec(events).context("failed to write the events")?;
        let mut failed = 0;
        loop {
            let posted = self
                .client
                .post(&self.url)
                .bearer_auth(&self.token)
                .header("content-type", "application/json")
                .body(body.clone());

            let answer = match posted.send().await {
                Ok(answer) => answer,
                Err(error) if error.is_request() && failed + 1 < TRIES => {
                    failed += 1;
                    pause(RETRY_AFTER).await;
                    continue;
                }
                Err(error) => return Err(error).context("failed to post events"),
            };
            match answer.status().as_u16() {
                200..300 => return Ok(()),
                503 => pause(RETRY_AFTER).await,
                status => bail!(
                    "events were answered {status}: {}",
                    answer.text().await.unwrap_or_default()
                ),
            }
        }
    }
}

/// Collects the answers by the event that they answer.
#[derive(Debug)]
pub(super) struct Answers {
    subscription: CoreSubscription,
    /// Time of the first answer, by event id.
    pub(super) heard: HashMap<String, Instant>,
    /// Number of answers that were heard a second time.
    pub(super) repeated: u64,
}

impl Answers {
    pub(super) async fn listen(bus: &Bus, subject: &str) -> Result<Self> {
        let subscription = bus.core_subscribe(subject).await.map_err(anyhow::Error::msg)?;
        bus.flush().await.map_err(anyhow::Error::msg)?;
        Ok(Self {
            subscription,
            heard: HashMap::new(),
            repeated: 0,
        })
    }

    /// Collects answers until `count` events are answered.
    pub(super) async fn until(
        &mut self,
        count: u64,
        event_of: impl Fn(&shared::bus::CoreMessage) -> Option<String>,
    ) -> Result<()> {
        while (self.heard.len() as u64) < count {
            let heard = tokio::time::timeout(SILENCE, self.subscription.next()).await;
            let Ok(Some(message)) = heard else {
                bail!(
                    "{} of {count} answers came, then none for {} s",
                    self.heard.len(),
                    SILENCE.as_secs()
                );
            };

            let Some(event) = event_of(&message) else { continue };
            let now = SystemClock.monotonic();
            let before = self.heard.len();
            self.heard.entry(event).or_insert(now);
            self.repeated += u64::from(self.heard.len() == before);
        }

        Ok(())
    }
}
