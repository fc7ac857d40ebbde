//! The table of the gates of all accounts of this process, and which accounts are stopped.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shared::clock::SharedClock;
use shared::model::dispatch::DeliveryContext;
use shared::model::event::DEFAULT_ACCOUNT;
use tokio::sync::watch;

use crate::account_gate::{AccountGate, CallAdmission, ChatPace, SendPace};
use crate::attempt::CallOutcome;

/// The gate of each account, which all partitions of the process share.
#[derive(Debug)]
pub struct GateTable {
    gates: Mutex<HashMap<String, AccountGate>>,
    /// Accounts whose token is refused, as `{channel}:{account}`.
    stopped: watch::Sender<BTreeSet<String>>,
    /// Time between two probes of a refused token.
    probe_every: Duration,
    clock: SharedClock,
}

/// Returns the name of the account of `target`: `{channel}:{account}`.
fn account_name(target: &DeliveryContext) -> String {
    let account = target.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT);
    format!("{}:{account}", target.channel)
}

/// Returns the chat and its rates; a chat without rates needs no name.
fn split_pace(pace: Option<ChatPace<'_>>) -> (&str, Option<SendPace>) {
    (pace.map_or("", |pace| pace.chat), pace.map(|pace| pace.pace))
}

impl GateTable {
    /// Creates the gates, all open. A refused token is probed once per `probe_every`.
    #[must_use]
    pub fn new(clock: SharedClock, probe_every: Duration) -> Self {
        Self {
            gates: Mutex::default(),
            stopped: watch::Sender::new(BTreeSet::new()),
            probe_every,
            clock,
        }
    }

    /// Asks for a call to `target` at `pace`.
    #[must_use]
    pub fn admit(&self, target: &DeliveryContext, pace: Option<ChatPace<'_>>) -> CallAdmission {
        let now = self.clock.monotonic();
        let (chat, pace) = split_pace(pace);
        let mut gates = self.lock();
        let gate = gates.entry(account_name(target)).or_default();
        gate.admit(chat, pace, self.probe_every, now)
    }

    /// Returns the time for which the account of `target` is still limited.
    #[must_use]
    pub fn limit_left(&self, target: &DeliveryContext) -> Option<Duration> {
        let now = self.clock.monotonic();
        self.lock().get(&account_name(target))?.limit_left(now)
    }

    /// Asks for a call to `target` at `pace` that no message waits for: now or not at all. A refused token is not probed
    /// by it.
    #[must_use]
    pub fn admit_spare(&self, target: &DeliveryContext, pace: Option<ChatPace<'_>>) -> bool {
        let now = self.clock.monotonic();
        let (chat, pace) = split_pace(pace);
        let mut gates = self.lock();
        let gate = gates.entry(account_name(target)).or_default();
        gate.admit_spare(chat, pace, now)
    }

    /// Notes the `outcome` of a call to `target`.
    pub fn note_outcome(&self, target: &DeliveryContext, outcome: &CallOutcome) {
        let now = self.clock.monotonic();
        self.change_gate(&account_name(target), |gate| {
            gate.note_outcome(outcome, self.probe_every, now);
        });
    }

    /// Stops the account `name`, `{channel}:{account}`: another replica found its token refused.
    pub fn stop(&self, name: &str) {
        let now = self.clock.monotonic();
        self.change_gate(name, |gate| gate.stop(self.probe_every, now));
    }

    /// Ends the stop of the account `name`, `{channel}:{account}`: another replica's call was accepted.
    pub fn resume(&self, name: &str) {
        self.change_gate(name, AccountGate::resume);
    }

    /// Changes the gate of the account `name`, and reports whether it is stopped then.
    fn change_gate(&self, name: &str, change: impl FnOnce(&mut AccountGate)) {
        let mut gates = self.lock();
        let gate = gates.entry(name.to_owned()).or_default();
        change(gate);

        // Told while the gates are locked, so that the last word is about the last change.
        let is_stopped = gate.is_stopped();
        self.stopped.send_if_modified(|stopped| {
            if is_stopped {
                stopped.insert(name.to_owned())
            } else {
                stopped.remove(name)
            }
        });
    }

    /// Returns the accounts whose token is refused, as `{channel}:{account}`, and each change of them.
    #[must_use]
    pub fn watch_stopped(&self) -> watch::Receiver<BTreeSet<String>> {
        self.stopped.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, AccountGate>> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
