//! The registry of kinds (`intents.yaml`): the kinds that agents may request, and their budgets. *Pure.*
//!
//! Agents cannot invent kinds: an undeclared kind is rejected, and so is a parameter that its schema does not allow.
//! Source: `docs/design/schedules.md` §3.2 (Kinds, Budget, Approval requirement).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use shared::json_schema::JsonSchema;
use shared::model::intent::{ApprovalRequirement, IntentRejection};
use shared::model::permission::PermissionLevel;
use shared::process::config::{KeyFault, read_yaml};

/// Largest number of pending intents of one agent.
pub const MAX_PENDING: usize = 100;
/// Largest number of intents before an intent in its chain: an intent fired by an intent, and so on.
pub const MAX_DEPTH: u8 = 8;
/// The `intents.yaml` that is part of the program.
const SHIPPED: &str = include_str!("intents.yaml");

/// All faults in `intents.yaml`, at least one.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct ParseRegistryError(pub Vec<KeyFault>);

/// Trust in the requesting turn that a kind demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KindSensitivity {
    /// Any turn may request it.
    Low,
    /// The turn of a known person may request it.
    Medium,
    /// Only the owner's turn may request it.
    High,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    budget_classes: BTreeMap<String, u64>,
    budgets: DailyBudgets,
    #[serde(default)]
    agents: BTreeMap<String, AgentRules>,
    kinds: BTreeMap<String, KindRules>,
}

/// Budgets of an agent for one day (UTC).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DailyBudgets {
    /// Tokens that firings may use.
    pub tokens_per_day: u64,
    /// Number of firings.
    pub firings_per_day: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentRules {
    tokens_per_day: Option<u64>,
    firings_per_day: Option<u64>,
    #[serde(default)]
    approval: ApprovalRequirement,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KindRules {
    #[serde(default)]
    description: String,
    parameters: Value,
    sensitivity: KindSensitivity,
    approval: Option<ApprovalRequirement>,
    capability: Option<String>,
    budget: String,
}

/// A kind of intent.
#[derive(Debug)]
pub struct IntentKind {
    /// Purpose of the kind, for agents.
    pub description: String,
    /// Trust in the requesting turn that the kind demands.
    pub sensitivity: KindSensitivity,
    /// Least approval that the kind demands.
    pub approval: ApprovalRequirement,
    /// Tool that must be allowed for the requesting turn.
    pub capability: Option<String>,
    /// Tokens that one firing reserves.
    pub tokens: u64,
    schema: JsonSchema,
}

/// All kinds, and the budgets of agents.
#[derive(Debug)]
pub struct KindRegistry {
    kinds: BTreeMap<String, IntentKind>,
    budgets: DailyBudgets,
    agents: BTreeMap<String, AgentRules>,
}

impl KindRegistry {
    /// Returns the registry that is part of the program.
    ///
    /// # Errors
    /// Never fails: a test parses it.
    pub fn shipped_registry() -> Result<Self, ParseRegistryError> {
        Self::parse(SHIPPED)
    }

    /// Parses `intents.yaml`.
    ///
    /// # Errors
    /// Returns [`ParseRegistryError`] with every wrong key and the value that is expected there.
    pub fn parse(text: &str) -> Result<Self, ParseRegistryError> {
        let mut kinds = BTreeMap::new();
        let file = read_yaml(text, |file: &File| add_kinds(file, &mut kinds)).map_err(ParseRegistryError)?;
        let Some(file) = file else {
            let fault = KeyFault::whole("expected budget_classes, budgets and kinds");
            return Err(ParseRegistryError(vec![fault]));
        };

        Ok(Self {
            kinds,
            budgets: file.budgets,
            agents: file.agents,
        })
    }

    /// Returns the kind `name`.
    ///
    /// # Errors
    /// Returns [`IntentRejection::UnknownKind`] if it is not declared.
    pub fn kind(&self, name: &str) -> Result<&IntentKind, IntentRejection> {
        self.kinds.get(name).ok_or_else(|| IntentRejection::UnknownKind {
            kind: name.chars().take(80).collect(),
        })
    }

    /// Returns the daily budgets of `agent`.
    #[must_use]
    pub fn budgets_of(&self, agent: &str) -> DailyBudgets {
        let rules = self.agents.get(agent);
        DailyBudgets {
            tokens_per_day: rules
                .and_then(|rules| rules.tokens_per_day)
                .unwrap_or(self.budgets.tokens_per_day),
            firings_per_day: rules
                .and_then(|rules| rules.firings_per_day)
                .unwrap_or(self.budgets.firings_per_day),
        }
    }

    /// Returns the least approval that all intents of `agent` need.
    #[must_use]
    pub fn policy_of(&self, agent: &str) -> ApprovalRequirement {
        self.agents
            .get(agent)
            .map_or_else(Default::default, |rules| rules.approval)
    }
}

/// Adds the kinds of `file` to `kinds`. Returns their faults.
fn add_kinds(file: &File, kinds: &mut BTreeMap<String, IntentKind>) -> Vec<KeyFault> {
    let mut faults = Vec::new();
    for (name, rules) in &file.kinds {
        // All faults of the file are collected, so that it is corrected in one pass.
        let mut fault = |key: &str, problem: String| {
            faults.push(KeyFault::new(format!("kinds.{name}.{key}"), problem));
        };

        let schema = JsonSchema::parse_own(&rules.parameters).map_err(|error| fault("parameters", error.to_string()));
        let tokens = file.budget_classes.get(&rules.budget).copied();
        if tokens.is_none() {
            fault(
                "budget",
                format!("there is no class `{}` in budget_classes", rules.budget),
            );
        }

        if let (Ok(schema), Some(tokens)) = (schema, tokens) {
            let kind = IntentKind {
                description: rules.description.clone(),
                sensitivity: rules.sensitivity,
                approval: rules.approval.unwrap_or(derived_approval(rules.sensitivity)),
                capability: rules.capability.clone(),
                tokens,
                schema,
            };
            kinds.insert(name.clone(), kind);
        }
    }

    faults
}

const fn derived_approval(sensitivity: KindSensitivity) -> ApprovalRequirement {
    match sensitivity {
        KindSensitivity::Low | KindSensitivity::Medium => ApprovalRequirement::None,
        KindSensitivity::High => ApprovalRequirement::BeforeFire,
    }
}

impl IntentKind {
    /// Checks `parameters` against the schema.
    ///
    /// # Errors
    /// Returns [`IntentRejection::BadParameters`] with the first place that does not fit.
    pub fn check(&self, parameters: &Map<String, Value>) -> Result<(), IntentRejection> {
        let checked = self.schema.check(&Value::Object(parameters.clone()));
        checked.map_err(|mismatch| IntentRejection::BadParameters {
            path: mismatch.path,
            why: mismatch.problem,
        })
    }

    /// Checks that a turn of `level` may request the kind.
    ///
    /// # Errors
    /// Returns [`IntentRejection::Sensitivity`] if the level is too low.
    pub fn check_trust(&self, level: PermissionLevel) -> Result<(), IntentRejection> {
        let trusted = match level {
            PermissionLevel::Full => KindSensitivity::High,
            PermissionLevel::Restricted => KindSensitivity::Medium,
            PermissionLevel::Group | PermissionLevel::Minimal => KindSensitivity::Low,
        };

        if self.sensitivity <= trusted {
            return Ok(());
        }

        Err(IntentRejection::Sensitivity {
            why: format!(
                "intents of this kind need trust level {:?}, but the turn has {trusted:?}",
                self.sensitivity
            )
            .to_lowercase(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "it is written at the place of the call")]
    fn check(kind: &str, parameters: Value) -> Result<(), IntentRejection> {
        let registry = KindRegistry::shipped_registry().expect("what is shipped is right");
        let parameters = parameters.as_object().cloned().expect("an object");
        registry.kind(kind)?.check(&parameters)
    }

    #[test]
    fn shipped_kinds_take_what_their_schemas_say() {
        assert_eq!(
            check("remind", json!({ "subject": "s", "target": "x/y", "message": "m" })),
            Ok(())
        );
        assert_eq!(check("follow_up", json!({ "prompt": "p" })), Ok(()));
        assert_eq!(check("send_message", json!({ "target": "x/y", "text": "t" })), Ok(()));
        assert_eq!(check("run_hook", json!({ "hook": "a/b", "input": [1] })), Ok(()));
    }

    #[test]
    fn what_is_not_declared_fails_closed() {
        let unknown = check("dance", json!({})).expect_err("no such kind");
        assert_eq!(unknown.code(), "unknown_kind");

        for (parameters, path) in [
            (json!({ "message": "m" }), ""),
            (json!({ "subject": "s", "message": 5 }), "/message"),
            (json!({ "subject": "s", "message": "m", "when": "later" }), "/when"),
        ] {
            match check("remind", parameters.clone()) {
                Err(IntentRejection::BadParameters { path: found, why }) => {
                    assert_eq!(found, path, "{parameters}");
                    assert!(!why.is_empty());
                }
                other => panic!("{parameters}: {other:?}"),
            }
        }
    }

    #[test]
    fn trust_is_by_level() {
        let registry = KindRegistry::shipped_registry().expect("right");
        let send = registry.kind("send_message").expect("shipped");
        assert!(send.check_trust(PermissionLevel::Restricted).is_ok());
        assert_eq!(
            send.check_trust(PermissionLevel::Group)
                .expect_err("not a group's")
                .code(),
            "sensitivity"
        );
    }

    #[test]
    fn all_that_is_wrong_is_named_at_once() {
        let text = "budget_classes: {}\nbudgets: {tokens_per_day: many, firings_per_day: 1}\nkinds:\n  x: {parameters: {type: 5}, \
                    sensitivity: low, budget: b}\n  y: {parameters: {}, sensitivity: utter, budget: b}\n";
        let ParseRegistryError(faults) = KindRegistry::parse(text).expect_err("wrong");
        let keys: Vec<&str> = faults.iter().map(|fault| fault.key.as_str()).collect();
        assert_eq!(keys, ["budgets.tokens_per_day", "kinds.y.sensitivity"], "{faults:?}");

        let text = text.replace("many", "1").replace("utter", "low");
        let ParseRegistryError(faults) = KindRegistry::parse(&text).expect_err("wrong");
        let keys: Vec<&str> = faults.iter().map(|fault| fault.key.as_str()).collect();
        assert_eq!(
            keys,
            ["kinds.x.parameters", "kinds.x.budget", "kinds.y.budget"],
            "{faults:?}"
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, words) in [
            ("kinds: {}", "budget_classes"),
            (
                "budget_classes: {}\nbudgets: {tokens_per_day: 1, firings_per_day: 1}\nkinds: {x: {parameters: {}, sensitivity: low, budget: b}}",
                "kinds.x.budget",
            ),
            (
                "budget_classes: {b: 1}\nbudgets: {tokens_per_day: 1, firings_per_day: 1}\nkinds: {x: {parameters: {type: 5}, sensitivity: low, budget: b}}",
                "kinds.x.parameters",
            ),
        ] {
            let error = KindRegistry::parse(text).expect_err("wrong").to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
