//! The posts of one account, as its reader takes them: those that wait in the bucket, and then the new ones, in the order of
//! the bucket.
//!
//! The reader follows the shared watch before it lists the bucket, so that the watch tells the posts that are stored after the
//! list was read. A post in both is taken once.

use std::collections::{HashMap, VecDeque};

use shared::bus::{KvEvent, KvPages};
use shared::clock::pause;
use shared::error_chain::describe_error;

use super::inbox::NextPost;
use super::shared_watch::{PostChange, PostFollower, SharedPosts};
use super::{PostQueue, PostedMessage, TRY_AGAIN_AFTER};

/// The posts of one account.
#[derive(Debug)]
pub(super) struct PostFeed {
    queue: PostQueue,
    follower: PostFollower,
    /// The list that is being read; `None` if none is.
    list: Option<KvPages<PostedMessage>>,
    /// Posts of the list that were read, and are not taken yet.
    page: VecDeque<PostChange>,
    listed: ListedKeys,
}

impl PostFeed {
    /// Opens the feed of `queue`, whose new posts come from the watch `posts`.
    pub(super) fn open(posts: &SharedPosts, queue: &PostQueue) -> Self {
        Self {
            queue: queue.clone(),
            follower: posts.follow(queue.prefix()),
            list: None,
            page: VecDeque::new(),
            listed: ListedKeys::default(),
        }
    }

    /// Returns whether a list is being read, so that [`PostFeed::next`] returns soon.
    pub(super) fn is_listing(&self) -> bool {
        self.list.is_some() || !self.page.is_empty()
    }

    /// Returns the next post; `None` at the end of a list, and if the list cannot be read now. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Option<PostChange> {
        loop {
            if let Some(change) = self.page.pop_front() {
                return Some(change);
            }
            if self.list.is_some() {
                if self.read_page().await {
                    continue;
                }
                return None;
            }
            match self.follower.next().await {
                NextPost::List => self.begin_list(),
                NextPost::Take(change) if self.listed.has(&change) => {}
                NextPost::Take(change) => return Some(change),
            }
        }
    }

    /// Returns the next post, if it is at hand.
    pub(super) fn take_now(&mut self) -> Option<PostChange> {
        loop {
            if let Some(change) = self.page.pop_front() {
                return Some(change);
            }
            if self.list.is_some() {
                return None;
            }
            match self.follower.take()? {
                NextPost::List => self.begin_list(),
                NextPost::Take(change) if self.listed.has(&change) => {}
                NextPost::Take(change) => return Some(change),
            }
        }
    }

    fn begin_list(&mut self) {
        self.list = Some(self.queue.list());
        self.listed = ListedKeys::default();
    }

    /// Reads on in the list. Returns whether there is more of it.
    async fn read_page(&mut self) -> bool {
        let Some(list) = &mut self.list else { return false };
        match list.next().await {
            Ok(page) if page.is_empty() => {
                self.list = None;
                false
            }
            Ok(page) => {
                page.iter().for_each(|change| self.listed.note(change));
                self.page.extend(page);
                true
            }
            Err(error) => {
                let error = describe_error(&error);
                tracing::warn!(error, "failed to list what was posted to an account; retrying");
                pause(TRY_AGAIN_AFTER).await;
                false
            }
        }
    }
}

/// The keys of the last list, until the watch is behind them.
#[derive(Debug, Default)]
struct ListedKeys {
    /// Revisions, by key.
    revisions: HashMap<String, u64>,
    last: u64,
}

impl ListedKeys {
    fn note(&mut self, change: &PostChange) {
        if let Some((key, revision)) = place_of(change) {
            self.revisions.insert(key.to_owned(), revision);
            self.last = self.last.max(revision);
        }
    }

    /// Returns whether `change`, which the watch tells, was in the list.
    fn has(&mut self, change: &PostChange) -> bool {
        let Some((key, revision)) = place_of(change) else {
            return false;
        };
        if revision > self.last {
            // The watch is in the order of revisions, and one that it tells again is stored again under its id.
            self.revisions.clear();
            return false;
        }
        self.revisions.get(key) == Some(&revision)
    }
}

/// Returns the key that `change` sets, and its revision.
fn place_of(change: &PostChange) -> Option<(&str, u64)> {
    match change {
        KvEvent::Put { key, revision, .. } | KvEvent::Bad { key, revision, .. } => Some((key, *revision)),
        KvEvent::Gone { .. } | KvEvent::Anew | KvEvent::Current => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(key: &str, revision: u64) -> PostChange {
        KvEvent::Bad {
            key: key.to_owned(),
            revision,
            error: String::new(),
        }
    }

    #[test]
    fn what_was_listed_is_not_taken_again_and_what_lies_between_is() {
        let mut listed = ListedKeys::default();
        listed.note(&change("a", 3));
        listed.note(&change("b", 7));
        assert!(listed.has(&change("a", 3)));
        assert!(!listed.has(&change("c", 5)), "the list did not have it");
        assert!(!listed.has(&change("a", 6)), "it was posted again");
        assert!(listed.has(&change("b", 7)));
        assert!(!listed.has(&change("d", 8)));
        assert!(listed.revisions.is_empty(), "the watch is behind the list");
    }
}
