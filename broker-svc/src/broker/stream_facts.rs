//! One broker's knowledge of the streams that it reads, and how far it has consumed them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use shared::bus::position::{told_degraded, told_sound};
use shared::bus::{Bus, MarkedStream, StreamWitness, WitnessError};
use shared::model::position::StreamLineage;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::topology::streams::DISPATCHES;

use crate::queue::settled::SequenceSet;

/// Name of the sessions' cursors in reports that they are void.
const CURSORS: &str = "cursors of sessions";

/// Facts about the streams that hold while one connection lasts.
#[derive(Debug)]
pub struct StreamEra {
    /// Number of the era, counted from 1.
    pub number: u64,
    /// Number of the connection over which the facts were read.
    connection: u64,
    /// Incarnation of `DISPATCHES`.
    pub incarnation: String,
    /// Former incarnations of `DISPATCHES`, if it was restored.
    pub lineage: StreamLineage,
    /// Sequence of the first message in `DISPATCHES`.
    pub first: u64,
    /// Time until which turns may have run that the ledger does not know; none = it knows all turns.
    pub doubt_until: Option<UnixMillis>,
}

/// One broker's knowledge of the streams that it reads, and how far it has consumed them.
#[derive(Debug)]
pub struct StreamFacts {
    bus: Bus,
    witness: StreamWitness,
    era: tokio::sync::Mutex<Option<Arc<StreamEra>>>,
    /// Sessions whose cursor was void at the last look, and that have not run since.
    void_cursors: Mutex<HashSet<SessionRef>>,
    settled: Mutex<SequenceSet>,
}

impl StreamFacts {
    /// Returns the knowledge of a broker that starts: none.
    pub(super) fn new(bus: &Bus) -> Self {
        Self {
            bus: bus.clone(),
            witness: StreamWitness::new(bus, MarkedStream::Dispatches),
            era: tokio::sync::Mutex::default(),
            void_cursors: Mutex::default(),
            settled: Mutex::default(),
        }
    }

    /// Returns the facts that hold at `now`. They are read again by the first caller after a new connection, or after a
    /// restore was detected that lost ledger records; `forget` is then called before they count, because the facts
    /// kept of the former streams may count messages that are gone.
    ///
    /// # Errors
    /// Returns [`WitnessError`] if the leader cannot be read.
    pub(super) async fn current_era(
        &self,
        now: UnixMillis,
        forget: impl FnOnce() + Send,
    ) -> Result<Arc<StreamEra>, WitnessError> {
        let mut era = self.era.lock().await;
        // Read before the stream, so that a connection that ends meanwhile starts another era.
        let connection = self.bus.connection_number();
        let doubt_until = self.witness.doubt_until(now).await?;
        let stands = |known: &&Arc<StreamEra>| known.connection == connection && known.doubt_until == doubt_until;

        if let Some(known) = era.as_ref().filter(stands) {
            return Ok(Arc::clone(known));
        }

        let info = self.bus.stream_info(DISPATCHES).await?;
        forget();
        self.with_settled(|settled| *settled = SequenceSet::default());

        let found = Arc::new(StreamEra {
            number: era.as_ref().map_or(0, |known| known.number) + 1,
            connection,
            incarnation: info.incarnation,
            lineage: info.lineage,
            first: info.state.first,
            doubt_until,
        });

        *era = Some(Arc::clone(&found));
        Ok(found)
    }

    /// Returns the witness of the ledger.
    #[must_use]
    pub fn ledger_witness(&self) -> StreamWitness {
        self.witness.clone()
    }

    /// Notes that the cursor of `session` is void, for the reason `why`; `None` means that it holds or the ledger
    /// decided.
    pub fn note_cursor(&self, session: &SessionRef, why: Option<&str>) {
        let mut void = self.void_cursors.lock().unwrap_or_else(PoisonError::into_inner);
        match why {
            Some(why) => {
                void.insert(session.clone());
                let sentence = format!("the cursors of {} sessions are void: {why}", void.len());
                told_degraded(CURSORS, sentence);
            }
            None if void.remove(session) && void.is_empty() => told_sound(CURSORS),
            None => {}
        }
    }

    /// Calls `act` with the sequences of `DISPATCHES` that this broker has consumed, which the sweeper skips.
    pub fn with_settled<T>(&self, act: impl FnOnce(&mut SequenceSet) -> T) -> T {
        act(&mut self.settled.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
