//! Patterns of tools' names in a `personas.yaml`: those that can match nothing, and guards of tools that no persona
//! has. *Pure.*
//!
//! A misspelled denial or approval rule looks like a correct one, but the tool that it should guard runs. Only the
//! tools of models are known here: a `nats` or `process` agent has tools of its own, so any name may be one.

use shared::model::permission::{ToolRules, glob_matches, may_begin, pattern_fault};
use shared::process::config::KeyFault;

use super::fault::persona_fault;
use super::{AgentRunner, Persona, Personas};
use crate::tool::catalogue;
use crate::tool::mcp::prefix_of;

/// Returns the patterns that match no possible tool.
pub(super) fn find_faults(personas: &Personas) -> Vec<KeyFault> {
    let presets = personas.permission_levels.find_faults();
    let mut faults: Vec<KeyFault> = presets.map(|(key, problem)| persona_fault(key, problem)).collect();

    for (name, persona) in &personas.personas {
        let at = |key: &str| format!("personas.{name}.{key}");
        let rules = persona.permissions.iter().filter_map(|set| set.tools.as_ref());
        for (key, problem) in rules.flat_map(ToolRules::find_faults) {
            faults.push(persona_fault(at(&format!("permissions.tools.{key}")), problem));
        }

        let own = persona.tools.iter().map(|pattern| (at("tools"), pattern));
        let listed = own.chain(confirmed_patterns(persona).map(|(key, pattern)| (at(&key), pattern)));
        faults.extend(listed.filter_map(|(key, pattern)| Some(persona_fault(key, pattern_fault(pattern)?))));
    }

    faults
}

/// Returns the denials and approval rules for tools that none of their personas has.
pub(super) fn idle_faults(personas: &Personas) -> Vec<KeyFault> {
    let all: Vec<&Persona> = personas.personas.values().collect();
    let mut faults = Vec::new();
    for (level, rules) in &personas.permission_levels.0 {
        let key = format!("permission_levels.{level}.deny");
        faults.extend(
            rules
                .deny
                .iter()
                .filter_map(|pattern| unmatched_fault(&key, pattern, &all)),
        );
    }

    for (name, persona) in &personas.personas {
        let rules = persona.permissions.iter().filter_map(|set| set.tools.as_ref());
        let denied = rules.flat_map(|rules| &rules.deny);
        let denied = denied.map(|pattern| ("permissions.tools.deny".to_owned(), pattern));
        for (key, pattern) in denied.chain(confirmed_patterns(persona)) {
            faults.extend(unmatched_fault(&format!("personas.{name}.{key}"), pattern, &[persona]));
        }
    }

    faults
}

/// Returns the levels whose rules allow something that no persona has, so that they allow nothing: each `key: why`.
pub(super) fn empty_levels(personas: &Personas) -> Vec<String> {
    let is_empty = |rules: &ToolRules| {
        let allowed = rules.allow.as_deref().unwrap_or_default();
        let is_had = |pattern: &String| personas.personas.values().any(|persona| may_have(persona, pattern));
        !allowed.is_empty() && !allowed.iter().any(is_had)
    };
    let levels = personas.permission_levels.0.iter().filter(|(_, rules)| is_empty(rules));
    let told = levels.map(|(level, rules)| {
        let allowed = rules.allow.as_deref().unwrap_or_default().join("`, `");
        format!(
            "permission_levels.{level}: it allows `{allowed}`, which no persona has: a turn of this level has no tools"
        )
    });

    told.collect()
}

/// Returns the patterns of the tools that need an approval, with their keys.
fn confirmed_patterns(persona: &Persona) -> impl Iterator<Item = (String, &String)> {
    let rules = persona.requires_confirmation.iter().enumerate();
    rules.flat_map(|(index, rule)| {
        let key = format!("requires_confirmation[{index}].tools");
        rule.tools.iter().map(move |pattern| (key.clone(), pattern))
    })
}

/// Returns the fault of `pattern` at `key`, if it matches no tool of `personas`.
fn unmatched_fault(key: &str, pattern: &str, personas: &[&Persona]) -> Option<KeyFault> {
    let has = personas.iter().any(|persona| may_have(persona, pattern));
    let problem = format!("`{pattern}` matches no tool of the personas that it holds for");
    (!has).then(|| persona_fault(key.to_owned(), problem))
}

/// Returns whether `persona` may have a tool that `pattern` matches.
fn may_have(persona: &Persona, pattern: &str) -> bool {
    match persona.runner {
        // Tests, and programs that embed the broker, replace the echo by agents of their own.
        AgentRunner::Nats | AgentRunner::Process | AgentRunner::Echo => true,
        AgentRunner::Llm => {
            let mut own =
                catalogue::builtin_names().filter(|name| persona.tools.iter().any(|own| glob_matches(own, name)));
            let of_server = |server: &String| prefix_of(server).is_some_and(|prefix| may_begin(pattern, &prefix));
            own.any(|name| glob_matches(pattern, name)) || persona.mcp_servers.iter().any(of_server)
        }
    }
}
