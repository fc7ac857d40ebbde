//! Which subjects the users of a bus have used, as its server has written down (`trace: true`).
//!
//! The server's log has each operation of each connection, with what the client's library does by itself. A line is
//!
//! ```text
//! [1] … [TRC] 127.0.0.1:50500 - cid:6 - "v0.51:rust:hook-svc-0" - "A…/NEXUS/jwt:U…" - <<- [SUB nexus.x 1]
//! ```

use std::collections::{BTreeMap, BTreeSet};

use shared::wire::rights::{BusRole, Right, covers};

/// Subjects of one role.
#[derive(Debug, Default)]
pub struct UsedSubjects {
    /// Published, or tried to be.
    pub published: BTreeSet<String>,
    /// Subscribed to, or tried to be.
    pub heard: BTreeSet<String>,
}

/// Returns what the log says that each role has used. `roles` has the role of each user by the public key.
#[must_use]
pub fn read_used(log: &str, roles: &BTreeMap<String, BusRole>) -> BTreeMap<BusRole, UsedSubjects> {
    let mut used: BTreeMap<BusRole, UsedSubjects> = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains("[TRC]")) {
        let Some((head, operation)) = line.split_once(" - <<- [") else {
            continue;
        };
        let user = head.split('"').nth(3).and_then(|label| label.split_once("/jwt:"));
        let Some(&role) = user.and_then(|(_, key)| roles.get(key)) else {
            continue;
        };

        let mut words = operation.trim_end_matches(']').split_whitespace();
        let of_role = used.entry(role).or_default();
        match (words.next(), words.next()) {
            (Some("PUB" | "HPUB"), Some(subject)) => drop(of_role.published.insert(subject.to_owned())),
            (Some("SUB"), Some(subject)) => drop(of_role.heard.insert(subject.to_owned())),
            _ => {}
        }
    }
    used
}

/// Returns what the server's log says that was refused.
#[must_use]
pub fn read_violations(log: &str) -> Vec<&str> {
    log.lines()
        .filter(|line| !line.contains("[TRC]") && line.contains("Violation"))
        .collect()
}

/// Returns the rights of `role` that it has not used.
#[must_use]
pub fn unused_rights(role: BusRole, used: &UsedSubjects) -> Vec<Right> {
    let is_used = |right: &Right| {
        let published: Vec<String> = right.publishes().iter().map(|filter| of_any_user(filter)).collect();
        let heard: Vec<String> = right.subscribes().iter().map(|filter| of_any_user(filter)).collect();
        let within = |filters: &[String], subjects: &BTreeSet<String>| {
            subjects
                .iter()
                .any(|subject| filters.iter().any(|filter| covers(filter, subject)))
        };
        within(&published, &used.published) || within(&heard, &used.heard)
    };
    role.rights().iter().copied().filter(|right| !is_used(right)).collect()
}

/// Returns `filter` with whatever the server fills in for a user.
fn of_any_user(filter: &str) -> String {
    let tokens = filter.split('.');
    let filled = tokens.map(|token| if token.starts_with("{{") { "*" } else { token });
    filled.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = r#"[1] 2026 [TRC] 127.0.0.1:1 - cid:6 - "v0.51:rust:a" - "A/NEXUS/jwt:U1" - <<- [SUB nexus.svc.hook.list q 2]
[1] 2026 [TRC] 127.0.0.1:1 - cid:6 - "v0.51:rust:a" - "A/NEXUS/jwt:U1" - <<- [HPUB $KV.hooks.a _INBOX_hook.1 12 15]
[1] 2026 [TRC] 127.0.0.1:1 - cid:7 - "v0.51:rust:b" - "A/NEXUS/jwt:U2" - <<- [PUB nexus.dispatch.1.a.b 5]
[1] 2026 [ERR] 127.0.0.1:1 - cid:7 - "v0.51:rust:b" - "A/NEXUS/jwt:U2" - Publish Violation - Subject "nexus.dispatch.1.a.b"
"#;

    /// The rights that the suite uses, a role and a right on each line, sorted; behind ` # used by ` the files (`A` or
    /// `A and B`) that need one which the suite does not use, and for what. The words of the right are in these files.
    /// Recorded as docs/contribute/README.md says.
    const RECORDED: &str = include_str!("../data/used-rights.txt");

    #[test]
    fn no_right_is_granted_that_nobody_uses() {
        let rights = |role: BusRole| {
            let all = role.rights().iter();
            all.map(move |right| format!("{} {right:?}", role.name()))
        };
        let granted: BTreeSet<String> = BusRole::ALL.into_iter().flat_map(rights).collect();

        let recorded: Vec<&str> = RECORDED
            .lines()
            .map(|line| line.split(" # ").next().unwrap_or(line))
            .collect();
        assert!(recorded.is_sorted_by(|one, next| one < next), "sorted, each right once");

        let used: BTreeSet<String> = recorded.into_iter().map(str::to_owned).collect();
        let unused: Vec<&String> = granted.difference(&used).collect();
        assert!(unused.is_empty(), "granted, and never used: {unused:#?}");
        let unknown: Vec<&String> = used.difference(&granted).collect();
        assert!(unknown.is_empty(), "recorded, and no right: {unknown:#?}");
    }

    #[test]
    fn a_right_that_the_suite_does_not_use_names_the_files_that_need_it() {
        let explained = RECORDED.lines().filter_map(|line| line.split_once(" # "));
        let mut count = 0;
        for (right, reason) in explained {
            let place = reason.strip_prefix("used by ").and_then(|place| place.split_once(": "));
            let (files, purpose) = place.unwrap_or_else(|| panic!("{right}: no file and purpose in {reason:?}"));
            assert!(!purpose.is_empty(), "{right}: no purpose");

            let wanted = words_of_right(right);
            assert!(!wanted.is_empty(), "{right}: nothing to look for");
            let named: BTreeSet<String> = files.split(" and ").flat_map(words_of_file).collect();
            let absent: Vec<&String> = wanted.difference(&named).collect();
            assert!(absent.is_empty(), "{right}: {files} has no word {absent:?}");
            count += 1;
        }
        assert!(count > 0, "the recording explains nothing");
    }

    /// Returns the words of `text`, small: what stands between characters that are neither letters nor digits.
    fn words(text: &str) -> BTreeSet<String> {
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
        words
            .filter(|word| !word.is_empty())
            .map(str::to_ascii_lowercase)
            .collect()
    }

    /// Returns the words of the subject, stream or bucket in `right`, as `hook` and `list` of `hook Ask("hook.list")`.
    fn words_of_right(right: &str) -> BTreeSet<String> {
        let named = right
            .split('"')
            .nth(1)
            .unwrap_or_else(|| panic!("{right} names nothing"));
        // What the server fills in for a user stands nowhere, and the first word of our subjects everywhere.
        let tokens = named
            .split('.')
            .filter(|token| !token.starts_with("{{") && *token != "nexus");
        tokens.flat_map(words).collect()
    }

    /// Returns the words of the file at `path` in the repository, without those of its tests.
    fn words_of_file(path: &str) -> BTreeSet<String> {
        let repository = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = std::fs::read_to_string(repository.join(path));
        let text = text.unwrap_or_else(|error| panic!("{path}: {error}"));
        words(text.split("#[cfg(test)]").next().unwrap_or_default())
    }

    #[test]
    fn the_words_of_a_right_are_those_of_what_it_names() {
        let of = |right: &str| words_of_right(right).into_iter().collect::<Vec<_>>();
        assert_eq!(of(r#"viewer Ask("hook.list")"#), ["hook", "list"]);
        assert_eq!(
            of(r#"edge Publish("nexus.event.{{tag(channel)}}.{{name()}}.*")"#),
            ["event"]
        );
        assert_eq!(of(r#"broker ReadKeys("hook_limits")"#), ["hook", "limits"]);
        assert_eq!(of(r#"restore Publish("$O.>")"#), ["o"]);
        assert_eq!(of(r#"admin Publish(">")"#), Vec::<String>::new());
    }

    #[test]
    fn what_a_role_has_used_is_read_from_the_servers_log() {
        let used = read_used(LOG, &[("U1".to_owned(), BusRole::Hook)].into());
        let hook = &used[&BusRole::Hook];
        assert_eq!(hook.published.iter().collect::<Vec<_>>(), ["$KV.hooks.a"]);
        assert_eq!(read_violations(LOG).len(), 1);

        let unused = unused_rights(BusRole::Hook, hook);
        assert!(!unused.contains(&Right::WriteKeys("hooks")) && !unused.contains(&Right::Serve("hook.*")));
        assert!(unused.contains(&Right::Publish("nexus.dispatch.*.*.*")));
    }
}
