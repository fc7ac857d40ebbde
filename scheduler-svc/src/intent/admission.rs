//! Decides whether an intent is admitted, by kind, parameters, trust, capability, scope, conversation, chain, schedule,
//! number and budget, in this order. *Pure.*
//!
//! Budgets are checked and reserved only here: at its time an intent consumes its reservation. Source:
//! `docs/design/schedules.md` §3.6; seed 000 §7.

use shared::model::dispatch::DeliveryContext;
use shared::model::intent::book::{AgentBook, IntentBooking, RateCharge, day_of};
use shared::model::intent::service::ProposeIntent;
use shared::model::intent::{
    ApprovalRequirement, HookIntent, IntentRejection, IntentSchedule, IntentScope, MAX_PARAMETER_BYTES,
    MAX_REASON_BYTES,
};
use shared::model::permission::{PermissionLevel, PermissionPresets, is_tool_permitted};
use shared::model::time::UnixMillis;
use ulid::Ulid;

use super::plan::{IntentPlan, plan_schedule};
use super::registry::{DailyBudgets, KindRegistry, MAX_DEPTH, MAX_PENDING};

/// An intent that may be admitted once its booking is in the agent's book.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissibleIntent {
    /// Times at which the intent fires.
    pub plan: IntentPlan,
    /// Share of the agent's budgets to be reserved.
    pub booking: IntentBooking,
}

/// Returns the record of `proposal` under `id`, with the strictest approval that its kind, the agent's policy and the
/// request demand. An undeclared kind demands none, because it is rejected anyway.
#[must_use]
pub fn record(registry: &KindRegistry, proposal: &ProposeIntent, id: Ulid) -> HookIntent {
    let wish = proposal.wish.clone();
    let of_kind = registry
        .kind(&wish.kind)
        .map_or(ApprovalRequirement::None, |kind| kind.approval);
    // The strictest of the three holds: a request can add an approval, but not remove one.
    let approval = of_kind
        .max(registry.policy_of(&proposal.agent))
        .max(wish.approval.unwrap_or_default());

    // The reason is only for people, so a long one is cut instead of refused.
    let mut reason = wish.reason;
    if reason.len() > MAX_REASON_BYTES {
        let cut = (0..=MAX_REASON_BYTES).rev().find(|at| reason.is_char_boundary(*at));
        reason.truncate(cut.unwrap_or(0));
    }

    HookIntent {
        id,
        kind: wish.kind,
        parameters: wish.parameters,
        schedule: wish.schedule,
        scope: wish.scope,
        approval,
        agent: proposal.agent.clone(),
        session: proposal.session.clone(),
        turn: proposal.turn,
        expires_at: wish.expires_at,
        reason,
        supersedes: wish.supersedes,
        cancel_on_user_turn: wish.cancel_on_user_turn,
    }
}

/// Checks that the turn of `proposal` may request `intent`, which has `depth` intents before it in its chain.
///
/// # Errors
/// Returns the first [`IntentRejection`], in the order of the module's first line.
pub fn check_entitled(
    registry: &KindRegistry,
    intent: &HookIntent,
    proposal: &ProposeIntent,
    depth: u8,
) -> Result<(), IntentRejection> {
    let kind = registry.kind(&intent.kind)?;
    // The size first, so that the schema is not checked against an unbounded value.
    let size = serde_json::to_vec(&intent.parameters).map_or(0, |bytes| bytes.len());
    if size > MAX_PARAMETER_BYTES {
        return Err(IntentRejection::BadParameters {
            path: String::new(),
            why: format!("{size} bytes, but at most {MAX_PARAMETER_BYTES} are allowed"),
        });
    }

    kind.check(&intent.parameters)?;
    kind.check_trust(proposal.permissions.level)?;

    if let Some(capability) = &kind.capability
        && !is_tool_permitted(capability, &proposal.permissions, &PermissionPresets::default())
    {
        return Err(IntentRejection::NoCapability {
            capability: capability.clone(),
        });
    }

    // Checked in the order of the module's first line, so that an agent always reads the same first fault.
    in_scope(intent, proposal)?;
    in_conversation(intent, proposal)?;
    delivery_target(intent, proposal)?;

    if depth > MAX_DEPTH {
        return Err(IntentRejection::OverBudget {
            budget: "chain_depth".to_owned(),
            limit: u64::from(MAX_DEPTH),
            needed: u64::from(depth),
        });
    }

    Ok(())
}

/// Checks the scope: only the owner's turns may address another session.
fn in_scope(intent: &HookIntent, proposal: &ProposeIntent) -> Result<(), IntentRejection> {
    let elsewhere = match &intent.scope {
        IntentScope::Own | IntentScope::Thread { .. } => false,
        IntentScope::Session { session } => *session != proposal.session,
        IntentScope::Persona => proposal.session != "main",
    };

    match proposal.permissions.level {
        PermissionLevel::Restricted | PermissionLevel::Group | PermissionLevel::Minimal if elsewhere => {
            Err(IntentRejection::NoCapability {
                capability: "scope: another session".to_owned(),
            })
        }
        PermissionLevel::Full | PermissionLevel::Restricted | PermissionLevel::Group | PermissionLevel::Minimal => {
            Ok(())
        }
    }
}

/// Checks that there is a conversation, if the intent waits for quiet in it or is canceled by a user's message in it.
fn in_conversation(intent: &HookIntent, proposal: &ProposeIntent) -> Result<(), IntentRejection> {
    let looks = intent.schedule.quiet_seconds().is_some() || intent.cancel_on_user_turn;
    let nobody = proposal.delivery_context.peer_id.as_deref().is_none_or(str::is_empty);
    if looks && nobody {
        return Err(IntentRejection::BadSchedule {
            why: "the intent was requested outside of a conversation, so there is no user to wait for".to_owned(),
        });
    }
    Ok(())
}

/// Returns the destination of the replies of `intent`'s turns: the conversation of the requesting turn, its thread, or
/// the target in the parameters, written as `channel/peer` or `channel/account/peer`.
///
/// # Errors
/// Returns [`IntentRejection`] if the target cannot be parsed, or if it is another conversation and the turn may not send
/// messages.
pub fn delivery_target(intent: &HookIntent, proposal: &ProposeIntent) -> Result<DeliveryContext, IntentRejection> {
    let mut here = proposal.delivery_context.clone();
    // The reply comes much later, and must not answer the message of the request.
    here.reply_to_id = None;

    if let IntentScope::Thread { thread } = &intent.scope {
        here.thread_id = Some(thread.clone());
    }

    let target = intent.parameters.get("target").and_then(serde_json::Value::as_str);
    let Some(target) = target.filter(|target| !matches!(*target, "here" | "user")) else {
        return Ok(here);
    };

    let parts: Vec<&str> = target.split('/').collect();
    let (channel, account, peer) = match parts.as_slice() {
        [channel, peer] => (*channel, None, *peer),
        [channel, account, peer] => (*channel, Some((*account).to_owned()), *peer),
        _ => ("", None, ""),
    };

    if channel.is_empty() || peer.is_empty() {
        return Err(IntentRejection::BadParameters {
            path: "/target".to_owned(),
            why: "expected `here`, `channel/peer` or `channel/account/peer`".to_owned(),
        });
    }

    // The agent may spell its own conversation out: that needs no further right.
    let same = channel == here.channel
        && here.peer_id.as_deref() == Some(peer)
        && account.as_deref().unwrap_or("default") == here.account_id.as_deref().unwrap_or("default");
    if same {
        return Ok(here);
    }

    if !is_tool_permitted("send_message", &proposal.permissions, &PermissionPresets::default()) {
        return Err(IntentRejection::NoCapability {
            capability: "send_message".to_owned(),
        });
    }

    Ok(DeliveryContext {
        channel: channel.to_owned(),
        account_id: account,
        peer_id: Some(peer.to_owned()),
        thread_id: None,
        reply_to_id: None,
    })
}

/// Checks that `intent` with `schedule` fits into its agent's `book` at `now`. Its own booking does not count.
///
/// # Errors
/// Returns [`IntentRejection`] if the schedule is bad, the intent is expired, the agent has too many intents pending, or the
/// budget is exhausted.
pub fn check_fit(
    registry: &KindRegistry,
    intent: &HookIntent,
    schedule: &IntentSchedule,
    book: &AgentBook,
    now: UnixMillis,
) -> Result<AdmissibleIntent, IntentRejection> {
    let plan = plan_schedule(schedule, now).map_err(|why| IntentRejection::BadSchedule { why })?;
    // An intent that expires before its time would be admitted for nothing.
    let expired = |expires: UnixMillis| expires <= now || plan.due.is_some_and(|due| due > expires);
    if intent.expires_at.is_some_and(expired) {
        return Err(IntentRejection::Expired);
    }

    // Its own booking must not count twice when it is rescheduled.
    let mut others = book.clone();
    others.bookings.remove(&intent.id);
    others.forget_past(now);

    if others.pending_count(now) >= MAX_PENDING {
        return Err(IntentRejection::TooManyPending {
            limit: MAX_PENDING as u64,
        });
    }

    let kind = registry.kind(&intent.kind)?;
    let booking = IntentBooking {
        due: plan.due.filter(|_| !schedule.recurs()),
        firings: plan.per_day,
        tokens: kind.tokens * u64::from(plan.per_day),
    };

    // An intent without a day of its own may fall on the busiest day.
    let charged = booking.due.map_or_else(
        || others.heaviest_charge(day_of(now)),
        |due| others.charge_of(day_of(due)),
    );
    check_budgets(&booking, charged, registry.budgets_of(&intent.agent))?;

    Ok(AdmissibleIntent { plan, booking })
}

fn check_budgets(booking: &IntentBooking, charged: RateCharge, budgets: DailyBudgets) -> Result<(), IntentRejection> {
    let firings = charged.firings + u64::from(booking.firings);
    let tokens = charged.tokens + booking.tokens;
    for (budget, needed, limit) in [
        ("firings", firings, budgets.firings_per_day),
        ("tokens", tokens, budgets.tokens_per_day),
    ] {
        if needed > limit {
            return Err(IntentRejection::OverBudget {
                budget: budget.to_owned(),
                limit,
                needed,
            });
        }
    }

    Ok(())
}

#[cfg(test)]
mod tests;
