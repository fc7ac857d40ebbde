//! `hooks.yaml`, with the hooks of `personas.yaml`: the hooks that run in each turn. *Pure.*
//!
//! Three layers: global, persona, session. A narrower layer adds hooks and may switch read-only mode on; it can
//! neither remove nor redefine the hooks of a wider one, so layers only tighten. Source: `docs/design/sessions.md`
//! §7.1, seed 004.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value};
use shared::model::permission::glob_matches;
use shared::model::session::SessionRef;
use shared::process::config::KeyFault;

use super::allow_list::{AllowList, CommandDirectories};
use super::builtin::BuiltinHook;
use super::declared::{DEFAULT_TIMEOUT_MS, DeclaredAction, DeclaredHook, HookLayer, OnFailure, read_hook};
use super::fault::FieldReader;
use super::point::HookPoint;
use crate::agent::personas::{DEFAULT_PERSONA, Personas};

/// Maximum number of hooks that one layer declares.
const MAX_HOOKS: usize = 256;
/// Default mode, whose allow-list holds beside `all`.
const DEFAULT_MODE: &str = "default";
/// Name of the guard that is added if read-only mode is on and no guard is declared.
const READ_ONLY: &str = "read_only";

/// Reason why a text is no `hooks.yaml`: every fault that was found, at least one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct ParseHooksError(pub Vec<KeyFault>);

/// Hooks and mode that a session's pattern adds.
#[derive(Debug, Clone, PartialEq, Default)]
struct SessionLayer {
    read_only: bool,
    hooks: Vec<Arc<DeclaredHook>>,
}

/// All declared hooks and their settings.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HookRules {
    /// Whether command hooks run at all.
    pub commands: bool,
    /// Allow-list for command hooks and for `shell_allow_list`.
    pub allow: AllowList,
    read_only: bool,
    global: Vec<Arc<DeclaredHook>>,
    personas: BTreeMap<String, Vec<Arc<DeclaredHook>>>,
    sessions: BTreeMap<String, SessionLayer>,
}

/// The hooks of one turn, in their order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HookSet {
    hooks: Vec<Arc<DeclaredHook>>,
    /// Whether read-only mode is on, in which `read_only_guard` refuses.
    pub read_only: bool,
}

impl HookSet {
    /// Returns the hooks of `point`, in the order in which they run.
    pub fn at(&self, point: HookPoint) -> impl Iterator<Item = &Arc<DeclaredHook>> {
        self.hooks.iter().filter(move |hook| hook.point == point)
    }

    /// Returns whether there is a hook at `point`.
    #[must_use]
    pub fn has_hooks(&self, point: HookPoint) -> bool {
        self.at(point).next().is_some()
    }

    /// Returns whether a hook of `point` has effects outside, or asks a human.
    #[must_use]
    pub fn has_side_effects(&self, point: HookPoint) -> bool {
        self.at(point).any(|hook| hook.has_side_effects())
    }

    /// Returns whether there are no hooks at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hooks.is_empty()
    }

    /// Returns whether a model's answer must not be shown before hooks have seen it whole.
    #[must_use]
    pub fn withholds_output(&self) -> bool {
        self.at(HookPoint::PostStream).any(|hook| hook.blocking)
    }
}

impl HookRules {
    /// Reads `hooks.yaml` (an empty text declares nothing), and the hooks of `personas`.
    ///
    /// # Errors
    /// Returns [`ParseHooksError`] with every wrong key and the value expected there.
    pub fn parse(text: &str, personas: &Personas) -> Result<Self, ParseHooksError> {
        let (rules, faults) = Self::found(text, Some(personas));
        match rules {
            Some(rules) if faults.is_empty() => Ok(rules),
            Some(_) | None => Err(ParseHooksError(faults)),
        }
    }

    /// Returns every fault of `hooks.yaml` (an empty text declares nothing), and of the hooks of `personas`: `None`
    /// if the personas are not known.
    #[must_use]
    pub fn check(text: &str, personas: Option<&Personas>) -> Vec<KeyFault> {
        Self::found(text, personas).1
    }

    /// Returns the declarations, as far as they can be read, and every fault.
    fn found(text: &str, personas: Option<&Personas>) -> (Option<Self>, Vec<KeyFault>) {
        let mut faults = Vec::new();
        let file = if text.trim().is_empty() {
            Some(Map::new())
        } else {
            let read = serde_yaml_ng::from_str::<Option<Map<String, Value>>>(text);
            let read = read.map(Option::unwrap_or_default);
            read.map_err(|error| faults.push(KeyFault::whole(error.to_string())))
                .ok()
        };

        let rules = match (file, personas) {
            (Some(file), personas) => Self::read(file, personas, &mut faults),
            // The hooks of the personas can be read even if the file cannot.
            (None, Some(personas)) => Self::read(Map::new(), Some(personas), &mut faults),
            (None, None) => return (None, faults),
        };
        rules.check_names(&mut faults);

        (Some(rules), faults)
    }

    fn read(file: Map<String, Value>, personas: Option<&Personas>, faults: &mut Vec<KeyFault>) -> Self {
        let mut fields = FieldReader {
            map: file,
            at: "",
            faults,
        };
        let commands = fields.take("enabled").unwrap_or(false);
        let mode: String = fields.take("mode").unwrap_or_else(|| DEFAULT_MODE.to_owned());

        let allow: BTreeMap<String, Vec<Value>> = fields.take("allow").unwrap_or_default();
        let read_only = fields.take("read_only").unwrap_or(false);
        let global: Vec<Map<String, Value>> = fields.take("hooks").unwrap_or_default();
        let of_personas: BTreeMap<String, Vec<Map<String, Value>>> = fields.take("personas").unwrap_or_default();
        let of_sessions: BTreeMap<String, Map<String, Value>> = fields.take("sessions").unwrap_or_default();
        fields.reject_unknown("enabled, mode, allow, read_only, hooks, personas or sessions");
        // The list is read before the layers, because their commands are checked against it.
        let allow = AllowList::from_declaration(&mode, &allow, faults);

        let global = read_layer(&global, "hooks", &HookLayer::Global, faults);
        let mut by_persona: BTreeMap<String, Vec<Arc<DeclaredHook>>> = BTreeMap::new();
        for (name, persona) in personas.iter().flat_map(|known| &known.personas) {
            let read = read_layer(
                &persona.hooks,
                &format!("personas.{name}.hooks"),
                &HookLayer::Persona(name.clone()),
                faults,
            );

            by_persona.entry(name.clone()).or_default().extend(read);
        }

        for (name, hooks) in &of_personas {
            let at = format!("personas.{name}");
            // If the personas are not known, no name can be called unknown.
            let is_known = personas.is_none_or(|known| known.personas.contains_key(name));
            if name != DEFAULT_PERSONA && !is_known {
                let problem = "there is no such persona in personas.yaml".to_owned();
                faults.push(KeyFault {
                    key: at.clone(),
                    problem,
                });
            }

            let read = read_layer(hooks, &at, &HookLayer::Persona(name.clone()), faults);
            by_persona.entry(name.clone()).or_default().extend(read);
        }

        let sessions = of_sessions.into_iter().map(|(pattern, map)| {
            let read = session_layer(&pattern, map, faults);
            (pattern, read)
        });

        Self {
            commands,
            allow,
            read_only,
            global,
            sessions: sessions.collect(),
            personas: by_persona,
        }
    }

    /// Adds a fault for each name that two hooks of one turn could share.
    fn check_names(&self, faults: &mut Vec<KeyFault>) {
        let mut wide = BTreeSet::new();
        let mut seen = |hooks: &[Arc<DeclaredHook>], known: &mut BTreeSet<String>, at: String| {
            for hook in hooks.iter().filter(|hook| !known.insert(hook.name.clone())) {
                faults.push(KeyFault {
                    key: at.clone(),
                    problem: format!(
                        "the name `{}` is taken: a layer can add hooks, but not redefine one",
                        hook.name
                    ),
                });
            }
        };

        // A global name is known in every layer.
        seen(&self.global, &mut wide, "hooks".to_owned());
        let mut all = wide.clone();
        for (persona, hooks) in &self.personas {
            let mut known = wide.clone();
            seen(hooks, &mut known, format!("personas.{persona}"));
            all.extend(known);
        }

        // A session may belong to any persona, so its names must differ from all.
        for (pattern, layer) in &self.sessions {
            seen(&layer.hooks, &mut all, format!("sessions.{pattern}"));
        }
    }

    /// Returns whether nothing is declared.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let nothing = |layer: &SessionLayer| layer.hooks.is_empty() && !layer.read_only;
        !self.read_only
            && self.global.is_empty()
            && self.personas.values().all(Vec::is_empty)
            && self.sessions.values().all(nothing)
    }

    /// Returns the hooks of a turn of `session`, with those of the sessions in `inherited`: an agent that works for
    /// others is bound by the hooks that bind them.
    #[must_use]
    pub fn hooks_of(&self, session: &SessionRef, inherited: &[SessionRef]) -> HookSet {
        let mut hooks: Vec<Arc<DeclaredHook>> = self.global.clone();
        let mut read_only = self.read_only;
        for session in std::iter::once(session).chain(inherited) {
            let name = if self.personas.contains_key(&session.persona) {
                session.persona.as_str()
            } else {
                DEFAULT_PERSONA
            };
            hooks.extend(self.personas.get(name).into_iter().flatten().cloned());

            let named = session.to_string();
            for (_, layer) in self
                .sessions
                .iter()
                .filter(|(pattern, _)| glob_matches(pattern, &named))
            {
                read_only |= layer.read_only;
                hooks.extend(layer.hooks.iter().cloned());
            }
        }

        if read_only && !hooks.iter().any(|hook| guards_everything(hook)) {
            hooks.push(Arc::new(implied_guard()));
        }

        hooks.sort_by_cached_key(|hook| hook.sort_key());
        hooks.dedup_by(|one, other| one.sort_key() == other.sort_key() && one.point == other.point);

        // Without the flag, command hooks do not run.
        hooks.retain(|hook| self.commands || !matches!(hook.action, DeclaredAction::Command { .. }));
        HookSet { hooks, read_only }
    }

    /// Logs a warning for each command hook that is known not to run.
    pub fn warn_of_commands(&self) {
        for hook in self.all_hooks() {
            let DeclaredAction::Command { command } = &hook.action else {
                continue;
            };

            if !self.commands {
                tracing::warn!(
                    hook_id = hook.name,
                    "command hooks are disabled (`enabled: false`); skipping the hook"
                );
            } else if let Err(refusal) =
                CommandDirectories::here().and_then(|place| self.allow.admit_command(command, &place))
            {
                tracing::warn!(hook_id = hook.name, command, hint = %refusal, "command is not on the allow-list; skipping the hook");
            }
        }
    }

    fn all_hooks(&self) -> impl Iterator<Item = &Arc<DeclaredHook>> {
        let personas = self.personas.values().flatten();
        let sessions = self.sessions.values().flat_map(|layer| &layer.hooks);
        self.global.iter().chain(personas).chain(sessions)
    }
}

/// Returns whether `hook` is a `read_only_guard` that sees every call.
fn guards_everything(hook: &DeclaredHook) -> bool {
    let is_guard = matches!(hook.action, DeclaredAction::Builtin(BuiltinHook::ReadOnlyGuard { .. }));
    is_guard && hook.blocking && hook.tools.is_empty() && hook.when.is_empty()
}

/// Returns the guard for a layer with `read_only: true` that declares none: the mode holds all the same.
fn implied_guard() -> DeclaredHook {
    DeclaredHook {
        name: READ_ONLY.to_owned(),
        point: HookPoint::PreToolUse,
        layer: HookLayer::Global,
        priority: 0,
        tools: Vec::new(),
        when: Vec::new(),
        timeout_ms: DEFAULT_TIMEOUT_MS,
        blocking: true,
        on_failure: OnFailure::Deny,
        action: DeclaredAction::Builtin(BuiltinHook::read_only_guard()),
    }
}

fn read_layer(
    maps: &[Map<String, Value>],
    at: &str,
    layer: &HookLayer,
    faults: &mut Vec<KeyFault>,
) -> Vec<Arc<DeclaredHook>> {
    if maps.len() > MAX_HOOKS {
        faults.push(KeyFault {
            key: at.to_owned(),
            problem: format!("{} hooks, at most {MAX_HOOKS}", maps.len()),
        });
    }

    let read = maps.iter().enumerate();
    read.filter_map(|(index, map)| read_hook(map, &format!("{at}[{index}]"), layer, faults))
        .map(Arc::new)
        .collect()
}

fn session_layer(pattern: &str, map: Map<String, Value>, faults: &mut Vec<KeyFault>) -> SessionLayer {
    let at = format!("sessions.{pattern}");
    let mut fields = FieldReader { map, at: &at, faults };
    let read_only: Option<bool> = fields.take("read_only");
    let hooks: Vec<Map<String, Value>> = fields.take("hooks").unwrap_or_default();

    if read_only == Some(false) {
        fields.add_fault("read_only", "a session can only restrict: expected true, or nothing");
    }

    if !pattern.contains('/') {
        fields.add_fault("", "expected a pattern of persona/session, such as shop/*");
    }

    fields.reject_unknown("read_only or hooks");
    SessionLayer {
        read_only: read_only.unwrap_or(false),
        hooks: read_layer(
            &hooks,
            &format!("{at}.hooks"),
            &HookLayer::Session(pattern.to_owned()),
            faults,
        ),
    }
}

#[cfg(test)]
mod tests;
