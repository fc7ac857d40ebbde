//! `nexus recover list|redo|skip`: held messages.
//!
//! After a restore the streams may have lost the record of finished work. It is then unknown whether a message took
//! effect, and the operator decides. The decision is stored before anything is published, and a message is published
//! under an id of its own.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use shared::bus::{Bus, KvEntry, OutgoingMessage, claim};
use shared::model::dispatch::Dispatch;
use shared::wire::envelope::decode;
use shared::wire::headers::{EXPECTED_LAST_SUBJECT_SEQUENCE, Headers, MSG_ID, TraceCarrier, WRITER};
use shared::wire::held::{HeldKind, HeldMessage, HeldUntil};

use crate::args::{Common, RecoverAction};
use crate::connect::connect_bus;
use crate::exit::{Exit, failure};
use crate::output::{Column, Table, View};

/// Prefix of the id of a message that is published again.
const REDO: &str = "redo:";

/// Runs the command.
///
/// # Errors
/// Fails if no message with that id is held, or if it cannot be published.
pub async fn execute(common: &Common, action: RecoverAction) -> Result<()> {
    let bus = connect_bus(common).await?;
    match action {
        RecoverAction::List { all } => list_messages(common, &bus, all).await,
        RecoverAction::Redo { id, .. } => write_decisions(common, &bus, id.as_deref(), HeldUntil::Redo).await,
        RecoverAction::Skip { id, .. } => write_decisions(common, &bus, id.as_deref(), HeldUntil::Skip).await,
    }
}

/// Returns the held messages, oldest first.
async fn list_held(bus: &Bus) -> Result<Vec<KvEntry<HeldMessage>>> {
    let found = bus
        .held_bucket()
        .entries()
        .await
        .context("failed to read the held messages")?;
    let mut held: Vec<KvEntry<HeldMessage>> = found.into_iter().map(|(_, entry)| entry).collect();
    held.sort_by_key(|entry| (entry.value.at, entry.value.sequence));
    Ok(held)
}

const fn decision_word(wanted: HeldUntil) -> &'static str {
    match wanted {
        HeldUntil::Decided => "held",
        HeldUntil::Redo => "redo",
        HeldUntil::Skip => "skip",
    }
}

async fn list_messages(common: &Common, bus: &Bus, with_decided: bool) -> Result<()> {
    let mut held: Vec<HeldMessage> = list_held(bus).await?.into_iter().map(|entry| entry.value).collect();
    held.retain(|one| with_decided || one.wanted == HeldUntil::Decided);

    let columns = [
        Column::id("ID"),
        Column::text("KIND"),
        Column::time("SINCE"),
        Column::text("STATE"),
        Column::text("SUBJECT").extra(),
        Column::text("REASON"),
    ];
    let table = Table::new(&columns).with(&held, |one| {
        [
            one.id.to_string().into(),
            one.kind.name().into(),
            one.at.into(),
            decision_word(one.wanted).into(),
            (&one.subject).into(),
            (&one.why).into(),
        ]
    });

    let count = format!("{} messages", held.len());
    View::list(&held, table)?.line(count).show(common)
}

/// Decides the held message `id`, or every undecided one. Decisions made before an error are shown all the same.
async fn write_decisions(common: &Common, bus: &Bus, id: Option<&str>, wanted: HeldUntil) -> Result<()> {
    let mut held = list_held(bus).await?;
    match id {
        Some(id) => held.retain(|entry| entry.value.id.to_string() == id),
        None => held.retain(|entry| entry.value.wanted == HeldUntil::Decided),
    }

    if let (Some(id), true) = (id, held.is_empty()) {
        let text = format!("nothing with id {id} is held (`nexus recover list`)");
        return Err(failure(Exit::NotFound, text));
    }

    let mut decided: Vec<&HeldMessage> = Vec::new();
    let mut failed = Ok(());
    for KvEntry { value, revision } in &held {
        failed = decide_one(bus, value, *revision, wanted).await;
        if failed.is_err() {
            break;
        }
        decided.push(value);
    }

    if failed.is_ok() || !decided.is_empty() {
        decisions_view(id.is_some(), &decided, wanted)?.show(common)?;
    }
    failed
}

/// Returns the decisions on `decided`: one object if one message `is_named`, else a list.
fn decisions_view(is_named: bool, decided: &[&HeldMessage], wanted: HeldUntil) -> Result<View> {
    let word = decision_word(wanted);
    let objects: Vec<Value> = decided
        .iter()
        .map(|one| json!({ "id": one.id, "kind": one.kind.name(), "decision": word }))
        .collect();
    let view = match objects.as_slice() {
        [only] if is_named => View::of(only)?,
        all => View::of(all)?,
    };

    let sentences: Vec<String> = decided
        .iter()
        .map(|one| format!("{} {}: {word}", one.kind.name(), one.id))
        .collect();

    Ok(view
        .ids(decided.iter().map(|one| one.id.to_string()))
        .line(sentences.join("\n"))
        .line(format!("{} messages", decided.len())))
}

/// Stores the decision, then publishes the message if it is to be done again. If the command is killed in between, the
/// same command does the rest.
async fn decide_one(bus: &Bus, held: &HeldMessage, revision: u64, wanted: HeldUntil) -> Result<()> {
    if held.wanted != HeldUntil::Decided && held.wanted != wanted {
        let text = format!("{} was decided before: {}", held.id, decision_word(held.wanted));
        return Err(failure(Exit::Refused, text));
    }

    if held.wanted == HeldUntil::Decided {
        bus.decide_held(held, wanted, revision)
            .await
            .with_context(|| format!("failed to store the decision on {}", held.id))?;
    }

    if wanted == HeldUntil::Redo {
        publish(bus, held)
            .await
            .with_context(|| format!("failed to publish {}; run the command again", held.id))?;
    }

    bus.take_held_letters(held)
        .await
        .with_context(|| format!("failed to delete the dead letter of {}; run the command again", held.id))
}

/// Publishes `held` again: a dispatch under an id that is derived from its own, so that its session treats it as a new
/// one; a delivery unchanged, because the deliverer reads the stored decision.
async fn publish(bus: &Bus, held: &HeldMessage) -> Result<()> {
    // These headers belong to the first publication: with them the server would drop or refuse the second.
    let of_the_first = [MSG_ID, EXPECTED_LAST_SUBJECT_SEQUENCE, WRITER];
    let kept = held
        .headers
        .iter()
        .filter(|(name, _)| !of_the_first.iter().any(|left_out| name.eq_ignore_ascii_case(left_out)));

    let headers: Headers = kept.map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let payload = held.payload_bytes().context("the payload is not valid base64")?;
    match held.kind {
        HeldKind::Delivery => {
            let out = OutgoingMessage::raw(held.subject.clone(), headers, payload.into()).repeated();
            bus.publish(out.msg_id(format!("{REDO}{}", held.id))).await?;
        }
        HeldKind::Dispatch => {
            let was: Dispatch = decode(&headers, &payload).context("failed to read the dispatch")?;
            let id = HeldMessage::redone_id(was.id);
            let target = was.target.clone();
            let again = OutgoingMessage::new(held.subject.clone(), &Dispatch { id, ..was }).msg_id(id.to_string());
            bus.publish(again).await?;
            // Without a claim no broker would read the session's subject.
            claim::publish(bus, &target, &TraceCarrier::default()).await?;
        }
    }

    Ok(())
}
