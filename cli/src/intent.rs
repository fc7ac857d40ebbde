//! `nexus intent`: lists the intents of agents, and approves or denies them.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::bus::Bus;
use shared::model::approval::{ApprovalParty, DecisionProof};
use shared::model::approval_api::{ApprovalAnswer, DecideApproval};
use shared::model::dispatch::DeliveryContext;
use shared::model::intent::service::{
    CancelIntent, GetIntent, IntentAnswer, IntentHistory, IntentList, ListIntents, ProposeIntent, RescheduleIntent,
};
use shared::model::intent::{Intent, IntentRecord, IntentStatus};
use shared::model::permission::{PermissionLevel, PermissionSet};
use shared::serde_text::reword_json_problem;
use ulid::Ulid;

use crate::args::{Common, IntentAction, ListedIntents, ProposedIntent};
use crate::complain;
use crate::connect::connect_bus;
use crate::exit::{Exit, failure};
use crate::output::{Cell, Column, Table, View, reader_zone};
use crate::service::call_service;

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
    let by = Some(OPERATOR.to_owned());
    match action {
        IntentAction::List(options) => list_intents(common, options).await,
        IntentAction::Show { id } => show_intent(common, parse_id(&id)?).await,
        IntentAction::Cancel { id, reason } => {
            let question = CancelIntent {
                id: parse_id(&id)?,
                agent: None,
                turn: None,
                by,
                reason,
            };
            change(common, "cancel", &question).await
        }
        IntentAction::Reschedule { id, schedule, reason } => {
            let schedule = serde_json::from_str(&schedule);
            let question = RescheduleIntent {
                id: parse_id(&id)?,
                schedule: schedule.map_err(|error| invalid_json("schedule", &error))?,
                agent: None,
                by,
                reason,
            };
            change(common, "reschedule", &question).await
        }
        IntentAction::Approve { id, deny, by, reason } => {
            let id = parse_id(&id)?;
            let bus = connect_bus(common).await?;
            send_decision(&bus, id, !deny, by, reason).await?;
            let told: IntentHistory = ask_scheduler(&bus, "get", &GetIntent { id, agent: None }).await?;
            show_answer(common, "approve", &IntentAnswer::from_intent(&told.intent))
        }
        IntentAction::Propose(options) => change(common, "propose", &build_proposal(options)?).await,
    }
}

/// Sends `question` to endpoint `what` of the scheduler, and shows the answer.
async fn change<Q: Serialize>(common: &Common, what: &str, question: &Q) -> Result<()> {
    let bus = connect_bus(common).await?;
    show_answer(common, what, &ask_scheduler(&bus, what, question).await?)
}

/// Shows the state of an intent after request `what`; fails if the scheduler rejects it.
fn show_answer(common: &Common, what: &str, answer: &IntentAnswer) -> Result<()> {
    let mut view = View::one(answer.id.to_string(), answer)?.line(format!("{} is {}", answer.id, answer.status));
    if let Some(due) = answer.due {
        view = view.line(format!("due {}", reader_zone(common).date_time(due)));
    }
    if let Some(approval) = &answer.approval {
        view = view.line(format!("waits for the approval {approval}"));
    }
    view.show(common)?;

    match &answer.rejection {
        Some(rejection) => Err(failure(Exit::Refused, format!("{what} is refused: {rejection}"))),
        None => Ok(()),
    }
}

/// Sends an approver's decision to the broker, which decides approvals and knows the owner.
async fn send_decision(bus: &Bus, id: Ulid, approve: bool, by: String, response: Option<String>) -> Result<()> {
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

    let subject = "nexus.svc.approval.decide";
    let _: ApprovalAnswer = call_service(bus, "broker-svc", subject, &question, PATIENCE).await?;
    Ok(())
}

fn parse_id(id: &str) -> Result<Ulid> {
    id.parse()
        .map_err(|_| failure(Exit::Usage, format!("`{id}` is not the id of an intent")))
}

/// Returns the error of a JSON argument that is no `what`.
fn invalid_json(what: &str, error: &serde_json::Error) -> anyhow::Error {
    let problem = reword_json_problem(&error.to_string());
    failure(Exit::Usage, format!("invalid {what}: {problem}"))
}

fn build_proposal(options: ProposedIntent) -> Result<ProposeIntent> {
    let id = options.id.as_deref().map(parse_id).transpose()?;
    let level: PermissionLevel = serde_json::from_value(options.level.clone().into()).map_err(|_| {
        let text = format!("--level {}: expected full, restricted, group or minimal", options.level);
        failure(Exit::Usage, text)
    })?;
    let wish = serde_json::from_str(&options.wish);

    Ok(ProposeIntent {
        id,
        wish: wish.map_err(|error| invalid_json("intent", &error))?,
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

async fn ask_scheduler<Q: Serialize, A: DeserializeOwned>(bus: &Bus, endpoint: &str, question: &Q) -> Result<A> {
    let subject = format!("nexus.svc.intent.{endpoint}");
    call_service(bus, "scheduler-svc", &subject, question, PATIENCE).await
}

async fn list_intents(common: &Common, options: ListedIntents) -> Result<()> {
    let status: Option<IntentStatus> = match &options.status {
        Some(status) => Some(serde_json::from_value(status.clone().into()).map_err(|_| {
            let expected = IntentStatus::ALL.map(|one| one.to_string()).join(", ");
            failure(Exit::Usage, format!("--status {status}: expected one of {expected}"))
        })?),
        None => None,
    };

    let question = ListIntents {
        agent: options.agent,
        session: options.session,
        status,
        after: options.after,
        limit: Some(options.limit),
    };
    let bus = connect_bus(common).await?;
    let found: IntentList = ask_scheduler(&bus, "list", &question).await?;

    let columns = [
        Column::id("INTENT"),
        Column::text("STATUS"),
        Column::text("KIND"),
        Column::text("PERSONA"),
        Column::text("SESSION").extra(),
        Column::time("DUE"),
        Column::text("SCHEDULE").extra(),
        Column::text("REASON").extra(),
    ];
    let table = Table::new(&columns).with(&found.intents, |intent| {
        let record = &intent.intent;
        [
            record.id.to_string().into(),
            intent.status.to_string().into(),
            (&record.kind).into(),
            (&record.agent).into(),
            (&record.session).into(),
            due_cell(intent),
            record.schedule.to_string().into(),
            (&record.reason).into(),
        ]
    });

    View::list(&found.intents, table)?.show(common)?;
    if let Some(next) = found.next {
        complain!("there may be more: --after {next}");
    }

    Ok(())
}

/// Returns the time of the next firing, or of the deadline.
fn due_cell(intent: &Intent) -> Cell {
    intent.due.or(intent.deadline).into()
}

async fn show_intent(common: &Common, id: Ulid) -> Result<()> {
    let bus = connect_bus(common).await?;
    let told: IntentHistory = ask_scheduler(&bus, "get", &GetIntent { id, agent: None }).await?;
    let record = &told.intent.intent;
    let parameters = serde_json::Value::Object(record.parameters.clone());
    let fields = [
        ("intent", Cell::from(record.id.to_string())),
        ("kind", (&record.kind).into()),
        ("status", told.intent.status.to_string().into()),
        ("agent", (&record.agent).into()),
        ("session", (&record.session).into()),
        ("fires in", told.intent.target().to_string().into()),
        ("schedule", record.schedule.to_string().into()),
        ("due", due_cell(&told.intent)),
        ("reason", (&record.reason).into()),
        ("parameters", parameters.to_string().into()),
    ];

    View::one(id.to_string(), &told)?
        .fields(fields)
        .table(history_table(&told.history))
        .show(common)
}

/// Returns the transitions of an intent as a table.
fn history_table(history: &[IntentRecord]) -> Table {
    let columns = [
        Column::number("N"),
        Column::time("AT"),
        Column::text("TO"),
        Column::text("CODE"),
        Column::text("BY"),
        Column::text("REASON"),
    ];
    Table::new(&columns).with(history, |step| {
        let code = serde_json::to_value(step.code).unwrap_or_default();
        let why = match &step.lineage {
            Some(lineage) => format!("{} → {}: {}", lineage.old, lineage.new, step.why),
            None => step.why.clone(),
        };
        [
            step.n.to_string().into(),
            step.at.into(),
            step.to.to_string().into(),
            code.as_str().unwrap_or_default().into(),
            (&step.by).into(),
            why.into(),
        ]
    })
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

        let read = build_proposal(options).expect("a proposal");
        assert_eq!(
            (read.agent.as_str(), read.permissions.level),
            ("default", PermissionLevel::Restricted)
        );
        assert_eq!(read.wish.kind, "remind");
        assert!(parse_id("nonsense").is_err());
    }
}
