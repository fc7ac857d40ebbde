//! Where an event comes from: who brought it, never what it says. *Pure.*
//!
//! A caller cannot set an origin. adapter-svc stamps it at its doors, the services stamp [`Origin::System`] on what
//! they publish themselves, and readers derive it again from the stored subject and the seal
//! ([`crate::wire::seal::Trust::admit`]). Source: `docs/design/trust.md` §1; `docs/security.md`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::approval_api::LINK;
use super::event::{Event, OWN_ADAPTERS};

/// Longest name of an account, a token or an edge, in bytes.
pub const MAX_ORIGIN_NAME_BYTES: usize = 1_024;

/// The channel of webhooks, and the first segment of the accounts of their sources: `webhook/{source}`.
pub const WEBHOOK: &str = "webhook";
/// The channel of chat pages, and the first segment of their accounts: `webchat/{account}/{visitor}`.
pub const WEBCHAT: &str = "webchat";

/// The prefix of the ids of events that nobody sealed: `open:{channel}/{account}/…`. No source may have it.
pub const OPEN: &str = "open";

/// In [`Event::speaks_for`]: every person of `identities.yaml`.
pub const EVERYBODY: &str = "*";

/// Channels of mail, by whatever protocol it is fetched.
const MAIL: [&str; 6] = ["mail", "email", "imap", "smtp", "gmail", "jmap"];

/// Adapters and channels beside [`OWN_ADAPTERS`] by which the installation itself speaks, or vouches for somebody.
const VOUCHED: [&str; 4] = ["cli", LINK, "turn", "approval"];

/// Whether an id's prefix, or a channel, is one that only the system itself gives: nobody outside may speak in its name.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    let mut all = OWN_ADAPTERS.iter().chain(&VOUCHED).chain(&[OPEN]);
    all.any(|reserved| name.eq_ignore_ascii_case(reserved))
}

/// Whether a channel has only publishers that seal: the system's own, the chat page's and the webhook sources'.
#[must_use]
pub fn is_sealed_channel(name: &str) -> bool {
    is_reserved(name) || [WEBHOOK, WEBCHAT].iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// Whether the senders of a channel are what a mail's `From` says.
fn is_mail(channel: &str) -> bool {
    MAIL.iter().any(|mail| channel.eq_ignore_ascii_case(mail))
}

/// Who brought an event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Origin {
    /// A signature or a platform's account proves which account brought it.
    Verified {
        /// `{channel}/{account}`, e.g. `telegram/bot`; `webhook/{source}`; `webchat/{account}/{visitor}`.
        account: String,
    },
    /// A bearer token of `/v1/events`.
    Token {
        /// The token's name.
        name: String,
    },
    /// An edge of `[edges.<name>]`, which sealed it with its own key.
    Edge {
        /// The edge's name.
        name: String,
    },
    /// One of the services: a timer, an agent, a part that was sent.
    System,
    /// Nothing proves who brought it.
    #[default]
    Open,
}

/// Why a text is not an origin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseOriginError {
    /// None of the five forms.
    #[error("origin `{0}`: expected verified:ACCOUNT, token:NAME, edge:NAME, system or open")]
    Form(String),
    /// The name is empty, too long, or holds a control character.
    #[error("origin `{0}`: expected a name of 1 to {MAX_ORIGIN_NAME_BYTES} bytes without control characters")]
    Name(String),
}

impl Origin {
    /// The origin of what a chat account brought: `account` of ours on `channel`.
    #[must_use]
    pub fn account(channel: &str, account: &str) -> Self {
        Self::Verified {
            account: format!("{channel}/{account}"),
        }
    }

    /// The origin of a request that is signed by the webhook source `source`.
    #[must_use]
    pub fn webhook(source: &str) -> Self {
        Self::account(WEBHOOK, source)
    }

    /// The origin of what `visitor` wrote on the chat page of `account`.
    #[must_use]
    pub fn visitor(account: &str, visitor: &str) -> Self {
        Self::Verified {
            account: format!("{WEBCHAT}/{account}/{visitor}"),
        }
    }

    /// Reads the wire form.
    ///
    /// # Errors
    /// [`ParseOriginError`] if it is not exactly one of the five forms.
    pub fn parse(text: &str) -> Result<Self, ParseOriginError> {
        let short = || text.chars().take(64).collect::<String>();
        let name = |name: &str| {
            let fits = !name.is_empty() && name.len() <= MAX_ORIGIN_NAME_BYTES && !name.contains(char::is_control);
            if fits {
                Ok(name.to_owned())
            } else {
                Err(ParseOriginError::Name(short()))
            }
        };

        match text.split_once(':') {
            None if text == "system" => Ok(Self::System),
            None if text == OPEN => Ok(Self::Open),
            Some(("verified", account)) => Ok(Self::Verified {
                account: name(account)?,
            }),
            Some(("token", token)) => Ok(Self::Token { name: name(token)? }),
            Some(("edge", edge)) => Ok(Self::Edge { name: name(edge)? }),
            Some(_) | None => Err(ParseOriginError::Form(short())),
        }
    }

    /// Whether it is [`Origin::Open`]: nothing proves who brought the event.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }

    /// Whether it is [`Origin::Verified`]: a platform's account or a signature proves who brought the event.
    #[must_use]
    pub const fn is_verified(&self) -> bool {
        matches!(self, Self::Verified { .. })
    }

    /// The name of `id` if this origin does not prove it: no proven name begins so ([`proven_name`]).
    #[must_use]
    pub fn said_name(&self, id: &str) -> String {
        format!("~{}~{id}", self.to_string().replace('~', "~~"))
    }

    /// Whether an event of this origin may stand for the conversations of `event`'s channel and account: a stranger
    /// who names another one's conversation gets a session apart.
    #[must_use]
    pub fn speaks_on(&self, event: &Event) -> bool {
        match self {
            Self::System | Self::Token { .. } | Self::Edge { .. } => true,
            Self::Verified { account } => match account.split_once('/') {
                Some((WEBCHAT, page)) => {
                    let page = page.split_once('/');
                    event.channel == WEBCHAT && page == Some((event.account(), &event.peer.id))
                }
                // A source has no account of ours on the channel of webhooks, and no other channel unless it may name people.
                Some((WEBHOOK, _)) => event.channel == WEBHOOK || !event.speaks_for.is_empty(),
                Some((channel, account)) => event.channel == channel && event.account() == account,
                None => false,
            },
            Self::Open => false,
        }
    }

    /// How far `event` of this origin proves that it is from `address` on its channel.
    #[must_use]
    pub fn proof(&self, event: &Event, address: &str) -> Proven {
        match self {
            Self::System => Proven::OnEveryChannel,
            Self::Token { .. } | Self::Edge { .. } => Proven::spoken_for(event),
            Self::Verified { account } => match account.split_once('/') {
                Some((WEBHOOK, _)) => Proven::spoken_for(event),
                // The visitor chose or was given their id: it is nobody's address elsewhere.
                Some((WEBCHAT, _)) if self.speaks_on(event) && address == event.peer.id => Proven::OnItsChannel,
                Some((WEBCHAT, _)) | None => Proven::Nobody,
                // An account that fetches mail proves no sender: `From` is what the mail says. A door for mail that checks
                // aligned DMARC has to say so here.
                Some((channel, _)) if is_mail(channel) => Proven::Nobody,
                Some(_) if self.speaks_on(event) => Proven::OnEveryChannel,
                Some(_) => Proven::Nobody,
            },
            Self::Open => Proven::Nobody,
        }
    }
}

/// The name of `id` that an origin proves: itself, escaped if it looks like an unproven one ([`Origin::said_name`]).
#[must_use]
pub fn proven_name(id: &str) -> Cow<'_, str> {
    if id.starts_with('~') {
        Cow::Owned(format!("~={id}"))
    } else {
        Cow::Borrowed(id)
    }
}

/// Whom an event may resolve to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proven {
    /// Any person with the address on the channel, or under `*`.
    OnEveryChannel,
    /// Any person with the address on the channel itself.
    OnItsChannel,
    /// A person with the address whom the event's [`Event::speaks_for`] names.
    SpokenFor,
    /// Nobody: a stranger.
    Nobody,
}

impl Proven {
    fn spoken_for(event: &Event) -> Self {
        if event.speaks_for.is_empty() {
            Self::Nobody
        } else {
            Self::SpokenFor
        }
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Verified { account } => write!(f, "verified:{account}"),
            Self::Token { name } => write!(f, "token:{name}"),
            Self::Edge { name } => write!(f, "edge:{name}"),
            Self::System => f.write_str("system"),
            Self::Open => f.write_str(OPEN),
        }
    }
}

impl TryFrom<String> for Origin {
    type Error = ParseOriginError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
    }
}

impl From<Origin> for String {
    fn from(origin: Origin) -> Self {
        origin.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
    fn the_wire_form_is_strict() {
        for text in ["verified:webchat/local/v:1", "token:crm", "edge:roof", "system", "open"] {
            assert_eq!(Origin::parse(text).unwrap().to_string(), text);
        }

        for text in [
            "",
            "Open",
            "system:",
            "verified",
            "token:",
            "edge:a\nb",
            "root:x",
            "open:x",
        ] {
            assert!(Origin::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_account_proves_addresses_on_its_own_channel_only() {
        let telegram = Origin::account("telegram", "bot");
        let own = event("telegram", Some("bot"), "7");
        assert_eq!(telegram.proof(&own, "7"), Proven::OnEveryChannel);
        for foreign in [event("telegram", None, "7"), event("signal", Some("bot"), "7")] {
            assert_eq!(telegram.proof(&foreign, "7"), Proven::Nobody);
            assert!(!telegram.speaks_on(&foreign));
        }
    }

    #[test]
    fn no_account_proves_what_a_mail_says_of_its_sender() {
        for channel in ["mail", "email", "Email", "imap", "gmail"] {
            let mail = event(channel, Some("inbox"), "owner@example.org");
            let origin = Origin::account(channel, "inbox");
            assert_eq!(origin.proof(&mail, "owner@example.org"), Proven::Nobody, "{channel}");
            assert!(origin.speaks_on(&mail), "its conversations are its own");
        }
    }

    #[test]
    fn a_visitor_is_verified_for_themselves_alone() {
        let ann = Origin::visitor("local", "ann/1");
        let own = event("webchat", Some("local"), "ann/1");
        assert_eq!(ann.proof(&own, "ann/1"), Proven::OnItsChannel);
        assert_eq!(ann.proof(&own, "bob"), Proven::Nobody);
        let of_bob = event("webchat", Some("local"), "bob");
        assert_eq!(ann.proof(&of_bob, "bob"), Proven::Nobody);
    }

    #[test]
    fn webhooks_tokens_and_edges_prove_whom_they_speak_for() {
        let mut said = event("webhook", None, "owner");
        let origins = ["verified:webhook/std", "token:crm", "edge:roof"].map(|text| Origin::parse(text).unwrap());
        for origin in &origins {
            assert_eq!(origin.proof(&said, "owner"), Proven::Nobody, "{origin}");
        }

        said.speaks_for = vec!["casey".to_owned()];

        for origin in &origins {
            assert_eq!(origin.proof(&said, "owner"), Proven::SpokenFor, "{origin}");
        }

        assert_eq!(Origin::Open.proof(&said, "owner"), Proven::Nobody);
    }

    proptest! {
        #[test]
        fn what_parses_is_written_the_same(text in "(verified:|token:|edge:|system|open)?\\PC{0,40}") {
            if let Ok(origin) = Origin::parse(&text) {
                prop_assert_eq!(origin.to_string(), text);
            }
        }
    }
}
