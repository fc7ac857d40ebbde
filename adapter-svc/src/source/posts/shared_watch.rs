//! One watch of KV `posts` for all accounts of this process to which platforms post: a watch costs about a message a second even
//! if nothing comes, however many keys it watches.
//!
//! It runs while an account is read, and tells each reader the posts of its account that are stored after the reader has begun to
//! follow. Posts that wait by then the reader lists itself. It also lists the bucket after it fell behind, and if the bucket was
//! put back to an older state. After a broken connection the watch reads the whole bucket again, and tells the posts that it has
//! not told before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shared::bus::{Bus, Kv, KvEvent};
use shared::wire::topology::buckets;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::PostedMessage;
use super::inbox::{InboxBounds, NextPost, PostInboxes};

/// How much waits for readers.
const BOUNDS: InboxBounds = InboxBounds {
    posts: 1_000,
    bytes: 4 * 1024 * 1024,
    all_bytes: 64 * 1024 * 1024,
};

/// A change of the bucket.
pub(super) type PostChange = KvEvent<PostedMessage>;

/// The watch of the posts to the accounts that this process reads. Clones are the same one.
#[derive(Debug, Clone)]
pub struct SharedPosts {
    kept: Kv<PostedMessage>,
    state: Arc<Mutex<WatchState>>,
}

#[derive(Debug)]
struct WatchState {
    inboxes: PostInboxes<PostChange>,
    /// Readers that wait, by account.
    readers: HashMap<String, Arc<Notify>>,
    /// Task that watches; `None` while no account is read.
    watching: Option<JoinHandle<()>>,
}

impl SharedPosts {
    /// Returns the watch of the bucket on `bus`. It begins with the first account that is read.
    #[must_use]
    pub fn new(bus: &Bus) -> Self {
        let state = WatchState {
            inboxes: PostInboxes::new(BOUNDS),
            readers: HashMap::new(),
            watching: None,
        };
        Self {
            kept: bus.kv(buckets::POSTS),
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Follows the posts to the account whose keys begin with `prefix`, until the result is dropped.
    pub(super) fn follow(&self, prefix: &str) -> PostFollower {
        let told = Arc::new(Notify::new());
        let mut state = self.lock();
        let number = state.inboxes.open(prefix);
        state.readers.insert(prefix.to_owned(), Arc::clone(&told));
        self.keep_watching(&mut state);
        drop(state);
        PostFollower {
            posts: self.clone(),
            prefix: prefix.to_owned(),
            number,
            told,
        }
    }

    fn lock(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the task that watches, unless it runs. A new one tells everything that the bucket has.
    fn keep_watching(&self, state: &mut WatchState) {
        if state.watching.as_ref().is_none_or(JoinHandle::is_finished) {
            state.watching = Some(tokio::spawn(self.clone().watch()));
        }
    }

    async fn watch(self) {
        // What is posted while the bucket is read must not be told before what was posted earlier.
        let mut watch = self.kept.watch_all().in_order();
        loop {
            let change = watch.next().await;
            self.hand_on(change);
        }
    }

    /// Hands `change` on to the reader of its account, if this process reads it.
    fn hand_on(&self, change: PostChange) {
        let (key, bytes) = match &change {
            KvEvent::Put { key, value, .. } => (key, value.held_bytes()),
            KvEvent::Bad { key, error, .. } => (key, error.len()),
            KvEvent::Anew => {
                let mut state = self.lock();
                state.inboxes.list_all_again();
                state.readers.values().for_each(|told| told.notify_one());
                return;
            }
            KvEvent::Gone { .. } | KvEvent::Current => return,
        };
        let Some(prefix) = account_prefix(key).map(str::to_owned) else {
            return;
        };

        let mut state = self.lock();
        if state.inboxes.push(&prefix, change, bytes)
            && let Some(told) = state.readers.get(&prefix)
        {
            told.notify_one();
        }
    }

    /// Ends the opening `number` of `prefix` that [`SharedPosts::follow`] has begun, and the watch with the last one.
    fn end(&self, prefix: &str, number: u64) {
        let mut state = self.lock();
        if state.inboxes.close(prefix, number) {
            state.readers.remove(prefix);
        }
        if state.inboxes.is_empty()
            && let Some(watching) = state.watching.take()
        {
            watching.abort();
        }
    }
}

/// The new posts of one account.
#[derive(Debug)]
pub(super) struct PostFollower {
    posts: SharedPosts,
    prefix: String,
    number: u64,
    told: Arc<Notify>,
}

impl PostFollower {
    /// Returns the next step. Dropping the future while it waits loses nothing.
    pub(super) async fn next(&self) -> NextPost<PostChange> {
        loop {
            if let Some(next) = self.take() {
                return next;
            }
            // One that comes meanwhile is remembered.
            self.told.notified().await;
        }
    }

    /// Returns the next step, if there is one.
    pub(super) fn take(&self) -> Option<NextPost<PostChange>> {
        let mut state = self.posts.lock();
        // Should it have died, this process would be deaf.
        self.posts.keep_watching(&mut state);
        state.inboxes.take(&self.prefix, self.number)
    }
}

impl Drop for PostFollower {
    fn drop(&mut self) {
        self.posts.end(&self.prefix, self.number);
    }
}

/// Returns the beginning of `key` that names its account, with the final dot.
fn account_prefix(key: &str) -> Option<&str> {
    let (end, _) = key.match_indices('.').nth(1)?;
    key.get(..=end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_begins_with_its_channel_and_account() {
        assert_eq!(account_prefix("telegram.main.5.x"), Some("telegram.main."));
        assert_eq!(account_prefix("slack.a=2Eb.C1.x"), Some("slack.a=2Eb."));
        assert_eq!(account_prefix("telegram.main"), None);
    }
}
