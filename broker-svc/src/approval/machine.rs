//! What a word, or time, does to an approval. *Pure.*
//!
//! `pending → approved | rejected | expired | cancelled | superseded`; `approved → consumed` once, or `cancelled` or
//! `superseded` where the turn went on without it. What is written is written by compare-and-set, so of two that decide
//! at once one finds the other's word and is judged by it. Source: `docs/design/sessions.md` §8.

use serde_json::Value;
use shared::model::approval::{ApprovalStatus, AskedIn, Confirmation, Edited, Vote};
use shared::model::identity::Identities;
use shared::model::time::UnixMillis;

use super::reply::SHOWN_DIGITS;
use super::scope::{Who, is_agreed};
use crate::tool::schema::misfit;
use crate::turn::arguments::args_hash;

/// Largest arguments that an approver may write, bytes of JSON.
pub const MAX_EDITED_BYTES: usize = 64 * 1_024;
/// Longest note of an approver, bytes.
pub const MAX_RESPONSE_BYTES: usize = 4_096;

/// What somebody says.
#[derive(Debug, Clone, PartialEq)]
pub struct Word {
    /// Yes or no.
    pub approve: bool,
    /// The arguments as they want them; none = as they are.
    pub arguments: Option<Value>,
    /// Hash of the arguments that they were shown; none = whatever stands.
    pub shown_hash: Option<String>,
    /// What they write.
    pub response: Option<String>,
    /// How their word came.
    pub via: String,
}

/// Why a word does nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// They may not decide it.
    #[error("{0}")]
    Forbidden(String),
    /// It was decided otherwise.
    #[error("it is {} already{}", status.name(), by.as_deref().map(|by| format!(", by {by}")).unwrap_or_default())]
    Decided {
        /// Where it stands.
        status: ApprovalStatus,
        /// Who decided.
        by: Option<String>,
    },
    /// They saw other arguments than those that stand.
    #[error("the arguments have changed since they were shown")]
    Stale,
    /// What they wrote cannot be taken.
    #[error("{0}")]
    Bad(String),
}

impl Refused {
    /// As HTTP says it.
    #[must_use]
    pub const fn code(&self) -> usize {
        match self {
            Self::Forbidden(_) => 403,
            Self::Decided { .. } | Self::Stale => 409,
            Self::Bad(_) => 400,
        }
    }
}

/// What a word does.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Nothing: they said so before.
    Unchanged,
    /// It is to be written; the status says whether it is decided.
    Changed(Box<Confirmation>),
    /// Nothing, because its time is over: it is to lapse.
    Lapsed,
    /// Nothing.
    Refused(Refused),
}

/// What `word`, said by `who`, does to `standing` at `now`.
#[must_use]
pub fn say(
    standing: &Confirmation,
    asked: &AskedIn,
    who: &Who,
    word: &Word,
    identities: &Identities,
    now: UnixMillis,
) -> Outcome {
    if let Err(why) = who.may(asked, identities) {
        return Outcome::Refused(Refused::Forbidden(why));
    }

    if let Some(fault) = fault(word).or_else(|| unfit(standing, word)) {
        return Outcome::Refused(Refused::Bad(fault));
    }

    let edited = word.arguments.as_ref().map(|arguments| Edited {
        arguments: arguments.clone(),
        hash: args_hash(arguments),
    });
    let wanted_hash = edited
        .as_ref()
        .map_or_else(|| standing.standing_hash().to_owned(), |edited| edited.hash.clone());
    if let Some(outcome) = decided_before(standing, word, &wanted_hash) {
        return outcome;
    }

    if now >= standing.request.expires_at {
        return Outcome::Lapsed;
    }

    let shown = word.shown_hash.as_deref();
    if shown.is_some_and(|shown| !is_shown(shown, standing.standing_hash())) {
        return Outcome::Refused(Refused::Stale);
    }

    let mut next = standing.clone();
    if !word.approve {
        return Outcome::Changed(Box::new(ended(next, ApprovalStatus::Rejected, who, word, now)));
    }

    if let Some(edited) = edited
        && edited.hash != standing.standing_hash()
    {
        // Who said yes said it to other arguments.
        next.trail.votes.clear();
        next.trail.edited = Some(edited);
    }

    if next.trail.votes.iter().any(|vote| vote.by == who.name) {
        return Outcome::Unchanged;
    }

    next.trail.votes.push(Vote {
        by: who.name.clone(),
        at: now,
        arguments_hash: wanted_hash,
        counts_for: who.counts_for(asked, identities),
    });

    if !is_agreed(&asked.scope, &next.trail.votes) {
        return Outcome::Changed(Box::new(next));
    }

    Outcome::Changed(Box::new(ended(next, ApprovalStatus::Approved, who, word, now)))
}

/// Whether `shown`, a hash or the beginning of one as a card's button says it, is of the arguments with the hash `standing`.
fn is_shown(shown: &str, standing: &str) -> bool {
    shown == standing || (shown.len() == SHOWN_DIGITS && standing.starts_with(shown))
}

fn fault(word: &Word) -> Option<String> {
    let bytes = word
        .arguments
        .as_ref()
        .map_or(0, |arguments| arguments.to_string().len());

    if word.arguments.is_some() && !word.approve {
        return Some("arguments: only with a yes".to_owned());
    }

    if word.arguments.as_ref().is_some_and(|arguments| !arguments.is_object()) {
        return Some("arguments: a JSON object is expected".to_owned());
    }

    if bytes > MAX_EDITED_BYTES {
        return Some(format!(
            "arguments: {bytes} bytes, at most {MAX_EDITED_BYTES} are allowed"
        ));
    }

    let response = word.response.as_ref().map_or(0, String::len);
    (response > MAX_RESPONSE_BYTES).then(|| format!("response: at most {MAX_RESPONSE_BYTES} bytes"))
}

/// What is wrong with the arguments of `word` by the schema of the tool that `standing` asks about. Said at once, while
/// whoever edits them can mend them: behind the decision the call would only fail.
fn unfit(standing: &Confirmation, word: &Word) -> Option<String> {
    let (schema, arguments) = (standing.trail.schema.as_deref()?, word.arguments.as_ref()?);
    let misfit = misfit(schema, arguments)?;
    Some(format!("they do not fit the tool's schema: {misfit}"))
}

/// The answer where nothing is to be decided any more.
fn decided_before(standing: &Confirmation, word: &Word, wanted_hash: &str) -> Option<Outcome> {
    let same = match standing.status {
        ApprovalStatus::Pending => return None,
        ApprovalStatus::Approved | ApprovalStatus::Consumed => word.approve && wanted_hash == standing.standing_hash(),
        ApprovalStatus::Rejected => !word.approve,
        ApprovalStatus::Expired | ApprovalStatus::Cancelled | ApprovalStatus::Superseded => false,
    };

    Some(if same {
        Outcome::Unchanged
    } else {
        Outcome::Refused(Refused::Decided {
            status: standing.status,
            by: standing.decided_by.clone(),
        })
    })
}

fn ended(standing: Confirmation, status: ApprovalStatus, who: &Who, word: &Word, now: UnixMillis) -> Confirmation {
    let mut next = Confirmation {
        status,
        decided_at: Some(now),
        decided_by: Some(who.name.clone()),
        response: word.response.clone(),
        ..standing
    };
    next.trail.via = Some(word.via.clone());
    next
}

/// Whether an approval may go from `from` to `to`.
#[must_use]
pub const fn may_follow(from: ApprovalStatus, to: ApprovalStatus) -> bool {
    use ApprovalStatus::{Approved, Cancelled, Consumed, Expired, Pending, Rejected, Superseded};
    match (from, to) {
        (Pending, Approved | Rejected | Expired | Cancelled | Superseded)
        | (Approved, Consumed | Cancelled | Superseded) => true,
        (Pending, Pending | Consumed)
        | (Approved, Pending | Approved | Rejected | Expired)
        | (Rejected | Expired | Cancelled | Superseded | Consumed, _) => false,
    }
}

/// `standing` brought to `to` by time or by its turn, at `now`; none where it stands there, or beyond.
#[must_use]
pub fn brought(standing: &Confirmation, to: ApprovalStatus, now: UnixMillis) -> Option<Confirmation> {
    if !may_follow(standing.status, to) {
        return None;
    }

    let mut next = Confirmation {
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

/// `standing` brought to `to`, which its session's ledger says, at `now`; none where it stands there, or beyond. The
/// ledger is final: where KV was put back to a time before the decision, the approval is over all the same.
#[must_use]
pub fn by_ledger(standing: &Confirmation, to: ApprovalStatus, now: UnixMillis) -> Option<Confirmation> {
    let is_behind = standing.status == ApprovalStatus::Pending && to == ApprovalStatus::Consumed;
    let seen_through = is_behind.then(|| Confirmation {
        status: ApprovalStatus::Approved,
        decided_at: Some(now),
        ..standing.clone()
    });

    let next = brought(seen_through.as_ref().unwrap_or(standing), to, now);
    next.map(|mut next| {
        next.trail.taken = true;
        next
    })
}

#[cfg(test)]
pub(crate) mod tests;
