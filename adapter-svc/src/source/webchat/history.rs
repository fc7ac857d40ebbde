//! What a page is told of the past: the threads of its visitor, and the end of one of them.
//!
//! Both come from the read model, by the visitor's own address: a page may name any thread, and is shown its own visitor's
//! alone.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::model::origin::WEBCHAT;
use shared::model::owner::Visitor;
use shared::projection::api::{HistoryReply, HistoryRequest, ThreadRow, ThreadsReply, ThreadsRequest, own_thread};
use shared::wire::headers::Headers;

use super::protocol::{ChatItem, ThreadItem};
use crate::gateway::GatewayState;

/// How long the read model may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How many events of a thread a page is sent.
const MAX_ITEMS: u32 = 100;
/// How many threads a page is sent.
const MAX_THREADS: u32 = 500;

/// Returns the thread that events of `visitor` name if their page names `thread`: none for the read model's name of the
/// conversation without a thread, and none for such a name of anyone else's. Those hold a colon, threads of pages never
/// do: a page that could name one would put its words among another conversation's in the read model.
#[must_use]
pub fn named_thread(visitor: &Visitor, thread: Option<String>) -> Option<String> {
    thread.filter(|thread| !thread.contains(':') && *thread != unnamed_thread(visitor))
}

/// Returns the read model's name of the conversation of `visitor` without a thread.
fn unnamed_thread(visitor: &Visitor) -> String {
    own_thread(WEBCHAT, &visitor.account, &visitor.id)
}

/// A part of a thread's history.
#[derive(Debug, Default)]
pub struct HistoryPage {
    /// Its items, the oldest first.
    pub items: Vec<ChatItem>,
    /// Whether there are older ones.
    pub more: bool,
}

/// Returns the end of `thread`, or of its items below the sequence `before`; empty if no hook-svc answers.
pub async fn read_page(
    gateway: &GatewayState,
    visitor: &Visitor,
    thread: Option<&str>,
    before: Option<u64>,
) -> HistoryPage {
    let question = HistoryRequest {
        channel: WEBCHAT.to_owned(),
        account: visitor.account.clone(),
        peer: visitor.id.clone(),
        thread: Some(thread.map_or_else(|| unnamed_thread(visitor), str::to_owned)),
        before,
        limit: Some(MAX_ITEMS),
    };

    let reply: Option<HistoryReply> = ask(gateway, "nexus.svc.events.history", &question).await;
    let Some(reply) = reply else {
        return HistoryPage::default();
    };

    HistoryPage {
        items: reply.events.into_iter().map(ChatItem::from).collect(),
        more: reply.more,
    }
}

/// Returns the threads of `visitor`, the one that was written in last first; none if no hook-svc answers.
pub async fn threads(gateway: &GatewayState, visitor: &Visitor) -> Option<Vec<ThreadItem>> {
    let question = ThreadsRequest {
        channel: WEBCHAT.to_owned(),
        account: visitor.account.clone(),
        peer: visitor.id.clone(),
        limit: Some(MAX_THREADS),
    };

    let reply: ThreadsReply = ask(gateway, "nexus.svc.events.threads", &question).await?;
    let item = |row: ThreadRow| ThreadItem {
        thread: named_thread(visitor, Some(row.thread)),
        text: row.excerpt,
        began_at: row.began_at,
        at: row.last_at,
    };

    Some(reply.threads.into_iter().map(item).collect())
}

async fn ask<Q, A>(gateway: &GatewayState, subject: &str, question: &Q) -> Option<A>
where
    Q: Serialize + Sync,
    A: DeserializeOwned,
{
    let answer = gateway
        .bus
        .request::<_, A>(subject, Headers::new(), question, ANSWER_WITHIN);

    match answer.await {
        Ok(reply) => Some(reply),
        Err(error) => {
            tracing::info!(%error, subject, "read model does not answer a chat page");
            None
        }
    }
}
