//! Builds a dispatch from a fired hook, with every default of seed 001 §4. *Pure.*
//!
//! Values that the hook's result leaves open come from the event and its sender. The same event, hook, result and
//! evaluation time give the same dispatch, byte for byte, so that a redelivery repeats it.

use std::borrow::Cow;

use shared::model::dispatch::{
    DeliveryContext, Dispatch, DispatchCause, DispatchContext, DispatchMessage, dispatch_id,
};
use shared::model::event::Event;
use shared::model::hook::{HookResult, HookRouting};
use shared::model::permission::{PermissionLevel, PermissionSet, ToolRules};
use shared::model::proof::ProvenOrigin;
use shared::model::session::SessionRef;
use shared::wire::seal::change_hash;
use shared::wire::unknown::UnknownFields;

use crate::evaluation::transcripts::with_transcripts;
use crate::registry::rights::{authors_session, fire_permissions, system_prompt};
use crate::routing::{HookFire, RoutingRules, derive_session};

/// Persona for hooks that name none.
pub const DEFAULT_PERSONA: &str = "default";

/// Content type for events that name none.
const DEFAULT_CONTENT_TYPE: &str = "text";

/// Builds the dispatch that `fire` asks for.
#[must_use]
pub fn build_dispatch(fire: HookFire<'_>, rules: &RoutingRules) -> Dispatch {
    let HookFire { event, result, .. } = fire;
    let none = HookRouting::default();
    let routing = result.routing.as_ref().unwrap_or(&none);
    let context = result.context.clone().unwrap_or_default();
    let person = rules.identities.find_sender(event);

    Dispatch {
        // The id follows from the event, its time and the hook, so a repeated evaluation makes the same dispatch.
        id: dispatch_id(&event.id, event.believed_at(), &fire_cause(&fire)),
        event_id: event.id.clone(),
        event_seq: fire.event_seq,
        hook_id: fire.hook_id.to_owned(),
        priority: fire.traits.priority,
        timestamp: fire.evaluated_at,
        target: target_session(&fire, routing, rules),
        queue_mode: routing.queue_mode,
        message: DispatchMessage {
            from: event.from.id.clone(),
            channel: Some(event.channel.clone()),
            content: event.content.clone(),
            content_type: event
                .content_types
                .first()
                .map_or(DEFAULT_CONTENT_TYPE, String::as_str)
                .to_owned(),
            metadata: event.metadata.clone(),
            attachments: with_transcripts(&event.attachments, result.transcripts()),
            origin: event.origin.clone(),
            proven: match event.origin.proof_of_address(event, &event.from.id) {
                ProvenOrigin::OnEveryChannel | ProvenOrigin::OnItsChannel => true,
                ProvenOrigin::SpokenFor => person.is_some(),
                ProvenOrigin::Nobody => false,
            },
            person: person.map(|person| person.id.clone()),
        },
        permissions: complete_permissions(&fire, rules),
        context: DispatchContext {
            system_prompt: with_group_prompt(
                rules.group_prompts.find_prompt(event),
                system_prompt(&fire, context.system_prompt),
            ),
            extracted: context.extracted,
            include_thread_history: context.include_thread_history.unwrap_or(true),
        },
        delivery_context: delivery_context(event, result, routing),
        causation: DispatchCause {
            event: event.id.clone(),
            hops: event.hops,
        },
        unknown: UnknownFields::default(),
    }
}

/// Returns the text that is added to the system prompt: the `group`'s, which the operator wrote, before the `hook`'s.
fn with_group_prompt(group: Option<&str>, hook: Option<String>) -> Option<String> {
    match (group, hook) {
        (Some(group), Some(hook)) => Some(format!("{group}\n\n{hook}")),
        (Some(group), None) => Some(group.to_owned()),
        (None, hook) => hook,
    }
}

/// Returns the cause that distinguishes this fire from the hook's others for the same id: a change of an item has the
/// id of the item.
fn fire_cause<'a>(fire: &HookFire<'a>) -> Cow<'a, str> {
    match change_hash(fire.event) {
        Some(hash) => Cow::Owned(format!("{}@{hash}", fire.hook_id)),
        None => Cow::Borrowed(fire.hook_id),
    }
}

/// Returns the session that runs the dispatch: the one that the hook names, else its author's, else that of the
/// conversation.
fn target_session(fire: &HookFire<'_>, routing: &HookRouting, rules: &RoutingRules) -> SessionRef {
    let is_named = routing.persona.is_some() || routing.session.is_some();
    if let Some(authors) = authors_session(fire).filter(|_| !is_named) {
        return authors.clone();
    }
    let derived = || derive_session(fire.event, routing, rules);
    SessionRef {
        persona: routing.persona.clone().unwrap_or_else(|| DEFAULT_PERSONA.to_owned()),
        session: routing.session.clone().unwrap_or_else(derived),
    }
}

/// Returns the hook's own delivery target, or by default a reply to the event in its conversation.
fn delivery_context(event: &Event, result: &HookResult, routing: &HookRouting) -> DeliveryContext {
    let mut target = result.delivery_context.clone().unwrap_or_else(|| DeliveryContext {
        channel: event.channel.clone(),
        account_id: event.account_id.clone(),
        peer_id: Some(event.peer.id.clone()),
        thread_id: event.thread_id.clone(),
        reply_to_id: Some(event.id.as_str().to_owned()),
    });

    if let Some(thread) = &routing.thread {
        target.thread_id = Some(thread.clone());
    }

    target
}

/// Returns the permissions of the turn; tools that the hook leaves open come from the level's preset.
fn complete_permissions(fire: &HookFire<'_>, rules: &RoutingRules) -> PermissionSet {
    let mut set = fire_permissions(fire, rules);
    let Some(preset) = rules.presets.0.get(level_name(set.level)) else {
        return set;
    };
    match &mut set.tools {
        None => set.tools = Some(preset.clone()),
        Some(tools) => complete_tools(tools, preset),
    }
    set
}

/// Completes `tools` from `preset`: without an allow list they take the preset's, and its denials too.
fn complete_tools(tools: &mut ToolRules, preset: &ToolRules) {
    if tools.allow.is_some() {
        return;
    }
    tools.allow.clone_from(&preset.allow);
    for denied in &preset.deny {
        if !tools.deny.contains(denied) {
            tools.deny.push(denied.clone());
        }
    }
}

/// Returns the preset's key in `permission_levels`.
const fn level_name(level: PermissionLevel) -> &'static str {
    match level {
        PermissionLevel::Full => "full",
        PermissionLevel::Restricted => "restricted",
        PermissionLevel::Group => "group",
        PermissionLevel::Minimal => "minimal",
    }
}

#[cfg(test)]
mod tests;
