//! Compiled bindings file: every binding and mapping is a rule of one index, with an order of precedence. *Pure.*
//!
//! Mappings come before bindings, in the order of the file. Among bindings the most specific tier wins (peer, parent
//! peer, guild with roles, guild, team, account, channel, default), and within a tier the first listed. A binding of a
//! peer also matches the conversations below it, in the parent's tier.

use std::collections::HashSet;

use serde_json::Value;
use shared::model::event::{Event, EventDirection};
use shared::model::hook::{DEFAULT_PRIORITY, HookContextPatch, HookResult, HookRouting};
use shared::model::origin::EventOrigin;
use shared::model::session::QueueMode;
use shared::process::config::{KeyFault, read_yaml};

use super::file::{BindingMatch, BindingsFile, OneOrMore, PeerMatch, PersonaBinding, WebhookMapping};
use super::template::TextTemplate;
use crate::routing::prefilter::{EventField, FieldPredicate, GlobPattern, MatchRule, RuleIndex};

/// Most bindings and mappings together.
const MAX_ENTRIES: usize = 100_000;

/// Most faults that are reported at once.
const MAX_FAULTS: usize = 20;

/// Adapters and channels without human senders: events of the services and agents themselves.
const MACHINES: [&str; 6] = ["timer", "schedule", "intent", "agent", "hook", "out"];

/// Specificity of an entry, the most specific first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tier {
    Mapping,
    Peer,
    ParentPeer,
    GuildAndRoles,
    Guild,
    Team,
    Account,
    Channel,
    Default,
}

/// Destination of an event that meets a rule.
#[derive(Debug, Clone, PartialEq)]
struct Target {
    tier: Tier,
    persona: Option<String>,
    session: Option<TextTemplate>,
    queue_mode: Option<QueueMode>,
    text: Option<TextTemplate>,
}

/// A compiled bindings file.
#[derive(Debug, Default)]
pub struct BindingTable {
    index: RuleIndex,
    /// Destinations of matching events, by rule.
    targets: Vec<Target>,
    entries: usize,
    priority: i32,
    fallback: bool,
}

impl BindingTable {
    /// Compiles the text of a bindings file.
    ///
    /// # Errors
    /// Returns the faults of the text, each naming the entry or the line.
    pub fn parse(text: &str) -> Result<Self, Vec<KeyFault>> {
        let mut rules = Rules::default();
        let file = read_yaml(text, |file: &BindingsFile| rules.add(file))?;
        let file = file.unwrap_or_default();

        Ok(Self {
            index: RuleIndex::new(rules.rules),
            targets: rules.targets,
            entries: file.bindings.len() + file.mappings.len(),
            priority: file.priority.unwrap_or(DEFAULT_PRIORITY),
            fallback: file.fallback,
        })
    }

    /// Returns the number of bindings and mappings.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries
    }

    /// Returns whether there are no bindings and mappings.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Returns the priority of the dispatches.
    #[must_use]
    pub const fn priority(&self) -> i32 {
        self.priority
    }

    /// Returns whether it fires only if no other hook routed the event.
    #[must_use]
    pub const fn is_fallback(&self) -> bool {
        self.fallback
    }

    /// Returns the fire for `event`; `None` if no entry matches. Only incoming events are routed: sent ones, and
    /// changes of events routed before, would go to the agent that caused them.
    #[must_use]
    pub fn decide_route(&self, event: &Event) -> Option<HookResult> {
        match event.direction {
            EventDirection::Received | EventDirection::Created => {}
            EventDirection::Sent | EventDirection::Observed | EventDirection::Updated | EventDirection::Deleted => {
                return None;
            }
        }

        // Only a hook can ask for withheld events.
        if event.withheld_tags().next().is_some() {
            return None;
        }

        let of_people = is_of_people(event);
        let met = self.index.matching_rules(event).into_iter();

        // A binding without conditions is for messages of people, not for every timer event.
        let met = met.filter(|&rule| of_people || self.targets[rule as usize].tier != Tier::Default);
        let first = met.min_by_key(|&rule| (self.targets[rule as usize].tier, rule))?;

        Some(self.targets[first as usize].hook_result(event))
    }
}

/// Rules of a file, each with its target.
#[derive(Debug, Default)]
struct Rules {
    rules: Vec<MatchRule>,
    targets: Vec<Target>,
    seen: HashSet<(u8, MatchRule)>,
}

impl Rules {
    /// Adds every entry of `file`. Returns the faults of the entries.
    fn add(&mut self, file: &BindingsFile) -> Vec<KeyFault> {
        let mut faults = Vec::new();
        let entries = file.bindings.len() + file.mappings.len();
        if entries > MAX_ENTRIES {
            faults.push(KeyFault::whole(format!(
                "{entries} entries found, expected at most {MAX_ENTRIES}"
            )));
        }

        for (at, mapping) in file.mappings.iter().enumerate() {
            match of_mapping(mapping) {
                Ok((rule, target)) => self.file_under(rule, target),
                Err(fault) => faults.push(in_entry(&format!("mappings[{at}]"), &fault)),
            }
        }

        for (at, binding) in file.bindings.iter().enumerate() {
            match of_binding(binding) {
                Ok(found) => found
                    .into_iter()
                    .for_each(|(rule, target)| self.file_under(rule, target)),
                Err(fault) => faults.push(in_entry(&format!("bindings[{at}]"), &fault)),
            }
        }

        faults.truncate(MAX_FAULTS);
        faults
    }

    /// Adds a rule, unless its tier has an equal one, because the first listed always wins.
    fn file_under(&mut self, rule: MatchRule, target: Target) {
        if self.seen.insert((target.tier as u8, rule.clone())) {
            self.rules.push(rule);
            self.targets.push(target);
        }
    }
}

/// Returns `fault`, which begins with its key within the entry, as a fault at `place`.
fn in_entry(place: &str, fault: &str) -> KeyFault {
    match fault.split_once(": ") {
        Some((key, problem)) => KeyFault::new(format!("{place}.{key}"), problem),
        None => KeyFault::new(place, fault),
    }
}

/// Returns whether `event` is a message from outside, not an event of a timer or an agent, or an item that was created.
fn is_of_people(event: &Event) -> bool {
    let names = [event.source_adapter.as_str(), event.channel.as_str()];
    event.direction == EventDirection::Received
        && event.origin != EventOrigin::System
        && !names.iter().any(|name| MACHINES.contains(name))
}

impl Target {
    fn hook_result(&self, event: &Event) -> HookResult {
        HookResult {
            fire: true,
            routing: Some(HookRouting {
                persona: self.persona.clone(),
                session: self.session.as_ref().map(|template| template.fill_in(event)),
                queue_mode: self.queue_mode,
                thread: None,
            }),
            context: self.text.as_ref().map(|template| HookContextPatch {
                system_prompt: Some(template.fill_in(event)),
                ..HookContextPatch::default()
            }),
            ..HookResult::default()
        }
    }
}

fn of_binding(binding: &PersonaBinding) -> Result<Vec<(MatchRule, Target)>, String> {
    if binding.persona.is_empty() {
        return Err("persona: expected a non-empty name".to_owned());
    }

    let target = Target {
        tier: match_tier(&binding.matches),
        persona: Some(binding.persona.clone()),
        session: parse_template("session", binding.session.as_deref())?,
        queue_mode: binding.queue_mode,
        text: None,
    };

    let matches = &binding.matches;
    // Roles belong to a guild: without one the same name would match elsewhere.
    if matches.roles.is_some() && matches.guild.is_none() {
        return Err("match.roles: expected together with match.guild".to_owned());
    }

    let common = [
        one_of(EventField::Channel, "channel", matches.channel.as_ref())?,
        one_of(EventField::Account, "account", matches.account.as_ref())?,
        one_of(EventField::Guild, "guild", matches.guild.as_ref())?,
        one_of(EventField::Role, "roles", matches.roles.as_ref())?,
        one_of(EventField::Team, "team", matches.team.as_ref())?,
    ];

    let common: Vec<FieldPredicate> = common.into_iter().flatten().collect();
    let parent = match &matches.parent_peer {
        Some(parent) => one_of(EventField::Parent, "parent_peer.id", Some(&parent.id))?,
        None => None,
    };

    let rule = |own: Vec<FieldPredicate>| MatchRule::new(common.iter().chain(&parent).cloned().chain(own));
    let Some(peer) = &matches.peer else {
        return Ok(vec![(rule(Vec::new()), target)]);
    };

    let mut found = vec![(rule(of_peer(peer)?), target.clone())];
    // A binding of a conversation holds for its threads as well, but a thread's own binding goes first.
    if parent.is_none() {
        let above = one_of(EventField::Parent, "peer.id", Some(&peer.id))?;
        let target = Target {
            tier: Tier::ParentPeer,
            ..target
        };
        found.push((rule(above.into_iter().collect()), target));
    }

    Ok(found)
}

fn of_peer(peer: &PeerMatch) -> Result<Vec<FieldPredicate>, String> {
    let id = one_of(EventField::Peer, "peer.id", Some(&peer.id))?;
    let kind = peer.kind.map(|kind| {
        let word = kind.name();
        FieldPredicate {
            field: EventField::Kind,
            patterns: vec![GlobPattern::Exact(word.to_owned())],
        }
    });
    Ok(id.into_iter().chain(kind).collect())
}

const fn match_tier(matches: &BindingMatch) -> Tier {
    match matches {
        BindingMatch { peer: Some(_), .. } => Tier::Peer,
        BindingMatch {
            parent_peer: Some(_), ..
        } => Tier::ParentPeer,
        BindingMatch {
            guild: Some(_),
            roles: Some(_),
            ..
        } => Tier::GuildAndRoles,
        BindingMatch { guild: Some(_), .. } => Tier::Guild,
        BindingMatch { team: Some(_), .. } => Tier::Team,
        BindingMatch { account: Some(_), .. } => Tier::Account,
        BindingMatch { channel: Some(_), .. } => Tier::Channel,
        _ => Tier::Default,
    }
}

fn of_mapping(mapping: &WebhookMapping) -> Result<(MatchRule, Target), String> {
    let mut predicates = Vec::new();
    predicates.extend(one_of(EventField::Source, "source", mapping.source.as_ref())?);

    if let Some(path) = &mapping.path {
        // The path of a webhook ends in the name of its source.
        let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        if name.is_empty() {
            return Err("path: expected a path that ends in the name of a source".to_owned());
        }

        predicates.push(FieldPredicate {
            field: EventField::Source,
            patterns: vec![GlobPattern::parse(name)],
        });
    }

    // A mapping without a source would take events of all channels.
    if predicates.is_empty() {
        return Err("source: required if there is no `path`".to_owned());
    }

    for (name, wanted) in &mapping.matches {
        let field = EventField::parse(&format!("metadata.{name}"))
            .ok_or_else(|| format!("match.{name}: expected a field such as `payload.type`"))?;
        let patterns = read_alternatives(wanted)
            .ok_or_else(|| format!("match.{name}: expected a text, number or boolean, or a list of them"))?;
        predicates.push(FieldPredicate { field, patterns });
    }

    let target = Target {
        tier: Tier::Mapping,
        persona: mapping.persona.clone(),
        session: parse_template("session", mapping.session.as_deref())?,
        queue_mode: mapping.queue_mode,
        text: parse_template("text", mapping.text.as_deref())?,
    };

    Ok((MatchRule::new(predicates), target))
}

fn parse_template(name: &str, text: Option<&str>) -> Result<Option<TextTemplate>, String> {
    text.map(TextTemplate::parse)
        .transpose()
        .map_err(|fault| format!("{name}: {fault}"))
}

fn one_of(field: EventField, name: &str, values: Option<&OneOrMore>) -> Result<Option<FieldPredicate>, String> {
    let Some(values) = values else { return Ok(None) };
    let texts = values.all_texts();
    if texts.is_empty() || texts.iter().any(String::is_empty) {
        return Err(format!("match.{name}: expected a non-empty value"));
    }
    Ok(Some(FieldPredicate {
        field,
        patterns: texts.iter().map(|text| GlobPattern::parse(text)).collect(),
    }))
}

fn read_alternatives(wanted: &Value) -> Option<Vec<GlobPattern>> {
    let one = |value: &Value| crate::routing::prefilter::scalar_text(value).map(|text| GlobPattern::parse(&text));
    match wanted {
        Value::Array(items) if !items.is_empty() => items.iter().map(one).collect(),
        Value::Array(_) => None,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            one(wanted).map(|pattern| vec![pattern])
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
