//! Subjects: builders, parsers and the token escape. *Pure.* Source: `docs/design/wire.md` §2.
//!
//! Every external id becomes one token that is valid in subjects and in KV keys: `[A-Za-z0-9_-]` are kept, every
//! other byte becomes `=XX`, and the empty string is `=`. An encoding longer than [`MAX_TOKEN_BYTES`] becomes its
//! first 80 bytes, `~` and the base32 of the id's SHA-256; the envelope has the whole id. A subject is therefore at
//! most three tokens and a prefix: about 450 bytes, far below the 4,096 at which the server drops the connection.

use sha2::{Digest, Sha256};

use crate::model::dispatch::DeliveryContext;
use crate::model::event::{DEFAULT_ACCOUNT, Event, EventId};
use crate::model::session::SessionRef;

use super::topology::SESSION_PARTS;

/// Maximum length of a reversible token, in bytes.
pub const MAX_TOKEN_BYTES: usize = 128;
/// Number of bytes of a longer encoding that precede its hash.
const KEPT_BYTES: usize = 80;
/// Maximum length of a subject that a builder makes, in bytes.
pub const MAX_SUBJECT_BYTES: usize = 1_024;

/// Returns `id` as one token.
///
/// ```
/// use shared::wire::subject::{token, untoken};
///
/// assert_eq!(token("ann@example.org"), "ann=40example=2Eorg");
/// assert_eq!(untoken("ann=40example=2Eorg").as_deref(), Some("ann@example.org"));
/// ```
#[must_use]
pub fn token(id: &str) -> String {
    if id.is_empty() {
        return "=".to_owned();
    }

    let mut encoded = String::with_capacity(id.len() + 8);
    for byte in id.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => encoded.push(char::from(byte)),
            other => {
                const HEX: [u8; 16] = *b"0123456789ABCDEF";
                encoded.push('=');
                encoded.push(char::from(HEX[usize::from(other >> 4)]));
                encoded.push(char::from(HEX[usize::from(other & 15)]));
            }
        }
    }

    if encoded.len() <= MAX_TOKEN_BYTES {
        return encoded;
    }

    // The encoding is ASCII, so the cut is between characters.
    encoded.truncate(KEPT_BYTES);
    encoded.push('~');
    encoded.push_str(&data_encoding::BASE32_NOPAD.encode(&Sha256::digest(id.as_bytes())));

    encoded
}

/// Returns the id of a token; `None` if the token was shortened or is not a result of [`token`].
#[must_use]
pub fn untoken(text: &str) -> Option<String> {
    if text == "=" {
        return Some(String::new());
    }

    if text.is_empty() || text.len() > MAX_TOKEN_BYTES {
        return None;
    }

    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => bytes.push(byte),
            b'=' => bytes.push(hex_digit(rest.next()?)? << 4 | hex_digit(rest.next()?)?),
            _ => return None,
        }
    }

    let id = String::from_utf8(bytes).ok()?;
    // Another spelling of an id, such as `=41` for `A`, is not a token.
    (token(&id) == text).then_some(id)
}

const fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

fn join(prefix: &str, ids: &[&str]) -> String {
    let mut subject = String::with_capacity(prefix.len() + 48);
    subject.push_str(prefix);
    for id in ids {
        subject.push('.');
        subject.push_str(&token(id));
    }
    debug_assert!(subject.len() <= MAX_SUBJECT_BYTES, "subject of {} bytes", subject.len());
    subject
}

/// Returns the subject to which an event is published. The server stores it under its partition (see
/// [`parse_event`]).
#[must_use]
pub fn event(event: &Event) -> String {
    join("nexus.event", &[&event.channel, event.account(), &event.peer.id])
}

/// Returns `prefix`, the session's part and its two tokens.
fn parted(prefix: &str, session: &SessionRef) -> String {
    let key = session_key(session);
    format!("{prefix}.{}.{key}", key_part(&key))
}

/// Returns the subject of a session's dispatches.
///
/// The publisher names the part, so the published and the stored subject are equal: the owner of a session listens to
/// the same subject that it reads, and no reader needs a wildcard.
#[must_use]
pub fn dispatch(session: &SessionRef) -> String {
    parted("nexus.dispatch", session)
}

/// Returns the two tokens that name a session in subjects: its key in KV buckets.
#[must_use]
pub fn session_key(session: &SessionRef) -> String {
    format!("{}.{}", token(&session.persona), token(&session.session))
}

/// Returns the part of the session with the two tokens `key`.
pub(super) fn key_part(key: &str) -> u16 {
    u16::from(Sha256::digest(key.as_bytes())[0]) % SESSION_PARTS
}

/// Returns the key of the mark that a session's agent is not reachable. It has three tokens, a session's key two.
#[must_use]
pub fn away_key(session: &SessionRef) -> String {
    format!("away.{}", session_key(session))
}

/// Returns the subject of a session's claim.
#[must_use]
pub fn claim(session: &SessionRef) -> String {
    parted("nexus.claim", session)
}

/// Returns the subject of a session's ledger.
#[must_use]
pub fn ledger(session: &SessionRef) -> String {
    join("nexus.ledger", &[&session.persona, &session.session])
}

fn target_subject(prefix: &str, to: &DeliveryContext) -> String {
    let account = to.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT);
    join(
        prefix,
        &[&to.channel, account, to.peer_id.as_deref().unwrap_or_default()],
    )
}

/// Returns the subject to which a reply is published. The server stores it under its partition.
#[must_use]
pub fn delivery(to: &DeliveryContext) -> String {
    target_subject("nexus.delivery", to)
}

/// Returns the subject of a destination's receipts.
#[must_use]
pub fn receipt(to: &DeliveryContext) -> String {
    target_subject("nexus.receipt", to)
}

/// Returns the subject of an event's invocation record.
#[must_use]
pub fn invocation(partition: u16, event: &EventId) -> String {
    join("nexus.invocation", &[&partition.to_string(), event.as_str()])
}

/// Returns the subject filter of an event's invocation record in any partition.
#[must_use]
pub fn invocation_anywhere(event: &EventId) -> String {
    join("nexus.invocation.*", &[event.as_str()])
}

/// Returns the subject of the invocation records of all events of `partition`.
#[must_use]
pub fn invocations_of(partition: u16) -> String {
    format!("nexus.invocation.{partition}.>")
}

/// Returns the core subject of a session's partial replies.
#[must_use]
pub fn stream(session: &SessionRef) -> String {
    join("nexus.stream", &[&session.persona, &session.session])
}

/// Returns the core subject on which an agent serves `persona`.
#[must_use]
pub fn agent(persona: &str) -> String {
    join("nexus.agent", &[persona])
}

/// Returns the core subject of the open pages of one web chat visitor.
#[must_use]
pub fn webchat(account: &str, peer: &str) -> String {
    join("nexus.webchat", &[account, peer])
}

/// Returns the core subject of the beats of turns that answer in the conversation `to`.
#[must_use]
pub fn live(to: &DeliveryContext) -> String {
    target_subject("nexus.live", to)
}

/// Returns the core subject of the channel `nats`.
#[must_use]
pub fn out(account: &str, peer: &str) -> String {
    join("nexus.out", &[account, peer])
}

/// Returns the subject on which a timer is set.
#[must_use]
pub fn schedule(timer: &str) -> String {
    join("nexus.schedule", &[timer])
}

/// Returns the subject to which a timer is published when it fires.
#[must_use]
pub fn fire(timer: &str) -> String {
    join("nexus.fire", &[timer])
}

/// Returns the subject of a service's dead letters.
#[must_use]
pub fn dlq(service: &str) -> String {
    join("nexus.dlq", &[service])
}

/// Returns the subject of audit records of `topic`.
#[must_use]
pub fn audit(topic: &str) -> String {
    join("nexus.audit", &[topic])
}

/// Returns the subject of an intent's history, which has one record per transition.
#[must_use]
pub fn intent_audit(intent: &str) -> String {
    join("nexus.audit.intent", &[intent])
}

/// Returns the subject of an approval's history.
#[must_use]
pub fn approval_audit(approval: &str) -> String {
    join("nexus.audit.approval", &[approval])
}

/// Returns the subject of the operators' steps with the dead letter `number`.
#[must_use]
pub fn letter_audit(number: u64) -> String {
    join("nexus.audit.dlq", &[&number.to_string()])
}

/// Returns the subject of the resets of the breaker of `hook`.
#[must_use]
pub fn breaker_audit(hook: &str) -> String {
    join("nexus.audit.breaker", &[hook])
}

/// Returns the subject of the decisions about the message that is held under `key`.
#[must_use]
pub fn held_audit(key: &str) -> String {
    join("nexus.audit.held", &[key])
}

/// Returns the subject of the changes of the owner's pages, by the key of a link or the visitor of a page.
#[must_use]
pub fn owner_audit(about: &str) -> String {
    join("nexus.audit.owner", &[about])
}

/// Returns the subject of the orders to read the histories of `account` on `channel`.
#[must_use]
pub fn backfill_audit(channel: &str, account: &str) -> String {
    join("nexus.audit.backfill", &[channel, account])
}

/// Returns the subject of the decisions about `sender` on `account` of `channel`.
#[must_use]
pub fn pairing_audit(channel: &str, account: &str, sender: &str) -> String {
    join("nexus.audit.pairing", &[channel, account, sender])
}

/// Returns the key in KV `pairings` of `sender` on `account` of `channel`.
///
/// ```
/// use shared::wire::subject::pairing_key;
///
/// assert_eq!(pairing_key("telegram", "my.bot", "4711"), "telegram.my=2Ebot.4711");
/// ```
#[must_use]
pub fn pairing_key(channel: &str, account: &str, sender: &str) -> String {
    format!("{}.{}.{}", token(channel), token(account), token(sender))
}

/// Returns the key in KV `threads` of `thread` in the conversation `peer` with `account` of `channel`. Where ids of threads are
/// times, keys are in the order of their threads.
///
/// ```
/// use shared::wire::subject::thread_key;
///
/// assert_eq!(thread_key("slack", "main", "C1", "1767326125.870439"), "1767326125=2E870439.slack.main.C1");
/// ```
#[must_use]
pub fn thread_key(channel: &str, account: &str, peer: &str, thread: &str) -> String {
    format!(
        "{}.{}.{}.{}",
        token(thread),
        token(channel),
        token(account),
        token(peer)
    )
}

/// Returns the subject on which an approval's timer `name` is set.
#[must_use]
pub fn approval_timer(name: &str) -> String {
    join("nexus.schedule.approval", &[name])
}

/// Returns the subject under which the approval timer `name` is stored once it has fired.
#[must_use]
pub fn approval_fire(name: &str) -> String {
    join("nexus.fire.approval", &[name])
}

/// Returns the subject on which an intent's timer `name` is set.
#[must_use]
pub fn intent_timer(name: &str) -> String {
    join("nexus.schedule.intent", &[name])
}

/// Returns the subject under which the intent timer `name` is stored once it has fired.
#[must_use]
pub fn intent_fire(name: &str) -> String {
    join("nexus.fire.intent", &[name])
}

/// Returns the subject of a conversation's stored events, in any partition.
#[must_use]
pub fn conversation(channel: &str, account: &str, peer: &str) -> String {
    join("nexus.ev.*", &[channel, account, peer])
}

/// The parts of a stored event's or delivery's subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSubject<'a> {
    /// Partition that the server computed.
    pub partition: u16,
    /// Token of the channel.
    pub channel: &'a str,
    /// Token of the account.
    pub account: &'a str,
    /// Token of the peer.
    pub peer: &'a str,
}

fn parse_partitioned<'a>(prefix: &str, subject: &'a str) -> Option<StoredSubject<'a>> {
    let mut tokens = subject.strip_prefix(prefix)?.strip_prefix('.')?.split('.');
    let stored = StoredSubject {
        partition: tokens.next()?.parse().ok()?,
        channel: tokens.next()?,
        account: tokens.next()?,
        peer: tokens.next()?,
    };
    tokens.next().is_none().then_some(stored)
}

/// Parses the subject of a stored event (`nexus.ev.<partition>.<channel>.<account>.<peer>`).
#[must_use]
pub fn parse_event(subject: &str) -> Option<StoredSubject<'_>> {
    parse_partitioned("nexus.ev", subject)
}

/// Parses the subject of a stored delivery (`nexus.dl.<partition>.<channel>.<account>.<peer>`).
#[must_use]
pub fn parse_delivery(subject: &str) -> Option<StoredSubject<'_>> {
    parse_partitioned("nexus.dl", subject)
}

/// Returns the two tokens of a session's subject: of a dispatch, a claim, a ledger entry or a partial reply. A dispatch
/// or a claim under another part than the session's own is not on the session's subject.
#[must_use]
pub fn parse_session(subject: &str) -> Option<(&str, &str)> {
    let mut tokens = subject.strip_prefix("nexus.")?.split('.');
    let part = match tokens.next()? {
        "ledger" | "stream" => None,
        "dispatch" | "claim" => Some(tokens.next()?),
        _ => return None,
    };

    let pair = (tokens.next()?, tokens.next()?);
    let is_own = part.is_none_or(|part| part == key_part(&format!("{}.{}", pair.0, pair.1)).to_string());
    (is_own && tokens.next().is_none()).then_some(pair)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_of_500_bytes_with_dots_stars_and_spaces_is_one_short_token() {
        let id = format!("webhook:{}", ". *>".repeat(123));
        let short = token(&id);
        assert!(
            id.len() == 500 && short.len() == 133 && !short.contains(['.', '*', ' ', '>']),
            "{short}"
        );
        assert_eq!(untoken(&short), None);
    }

    #[test]
    fn tokens_read_well() {
        assert_eq!(token(""), "=");
        assert_eq!(token("a.b"), "a=2Eb");
        assert_eq!(token("telegram:1/2"), "telegram=3A1=2F2");
        assert_eq!(untoken("a=2eb"), None, "one spelling only");
    }

    #[test]
    fn subjects_are_parsed_back() {
        let stored = parse_event("nexus.ev.17.webchat.default.v=2E1").expect("a stored event");
        assert_eq!((stored.partition, stored.peer), (17, "v=2E1"));
        assert_eq!(parse_session("nexus.ledger.default.main"), Some(("default", "main")));
        assert_eq!(parse_session("nexus.ledger.default"), None);

        let odd = SessionRef {
            persona: "a.b".to_owned(),
            session: "main *".to_owned(),
        };
        assert_eq!(ledger(&odd), format!("nexus.ledger.{}", session_key(&odd)));
    }

    #[test]
    fn a_session_is_on_the_subject_of_its_own_part_alone() {
        let main = SessionRef {
            persona: "default".to_owned(),
            session: "main".to_owned(),
        };
        assert_eq!(dispatch(&main), "nexus.dispatch.5.default.main");
        assert_eq!(claim(&main), "nexus.claim.5.default.main");
        assert_eq!(parse_session(&dispatch(&main)), Some(("default", "main")));
        assert_eq!(parse_session(&claim(&main)), Some(("default", "main")));

        for strange in [
            "nexus.dispatch.6.default.main",
            "nexus.claim.05.default.main",
            "nexus.dispatch.default.main",
            "nexus.dispatch.5.default.main.x",
        ] {
            assert_eq!(parse_session(strange), None, "{strange}");
        }
    }

    proptest! {
        #[test]
        fn tokens_are_reversible_and_valid(id in "\\PC{0,60}") {
            let encoded = token(&id);
            prop_assert!(encoded.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-=~".contains(&b)));
            prop_assert!(!encoded.is_empty() && encoded.len() <= KEPT_BYTES + 53);
            if !encoded.contains('~') {
                prop_assert_eq!(untoken(&encoded), Some(id));
            }
        }

        #[test]
        fn tokens_are_injective(a in "[\\x00-\\x7f]{0,300}", b in "[\\x00-\\x7f]{0,300}") {
            prop_assert_eq!(token(&a) == token(&b), a == b);
        }

        #[test]
        fn nothing_random_is_taken_for_a_token(text in "\\PC{0,200}") {
            if let Some(id) = untoken(&text) {
                prop_assert_eq!(token(&id), text);
            }
        }

        #[test]
        fn every_subject_is_short(channel in "\\PC{0,200}", account in "\\PC{0,200}", peer in "\\PC{0,200}") {
            let to = DeliveryContext { channel, account_id: Some(account), peer_id: Some(peer), ..Default::default() };
            prop_assert!(delivery(&to).len() <= MAX_SUBJECT_BYTES);
        }
    }
}
