//! Whether an intent is admitted: kind, parameters, trust, capability, scope, schedule, chain, number, budget. *Pure.*
//!
//! Budgets are checked and reserved here and nowhere else: at its time an intent consumes what it reserved. Source:
//! `docs/design/schedules.md` §3.6; seed 000 §7.

use shared::model::dispatch::DeliveryContext;
use shared::model::identity::PermissionPresets;
use shared::model::intent::book::{AgentBook, IntentBooking, RateCharge, day_of};
use shared::model::intent::service::ProposeIntent;
use shared::model::intent::{
    ApprovalRequirement, HookIntent, IntentRejection, IntentSchedule, IntentScope, MAX_PARAMETER_BYTES,
    MAX_REASON_BYTES,
};
use shared::model::permission::{PermissionLevel, is_tool_permitted};
use shared::model::time::UnixMillis;
use ulid::Ulid;

use super::plan::{IntentPlan, plan_schedule};
use super::registry::{DailyBudgets, KindRegistry, MAX_DEPTH, MAX_PENDING};

/// An intent that may be admitted, once its booking is in the agent's book.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissibleIntent {
    /// When it fires.
    pub plan: IntentPlan,
    /// What it reserves.
    pub booking: IntentBooking,
}

/// The whole record of `proposal` under `id`, with the approval that kind, policy and wish demand together. A kind that
/// nobody declared demands nothing: it is refused anyway.
#[must_use]
pub fn record(registry: &KindRegistry, proposal: &ProposeIntent, id: Ulid) -> HookIntent {
    let wish = proposal.wish.clone();
    let of_kind = registry
        .kind(&wish.kind)
        .map_or(ApprovalRequirement::None, |kind| kind.approval);
    let approval = of_kind
        .max(registry.policy_of(&proposal.agent))
        .max(wish.approval.unwrap_or_default());

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

/// Whether `intent`, asked for by `proposal`'s turn with `depth` intents before it, may be at all.
///
/// # Errors
/// The first [`Rejection`], in the order of the module's first line.
pub fn check_entitled(
    registry: &KindRegistry,
    intent: &HookIntent,
    proposal: &ProposeIntent,
    depth: u8,
) -> Result<(), IntentRejection> {
    let kind = registry.kind(&intent.kind)?;
    let size = serde_json::to_vec(&intent.parameters).map_or(0, |bytes| bytes.len());
    if size > MAX_PARAMETER_BYTES {
        return Err(IntentRejection::BadParameters {
            path: String::new(),
            why: format!("{size} bytes, at most {MAX_PARAMETER_BYTES} are taken"),
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

/// Other sessions than the asking one are for the owner's turns.
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

/// Quiet, and a user's message, are those of the conversation that it is asked for in: there has to be one.
fn in_conversation(intent: &HookIntent, proposal: &ProposeIntent) -> Result<(), IntentRejection> {
    let looks = intent.schedule.quiet_seconds().is_some() || intent.cancel_on_user_turn;
    let nobody = proposal.delivery_context.peer_id.as_deref().is_none_or(str::is_empty);
    if looks && nobody {
        return Err(IntentRejection::BadSchedule {
            why: "it is asked for outside of a conversation, so there is no user to wait for".to_owned(),
        });
    }
    Ok(())
}

/// Where the answers of `intent`'s turns go: the asking turn's conversation, its thread, or the target that the
/// parameters name as `channel/peer` or `channel/account/peer`.
///
/// # Errors
/// [`Rejection`] where the target cannot be read, or is another conversation that the turn may not speak in.
pub fn delivery_target(intent: &HookIntent, proposal: &ProposeIntent) -> Result<DeliveryContext, IntentRejection> {
    let mut here = proposal.delivery_context.clone();
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

/// Whether `intent` with `schedule` fits into its agent's `book` at `now`, where its own booking does not count.
///
/// # Errors
/// [`Rejection`]: bad schedule, expired, too many, over budget.
pub fn check_fit(
    registry: &KindRegistry,
    intent: &HookIntent,
    schedule: &IntentSchedule,
    book: &AgentBook,
    now: UnixMillis,
) -> Result<AdmissibleIntent, IntentRejection> {
    let plan = plan_schedule(schedule, now).map_err(|why| IntentRejection::BadSchedule { why })?;
    let expired = |expires: UnixMillis| expires <= now || plan.due.is_some_and(|due| due > expires);
    if intent.expires_at.is_some_and(expired) {
        return Err(IntentRejection::Expired);
    }

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
