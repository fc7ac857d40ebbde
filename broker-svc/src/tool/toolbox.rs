//! Every tool that a persona has: the built-ins that its `tools` patterns name.

use std::collections::BTreeMap;
use std::sync::Arc;

use shared::bus::Bus;
use shared::clock::SharedClock;
use shared::model::permission::glob;

use super::Tool;
use super::catalogue;
use crate::personas::Persona;

/// The tools of a broker.
#[derive(Debug, Clone)]
pub struct Toolbox {
    builtins: Arc<BTreeMap<String, Arc<dyn Tool>>>,
}

impl Toolbox {
    /// The tools that speak over `bus`.
    #[must_use]
    pub fn new(bus: &Bus, clock: &SharedClock) -> Self {
        let builtins = catalogue::builtins(bus, clock);
        let named = builtins.into_iter().map(|tool| (tool.description().name.clone(), tool));
        Self {
            builtins: Arc::new(named.collect()),
        }
    }

    /// Every tool of `persona`.
    #[must_use]
    pub fn of(&self, persona: &Persona) -> Vec<Arc<dyn Tool>> {
        let wanted = |name: &str| persona.tools.iter().any(|pattern| glob(pattern, name));
        let tools = self.builtins.values();
        tools.filter(|tool| wanted(&tool.description().name)).cloned().collect()
    }

    /// The tool `name` of `persona`.
    #[must_use]
    pub fn find(&self, persona: &Persona, name: &str) -> Option<Arc<dyn Tool>> {
        self.of(persona)
            .into_iter()
            .find(|tool| tool.description().name == name)
    }
}
