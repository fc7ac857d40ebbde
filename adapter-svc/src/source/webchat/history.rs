//! History that a page is sent: the threads of its visitor, and the end of one of them.
//!
//! Both come from the read model, by the visitor's own address. A page may name any thread, but is shown only those of
//! its own visitor.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::model::origin::WEBCHAT;
use shared::model::owner::ChatVisitor;
use shared::projection::api::{HistoryReply, HistoryRequest, ThreadRow, ThreadsReply, ThreadsRequest, own_thread};

use super::protocol::{ChatItem, ThreadItem};
use crate::gateway::GatewayState;

/// Longest time that the read model may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Largest number of events of a thread that a page is sent at once.
const MAX_ITEMS: u32 = 100;
/// Largest number of threads that a page is sent.
const MAX_THREADS: u32 = 500;

/// Returns the thread that events of `visitor` name if their page names `thread`: `None` for the read model's name of
/// the conversation without a thread, and for such a name of another conversation. Those contain a colon, threads of
/// pages never do: a page that could name one would put its words into another conversation of the read model.
#[must_use]
pub fn named_thread(visitor: &ChatVisitor, thread: Option<String>) -> Option<String> {
    thread.filter(|thread| !thread.contains(':') && *thread != unnamed_thread(visitor))
}

/// Returns the read model's name of the conversation of `visitor` without a thread.
fn unnamed_thread(visitor: &ChatVisitor) -> String {
    own_thread(WEBCHAT, &visitor.account, &visitor.id)
}

/// One page of a thread's history.
#[derive(Debug, Default)]
pub struct HistoryPage {
    /// Items of this page, oldest first.
    pub items: Vec<ChatItem>,
    /// Whether the thread has older items.
    pub more: bool,
}

/// Returns the end of `thread`, or of its items below the sequence `before`; empty if no hook-svc answers.
pub async fn read_page(
    gateway: &GatewayState,
    visitor: &ChatVisitor,
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

/// Returns the threads of `visitor`, most recently written first, or `None` if no hook-svc answers.
pub async fn threads(gateway: &GatewayState, visitor: &ChatVisitor) -> Option<Vec<ThreadItem>> {
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
    let answer = gateway.bus.ask::<_, A>(subject, question, ANSWER_WITHIN);

    match answer.await {
        Ok(reply) => Some(reply),
        Err(error) => {
            tracing::info!(%error, subject, "read model did not answer a chat page");
            None
        }
    }
}
