//! One value of every schema, with every field set.

#[path = "event_samples.rs"]
mod events;
#[path = "hook_samples.rs"]
mod hooks;

pub(crate) use events::{attachment, event, large_file_event, least_event};
pub(crate) use hooks::{hook, invocations, invocations_deferred, invocations_with_passes, result};

use serde_json::{Map, Value, json};
use shared::model::approval::ApprovalRequest;
use shared::model::dispatch::{
    DeliveryContext, Dispatch, DispatchCause, DispatchContext, DispatchMessage, dispatch_id,
};
use shared::model::event::{
    Attachment, AttachmentState, Event, EventDirection, EventId, EventMention, EventParticipant, EventPeer, EventQuote,
    EventSender, MentionForm, ParticipantRole, PeerKind, RefusedAttachment,
};
use shared::model::ledger::{DispatchRef, LedgerCursor};
use shared::model::origin::EventOrigin;
use shared::model::owner::{ChatVisitor, OwnerLink};
use shared::model::permission::{PermissionLevel, PermissionSet, ToolRules};
use shared::model::position::StreamPlace;
use shared::model::receipt::{AttemptOutcome, PlanReference, PlannedPart, PlannedStyle, Receipt, ReceiptStep};
use shared::model::reply::Reply;
use shared::model::session::{QueueMode, SessionRef};
use shared::model::time::UnixMillis;
use shared::wire::agent::{AgentFile, AgentReply, AgentRequest, ChatMessage, LineRole, ToolDescription};
use shared::wire::dead_letter::DeadLetter;
use shared::wire::session_mark::{AgentAway, CopyMark, GroupMember, LeaseRecord, SessionClaim, SessionMark};
use shared::wire::unknown::UnknownFields;
use ulid::Ulid;

pub(crate) const AT: UnixMillis = UnixMillis(1_790_000_000_123);

fn object(value: Value) -> Map<String, Value> {
    let Value::Object(object) = value else {
        panic!("no object: {value}");
    };
    object
}

pub(crate) fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

pub(crate) fn id() -> EventId {
    EventId::parse("telegram:main/-100/42").expect("an id")
}

pub(crate) fn ulid(number: u128) -> Ulid {
    Ulid::from_parts(1_790_000_000_123, number)
}

pub(crate) fn session() -> SessionRef {
    SessionRef {
        persona: "default".to_owned(),
        session: "telegram:group:-100".to_owned(),
    }
}

pub(crate) fn owner_link() -> OwnerLink {
    OwnerLink {
        made_at: AT,
        expires_at: AT.plus(900_000),
        claimed_by: Some(ChatVisitor {
            account: "default".to_owned(),
            id: "0123456789abcdef0123456789abcdef".to_owned(),
        }),
        claimed_at: Some(AT.plus(1)),
    }
}

fn context() -> DeliveryContext {
    DeliveryContext {
        channel: "telegram".to_owned(),
        account_id: some("main"),
        peer_id: some("-100"),
        thread_id: some("7"),
        reply_to_id: some(id().as_str()),
    }
}

fn causation() -> DispatchCause {
    DispatchCause { event: id(), hops: 2 }
}

pub(crate) fn permissions() -> PermissionSet {
    let tools = ToolRules {
        allow: Some(vec!["web_*".to_owned()]),
        deny: vec!["shell".to_owned()],
    };
    PermissionSet {
        level: PermissionLevel::Restricted,
        tools: Some(tools),
        credentials: Some(vec!["mail".to_owned()]),
    }
}

pub(crate) fn dispatch() -> Dispatch {
    Dispatch {
        id: dispatch_id(&id(), AT, "routing/default"),
        event_id: id(),
        event_seq: 99,
        hook_id: "routing/default".to_owned(),
        priority: 85,
        timestamp: AT,
        target: session(),
        queue_mode: Some(QueueMode::SteerBacklog),
        message: DispatchMessage {
            from: "u1".to_owned(),
            channel: None,
            content: "hello".to_owned(),
            content_type: "text".to_owned(),
            metadata: object(json!({ "is_group": true })),
            attachments: vec![attachment()],
            origin: EventOrigin::Open,
            proven: false,
            person: None,
        },
        permissions: permissions(),
        context: DispatchContext {
            system_prompt: some("be brief"),
            extracted: Some(object(json!({ "code": "123456" }))),
            include_thread_history: true,
        },
        delivery_context: context(),
        causation: causation(),
        unknown: UnknownFields::default(),
    }
}

pub(crate) fn dispatch_of_a_person() -> Dispatch {
    let mut dispatch = dispatch();
    dispatch.message.origin = EventOrigin::account("telegram", "main");
    dispatch.message.proven = true;
    dispatch.message.person = some("casey");
    dispatch
}

pub(crate) fn dispatch_with_channel() -> Dispatch {
    let mut dispatch = dispatch();
    dispatch.message.channel = some("telegram");
    dispatch
}

pub(crate) fn reply() -> Reply {
    Reply {
        id: ulid(1),
        turn: ulid(1),
        session: session(),
        delivery_context: context(),
        content: "echo: hello".to_owned(),
        attachments: vec![attachment()],
        interactive: Some(json!({ "buttons": ["yes", "no"] })),
        causation: causation(),
        action: None,
        unknown: UnknownFields::default(),
        send: None,
        failed: false,
    }
}

fn planned_part() -> PlannedPart {
    PlannedPart {
        content: "bold".to_owned(),
        format: "signal".to_owned(),
        plain: some("bold"),
        styles: vec![PlannedStyle {
            start: 0,
            length: 4,
            style: "BOLD".to_owned(),
        }],
        file: None,
    }
}

/// The steps of a plan: its piece, and an attempt that names it.
fn planned_steps() -> [ReceiptStep; 2] {
    [
        ReceiptStep::Planned {
            first: 0,
            parts: vec![planned_part()],
        },
        ReceiptStep::AttemptStarted {
            attempt: 1,
            part: 0,
            by: "delivery-svc-0".to_owned(),
            platform_ids: Vec::new(),
            unconfirmed: Vec::new(),
            uncounted: 0,
            plan: Some(PlanReference {
                parts: 2,
                sha256: "ab12".to_owned(),
                pieces: vec![9],
            }),
        },
    ]
}

pub(crate) fn receipts() -> Vec<Receipt> {
    let finished = |outcome| ReceiptStep::AttemptFinished {
        attempt: 1,
        part: 0,
        platform_ids: vec![vec!["9".to_owned()]],
        unconfirmed: Vec::new(),
        uncounted: 0,
        plan: None,
        outcome,
    };

    let steps = [
        ReceiptStep::AttemptStarted {
            attempt: 1,
            part: 0,
            by: "delivery-svc-0".to_owned(),
            platform_ids: vec![vec!["8".to_owned()]],
            unconfirmed: Vec::new(),
            uncounted: 2,
            plan: None,
        },
        finished(AttemptOutcome::Done),
        finished(AttemptOutcome::Retry {
            after_ms: 1_500,
            reason: "429".to_owned(),
        }),
        finished(AttemptOutcome::Limited {
            after_ms: 2_000,
            reason: "status 429".to_owned(),
        }),
        finished(AttemptOutcome::Refused {
            reason: "403".to_owned(),
        }),
        ReceiptStep::Delivered {
            attempts: 2,
            parts: 1,
            platform_ids: vec![vec!["9".to_owned()]],
            unconfirmed: Vec::new(),
            live: Some(true),
            plan: None,
        },
        ReceiptStep::GaveUp {
            attempts: 8,
            reason: "503".to_owned(),
        },
        ReceiptStep::DeniedByPolicy {
            rule: "default".to_owned(),
        },
    ];

    let receipt = |step| Receipt {
        delivery: ulid(1),
        session: session(),
        target: context(),
        causation: causation(),
        at: AT,
        card: false,
        changes: None,
        step,
    };

    steps.into_iter().chain(planned_steps()).map(receipt).collect()
}

pub(crate) fn reference() -> DispatchRef {
    DispatchRef {
        id: ulid(3),
        sequence: 12,
        event_id: id(),
        content: "hello".to_owned(),
        stranger: None,
    }
}

pub(crate) fn cursor() -> LedgerCursor {
    LedgerCursor {
        floor: 12,
        above: vec![14, 17],
        ..LedgerCursor::default()
    }
}

pub(crate) fn approval() -> ApprovalRequest {
    ApprovalRequest {
        id: "a1".to_owned(),
        call: "c1".to_owned(),
        tool: "pay".to_owned(),
        arguments: json!({ "amount": 5 }),
        arguments_hash: "00ff".to_owned(),
        policy: "payments".to_owned(),
        approvers: vec!["owner".to_owned()],
        expires_at: AT,
        asked_in: None,
    }
}

pub(crate) fn agent_request() -> AgentRequest {
    let message = |role, text: &str| ChatMessage {
        role,
        content: text.to_owned(),
        attachments: Vec::new(),
    };

    AgentRequest {
        turn: ulid(1),
        session: session(),
        persona: "default".to_owned(),
        system_prompt: "be brief".to_owned(),
        messages: vec![message(LineRole::User, "hi"), message(LineRole::Assistant, "hello")],
        tools: vec![ToolDescription {
            name: "web_search".to_owned(),
            description: "searches".to_owned(),
            parameters: json!({ "type": "object" }),
        }],
        permissions: permissions(),
        deadline: AT,
    }
}

pub(crate) fn agent_reply() -> AgentReply {
    AgentReply::Answer {
        content: "hello".to_owned(),
        attachments: vec![AgentFile {
            file: attachment(),
            data: None,
        }],
    }
}

pub(crate) fn agent_error() -> AgentReply {
    AgentReply::Error {
        error: "overloaded".to_owned(),
        retryable: true,
    }
}

pub(crate) fn dead_letter() -> DeadLetter {
    DeadLetter {
        service: "hook-svc".to_owned(),
        subject: "nexus.ev.7.a.b.c".to_owned(),
        redrive_subject: "nexus.event.a.b.c".to_owned(),
        stream: "EVENTS".to_owned(),
        sequence: 5,
        headers: vec![("Content-Type".to_owned(), "application/json".to_owned())],
        payload: DeadLetter::encode_payload(b"{"),
        reason: "malformed".to_owned(),
        detail: "event: malformed json".to_owned(),
        attempts: 1,
        at: AT,
    }
}

pub(crate) fn claim() -> SessionClaim {
    SessionClaim { session: session() }
}

pub(crate) fn lease() -> LeaseRecord {
    LeaseRecord {
        epoch: 7,
        in_progress: Some(StreamPlace {
            sequence: 40,
            stored_at_ns: 1_790_000_000_123_000_000,
        }),
        runs: vec!["01K9QAZ4C3ZZYD1Q2D0S0R9V4B-0".to_owned()],
        released: true,
        ..LeaseRecord::held_by("hook-svc-0".to_owned())
    }
}

pub(crate) fn member() -> GroupMember {
    GroupMember {
        instance: "hook-svc-0".to_owned(),
        run: "01K9QAZ4C3ZZYD1Q2D0S0R9V4B-0".to_owned(),
    }
}

pub(crate) fn session_mark() -> SessionMark {
    SessionMark {
        session: session(),
        quarantined: some("no append in 5 deliveries"),
        tries: None,
        since: AT,
    }
}

pub(crate) fn agent_away() -> AgentAway {
    AgentAway {
        session: session(),
        turn: ulid(5),
        why: "the model's provider cannot be reached: connection refused".to_owned(),
        since: AT,
        until: AT.plus(20_000),
    }
}

pub(crate) const fn copy_mark() -> CopyMark {
    CopyMark { begun_at: AT }
}
