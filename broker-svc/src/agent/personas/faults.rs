//! Faults of a `personas.yaml` that can be read. *Pure.*

use shared::llm::LlmConfig;
use shared::process::config::KeyFault;

use super::fault::persona_fault;
use super::{AgentRunner, Persona, Personas, TOKEN_BYTES, patterns};
use crate::ledger::reset::is_zone;
use crate::ledger::state::{HISTORY_TURNS, MAX_SENT_HISTORY};
use crate::tool::mcp;

/// Reason why a text is not a `personas.yaml`: every fault that was found, at least one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct ParsePersonasError(pub Vec<KeyFault>);

/// Returns the faults of meaning.
pub(super) fn find_faults(personas: &Personas) -> Vec<KeyFault> {
    let mut faults = Vec::new();
    for (name, server) in &personas.mcp_servers {
        if let Some((key, problem)) = mcp::declaration_fault(server, &personas.credentials) {
            faults.push(persona_fault(format!("mcp_servers.{name}.{key}"), problem));
        }
    }

    for (name, reference) in &personas.credentials {
        if !(reference.starts_with("env:") || reference.starts_with("file:")) {
            let problem = "expected a reference, `env:NAME` or `file:/path`".to_owned();
            faults.push(persona_fault(format!("credentials.{name}"), problem));
        }
    }

    for (name, persona) in &personas.personas {
        of_persona(personas, name, persona, &mut faults);
    }

    faults.extend(patterns::find_faults(personas));
    faults
}

/// Returns the limits of US dollars without effect. A limit of zero needs no price.
pub(super) fn unbound_faults(personas: &Personas, llm: &LlmConfig) -> Vec<KeyFault> {
    let asking = personas
        .personas
        .iter()
        .filter(|(_, persona)| persona.runner == AgentRunner::Llm);
    let bounded = asking.filter_map(|(name, persona)| {
        let most = persona.limits.cost_usd.filter(|most| *most > 0.0)?;
        // If no model can be asked at all, that is a fault of its own.
        let model = persona.model.as_deref().or_else(|| llm.usable_model().ok())?;
        let error = llm.prices.bounding_price(model).err()?;

        Some(persona_fault(
            format!("personas.{name}.limits.cost_usd"),
            format!("a limit of {most} US dollars needs the model's price: {error}"),
        ))
    });

    bounded.collect()
}

fn of_persona(personas: &Personas, name: &str, persona: &Persona, faults: &mut Vec<KeyFault>) {
    let mut wrong = |key: &str, problem: String| faults.push(persona_fault(format!("personas.{name}.{key}"), problem));
    let zone = &persona.timezone;
    if !is_zone(zone) {
        wrong("timezone", format!("`{zone}` is not the name of a time zone"));
    }

    let limits = &persona.limits;
    let bounds = [
        ("limits.wall_ms", limits.wall_ms),
        ("limits.model_calls", u64::from(limits.model_calls)),
        ("limits.reply_timeout_ms", limits.reply_timeout_ms),
        ("max_tokens", persona.max_tokens.map_or(1, u64::from)),
        ("limits.tokens", limits.tokens.unwrap_or(1)),
    ];

    // Zero would end each turn before it starts.
    for (key, _) in bounds.into_iter().filter(|(_, bound)| *bound == 0) {
        wrong(key, "expected at least 1".to_owned());
    }

    let remembered = [
        ("limits.history_turns", limits.history_turns, HISTORY_TURNS),
        (
            "limits.history_tokens",
            limits.history_tokens,
            MAX_SENT_HISTORY / TOKEN_BYTES,
        ),
    ];

    // A larger limit would promise a history that the fold has dropped.
    for (key, wanted, most) in remembered {
        if wanted > most {
            wrong(
                key,
                format!("expected at most {most}, the most that a session keeps verbatim"),
            );
        }
    }

    if limits.cost_usd.is_some_and(|most| !most.is_finite() || most < 0.0) {
        wrong("limits.cost_usd", "expected US dollars, not negative".to_owned());
    }

    for server in &persona.mcp_servers {
        if !personas.mcp_servers.contains_key(server) {
            wrong("mcp_servers", format!("`{server}` is not among `mcp_servers`"));
        }
    }

    for (index, confirm) in persona.requires_confirmation.iter().enumerate() {
        let key = format!("requires_confirmation[{index}]");
        if confirm.tools.is_empty() {
            wrong(&format!("{key}.tools"), "at least one glob of a tool's name".to_owned());
        }

        for problem in confirm.ask.find_faults() {
            wrong(&format!("{key}.ask"), problem);
        }
    }

    // A program without the runner would silently never start.
    let program = persona.process.as_ref().map(|program| program.command.as_str());
    match (persona.runner, program) {
        (AgentRunner::Process, None | Some("")) => wrong("process.command", "required if runner is process".to_owned()),
        (AgentRunner::Echo | AgentRunner::Nats | AgentRunner::Llm, Some(_)) => {
            wrong("process", "expected only if runner is process".to_owned());
        }
        (AgentRunner::Process, Some(_)) | (AgentRunner::Echo | AgentRunner::Nats | AgentRunner::Llm, None) => {}
    }
}
