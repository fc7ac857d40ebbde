//! How far the origin of an event proves its sender. *Pure.*
//!
//! Source: `docs/design/trust.md` §1; `docs/security.md`.

use super::event::Event;
use super::origin::{EventOrigin, WEBCHAT, WEBHOOK};

/// Mail channels, by any protocol that fetches mail.
const MAIL: [&str; 6] = ["mail", "email", "imap", "smtp", "gmail", "jmap"];

/// The persons to which an event may resolve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProvenOrigin {
    /// Any person with the address on the channel or under `*`.
    OnEveryChannel,
    /// Any person with the address on the channel itself.
    OnItsChannel,
    /// A person with the address, if the event's [`Event::speaks_for`] names this person.
    SpokenFor,
    /// No person: the sender is a stranger.
    Nobody,
}

impl ProvenOrigin {
    fn spoken_for(event: &Event) -> Self {
        if event.speaks_for.is_empty() {
            Self::Nobody
        } else {
            Self::SpokenFor
        }
    }
}

impl EventOrigin {
    /// Returns whether an event of this origin may take part in the conversations of `event`'s channel and account. A
    /// stranger that names another sender's conversation gets a separate session.
    #[must_use]
    pub fn speaks_on(&self, event: &Event) -> bool {
        match self {
            Self::System | Self::Token { .. } | Self::Edge { .. } => true,
            Self::Verified { account } => match account.split_once('/') {
                Some((WEBCHAT, page)) => {
                    let page = page.split_once('/');
                    event.channel == WEBCHAT && page == Some((event.account(), &event.peer.id))
                }
                // A source has no account on the webhook channel, and may use another channel only if it may name
                // people.
                Some((WEBHOOK, _)) => event.channel == WEBHOOK || !event.speaks_for.is_empty(),
                Some((channel, account)) => event.channel == channel && event.account() == account,
                None => false,
            },
            Self::Open => false,
        }
    }

    /// Returns how far an origin of this kind proves that `event` is from `address` on its channel.
    #[must_use]
    pub fn proof_of_address(&self, event: &Event, address: &str) -> ProvenOrigin {
        match self {
            Self::System => ProvenOrigin::OnEveryChannel,
            Self::Token { .. } | Self::Edge { .. } => ProvenOrigin::spoken_for(event),
            Self::Verified { account } => match account.split_once('/') {
                Some((WEBHOOK, _)) => ProvenOrigin::spoken_for(event),
                // A visitor id is chosen by the visitor or given to the visitor: it is not an address on another
                // channel.
                Some((WEBCHAT, _)) if self.speaks_on(event) && address == event.peer.id => ProvenOrigin::OnItsChannel,
                Some((WEBCHAT, _)) | None => ProvenOrigin::Nobody,
                // An account that fetches mail does not prove a sender, because `From` is only the mail's claim. A
                // mail source that checks aligned DMARC must be added here.
                Some((channel, _)) if is_mail(channel) => ProvenOrigin::Nobody,
                Some(_) if self.speaks_on(event) => ProvenOrigin::OnEveryChannel,
                Some(_) => ProvenOrigin::Nobody,
            },
            Self::Open => ProvenOrigin::Nobody,
        }
    }
}

/// Returns whether the senders of `channel` are taken from a mail's `From` header.
fn is_mail(channel: &str) -> bool {
    MAIL.iter().any(|mail| channel.eq_ignore_ascii_case(mail))
}

#[cfg(test)]
mod tests {
    use super::super::event::EventId;
    use super::super::time::UnixMillis;
    use super::*;

    fn event(channel: &str, account: Option<&str>, peer: &str) -> Event {
        let mut event = Event::new(EventId::parse("x:1").unwrap(), channel, peer, UnixMillis(1));
        event.account_id = account.map(str::to_owned);
        event.from.id = peer.to_owned();
        event
    }

    #[test]
    fn an_account_proves_addresses_on_its_own_channel_only() {
        let telegram = EventOrigin::account("telegram", "bot");
        let own = event("telegram", Some("bot"), "7");
        assert_eq!(telegram.proof_of_address(&own, "7"), ProvenOrigin::OnEveryChannel);
        for foreign in [event("telegram", None, "7"), event("signal", Some("bot"), "7")] {
            assert_eq!(telegram.proof_of_address(&foreign, "7"), ProvenOrigin::Nobody);
            assert!(!telegram.speaks_on(&foreign));
        }
    }

    #[test]
    fn no_account_proves_what_a_mail_says_of_its_sender() {
        for channel in ["mail", "email", "Email", "imap", "gmail"] {
            let mail = event(channel, Some("inbox"), "owner@example.org");
            let origin = EventOrigin::account(channel, "inbox");
            assert_eq!(
                origin.proof_of_address(&mail, "owner@example.org"),
                ProvenOrigin::Nobody,
                "{channel}"
            );
            assert!(origin.speaks_on(&mail), "its conversations are its own");
        }
    }

    #[test]
    fn a_visitor_is_verified_for_themselves_alone() {
        let ann = EventOrigin::visitor("local", "ann/1");
        let own = event("webchat", Some("local"), "ann/1");
        assert_eq!(ann.proof_of_address(&own, "ann/1"), ProvenOrigin::OnItsChannel);
        assert_eq!(ann.proof_of_address(&own, "bob"), ProvenOrigin::Nobody);
        let of_bob = event("webchat", Some("local"), "bob");
        assert_eq!(ann.proof_of_address(&of_bob, "bob"), ProvenOrigin::Nobody);
    }

    #[test]
    fn webhooks_tokens_and_edges_prove_whom_they_speak_for() {
        let mut said = event("webhook", None, "owner");
        let origins = ["verified:webhook/std", "token:crm", "edge:roof"].map(|text| EventOrigin::parse(text).unwrap());
        for origin in &origins {
            assert_eq!(
                origin.proof_of_address(&said, "owner"),
                ProvenOrigin::Nobody,
                "{origin}"
            );
        }

        said.speaks_for = vec!["casey".to_owned()];

        for origin in &origins {
            assert_eq!(
                origin.proof_of_address(&said, "owner"),
                ProvenOrigin::SpokenFor,
                "{origin}"
            );
        }

        assert_eq!(EventOrigin::Open.proof_of_address(&said, "owner"), ProvenOrigin::Nobody);
    }
}
