//! What an agent may do in one turn. *Pure.* Source: `001_63a3878cde6a1bc3.txt` §2, §5; `sessions.md` "Context assembly".

use serde::{Deserialize, Serialize};

/// Named strength of a permission set; names a preset where `tools` is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The owner.
    Full,
    /// A known person.
    Restricted,
    /// A group conversation.
    Group,
    /// Anybody else.
    #[default]
    Minimal,
}

/// Patterns of tool names: `*` and globs, case-insensitive; deny wins.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolRules {
    /// What may be used; absent = the preset of the level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<String>>,
    /// What may not, whatever `allow` says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
}

/// What an agent may do in the turn of one dispatch.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PermissionSet {
    /// Named strength.
    #[serde(default)]
    pub level: Level,
    /// Tools; absent = the preset of `level`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<ToolRules>,
    /// Names of the secrets that tools of this turn may resolve; absent = none, except at level `full`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Vec<String>>,
}
