//! Combination of several permission sets. *Pure.*
//!
//! Source: `docs/design/sessions.md` §2; seed 001 §5.

use super::{PermissionLevel, PermissionPresets, PermissionSet, ToolRules, glob_matches, level_name};

/// Returns the permissions that hold under all of `sets`: tools that every set allows, without those that any set
/// denies. If two patterns overlap and neither covers the other, neither is kept: the result allows too little rather
/// than too much. A single set, or equal sets, are returned unchanged.
#[must_use]
pub fn merge_permissions(sets: &[&PermissionSet], presets: &PermissionPresets) -> PermissionSet {
    let Some((&first, rest)) = sets.split_first() else {
        return PermissionSet::default();
    };
    // Equal sets need no merging, and keep their short form.
    if rest.iter().all(|set| *set == first) {
        return first.clone();
    }

    let level = sets.iter().map(|set| set.level).fold(first.level, lower_level);
    let mut rules = explicit_rules(first, presets);

    let mut credentials = granted_credentials(first);
    // Each further set can only narrow the rights: allowed by all, denied by any.
    for set in rest {
        let other = explicit_rules(set, presets);
        rules = ToolRules {
            allow: Some(common_patterns(rules.allow.as_deref(), other.allow.as_deref())),
            deny: pattern_union(rules.deny, other.deny),
        };

        credentials = match (credentials, granted_credentials(set)) {
            (Some(one), Some(other)) => Some(one.into_iter().filter(|name| other.contains(name)).collect()),
            (one, other) => one.or(other),
        };
    }

    PermissionSet {
        level,
        tools: Some(rules),
        // At level `full` an absent list means every credential; that holds only if every set is like this.
        credentials,
    }
}

/// Returns the rules of `set` with its preset filled in.
fn explicit_rules(set: &PermissionSet, presets: &PermissionPresets) -> ToolRules {
    let own = set.tools.clone().unwrap_or_default();
    if own.allow.is_some() {
        return own;
    }
    let preset = presets.0.get(level_name(set.level)).cloned().unwrap_or_default();
    ToolRules {
        allow: Some(preset.allow.unwrap_or_default()),
        deny: pattern_union(own.deny, preset.deny),
    }
}

/// Returns the credentials of `set`; `None` = all.
fn granted_credentials(set: &PermissionSet) -> Option<Vec<String>> {
    match (&set.credentials, set.level) {
        (Some(names), _) => Some(names.clone()),
        (None, PermissionLevel::Full) => None,
        (None, PermissionLevel::Restricted | PermissionLevel::Group | PermissionLevel::Minimal) => Some(Vec::new()),
    }
}

fn lower_level(one: PermissionLevel, other: PermissionLevel) -> PermissionLevel {
    let rank = |level| match level {
        PermissionLevel::Full => 3,
        PermissionLevel::Restricted => 2,
        PermissionLevel::Group => 1,
        PermissionLevel::Minimal => 0,
    };
    if rank(other) < rank(one) { other } else { one }
}

/// Returns whether `message` may do less than `turn`, or cannot be shown to be allowed as much.
#[must_use]
pub fn narrows_permissions(turn: &PermissionSet, message: &PermissionSet, presets: &PermissionPresets) -> bool {
    let (wide, narrow) = (explicit_rules(message, presets), explicit_rules(turn, presets));
    let covered =
        |by: &[String], patterns: &[String]| patterns.iter().all(|p| by.iter().any(|wider| covers_pattern(wider, p)));
    // Every tool that the turn may use must be allowed to the message too.
    let allowed = covered(
        wide.allow.as_deref().unwrap_or_default(),
        narrow.allow.as_deref().unwrap_or_default(),
    );

    let secrets = match (granted_credentials(turn), granted_credentials(message)) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(used), Some(known)) => used.iter().all(|name| known.contains(name)),
    };

    !(allowed && covered(&narrow.deny, &wide.deny) && secrets)
}

fn pattern_union(mut one: Vec<String>, other: Vec<String>) -> Vec<String> {
    for pattern in other {
        if !one.contains(&pattern) {
            one.push(pattern);
        }
    }
    one
}

/// Returns the patterns of either list that a pattern of the other list covers.
fn common_patterns(one: Option<&[String]>, other: Option<&[String]>) -> Vec<String> {
    let (one, other) = (one.unwrap_or_default(), other.unwrap_or_default());
    let covered = |by: &[String], pattern: &String| by.iter().any(|wider| covers_pattern(wider, pattern));
    let left = one.iter().filter(|pattern| covered(other, pattern));
    let right = other.iter().filter(|pattern| covered(one, pattern));
    pattern_union(left.cloned().collect(), right.cloned().collect())
}

/// Returns whether `wide` matches everything that `narrow` matches. A `*` of `narrow` is matched only by a `*` of
/// `wide`, and a `?` by either wildcard.
fn covers_pattern(wide: &str, narrow: &str) -> bool {
    let star_met_by_question = |wide: &str| wide.contains('?') && narrow.contains('*');
    wide.eq_ignore_ascii_case(narrow) || (!star_met_by_question(wide) && glob_matches(wide, narrow))
}

#[cfg(test)]
mod tests {
    use super::super::is_tool_permitted;
    use super::*;

    fn set(
        level: PermissionLevel,
        allow: Option<&[&str]>,
        deny: &[&str],
        credentials: Option<&[&str]>,
    ) -> PermissionSet {
        let own = |list: &[&str]| list.iter().map(|&s| s.to_owned()).collect::<Vec<_>>();
        PermissionSet {
            level,
            tools: Some(ToolRules {
                allow: allow.map(own),
                deny: own(deny),
            }),
            credentials: credentials.map(own),
        }
    }

    /// Returns the tools, of a sample, that all of `sets` together allow.
    fn check(sets: &[PermissionSet], expected: &[&str]) {
        let presets = PermissionPresets::default();
        let sets: Vec<&PermissionSet> = sets.iter().collect();
        let merged = merge_permissions(&sets, &presets);
        let tools = ["web_search", "calendar_read", "calendar_write", "shell"];
        let may = tools
            .into_iter()
            .filter(|tool| is_tool_permitted(tool, &merged, &presets));

        assert_eq!(may.collect::<Vec<_>>(), expected);

        for tool in tools {
            let all = sets.iter().all(|set| is_tool_permitted(tool, set, &presets));
            assert!(
                all || !is_tool_permitted(tool, &merged, &presets),
                "{tool}: more than one of them allows"
            );
        }
    }

    #[test]
    fn merged_permissions_are_what_every_one_allows_and_a_denial_wins() {
        let full = || set(PermissionLevel::Full, None, &[], None);
        check(
            &[full(), full()],
            &["web_search", "calendar_read", "calendar_write", "shell"],
        );
        check(
            &[full(), set(PermissionLevel::Minimal, None, &[], None)],
            &["web_search"],
        );

        check(
            &[
                full(),
                set(
                    PermissionLevel::Restricted,
                    Some(&["Calendar_*", "shell"]),
                    &["shell"],
                    None,
                ),
            ],
            &["calendar_read", "calendar_write"],
        );

        let (cal, web) = (
            set(PermissionLevel::Group, Some(&["calendar_*"]), &[], None),
            set(PermissionLevel::Group, Some(&["web_*"]), &[], None),
        );
        check(&[cal.clone(), web], &[]);
        check(
            &[cal, set(PermissionLevel::Group, Some(&["calendar_read"]), &[], None)],
            &["calendar_read"],
        );
    }

    #[test]
    fn merged_credentials_are_those_that_every_one_grants() {
        let presets = PermissionPresets::default();
        let granted =
            |one: &PermissionSet, other: &PermissionSet| merge_permissions(&[one, other], &presets).credentials;
        let owner = set(PermissionLevel::Full, None, &[], None);
        let some = set(PermissionLevel::Full, None, &[], Some(&["a", "b"]));
        let none = set(PermissionLevel::Group, None, &[], None);

        assert_eq!(granted(&owner, &some), Some(vec!["a".to_owned(), "b".to_owned()]));

        let fewer = set(PermissionLevel::Restricted, None, &[], Some(&["b", "c"]));
        assert_eq!(granted(&some, &fewer), Some(vec!["b".to_owned()]));
        assert_eq!(granted(&owner, &none), Some(Vec::new()));

        let other = set(PermissionLevel::Full, None, &["x"], None);
        assert_eq!(granted(&owner, &other), None);
    }
}
