//! Combination of several permission sets. *Pure.*
//!
//! Source: `docs/design/sessions.md` §2; seed 001 §5.

use super::{Level, PermissionSet, ToolRules, glob, level_name};
use crate::model::identity::PermissionPresets;

/// Returns the permissions that hold under all of `sets`: tools that every set allows, without those that any set
/// denies. If two patterns overlap and neither covers the other, neither is kept: the result allows too little rather
/// than too much. A single set, or equal sets, are returned unchanged.
#[must_use]
pub fn merged(sets: &[&PermissionSet], presets: &PermissionPresets) -> PermissionSet {
    let Some((&first, rest)) = sets.split_first() else {
        return PermissionSet::default();
    };
    // Equal sets need no merging, and keep their short form.
    if rest.iter().all(|set| *set == first) {
        return first.clone();
    }

    let level = sets.iter().map(|set| set.level).fold(first.level, lower);
    let mut rules = explicit(first, presets);

    let mut credentials = granted(first);
    // Each further set can only narrow the rights: allowed by all, denied by any.
    for set in rest {
        let other = explicit(set, presets);
        rules = ToolRules {
            allow: Some(common(rules.allow.as_deref(), other.allow.as_deref())),
            deny: union(rules.deny, other.deny),
        };

        credentials = match (credentials, granted(set)) {
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
fn explicit(set: &PermissionSet, presets: &PermissionPresets) -> ToolRules {
    let own = set.tools.clone().unwrap_or_default();
    if own.allow.is_some() {
        return own;
    }
    let preset = presets.0.get(level_name(set.level)).cloned().unwrap_or_default();
    ToolRules {
        allow: Some(preset.allow.unwrap_or_default()),
        deny: union(own.deny, preset.deny),
    }
}

/// Returns the credentials of `set`; `None` = all.
fn granted(set: &PermissionSet) -> Option<Vec<String>> {
    match (&set.credentials, set.level) {
        (Some(names), _) => Some(names.clone()),
        (None, Level::Full) => None,
        (None, Level::Restricted | Level::Group | Level::Minimal) => Some(Vec::new()),
    }
}

fn lower(one: Level, other: Level) -> Level {
    let rank = |level| match level {
        Level::Full => 3,
        Level::Restricted => 2,
        Level::Group => 1,
        Level::Minimal => 0,
    };
    if rank(other) < rank(one) { other } else { one }
}

/// Returns whether `message` may do less than `turn`, or cannot be shown to be allowed as much.
#[must_use]
pub fn narrows(turn: &PermissionSet, message: &PermissionSet, presets: &PermissionPresets) -> bool {
    let (wide, narrow) = (explicit(message, presets), explicit(turn, presets));
    let covered = |by: &[String], patterns: &[String]| patterns.iter().all(|p| by.iter().any(|wider| covers(wider, p)));
    // Every tool that the turn may use must be allowed to the message too.
    let allowed = covered(
        wide.allow.as_deref().unwrap_or_default(),
        narrow.allow.as_deref().unwrap_or_default(),
    );

    let secrets = match (granted(turn), granted(message)) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(used), Some(known)) => used.iter().all(|name| known.contains(name)),
    };

    !(allowed && covered(&narrow.deny, &wide.deny) && secrets)
}

fn union(mut one: Vec<String>, other: Vec<String>) -> Vec<String> {
    for pattern in other {
        if !one.contains(&pattern) {
            one.push(pattern);
        }
    }
    one
}

/// Returns the patterns of either list that a pattern of the other list covers.
fn common(one: Option<&[String]>, other: Option<&[String]>) -> Vec<String> {
    let (one, other) = (one.unwrap_or_default(), other.unwrap_or_default());
    let covered = |by: &[String], pattern: &String| by.iter().any(|wider| covers(wider, pattern));
    let left = one.iter().filter(|pattern| covered(other, pattern));
    let right = other.iter().filter(|pattern| covered(one, pattern));
    union(left.cloned().collect(), right.cloned().collect())
}

/// Returns whether `wide` matches everything that `narrow` matches. A `*` of `narrow` is matched only by a `*` of
/// `wide`, and a `?` by either wildcard.
fn covers(wide: &str, narrow: &str) -> bool {
    let star_met_by_question = |wide: &str| wide.contains('?') && narrow.contains('*');
    wide.eq_ignore_ascii_case(narrow) || (!star_met_by_question(wide) && glob(wide, narrow))
}

#[cfg(test)]
mod tests {
    use super::super::permitted;
    use super::*;

    fn set(level: Level, allow: Option<&[&str]>, deny: &[&str], credentials: Option<&[&str]>) -> PermissionSet {
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
        let merged = merged(&sets, &presets);
        let tools = ["web_search", "calendar_read", "calendar_write", "shell"];
        let may = tools.into_iter().filter(|tool| permitted(tool, &merged, &presets));

        assert_eq!(may.collect::<Vec<_>>(), expected);

        for tool in tools {
            let all = sets.iter().all(|set| permitted(tool, set, &presets));
            assert!(
                all || !permitted(tool, &merged, &presets),
                "{tool}: more than one of them allows"
            );
        }
    }

    #[test]
    fn merged_permissions_are_what_every_one_allows_and_a_denial_wins() {
        let full = || set(Level::Full, None, &[], None);
        check(
            &[full(), full()],
            &["web_search", "calendar_read", "calendar_write", "shell"],
        );
        check(&[full(), set(Level::Minimal, None, &[], None)], &["web_search"]);

        check(
            &[
                full(),
                set(Level::Restricted, Some(&["Calendar_*", "shell"]), &["shell"], None),
            ],
            &["calendar_read", "calendar_write"],
        );

        let (cal, web) = (
            set(Level::Group, Some(&["calendar_*"]), &[], None),
            set(Level::Group, Some(&["web_*"]), &[], None),
        );
        check(&[cal.clone(), web], &[]);
        check(
            &[cal, set(Level::Group, Some(&["calendar_read"]), &[], None)],
            &["calendar_read"],
        );
    }

    #[test]
    fn merged_credentials_are_those_that_every_one_grants() {
        let presets = PermissionPresets::default();
        let granted = |one: &PermissionSet, other: &PermissionSet| merged(&[one, other], &presets).credentials;
        let owner = set(Level::Full, None, &[], None);
        let some = set(Level::Full, None, &[], Some(&["a", "b"]));
        let none = set(Level::Group, None, &[], None);

        assert_eq!(granted(&owner, &some), Some(vec!["a".to_owned(), "b".to_owned()]));

        let fewer = set(Level::Restricted, None, &[], Some(&["b", "c"]));
        assert_eq!(granted(&some, &fewer), Some(vec!["b".to_owned()]));
        assert_eq!(granted(&owner, &none), Some(Vec::new()));

        let other = set(Level::Full, None, &["x"], None);
        assert_eq!(granted(&owner, &other), None);
    }
}
