//! The agents of one broker, by runner.

use std::sync::Arc;

use shared::bus::Bus;
use shared::clock::SharedClock;
use shared::llm::SharedModel;

use crate::agent::echo::EchoAgent;
use crate::agent::llm::LlmAgent;
use crate::agent::nats::NatsAgent;
use crate::agent::personas::{AgentRunner, Personas};
use crate::agent::port::Agent;
use crate::agent::process::ProcessAgent;
use crate::hooks::TurnHooks;

/// The agents of one broker, by runner.
#[derive(Debug)]
pub struct RunnerAgents {
    echo: Arc<dyn Agent>,
    nats: Arc<dyn Agent>,
    process: Arc<dyn Agent>,
    /// Agent of runner `llm`; none if no persona asks models.
    llm: Option<Arc<dyn Agent>>,
    /// Agent in place of all others.
    instead: Option<Arc<dyn Agent>>,
}

impl RunnerAgents {
    /// Returns the agents that need no model and no hooks.
    pub(super) fn new(personas: &Personas, bus: &Bus, clock: &SharedClock) -> Self {
        Self {
            echo: Arc::new(EchoAgent),
            nats: Arc::new(NatsAgent::new(bus.clone(), clock)),
            process: Arc::new(ProcessAgent::new(Arc::new(personas.clone()), bus.clone(), clock)),
            llm: None,
            instead: None,
        }
    }

    /// Takes `agent` in place of all others.
    pub(super) fn set_instead(&mut self, agent: Arc<dyn Agent>) {
        self.instead = Some(agent);
    }

    /// Takes `model` for personas that ask one.
    pub(super) fn set_model(&mut self, model: SharedModel, personas: &Personas, bus: &Bus, clock: &SharedClock) {
        let personas = Arc::new(personas.clone());
        self.llm = Some(Arc::new(LlmAgent::new(model, personas, bus.clone(), clock)));
    }

    /// Takes the hooks that programs ask during a turn.
    pub(super) fn set_hooks(&mut self, hooks: &Arc<TurnHooks>, personas: &Personas, bus: &Bus, clock: &SharedClock) {
        let process = ProcessAgent::new(Arc::new(personas.clone()), bus.clone(), clock);
        self.process = Arc::new(process.with_hooks(Arc::clone(hooks)));
    }

    /// Returns the agent of `runner`. If no model is configured, the agent of a persona that asks one is absent.
    #[must_use]
    pub fn agent_of(&self, runner: AgentRunner) -> Arc<dyn Agent> {
        if let Some(instead) = &self.instead {
            return Arc::clone(instead);
        }

        match runner {
            AgentRunner::Echo => Arc::clone(&self.echo),
            AgentRunner::Nats => Arc::clone(&self.nats),
            AgentRunner::Process => Arc::clone(&self.process),
            AgentRunner::Llm => Arc::clone(self.llm.as_ref().unwrap_or(&self.nats)),
        }
    }
}
