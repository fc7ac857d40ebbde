use serde_json::json;
use shared::model::approval::EditedArguments;

use super::*;
use crate::approval::machine::tests::confirmation;

const STATUSES: [ApprovalStatus; 7] = [
    ApprovalStatus::Pending,
    ApprovalStatus::Approved,
    ApprovalStatus::Denied,
    ApprovalStatus::Expired,
    ApprovalStatus::Canceled,
    ApprovalStatus::Superseded,
    ApprovalStatus::Consumed,
];

fn call(tool: &str, amount: u64) -> ToolCall {
    ToolCall {
        call: "1-1".to_owned(),
        name: tool.to_owned(),
        arguments: json!({ "amount": amount }),
    }
}

/// The first question about a payment of 60,000, used by the attempt `a` if it is used.
fn newest(status: ApprovalStatus) -> NewestQuestion {
    let mut question = confirmation(status);
    if let Some(asked) = &mut question.request.asked_in {
        asked.outside = Some(args_hash(&call("pay", 60_000).arguments));
    }
    if status == ApprovalStatus::Consumed {
        question.trail.used_by = Some("a".to_owned());
    }
    NewestQuestion::with_previous(None, 0, question, &args_hash(&call("pay", 60_000).arguments))
}

#[test]
fn what_is_known_of_a_call_follows_from_its_newest_question() {
    let said = |status, tool, amount, attempt| match prior_decision(Some(&newest(status)), &call(tool, amount), attempt)
    {
        PriorDecision::Open => "open",
        PriorDecision::Waits => "waits",
        PriorDecision::Given(_) => "given",
        PriorDecision::Denied(_) => "denied",
    };

    let same = STATUSES.map(|status| said(status, "pay", 60_000, Some("a")));
    assert_eq!(same, ["waits", "open", "denied", "denied", "denied", "open", "given"]);

    // Other arguments are another question; the id of a call that was made cannot be reused.
    let other = STATUSES.map(|status| said(status, "pay", 50_000, Some("a")));
    assert_eq!(other, ["open", "open", "open", "open", "open", "open", "denied"]);

    let tool = STATUSES.map(|status| said(status, "wipe", 60_000, Some("a")));
    assert_eq!(tool, ["denied"; 7]);

    for attempt in [Some("b"), None] {
        assert_eq!(said(ApprovalStatus::Consumed, "pay", 60_000, attempt), "denied");
    }

    assert_eq!(prior_decision(None, &call("pay", 60_000), None), PriorDecision::Open);
}

#[test]
fn a_call_runs_only_with_what_was_approved_by_all_who_are_to_be_asked() {
    let owner = ApprovalAsk::default();
    let bob = ApprovalAsk {
        scope: DeciderScope::Named {
            names: vec!["bob".to_owned()],
        },
        ..ApprovalAsk::default()
    };

    let arguments = call("pay", 60_000).arguments;
    assert_eq!(settle_call(None, &arguments, None), CallDisposition::Run);

    let asks = |settled: CallDisposition| match settled {
        CallDisposition::Ask { number, .. } => Some(number),
        CallDisposition::Run | CallDisposition::Use | CallDisposition::Denied(_) => None,
    };
    assert_eq!(asks(settle_call(None, &arguments, Some(owner.clone()))), Some(0));

    let approved = newest(ApprovalStatus::Approved);
    for ask in [None, Some(owner)] {
        assert_eq!(settle_call(Some(&approved), &arguments, ask), CallDisposition::Use);
    }

    assert_eq!(
        asks(settle_call(Some(&approved), &arguments, Some(bob))),
        Some(1),
        "others are to be asked"
    );

    let capped = json!({"amount": 1});
    assert_eq!(
        asks(settle_call(Some(&approved), &capped, None)),
        Some(1),
        "a hook made others of them"
    );

    let last = NewestQuestion {
        number: MAX_ASKS - 1,
        ..approved
    };
    assert!(matches!(
        settle_call(Some(&last), &capped, None),
        CallDisposition::Denied(_)
    ));
}

#[test]
fn what_an_approver_wrote_stands_until_the_agent_writes_otherwise() {
    let mut first = newest(ApprovalStatus::Superseded);
    first.question.trail.edited = Some(EditedArguments {
        arguments: json!({"amount": 1}),
        hash: String::new(),
    });

    let written = args_hash(&call("pay", 60_000).arguments);
    let first = NewestQuestion::with_previous(None, 0, first.question, &written);
    let second = newest(ApprovalStatus::Approved).question;
    let edited = |written: &str| NewestQuestion::with_previous(Some(first.clone()), 1, second.clone(), written).edited;

    assert_eq!(edited(&written), Some(json!({"amount": 1})));
    assert_eq!(
        NewestQuestion::with_previous(None, 0, first.question.clone(), "other").edited,
        None
    );
}
