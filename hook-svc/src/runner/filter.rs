//! Which hooks of a set see an event: `@match`, changes of known items, a hook's own timer. *Pure.*

use std::sync::Arc;

use serde_json::Value;
use shared::model::event::{Event, EventDirection};

use super::{HookScope, HookSet, HookSource};
use crate::routing::prefilter::{MatchRule, RuleIndex};

/// Channel of timer events.
const TIMER: &str = "timer";

/// Filter compiled from the hooks of a set.
#[derive(Debug, Default)]
pub(super) struct HookFilter {
    /// Indices of the hooks that see everything.
    open: Vec<u32>,
    /// Rules of the other hooks.
    index: RuleIndex,
    /// Index of the hook, by rule.
    hooks: Vec<u32>,
    /// Whether every hook sees everything.
    is_open: bool,
}

impl HookFilter {
    pub(super) fn from_hooks(hooks: &[Arc<HookSource>]) -> Self {
        let mut filter = Self::default();
        let mut rules = Vec::new();
        for (index, hook) in (0_u32..).zip(hooks) {
            match &hook.sees {
                HookScope::Everything => filter.open.push(index),
                HookScope::Matching(rule) => {
                    rules.push(rule.clone());
                    filter.hooks.push(index);
                }
                HookScope::OwnTimer => {}
            }
        }

        filter.is_open = filter.open.len() == hooks.len();
        filter.index = RuleIndex::new(rules);

        filter
    }

    /// Returns the hooks of `set` that see `event`, ascending; `None` means all. Only hooks that name the direction see
    /// changes of an item, and only those that name its tags an event that is withheld.
    pub(super) fn hooks_seeing(&self, set: &HookSet, event: &Event) -> Option<Vec<u32>> {
        let is_change = match event.direction {
            EventDirection::Received | EventDirection::Sent | EventDirection::Observed | EventDirection::Created => {
                false
            }
            EventDirection::Updated | EventDirection::Deleted => true,
        };
        let withheld: Vec<&str> = event.withheld_tags().collect();
        let is_for_all = !is_change && withheld.is_empty();
        if self.is_open && is_for_all {
            return None;
        }

        let asks =
            |rule: &MatchRule| (!is_change || rule.names_direction()) && withheld.iter().all(|tag| rule.names_tag(tag));
        let mut seeing = if is_for_all { self.open.clone() } else { Vec::new() };
        for number in self.index.matching_rules(event) {
            if is_for_all || self.index.rule_at(number).is_some_and(asks) {
                seeing.push(self.hooks[number as usize]);
            }
        }

        // A timer's event names its hook, so no filter decides whether that hook sees it.
        seeing.extend(timer_hook(event).and_then(|id| set.index(id)));
        seeing.sort_unstable();
        seeing.dedup();

        Some(seeing)
    }
}

/// Returns the id of the hook whose timer fired `event`, if it is a timer event of a hook.
fn timer_hook(event: &Event) -> Option<&str> {
    if event.channel != TIMER {
        return None;
    }
    let target = event.metadata.get("schedule")?.get("target")?;
    if target.get("kind").and_then(Value::as_str) != Some("hook") {
        return None;
    }
    target.get("id").and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shared::model::event::EventId;
    use shared::model::time::UnixMillis;

    use super::*;
    use crate::registry::active_hooks::tests::source;

    fn set() -> HookSet {
        let seeing = |id: &str, sees| HookSource { sees, ..source(id) };
        let rule = |text| HookScope::Matching(MatchRule::parse(text).expect("a rule"));
        HookSet::new([
            seeing("all", HookScope::Everything),
            seeing("sms", rule("channel=sms")),
            seeing("changes", rule("channel=sms direction=updated,received")),
            seeing("timed", HookScope::OwnTimer),
        ])
    }

    fn event(channel: &str) -> Event {
        Event::new(EventId::parse("x:1").expect("valid"), channel, "ann", UnixMillis(1))
    }

    #[test]
    fn a_hook_sees_what_it_asks_for() {
        let set = set();
        assert_eq!(set.hooks_seeing(&event("email")), Some(vec![0]));
        assert_eq!(set.hooks_seeing(&event("sms")), Some(vec![0, 1, 2]));
        let open = HookSet::new([source("a"), source("b")]);
        assert_eq!(open.hooks_seeing(&event("sms")), None);
    }

    #[test]
    fn changes_are_for_those_that_ask_for_them() {
        let mut changed = event("sms");
        changed.direction = EventDirection::Updated;
        assert_eq!(set().hooks_seeing(&changed), Some(vec![2]));
        assert_eq!(HookSet::new([source("a")]).hooks_seeing(&changed), Some(Vec::new()));
    }

    #[test]
    fn withheld_events_are_for_those_that_name_each_of_their_tags() {
        let rule = |text| HookScope::Matching(MatchRule::parse(text).expect("a rule"));
        let of = |id: &str, sees| HookSource { sees, ..source(id) };
        let set = HookSet::new([
            of("all", HookScope::Everything),
            of("sms", rule("channel=sms")),
            of("strangers", rule("tag=unpaired")),
            of("both", rule("tag=unpaired tag=backfilled")),
        ]);

        let mut event = event("sms");
        event.tags = vec!["unpaired".to_owned()];
        assert_eq!(set.hooks_seeing(&event), Some(vec![2]));
        event.tags.push("backfilled".to_owned());
        assert_eq!(set.hooks_seeing(&event), Some(vec![3]));
        event.direction = EventDirection::Updated;
        assert_eq!(set.hooks_seeing(&event), Some(Vec::new()));
        assert_eq!(HookSet::new([source("a")]).hooks_seeing(&event), Some(Vec::new()));
    }

    #[test]
    fn a_timer_wakes_its_own_hook() {
        let mut tick = event("timer");
        assert_eq!(set().hooks_seeing(&tick), Some(vec![0]));
        let schedule = json!({"id": "s", "target": {"kind": "hook", "id": "timed"}});
        tick.metadata.insert("schedule".to_owned(), schedule);
        assert_eq!(set().hooks_seeing(&tick), Some(vec![0, 3]));
    }
}
