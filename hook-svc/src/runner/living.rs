//! The worker processes of all pools of one configuration, and how to come to a moment in which none lives.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use tokio::sync::{RwLock, RwLockReadGuard};

/// How long nobody is started while those that are there end, and while what is to be done without them is done.
const WITHOUT: Duration = Duration::from_secs(2);

/// Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Living {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Held for reading by each process for as long as it lives. Who waits to write keeps others from beginning.
    lives: RwLock<()>,
    /// Counts the replacements: a process of an earlier one is to end.
    round: AtomicU64,
}

/// A process lives for as long as this does.
#[derive(Debug)]
pub(super) struct Life<'a> {
    round: u64,
    _lives: RwLockReadGuard<'a, ()>,
}

impl Living {
    /// Begins a life once it may.
    pub(super) async fn begin(&self) -> Life<'_> {
        let lives = self.inner.lives.read().await;
        Life {
            round: self.round(),
            _lives: lives,
        }
    }

    /// Which replacement a process that begins now is of.
    pub(super) fn round(&self) -> u64 {
        self.inner.round.load(Ordering::Acquire)
    }

    /// Has every process replaced, each once it has ended what is under way in it: whatever scripts have left open goes
    /// with them. `between` is done when the last one is gone and before the next one begins. None where that does not
    /// come to its end within two seconds, because an evaluation takes longer: the others begin then beside it.
    pub async fn replace<T>(&self, between: impl Future<Output = T>) -> Option<T> {
        let whole = async {
            let mut none_lives = pin!(self.inner.lives.write());
            // In line before anybody is sent away, so that whoever begins from now on is of the new round.
            let stands = poll!(none_lives.as_mut());
            self.inner.round.fetch_add(1, Ordering::AcqRel);
            let _none_lives = match stands {
                Poll::Ready(none_lives) => none_lives,
                Poll::Pending => none_lives.await,
            };
            between.await
        };
        tokio::time::timeout(WITHOUT, whole).await.ok()
    }
}

impl Life<'_> {
    /// Which replacement it is of.
    pub(super) const fn round(&self) -> u64 {
        self.round
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_between_is_done_while_none_lives_or_not_at_all() {
        let living = Living::default();
        let life = living.begin().await;
        assert_eq!(living.replace(async { 1 }).await, None, "one lives");
        assert!(life.round() < living.round(), "and is to end");
        let next = living.begin().await;
        assert_eq!(next.round(), living.round());
        drop((life, next));
        let done = living.replace(async { living.inner.lives.try_read().is_err() }).await;
        assert_eq!(done, Some(true));
    }
}
