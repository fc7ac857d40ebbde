//! Pairings: strangers who may write to a bot directly. *Pure.*
//!
//! A stranger's first direct message gets a code as its answer. An operator to whom the stranger passes the code, outside
//! of the chat, grants the pairing with it. A pairing lets its person write to one account and grants nothing else: rights
//! are those of `identities.yaml`. Source: `docs/security.md` "Pairings".

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use ulid::Ulid;

use super::dispatch::{DeliveryContext, DispatchCause, derived_ulid};
use super::event::{Event, EventId};
use super::reply::Reply;
use super::session::SessionRef;
use super::time::UnixMillis;
use crate::wire::unknown::UnknownFields;

/// Time for which a code can be used, and for which its sender gets no other one, in milliseconds.
pub const CODE_LASTS_MS: i64 = 3_600_000;
/// Number of characters of a code: 40 bits.
const CODE_CHARACTERS: usize = 8;
/// Maximum length of a sender's name that is kept, in bytes.
const MAX_NAME_BYTES: usize = 128;
/// Persona and session of the messages that tell codes. No agent has them.
const SPEAKER: &str = "pairing";
/// Value of [`PairingNotice::kind`].
const NOTICE: &str = "pairing";
/// Part of the ids of the messages that tell the owner of a stranger.
const OWNERS_NOTICE: &str = "pairing-owner";
/// Placeholder for a code in text that hooks and agents may read.
const HIDDEN_CODE: &str = "····-····";

/// A value of KV `pairings`: one sender of one account. The key is `shared::wire::subject::pairing_key`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pairing {
    /// Channel of the account.
    pub channel: String,
    /// Name of the account.
    pub account: String,
    /// The platform's id of the sender.
    pub sender: String,
    /// Name of the sender, as the sender writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The code that was sent last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<PairingOffer>,
    /// The operator's last decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<PairingDecision>,
}

/// A code that was sent to a stranger.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairingOffer {
    /// The code, without the hyphen; empty if it was withdrawn.
    pub code: String,
    /// Event that the code answers.
    pub cause: EventId,
    /// Time at which the code was made.
    pub offered_at: UnixMillis,
    /// Time from which the code is void.
    pub expires_at: UnixMillis,
}

// By hand: a code is not printed.
impl std::fmt::Debug for PairingOffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PairingOffer")
            .field("cause", &self.cause)
            .field("offered_at", &self.offered_at)
            .finish_non_exhaustive()
    }
}

/// A decision of an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairingDecision {
    /// Whether the sender may write; `false` = a pairing was withdrawn.
    pub granted: bool,
    /// Time of the decision.
    pub at: UnixMillis,
}

/// A record in `AUDIT` of a decision, on the subject of account and sender.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairingRecord {
    /// Channel of the account.
    pub channel: String,
    /// Name of the account.
    pub account: String,
    /// The platform's id of the sender.
    pub sender: String,
    /// The decision.
    pub decision: PairingDecision,
}

/// Step that follows a stranger's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OfferStep {
    /// The pairing is stored, and then its code is sent.
    Store(Pairing),
    /// The code that answers this very message may not have been sent: it is sent once more, under the same id.
    Repeat(Pairing),
    /// The sender has a code already.
    Nothing,
}

/// The reason why a code grants nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UseCodeError {
    /// No sender of the account was sent this code.
    #[error("no sender of this account has this code; `nexus channel pairings` lists those who wait")]
    Unknown,
    /// The code is void.
    #[error("this code has expired; the next message of its sender gets a new one")]
    Expired,
}

/// Returns a new code: the last characters of `random`, from a ULID's random part.
#[must_use]
pub fn make_code(random: Ulid) -> String {
    let mut letters = random.to_string();
    letters.split_off(letters.len() - CODE_CHARACTERS)
}

/// Returns `code` as people write it: `K7Q2-M9PX`.
fn format_code(code: &str) -> String {
    match code.split_at_checked(CODE_CHARACTERS / 2) {
        Some((first, rest)) => format!("{first}-{rest}"),
        None => code.to_owned(),
    }
}

/// Returns `typed` in the form of a code: capitals without hyphens and blanks, and letters that look like digits as those.
fn clean_code(typed: &str) -> String {
    let letters = typed.chars().filter(|c| !c.is_whitespace() && *c != '-');
    letters
        .map(|c| match c.to_ascii_uppercase() {
            'O' => '0',
            'I' | 'L' => '1',
            other => other,
        })
        .collect()
}

impl Pairing {
    /// Returns whether the sender may write, as far as this value says.
    #[must_use]
    pub fn is_granted(&self) -> bool {
        self.decision.as_ref().is_some_and(|decision| decision.granted)
    }

    /// Returns whether the sender has a code that can be used at `now`.
    #[must_use]
    pub fn is_waiting(&self, now: UnixMillis) -> bool {
        !self.is_granted() && self.offer.as_ref().is_some_and(|offer| now < offer.expires_at)
    }

    /// Returns whether `last`, the last decision in `AUDIT`, withdraws this value's grant, or a code that was made
    /// before. The value is older than the decision then, by a crash or because the bucket was restored.
    #[must_use]
    pub fn is_withdrawn_by(&self, last: &PairingDecision) -> bool {
        let has_old_code = || {
            let offer = self.offer.as_ref();
            offer.is_some_and(|offer| !offer.code.is_empty() && offer.offered_at <= last.at)
        };
        !last.granted && (self.is_granted() || has_old_code())
    }

    /// Returns the record of the decision `granted` at `now`.
    #[must_use]
    pub fn record(&self, granted: bool, now: UnixMillis) -> PairingRecord {
        PairingRecord {
            channel: self.channel.clone(),
            account: self.account.clone(),
            sender: self.sender.clone(),
            decision: PairingDecision { granted, at: now },
        }
    }

    /// Returns this pairing with `decision`. A withdrawal removes the code; the sender gets another one an hour after the
    /// last was sent at the earliest. A granted pairing keeps its code, so that the same request again is no error.
    #[must_use]
    pub fn decided(mut self, decision: PairingDecision) -> Self {
        if let (Some(offer), false) = (&mut self.offer, decision.granted) {
            offer.code.clear();
            offer.expires_at = offer.expires_at.min(decision.at);
        }
        self.decision = Some(decision);
        self
    }
}

/// Decides about the message `event` of a stranger, who is `before` in the bucket. `code` is a new code.
///
/// A sender gets one code in [`CODE_LASTS_MS`]. A clock that was set back does not make it two.
#[must_use]
pub fn offer_code(before: Option<Pairing>, event: &Event, now: UnixMillis, code: String) -> OfferStep {
    if let Some(known) = before.as_ref().and_then(|before| before.offer.as_ref()) {
        if known.cause == event.id && !known.code.is_empty() {
            return before.map_or(OfferStep::Nothing, OfferStep::Repeat);
        }
        if now.since(known.offered_at) < CODE_LASTS_MS {
            return OfferStep::Nothing;
        }
    }

    let mut name = event.from.display_name.clone();
    if let Some(name) = &mut name {
        name.truncate(name.floor_char_boundary(MAX_NAME_BYTES));
    }
    OfferStep::Store(Pairing {
        channel: event.channel.clone(),
        account: event.account().to_owned(),
        sender: event.from.id.clone(),
        name,
        offer: Some(PairingOffer {
            code,
            cause: event.id.clone(),
            offered_at: now,
            expires_at: now.plus(CODE_LASTS_MS),
        }),
        decision: before.and_then(|before| before.decision),
    })
}

/// Returns the one of `pairings`, those of an account, whose sender was sent the code `typed`.
///
/// Each code is compared in full, so that the time says nothing about one.
///
/// # Errors
/// Returns [`UseCodeError`] if there is none, or its code is void at `now`.
pub fn find_by_code(
    pairings: impl IntoIterator<Item = Pairing>,
    typed: &str,
    now: UnixMillis,
) -> Result<Pairing, UseCodeError> {
    let typed = Sha256::digest(clean_code(typed));
    let mut found = None;
    for pairing in pairings {
        let Some(offer) = &pairing.offer else { continue };
        let is_same = Sha256::digest(&offer.code).ct_eq(&typed);
        if bool::from(is_same) && offer.code.len() == CODE_CHARACTERS {
            found = Some(pairing);
        }
    }

    let found = found.ok_or(UseCodeError::Unknown)?;
    let is_void = found.offer.as_ref().is_none_or(|offer| now >= offer.expires_at);
    if is_void && !found.is_granted() {
        return Err(UseCodeError::Expired);
    }
    Ok(found)
}

/// The interactive part of the message that tells a code (`Reply.interactive`, `kind` = `pairing`), by which the code is
/// recognised in its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairingNotice {
    kind: String,
    /// Code as people write it.
    code: String,
}

impl PairingNotice {
    /// Parses `interactive`. Returns `None` if it is not a notice.
    #[must_use]
    pub fn from_interactive(interactive: Option<&Value>) -> Option<Self> {
        let notice: Self = serde_json::from_value(interactive?.clone()).ok()?;
        (notice.kind == NOTICE && !notice.code.is_empty()).then_some(notice)
    }

    /// Returns `text` without the code, for hooks, searches and agents.
    #[must_use]
    pub fn redact_text(&self, text: &str) -> String {
        text.replace(&self.code, HIDDEN_CODE)
    }
}

/// Returns the message that tells the sender of `event` the code of `pairing`; `None` if it has none. Its id is derived
/// from the code's time, account and sender, so that it is delivered once however often it is published.
#[must_use]
pub fn code_reply(pairing: &Pairing, event: &Event) -> Option<Reply> {
    let offer = pairing.offer.as_ref().filter(|offer| !offer.code.is_empty())?;
    let code = format_code(&offer.code);
    let id = derived_ulid(
        offer.offered_at,
        &[
            NOTICE,
            &pairing.channel,
            &pairing.account,
            &pairing.sender,
            offer.cause.as_str(),
        ],
    );

    Some(Reply {
        id,
        turn: id,
        session: SessionRef {
            persona: SPEAKER.to_owned(),
            session: format!("{SPEAKER}:{}:{}", pairing.channel, pairing.account),
        },
        delivery_context: DeliveryContext {
            channel: pairing.channel.clone(),
            account_id: Some(pairing.account.clone()),
            peer_id: Some(event.peer.id.clone()),
            thread_id: event.thread_id.clone(),
            reply_to_id: None,
        },
        content: format!(
            "I do not know you yet. To write to me, tell my operator this code: {code}\nIt is valid for one hour."
        ),
        attachments: Vec::new(),
        interactive: Some(json!({"kind": NOTICE, "code": code})),
        causation: DispatchCause {
            event: event.id.clone(),
            hops: event.hops,
        },
        action: None,
        unknown: UnknownFields::default(),
        send: None,
        failed: false,
    })
}

/// Returns the message that tells `place`, where the owner reads, of the sender of `event`, who is sent the code of `pairing`;
/// `None` if there is no code. It does not tell the code, which the stranger passes on: who knows it is who asks. Its id is
/// derived like that of [`code_reply`].
#[must_use]
pub fn stranger_notice(pairing: &Pairing, event: &Event, place: &DeliveryContext) -> Option<Reply> {
    let told = code_reply(pairing, event)?;
    let offer = pairing.offer.as_ref()?;
    let id = derived_ulid(
        offer.offered_at,
        &[
            OWNERS_NOTICE,
            &pairing.channel,
            &pairing.account,
            &pairing.sender,
            offer.cause.as_str(),
        ],
    );

    let account = format!("{}/{}", pairing.channel, pairing.account);
    let sender = as_code(&pairing.sender);
    let name = pairing.name.as_deref().map(|name| format!("{}, ", as_code(name)));
    let name = name.unwrap_or_default();
    Some(Reply {
        id,
        turn: id,
        delivery_context: place.clone(),
        content: format!(
            "A stranger ({name}id {sender}) wrote to {account} and was sent a code.\nIf you know them, ask them for the code: \
             `nexus channel pair {account} CODE` lets them write. It is valid for one hour."
        ),
        interactive: None,
        ..told
    })
}

/// Returns `text`, which a stranger chose, as code in Markdown that it cannot end.
fn as_code(text: &str) -> String {
    let plain = |letter: char| match letter {
        '`' => '\'',
        letter if letter.is_control() => ' ',
        letter => letter,
    };
    format!("`{}`", text.chars().map(plain).collect::<String>())
}

#[cfg(test)]
mod tests;
