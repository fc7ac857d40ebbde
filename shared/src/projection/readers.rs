//! Connections that only read: a few are kept open, separate from the writer's.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;

use super::schema;

/// Number of connections kept open; there may be more queries at the same time.
const KEPT_OPEN: usize = 4;

/// Pool of read-only connections.
#[derive(Debug)]
pub(super) struct ReaderPool {
    path: PathBuf,
    generation: Arc<AtomicU64>,
    idle: Mutex<IdleReaders>,
}

#[derive(Debug, Default)]
struct IdleReaders {
    generation: u64,
    connections: Vec<Connection>,
}

impl ReaderPool {
    pub(super) fn new(path: PathBuf, generation: Arc<AtomicU64>) -> Self {
        Self {
            path,
            generation,
            idle: Mutex::new(IdleReaders::default()),
        }
    }

    /// Runs `ask` on a connection that sees everything committed so far.
    pub(super) fn with<T>(
        &self,
        ask: impl FnOnce(&Connection) -> Result<T, rusqlite::Error>,
    ) -> Result<T, rusqlite::Error> {
        let generation = self.generation.load(Ordering::Acquire);
        let connection = match self.take(generation) {
            Some(connection) => connection,
            None => schema::open_reader(&self.path)?,
        };

        let answer = ask(&connection)?;
        self.give_back(generation, connection);
        Ok(answer)
    }

    fn take(&self, generation: u64) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.generation != generation {
            // The file was rebuilt: these connections still read the removed one.
            *idle = IdleReaders {
                generation,
                connections: Vec::new(),
            };
        }
        idle.connections.pop()
    }

    fn give_back(&self, generation: u64, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.generation == generation && idle.connections.len() < KEPT_OPEN {
            idle.connections.push(connection);
        }
    }
}
