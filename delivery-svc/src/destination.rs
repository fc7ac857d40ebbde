//! Destinations: the unit within which deliveries are ordered, and its subjects. *Pure.* Source:
//! `docs/design/wire.md` §2.

use std::sync::Arc;

use shared::model::dispatch::DeliveryContext;
use shared::wire::partition::hashed_partition;
use shared::wire::subject::{delivery, parse_delivery};

/// Prefix of the subjects to which deliveries are published.
const PUBLISHED_ROOT: &str = "nexus.delivery";
/// Prefix of the subjects under which deliveries are stored.
const DELIVERY_ROOT: &str = "nexus.dl";
/// Prefix of the subjects of parked replies, by partition and destination.
const PARKED_ROOT: &str = "nexus.parked";
/// Prefix of the subjects of receipts.
const RECEIPT_ROOT: &str = "nexus.receipt";

/// Prefix of the subjects of stored events.
const SENT_ROOT: &str = "nexus.ev";

/// Returns the partition of the deliveries to `target`, as the server computes it: FNV-1a of the channel's and the
/// account's tokens.
#[must_use]
pub fn partition_of(target: &DeliveryContext) -> u16 {
    let subject = delivery(target);
    let tokens = subject.split('.').skip(PUBLISHED_ROOT.split('.').count()).take(2);
    hashed_partition(tokens)
}

/// A channel, account and peer, to which deliveries are made strictly in order. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    partition: u16,
    /// Encoded tokens of channel, account and peer: `{channel}.{account}.{peer}`.
    tokens: Arc<str>,
}

impl Destination {
    /// Returns the destination of a stored delivery (`nexus.dl.<partition>.<channel>.<account>.<peer>`).
    #[must_use]
    pub fn of_delivery(subject: &str) -> Option<Self> {
        let stored = parse_delivery(subject)?;
        let tokens = [stored.channel, stored.account, stored.peer].join(".");
        Some(Self {
            partition: stored.partition,
            tokens: tokens.into(),
        })
    }

    /// Returns the destination of a parked reply (see [`Self::parked_subject`]).
    #[must_use]
    pub fn of_parked(subject: &str) -> Option<Self> {
        let rest = subject.strip_prefix(PARKED_ROOT)?.strip_prefix('.')?;
        let (partition, tokens) = rest.split_once('.')?;
        let whole = tokens.split('.').filter(|token| !token.is_empty()).count() == 3;
        let partition = partition.parse().ok()?;
        whole.then(|| Self {
            partition,
            tokens: tokens.into(),
        })
    }

    /// Returns the subject to which its deliveries are published.
    #[must_use]
    pub fn published_subject(&self) -> String {
        format!("{PUBLISHED_ROOT}.{}", self.tokens)
    }

    /// Returns the subject under which its deliveries are stored.
    #[must_use]
    pub fn delivery_subject(&self) -> String {
        format!("{DELIVERY_ROOT}.{}.{}", self.partition, self.tokens)
    }

    /// Returns the subject of its receipts.
    #[must_use]
    pub fn receipt_subject(&self) -> String {
        format!("{RECEIPT_ROOT}.{}", self.tokens)
    }

    /// Returns the subject of the events of its sent parts, in any partition.
    #[must_use]
    pub fn sent_subject(&self) -> String {
        format!("{SENT_ROOT}.*.{}", self.tokens)
    }

    /// Returns the subject of its parked replies.
    #[must_use]
    pub fn parked_subject(&self) -> String {
        format!("{PARKED_ROOT}.{}.{}", self.partition, self.tokens)
    }

    /// Returns its three tokens, for logs.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.tokens
    }
}

/// Returns the subject of all parked replies in `partition`.
#[must_use]
pub fn parked_of(partition: u16) -> String {
    format!("{PARKED_ROOT}.{partition}.>")
}

#[cfg(test)]
mod tests {
    use shared::model::dispatch::DeliveryContext;
    use shared::wire::subject;

    use super::*;

    #[test]
    fn subjects_of_a_delivery() {
        let target = DeliveryContext {
            channel: "webhook".to_owned(),
            account_id: Some("demo".to_owned()),
            peer_id: Some("a.b".to_owned()),
            ..DeliveryContext::default()
        };

        let tokens = delivery(&target).replace("nexus.delivery.", "");
        let destination = Destination::of_delivery(&format!("nexus.dl.17.{tokens}")).expect("a destination");
        assert_eq!(destination.delivery_subject(), format!("nexus.dl.17.{tokens}"));
        assert_eq!(destination.published_subject(), delivery(&target));
        assert_eq!(destination.receipt_subject(), subject::receipt(&target));
        assert_eq!(destination.parked_subject(), "nexus.parked.17.webhook.demo.a=2Eb");
        assert_eq!(Destination::of_parked(&destination.parked_subject()), Some(destination));
    }

    #[test]
    fn other_subjects_are_no_destinations() {
        for subject in ["nexus.dl.x.a.b.c", "nexus.dl.1.a.b", "nexus.ev.1.a.b.c", ""] {
            assert_eq!(Destination::of_delivery(subject), None, "{subject}");
        }

        for subject in [
            "nexus.parked.1.a.b",
            "nexus.parked.1.a.b.",
            "nexus.parked.a.b.c.d",
            "nexus.dl.1.a.b.c",
        ] {
            assert_eq!(Destination::of_parked(subject), None, "{subject}");
        }
    }
}
