//! Serving requests as a NATS micro service: discoverable, with the load shared among replicas.

use std::sync::Arc;
use std::time::Duration;

use async_nats::service::ServiceExt as _;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

use super::connect::Bus;
use super::core_message::is_inbox;

/// Maximum number of requests of one endpoint that are served at once.
const AT_ONCE: usize = 32;
/// Longest wait for the server to register or remove a subscription.
const HEARD: Duration = Duration::from_millis(500);

/// Handler of an endpoint's requests: JSON bytes in, JSON bytes or (code, text) out.
type Answer = Arc<dyn Fn(Bytes) -> BoxFuture<'static, Result<Bytes, (usize, String)>> + Send + Sync>;

/// A service and its endpoints.
#[derive(Clone)]
pub struct ServiceSpec {
    /// Name of the service; endpoints are on `nexus.svc.{name}.{endpoint}`, or `nexus.svc.{name}.{instance}.{endpoint}`
    /// if it is that of one replica.
    pub name: &'static str,
    /// Replica that alone answers, as a token of a subject; `None` if any may.
    pub instance: Option<String>,
    /// Description of the service, for people.
    pub description: &'static str,
    endpoints: Vec<(&'static str, Answer)>,
}

// By hand: the handlers of the endpoints are closures.
impl std::fmt::Debug for ServiceSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceSpec")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl ServiceSpec {
    /// Builds a service without endpoints.
    #[must_use]
    pub const fn new(name: &'static str, description: &'static str) -> Self {
        Self {
            name,
            description,
            instance: None,
            endpoints: Vec::new(),
        }
    }

    /// Makes it the service of one replica, whose name is the token `instance`.
    #[must_use]
    pub fn of_instance(mut self, instance: String) -> Self {
        self.instance = Some(instance);
        self
    }

    /// Adds an endpoint that decodes `Q` from JSON and responds with bytes of its own; an error is returned as code and
    /// text.
    #[must_use]
    pub fn raw_endpoint<Q, F, R>(mut self, name: &'static str, answer: F) -> Self
    where
        Q: serde::de::DeserializeOwned + Send,
        F: Fn(Q) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Result<Bytes, (usize, String)>> + Send + 'static,
    {
        let served: Answer = Arc::new(move |payload: Bytes| {
            let asked = serde_json::from_slice::<Q>(&payload).map(&answer);
            Box::pin(async move { asked.map_err(|error| (400, error.to_string()))?.await })
        });

        self.endpoints.push((name, served));
        self
    }

    /// Adds an endpoint that decodes `Q` from JSON and responds with `A` in JSON; an error is returned as code and
    /// text.
    #[must_use]
    pub fn endpoint<Q, A, F, R>(mut self, name: &'static str, answer: F) -> Self
    where
        Q: serde::de::DeserializeOwned + Send,
        A: serde::Serialize,
        F: Fn(Q) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Result<A, (usize, String)>> + Send + 'static,
    {
        let served: Answer = Arc::new(move |payload: Bytes| {
            let question = serde_json::from_slice::<Q>(if payload.is_empty() { b"{}" } else { &payload });
            let asked = question.map(&answer);
            Box::pin(async move {
                let answer = asked.map_err(|error| (400, error.to_string()))?.await?;
                serde_json::to_vec(&answer)
                    .map(Bytes::from)
                    .map_err(|error| (500, error.to_string()))
            })
        });

        self.endpoints.push((name, served));
        self
    }
}

/// A running service; dropping it ends it.
#[derive(Debug)]
pub struct ServiceHandle {
    service: Option<async_nats::service::Service>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    bus: Bus,
}

impl ServiceHandle {
    /// Stops accepting requests. Requests sent after this returns go to other replicas.
    pub async fn stop(mut self) {
        if let Some(service) = self.service.take()
            && let Err(error) = service.stop().await
        {
            tracing::debug!(%error, "failed to stop a service cleanly");
        }
        self.bus.until_heard().await;
    }
}

impl Drop for ServiceHandle {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Bus {
    /// Waits until the server has processed this connection's subscriptions so far; it processes commands in order. A
    /// server that is away receives them again when it is back.
    async fn until_heard(&self) {
        if tokio::time::timeout(HEARD, self.jetstream.query_account())
            .await
            .is_err()
        {
            tracing::debug!("subscriptions are not confirmed yet");
        }
    }

    /// Serves `spec` until the handle is dropped. The server knows the service when this returns.
    ///
    /// # Errors
    /// Returns the client's error text if the service cannot be announced.
    pub async fn serve(&self, spec: ServiceSpec) -> Result<ServiceHandle, String> {
        let service = self
            .client
            .service_builder()
            .description(spec.description)
            .start(format!("nexus-{}", spec.name), env!("CARGO_PKG_VERSION"))
            .await
            .map_err(|error| error.to_string())?;

        let group = match &spec.instance {
            None => service.group(format!("nexus.svc.{}", spec.name)),
            Some(instance) => service.group(format!("nexus.svc.{}.{instance}", spec.name)),
        };
        let mut tasks = Vec::new();
        for (name, answer) in spec.endpoints {
            let mut endpoint = group.endpoint(name).await.map_err(|error| error.to_string())?;
            tasks.push(tokio::spawn(async move {
                let slots = Arc::new(Semaphore::new(AT_ONCE));
                while let Some(request) = endpoint.next().await {
                    // The response is published with our rights, so it must not go to a subject that the requester may
                    // not publish to.
                    if let Some(reply) = request.message.reply.as_ref().filter(|reply| !is_inbox(reply)) {
                        tracing::debug!(endpoint = name, %reply, "request ignored: its reply subject is not an inbox");
                        continue;
                    }

                    let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
                        return;
                    };

                    let answer = Arc::clone(&answer);
                    tokio::spawn(async move {
                        let outcome = answer(request.message.payload.clone()).await;
                        let outcome =
                            outcome.map_err(|(code, status)| async_nats::service::error::Error { code, status });
                        if let Err(error) = request.respond(outcome).await {
                            tracing::debug!(endpoint = name, %error, "failed to send a reply");
                        }
                        drop(slot);
                    });
                }
            }));
        }

        self.until_heard().await;
        Ok(ServiceHandle {
            service: Some(service),
            tasks,
            bus: self.clone(),
        })
    }
}
