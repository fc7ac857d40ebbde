//! `nexus intent`: lists the intents of agents, and approves or denies them.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use shared::bus::{Bus, RequestError};
use shared::model::approval::{ApprovalParty, DecisionProof};
use shared::model::approval_api::{ApprovalAnswer, DecideApproval};
use shared::model::dispatch::DeliveryContext;
use shared::model::intent::service::{
    CancelIntent, GetIntent, IntentAnswer, IntentHistory, IntentList, ListIntents, ProposeIntent, RescheduleIntent,
};
use shared::model::intent::{Intent, IntentStatus};
use shared::model::permission::{PermissionLevel, PermissionSet};
use shared::model::time::UnixMillis;
use shared::wire::headers::Headers;
use ulid::Ulid;

use crate::args::{Common, IntentAction, ListedIntents, ProposedIntent};
use crate::output::{brief, bus, json, plain, table};
use crate::say;

/// Longest time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Channel of the person at a terminal of the installation.
const CLI: &str = "cli";
/// Name under which an operator at a terminal acts.
const OPERATOR: &str = "operator";

/// Runs the command.
///
/// # Errors
/// Fails if no scheduler answers, or if the scheduler refuses.
pub async fn execute(common: &Common, action: IntentAction) -> Result<()> {
    let bus = bus(common).await?;
    let by = Some(OPERATOR.to_owned());
    let (what, answer): (_, IntentAnswer) = match action {
        IntentAction::List(options) => return list(common, &bus, options).await,
        IntentAction::Show { id } => return show(common, &bus, parse(&id)?).await,
        IntentAction::Cancel { id, reason } => {
            let id = parse(&id)?;
            let question = CancelIntent {
                id,
                agent: None,
                turn: None,
                by,
                reason,
            };

            ("cancel", ask(&bus, "cancel", &question).await?)
        }
        IntentAction::Reschedule { id, schedule, reason } => {
            let schedule = serde_json::from_str(&schedule).context("the schedule, in JSON")?;
            let question = RescheduleIntent {
                id: parse(&id)?,
                schedule,
                agent: None,
                by,
                reason,
            };

            ("reschedule", ask(&bus, "reschedule", &question).await?)
        }
        IntentAction::Approve { id, deny, by, note } => {
            let id = parse(&id)?;
            decide(&bus, id, !deny, by, note).await?;
            let told: IntentHistory = ask(&bus, "get", &GetIntent { id, agent: None }).await?;
            ("approve", IntentAnswer::from_intent(&told.intent))
        }
        IntentAction::Propose(options) => ("propose", ask(&bus, "propose", &proposal(options)?).await?),
    };

    if common.json {
        return json(&answer);
    }

    say!("{} is {}", answer.id, answer.status);

    if let Some(due) = answer.due {
        say!("due {}", instant(due));
    }

    if let Some(approval) = answer.approval {
        say!("waits for the approval {approval}");
    }

    match answer.rejection {
        Some(rejection) => bail!("{what} is refused: {rejection}"),
        None => Ok(()),
    }
}

/// Sends an approver's decision to the broker, which decides approvals and knows the owner.
async fn decide(bus: &Bus, id: Ulid, approve: bool, by: String, response: Option<String>) -> Result<()> {
    let question = DecideApproval {
        id: format!("intent.{id}"),
        approve,
        by: ApprovalParty {
            channel: CLI.to_owned(),
            id: by,
            proof: DecisionProof::Vouched,
            person: None,
        },
        via: CLI.to_owned(),
        arguments: None,
        arguments_hash: None,
        response,
    };

    let asked = bus
        .request::<_, ApprovalAnswer>("nexus.svc.approval.decide", Headers::new(), &question, PATIENCE)
        .await;
    match asked {
        Ok(_) => Ok(()),
        Err(RequestError::Service { text, .. }) => bail!(text),
        Err(
            error @ (RequestError::NoResponder { .. } | RequestError::Timeout { .. } | RequestError::Answer { .. }),
        ) => Err(anyhow::Error::new(error).context("does broker-svc run?")),
    }
}

fn parse(id: &str) -> Result<Ulid> {
    id.parse().with_context(|| format!("`{id}` is not the id of an intent"))
}

fn proposal(options: ProposedIntent) -> Result<ProposeIntent> {
    let id = options.id.as_deref().map(parse).transpose()?;
    let level: PermissionLevel = serde_json::from_value(options.level.clone().into())
        .with_context(|| format!("--level {}: full, restricted, group or minimal", options.level))?;

    Ok(ProposeIntent {
        id,
        wish: serde_json::from_str(&options.wish).context("the wish, in JSON")?,
        agent: options.agent,
        session: options.session,
        turn: None,
        permissions: PermissionSet {
            level,
            ..PermissionSet::default()
        },
        delivery_context: DeliveryContext {
            channel: options.channel,
            peer_id: Some(options.peer),
            ..DeliveryContext::default()
        },
        causation: None,
    })
}

async fn ask<Q: serde::Serialize, A: serde::de::DeserializeOwned>(bus: &Bus, what: &str, question: &Q) -> Result<A> {
    let subject = format!("nexus.svc.intent.{what}");
    let asked = bus.request(&subject, Headers::new(), question, PATIENCE).await;
    asked.map_err(|error| match error {
        RequestError::Service { text, .. } => anyhow::Error::msg(text),
        error @ (RequestError::NoResponder { .. } | RequestError::Timeout { .. } | RequestError::Answer { .. }) => {
            anyhow::Error::new(error).context("does scheduler-svc run?")
        }
    })
}

fn instant(at: UnixMillis) -> String {
    let time = jiff::Timestamp::from_millisecond(at.0);
    time.map_or_else(|_| at.to_string(), |time| format!("{time:.0}"))
}

fn due(intent: &Intent) -> String {
    intent.due.or(intent.deadline).map_or_else(String::new, instant)
}

async fn list(common: &Common, bus: &Bus, options: ListedIntents) -> Result<()> {
    let status: Option<IntentStatus> = match &options.status {
        Some(status) => Some(
            serde_json::from_value(status.clone().into())
                .with_context(|| format!("--status {status}: pending, running, completed, …"))?,
        ),
        None => None,
    };

    let question = ListIntents {
        agent: options.agent,
        session: options.session,
        status,
        after: options.after,
        limit: Some(options.limit),
    };

    let found: IntentList = ask(bus, "list", &question).await?;
    if common.json {
        return json(&found);
    }

    let mut rows = table(&[
        "INTENT", "STATUS", "KIND", "AGENT", "SESSION", "DUE", "SCHEDULE", "REASON",
    ]);
    for intent in &found.intents {
        let record = &intent.intent;
        rows.add_row([
            record.id.to_string(),
            intent.status.to_string(),
            plain(&record.kind),
            plain(&record.agent),
            brief(&record.session, 30),
            due(intent),
            brief(&record.schedule.to_string(), 40),
            brief(&record.reason, 30),
        ]);
    }

    say!("{rows}");

    if let Some(next) = found.next {
        say!("there may be more: --after {next}");
    }

    Ok(())
}

async fn show(common: &Common, bus: &Bus, id: Ulid) -> Result<()> {
    let told: IntentHistory = ask(bus, "get", &GetIntent { id, agent: None }).await?;
    if common.json {
        return json(&told);
    }

    let record = &told.intent.intent;
    say!("{} · {} · {}", record.id, record.kind, told.intent.status);

    // Parameters of an agent may repeat a stranger's text.
    let place = format!("{}/{}, fires in {}", record.agent, record.session, told.intent.target());
    let parameters = serde_json::Value::Object(record.parameters.clone());
    say!("{}", plain(&place));
    say!("{}; next {}", plain(&record.schedule.to_string()), due(&told.intent));
    say!("parameters {}", plain(&parameters.to_string()));

    let mut rows = table(&["N", "AT", "TO", "CODE", "BY", "WHY"]);
    for step in &told.history {
        let code = serde_json::to_value(step.code).unwrap_or_default();
        let why = match &step.lineage {
            Some(lineage) => format!("{} → {}: {}", lineage.old, lineage.new, step.why),
            None => step.why.clone(),
        };

        rows.add_row([
            step.n.to_string(),
            instant(step.at),
            step.to.to_string(),
            code.as_str().unwrap_or_default().to_owned(),
            plain(&step.by),
            plain(&why),
        ]);
    }

    say!("{rows}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    #[test]
    fn a_proposal_is_read_from_the_command_line() {
        let wish =
            r#"{"kind":"remind","parameters":{"subject":"s","message":"m"},"schedule":{"type":"after","seconds":60}}"#;
        let cli = Cli::try_parse_from(["nexus", "intent", "propose", wish, "--level", "restricted"]).expect("parsed");
        let Command::Intent(IntentAction::Propose(options)) = cli.command else {
            panic!("another command");
        };

        let read = proposal(options).expect("a proposal");
        assert_eq!(
            (read.agent.as_str(), read.permissions.level),
            ("default", PermissionLevel::Restricted)
        );
        assert_eq!(read.wish.kind, "remind");
        assert!(parse("nonsense").is_err());
    }
}
