//! `nexus recover list|redo|skip`: held messages.
//!
//! After a restore the streams may have lost the record of finished work. It is then unknown whether a message took
//! effect, and the operator decides. The decision is stored before anything is published, and a message is published
//! under an id of its own.

use anyhow::{Context as _, Result, bail};
use shared::bus::{Bus, KvEntry, OutgoingMessage, claim};
use shared::model::dispatch::Dispatch;
use shared::wire::envelope::decode;
use shared::wire::headers::{EXPECTED_LAST_SUBJECT_SEQUENCE, Headers, MSG_ID, TraceCarrier, WRITER};
use shared::wire::held::{HeldKind, HeldMessage, HeldUntil};

use crate::args::{Common, RecoverAction};
use crate::output::{brief, bus, clock, json, table};
use crate::say;

/// Prefix of the id of a message that is published again.
const REDO: &str = "redo:";

/// Runs the command.
///
/// # Errors
/// Fails if no message with that id is held, or if it cannot be published.
pub async fn execute(common: &Common, action: RecoverAction) -> Result<()> {
    let bus = bus(common).await?;
    match action {
        RecoverAction::List { all } => list(common, &bus, all).await,
        RecoverAction::Redo { id, .. } => decide(&bus, id.as_deref(), HeldUntil::Redo).await,
        RecoverAction::Skip { id, .. } => decide(&bus, id.as_deref(), HeldUntil::Skip).await,
    }
}

/// Returns the held messages, oldest first.
async fn all(bus: &Bus) -> Result<Vec<KvEntry<HeldMessage>>> {
    let found = bus
        .held_bucket()
        .entries()
        .await
        .context("what is held cannot be read")?;
    let mut held: Vec<KvEntry<HeldMessage>> = found.into_iter().map(|(_, entry)| entry).collect();
    held.sort_by_key(|entry| (entry.value.at, entry.value.sequence));
    Ok(held)
}

const fn said(wanted: HeldUntil) -> &'static str {
    match wanted {
        HeldUntil::Decided => "held",
        HeldUntil::Redo => "redo",
        HeldUntil::Skip => "skip",
    }
}

async fn list(common: &Common, bus: &Bus, with_decided: bool) -> Result<()> {
    let mut held = all(bus).await?;
    held.retain(|entry| with_decided || entry.value.wanted == HeldUntil::Decided);

    if common.json {
        let rows: Vec<&HeldMessage> = held.iter().map(|entry| &entry.value).collect();
        return json(&rows);
    }

    let mut rows = table(&["id", "kind", "since (UTC)", "state", "subject", "why"]);
    for KvEntry { value, .. } in &held {
        rows.add_row([
            value.id.to_string(),
            value.kind.name().to_owned(),
            clock(value.at),
            said(value.wanted).to_owned(),
            brief(&value.subject, 40),
            brief(&value.why, 70),
        ]);
    }

    say!("{rows}\n{} messages", held.len());
    Ok(())
}

async fn decide(bus: &Bus, id: Option<&str>, wanted: HeldUntil) -> Result<()> {
    let mut held = all(bus).await?;
    match id {
        Some(id) => held.retain(|entry| entry.value.id.to_string() == id),
        None => held.retain(|entry| entry.value.wanted == HeldUntil::Decided),
    }

    if let (Some(id), true) = (id, held.is_empty()) {
        bail!("nothing with id {id} is held (`nexus recover list`)");
    }

    for KvEntry { value, revision } in &held {
        decide_one(bus, value, *revision, wanted).await?;
        say!("{} {}: {}", value.kind.name(), value.id, said(wanted));
    }

    say!("{} messages", held.len());
    Ok(())
}

/// Stores the decision, then publishes the message if it is to be done again. If the command is killed in between, the
/// same command does the rest.
async fn decide_one(bus: &Bus, held: &HeldMessage, revision: u64, wanted: HeldUntil) -> Result<()> {
    if held.wanted != HeldUntil::Decided && held.wanted != wanted {
        bail!("{} was decided before: {}", held.id, said(held.wanted));
    }

    if held.wanted == HeldUntil::Decided {
        bus.decide_held(held, wanted, revision)
            .await
            .with_context(|| format!("the decision on {} is not stored", held.id))?;
    }

    if wanted == HeldUntil::Redo {
        publish(bus, held)
            .await
            .with_context(|| format!("{} is not published, try again", held.id))?;
    }

    bus.take_held_letters(held)
        .await
        .with_context(|| format!("the letter of {} is left, try again", held.id))
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
    let payload = held.payload_bytes().context("the payload is not base64")?;
    match held.kind {
        HeldKind::Delivery => {
            let out = OutgoingMessage::raw(held.subject.clone(), headers, payload.into()).repeated();
            bus.publish(out.msg_id(format!("{REDO}{}", held.id))).await?;
        }
        HeldKind::Dispatch => {
            let was: Dispatch = decode(&headers, &payload).context("the dispatch cannot be read")?;
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
