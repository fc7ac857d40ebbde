//! Origins: the sender that brought an event, as opposed to the sender that its content claims. *Pure.*
//!
//! A caller cannot set an origin. adapter-svc stamps it when it receives an event, the services stamp
//! [`EventOrigin::System`] on events that they publish themselves, and readers derive it again from the stored subject and
//! the seal ([`crate::wire::seal::TrustKeys::admit_event`]). Source: `docs/design/trust.md` §1; `docs/security.md`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// Maximum length of the name of an account, a token or an edge, in bytes.
pub const MAX_ORIGIN_NAME_BYTES: usize = 1_024;

/// Channel of webhooks, and first segment of the accounts of their sources: `webhook/{source}`.
pub const WEBHOOK: &str = "webhook";
/// Channel of chat pages, and first segment of their accounts: `webchat/{account}/{visitor}`.
pub const WEBCHAT: &str = "webchat";

/// Channel of a party that follows the link of a card sent to that party's own address.
pub const LINK: &str = "link";

/// Id prefix of events without a seal: `open:{channel}/{account}/…`. No source may use it.
pub const OPEN: &str = "open";

/// Id prefixes of events that Nexus's own services publish (a delivery, a timer, an agent): no human wrote them.
pub const OWN_ADAPTERS: [&str; 3] = ["out", "timer", "agent"];

/// Entry of [`Event::speaks_for`](super::event::Event::speaks_for) that means every person of `identities.yaml`.
pub const EVERYBODY: &str = "*";

/// Adapters and channels beside [`OWN_ADAPTERS`] by which the installation itself speaks, or vouches for a person.
const VOUCHED: [&str; 4] = ["cli", LINK, "turn", "approval"];

/// Returns whether only the installation itself may use `name` as an id prefix or channel. Outside senders are
/// refused.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    let mut all = OWN_ADAPTERS.iter().chain(&VOUCHED).chain(&[OPEN]);
    all.any(|reserved| name.eq_ignore_ascii_case(reserved))
}

/// Channels of platforms whose accounts adapter-svc reads by itself. The settings of an account decide which users may
/// write to it, so no other publisher may use these channels.
pub const PLATFORM_CHANNELS: [&str; 3] = ["telegram", "slack", "discord"];

/// Returns whether all publishers of a channel seal: Nexus's own channels, the chat page's, the webhook sources' and those of
/// the accounts on platforms. No token, webhook source or edge may have one.
#[must_use]
pub fn is_sealed_channel(name: &str) -> bool {
    let mut sealed = [WEBHOOK, WEBCHAT].iter().chain(&PLATFORM_CHANNELS);
    is_reserved(name) || sealed.any(|own| name.eq_ignore_ascii_case(own))
}

/// The party that brought an event.
///
/// ```
/// use shared::model::origin::EventOrigin;
///
/// let origin = EventOrigin::parse("verified:telegram/bot")?;
/// assert_eq!(origin, EventOrigin::account("telegram", "bot"));
/// assert!(origin.is_verified() && EventOrigin::parse("open")?.is_open());
/// assert!(EventOrigin::parse("owner").is_err());
/// # Ok::<(), shared::model::origin::ParseOriginError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum EventOrigin {
    /// A signature or a platform account proves which account brought the event.
    Verified {
        /// Account as `{channel}/{account}`, e.g. `telegram/bot`; `webhook/{source}`; `webchat/{account}/{visitor}`.
        account: String,
    },
    /// A caller with a bearer token of `/v1/events`.
    Token {
        /// Name of the token.
        name: String,
    },
    /// An edge of `[edges.<name>]`, which sealed the event with its own key.
    Edge {
        /// Name of the edge.
        name: String,
    },
    /// A Nexus service: a timer, an agent, or a part of a reply that was sent.
    System,
    /// Unknown: the party that brought the event is not proven.
    #[default]
    Open,
}

/// The reason why a text is not an origin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseOriginError {
    /// The text has none of the five forms.
    #[error("origin `{0}`: expected verified:ACCOUNT, token:NAME, edge:NAME, system or open")]
    Form(String),
    /// The name is empty, too long, or contains a control character.
    #[error("origin `{0}`: expected a name of 1 to {MAX_ORIGIN_NAME_BYTES} bytes without control characters")]
    Name(String),
}

impl EventOrigin {
    /// Returns the origin of events that a chat account brings: `account` on `channel`.
    #[must_use]
    pub fn account(channel: &str, account: &str) -> Self {
        Self::Verified {
            account: format!("{channel}/{account}"),
        }
    }

    /// Returns the origin of requests that the webhook source `source` has signed.
    #[must_use]
    pub fn webhook(source: &str) -> Self {
        Self::account(WEBHOOK, source)
    }

    /// Returns the origin of messages that `visitor` writes on the chat page of `account`.
    #[must_use]
    pub fn visitor(account: &str, visitor: &str) -> Self {
        Self::Verified {
            account: format!("{WEBCHAT}/{account}/{visitor}"),
        }
    }

    /// Parses the wire form.
    ///
    /// # Errors
    /// Returns [`ParseOriginError`] if `text` is not exactly one of the five forms.
    pub fn parse(text: &str) -> Result<Self, ParseOriginError> {
        // An error repeats only the beginning of a text from outside.
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

    /// Returns whether this is [`EventOrigin::Open`]: nothing proves who brought the event.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self, Self::Open)
    }

    /// Returns whether this is [`EventOrigin::Verified`]: a platform account or a signature proves who brought the event.
    #[must_use]
    pub const fn is_verified(&self) -> bool {
        matches!(self, Self::Verified { .. })
    }

    /// Returns the name of `id` for an origin that does not prove it. No proven name has this prefix
    /// ([`proven_name`]).
    #[must_use]
    pub fn said_name(&self, id: &str) -> String {
        format!("~{}~{id}", self.to_string().replace('~', "~~"))
    }
}

/// Returns the name of an `id` that an origin proves: `id`, escaped if it looks like an unproven name
/// ([`EventOrigin::said_name`]).
#[must_use]
pub fn proven_name(id: &str) -> Cow<'_, str> {
    if id.starts_with('~') {
        Cow::Owned(format!("~={id}"))
    } else {
        Cow::Borrowed(id)
    }
}

impl std::fmt::Display for EventOrigin {
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

impl TryFrom<String> for EventOrigin {
    type Error = ParseOriginError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
    }
}

impl From<EventOrigin> for String {
    fn from(origin: EventOrigin) -> Self {
        origin.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_wire_form_is_strict() {
        for text in ["verified:webchat/local/v:1", "token:crm", "edge:roof", "system", "open"] {
            assert_eq!(EventOrigin::parse(text).unwrap().to_string(), text);
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
            assert!(EventOrigin::parse(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_parses_is_written_the_same(text in "(verified:|token:|edge:|system|open)?\\PC{0,40}") {
            if let Ok(origin) = EventOrigin::parse(&text) {
                prop_assert_eq!(origin.to_string(), text);
            }
        }
    }
}
