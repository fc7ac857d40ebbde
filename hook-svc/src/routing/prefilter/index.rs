//! Index of many rules, which finds those that an event meets. *Pure.*

use std::collections::{BTreeMap, HashMap};

use aho_corasick::AhoCorasick;
use shared::model::event::Event;

use super::facts::{EventFacts, EventField};
use super::pattern::GlobPattern;
use super::rule::{FieldPredicate, MatchRule};

/// Cost of a rule that must be checked for every event, and the cost factor of one that is found by a substring,
/// relative to rules found by a value that all of them share.
const SCAN_WEIGHT: usize = usize::MAX;
const SUBSTRING_WEIGHT: usize = 8;

/// Shortest substring that is searched for, in bytes.
const MIN_SUBSTRING_BYTES: usize = 3;

/// Rules by their most selective predicate, numbered in the order in which they were given.
#[derive(Debug, Default)]
pub struct RuleIndex {
    rules: Vec<MatchRule>,
    tables: Vec<(EventField, Table)>,
    /// Automaton for substrings of the text; `None` if no rule is filed under one.
    text: Option<AhoCorasick>,
    /// Numbers of the rules, by substring.
    by_text: Vec<Vec<u32>>,
    /// Numbers of the rules without a selective predicate.
    scanned: Vec<u32>,
}

/// Rules filed under values of one field.
#[derive(Debug, Default)]
struct Table {
    exact: HashMap<String, Vec<u32>>,
    prefixes: HashMap<String, Vec<u32>>,
    /// Lengths of the prefixes in bytes, ascending.
    lengths: Vec<usize>,
}

impl RuleIndex {
    /// Creates an index of `rules`.
    ///
    /// # Panics
    /// Never: if the substring automaton cannot be built, its rules are checked for every event.
    #[must_use]
    pub fn new(rules: Vec<MatchRule>) -> Self {
        // A predicate is the more selective the fewer rules share its patterns.
        let mut shares: HashMap<(&EventField, &GlobPattern), usize> = HashMap::new();
        for predicate in rules.iter().flat_map(MatchRule::predicates) {
            for pattern in &predicate.patterns {
                *shares.entry((&predicate.field, pattern)).or_default() += 1;
            }
        }

        let mut tables: BTreeMap<EventField, Table> = BTreeMap::new();
        let mut texts: BTreeMap<String, Vec<u32>> = BTreeMap::new();

        let mut scanned = Vec::new();
        for (number, rule) in (0_u32..).zip(&rules) {
            let best = rule
                .predicates()
                .iter()
                .min_by_key(|predicate| predicate_weight(predicate, &shares));
            // A predicate that most events fulfil would put the rule on every list: such a rule is tested directly.
            match best.filter(|predicate| predicate_weight(predicate, &shares) < SCAN_WEIGHT) {
                None => scanned.push(number),
                Some(predicate) if predicate.field == EventField::Content => {
                    for pattern in &predicate.patterns {
                        texts
                            .entry(pattern.longest_literal().to_owned())
                            .or_default()
                            .push(number);
                    }
                }
                Some(predicate) => tables
                    .entry(predicate.field.clone())
                    .or_default()
                    .file_predicate(predicate, number),
            }
        }

        drop(shares);
        // Without an automaton (too many patterns) the texts are tested one by one.
        let text = (!texts.is_empty())
            .then(|| AhoCorasick::new(texts.keys()).ok())
            .flatten();
        if text.is_none() {
            scanned.extend(texts.values().flatten());
        }

        Self {
            rules,
            tables: tables.into_iter().collect(),
            text,
            by_text: texts.into_values().collect(),
            scanned,
        }
    }

    /// Returns the number of rules.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rules.len()
    }

    /// Returns whether there are no rules.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the rule `number`, if it exists.
    #[must_use]
    pub fn rule_at(&self, number: u32) -> Option<&MatchRule> {
        self.rules.get(number as usize)
    }

    /// Returns the numbers of the rules that `event` meets, ascending.
    #[must_use]
    pub fn matching_rules(&self, event: &Event) -> Vec<u32> {
        if self.rules.is_empty() {
            return Vec::new();
        }

        let facts = EventFacts::of_event(event);
        let mut found = self.scanned.clone();
        for (field, table) in &self.tables {
            // Never satisfied, so that all values of the field are looked up.
            facts.any_value(field, |value| {
                table.look_up(value, &mut found);
                false
            });
        }

        if let Some(text) = &self.text {
            for hit in text.find_overlapping_iter(facts.lowercase_content()) {
                found.extend(&self.by_text[hit.pattern().as_usize()]);
            }
        }

        found.sort_unstable();
        found.dedup();
        // A rule is filed under one of its predicates; the others are checked only now.
        found.retain(|&number| self.rules[number as usize].holds_for(&facts));

        found
    }
}

impl Table {
    fn file_predicate(&mut self, predicate: &FieldPredicate, number: u32) {
        for pattern in &predicate.patterns {
            let rules = match pattern {
                GlobPattern::Prefix(text) => {
                    if let Err(at) = self.lengths.binary_search(&text.len()) {
                        self.lengths.insert(at, text.len());
                    }
                    self.prefixes.entry(text.clone())
                }
                GlobPattern::Exact(text) => self.exact.entry(text.clone()),
                // Such patterns are never filed in a table.
                GlobPattern::Contains(_) | GlobPattern::Glob { .. } => continue,
            };

            rules.or_default().push(number);
        }
    }

    fn look_up(&self, value: &str, found: &mut Vec<u32>) {
        if let Some(rules) = self.exact.get(value) {
            found.extend(rules);
        }

        for &length in &self.lengths {
            // A prefix never ends inside a character.
            match value.get(..length) {
                Some(start) => found.extend(self.prefixes.get(start).into_iter().flatten()),
                None if length > value.len() => break,
                None => {}
            }
        }
    }
}

/// Returns the number of rules that a look-up of this predicate is expected to yield.
fn predicate_weight(predicate: &FieldPredicate, shares: &HashMap<(&EventField, &GlobPattern), usize>) -> usize {
    let is_text = predicate.field == EventField::Content;
    let one = |pattern: &GlobPattern| {
        let shared = shares.get(&(&predicate.field, pattern)).copied().unwrap_or(1);
        match pattern {
            _ if is_text && pattern.longest_literal().len() >= MIN_SUBSTRING_BYTES => {
                shared.saturating_mul(SUBSTRING_WEIGHT)
            }
            _ if is_text => SCAN_WEIGHT,
            GlobPattern::Exact(_) => shared,
            // Short prefixes match more values than long ones.
            GlobPattern::Prefix(text) if !text.is_empty() => shared.saturating_add(64 / text.len()),
            GlobPattern::Prefix(_) | GlobPattern::Contains(_) | GlobPattern::Glob { .. } => SCAN_WEIGHT,
        }
    };

    let total = predicate.patterns.iter().map(one);
    total.fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shared::model::event::{EventId, MIGRATED_FROM, PeerKind};
    use shared::model::origin::EventOrigin;
    use shared::model::time::UnixMillis;

    use super::*;

    fn event(channel: &str, from: &str, content: &str) -> Event {
        let mut event = Event::new(EventId::parse("x:1").expect("valid"), channel, from, UnixMillis(1));
        event.from.id = from.to_owned();
        event.content = content.to_owned();
        event
    }

    fn index(rules: &[String]) -> RuleIndex {
        RuleIndex::new(
            rules
                .iter()
                .map(|rule| MatchRule::parse(rule).expect("a rule"))
                .collect(),
        )
    }

    #[test]
    fn rules_are_found_by_whatever_is_selective_in_them() {
        let rules = [
            "channel=sms from=+1555*",
            "channel=sms content=*code*",
            "direction=received",
            "from=*@example.com",
            "channel=sms,imessage from=ann",
            "content=*code*,*pin* channel=email",
            "peer=ä*",
        ]
        .map(str::to_owned);

        let index = index(&rules);
        for (event, expected) in [
            (event("sms", "+15551", "your Code"), vec![0, 1, 2]),
            (event("email", "ann@example.com", "PIN code pin"), vec![2, 3, 5]),
            (event("imessage", "ann", ""), vec![2, 4]),
            (event("imessage", "äb", ""), vec![2, 6]),
        ] {
            assert_eq!(index.matching_rules(&event), expected, "{event:?}");
        }
    }

    #[test]
    fn a_group_with_another_id_meets_the_rules_of_both_ids() {
        let index = index(&["peer=-6", "peer=-1006", "peer=-7"].map(str::to_owned));
        let mut event = event("telegram", "-1006", "");
        event.peer.id = "-1006".to_owned();
        event.peer.kind = PeerKind::Group;
        event.metadata.insert(MIGRATED_FROM.to_owned(), "-6".into());
        assert_eq!(index.matching_rules(&event), [1], "nobody proves who brought it");
        event.origin = EventOrigin::account("telegram", event.account());
        assert_eq!(index.matching_rules(&event), [0, 1]);
    }

    #[test]
    fn ten_thousand_rules_leave_a_handful_to_look_at() {
        let rules: Vec<String> = (0..10_000)
            .map(|n| format!("channel=imessage direction=received peer=+1555{n:07}"))
            .collect();
        let index = index(&rules);
        assert!(index.scanned.is_empty());
        assert_eq!(index.matching_rules(&event("imessage", "+15550000042", "hello")), [42]);
        assert_eq!(index.matching_rules(&event("sms", "+15550000042", "hello")), [0; 0]);
    }

    fn rule() -> impl Strategy<Value = String> {
        let value = "[ab]{1,2}\\*?|\\*[ab]\\*|\\*|[ab]\\*[ab]";
        let pair = (prop::sample::select(vec!["channel", "from", "content", "tag"]), value);
        prop::collection::vec(pair.prop_map(|(field, value)| format!("{field}={value}")), 1..4)
            .prop_map(|pairs| pairs.join(" "))
    }

    proptest! {
        #[test]
        fn the_index_finds_what_looking_at_every_rule_finds(
            rules in prop::collection::vec(rule(), 0..30),
            (channel, from, content) in ("[ab]{0,3}", "[ab]{0,3}", "[ab]{0,4}"),
            tags in prop::collection::vec("[ab]{1,2}", 0..3),
        ) {
            let index = index(&rules);
            let mut event = event(&channel, &from, &content);
            event.tags = tags;
            let facts = EventFacts::of_event(&event);
            let expected: Vec<u32> = (0_u32..).zip(&index.rules).filter(|(_, rule)| rule.holds_for(&facts)).map(|(n, _)| n).collect();
            prop_assert_eq!(index.matching_rules(&event), expected);
        }
    }
}
