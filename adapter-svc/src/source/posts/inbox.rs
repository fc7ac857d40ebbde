//! The posts of each account that its reader has still to take. *Pure.*
//!
//! Every post waits in the bucket too, so none is lost that is not kept here: if a reader falls behind, the posts of its account
//! are dropped, and it lists the bucket again. So a slow reader holds up no other, and the memory has a bound.

use std::collections::{HashMap, VecDeque};

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InboxBounds {
    /// Maximum number of posts of an account.
    pub(super) posts: usize,
    /// Maximum size of all posts of an account, in bytes.
    pub(super) bytes: usize,
    /// Maximum size of the posts of all accounts, in bytes.
    pub(super) all_bytes: usize,
}

/// The next step of an account's reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NextPost<T> {
    /// It lists the bucket: earlier posts are not kept here.
    List,
    /// It takes in a post.
    Take(T),
}

/// The posts of one account.
#[derive(Debug)]
struct Inbox<T> {
    /// Number of the opening: a reader that has ended must not close the inbox that a later one has opened.
    number: u64,
    /// Whether the reader has to list the bucket. It finds there the posts that come until it begins to list.
    must_list: bool,
    posts: VecDeque<(T, usize)>,
    bytes: usize,
}

impl<T> Inbox<T> {
    /// Makes the reader list the bucket. Returns the size of the dropped posts, in bytes.
    fn list_again(&mut self) -> usize {
        self.must_list = true;
        self.posts.clear();
        std::mem::take(&mut self.bytes)
    }
}

/// The posts of all accounts that are read.
#[derive(Debug)]
pub(super) struct PostInboxes<T> {
    bounds: InboxBounds,
    open: HashMap<String, Inbox<T>>,
    openings: u64,
    bytes: usize,
}

impl<T> PostInboxes<T> {
    /// Returns the inboxes of no account.
    #[must_use]
    pub(super) fn new(bounds: InboxBounds) -> Self {
        Self {
            bounds,
            open: HashMap::new(),
            openings: 0,
            bytes: 0,
        }
    }

    /// Opens the inbox of `account`, in place of a former one. Its reader begins with a list. Returns the number of the opening.
    pub(super) fn open(&mut self, account: &str) -> u64 {
        self.openings += 1;
        let inbox = Inbox {
            number: self.openings,
            must_list: true,
            posts: VecDeque::new(),
            bytes: 0,
        };
        if let Some(former) = self.open.insert(account.to_owned(), inbox) {
            self.bytes -= former.bytes;
        }
        self.openings
    }

    /// Closes the inbox of `account`, unless it was opened again since the opening `number`. Returns whether it is closed.
    pub(super) fn close(&mut self, account: &str, number: u64) -> bool {
        if self.open.get(account).is_none_or(|inbox| inbox.number != number) {
            return false;
        }
        if let Some(inbox) = self.open.remove(account) {
            self.bytes -= inbox.bytes;
        }
        true
    }

    /// Returns whether no account is read.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Adds `post` of `account`, of `bytes`. If that is too much, the account's reader lists the bucket. Returns whether the
    /// account is read.
    pub(super) fn push(&mut self, account: &str, post: T, bytes: usize) -> bool {
        let Some(inbox) = self.open.get_mut(account) else {
            return false;
        };
        if inbox.must_list {
            return true;
        }

        let is_too_much = inbox.posts.len() >= self.bounds.posts
            || inbox.bytes.saturating_add(bytes) > self.bounds.bytes
            || self.bytes.saturating_add(bytes) > self.bounds.all_bytes;
        if is_too_much {
            self.bytes -= inbox.list_again();
        } else {
            inbox.posts.push_back((post, bytes));
            inbox.bytes += bytes;
            self.bytes += bytes;
        }
        true
    }

    /// Makes all readers list the bucket: it may no longer have the posts that wait here.
    pub(super) fn list_all_again(&mut self) {
        for inbox in self.open.values_mut() {
            self.bytes -= inbox.list_again();
        }
    }

    /// Takes the next step for `account`, opened as `number`; `None` if there is none yet, or if it was opened again.
    pub(super) fn take(&mut self, account: &str, number: u64) -> Option<NextPost<T>> {
        let inbox = self.open.get_mut(account).filter(|inbox| inbox.number == number)?;
        if std::mem::take(&mut inbox.must_list) {
            return Some(NextPost::List);
        }
        let (post, bytes) = inbox.posts.pop_front()?;
        inbox.bytes -= bytes;
        self.bytes -= bytes;
        Some(NextPost::Take(post))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: InboxBounds = InboxBounds {
        posts: 3,
        bytes: 100,
        all_bytes: 150,
    };

    /// Takes everything of `account`: each post, or 0 for a list.
    fn taken(inboxes: &mut PostInboxes<u32>, account: &str, number: u64) -> Vec<u32> {
        let next = || inboxes.take(account, number);
        std::iter::from_fn(next)
            .map(|next| match next {
                NextPost::List => 0,
                NextPost::Take(post) => post,
            })
            .collect()
    }

    #[test]
    fn a_reader_lists_first_and_then_takes_what_comes_in_order() {
        let mut inboxes = PostInboxes::new(BOUNDS);
        let (a, b) = (inboxes.open("a"), inboxes.open("b"));
        // It is in the bucket when the reader lists it.
        assert!(inboxes.push("a", 1, 1));
        assert!(!inboxes.push("c", 1, 1), "nobody reads it here");
        assert_eq!(taken(&mut inboxes, "a", a), [0]);
        for post in [2, 3, 4] {
            assert!(inboxes.push("a", post, 1) && inboxes.push("b", post, 1));
        }
        assert_eq!(taken(&mut inboxes, "a", a), [2, 3, 4]);
        assert_eq!(taken(&mut inboxes, "b", b), [0], "the other one has not listed yet");
    }

    #[test]
    fn a_reader_that_is_too_slow_lists_again_and_the_others_go_on() {
        for (count, bytes) in [(4, 1), (2, 60), (1, 101)] {
            let mut inboxes = PostInboxes::new(BOUNDS);
            let (slow, other) = (inboxes.open("slow"), inboxes.open("other"));
            assert_eq!(taken(&mut inboxes, "slow", slow), [0]);
            assert_eq!(taken(&mut inboxes, "other", other), [0]);
            assert!(inboxes.push("other", 9, 10));
            (1..=count).for_each(|post| assert!(inboxes.push("slow", post, bytes)));
            // Until it lists nothing more is kept for it.
            assert!(inboxes.push("slow", 8, 1));
            assert_eq!(inboxes.bytes, 10, "{count} of {bytes} bytes");
            assert_eq!(taken(&mut inboxes, "other", other), [9]);
            assert_eq!(taken(&mut inboxes, "slow", slow), [0]);
            assert!(inboxes.push("slow", 7, 1));
            assert_eq!(taken(&mut inboxes, "slow", slow), [7]);
        }
    }

    #[test]
    fn all_accounts_together_have_a_bound() {
        let mut inboxes = PostInboxes::new(BOUNDS);
        let (a, b) = (inboxes.open("a"), inboxes.open("b"));
        assert_eq!(
            (taken(&mut inboxes, "a", a), taken(&mut inboxes, "b", b)),
            (vec![0], vec![0])
        );
        assert!(inboxes.push("a", 1, 100) && inboxes.push("b", 2, 50));
        assert!(inboxes.push("b", 3, 1));
        assert_eq!(inboxes.bytes, 100);
        assert_eq!(taken(&mut inboxes, "b", b), [0]);
        assert!(inboxes.push("b", 4, 50));
        assert_eq!(taken(&mut inboxes, "b", b), [4]);
        assert_eq!(taken(&mut inboxes, "a", a), [1]);
        assert_eq!(inboxes.bytes, 0);
    }

    #[test]
    fn all_list_again_when_the_bucket_is_another_one() {
        let mut inboxes = PostInboxes::new(BOUNDS);
        let (a, b) = (inboxes.open("a"), inboxes.open("b"));
        assert_eq!(taken(&mut inboxes, "a", a), [0]);
        assert!(inboxes.push("a", 1, 1));
        inboxes.list_all_again();
        assert_eq!(taken(&mut inboxes, "a", a), [0]);
        assert_eq!(taken(&mut inboxes, "b", b), [0]);
        assert_eq!(inboxes.bytes, 0);
    }

    #[test]
    fn a_reader_that_has_ended_closes_no_later_one() {
        let mut inboxes = PostInboxes::new(BOUNDS);
        let former = inboxes.open("a");
        assert_eq!(taken(&mut inboxes, "a", former), [0]);
        assert!(inboxes.push("a", 1, 1));
        let later = inboxes.open("a");
        assert_eq!(inboxes.bytes, 0);
        assert_eq!(taken(&mut inboxes, "a", former), Vec::<u32>::new());
        assert!(!inboxes.close("a", former) && !inboxes.is_empty());
        assert_eq!(taken(&mut inboxes, "a", later), [0]);
        assert!(inboxes.push("a", 2, 1) && inboxes.close("a", later));
        assert!(inboxes.is_empty() && inboxes.bytes == 0);
        assert!(!inboxes.close("a", later));
    }
}
