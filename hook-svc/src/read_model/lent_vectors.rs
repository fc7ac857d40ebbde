//! Vectors that another replica's copy of the read model has made: `nexus.svc.model.{instance}.vectors`.
//!
//! The copy with the lowest slot embeds, once it is ready; each further one asks those before it. A copy that is not
//! ready asks all others, because it may be new and they have everything.

use std::time::Duration;

use async_trait::async_trait;
use shared::bus::RequestError;
use shared::projection::search::peers::{VectorSource, VectorsQuestion, VectorsReply};

use super::access::{ModelAccess, OwnCopy};

/// Time limit for one copy's answer, below the time after which a replica that is stopped loses its slot.
const ANSWER: Duration = Duration::from_secs(2);

/// Copies of other replicas, as the one of this replica takes vectors from them.
#[derive(Debug)]
pub(crate) struct LentVectors(ModelAccess);

impl LentVectors {
    /// Returns the copies that `access` knows.
    pub(crate) fn new(access: ModelAccess) -> Self {
        Self(access)
    }

    fn lenders(&self) -> Vec<String> {
        let is_ready = matches!(*self.0.follow_own().borrow(), OwnCopy::Ready(_));
        let peers = self.0.peers();
        lenders_of(peers.holders(), peers.me(), is_ready)
    }
}

/// Returns those of `holders`, in the order of their slots, whose vectors the copy of `me` takes.
fn lenders_of(mut holders: Vec<String>, me: &str, is_ready: bool) -> Vec<String> {
    if is_ready && let Some(own) = holders.iter().position(|name| name == me) {
        holders.truncate(own);
    }
    holders.retain(|name| name != me);
    holders
}

#[async_trait]
impl VectorSource for LentVectors {
    fn is_there(&self) -> bool {
        !self.lenders().is_empty()
    }

    async fn lend(&self, question: VectorsQuestion) -> Option<VectorsReply> {
        for name in self.lenders() {
            let asked = self.0.peers().ask_one(&name, "vectors", &question, ANSWER).await;
            let error = match asked.as_deref().map(VectorsReply::from_bytes) {
                Ok(Ok(reply)) => return Some(reply),
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            tracing::debug!(replica = name, error, "another replica's copy lends no vectors");

            // The time of one that is silent is all that this copy waits.
            if matches!(asked, Err(RequestError::Timeout { .. })) {
                return None;
            }
        }

        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_slot_that_is_ready_takes_from_none_and_the_others_from_those_before() {
        let lenders = |me: &str, is_ready| {
            let holders = ["h-2", "h-0", "h-1"].map(str::to_owned).to_vec();
            lenders_of(holders, me, is_ready)
        };
        assert_eq!(lenders("h-2", true), [""; 0]);
        assert_eq!(lenders("h-0", true), ["h-2"]);
        assert_eq!(lenders("h-1", true), ["h-2", "h-0"]);

        // One that is being built takes from all, as does one whose slot others have taken.
        assert_eq!(lenders("h-2", false), ["h-0", "h-1"]);
        assert_eq!(lenders("h-1", false), ["h-2", "h-0"]);
        for is_ready in [true, false] {
            assert_eq!(lenders("h-9", is_ready), ["h-2", "h-0", "h-1"]);
            assert_eq!(lenders_of(vec!["h-0".to_owned()], "h-0", is_ready), [""; 0]);
            assert_eq!(lenders_of(Vec::new(), "h-0", is_ready), [""; 0]);
        }
    }
}
