//! `nexus dlq list|show|redrive|drop`: dead letters.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use shared::bus::{Bus, OutgoingMessage, StoredMessage};
use shared::clock::{IdSource as _, SystemIds};
use shared::wire::dead_letter::DeadLetter;
use shared::wire::headers::{EXPECTED_LAST_SUBJECT_SEQUENCE, Headers, MSG_ID, REDRIVE, WRITER};
use shared::wire::held::HELD_LETTER;
use shared::wire::topology::streams::DLQ;

use crate::args::{Common, DlqAction, LetterChoice};
use crate::complain;
use crate::connect::connect_bus;
use crate::exit::{Exit, ExitContext as _, failure};
use crate::output::{Cell, Column, Table, View};

/// Runs the command.
///
/// # Errors
/// Fails if there is no such dead letter, or if its message cannot be published or deleted.
pub async fn execute(common: &Common, action: DlqAction) -> Result<()> {
    let bus = connect_bus(common).await?;
    match action {
        DlqAction::List { service, limit } => list_letters(common, &bus, service.as_deref(), limit).await,
        DlqAction::Show { number } => show_letter(common, &bus, number).await,
        DlqAction::Redrive(choice) => {
            let mut done = Vec::new();
            let left = redrive_letters(&bus, &choice, &mut done).await;
            show_done(common, &choice, &done)?;
            left
        }
        DlqAction::Drop(choice) => {
            let mut done = Vec::new();
            let left = drop_letters(&bus, &choice, &mut done).await;
            show_done(common, &choice, &done)?;
            left
        }
    }
}

/// A dead letter that was redriven or dropped.
#[derive(Debug)]
struct HandledLetter {
    number: u64,
    json: Value,
    sentence: String,
}

async fn read_letters(bus: &Bus, service: Option<&str>) -> Result<Vec<(StoredMessage, DeadLetter)>> {
    let subject = service.map_or_else(|| "nexus.dlq.*".to_owned(), shared::wire::subject::dlq);
    let mut found = Vec::new();

    let mut from = 1;
    while let Some(stored) = bus.next_on_subject(DLQ, &subject, from).await? {
        from = stored.sequence + 1;
        match stored.decode() {
            Ok(letter) => found.push((stored, letter)),
            Err(error) => complain!("dead letter {} cannot be read: {error}", stored.sequence),
        }
    }

    Ok(found)
}

async fn read_letter(bus: &Bus, number: u64) -> Result<(StoredMessage, DeadLetter)> {
    let stored = bus
        .at_sequence(DLQ, number)
        .await?
        .ok_or_else(|| failure(Exit::NotFound, format!("no dead letter {number}; see `nexus dlq list`")))?;
    let letter = stored.decode().context("failed to read the dead letter")?;
    Ok((stored, letter))
}

/// Returns the dead letters that `choice` names. Held messages are among them only by number: `nexus recover` decides
/// them.
async fn chosen_letters(bus: &Bus, choice: &LetterChoice) -> Result<Vec<(StoredMessage, DeadLetter)>> {
    if let Some(number) = choice.number {
        return Ok(vec![read_letter(bus, number).await?]);
    }

    let mut letters = read_letters(bus, choice.service.as_deref()).await?;
    letters.retain(|(_, letter)| letter.service != HELD_LETTER);
    Ok(letters)
}

async fn list_letters(common: &Common, bus: &Bus, service: Option<&str>, limit: usize) -> Result<()> {
    let all = read_letters(bus, service).await?;
    let shown = &all[all.len().saturating_sub(limit)..];
    let rows: Vec<_> = shown
        .iter()
        .map(|(stored, letter)| json!({ "number": stored.sequence, "letter": letter }))
        .collect();

    let columns = [
        Column::id("NUMBER"),
        Column::time("AT"),
        Column::text("SERVICE"),
        Column::text("REASON"),
        Column::text("SUBJECT"),
        Column::text("DETAIL"),
    ];
    let table = Table::new(&columns).with(shown, |(stored, letter)| {
        [
            stored.sequence.into(),
            letter.at.into(),
            (&letter.service).into(),
            (&letter.reason).into(),
            (&letter.subject).into(),
            (&letter.detail).into(),
        ]
    });

    let count = format!("{} of {} dead letters", shown.len(), all.len());
    View::list(&rows, table)?.line(count).show(common)
}

async fn show_letter(common: &Common, bus: &Bus, number: u64) -> Result<()> {
    let (_, letter) = read_letter(bus, number).await?;
    let bytes = letter.payload_bytes().unwrap_or_default();
    let headers = letter
        .headers
        .iter()
        .map(|(name, value)| ("header", Cell::from(format!("{name}: {value}"))));

    let fields = [
        ("number", number.into()),
        ("at", letter.at.into()),
        ("service", (&letter.service).into()),
        ("reason", (&letter.reason).into()),
        ("detail", (&letter.detail).into()),
        ("stream", format!("{} at {}", letter.stream, letter.sequence).into()),
        ("subject", (&letter.subject).into()),
        ("redrive", (&letter.redrive_subject).into()),
        ("attempts", letter.attempts.into()),
    ];
    let payload = [("payload", Cell::from(format!("{} bytes", bytes.len())))];

    View::one(number.to_string(), &json!({ "number": number, "letter": letter }))?
        .fields(fields.into_iter().chain(headers).chain(payload))
        .line(String::from_utf8_lossy(&bytes))
        .show(common)
}

/// Shows `done` as one object if `choice` names one dead letter, else as a list.
fn show_done(common: &Common, choice: &LetterChoice, done: &[HandledLetter]) -> Result<()> {
    let objects: Vec<&Value> = done.iter().map(|one| &one.json).collect();
    let view = match (choice.number, objects.as_slice()) {
        (Some(_), []) => return Ok(()),
        (Some(number), [only, ..]) => View::one(number.to_string(), only)?,
        (None, all) => View::of(all)?.ids(done.iter().map(|one| one.number.to_string())),
    };

    let sentences: Vec<&str> = done.iter().map(|one| one.sentence.as_str()).collect();
    let mut view = view.line(sentences.join("\n"));
    if choice.number.is_none() {
        view = view.line(format!("{} dead letters", done.len()));
    }

    view.show(common)
}

/// Redrives the dead letters of `choice` and adds them to `done`. One that cannot be redriven does not keep the others.
async fn redrive_letters(bus: &Bus, choice: &LetterChoice, done: &mut Vec<HandledLetter>) -> Result<()> {
    let mut left = Vec::new();
    for found in chosen_letters(bus, choice).await? {
        match redrive_letter(bus, &found).await {
            Ok(redriven) => done.push(redriven),
            Err(error) => left.push(error),
        }
    }

    report_left(choice, left)
}

/// Deletes the dead letters of `choice` for good and adds them to `done`.
async fn drop_letters(bus: &Bus, choice: &LetterChoice, done: &mut Vec<HandledLetter>) -> Result<()> {
    let mut left = Vec::new();
    for (stored, letter) in chosen_letters(bus, choice).await? {
        match drop_letter(bus, &stored, &letter).await {
            Ok(dropped) => done.push(dropped),
            Err(error) => left.push(error),
        }
    }

    report_left(choice, left)
}

/// Returns the error of the one dead letter that `choice` names, or one about all that are left.
fn report_left(choice: &LetterChoice, mut left: Vec<anyhow::Error>) -> Result<()> {
    if choice.number.is_some() {
        return left.pop().map_or(Ok(()), Err);
    }

    for error in &left {
        complain!("{error:#}");
    }
    match left.len() {
        0 => Ok(()),
        count => Err(failure(Exit::Refused, format!("{count} dead letters are left"))),
    }
}

/// Deletes one dead letter. One that is gone already counts as deleted.
async fn drop_letter(bus: &Bus, stored: &StoredMessage, letter: &DeadLetter) -> Result<HandledLetter> {
    let number = stored.sequence;
    refuse_held(number, letter)?;
    let deleted = bus.delete_message(DLQ, number).await;
    deleted.with_context(|| format!("failed to delete dead letter {number}"))?;

    Ok(HandledLetter {
        number,
        json: json!({ "number": number, "service": letter.service, "reason": letter.reason }),
        sentence: format!(
            "dead letter {number} is dropped: {} of {}",
            letter.reason, letter.service
        ),
    })
}

/// Publishes the message again to its original subject, then deletes the dead letter. The deduplication window would
/// drop the old message id, so the message gets a new one, which no other message can take beforehand.
async fn redrive_letter(bus: &Bus, (stored, letter): &(StoredMessage, DeadLetter)) -> Result<HandledLetter> {
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

    let (number, subject, sequence) = (stored.sequence, &letter.redrive_subject, published.sequence);
    Ok(HandledLetter {
        number,
        json: json!({ "number": number, "subject": subject, "sequence": sequence }),
        sentence: format!("dead letter {number} is at {subject} again, sequence {sequence}"),
    })
}

/// Refuses dead letter `number` if its message is held.
fn refuse_held(number: u64, letter: &DeadLetter) -> Result<()> {
    if letter.service != HELD_LETTER {
        return Ok(());
    }
    let text = format!("dead letter {number} is of a held message: `nexus recover list`, then redo or skip");
    Err(failure(Exit::Refused, text))
}

/// Returns the payload of dead letter `number`, if it can be published again at all.
fn payload_of(number: u64, letter: &DeadLetter) -> Result<Vec<u8>> {
    refuse_held(number, letter)?;

    if letter.redrive_subject.is_empty() {
        let text = if letter.stream.is_empty() {
            format!(
                "dead letter {number} cannot be redriven: Nexus cannot read the platform's data (`nexus dlq show {number}`)"
            )
        } else {
            format!(
                "dead letter {number} cannot be redriven: it does not hold the message; see {} at {}",
                letter.stream, letter.sequence
            )
        };
        return Err(failure(Exit::Refused, text));
    }

    letter
        .payload_bytes()
        .with_context(|| format!("dead letter {number} has no payload"))
        .exit(Exit::Refused)
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
            refused.contains("dead letter 3 cannot be redriven") && refused.contains("LEDGER at 7"),
            "{refused}"
        );
    }
}
