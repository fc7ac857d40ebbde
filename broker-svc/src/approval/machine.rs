//! The transitions of an approval, caused by a decision or by time. *Pure.*
//!
//! `pending → approved | denied | expired | canceled | superseded`; `approved → consumed` once, or `canceled` or
//! `superseded` if the turn went on without it. States are written by compare-and-set: of two decisions at once, one
//! finds the state that the other wrote and is judged by it. Source: `docs/design/sessions.md` §8.

use serde_json::Value;
use shared::model::approval::{ApprovalStatus, ApprovalVote, AskedIn, ConfirmationTerms, EditedArguments};
use shared::model::identity::Identities;
use shared::model::time::UnixMillis;

use super::reply::SHOWN_DIGITS;
use super::scope::{ResolvedParty, is_agreed};
use crate::tool::arguments::find_misfit;
use crate::turn::arguments::args_hash;

/// Maximum size of the arguments that an approver may write, bytes of JSON.
pub const MAX_EDITED_BYTES: usize = 64 * 1_024;
/// Maximum length of an approver's note, bytes.
pub const MAX_RESPONSE_BYTES: usize = 4_096;

/// A decision on an approval, as it came in.
#[derive(Debug, Clone, PartialEq)]
pub struct DecisionInput {
    /// Whether the call is approved or denied.
    pub approve: bool,
    /// Arguments as the approver wants them; none leaves them unchanged.
    pub arguments: Option<Value>,
    /// Hash of the arguments that the approver was shown; none accepts the present ones.
    pub shown_hash: Option<String>,
    /// Note that the approver wrote.
    pub response: Option<String>,
    /// Way by which the decision came, for the audit.
    pub via: String,
}

/// Reason for which a decision does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecisionRejection {
    /// The person may not decide; the text says why.
    #[error("{0}")]
    Forbidden(String),
    /// The approval was decided otherwise before.
    #[error("the approval is already {}{}", status.name(), by.as_deref().map(|by| format!(", by {by}")).unwrap_or_default())]
    Decided {
        /// Present status of the approval.
        status: ApprovalStatus,
        /// Name of the person who decided, if one did.
        by: Option<String>,
    },
    /// The person saw other arguments than the present ones.
    #[error("the arguments have changed since they were shown")]
    Stale,
    /// The decision itself is invalid; the text says why.
    #[error("{0}")]
    Bad(String),
}

impl DecisionRejection {
    /// Returns the code as in HTTP.
    #[must_use]
    pub const fn http_code(&self) -> usize {
        match self {
            Self::Forbidden(_) => 403,
            Self::Decided { .. } | Self::Stale => 409,
            Self::Bad(_) => 400,
        }
    }
}

/// Effect of a decision on an approval.
#[derive(Debug, Clone, PartialEq)]
pub enum DecisionEffect {
    /// No change: the same person decided the same before.
    Unchanged,
    /// The approval must be written; its status says whether it is decided.
    Changed(Box<ConfirmationTerms>),
    /// No change, because the time to decide is over: the approval must expire.
    Lapsed,
    /// No change: the decision does not count.
    Refused(DecisionRejection),
}

/// Returns the effect of `word`, the decision of `who`, on `standing` at `now`.
#[must_use]
pub fn apply_decision(
    standing: &ConfirmationTerms,
    asked: &AskedIn,
    who: &ResolvedParty,
    word: &DecisionInput,
    identities: &Identities,
    now: UnixMillis,
) -> DecisionEffect {
    // Rights come first: only for an approver it matters whether the decision is valid.
    if let Err(why) = who.check_may_decide(asked, identities) {
        return DecisionEffect::Refused(DecisionRejection::Forbidden(why));
    }

    if let Some(fault) = decision_fault(word).or_else(|| schema_fault(standing, word)) {
        return DecisionEffect::Refused(DecisionRejection::Bad(fault));
    }

    let edited = word.arguments.as_ref().map(|arguments| EditedArguments {
        arguments: arguments.clone(),
        hash: args_hash(arguments),
    });
    let wanted_hash = edited
        .as_ref()
        .map_or_else(|| standing.standing_hash().to_owned(), |edited| edited.hash.clone());
    // Before the expiry, so that a repeated decision still succeeds afterwards.
    if let Some(outcome) = decided_before(standing, word, &wanted_hash) {
        return outcome;
    }

    if now >= standing.request.expires_at {
        return DecisionEffect::Lapsed;
    }

    // The person must have seen the arguments that are in force now.
    let shown = word.shown_hash.as_deref();
    if shown.is_some_and(|shown| !is_shown(shown, standing.standing_hash())) {
        return DecisionEffect::Refused(DecisionRejection::Stale);
    }

    let mut next = standing.clone();
    // One denial decides, no matter how many approvers there are.
    if !word.approve {
        return DecisionEffect::Changed(Box::new(with_decision(next, ApprovalStatus::Denied, who, word, now)));
    }

    if let Some(edited) = edited
        && edited.hash != standing.standing_hash()
    {
        // Earlier votes approved other arguments.
        next.trail.votes.clear();
        next.trail.edited = Some(edited);
    }

    // The same person cannot be counted twice, also under another channel's name.
    if next.trail.votes.iter().any(|vote| vote.by == who.name) {
        return DecisionEffect::Unchanged;
    }

    next.trail.votes.push(ApprovalVote {
        by: who.name.clone(),
        at: now,
        arguments_hash: wanted_hash,
        counts_for: who.counts_for(asked, identities),
    });

    if !is_agreed(&asked.scope, &next.trail.votes) {
        return DecisionEffect::Changed(Box::new(next));
    }

    DecisionEffect::Changed(Box::new(with_decision(next, ApprovalStatus::Approved, who, word, now)))
}

/// Returns whether `shown`, a hash or the beginning of one as on a card's button, matches the arguments' hash
/// `standing`.
fn is_shown(shown: &str, standing: &str) -> bool {
    shown == standing || (shown.len() == SHOWN_DIGITS && standing.starts_with(shown))
}

fn decision_fault(word: &DecisionInput) -> Option<String> {
    let bytes = word
        .arguments
        .as_ref()
        .map_or(0, |arguments| arguments.to_string().len());

    // A denial of edited arguments would have two meanings.
    if word.arguments.is_some() && !word.approve {
        return Some("arguments: allowed only if the call is approved".to_owned());
    }

    if word.arguments.as_ref().is_some_and(|arguments| !arguments.is_object()) {
        return Some("arguments: expected a JSON object".to_owned());
    }

    if bytes > MAX_EDITED_BYTES {
        return Some(format!(
            "arguments: {bytes} bytes, at most {MAX_EDITED_BYTES} are allowed"
        ));
    }

    let response = word.response.as_ref().map_or(0, String::len);
    (response > MAX_RESPONSE_BYTES).then(|| format!("response: expected at most {MAX_RESPONSE_BYTES} bytes"))
}

/// Returns why the arguments of `word` do not fit the schema of the tool that `standing` asks about. The check comes
/// at once, while the person who edits them can correct them: after the decision the call would only fail.
fn schema_fault(standing: &ConfirmationTerms, word: &DecisionInput) -> Option<String> {
    let (schema, arguments) = (standing.trail.schema.as_deref()?, word.arguments.as_ref()?);
    let misfit = find_misfit(schema, arguments)?;
    Some(format!("the arguments do not fit the tool's schema: {misfit}"))
}

/// Returns the outcome if the approval is decided already; `None` if it is open.
fn decided_before(standing: &ConfirmationTerms, word: &DecisionInput, wanted_hash: &str) -> Option<DecisionEffect> {
    let same = match standing.status {
        ApprovalStatus::Pending => return None,
        ApprovalStatus::Approved | ApprovalStatus::Consumed => word.approve && wanted_hash == standing.standing_hash(),
        ApprovalStatus::Denied => !word.approve,
        ApprovalStatus::Expired | ApprovalStatus::Canceled | ApprovalStatus::Superseded => false,
    };

    Some(if same {
        DecisionEffect::Unchanged
    } else {
        DecisionEffect::Refused(DecisionRejection::Decided {
            status: standing.status,
            by: standing.decided_by.clone(),
        })
    })
}

fn with_decision(
    standing: ConfirmationTerms,
    status: ApprovalStatus,
    who: &ResolvedParty,
    word: &DecisionInput,
    now: UnixMillis,
) -> ConfirmationTerms {
    let mut next = ConfirmationTerms {
        status,
        decided_at: Some(now),
        decided_by: Some(who.name.clone()),
        response: word.response.clone(),
        ..standing
    };
    next.trail.via = Some(word.via.clone());
    next
}

/// Returns whether an approval may go from `from` to `to`.
#[must_use]
pub const fn may_follow(from: ApprovalStatus, to: ApprovalStatus) -> bool {
    use ApprovalStatus::{Approved, Canceled, Consumed, Denied, Expired, Pending, Superseded};
    match (from, to) {
        (Pending, Approved | Denied | Expired | Canceled | Superseded)
        | (Approved, Consumed | Canceled | Superseded) => true,
        (Pending, Pending | Consumed)
        | (Approved, Pending | Approved | Denied | Expired)
        | (Denied | Expired | Canceled | Superseded | Consumed, _) => false,
    }
}

/// Returns `standing` with the status `to`, caused by time or by its turn at `now`; `None` if it has that status, or
/// a later one.
#[must_use]
pub fn advance_status(standing: &ConfirmationTerms, to: ApprovalStatus, now: UnixMillis) -> Option<ConfirmationTerms> {
    if !may_follow(standing.status, to) {
        return None;
    }

    let mut next = ConfirmationTerms {
        status: to,
        ..standing.clone()
    };
    if to == ApprovalStatus::Consumed {
        next.trail.consumed_at = Some(now);
    } else {
        next.decided_at = Some(now);
    }

    Some(next)
}

/// Returns `standing` with the status `to`, which its session's ledger has, at `now`; `None` if it has that status,
/// or a later one. The ledger is final: if KV was restored to a time before the decision, the approval is over all
/// the same.
#[must_use]
pub fn by_ledger(standing: &ConfirmationTerms, to: ApprovalStatus, now: UnixMillis) -> Option<ConfirmationTerms> {
    let is_behind = standing.status == ApprovalStatus::Pending && to == ApprovalStatus::Consumed;
    let seen_through = is_behind.then(|| ConfirmationTerms {
        status: ApprovalStatus::Approved,
        decided_at: Some(now),
        ..standing.clone()
    });

    let next = advance_status(seen_through.as_ref().unwrap_or(standing), to, now);
    next.map(|mut next| {
        next.trail.taken = true;
        next
    })
}

#[cfg(test)]
pub(crate) mod tests;
