//! `nexus dlq list|show|redrive|drop`: dead letters, which scheduler-svc keeps for operators.

use std::time::Duration;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use shared::bus::Bus;
use shared::wire::operator::letters::{
    DecideLetter, LetterDropped, LetterList, LetterRecord, LetterRedriven, LetterStep, ListLetters, ListedLetter,
    MAX_LISTED_LETTERS, ShowLetter, ShownLetter,
};

use crate::args::{Common, DlqAction, LetterChoice};
use crate::complain;
use crate::connect::{Caller, connect_caller};
use crate::exit::{Exit, failure};
use crate::output::{Cell, Column, Table, View, Zone, reader_zone};
use crate::service::call_service;

/// Longest time that an answer may take: a redrive waits for two streams.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the command.
///
/// # Errors
/// Fails if there is no such dead letter, if scheduler-svc refuses, or if it does not answer.
pub async fn execute(common: &Common, action: DlqAction) -> Result<()> {
    let caller = connect_caller(common).await?;
    match action {
        DlqAction::List { service, limit } => list_letters(common, &caller.bus, service, limit).await,
        DlqAction::Show { number } => show_letter(common, &caller.bus, number).await,
        DlqAction::Redrive(choice) => {
            let mut done = Vec::new();
            let left = decide_letters(&caller, &choice, redrive_letter, &mut done).await;
            show_done(common, &choice, &done)?;
            left
        }
        DlqAction::Drop(choice) => {
            let mut done = Vec::new();
            let left = decide_letters(&caller, &choice, drop_letter, &mut done).await;
            show_done(common, &choice, &done)?;
            left
        }
    }
}

async fn ask<Q: Serialize, A: DeserializeOwned>(bus: &Bus, endpoint: &str, question: &Q) -> Result<A> {
    call_service(
        bus,
        "scheduler-svc",
        &format!("nexus.svc.dlq.{endpoint}"),
        question,
        PATIENCE,
    )
    .await
}

/// A dead letter that was redriven or dropped.
#[derive(Debug)]
struct HandledLetter {
    number: u64,
    json: Value,
    sentence: String,
}

/// Returns the newest dead letters of `question`, at most `limit`, newest last, and the number of all.
async fn read_letters(bus: &Bus, question: ListLetters, limit: usize) -> Result<(Vec<ListedLetter>, u64)> {
    let mut pages = Vec::new();
    let (mut found, mut total, mut before) = (0, 0, None);
    while found < limit {
        let limit = (limit - found).min(MAX_LISTED_LETTERS);
        let next = ListLetters {
            before,
            limit,
            ..question.clone()
        };
        let page: LetterList = ask(bus, "list", &next).await?;
        if before.is_none() {
            total = page.total;
        }

        found += page.letters.len();
        pages.push(page.letters);
        before = page.before;
        if before.is_none() {
            break;
        }
    }

    Ok((pages.into_iter().rev().flatten().collect(), total))
}

async fn list_letters(common: &Common, bus: &Bus, service: Option<String>, limit: usize) -> Result<()> {
    let question = ListLetters {
        service,
        ..ListLetters::default()
    };
    // Without entries there is still their number to tell.
    let (mut shown, total) = read_letters(bus, question, limit.max(1)).await?;
    shown.drain(..shown.len().saturating_sub(limit));
    for letter in &shown {
        if let Some(why) = &letter.unreadable {
            complain!("dead letter {} cannot be read: {why}", letter.number);
        }
    }

    let columns = [
        Column::id("NUMBER"),
        Column::time("AT"),
        Column::text("SERVICE"),
        Column::text("REASON"),
        Column::text("SUBJECT"),
        Column::text("DETAIL"),
    ];
    let table = Table::new(&columns).with(&shown, |one| {
        let letter = one.letter.as_ref();
        [
            one.number.into(),
            letter.map(|letter| letter.at).into(),
            letter.map(|letter| &letter.service).into(),
            letter.map(|letter| &letter.reason).into(),
            letter.map(|letter| &letter.subject).into(),
            letter.map(|letter| &letter.detail).or(one.unreadable.as_ref()).into(),
        ]
    });

    let count = format!("{} of {total} dead letters", shown.len());
    View::list(&shown, table)?.line(count).show(common)
}

async fn show_letter(common: &Common, bus: &Bus, number: u64) -> Result<()> {
    let shown: ShownLetter = ask(bus, "show", &ShowLetter { number }).await?;
    let bytes = STANDARD.decode(&shown.payload).unwrap_or_default();
    let letter = &shown.letter;
    let zone = reader_zone(common);
    let headers = shown
        .headers
        .iter()
        .map(|(name, value)| ("header", Cell::from(format!("{name}: {value}"))));
    let history = shown
        .history
        .iter()
        .map(|record| ("history", Cell::from(step_text(record, &zone))));

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
    let size = match shown.payload_bytes - bytes.len() {
        0 => format!("{} bytes", bytes.len()),
        _ => format!("{} bytes, the first {} follow", shown.payload_bytes, bytes.len()),
    };

    View::one(number.to_string(), &shown)?
        .fields(
            fields
                .into_iter()
                .chain(headers)
                .chain(history)
                .chain([("payload", Cell::from(size))]),
        )
        .line(String::from_utf8_lossy(&bytes))
        .show(common)
}

/// Returns an operator's step with a dead letter, in words.
fn step_text(record: &LetterRecord, zone: &Zone) -> String {
    let what = match &record.step {
        LetterStep::RedriveBegun { subject, .. } => format!("redrive to {subject} begun"),
        LetterStep::Redriven { position, stream, .. } => {
            format!("redriven: in {stream} at {}", position.sequence)
        }
        LetterStep::RedriveRefused { error } => format!("redrive refused: {error}"),
        LetterStep::Dropped { .. } => "dropped".to_owned(),
    };
    format!("{}: {what} by {}", zone.date_time(record.at), record.by)
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

/// Returns the requests for the dead letters that `choice` names. Held messages are among them only by number: `nexus
/// recover` decides them.
async fn chosen_letters(caller: &Caller, choice: &LetterChoice) -> Result<Vec<DecideLetter>> {
    let by = || caller.name.clone();
    if let Some(number) = choice.number {
        return Ok(vec![DecideLetter {
            number,
            stored_at_ns: None,
            by: by(),
        }]);
    }

    let question = ListLetters {
        service: choice.service.clone(),
        without_held: true,
        ..ListLetters::default()
    };
    let (letters, _) = read_letters(&caller.bus, question, usize::MAX).await?;
    let requests = letters.into_iter().map(|letter| DecideLetter {
        number: letter.number,
        stored_at_ns: Some(letter.stored_at_ns),
        by: by(),
    });
    Ok(requests.collect())
}

/// Asks for each dead letter of `choice` by `decide`, and adds it to `done`. One that is refused does not keep the others.
async fn decide_letters(
    caller: &Caller,
    choice: &LetterChoice,
    decide: impl AsyncFn(&Bus, &DecideLetter) -> Result<HandledLetter>,
    done: &mut Vec<HandledLetter>,
) -> Result<()> {
    let mut left = Vec::new();
    for request in chosen_letters(caller, choice).await? {
        match decide(&caller.bus, &request).await {
            Ok(handled) => done.push(handled),
            // No other one would be answered either.
            Err(error) if Exit::of_error(&error) == Exit::Unreachable => return Err(error),
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

async fn drop_letter(bus: &Bus, request: &DecideLetter) -> Result<HandledLetter> {
    let dropped: LetterDropped = ask(bus, "drop", request).await?;
    let LetterDropped {
        number,
        service,
        reason,
        repeated,
    } = &dropped;
    let before = if *repeated { ", as before" } else { "" };
    Ok(HandledLetter {
        number: *number,
        json: serde_json::to_value(&dropped).context("failed to write the answer")?,
        sentence: format!("dead letter {number} is dropped{before}: {reason} of {service}"),
    })
}

async fn redrive_letter(bus: &Bus, request: &DecideLetter) -> Result<HandledLetter> {
    let redriven: LetterRedriven = ask(bus, "redrive", request).await?;
    let LetterRedriven {
        number,
        subject,
        sequence,
        repeated,
    } = &redriven;
    let before = if *repeated { ", as before" } else { "" };
    Ok(HandledLetter {
        number: *number,
        json: json!({ "number": number, "subject": subject, "sequence": sequence, "repeated": repeated }),
        sentence: format!("dead letter {number} is at {subject} again, sequence {sequence}{before}"),
    })
}
