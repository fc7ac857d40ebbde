//! Samples of approvals of turns.

use serde_json::json;
use shared::model::approval::{
    ApprovalParty, ApprovalRecord, ApprovalRequest, ApprovalStatus, ApprovalTimer, ApprovalTimerPurpose, ApprovalTrail,
    ApprovalVote, AskedIn, CardReason, ConfirmationTerms, DeciderScope, DecisionProof, EditedArguments,
    SessionDecision, ShownCard,
};
use shared::model::dispatch::{DeliveryContext, DispatchCause};
use shared::model::event::EventId;
use shared::wire::agent::AgentReply;

use super::samples::{AT, approval, session, some, ulid};

pub(crate) fn request() -> ApprovalRequest {
    ApprovalRequest {
        asked_in: Some(Box::new(AskedIn {
            session: session(),
            turn: ulid(3),
            scope: DeciderScope::Quorum {
                n: 2,
                of: vec!["ann".to_owned(), "bob".to_owned()],
            },
            initiator: Some(ApprovalParty {
                channel: "telegram".to_owned(),
                id: "2".to_owned(),
                proof: DecisionProof::Vouched,
                person: None,
            }),
            reason: some("above the limit"),
            escalate_at: Some(AT.plus(450_000)),
            place: DeliveryContext {
                channel: "telegram".to_owned(),
                peer_id: some("2"),
                ..DeliveryContext::default()
            },
            causation: DispatchCause {
                event: EventId::parse("telegram:1/2").expect("an event id"),
                hops: 1,
            },
            outside: None,
        })),
        ..approval()
    }
}

pub(crate) fn confirmation() -> ConfirmationTerms {
    ConfirmationTerms {
        request: request(),
        status: ApprovalStatus::Consumed,
        requested_by: "agent:default".to_owned(),
        requested_at: AT,
        decided_at: Some(AT.plus(2)),
        decided_by: some("bob"),
        response: some("less"),
        trail: ApprovalTrail {
            code: None,
            votes: vec![ApprovalVote {
                counts_for: Vec::new(),
                by: "ann".to_owned(),
                at: AT.plus(1),
                arguments_hash: "00ff".to_owned(),
            }],
            edited: Some(EditedArguments {
                arguments: json!({ "amount": 4 }),
                hash: "00fe".to_owned(),
            }),
            schema: None,
            via: some("link"),
            escalated_at: Some(AT.plus(1)),
            cards: Vec::new(),
            record: None,
            audited: 0,
            taken: false,
            consumed_at: Some(AT.plus(3)),
            used_by: None,
        },
    }
}

/// Cards are shown in the conversation that waits, and to two persons who share a place.
pub(crate) fn shown() -> ConfirmationTerms {
    let mut confirmation = taken();
    let place = |peer: &str| DeliveryContext {
        channel: "telegram".to_owned(),
        peer_id: some(peer),
        ..DeliveryContext::default()
    };
    confirmation.trail.cards = vec![
        ShownCard {
            id: ulid(5),
            reason: CardReason::Asked,
            place: place("2"),
            persons: Vec::new(),
        },
        ShownCard {
            id: ulid(6),
            reason: CardReason::Escalated,
            place: place("7"),
            persons: vec!["ann".to_owned(), "bob".to_owned()],
        },
    ];
    confirmation
}

pub(crate) fn decision() -> SessionDecision {
    SessionDecision {
        target: session(),
        approval: "a1".to_owned(),
        at: AT,
    }
}

/// An agent was given the call that it runs itself.
pub(crate) fn used() -> ConfirmationTerms {
    let mut confirmation = confirmation();
    if let Some(asked) = &mut confirmation.request.asked_in {
        asked.outside = some("00ff");
    }
    confirmation.trail.used_by = some("4f0c");
    confirmation
}

/// The session's ledger has taken the decision.
pub(crate) fn taken() -> ConfirmationTerms {
    let mut confirmation = confirmation();
    confirmation.status = ApprovalStatus::Denied;
    confirmation.trail.taken = true;
    confirmation.trail.code = some("K7Q2M9PX");
    confirmation
}

pub(crate) fn agent_waiting() -> AgentReply {
    AgentReply::Waiting {
        waiting: "a1".to_owned(),
    }
}

pub(crate) fn timers() -> [ApprovalTimer; 2] {
    [ApprovalTimerPurpose::Expire, ApprovalTimerPurpose::Escalate].map(|purpose| ApprovalTimer {
        approval: "a1".to_owned(),
        purpose,
    })
}

pub(crate) fn record() -> ApprovalRecord {
    ApprovalRecord {
        approval: "a1".to_owned(),
        what: "approved".to_owned(),
        n: 0,
        at: AT,
        by: some("bob"),
        via: some("link"),
        response: some("less"),
        before_hash: "00ff".to_owned(),
        after_hash: "00fe".to_owned(),
        session: Some(session()),
        tool: "pay".to_owned(),
    }
}

/// Two policies ask about a message that its channel does not prove, and one of those whom they want has said yes.
pub(crate) fn asked_of_all() -> ConfirmationTerms {
    let mut confirmation = confirmation();
    if let Some(asked) = &mut confirmation.request.asked_in {
        asked.scope = DeciderScope::All {
            of: vec![DeciderScope::Owner, DeciderScope::Initiator],
        };
        if let Some(initiator) = &mut asked.initiator {
            initiator.proof = DecisionProof::Nobody;
        }
    }

    for vote in &mut confirmation.trail.votes {
        vote.counts_for = vec![1];
    }

    confirmation
}

/// What led to it stands with it, for whoever finds it.
pub(crate) fn unaudited() -> ConfirmationTerms {
    let mut confirmation = confirmation();
    confirmation.trail.record = Some(Box::new(ApprovalRecord { n: 2, ..record() }));
    confirmation.trail.audited = 7;
    confirmation
}
