//! The send policy, which decides which replies may be sent. *Pure.* Source: `docs/design/channels.md` §6 (send
//! policy).

use serde::{Deserialize, Serialize};
use shared::model::event::DEFAULT_ACCOUNT;
use shared::model::heartbeat::{EVENT_PREFIX, QUIET};
use shared::model::reply::{Reply, SendDecision};

/// Channel of timers, which has no recipient.
const TIMER_CHANNEL: &str = "timer";

/// One rule. Every field that is present must match; a rule without fields matches every reply.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyRule {
    /// Name of the channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Name of the installation's account on the channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Id of the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Prefix of the session's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_prefix: Option<String>,
    /// Decision if the rule matches.
    pub action: SendDecision,
}

/// The rules of the policy. The first that matches decides, otherwise the default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SendPolicy {
    /// Decision if no rule matches.
    pub default: SendDecision,
    /// Rules in order of evaluation.
    pub rules: Vec<PolicyRule>,
}

impl SendPolicy {
    /// Returns the name of the rule that denies `reply`, or `None` if it may be sent. The name is `session`, `rule {index
    /// from 1}`, `default`, or one of the permanent rules `quiet heartbeat` and `no destination`.
    #[must_use]
    pub fn denying_rule(&self, reply: &Reply) -> Option<String> {
        if let Some(always) = always_denied(reply) {
            return Some(always.to_owned());
        }

        let decided = self.rules.iter().enumerate().find(|(_, rule)| rule.matches(reply));
        let (action, name) = match (reply.send, decided) {
            (Some(decision), _) => (decision, "session".to_owned()),
            (None, Some((index, rule))) => (rule.action, format!("rule {}", index + 1)),
            (None, None) => (self.default, "default".to_owned()),
        };
        match action {
            SendDecision::Allow => None,
            SendDecision::Deny => Some(name),
        }
    }
}

/// Denies a heartbeat's reply with nothing to report, and a reply to a timer without a destination.
fn always_denied(reply: &Reply) -> Option<&'static str> {
    if reply.causation.event.as_str().starts_with(EVENT_PREFIX) && reply.content.trim() == QUIET {
        return Some("quiet heartbeat");
    }
    (reply.delivery_context.channel == TIMER_CHANNEL).then_some("no destination")
}

impl PolicyRule {
    fn matches(&self, reply: &Reply) -> bool {
        let target = &reply.delivery_context;
        let is = |wanted: &Option<String>, value: &str| wanted.as_deref().is_none_or(|wanted| wanted == value);
        is(&self.channel, &target.channel)
            && is(&self.account, target.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT))
            && is(&self.peer, target.peer_id.as_deref().unwrap_or_default())
            && self
                .session_prefix
                .as_deref()
                .is_none_or(|prefix| reply.session.session.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests {
    use shared::model::event::EventId;

    use super::*;
    use crate::examples::reply;

    fn rule(action: SendDecision) -> PolicyRule {
        PolicyRule {
            action,
            ..PolicyRule::default()
        }
    }

    #[track_caller]
    fn check(rules: &[PolicyRule], default: SendDecision, expected: Option<&str>) {
        let policy = SendPolicy {
            default,
            rules: rules.to_vec(),
        };
        assert_eq!(policy.denying_rule(&reply("x")).as_deref(), expected);
    }

    #[test]
    fn a_session_decides_before_the_rules_and_after_the_permanent_ones() {
        let decided = |send, action| {
            let policy = SendPolicy {
                default: action,
                rules: vec![rule(action)],
            };
            policy.denying_rule(&Reply { send, ..reply("x") })
        };
        let (allow, deny) = (SendDecision::Allow, SendDecision::Deny);
        assert_eq!(decided(Some(deny), allow).as_deref(), Some("session"));
        assert_eq!(decided(Some(allow), deny), None);
        assert_eq!(decided(None, deny).as_deref(), Some("rule 1"));

        let mut nowhere = reply("x");
        nowhere.send = Some(allow);
        nowhere.delivery_context.channel = "timer".to_owned();
        assert_eq!(
            SendPolicy::default().denying_rule(&nowhere).as_deref(),
            Some("no destination")
        );
    }

    #[test]
    fn a_heartbeat_that_says_nothing_stays() {
        let mut quiet = reply(" HEARTBEAT_OK\n");
        assert_eq!(SendPolicy::default().denying_rule(&quiet), None, "somebody asked");

        quiet.causation.event = EventId::parse("timer:persona:atlas:60000").expect("an id");
        assert_eq!(
            SendPolicy::default().denying_rule(&quiet).as_deref(),
            Some("quiet heartbeat")
        );

        quiet.content = "The build is red.".to_owned();
        assert_eq!(SendPolicy::default().denying_rule(&quiet), None);

        quiet.delivery_context.channel = "timer".to_owned();
        assert_eq!(
            SendPolicy::default().denying_rule(&quiet).as_deref(),
            Some("no destination")
        );
    }

    #[test]
    fn default_where_nothing_matches() {
        let other = PolicyRule {
            channel: Some("webchat".to_owned()),
            ..rule(SendDecision::Deny)
        };
        check(&[], SendDecision::Allow, None);
        check(std::slice::from_ref(&other), SendDecision::Allow, None);
        check(&[other], SendDecision::Deny, Some("default"));
    }

    #[test]
    fn first_match_decides() {
        check(
            &[rule(SendDecision::Allow), rule(SendDecision::Deny)],
            SendDecision::Deny,
            None,
        );
        check(
            &[rule(SendDecision::Deny), rule(SendDecision::Allow)],
            SendDecision::Allow,
            Some("rule 1"),
        );
    }

    #[test]
    fn every_given_field_must_match() {
        let all = PolicyRule {
            channel: Some("nats".to_owned()),
            account: Some("demo".to_owned()),
            peer: Some("ann".to_owned()),
            session_prefix: Some("ma".to_owned()),
            action: SendDecision::Deny,
        };

        check(std::slice::from_ref(&all), SendDecision::Allow, Some("rule 1"));

        for broken in [
            PolicyRule {
                channel: Some("x".to_owned()),
                ..all.clone()
            },
            PolicyRule {
                account: Some("x".to_owned()),
                ..all.clone()
            },
            PolicyRule {
                peer: Some("x".to_owned()),
                ..all.clone()
            },
            PolicyRule {
                session_prefix: Some("x".to_owned()),
                ..all.clone()
            },
        ] {
            check(&[broken], SendDecision::Allow, None);
        }
    }
}
