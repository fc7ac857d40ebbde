//! `nexus.svc.system.status`: what an operator looks at, read from streams and buckets, so that operators need no right on
//! them. It says what is there, and judges nothing.

mod accounts;
mod server;
mod streams;
mod work;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use shared::bus::ServiceSpec;
use shared::wire::operator::status::{AskStatus, Known, StatusPart, SystemStatus};
use tokio::sync::Semaphore;

use super::OperatorContext;

/// Maximum number of requests that are worked on at once: each asks the server some hundred times.
const AT_ONCE: usize = 2;

/// Returns the service over `context`.
#[must_use]
pub fn service_spec(context: &OperatorContext) -> ServiceSpec {
    let (context, slots) = (context.clone(), Arc::new(Semaphore::new(AT_ONCE)));
    ServiceSpec::new("system", "status of the whole system").endpoint("status", move |question: AskStatus| {
        let (context, slots) = (context.clone(), Arc::clone(&slots));
        async move {
            let _slot = slots.acquire().await.map_err(|error| (503_usize, error.to_string()))?;
            Ok(read_status(&context, &question).await)
        }
    })
}

/// Returns the parts of the status that `question` wants.
#[must_use]
pub fn read_status<'a>(context: &'a OperatorContext, question: &'a AskStatus) -> BoxFuture<'a, SystemStatus> {
    Box::pin(read_parts(context, question))
}

async fn read_parts(context: &OperatorContext, question: &AskStatus) -> SystemStatus {
    let wants = |part: StatusPart| question.parts.contains(&part);
    let bus = &context.bus;
    let (server, work, streams, accounts) = tokio::join!(
        async {
            if wants(StatusPart::Server) {
                Some(server::read(context).await)
            } else {
                None
            }
        },
        async {
            if wants(StatusPart::Work) {
                Some(work::read(context).await)
            } else {
                None
            }
        },
        async {
            match wants(StatusPart::Streams) {
                true => Some(Known::from(streams::read(bus, question.sessions).await)),
                false => None,
            }
        },
        async {
            match wants(StatusPart::Accounts) {
                true => Some(Known::from(accounts::read(bus).await)),
                false => None,
            }
        },
    );

    SystemStatus {
        at: context.clock.now(),
        server,
        work,
        streams,
        accounts,
    }
}

#[cfg(test)]
mod tests;
