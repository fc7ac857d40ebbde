//! `nexus approval`: lists pending approvals and decides them.

use std::time::Duration;

use anyhow::{Context as _, Result};
use shared::bus::{Bus, RequestError};
use shared::model::approval::{ApprovalParty, ApprovalStatus, ConfirmationTerms, DecisionProof};
use shared::model::approval_api::{ApprovalAnswer, ApprovalList, DecideApproval, GetApproval, ListApprovals};
use shared::model::time::UnixMillis;
use shared::wire::headers::Headers;

use crate::args::{ApprovalAction, Common, Speaker};
use crate::output::{brief, bus, json, plain, table};
use crate::say;

/// Longest time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// Channel of the person at a terminal of the installation.
const CLI: &str = "cli";

/// Runs the command.
///
/// # Errors
/// Fails if no broker answers, or if the broker refuses.
pub async fn execute(common: &Common, action: ApprovalAction) -> Result<()> {
    let bus = bus(common).await?;
    match action {
        ApprovalAction::List { status, limit } => list(common, &bus, status, limit).await,
        ApprovalAction::Show { id } => show(common, &bus, id).await,
        ApprovalAction::Approve(speaker) => say(common, &bus, speaker, true, None).await,
        ApprovalAction::Deny(speaker) => say(common, &bus, speaker, false, None).await,
        ApprovalAction::Edit { arguments, speaker } => {
            let arguments = serde_json::from_str(&arguments).context("--arguments, in JSON")?;
            say(common, &bus, speaker, true, Some(arguments)).await
        }
    }
}

async fn ask<Q: serde::Serialize, A: serde::de::DeserializeOwned>(bus: &Bus, what: &str, question: &Q) -> Result<A> {
    let subject = format!("nexus.svc.approval.{what}");
    let asked = bus.request(&subject, Headers::new(), question, PATIENCE).await;
    asked.map_err(|error| match error {
        RequestError::Service { code, text, .. } => anyhow::anyhow!("{code}: {text}"),
        error @ (RequestError::NoResponder { .. } | RequestError::Timeout { .. } | RequestError::Answer { .. }) => {
            anyhow::Error::new(error).context("does broker-svc run?")
        }
    })
}

fn instant(at: UnixMillis) -> String {
    let time = jiff::Timestamp::from_millisecond(at.0);
    time.map_or_else(|_| at.to_string(), |time| format!("{time:.0}"))
}

async fn list(common: &Common, bus: &Bus, status: Option<String>, limit: usize) -> Result<()> {
    let status: Option<ApprovalStatus> = match status {
        Some(status) => Some(
            serde_json::from_value(status.clone().into())
                .with_context(|| format!("--status {status}: pending, approved, denied, expired, …"))?,
        ),
        None => None,
    };

    let found: ApprovalList = ask(bus, "list", &ListApprovals { status, limit }).await?;
    if common.json {
        return json(&found);
    }

    let mut lines = table(&["ID", "STATUS", "TOOL", "ARGUMENTS", "ASKED BY", "EXPIRES", "DECIDED BY"]);
    for one in &found.approvals {
        lines.add_row([
            one.request.id.clone(),
            one.status.name().to_owned(),
            plain(&one.request.tool),
            brief(&one.request.arguments.to_string(), 40),
            plain(&one.requested_by),
            instant(one.request.expires_at),
            plain(&one.decided_by.clone().unwrap_or_default()),
        ]);
    }

    say!("{lines}");
    Ok(())
}

async fn show(common: &Common, bus: &Bus, id: String) -> Result<()> {
    let one: ConfirmationTerms = ask(bus, "get", &GetApproval { id }).await?;
    if common.json {
        return json(&one);
    }

    let request = &one.request;
    say!("{} is {}", request.id, one.status.name());
    say!("{} wants to run {}", plain(&one.requested_by), plain(&request.tool));
    say!("arguments  {}", plain(&request.arguments.to_string()));
    say!("sha256     {}", request.arguments_hash);

    if let Some(edited) = &one.trail.edited {
        say!("edited     {}", plain(&edited.arguments.to_string()));
        say!("sha256     {}", edited.hash);
    }

    say!("policy     {}", request.policy);
    say!("decides    {}", request.approvers.join(", "));
    say!("asked      {}", instant(one.requested_at));
    say!("expires    {}", instant(request.expires_at));

    if let Some(asked) = &request.asked_in {
        say!("session    {}, turn {}", plain(&asked.session.to_string()), asked.turn);
    }

    for vote in &one.trail.votes {
        say!("yes        {} at {}", plain(&vote.by), instant(vote.at));
    }

    let lines = [
        ("escalated", one.trail.escalated_at),
        ("decided", one.decided_at),
        ("consumed", one.trail.consumed_at),
    ];

    for (what, at) in lines {
        if let Some(at) = at {
            say!("{what:<10} {}", instant(at));
        }
    }

    if let Some(by) = &one.decided_by {
        say!(
            "by         {}, by way of {}",
            plain(by),
            plain(one.trail.via.as_deref().unwrap_or("the service"))
        );
    }

    if let Some(response) = &one.response {
        say!("note       {}", plain(response));
    }

    Ok(())
}

async fn say(
    common: &Common,
    bus: &Bus,
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
        response: speaker.note,
    };

    let answer: ApprovalAnswer = ask(bus, "decide", &question).await?;
    if common.json {
        return json(&answer);
    }

    let was = if answer.changed { "" } else { ", as it was" };
    say!("{} is {}{was}", answer.id, answer.status.name());

    if answer.status == ApprovalStatus::Pending {
        say!("said yes so far: {}", answer.votes.join(", "));
    }

    Ok(())
}
