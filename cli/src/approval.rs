//! `nexus approval`: lists pending approvals and decides them.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::bus::Bus;
use shared::model::approval::{ApprovalParty, ApprovalStatus, ConfirmationTerms, DecisionProof};
use shared::model::approval_api::{ApprovalAnswer, ApprovalList, DecideApproval, GetApproval, ListApprovals};

use crate::args::{ApprovalAction, Common, Speaker};
use crate::connect::connect_bus;
use crate::exit::{Exit, ExitContext as _, failure};
use crate::output::{Cell, Column, Table, View, reader_zone};
use crate::service::call_service;

/// Longest time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// Channel of the person at a terminal of the installation.
const CLI: &str = "cli";

/// Runs the command.
///
/// # Errors
/// Fails if no broker answers, or if the broker refuses.
pub async fn execute(common: &Common, action: ApprovalAction) -> Result<()> {
    match action {
        ApprovalAction::List { status, limit } => list_approvals(common, status, limit).await,
        ApprovalAction::Show { id } => show_approval(common, id).await,
        ApprovalAction::Approve(speaker) => send_decision(common, speaker, true, None).await,
        ApprovalAction::Deny(speaker) => send_decision(common, speaker, false, None).await,
        ApprovalAction::Edit { arguments, speaker } => {
            let arguments = serde_json::from_str(&arguments);
            let arguments = arguments.context("--arguments is not valid JSON").exit(Exit::Usage)?;
            send_decision(common, speaker, true, Some(arguments)).await
        }
    }
}

async fn ask_broker<Q: Serialize, A: DeserializeOwned>(bus: &Bus, endpoint: &str, question: &Q) -> Result<A> {
    let subject = format!("nexus.svc.approval.{endpoint}");
    call_service(bus, "broker-svc", &subject, question, PATIENCE).await
}

async fn list_approvals(common: &Common, status: Option<String>, limit: usize) -> Result<()> {
    let status: Option<ApprovalStatus> = match status {
        Some(status) => Some(serde_json::from_value(status.clone().into()).map_err(|_| {
            let expected = "pending, approved, denied, expired, canceled, superseded, consumed";
            failure(Exit::Usage, format!("--status {status}: expected one of {expected}"))
        })?),
        None => None,
    };

    let bus = connect_bus(common).await?;
    let found: ApprovalList = ask_broker(&bus, "list", &ListApprovals { status, limit }).await?;
    let columns = [
        Column::id("ID"),
        Column::text("STATUS"),
        Column::text("TOOL"),
        Column::text("ARGUMENTS"),
        Column::text("REQUESTED BY").extra(),
        Column::time("EXPIRES"),
        Column::text("DECIDED BY").extra(),
    ];
    let table = Table::new(&columns).with(&found.approvals, |one| {
        [
            (&one.request.id).into(),
            one.status.name().into(),
            (&one.request.tool).into(),
            one.request.arguments.to_string().into(),
            (&one.requested_by).into(),
            one.request.expires_at.into(),
            one.decided_by.as_ref().into(),
        ]
    });

    View::list(&found.approvals, table)?.show(common)
}

async fn show_approval(common: &Common, id: String) -> Result<()> {
    let bus = connect_bus(common).await?;
    let one: ConfirmationTerms = ask_broker(&bus, "get", &GetApproval { id }).await?;
    let request = &one.request;
    let zone = reader_zone(common);

    let mut fields: Vec<(&'static str, Cell)> = vec![
        ("approval", (&request.id).into()),
        ("status", one.status.name().into()),
        ("tool", (&request.tool).into()),
        ("requested by", (&one.requested_by).into()),
        ("arguments", request.arguments.to_string().into()),
        ("sha256", (&request.arguments_hash).into()),
    ];

    if let Some(edited) = &one.trail.edited {
        fields.push(("edited", edited.arguments.to_string().into()));
        fields.push(("sha256", (&edited.hash).into()));
    }

    fields.extend([
        ("policy", (&request.policy).into()),
        ("approvers", request.approvers.join(", ").into()),
        ("requested", one.requested_at.into()),
        ("expires", request.expires_at.into()),
    ]);
    if let Some(asked) = &request.asked_in {
        fields.push(("session", format!("{}, turn {}", asked.session, asked.turn).into()));
    }
    for vote in &one.trail.votes {
        fields.push((
            "approved by",
            format!("{} at {}", vote.by, zone.date_time(vote.at)).into(),
        ));
    }

    fields.extend([
        ("escalated", one.trail.escalated_at.into()),
        ("decided", one.decided_at.into()),
        ("consumed", one.trail.consumed_at.into()),
    ]);
    if let Some(by) = &one.decided_by {
        let via = one.trail.via.as_deref().unwrap_or("the service");
        fields.push(("decided by", format!("{by}, through {via}").into()));
    }
    fields.push(("reason", one.response.as_ref().into()));

    View::one(&request.id, &one)?.fields(fields).show(common)
}

async fn send_decision(
    common: &Common,
    speaker: Speaker,
    approve: bool,
    arguments: Option<serde_json::Value>,
) -> Result<()> {
    let question = DecideApproval {
        id: speaker.id,
        approve,
        by: ApprovalParty {
            channel: CLI.to_owned(),
            id: speaker.by,
            proof: DecisionProof::Vouched,
            person: None,
        },
        via: CLI.to_owned(),
        arguments,
        arguments_hash: None,
        response: speaker.reason,
    };

    let bus = connect_bus(common).await?;
    let answer: ApprovalAnswer = ask_broker(&bus, "decide", &question).await?;
    let was = if answer.changed { "" } else { ", as before" };
    let mut view = View::one(&answer.id, &answer)?.line(format!("{} is {}{was}", answer.id, answer.status.name()));

    if answer.status == ApprovalStatus::Pending {
        view = view.line(format!("approved so far by: {}", answer.votes.join(", ")));
    }

    view.show(common)
}
