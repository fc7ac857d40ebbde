//! A destination: what order is kept for, and its subjects in three streams. *Pure.* Source: `docs/design/wire.md` §2.

use std::sync::Arc;

use shared::wire::subject::parse_delivery;

/// Where deliveries come in.
const PUBLISHED_ROOT: &str = "nexus.delivery";
/// Where deliveries are stored.
const DELIVERY_ROOT: &str = "nexus.dl";
/// Where a partition's parked replies are, by destination.
const PARKED_ROOT: &str = "nexus.parked";
/// Where a destination's receipts are.
const RECEIPT_ROOT: &str = "nexus.receipt";

/// Where events are stored.
const SENT_ROOT: &str = "nexus.ev";

/// One (channel, account, peer): its deliveries are made strictly in order. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    partition: u16,
    /// `{channel}.{account}.{peer}`, encoded.
    tokens: Arc<str>,
}

impl Destination {
    /// The destination of a stored delivery (`nexus.dl.<partition>.<channel>.<account>.<peer>`).
    #[must_use]
    pub fn of_delivery(subject: &str) -> Option<Self> {
        let stored = parse_delivery(subject)?;
        let tokens = [stored.channel, stored.account, stored.peer].join(".");
        Some(Self {
            partition: stored.partition,
            tokens: tokens.into(),
        })
    }

    /// The destination of a parked reply (see [`Self::parked_subject`]).
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

    /// Where its deliveries come in.
    #[must_use]
    pub fn published_subject(&self) -> String {
        format!("{PUBLISHED_ROOT}.{}", self.tokens)
    }

    /// Where its deliveries are stored.
    #[must_use]
    pub fn delivery_subject(&self) -> String {
        format!("{DELIVERY_ROOT}.{}.{}", self.partition, self.tokens)
    }

    /// Where its receipts are.
    #[must_use]
    pub fn receipt_subject(&self) -> String {
        format!("{RECEIPT_ROOT}.{}", self.tokens)
    }

    /// Where the events of what was sent to it are stored, in any partition.
    #[must_use]
    pub fn sent_subject(&self) -> String {
        format!("{SENT_ROOT}.*.{}", self.tokens)
    }

    /// Where its replies are parked.
    #[must_use]
    pub fn parked_subject(&self) -> String {
        format!("{PARKED_ROOT}.{}.{}", self.partition, self.tokens)
    }

    /// Its three tokens, for logs.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.tokens
    }
}

/// Where all parked replies of `partition` are.
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

        let tokens = subject::delivery(&target).replace("nexus.delivery.", "");
        let destination = Destination::of_delivery(&format!("nexus.dl.17.{tokens}")).expect("a destination");
        assert_eq!(destination.delivery_subject(), format!("nexus.dl.17.{tokens}"));
        assert_eq!(destination.published_subject(), subject::delivery(&target));
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
