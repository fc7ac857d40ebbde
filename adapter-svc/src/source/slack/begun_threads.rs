//! Threads that began with a message to an account, as all replicas know them: later messages of people there need no mention.
//!
//! Slack's payload of an answer in a thread names the author of the thread's first message, and does not have its text. So the
//! replica that takes such a first message notes its thread in KV `threads` before the event is stored, and every replica
//! follows the bucket: a later message costs a look into memory, whichever replica takes it. A note is worth no message: if
//! it cannot be written, other replicas take messages there for other people's talk, until one that knows the thread has
//! written it with a later message.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shared::bus::{Bus, Kv, KvEvent};
use shared::clock::SharedClock;
use shared::model::channel::BegunThread;
use shared::model::event::Event;
use shared::process::ShutdownSignal;
use shared::wire::subject::thread_key;
use shared::wire::topology::buckets;

use super::threads::begun_by;
use crate::hourly_allowance::HourlyAllowance;

/// Time for which a thread is known.
const KEPT: Duration = Duration::from_hours(14 * 24);
/// The same, in milliseconds: the age from which a message begins no thread any more, as when a history is read.
const KEPT_MS: i64 = 14 * 24 * 3_600_000;
/// Maximum time for a note: Slack waits for three seconds in all.
const NOTE_WITHIN: Duration = Duration::from_millis(300);
/// Maximum number of notes that a replica writes for an account in an hour, so that no sender fills the bucket.
const MAX_NOTES: u32 = 300;
/// Maximum number of threads that a replica knows. Those that began first are forgotten first.
const MAX_KNOWN: usize = 100_000;

/// The threads that began with a message to an account. Clones are the same.
#[derive(Debug, Clone)]
pub struct BegunThreads {
    notes: Kv<BegunThread>,
    clock: SharedClock,
    known: Arc<Mutex<KnownThreads>>,
}

/// The threads that this replica knows.
#[derive(Debug, Default)]
struct KnownThreads {
    /// Whether each is noted in the bucket, by its key. Keys are in the order of their threads.
    noted: BTreeMap<String, bool>,
    /// Notes of this replica, by account.
    written: BTreeMap<String, HourlyAllowance>,
}

impl KnownThreads {
    fn add(&mut self, key: String, is_noted: bool) {
        self.noted.insert(key, is_noted);
        if self.noted.len() > MAX_KNOWN {
            self.noted.pop_first();
        }
    }
}

impl BegunThreads {
    /// Returns the threads in the bucket on `bus`, once [`BegunThreads::follow`] runs.
    #[must_use]
    pub fn new(bus: &Bus, clock: SharedClock) -> Self {
        Self {
            notes: bus.kv(buckets::THREADS),
            clock,
            known: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, KnownThreads> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the notes of all replicas until `shutdown`.
    pub async fn follow(self, shutdown: ShutdownSignal) {
        let mut watch = self.notes.watch_all();
        loop {
            let told = tokio::select! {
                told = watch.next() => told,
                () = shutdown.requested() => return,
            };
            match told {
                KvEvent::Put { key, .. } => self.lock().add(key, true),
                KvEvent::Gone { key, .. } => {
                    self.lock().noted.remove(&key);
                }
                // Of a restored bucket the keys that it lacks follow as gone.
                KvEvent::Anew | KvEvent::Current | KvEvent::Bad { .. } => {}
            }
        }
    }

    /// Returns whether `event` is in a thread that began with a message to its account.
    #[must_use]
    pub fn knows(&self, event: &Event) -> bool {
        key_of(event).is_some_and(|key| self.lock().noted.contains_key(&key))
    }

    /// Remembers in this process the thread that begins with `event`, which the account's settings have admitted, if one does.
    /// Returns the key of the thread of `event` if it is known and still to be noted.
    pub fn remember(&self, event: &Event) -> Option<String> {
        let key = key_of(event)?;
        let begins = begun_by(event) && self.clock.now().since(event.timestamp) < KEPT_MS;
        let mut known = self.lock();
        match known.noted.get(&key).copied() {
            Some(is_noted) => (!is_noted).then_some(key),
            None if begins => {
                known.add(key.clone(), false);
                Some(key)
            }
            None => None,
        }
    }

    /// Notes for all replicas the thread that begins with `event`, if one does, or the one in which it is, if that could not be
    /// noted before.
    pub async fn note(&self, event: &Event) {
        let Some(key) = self.remember(event) else { return };
        if !self.may_write(event.account()) {
            return;
        }

        let note = BegunThread {
            noted_at: self.clock.now(),
        };
        let written = tokio::time::timeout(NOTE_WITHIN, self.notes.put_ttl(&key, &note, KEPT)).await;
        match written {
            Ok(Ok(_revision)) => self.lock().add(key, true),
            Ok(Err(error)) => tracing::debug!(account = event.account(), %error, "failed to note a thread"),
            Err(_elapsed) => tracing::debug!(account = event.account(), "failed to note a thread in time"),
        }
    }

    /// Returns whether this replica may write a further note for `account`, and counts it.
    fn may_write(&self, account: &str) -> bool {
        let now = self.clock.monotonic();
        let mut known = self.lock();
        let written = known.written.entry(account.to_owned()).or_default();
        let may = !written.is_spent(MAX_NOTES, now);
        if may {
            written.spend(now);
        }
        may
    }
}

/// Returns the key of the thread of `event`.
fn key_of(event: &Event) -> Option<String> {
    let thread = event.thread_id.as_deref()?;
    Some(thread_key(&event.channel, event.account(), &event.peer.id, thread))
}
