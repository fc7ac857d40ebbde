//! Permissions of an agent in one turn. *Pure.* Source: seed 001 §2, §5; `docs/design/sessions.md` §5.

pub mod combine;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The level of a permission set. It names the preset that applies if `tools` is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermissionLevel {
    /// Level of the owner.
    Full,
    /// Level of a known person.
    Restricted,
    /// Level of a group conversation.
    Group,
    /// Level of everyone else.
    #[default]
    Minimal,
}

/// Patterns of tool names: globs, case-insensitive. A denial wins.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolRules {
    /// Patterns of allowed tools; absent = the preset of the level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<String>>,
    /// Patterns of denied tools, even if `allow` matches them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
}

impl ToolRules {
    /// Returns the errors in the patterns, each with its key.
    #[must_use]
    pub fn find_faults(&self) -> Vec<(&'static str, String)> {
        let allowed = self.allow.iter().flatten().map(|pattern| ("allow", pattern));
        let denied = self.deny.iter().map(|pattern| ("deny", pattern));
        let wrong = |(key, pattern): (&'static str, &String)| Some((key, pattern_fault(pattern)?));
        allowed.chain(denied).filter_map(wrong).collect()
    }
}

/// The permissions of an agent in the turn of one dispatch.
///
/// ```
/// use shared::model::permission::{PermissionPresets, PermissionSet, is_tool_permitted};
///
/// let set: PermissionSet = serde_json::from_value(serde_json::json!({
///     "level": "restricted", "tools": {"allow": ["memory_*"], "deny": ["memory_delete"]},
/// }))?;
/// let presets = PermissionPresets::default();
/// assert!(is_tool_permitted("memory_search", &set, &presets));
/// assert!(!is_tool_permitted("memory_delete", &set, &presets), "deny wins");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PermissionSet {
    /// Named level of the set.
    #[serde(default)]
    pub level: PermissionLevel,
    /// Rules for tools; absent = the preset of `level`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<ToolRules>,
    /// Names of the secrets that the turn's tools may resolve; absent = none, except at level `full`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Vec<String>>,
}

/// Tool presets by level (`permission_levels` in `personas.yaml`). A level that is not named keeps its default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, ToolRules>")]
pub struct PermissionPresets(pub BTreeMap<String, ToolRules>);

impl Default for PermissionPresets {
    /// Returns `full` = every tool and `minimal` = `web_search` alone, of any MCP server. The other levels must be
    /// configured.
    fn default() -> Self {
        let rules = |allow: &[&str]| ToolRules {
            allow: Some(allow.iter().map(|&pattern| pattern.to_owned()).collect()),
            deny: Vec::new(),
        };
        Self(BTreeMap::from([
            ("full".to_owned(), rules(&["*"])),
            ("minimal".to_owned(), rules(&["web_search", "*__web_search"])),
        ]))
    }
}

impl From<BTreeMap<String, ToolRules>> for PermissionPresets {
    fn from(levels: BTreeMap<String, ToolRules>) -> Self {
        let mut presets = Self::default();
        presets.0.extend(levels);
        presets
    }
}

impl PermissionPresets {
    /// Returns the errors in the presets' patterns, each as its dotted key and a message.
    pub fn find_faults(&self) -> impl Iterator<Item = (String, String)> {
        self.0.iter().flat_map(|(level, rules)| {
            let faults = rules.find_faults().into_iter();
            faults.map(move |(key, problem)| (format!("permission_levels.{level}.{key}"), problem))
        })
    }
}

/// Returns whether `permissions` allow the tool `name`. Deny patterns apply first, then allow patterns; without an
/// allow list the preset of the level applies, and without a preset no tool is allowed. Patterns are globs (`*`,
/// `?`), case-insensitive.
#[must_use]
pub fn is_tool_permitted(name: &str, permissions: &PermissionSet, presets: &PermissionPresets) -> bool {
    let preset = presets.0.get(level_name(permissions.level));
    let own = permissions.tools.as_ref();
    let denied = |rules: Option<&ToolRules>| rules.is_some_and(|r| r.deny.iter().any(|p| glob_matches(p, name)));

    let allow = own.and_then(|rules| rules.allow.as_ref());
    // A preset's denials apply only if the preset itself provides the allow list.
    if denied(own) || (allow.is_none() && denied(preset)) {
        return false;
    }

    let allow = allow.or_else(|| preset.and_then(|rules| rules.allow.as_ref()));
    allow.is_some_and(|patterns| patterns.iter().any(|pattern| glob_matches(pattern, name)))
}

/// Returns the name of the preset of `level`.
#[must_use]
pub const fn level_name(level: PermissionLevel) -> &'static str {
    match level {
        PermissionLevel::Full => "full",
        PermissionLevel::Restricted => "restricted",
        PermissionLevel::Group => "group",
        PermissionLevel::Minimal => "minimal",
    }
}

/// Returns whether `text` matches `pattern`, in which `*` matches any characters and `?` matches one. The function
/// takes linear memory and at most pattern × text time.
///
/// ```
/// use shared::model::permission::glob_matches;
///
/// assert!(glob_matches("mcp__github__*", "mcp__github__list_issues"));
/// assert!(!glob_matches("send_?", "send_message"));
/// ```
#[must_use]
pub fn glob_matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.to_lowercase().chars().collect();
    let text: Vec<char> = text.to_lowercase().chars().collect();

    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == '?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            // The last `*` matches one character more, and the rest of the pattern is tried again.
            Some(_) | None => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }

    pattern[p..].iter().all(|&c| c == '*')
}

/// Returns whether [`glob_matches`] matches `pattern` with some text that starts with `prefix`.
#[must_use]
pub fn may_begin(pattern: &str, prefix: &str) -> bool {
    let pattern: Vec<char> = pattern.to_lowercase().chars().collect();
    let skipped = |at: usize| pattern[at..].iter().take_while(|c| **c == '*').count();

    // All places of the pattern that may match next; a `*` may match nothing.
    let mut places: BTreeSet<usize> = (0..=skipped(0)).collect();

    for c in prefix.to_lowercase().chars() {
        let mut after = BTreeSet::new();
        for at in places {
            let next = match pattern.get(at) {
                Some('*') => at,
                Some(&wanted) if wanted == '?' || wanted == c => at + 1,
                Some(_) | None => continue,
            };
            after.extend(next..=next + skipped(next));
        }

        places = after;
    }

    !places.is_empty()
}

/// Returns the error in `pattern` if it cannot match any tool. Such a denial has no effect, although it looks like
/// one.
#[must_use]
pub fn pattern_fault(pattern: &str) -> Option<String> {
    if pattern.is_empty() || pattern.contains(char::is_whitespace) {
        return Some(format!("`{pattern}`: expected a glob of a tool's name, without blanks"));
    }
    let is_group = pattern.starts_with("group:");
    is_group.then(|| format!("`{pattern}`: there are no groups of tools, expected a glob of their names"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_known_by_what_its_matches_may_begin_with() {
        for (pattern, prefix, may) in [
            ("*", "erp__", true),
            ("erp__*", "erp__", true),
            ("ERP__pay", "erp__", true),
            ("erp__", "erp__", true),
            ("e*", "erp__", true),
            ("e*_pay", "erp__", true),
            ("???__pay", "erp__", true),
            ("*_pay", "erp__", true),
            ("**", "erp__", true),
            ("pay_*", "erp__", false),
            ("erp", "erp__", false),
            ("erp_?", "erp__", true),
            ("", "erp__", false),
        ] {
            assert_eq!(may_begin(pattern, prefix), may, "{pattern}");
        }
    }

    #[test]
    fn patterns_that_match_nothing_are_faults() {
        for wrong in ["", " ", "shell ", "a b", "group:fs"] {
            assert!(pattern_fault(wrong).is_some(), "{wrong:?}");
        }
        for right in ["*", "shell", "erp__*", "Group", "own.tool:x"] {
            assert_eq!(pattern_fault(right), None);
        }
    }

    fn rules(allow: Option<&[&str]>, deny: &[&str]) -> ToolRules {
        let own = |list: &[&str]| list.iter().map(|&s| s.to_owned()).collect::<Vec<_>>();
        ToolRules {
            allow: allow.map(own),
            deny: own(deny),
        }
    }

    fn check(level: PermissionLevel, tools: Option<ToolRules>, name: &str) -> bool {
        let permissions = PermissionSet {
            level,
            tools,
            credentials: None,
        };
        is_tool_permitted(name, &permissions, &PermissionPresets::default())
    }

    #[test]
    fn deny_wins_over_allow() {
        let tools = rules(Some(&["*"]), &["shell*"]);
        assert!(check(PermissionLevel::Full, Some(tools.clone()), "web_search"));
        assert!(!check(PermissionLevel::Full, Some(tools), "Shell_Exec"));
    }

    #[test]
    fn without_an_allow_list_the_level_decides() {
        assert!(check(PermissionLevel::Full, None, "anything"));
        assert!(check(PermissionLevel::Minimal, None, "web_search"));
        assert!(!check(PermissionLevel::Minimal, None, "send_mail"));
        assert!(
            !check(PermissionLevel::Group, None, "web_search"),
            "no preset is nothing"
        );
        assert!(!check(
            PermissionLevel::Full,
            Some(rules(None, &["web_*"])),
            "web_search"
        ));
    }

    #[test]
    fn an_empty_allow_list_allows_nothing() {
        assert!(!check(PermissionLevel::Full, Some(rules(Some(&[]), &[])), "web_search"));
    }

    #[test]
    fn globs_match_anywhere_and_end_in_time() {
        assert!(glob_matches("mcp.*.read_?", "MCP.files.read_9"));
        assert!(!glob_matches("mcp.*.read_?", "mcp.files.read"));
        assert!(glob_matches("**", "") && !glob_matches("", "x"));
        assert!(!glob_matches(&"*a".repeat(200), &"b".repeat(2_000)));
    }
}
