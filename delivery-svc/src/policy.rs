//! The send policy, which decides which replies may be sent. *Pure.* Source: `docs/design/channels.md` §6 (send
//! policy).

use serde::{Deserialize, Serialize};
use shared::model::event::DEFAULT_ACCOUNT;
use shared::model::heartbeat::{EVENT_PREFIX, QUIET};
use shared::model::reply::Reply;

/// Channel of timers, which has no recipient.
const TIMER_CHANNEL: &str = "timer";

/// The decision of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyAction {
    /// The reply is sent.
    #[default]
    Allow,
    /// The reply is not sent; a receipt records it.
    Deny,
}

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
    pub action: PolicyAction,
}

/// The rules of the policy. The first that matches decides, otherwise the default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SendPolicy {
    /// Decision if no rule matches.
    pub default: PolicyAction,
    /// Rules in order of evaluation.
    pub rules: Vec<PolicyRule>,
}

impl SendPolicy {
    /// Returns the name of the rule that denies `reply`, or `None` if it may be sent. The name is `rule {index from
    /// 1}`, `default`, or one of the permanent rules `quiet heartbeat` and `no destination`.
    #[must_use]
    pub fn denying_rule(&self, reply: &Reply) -> Option<String> {
        if let Some(always) = always_denied(reply) {
            return Some(always.to_owned());
        }

        let decided = self.rules.iter().enumerate().find(|(_, rule)| rule.matches(reply));
        let (action, name) = match decided {
            Some((index, rule)) => (rule.action, format!("rule {}", index + 1)),
            None => (self.default, "default".to_owned()),
        };
        match action {
            PolicyAction::Allow => None,
            PolicyAction::Deny => Some(name),
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

    fn rule(action: PolicyAction) -> PolicyRule {
        PolicyRule {
            action,
            ..PolicyRule::default()
        }
    }

    #[track_caller]
    fn check(rules: &[PolicyRule], default: PolicyAction, expected: Option<&str>) {
        let policy = SendPolicy {
            default,
            rules: rules.to_vec(),
        };
        assert_eq!(policy.denying_rule(&reply("x")).as_deref(), expected);
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
            ..rule(PolicyAction::Deny)
        };
        check(&[], PolicyAction::Allow, None);
        check(std::slice::from_ref(&other), PolicyAction::Allow, None);
        check(&[other], PolicyAction::Deny, Some("default"));
    }

    #[test]
    fn first_match_decides() {
        check(
            &[rule(PolicyAction::Allow), rule(PolicyAction::Deny)],
            PolicyAction::Deny,
            None,
        );
        check(
            &[rule(PolicyAction::Deny), rule(PolicyAction::Allow)],
            PolicyAction::Allow,
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
            action: PolicyAction::Deny,
        };

        check(std::slice::from_ref(&all), PolicyAction::Allow, Some("rule 1"));

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
            check(&[broken], PolicyAction::Allow, None);
        }
    }
}
