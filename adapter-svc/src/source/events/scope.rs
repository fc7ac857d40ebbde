//! Scopes of the callers of `/v1/events`, by token or for callers without one. *Pure.*
//!
//! A source owns its ids: every id from a caller gets the prefix `{source}:` of its token, so no caller can use,
//! update or delete an event of another source. Several tokens may share a source, so that a new token duplicates no
//! events. Source: `docs/design/trust.md` §1.2, §1.3; `docs/security.md`.

use shared::model::event::{AttachmentState, Event, EventId, EventQuote, MAX_EVENT_ID_BYTES, ParseEventIdError};
use shared::model::origin::{EventOrigin, OPEN, PLATFORM_CHANNELS, WEBCHAT, is_reserved, is_sealed_channel};
use shared::model::time::UnixMillis;
use shared::process::config::{MAX_NAME_BYTES, is_plain_name};

use super::posted::PostedEvent;
use crate::normalize::{self, RefuseEventError, bounded_id};
use crate::source::port::GAP;

/// Name and source of the token of this machine's command line.
pub const LOCAL: &str = "local";
/// Channels of that token.
const LOCAL_CHANNELS: [&str; 2] = ["cli", "http"];
/// Id prefix of events that Nexus sent, to which any caller may reply.
const SENT: &str = "out:";

/// Id prefixes that no token's source may have, beside those of the services ([`is_reserved`]) and of the platforms.
const TAKEN_SOURCES: [&str; 6] = ["webchat", "webhook", OPEN, LOCAL, "system", GAP];

/// Returns whether no token may post ids with the prefix `source`.
fn is_taken(source: &str) -> bool {
    let mut taken = TAKEN_SOURCES.iter().chain(&PLATFORM_CHANNELS);
    is_reserved(source) || taken.any(|own| source.eq_ignore_ascii_case(own))
}

/// The scope of a caller; see the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenScope {
    /// Name of the token; `None` = a caller without one.
    token: Option<String>,
    /// Prefix of its ids, without the colon.
    source: String,
    /// Channels of the token; `None` = every channel that is neither Nexus's own nor a platform's.
    channels: Option<Vec<String>>,
    /// Ids of the persons as whom its senders may count.
    persons: Vec<String>,
}

impl TokenScope {
    /// Returns the scope of a configured token.
    #[must_use]
    pub const fn for_token(name: String, source: String, channels: Vec<String>, persons: Vec<String>) -> Self {
        Self {
            token: Some(name),
            source,
            channels: Some(channels),
            persons,
        }
    }

    /// Returns the scope of the token that `nexus init`, `up` and `demo` create for this machine: two channels, no
    /// person.
    #[must_use]
    pub fn for_local_token() -> Self {
        let channels = LOCAL_CHANNELS.map(str::to_owned).to_vec();
        Self::for_token(LOCAL.to_owned(), LOCAL.to_owned(), channels, Vec::new())
    }

    /// Returns the scope of a caller without a token, if `adapter.http.open` accepts those: a stranger on every
    /// channel.
    #[must_use]
    pub fn open() -> Self {
        Self {
            token: None,
            source: OPEN.to_owned(),
            channels: None,
            persons: Vec::new(),
        }
    }

    /// Returns the event of `posted`.
    ///
    /// # Errors
    /// Returns [`RefuseEventError`] with the field.
    pub fn to_event(&self, posted: PostedEvent, now: UnixMillis) -> Result<Event, RefuseEventError> {
        // Flat fields are accepted as well as nested ones.
        let posted = posted.with_nested_fields();
        let mut event = Event::new(self.id(&posted.id)?, &posted.channel, &posted.peer.id, posted.timestamp);
        // `Event::new` has already set it to the part after the prefix.
        if !posted.source_id.is_empty() {
            event.source_id = posted.source_id;
        }

        event.account_id = posted.account_id;
        event.direction = posted.direction;
        event.from = posted.from;
        event.participants = posted.participants;
        event.peer = posted.peer;
        event.thread_id = posted.thread_id;
        event.reply_to = posted.reply_to.map(|said| self.resolve_reference(&said)).transpose()?;
        event.target = posted.target.map(|said| self.resolve_reference(&said)).transpose()?;
        event.quote = posted.quote.map(|quote| self.resolve_quote(quote)).transpose()?;
        event.edited_at = posted.edited_at;
        event.mention = posted.mention;
        event.content = posted.content;
        event.content_types = posted.content_types;
        event.attachments = posted.attachments;
        for attachment in &mut event.attachments {
            // Only Nexus itself knows which attachments it has stored or refused.
            attachment.state = AttachmentState::Remote;
            attachment.max_bytes = None;
        }

        event.metadata = posted.metadata;
        event.tags = posted.tags;
        event.hops = posted.hops;

        self.stamp_event(event, now)
    }

    /// Sets the origin of `event`, whose ids are already in this scope.
    ///
    /// # Errors
    /// Returns [`RefuseEventError`] if its channel is not in scope, or a field is out of bounds.
    pub fn stamp_event(&self, mut event: Event, now: UnixMillis) -> Result<Event, RefuseEventError> {
        self.check_channel(&event.channel)?;
        event.origin = match &self.token {
            Some(name) => EventOrigin::Token { name: name.clone() },
            None => EventOrigin::Open,
        };
        event.speaks_for.clone_from(&self.persons);
        normalize::check_posted(event, now)
    }

    /// Returns the id of `said` in this scope: `said` itself if it has the scope's prefix, otherwise
    /// `{source}:{said}`.
    ///
    /// # Errors
    /// Returns [`RefuseEventError::Id`] if `said` is empty, too long, or contains a control character.
    pub fn id(&self, said: &str) -> Result<EventId, RefuseEventError> {
        let prefix = format!("{}:", self.source);
        if said.starts_with(&prefix) {
            return Ok(EventId::parse(said)?);
        }

        // The original text is checked, because a text with the prefix would only be hashed.
        let wrong = match said.chars().find(|c| c.is_control()) {
            Some(control) => Some(ParseEventIdError::Control(u32::from(control))),
            None if said.is_empty() => Some(ParseEventIdError::Empty),
            None if said.len() > MAX_EVENT_ID_BYTES => Some(ParseEventIdError::TooLong(said.len())),
            None => None,
        };

        match wrong {
            Some(error) => Err(error.into()),
            None => Ok(bounded_id(&prefix, said)?),
        }
    }

    /// Returns the id of a CloudEvent: `{source}:{ce-source}/{ce-id}`. A `/` in `id` is escaped, so that the last `/`
    /// ends the source.
    ///
    /// # Errors
    /// Returns [`RefuseEventError::Id`] if the id is invalid.
    pub fn cloud_id(&self, source: &str, id: &str) -> Result<EventId, RefuseEventError> {
        let id = id.replace('%', "%25").replace('/', "%2F");
        Ok(bounded_id(&format!("{}:", self.source), &format!("{source}/{id}"))?)
    }

    /// Returns the id of an event to which another refers. Events that Nexus sent keep their id.
    fn resolve_reference(&self, said: &str) -> Result<String, RefuseEventError> {
        if said.starts_with(SENT) {
            return Ok(EventId::parse(said)?.to_string());
        }
        Ok(self.id(said)?.to_string())
    }

    /// Returns `quote` with the id of the event that it quotes in this scope.
    fn resolve_quote(&self, quote: EventQuote) -> Result<EventQuote, RefuseEventError> {
        Ok(EventQuote {
            id: self.resolve_reference(&quote.id)?,
            ..quote
        })
    }

    fn check_channel(&self, channel: &str) -> Result<(), RefuseEventError> {
        match &self.channels {
            Some(channels) if channels.iter().any(|own| own == channel) => Ok(()),
            Some(_) => Err(RefuseEventError::Channel {
                token: self.token.clone().unwrap_or_default(),
                channel: channel.chars().take(MAX_NAME_BYTES).collect(),
            }),
            // On the channel of chat pages the caller is a stranger; a webhook's hooks trust its signature, and an account on
            // a platform decides who may write to it.
            None if is_sealed_channel(channel) && !channel.eq_ignore_ascii_case(WEBCHAT) => {
                Err(RefuseEventError::Reserved(channel.to_owned()))
            }
            None => Ok(()),
        }
    }
}

/// Returns the errors in a token's `name`, `source` and `channels`, as `key: expected value`.
#[must_use]
pub fn find_faults(name: &str, source: &str, channels: &[String]) -> Vec<String> {
    let mut faults = Vec::new();
    if !is_plain_name(name) {
        faults.push(format!(
            "name: expected letters, digits, `-`, `_` and `.`, at most {MAX_NAME_BYTES}"
        ));
    } else if name == LOCAL {
        faults.push(format!("name: `{LOCAL}` is the name of adapter.http.local_token"));
    }

    // The source is the prefix of all ids that the token posts.
    if !is_plain_name(source) {
        faults.push(format!(
            "source: expected letters, digits, `-`, `_` and `.`, at most {MAX_NAME_BYTES}"
        ));
    } else if is_taken(source) {
        faults.push(format!(
            "source: `{source}` is a prefix of the system's own ids; choose another"
        ));
    }

    if channels.is_empty() {
        faults.push("channels: expected at least one channel".to_owned());
    }

    for (index, channel) in channels.iter().enumerate() {
        let own = is_sealed_channel(channel);
        if channel.is_empty() || channel.contains(char::is_control) {
            faults.push(format!("channels[{index}]: expected the name of a channel"));
        } else if own {
            faults.push(format!(
                "channels[{index}]: `{channel}` is the system's own or a platform's; no token may have it"
            ));
        }
    }

    faults
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use shared::model::event::PeerKind;

    use super::*;

    fn shop() -> TokenScope {
        TokenScope::for_token(
            "shop-1".to_owned(),
            "shop".to_owned(),
            vec!["crm".to_owned()],
            Vec::new(),
        )
    }

    fn posted(text: &str) -> PostedEvent {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn the_seeds_flat_event_is_read() {
        let text = r#"{"id":"crm:abc123","channel":"crm","from":"+15559876543","content":"help","peerKind":"dm",
                       "contentType":"text","replyToId":"crm:abc122","timestamp":1738180000000}"#;
        let event = shop().to_event(posted(text), UnixMillis(1_738_180_000_000)).unwrap();
        assert_eq!(
            (event.from.id.as_str(), event.content_types.as_slice()),
            ("+15559876543", &["text".to_owned()][..])
        );
        assert_eq!(
            (event.peer.kind, event.peer.id.as_str()),
            (PeerKind::Dm, "+15559876543")
        );

        assert_eq!(event.reply_to.as_deref(), Some("shop:crm:abc122"));

        let text = r#"{"id":"2","channel":"crm","senderId":"u7","peerKind":"group","peerId":"room","timestamp":1}"#;
        let event = shop().to_event(posted(text), UnixMillis(2)).unwrap();
        assert_eq!((event.from.id.as_str(), event.peer.id.as_str()), ("u7", "room"));
        assert_eq!(event.peer.kind, PeerKind::Group);

        let wrong = r#"{"id":"3","channel":"crm","from":{"identity":"u7"},"timestamp":1}"#;
        let fault = serde_json::from_str::<PostedEvent>(wrong).unwrap_err().to_string();
        assert!(fault.contains("from: ") && fault.contains("identity"), "{fault}");
    }

    #[test]
    fn ids_lie_below_the_source() {
        for (said, id) in [
            ("shop:1", "shop:1"),
            ("1", "shop:1"),
            ("order/17", "shop:order/17"),
            ("webhook:std/msg_1", "shop:webhook:std/msg_1"),
            ("timer:tick:1", "shop:timer:tick:1"),
            ("shop", "shop:shop"),
            ("shopper:1", "shop:shopper:1"),
            ("Shop:1", "shop:Shop:1"),
        ] {
            assert_eq!(shop().id(said).unwrap().as_str(), id);
        }

        let long = "x".repeat(510);
        assert!(shop().id(&long).unwrap().as_str().starts_with("shop:sha256-"));

        for bad in ["", "a\0b", "shop:", "shop:a\nb", &"x".repeat(513)] {
            assert!(shop().id(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_a_caller_cannot_say_is_replaced() {
        let text = r#"{"id":"9","timestamp":5,"channel":"crm","origin":"system","speaks_for":["*"],"received_at":1,
                       "source_adapter":"timer","reply_to":"8","target":"out:01M8/0",
                       "quote":{"id":"7","text":"so"},
                       "attachments":[{"media_type":"image","state":"stored"}],"peer":{"kind":"dm","id":"p"}}"#;
        let event = shop().to_event(posted(text), UnixMillis(7)).unwrap();
        assert_eq!((event.id.as_str(), event.source_adapter.as_str()), ("shop:9", "shop"));
        assert_eq!(
            (event.source_id.as_str(), event.reply_to.as_deref()),
            ("9", Some("shop:8"))
        );
        assert_eq!(event.attachments[0].state, AttachmentState::Remote);
        let quoted = event.quote.as_ref().map(|quote| quote.id.as_str());
        assert_eq!((event.target.as_deref(), quoted), (Some("out:01M8/0"), Some("shop:7")));

        assert_eq!(
            event.origin,
            EventOrigin::Token {
                name: "shop-1".to_owned()
            }
        );
        assert!(event.speaks_for.is_empty());
        assert_eq!(event.received_at, UnixMillis(7));

        let event = TokenScope::open().to_event(posted(text), UnixMillis(7)).unwrap();
        assert_eq!((event.id.as_str(), &event.origin), ("open:9", &EventOrigin::Open));
    }

    #[test]
    fn an_answer_to_what_was_sent_keeps_its_reference() {
        let text = |to: &str| format!(r#"{{"id":"9","timestamp":5,"channel":"crm","reply_to":"{to}"}}"#);
        let to = |said: &str| {
            shop()
                .to_event(posted(&text(said)), UnixMillis(7))
                .unwrap()
                .reply_to
                .unwrap()
        };

        assert_eq!(to("out:01M8/0"), "out:01M8/0");
        assert_eq!(to("timer:1"), "shop:timer:1");
    }

    #[test]
    fn a_token_speaks_on_its_channels_only() {
        let on = |scope: &TokenScope, channel: &str| {
            let text = format!(r#"{{"id":"1","timestamp":5,"channel":"{channel}"}}"#);
            scope.to_event(posted(&text), UnixMillis(1)).map(|event| event.channel)
        };
        assert!(on(&shop(), "crm").is_ok());

        for foreign in ["telegram", "CRM", "cli", "webchat", "timer"] {
            let refused = on(&shop(), foreign).unwrap_err();
            assert!(
                matches!(refused, RefuseEventError::Channel { .. }),
                "{foreign}: {refused}"
            );
        }

        assert!(
            on(&TokenScope::for_local_token(), "cli").is_ok() && on(&TokenScope::for_local_token(), "http").is_ok()
        );
        assert!(on(&TokenScope::for_local_token(), "webchat").is_err());
        assert!(on(&TokenScope::open(), "signal").is_ok() && on(&TokenScope::open(), "webchat").is_ok());

        // Past the settings of an account nobody writes on its platform, not even with a token that names it.
        let telegram = vec!["telegram".to_owned()];
        let faults = find_faults("bridge", "bridge", &telegram);
        assert!(
            faults.len() == 1 && faults[0].starts_with("channels[0]: `telegram`"),
            "{faults:?}"
        );
        for own in [
            "cli", "timer", "Webhook", "out", "telegram", "Telegram", "slack", "discord",
        ] {
            assert!(on(&TokenScope::open(), own).is_err(), "{own}");
        }
    }

    #[test]
    fn a_scope_that_cannot_be_is_named() {
        let said = |name: &str, source: &str, channels: &[&str]| {
            find_faults(
                name,
                source,
                &channels.iter().map(|&c| c.to_owned()).collect::<Vec<_>>(),
            )
        };

        assert!(said("shop-1", "shop", &["crm", "http"]).is_empty());

        for taken in [
            "timer", "OUT", "agent", "webhook", "Telegram", "gap", "open", "local", "cli", "a:b", "", "a/b",
        ] {
            assert_eq!(said("n", taken, &["crm"]).len(), 1, "{taken}");
        }

        for taken in ["webchat", "webhook", "cli", "timer", "telegram", "Slack", ""] {
            assert_eq!(said("n", "shop", &[taken]).len(), 1, "{taken}");
        }

        assert_eq!(said("local", "shop", &[]).len(), 2);
    }

    proptest! {
        #[test]
        fn no_caller_leaves_its_source(said in "\\PC{1,600}") {
            for (scope, prefix) in [(shop(), "shop:"), (TokenScope::open(), "open:"), (TokenScope::for_local_token(), "local:")] {
                if let Ok(id) = scope.id(&said) {
                    prop_assert!(id.as_str().starts_with(prefix));
                    prop_assert_eq!(scope.id(id.as_str()).unwrap(), id.clone(), "once below the prefix it stays");
                }
            }
        }

        #[test]
        fn cloud_ids_never_meet(a in "[a-z/%]{1,6}", b in "[a-z/%]{1,6}", c in "[a-z/%]{1,6}", d in "[a-z/%]{1,6}") {
            let one = shop().cloud_id(&a, &b).unwrap();
            let other = shop().cloud_id(&c, &d).unwrap();
            prop_assert_eq!(one == other, (a, b) == (c, d));
        }
    }
}
