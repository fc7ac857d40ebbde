//! `nexus dlq list|show|redrive`: dead letters.

use anyhow::{Context as _, Result, bail};
use shared::bus::{Bus, OutgoingMessage, StoredMessage};
use shared::clock::{IdSource as _, SystemIds};
use shared::wire::dead_letter::DeadLetter;
use shared::wire::headers::{EXPECTED_LAST_SUBJECT_SEQUENCE, Headers, MSG_ID, REDRIVE, WRITER};
use shared::wire::held::HELD_LETTER;
use shared::wire::topology::streams::DLQ;

use crate::args::{Common, DlqAction};
use crate::output::{brief, bus, clock, json, plain, table};
use crate::{complain, say};

/// Runs the command.
///
/// # Errors
/// Fails if there is no such dead letter, or if its message cannot be published.
pub async fn execute(common: &Common, action: DlqAction) -> Result<()> {
    let bus = bus(common).await?;
    match action {
        DlqAction::List { service, limit } => list(common, &bus, service.as_deref(), limit).await,
        DlqAction::Show { number } => show(common, &bus, number).await,
        DlqAction::Redrive {
            number: Some(number), ..
        } => redrive(&bus, &one(&bus, number).await?).await,
        DlqAction::Redrive { number: None, .. } => {
            let mut left = 0_usize;
            let found = letters(&bus, None).await?;

            // Held messages are left to `nexus recover`.
            for found in found.into_iter().filter(|(_, letter)| letter.service != HELD_LETTER) {
                if let Err(error) = redrive(&bus, &found).await {
                    complain!("{error:#}");
                    left += 1;
                }
            }

            if left > 0 {
                bail!("{left} dead letters are left");
            }

            Ok(())
        }
    }
}

async fn letters(bus: &Bus, service: Option<&str>) -> Result<Vec<(StoredMessage, DeadLetter)>> {
    let subject = service.map_or_else(|| "nexus.dlq.*".to_owned(), shared::wire::subject::dlq);
    let mut found = Vec::new();

    let mut from = 1;
    while let Some(stored) = bus.next_on_subject(DLQ, &subject, from).await? {
        from = stored.sequence + 1;
        match stored.decode() {
            Ok(letter) => found.push((stored, letter)),
            Err(error) => complain!("letter {} cannot be read: {error}", stored.sequence),
        }
    }

    Ok(found)
}

async fn one(bus: &Bus, number: u64) -> Result<(StoredMessage, DeadLetter)> {
    let stored = bus
        .at_sequence(DLQ, number)
        .await?
        .with_context(|| format!("no dead letter {number}"))?;
    let letter = stored.decode().context("the letter cannot be read")?;
    Ok((stored, letter))
}

async fn list(common: &Common, bus: &Bus, service: Option<&str>, limit: usize) -> Result<()> {
    let all = letters(bus, service).await?;
    let shown = &all[all.len().saturating_sub(limit)..];
    if common.json {
        let rows: Vec<_> = shown
            .iter()
            .map(|(s, l)| serde_json::json!({ "number": s.sequence, "letter": l }))
            .collect();
        return json(&rows);
    }

    let mut rows = table(&["number", "at (UTC)", "service", "reason", "subject", "detail"]);
    for (stored, letter) in shown {
        rows.add_row([
            stored.sequence.to_string(),
            clock(letter.at),
            plain(&letter.service),
            plain(&letter.reason),
            brief(&letter.subject, 40),
            brief(&letter.detail, 60),
        ]);
    }

    say!("{rows}\n{} dead letters", all.len());
    Ok(())
}

async fn show(common: &Common, bus: &Bus, number: u64) -> Result<()> {
    let (_, letter) = one(bus, number).await?;
    if common.json {
        return json(&letter);
    }

    // The contents of a dead letter may be a stranger's text.
    say!(
        "service   {}\nreason    {}",
        plain(&letter.service),
        plain(&letter.reason)
    );
    say!("detail    {}", plain(&letter.detail));
    say!("stream    {} at {}", plain(&letter.stream), letter.sequence);
    say!("subject   {}", plain(&letter.subject));
    say!("redrive   {}", plain(&letter.redrive_subject));
    say!("attempts  {}", letter.attempts);

    for (name, value) in &letter.headers {
        say!("header    {}: {}", plain(name), plain(value));
    }

    let bytes = letter.payload_bytes().unwrap_or_default();
    say!("payload   {} bytes", bytes.len());

    for line in String::from_utf8_lossy(&bytes).lines() {
        say!("{}", plain(line));
    }

    Ok(())
}

/// Publishes the message again to its original subject, then deletes the dead letter. The deduplication window would
/// drop the old message id, so the message gets a new one, which no other message can take beforehand.
async fn redrive(bus: &Bus, (stored, letter): &(StoredMessage, DeadLetter)) -> Result<()> {
    let payload = payload_of(stored.sequence, letter)?;
    // These headers belong to the first publication: with them the server would drop or refuse the second.
    let of_the_first = [MSG_ID, EXPECTED_LAST_SUBJECT_SEQUENCE, WRITER];
    let kept = letter
        .headers
        .iter()
        .filter(|(name, _)| !of_the_first.iter().any(|left_out| name.eq_ignore_ascii_case(left_out)));

    let headers: Headers = kept.map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let out = OutgoingMessage::raw(letter.redrive_subject.clone(), headers, payload.into());
    let id = format!("{REDRIVE}{}:{}", stored.sequence, SystemIds.ulid());
    let published = bus.publish(out.msg_id(id)).await?;
    bus.delete_message(DLQ, stored.sequence).await?;

    say!(
        "letter {} is at {} again, sequence {}",
        stored.sequence,
        letter.redrive_subject,
        published.sequence
    );

    Ok(())
}

/// Returns the payload of dead letter `number`, if it can be published again at all.
fn payload_of(number: u64, letter: &DeadLetter) -> Result<Vec<u8>> {
    if letter.service == HELD_LETTER {
        bail!("letter {number} is of a message that is held: `nexus recover list`, then redo or skip");
    }

    if letter.redrive_subject.is_empty() {
        bail!(
            "letter {number} cannot be redriven: it does not hold the message; see {} at {}",
            letter.stream,
            letter.sequence
        );
    }

    letter
        .payload_bytes()
        .with_context(|| format!("letter {number} holds no payload"))
}

#[cfg(test)]
mod tests {
    use shared::model::time::UnixMillis;

    use super::*;

    #[test]
    fn a_letter_that_names_no_subject_is_not_redriven() {
        let mut letter = DeadLetter {
            service: "broker-svc".to_owned(),
            subject: "nexus.ledger.a.b".to_owned(),
            redrive_subject: "nexus.delivery.a.b.c".to_owned(),
            stream: "LEDGER".to_owned(),
            sequence: 7,
            headers: Vec::new(),
            payload: DeadLetter::encode_payload(b"x"),
            reason: "reply_refused".to_owned(),
            detail: String::new(),
            attempts: 1,
            at: UnixMillis(1),
        };

        assert_eq!(payload_of(3, &letter).expect("its payload"), b"x");

        letter.redrive_subject.clear();
        let refused = payload_of(3, &letter).expect_err("it holds nothing").to_string();
        assert!(
            refused.contains("letter 3 cannot be redriven") && refused.contains("LEDGER at 7"),
            "{refused}"
        );
    }
}
