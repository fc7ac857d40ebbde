//! Reads the posted events of an account, merges those that belong together, and stores them: the work of the account's holder.
//!
//! A posted event is removed from the bucket once it is stored, alone or as a part of another. The watermark says which messages
//! that event has before it is published, so that after a crash between any two steps the next holder makes the same events
//! again.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use shared::bus::KvEvent;
use shared::clock::pause;
use shared::error_chain::describe_error;
use shared::model::event::Event;
use shared::model::time::UnixMillis;
use shared::wire::headers::TraceCarrier;
use tokio::sync::{Mutex, MutexGuard};

use super::feed::PostFeed;
use super::shared_watch::{PostChange, SharedPosts};
use super::{MAX_BATCH, PostPlace, PostQueue, TRY_AGAIN_AFTER};
use crate::attachments::note::RefuseNoteError;
use crate::source::merge::{MergeDecision, MergeMemory, MergeWaits, MessageMerger, ReadyEvent, note_decision};
use crate::source::port::sink::SourcePosition;
use crate::source::port::{PutEventsError, SourceEnd, SourceSink};

/// Time between two looks at the waiting events, if none is due before.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// An account to which a platform posts, with that platform's own rules.
pub trait PostedAccount: Send {
    /// Returns the name of the channel, for metrics.
    fn channel(&self) -> &'static str;

    /// Takes in the news of `event` about the account's conversations, before the event waits for those that belong to it.
    fn take_in(&mut self, event: &mut Event);

    /// Applies the account's settings to `event`, as it will be stored.
    fn apply_settings(&self, event: &mut Event);

    /// Returns the time up to which a text that comes now is an event of its own, because it comes late; `None` = the platform's
    /// numbers of messages say it.
    fn alone_until(&self) -> Option<UnixMillis>;

    /// Returns the account's position at `now`, with the decisions of `memory`.
    fn position(&mut self, memory: MergeMemory, now: UnixMillis) -> SourcePosition;
}

/// An account, and those of its posted events that were read and are still in the bucket.
#[derive(Debug)]
pub struct PostState<A> {
    /// Account.
    pub account: A,
    /// Events that wait for those that belong to them.
    merger: MessageMerger<PostPlace>,
    /// Where those are that wait, and those that stay in the bucket because they cannot be read; with the trace of each.
    taken: HashMap<PostPlace, TraceCarrier>,
    /// Events that are to be removed from the bucket.
    done: Vec<PostPlace>,
    /// Decisions about albums of one message, as long as that may be in the bucket: otherwise one that came later could be
    /// merged with it after a crash, and be lost.
    lone: Vec<MergeDecision>,
}

impl<A: PostedAccount> PostState<A> {
    /// Returns the position to be written at `now`.
    pub fn position(&mut self, now: UnixMillis) -> SourcePosition {
        let mut memory = self.merger.to_stored();
        memory.decided.extend(self.lone.iter().cloned());
        self.account.position(memory, now)
    }

    /// Returns the time since which the first message waits for others; `None` if none waits.
    #[must_use]
    pub fn waiting_since(&self) -> Option<UnixMillis> {
        self.merger.waiting_since()
    }

    /// Returns the time from `now` until something is to be done.
    fn until_due(&self, now: UnixMillis) -> Duration {
        let due = self.merger.until_due(now).unwrap_or(LOOK_EVERY);
        if self.done.is_empty() {
            due
        } else {
            due.min(TRY_AGAIN_AFTER)
        }
    }

    /// Takes in `change` of the bucket `queue`.
    fn take(&mut self, queue: &PostQueue, change: PostChange, now: UnixMillis) {
        let (place, posted) = match change {
            KvEvent::Put { key, value, revision } => (PostPlace { key, revision }, Ok(value)),
            KvEvent::Bad { key, error, revision } => (PostPlace { key, revision }, Err(error)),
            KvEvent::Gone { .. } | KvEvent::Anew | KvEvent::Current => return,
        };
        // A further list brings it again, and so may a watch that was repaired.
        if self.taken.contains_key(&place) || self.done.contains(&place) {
            return;
        }

        let posted = match posted {
            Ok(posted) => posted,
            Err(error) => {
                // A later release may have written it: it stays for a replica that can read it.
                tracing::error!(
                    key = place.key,
                    error,
                    "failed to read a posted event; it stays in KV posts"
                );
                self.taken.insert(place, TraceCarrier::default());
                return;
            }
        };
        match queue.admit_event(&place.key, &posted) {
            Ok(mut event) => {
                self.account.take_in(&mut event);
                let conversation = event.peer.id.clone();
                // An event that is stored already, as a part of another, is done.
                if self.merger.push(&conversation, place.clone(), event, now) {
                    self.taken.insert(place, posted.carrier());
                } else {
                    self.done.push(place);
                }
            }
            Err(error) => self.refuse(place, &error),
        }
    }

    /// Counts an event that is not admitted because of `error`, and passes it over.
    fn refuse(&mut self, place: PostPlace, error: &RefuseNoteError) {
        let channel = self.account.channel();
        tracing::error!(channel, key = place.key, %error, "posted event refused");
        metrics::counter!("nexus_source_refused_total", "source" => channel, "reason" => "unsealed").increment(1);
        match error {
            // Its door may have a key that this replica has still to get, and has answered that it is kept.
            RefuseNoteError::Unreadable(_) | RefuseNoteError::Event(_) => {
                self.taken.insert(place, TraceCarrier::default());
            }
            RefuseNoteError::Origin(_) | RefuseNoteError::Key(_) => self.done.push(place),
        }
    }
}

/// Reads the posted events of one account, while this replica holds it.
#[derive(Debug)]
pub struct PostReader<'a, A> {
    queue: PostQueue,
    sink: &'a SourceSink,
    state: Mutex<PostState<A>>,
}

impl<'a, A: PostedAccount> PostReader<'a, A> {
    /// Returns the reader of `queue` that stores the events of `account` with `sink`. They wait as `waits` says; `memory` has
    /// the decisions of before.
    #[must_use]
    pub fn new(queue: PostQueue, sink: &'a SourceSink, account: A, (waits, memory): (MergeWaits, MergeMemory)) -> Self {
        let state = PostState {
            account,
            taken: HashMap::new(),
            done: Vec::new(),
            lone: lone_albums(&memory.decided),
            merger: MessageMerger::new(waits, memory),
        };
        Self {
            queue,
            sink,
            state: Mutex::new(state),
        }
    }

    /// Waits until nothing is being stored, and returns the state. No event is stored while it is held.
    pub async fn lock(&self) -> MutexGuard<'_, PostState<A>> {
        self.state.lock().await
    }

    /// Reads and stores until this replica does not hold the account any more. New posts come from the watch `posts`.
    pub async fn read(&self, posts: &SharedPosts) -> SourceEnd {
        let mut feed = PostFeed::open(posts, &self.queue);
        loop {
            if !self.sink.is_held() {
                return SourceEnd::Fenced;
            }
            if let Err(error) = self.step(&mut feed).await {
                return error.into();
            }
        }
    }

    /// Takes the next posts, and stores the events that are due.
    async fn step(&self, feed: &mut PostFeed) -> Result<(), PutEventsError> {
        let mut change = if feed.is_listing() {
            // The next page comes before due events: a wait for those would break off the read of the page again and again.
            feed.next().await
        } else {
            let due = self.lock().await.until_due(self.sink.now());
            tokio::select! {
                biased;
                change = feed.next() => change,
                () = pause(due) => None,
            }
        };

        let mut state = self.lock().await;
        if let Some(until) = state.account.alone_until() {
            state.merger.note_alone_until(until);
        }
        let mut taken = 0;
        while let Some(one) = change {
            state.take(&self.queue, one, self.sink.now());
            taken += 1;
            // Posts that have come meanwhile are stored with it.
            change = if taken < MAX_BATCH { feed.take_now() } else { None };
        }

        self.store_ready(&mut state).await?;
        self.remove_done(&mut state).await;
        Ok(())
    }

    /// Stores the posts of the time before the account was received in another way, without waiting for more of them. Returns
    /// the account.
    ///
    /// # Errors
    /// Returns [`SourceEnd`] if this replica does not hold the account any more.
    pub async fn drain(self) -> Result<A, SourceEnd> {
        let mut list = self.queue.list();
        let mut state = self.lock().await;
        loop {
            match list.next().await {
                Ok(page) if page.is_empty() => break,
                Ok(page) => {
                    for change in page {
                        state.take(&self.queue, change, self.sink.now());
                    }
                }
                Err(error) => {
                    let error = describe_error(&error);
                    tracing::warn!(error, "failed to list what was posted to an account; retrying");
                    self.rest().await?;
                }
            }
        }
        state.merger.close_all();
        self.store_ready(&mut state).await?;
        self.remove_done(&mut state).await;
        while !state.done.is_empty() {
            self.rest().await?;
            self.remove_done(&mut state).await;
        }

        drop(state);
        Ok(self.state.into_inner().account)
    }

    /// Waits before something is tried again.
    async fn rest(&self) -> Result<(), SourceEnd> {
        if !self.sink.is_held() {
            return Err(SourceEnd::Fenced);
        }
        pause(TRY_AGAIN_AFTER).await;
        Ok(())
    }

    /// Stores the events that wait no more, some at a time: the decisions about them are remembered until they are removed.
    async fn store_ready(&self, state: &mut PostState<A>) -> Result<(), PutEventsError> {
        let now = self.sink.now();
        loop {
            let ready = state.merger.take_some_ready(now, MAX_BATCH);
            if ready.is_empty() {
                return Ok(());
            }
            Box::pin(self.store_batch(state, ready, now)).await?;
            self.remove_done(state).await;
        }
    }

    /// Stores `ready` at `now`.
    async fn store_batch(
        &self,
        state: &mut PostState<A>,
        ready: Vec<ReadyEvent<PostPlace>>,
        now: UnixMillis,
    ) -> Result<(), PutEventsError> {
        let decided: Vec<MergeDecision> = ready.iter().filter_map(|ready| ready.decision.clone()).collect();
        for decision in lone_albums(&decided) {
            note_decision(&mut state.lone, decision);
        }
        // Otherwise a message that comes late could be part of an event that was published before a crash, and be lost. A text
        // that is an event of its own comes again as such: it was written before the next run.
        let must_know = |decision: &MergeDecision| decision.is_album() || decision.messages.len() > 1;
        if decided.iter().any(must_know) {
            let position = state.position(now);
            self.sink.put(Vec::new(), position).await?;
        }
        state.merger.note_stored(&decided);
        for decision in &mut state.lone {
            decision.is_stored |= decided.contains(decision);
        }

        let (mut events, mut places) = (Vec::with_capacity(ready.len()), Vec::with_capacity(ready.len()));
        for ReadyEvent { mut event, keys, .. } in ready {
            // In a merged event any of the texts may address the account, and its first one begins the thread.
            state.account.apply_settings(&mut event);
            // Of several texts the trace of the first one that has one.
            let mut carriers = keys.iter().filter_map(|place| state.taken.get(place));
            let carrier = carriers.find(|carrier| carrier.traceparent.is_some()).cloned();
            events.push((event, carrier.unwrap_or_default()));
            places.extend(keys);
        }
        // Their events are stored when the position is.
        let position = state.position(now);
        self.sink.put_traced(events, position).await?;
        for place in &places {
            state.taken.remove(place);
        }
        state.done.extend(places);
        Ok(())
    }

    /// Removes the stored events from the bucket; those that cannot be removed now are removed later.
    async fn remove_done(&self, state: &mut PostState<A>) {
        let places = std::mem::take(&mut state.done);
        let removed = join_all(places.iter().map(|place| self.queue.remove(place))).await;
        for (place, removed) in places.iter().zip(removed) {
            if let Err(error) = removed {
                let error = describe_error(&error);
                tracing::warn!(
                    key = place.key,
                    error,
                    "failed to remove a posted event that is stored; retrying"
                );
                state.done.push(place.clone());
            }
        }
        if state.done.is_empty() && !places.is_empty() {
            state.lone.retain(|decision| !decision.is_stored);
        }
    }
}

/// Returns those of `decided` that are about albums of one message.
fn lone_albums(decided: &[MergeDecision]) -> Vec<MergeDecision> {
    let lone = decided.iter().filter(|one| one.is_album() && one.messages.len() == 1);
    lone.cloned().collect()
}
