//! Work that a few replicas of a service do: as many as there are slots, each of which one replica holds by a lease in
//! KV `leases` (key `{group}.{slot}`, time to live 3 s).
//!
//! A slot says which replica shall do the work, not which may: the work must bear a second holder for a moment.
//! Replicas are numbered by the end of their names (`hook-svc-3`); low numbers are preferred, because they are the last
//! ones to be removed when a service is scaled down. A replica with a low number prepares itself and then takes the
//! slot of the holder with the highest number.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::clock::SharedClock;
use crate::wire::session_mark::LeaseRecord;
use crate::wire::topology::buckets;

use super::connect::Bus;
use super::error::CasError;
use super::kv::{Kv, KvEvent};

/// Time to live of a slot without a refresh; whole seconds (the server's unit).
const TTL: Duration = Duration::from_secs(3);

/// Silence after which a holder counts as gone although the end of its lease was not reported.
const SILENCE: Duration = Duration::from_secs(6);

/// Time for which a free slot is left to each replica with a lower number.
const COURTESY: Duration = Duration::from_secs(1);

/// Most replicas with a lower number for which a replica waits.
const MOST_COURTESIES: u32 = 5;

/// Part of a replica in the work of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotRole {
    /// The replica holds a slot.
    Holder,
    /// The replica prepares itself, because it will take the slot of a replica with a higher number.
    Heir,
    /// Other replicas hold the slots.
    Spare,
}

/// Holder of a slot, as the watch has last told.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SlotHolder {
    name: String,
    told_at: Instant,
}

/// Next step of a replica without a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotStep {
    /// Take the free slot.
    Take(usize),
    /// Take the slot from its holder.
    TakeOver(usize),
    /// Prepare for taking a slot from its holder.
    Prepare,
    /// Leave the slots to others.
    Leave,
}

/// Slots as the watch has told.
#[derive(Debug, Default)]
struct SlotsView {
    holders: BTreeMap<usize, SlotHolder>,
    /// Time since which each slot without a holder is free; absent = since before the view began.
    free_since: BTreeMap<usize, Instant>,
    /// Whether the watch has told every entry that existed.
    is_complete: bool,
}

/// The slots of one group, as one replica sees them.
#[derive(Debug)]
pub struct SlotLeases {
    leases: Kv<LeaseRecord>,
    group: &'static str,
    instance: String,
    slots: usize,
    clock: SharedClock,
    view: Arc<Mutex<SlotsView>>,
    holders: watch::Receiver<Vec<String>>,
    changed: watch::Receiver<u64>,
    /// Slot and revision of the lease that this replica holds.
    held: Option<(usize, u64)>,
    begun: Instant,
    watching: JoinHandle<()>,
}

impl SlotLeases {
    /// Watches the `slots` slots of `group` for the replica `instance`, which holds none yet.
    #[must_use]
    pub fn watch_slots(bus: &Bus, group: &'static str, instance: String, slots: usize, clock: SharedClock) -> Self {
        let leases: Kv<LeaseRecord> = bus.kv(buckets::LEASES);
        let view = Arc::<Mutex<SlotsView>>::default();
        let (told_holders, holders) = watch::channel(Vec::new());
        let (told_changed, changed) = watch::channel(0);
        let watching = tokio::spawn(follow_slots(
            leases.clone(),
            (format!("{group}."), slots),
            Arc::clone(&view),
            Arc::clone(&clock),
            (told_holders, told_changed),
        ));

        Self {
            leases,
            group,
            instance,
            slots,
            begun: clock.monotonic(),
            clock,
            view,
            holders,
            changed,
            held: None,
            watching,
        }
    }

    /// Returns the names of the replicas that hold slots, in the order of the slots; a holder that is silent stays
    /// until its lease ends.
    #[must_use]
    pub fn holders(&self) -> watch::Receiver<Vec<String>> {
        self.holders.clone()
    }

    /// Waits for the next change of the holders.
    pub async fn wait_changed(&mut self) {
        if self.changed.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the watch has told every slot that existed.
    pub async fn wait_complete(&mut self) {
        while !lock(&self.view).is_complete {
            self.wait_changed().await;
        }
    }

    /// Refreshes this replica's slot, or takes one that is due to it. `is_prepared`: whether it could do the work at
    /// once. To be called about every 0.7 s, and when [`Self::wait_changed`] returns.
    ///
    /// # Errors
    /// Returns [`CasError`] if the bucket cannot be asked; the role is then unknown.
    pub async fn refresh(&mut self, is_prepared: bool) -> Result<SlotRole, CasError> {
        if let Some((slot, revision)) = self.held.take() {
            match self.write(slot, revision).await {
                Ok(revision) => self.held = Some((slot, revision)),
                // Another replica has taken it, or its lease has ended.
                Err(CasError::Conflict { .. }) => {}
                Err(error) => {
                    // The lease may still be ours: the next attempt tells.
                    self.held = Some((slot, revision));
                    return Err(error);
                }
            }
        }

        if self.held.is_some() {
            return Ok(SlotRole::Holder);
        }

        let step = {
            let view = lock(&self.view);
            let now = self.clock.monotonic();
            view.next_step(&self.instance, self.slots, is_prepared, (self.begun, now))
        };
        match step {
            SlotStep::Leave => Ok(SlotRole::Spare),
            SlotStep::Prepare => Ok(SlotRole::Heir),
            SlotStep::Take(slot) | SlotStep::TakeOver(slot) => {
                self.take(slot, matches!(step, SlotStep::TakeOver(_))).await?;
                let missed = if is_prepared { SlotRole::Heir } else { SlotRole::Spare };
                Ok(if self.held.is_some() { SlotRole::Holder } else { missed })
            }
        }
    }

    async fn take(&mut self, slot: usize, from_holder: bool) -> Result<(), CasError> {
        let (lease, revision) = self.leases.find(&self.key(slot)).await?;
        // Only the replica of which the view has told may be followed while it holds the slot.
        let is_due = match (&lease, lock(&self.view).holders.get(&slot)) {
            (None, _) => true,
            (Some(lease), Some(told)) => {
                let is_silent = is_silent(told, self.clock.monotonic());
                lease.holder == told.name && (from_holder || is_silent)
            }
            (Some(lease), None) => lease.holder == self.instance,
        };

        if is_due {
            match self.write(slot, revision).await {
                Ok(revision) => self.held = Some((slot, revision)),
                Err(CasError::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }

        Ok(())
    }

    /// Gives the slot back, if this replica holds one; if that fails, its lease ends by itself.
    pub async fn give_back(&mut self) {
        let Some((slot, revision)) = self.held.take() else {
            return;
        };
        if let Err(error) = self.leases.delete(&self.key(slot), Some(revision)).await {
            tracing::debug!(group = self.group, slot, %error, "slot was not given back");
        }
    }

    async fn write(&self, slot: usize, revision: u64) -> Result<u64, CasError> {
        let record = LeaseRecord::held_by(self.instance.clone());
        let key = self.key(slot);
        match revision {
            0 => self.leases.create_ttl(&key, &record, TTL).await,
            revision => self.leases.update_ttl(&key, &record, revision, TTL).await,
        }
    }

    fn key(&self, slot: usize) -> String {
        format!("{}.{slot}", self.group)
    }
}

impl Drop for SlotLeases {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

impl SlotsView {
    /// Applies what the watch has told. Returns whether the holders have changed, or are known for the first time.
    fn apply(&mut self, event: KvEvent<LeaseRecord>, slot_of: impl Fn(&str) -> Option<usize>, now: Instant) -> bool {
        match event {
            KvEvent::Put { key, value, .. } => {
                let Some(slot) = slot_of(&key) else { return false };
                self.free_since.remove(&slot);
                let held = SlotHolder {
                    name: value.holder,
                    told_at: now,
                };
                let is_same = |before: &SlotHolder| before.name == held.name;
                let is_news = !self.holders.get(&slot).is_some_and(is_same);
                self.holders.insert(slot, held);
                is_news
            }
            KvEvent::Gone { key, .. } | KvEvent::Bad { key, .. } => {
                let Some(slot) = slot_of(&key) else { return false };
                let is_news = self.holders.remove(&slot).is_some();
                if is_news {
                    self.free_since.insert(slot, now);
                }
                is_news
            }
            // Keys that no longer exist are reported as gone afterwards.
            KvEvent::Anew => false,
            // A waiting caller must hear of it even if the last holder was told before.
            KvEvent::Current => !std::mem::replace(&mut self.is_complete, true),
        }
    }

    fn holder_names(&self) -> Vec<String> {
        self.holders.values().map(|held| held.name.clone()).collect()
    }

    /// Returns the next step of the replica `me`, which holds none of the `slots`. It has watched since `begun`.
    fn next_step(&self, me: &str, slots: usize, is_prepared: bool, (begun, now): (Instant, Instant)) -> SlotStep {
        if !self.is_complete {
            return SlotStep::Leave;
        }

        // A replica that has started again under its name goes on where it was.
        if let Some((slot, _)) = self.holders.iter().find(|(_, held)| held.name == me) {
            return SlotStep::TakeOver(*slot);
        }

        let number = number_of(me);
        let is_held = |slot: &usize| self.holders.get(slot).is_some_and(|held| !is_silent(held, now));
        if let Some(free) = (0..slots).find(|slot| !is_held(slot)) {
            let since = self.free_since.get(&free).copied().unwrap_or(begun);
            let is_mine = now.saturating_duration_since(since) >= courtesy(number, slots);
            return if is_mine { SlotStep::Take(free) } else { SlotStep::Leave };
        }

        // Only the replicas that are preferred for the slots displace a holder.
        let Some(number) = number.filter(|number| (*number as usize) < slots) else {
            return SlotStep::Leave;
        };
        let highest = self
            .holders
            .iter()
            .filter_map(|(slot, held)| Some((number_of(&held.name)?, *slot)))
            .max();
        match highest {
            Some((holder, slot)) if holder > number && is_prepared => SlotStep::TakeOver(slot),
            Some((holder, _)) if holder > number => SlotStep::Prepare,
            _ => SlotStep::Leave,
        }
    }
}

/// Returns the time for which the replica `number` leaves a free slot to others.
fn courtesy(number: Option<u32>, slots: usize) -> Duration {
    let slots = u32::try_from(slots).unwrap_or(u32::MAX);
    let before = number.map_or(0, |number| (number + 1).saturating_sub(slots));
    COURTESY * before.min(MOST_COURTESIES)
}

/// Returns the number at the end of a replica's name, `None` if it has none.
fn number_of(name: &str) -> Option<u32> {
    name.rsplit_once('-')?.1.parse().ok()
}

fn is_silent(held: &SlotHolder, now: Instant) -> bool {
    now.saturating_duration_since(held.told_at) > SILENCE
}

fn lock(view: &Mutex<SlotsView>) -> MutexGuard<'_, SlotsView> {
    view.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps `view` equal to the bucket; never returns.
async fn follow_slots(
    leases: Kv<LeaseRecord>,
    (prefix, slots): (String, usize),
    view: Arc<Mutex<SlotsView>>,
    clock: SharedClock,
    (holders, changed): (watch::Sender<Vec<String>>, watch::Sender<u64>),
) {
    let mut watch = leases.watch(&prefix);
    loop {
        let event = watch.next().await;
        let now = clock.monotonic();
        let slot_of = |key: &str| -> Option<usize> {
            let slot = key.strip_prefix(&prefix)?.parse().ok()?;
            (slot < slots).then_some(slot)
        };

        let (is_news, names) = {
            let mut view = lock(&view);
            (view.apply(event, slot_of, now), view.holder_names())
        };

        if is_news {
            holders.send_if_modified(|before| {
                let differs = *before != names;
                *before = names;
                differs
            });
            changed.send_modify(|count| *count += 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock as _, SystemClock, pause};
    use crate::testing::world;

    fn view(names: &[(usize, &str)], now: Instant) -> SlotsView {
        let held = |(slot, name): &(usize, &str)| {
            let held = SlotHolder {
                name: (*name).to_owned(),
                told_at: now,
            };
            (*slot, held)
        };
        SlotsView {
            holders: names.iter().map(held).collect(),
            free_since: BTreeMap::new(),
            is_complete: true,
        }
    }

    #[test]
    fn low_numbers_are_preferred_and_others_wait_for_them() {
        let begun = SystemClock.monotonic();
        let at = |seconds| (begun, begun + Duration::from_secs(seconds));
        let free = view(&[(0, "h-0")], begun);
        assert_eq!(free.next_step("h-1", 2, false, at(0)), SlotStep::Take(1));
        assert_eq!(free.next_step("alone", 2, false, at(0)), SlotStep::Take(1));
        assert_eq!(free.next_step("h-2", 2, false, at(0)), SlotStep::Leave);
        assert_eq!(free.next_step("h-2", 2, false, at(1)), SlotStep::Take(1));
        assert_eq!(free.next_step("h-9", 2, false, at(4)), SlotStep::Leave);
        assert_eq!(free.next_step("h-9", 2, false, at(5)), SlotStep::Take(1));
    }

    #[test]
    fn a_preferred_replica_displaces_the_highest_holder_once_it_is_prepared() {
        let begun = SystemClock.monotonic();
        let now = (begun, begun);
        let full = view(&[(0, "h-3"), (1, "h-2")], begun);
        assert_eq!(full.next_step("h-1", 2, false, now), SlotStep::Prepare);
        assert_eq!(full.next_step("h-1", 2, true, now), SlotStep::TakeOver(0));
        assert_eq!(full.next_step("h-4", 2, true, now), SlotStep::Leave);

        let settled = view(&[(0, "h-1"), (1, "h-0")], begun);
        assert_eq!(settled.next_step("h-5", 2, true, now), SlotStep::Leave);
        assert_eq!(settled.next_step("h-0", 2, false, now), SlotStep::TakeOver(1));
        let unnamed = view(&[(0, "a"), (1, "b")], begun);
        assert_eq!(unnamed.next_step("h-0", 2, true, now), SlotStep::Leave);
    }

    #[test]
    fn the_end_of_the_first_reading_is_told_after_each_holder() {
        let now = SystemClock.monotonic();
        let slot_of = |key: &str| key.strip_prefix("copy.")?.parse().ok();
        let put = || KvEvent::Put {
            key: "copy.0".to_owned(),
            value: LeaseRecord::held_by("h-0".to_owned()),
            revision: 1,
        };
        let mut view = SlotsView::default();
        let told = [put(), KvEvent::Current, KvEvent::Anew, put(), KvEvent::Current];
        let told = told.map(|event| view.apply(event, slot_of, now));
        assert_eq!(told, [true, true, false, false, false]);

        let key = || "copy.0".to_owned();
        let gone = |key| KvEvent::Gone { key, revision: 2 };
        assert!(view.apply(gone(key()), slot_of, now));
        assert!(!view.apply(gone("copy.1".to_owned()), slot_of, now));
    }

    #[test]
    fn a_silent_holder_is_followed() {
        let begun = SystemClock.monotonic();
        let late = begun + SILENCE + Duration::from_secs(2);
        let gone = view(&[(0, "h-0")], begun);
        assert_eq!(gone.next_step("h-2", 1, false, (begun, late)), SlotStep::Take(0));
        assert_eq!(gone.next_step("h-2", 1, false, (begun, begun)), SlotStep::Leave);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn slots_are_held_lost_and_taken_over() {
        let (_server, bus) = world().await;
        let clock: SharedClock = Arc::new(SystemClock);
        let slots = |name: &str| SlotLeases::watch_slots(&bus, "copy", name.to_owned(), 1, Arc::clone(&clock));
        let (mut zero, mut two) = (slots("h-0"), slots("h-2"));
        zero.wait_complete().await;
        two.wait_complete().await;

        // Nobody else is there: after its courtesy the higher number takes the slot.
        let role = until(&mut two, None, false, SlotRole::Holder).await;
        assert_eq!(role, SlotRole::Holder);

        // It keeps the slot meanwhile: one that is not refreshed for three seconds is free for the other.
        let role = until(&mut zero, Some(&mut two), false, SlotRole::Heir).await;
        assert_eq!(role, SlotRole::Heir);
        let role = until(&mut zero, Some(&mut two), true, SlotRole::Holder).await;
        assert_eq!(role, SlotRole::Holder);
        let role = until(&mut two, Some(&mut zero), true, SlotRole::Spare).await;
        assert_eq!(role, SlotRole::Spare);
        let mut holders = two.holders();
        let told = holders.wait_for(|names| *names == ["h-0"]);
        tokio::time::timeout(Duration::from_secs(20), told)
            .await
            .expect("in time")
            .expect("told");

        zero.give_back().await;
        assert_eq!(until(&mut two, None, true, SlotRole::Holder).await, SlotRole::Holder);
    }

    /// Refreshes until the role is `wanted`, or for twenty seconds; `other` is refreshed as well.
    async fn until(
        slots: &mut SlotLeases,
        mut other: Option<&mut SlotLeases>,
        is_prepared: bool,
        wanted: SlotRole,
    ) -> SlotRole {
        let reached = tokio::time::timeout(Duration::from_secs(20), async {
            while slots.refresh(is_prepared).await.expect("asked") != wanted {
                if let Some(other) = other.as_deref_mut() {
                    other.refresh(true).await.expect("asked");
                }
                pause(Duration::from_millis(50)).await;
            }
        });
        reached.await.expect("the role is reached");
        wanted
    }
}
