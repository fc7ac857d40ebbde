//! Requests to and responses of `nexus.svc.pairing.*`, which adapter-svc serves, in JSON. *Pure.*
//!
//! No response has a code: the operator types the one that the person passed on.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::pairing::{Pairing, PairingDecision, PairingRecord};
use super::time::UnixMillis;

/// `list`: returns the pairings of all accounts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListPairings {}

/// The response to `list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairingList {
    /// The pairings, by channel, account and sender.
    pub pairings: Vec<PairingView>,
}

/// `grant`: lets the receiver of a code write.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantPairing {
    /// Channel of the account.
    pub channel: String,
    /// Name of the account.
    pub account: String,
    /// The code, as the operator typed it.
    pub code: String,
}

// By hand: a code is not printed.
impl std::fmt::Debug for GrantPairing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrantPairing")
            .field("channel", &self.channel)
            .field("account", &self.account)
            .finish_non_exhaustive()
    }
}

/// `withdraw`: lets a sender write no more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WithdrawPairing {
    /// Channel of the account.
    pub channel: String,
    /// Name of the account.
    pub account: String,
    /// The platform's id of the sender.
    pub sender: String,
}

/// The response to `grant` and `withdraw`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairingAnswer {
    /// The pairing after the request.
    pub pairing: PairingView,
    /// Whether this request changed it.
    pub changed: bool,
}

/// State of a pairing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PairingState {
    /// The sender has a code that can be used.
    Waiting,
    /// The code was not used in time.
    Expired,
    /// The sender may write.
    Paired,
    /// An operator withdrew the pairing.
    Withdrawn,
    /// `AUDIT` has a grant, and the bucket has none: it was restored to an older state or lost. The sender may not write.
    Lost,
}

impl PairingState {
    /// Returns the wire name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Expired => "expired",
            Self::Paired => "paired",
            Self::Withdrawn => "withdrawn",
            Self::Lost => "lost",
        }
    }
}

/// A pairing without its code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairingView {
    /// Channel of the account.
    pub channel: String,
    /// Name of the account.
    pub account: String,
    /// The platform's id of the sender.
    pub sender: String,
    /// Name of the sender, as the sender writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// State of the pairing.
    pub state: PairingState,
    /// Time from which it has this state.
    pub since: UnixMillis,
    /// Time until which the code can be used; only of one that waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<UnixMillis>,
    /// Whether the bucket is older than the record in `AUDIT`, which decides.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_restored: bool,
}

/// Returns whether the sender of `pairing` may write. `last` is the last decision in `AUDIT`: one that withdraws holds even
/// if the bucket was restored to an older state.
#[must_use]
pub fn may_write(pairing: Option<&Pairing>, last: Option<&PairingDecision>) -> bool {
    let is_withdrawn = last.is_some_and(|last| !last.granted);
    pairing.is_some_and(Pairing::is_granted) && !is_withdrawn
}

/// Returns `pairing` as it is at `now`; `last` is its last decision in `AUDIT`.
#[must_use]
pub fn view_pairing(pairing: &Pairing, last: Option<&PairingDecision>, now: UnixMillis) -> PairingView {
    let is_withdrawn = last.is_some_and(|last| pairing.is_withdrawn_by(last));
    let is_lost = last.is_some_and(|last| last.granted) && !pairing.is_granted();
    let offer = pairing.offer.as_ref();
    let open = offer.filter(|offer| now < offer.expires_at);
    let decision = pairing.decision.as_ref().or(last);
    let decided_at = decision.map(|decision| decision.at);

    let (state, since) = if pairing.is_granted() && !is_withdrawn {
        (PairingState::Paired, decided_at)
    } else if is_withdrawn {
        (PairingState::Withdrawn, last.map(|last| last.at))
    } else if let Some(open) = open {
        (PairingState::Waiting, Some(open.offered_at))
    } else if is_lost {
        (PairingState::Lost, last.map(|last| last.at))
    } else if decision.is_some() {
        (PairingState::Withdrawn, decided_at)
    } else {
        (PairingState::Expired, offer.map(|offer| offer.expires_at))
    };

    PairingView {
        channel: pairing.channel.clone(),
        account: pairing.account.clone(),
        sender: pairing.sender.clone(),
        name: pairing.name.clone(),
        state,
        since: since.unwrap_or(now),
        expires_at: open
            .filter(|_| state == PairingState::Waiting)
            .map(|open| open.expires_at),
        is_restored: is_lost || is_withdrawn,
    }
}

/// Returns the `pairings` as they are at `now`, by channel, account and sender. `records` are those of `AUDIT`, oldest
/// first.
#[must_use]
pub fn view_pairings(pairings: Vec<Pairing>, records: Vec<PairingRecord>, now: UnixMillis) -> Vec<PairingView> {
    let mut last: BTreeMap<(String, String, String), PairingDecision> = BTreeMap::new();
    for record in records {
        last.insert((record.channel, record.account, record.sender), record.decision);
    }

    let mut views = BTreeMap::new();
    for pairing in pairings {
        let key = (pairing.channel.clone(), pairing.account.clone(), pairing.sender.clone());
        let view = view_pairing(&pairing, last.remove(&key).as_ref(), now);
        views.insert(key, view);
    }

    // Without a value in the bucket: a withdrawn one may be gone, a granted one is lost.
    for (key, decision) in last {
        let (channel, account, sender) = key.clone();
        let gone = Pairing {
            channel,
            account,
            sender,
            name: None,
            offer: None,
            decision: None,
        };
        views.insert(key, view_pairing(&gone, Some(&decision), now));
    }

    views.into_values().collect()
}
