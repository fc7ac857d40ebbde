//! Reading of request bodies, within the limits for memory and time.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use shared::clock::{Clock, SystemClock, pause};
use shared::error_chain::describe_error;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::bodies::{BodyDeadline, BodyId, BodyMemory, NoRoom};
use super::client_address::ClientAddress;
use crate::error::RequestRejection;
use crate::listener::line::InHand;

/// Maximum memory of all requests in progress, in bytes.
const BUDGET_BYTES: usize = 64 * 1024 * 1024;
/// Additional memory that is counted for each request beside the text of its head and its body, in bytes.
const REQUEST_BYTES: usize = 8 * 1024;
/// Maximum length of an oversized body that is read and discarded, in bytes, so that its sender can read the
/// response.
const MAX_DISCARD_BYTES: usize = 16 * 1024 * 1024;
/// Initial capacity for a body, in bytes. It grows with the data that arrives, not with the announced length.
const FIRST_BYTES: usize = 16 * 1024;

/// The reader of bodies.
#[derive(Debug, Clone)]
pub struct BodyReader {
    table: Arc<Mutex<Table>>,
    /// Permits of requests in progress.
    places: Arc<Semaphore>,
}

#[derive(Debug)]
struct Table {
    bodies: BodyMemory,
    /// Wakes the reader of a body that is given up.
    ends: HashMap<BodyId, Arc<Notify>>,
}

/// A complete body, with its request's permit.
#[derive(Debug)]
pub struct ReceivedBody {
    bytes: Bytes,
    _place: OwnedSemaphorePermit,
    _room: Room,
}

impl std::ops::Deref for ReceivedBody {
    type Target = Bytes;
    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

impl BodyReader {
    /// Creates a reception with `places` permits for requests in progress.
    #[must_use]
    pub fn new(places: usize) -> Self {
        let table = Table {
            bodies: BodyMemory::new(BUDGET_BYTES),
            ends: HashMap::new(),
        };
        Self {
            table: Arc::new(Mutex::new(table)),
            places: Arc::new(Semaphore::new(places)),
        }
    }

    /// Takes a permit for a request in progress.
    ///
    /// # Errors
    /// Returns [`RequestRejection::Overloaded`] if there is none.
    pub fn take_place(&self) -> Result<OwnedSemaphorePermit, RequestRejection> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        place.map_err(|_| RequestRejection::Overloaded)
    }

    /// Reads the whole body of a request, of at most `max` bytes, then takes a permit for it.
    ///
    /// # Errors
    /// Returns [`RequestRejection::TooLarge`], [`RequestRejection::BrokenBody`], [`RequestRejection::SlowBody`], or [`RequestRejection::Overloaded`] if
    /// there is no memory or no permit for it.
    pub async fn read_body(&self, parts: &Parts, body: Body, max: usize) -> Result<ReceivedBody, RequestRejection> {
        let receiving = parts.extensions.get().map(InHand::mark_receiving);
        let client = parts.extensions.get::<ClientAddress>();
        let from = client.map_or(IpAddr::from([0; 4]), |ClientAddress(address)| *address);
        let room = self.new_room(from);
        room.reserve_more(REQUEST_BYTES + head_bytes(&parts.headers))?;

        let bytes = read(&parts.headers, body, max, &room).await?;
        room.mark_arrived();
        // From here on the connection is not ended under pressure.
        drop(receiving);

        Ok(ReceivedBody {
            bytes,
            _place: self.take_place()?,
            _room: room,
        })
    }

    fn lock_table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new_room(&self, from: IpAddr) -> Room {
        let mut table = self.lock_table();
        let id = table.bodies.open(from);
        let end = Arc::new(Notify::new());
        table.ends.insert(id, Arc::clone(&end));
        let reception = self.clone();
        Room { reception, id, end }
    }
}

/// The memory of one request, which is released on drop.
#[derive(Debug)]
struct Room {
    reception: BodyReader,
    id: BodyId,
    end: Arc<Notify>,
}

impl Room {
    fn reserve_more(&self, more: usize) -> Result<(), RequestRejection> {
        let mut table = self.reception.lock_table();
        let given_up = table
            .bodies
            .reserve_more(self.id, more)
            .map_err(|NoRoom| RequestRejection::Overloaded)?;
        for id in given_up {
            if let Some(end) = table.ends.remove(&id) {
                end.notify_one();
            }
        }
        metrics::gauge!("nexus_adapter_body_bytes").set(table.bodies.bytes() as f64);
        Ok(())
    }

    fn mark_arrived(&self) {
        self.reception.lock_table().bodies.mark_arrived(self.id);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut table = self.reception.lock_table();
        table.bodies.close(self.id);
        table.ends.remove(&self.id);
        metrics::gauge!("nexus_adapter_body_bytes").set(table.bodies.bytes() as f64);
    }
}

async fn read(headers: &HeaderMap, body: Body, max: usize, room: &Room) -> Result<Bytes, RequestRejection> {
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let mut chunks = body.into_data_stream();
    // The announced length is only a hint: a client may announce anything.
    let mut whole = BytesMut::with_capacity(announced.unwrap_or(0).min(FIRST_BYTES));
    let mut read = 0_usize;

    let mut arrival = BodyDeadline::start_at(SystemClock.monotonic());

    loop {
        let chunk = tokio::select! {
            chunk = chunks.next() => chunk,
            () = room.end.notified() => return Err(RequestRejection::Overloaded),
            () = pause(arrival.time_left(SystemClock.monotonic())) => return Err(RequestRejection::SlowBody),
        };
        let Some(chunk) = chunk else {
            break;
        };

        let chunk = chunk.map_err(|error| RequestRejection::BrokenBody(describe_error(&error)))?;
        arrival.note_bytes(chunk.len(), SystemClock.monotonic());
        read = read.saturating_add(chunk.len());

        // Reserved piece by piece, so that an announcement alone takes no memory.
        if read <= max {
            room.reserve_more(chunk.len())?;
            whole.extend_from_slice(&chunk);
        } else if read > MAX_DISCARD_BYTES {
            break;
        } else {
            whole = BytesMut::new();
        }
    }

    // The rest of an oversized body was read only so that its sender can read this response.
    if read > max {
        Err(RequestRejection::TooLarge { max })
    } else {
        Ok(whole.freeze())
    }
}

/// Returns the length of the text of a request's head, in bytes.
fn head_bytes(headers: &HeaderMap) -> usize {
    headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum()
}
