//! A connection's entry in the table of connections, and the reports of its requests.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use shared::clock::{Clock, SystemClock};
use tokio::sync::Notify;

use super::connections::{
    ConnectionAdmission, ConnectionId, ConnectionLimits, ConnectionTable, RequestId, RequestProgress,
};

/// The table of connections, shared by all of them. Sockets wait in real time, and so does the table.
#[derive(Debug, Clone)]
pub struct SharedConnections(Arc<Mutex<Table>>);

#[derive(Debug)]
struct Table {
    connections: ConnectionTable,
    /// Wakes a connection that must end.
    ends: HashMap<ConnectionId, Arc<Notify>>,
}

impl Table {
    fn end_connection(&mut self, id: ConnectionId, why: &'static str) {
        if let Some(end) = self.ends.remove(&id) {
            metrics::counter!("nexus_adapter_connections_ended_total", "reason" => why).increment(1);
            end.notify_one();
        }
    }

    fn count(&self) {
        metrics::gauge!("nexus_adapter_connections").set(self.connections.len() as f64);
    }
}

impl SharedConnections {
    /// Creates an empty table.
    #[must_use]
    pub fn new(limits: ConnectionLimits) -> Self {
        Self(Arc::new(Mutex::new(Table {
            connections: ConnectionTable::new(limits),
            ends: HashMap::new(),
        })))
    }

    fn lock_table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection, if necessary by ending another one. Returns `None` if there is no place.
    pub fn admit_connection(&self, from: IpAddr, trusted: bool) -> Option<OpenConnection> {
        let mut table = self.lock_table();
        match table
            .connections
            .admit_connection(from, trusted, SystemClock.monotonic())
        {
            ConnectionAdmission::Admitted { id, instead_of } => {
                if let Some(evicted) = instead_of {
                    table.end_connection(evicted, "pressure");
                }
                let end = Arc::new(Notify::new());
                table.ends.insert(id, Arc::clone(&end));
                table.count();
                let lines = self.clone();

                Some(OpenConnection { lines, id, end })
            }
            ConnectionAdmission::Full => {
                metrics::counter!("nexus_adapter_connections_ended_total", "reason" => "full").increment(1);
                None
            }
        }
    }

    /// Ends the connection that is first to be ended. Returns whether there was one.
    #[must_use]
    pub fn evict_connection(&self) -> bool {
        let mut table = self.lock_table();
        let victim = table.connections.evict_connection();
        if let Some(victim) = victim {
            table.end_connection(victim, "pressure");
        }
        victim.is_some()
    }
}

/// One connection; it is removed from the table on drop.
#[derive(Debug)]
pub struct OpenConnection {
    lines: SharedConnections,
    id: ConnectionId,
    end: Arc<Notify>,
}

impl OpenConnection {
    /// Waits until the connection must be ended for another one.
    pub async fn wait_ended(&self) {
        self.end.notified().await;
    }

    /// Returns the time by which the connection must make progress; see [`ConnectionTable::connection_deadline`].
    #[must_use]
    pub fn connection_deadline(&self) -> Option<Instant> {
        self.lines.lock_table().connections.connection_deadline(self.id)
    }

    /// Counts a connection that ended because its client was late.
    pub fn count_late(&self) {
        self.lines.lock_table().end_connection(self.id, "late");
    }

    /// Returns the source of [`InHand`] values for this connection's requests.
    pub fn new_requests(&self) -> ConnectionRequests {
        ConnectionRequests {
            lines: self.lines.clone(),
            connection: self.id,
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut table = self.lines.lock_table();
        table.connections.remove(self.id);
        table.ends.remove(&self.id);
        table.count();
    }
}

/// The requests of one connection.
#[derive(Debug, Clone)]
pub struct ConnectionRequests {
    lines: SharedConnections,
    connection: ConnectionId,
}

impl ConnectionRequests {
    /// Records that the head of a request is complete.
    #[must_use]
    pub fn begin_request(&self) -> InHand {
        let request = self
            .lines
            .lock_table()
            .connections
            .begin_request(self.connection, SystemClock.monotonic());
        InHand(Arc::new(Request {
            of: self.clone(),
            request,
        }))
    }
}

/// A request from its complete head to the end of its response; handlers find it in the request's extensions.
#[derive(Debug, Clone)]
pub struct InHand(Arc<Request>);

#[derive(Debug)]
struct Request {
    of: ConnectionRequests,
    request: RequestId,
}

impl InHand {
    fn set_progress(&self, progress: RequestProgress) {
        let Request { of, request } = &*self.0;
        let now = SystemClock.monotonic();
        of.lines
            .lock_table()
            .connections
            .advance_request(of.connection, *request, progress, now);
    }

    /// Records that the body is arriving, until the returned value is dropped.
    #[must_use]
    pub fn mark_receiving(&self) -> ReceivingRequest {
        self.set_progress(RequestProgress::Receiving);
        ReceivingRequest(self.clone())
    }

    /// Records that the response is being sent. Returns `body`, wrapped so that its end is recorded.
    pub fn track_answer(self, body: Body) -> Body {
        self.set_progress(RequestProgress::Answering);
        Body::new(Answer { body, _in_hand: self })
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let now = SystemClock.monotonic();
        let mut table = self.of.lines.lock_table();
        table.connections.finish_request(self.of.connection, self.request, now);
    }
}

/// A request whose body is arriving.
#[derive(Debug)]
pub struct ReceivingRequest(InHand);

impl Drop for ReceivingRequest {
    fn drop(&mut self) {
        self.0.set_progress(RequestProgress::Working);
    }
}

/// The body of a response; its request ends when the body is dropped.
struct Answer {
    body: Body,
    _in_hand: InHand,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
