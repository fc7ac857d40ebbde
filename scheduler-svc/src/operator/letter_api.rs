//! `nexus.svc.dlq.{list,show,redrive,drop}`: dead letters.

use shared::bus::{ServiceSpec, StoredMessage};
use shared::error_chain::describe_error;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::held::HELD_LETTER;
use shared::wire::operator::letters::{
    DecideLetter, LISTED_LETTERS, LetterHead, LetterList, ListLetters, ListedLetter, MAX_LISTED_DETAIL,
    MAX_LISTED_LETTERS, MAX_SHOWN_PAYLOAD, ShowLetter, ShownLetter,
};
use shared::wire::subject;
use shared::wire::topology::streams::DLQ;

use super::Refusal;
use super::letter_desk::LetterDesk;
use super::letter_error::LetterError;

/// Returns the service over `desk`.
#[must_use]
pub fn service_spec(desk: &LetterDesk) -> ServiceSpec {
    let (listing, showing, redriving, dropping) = (desk.clone(), desk.clone(), desk.clone(), desk.clone());
    ServiceSpec::new("dlq", "dead letters: list, show, redrive, drop")
        .endpoint("list", move |question: ListLetters| {
            let desk = listing.clone();
            async move { list(&desk, &question).await.map_err(|error| refusal(&error)) }
        })
        .endpoint("show", move |question: ShowLetter| {
            let desk = showing.clone();
            async move { show(&desk, question.number).await.map_err(|error| refusal(&error)) }
        })
        .endpoint("redrive", move |request: DecideLetter| {
            let desk = redriving.clone();
            async move { desk.redrive(&request).await.map_err(|error| refusal(&error)) }
        })
        .endpoint("drop", move |request: DecideLetter| {
            let desk = dropping.clone();
            async move { desk.drop_letter(&request).await.map_err(|error| refusal(&error)) }
        })
}

async fn list(desk: &LetterDesk, question: &ListLetters) -> Result<LetterList, LetterError> {
    let filter = question.service.as_deref().map_or_else(|| ">".to_owned(), subject::dlq);
    let held = subject::dlq(HELD_LETTER);
    let is_listed = |at: &str| !(question.without_held && at == held);

    let counted = desk.bus.list_subjects(DLQ, &filter).await?;
    let total = counted
        .iter()
        .filter(|(at, _)| is_listed(at))
        .map(|(_, count)| count)
        .sum();

    let limit = match question.limit {
        0 => LISTED_LETTERS,
        limit => limit.min(MAX_LISTED_LETTERS),
    };
    let keep = |stored: StoredMessage| is_listed(&stored.subject).then(|| listed(&stored));
    let page = desk
        .bus
        .newest_messages(DLQ, &filter, question.before, limit, keep)
        .await?;

    Ok(LetterList {
        letters: page.items,
        total,
        before: page.before,
    })
}

fn listed(stored: &StoredMessage) -> ListedLetter {
    let (letter, unreadable) = match stored.decode::<DeadLetter>() {
        Ok(letter) => (Some(LetterHead::of_letter(letter, MAX_LISTED_DETAIL)), None),
        Err(error) => (None, Some(error.to_string())),
    };
    ListedLetter {
        number: stored.sequence,
        stored_at_ns: stored.stored_at_ns,
        letter,
        unreadable,
    }
}

async fn show(desk: &LetterDesk, number: u64) -> Result<ShownLetter, LetterError> {
    let stored = desk
        .bus
        .at_sequence(DLQ, number)
        .await?
        .ok_or(LetterError::Absent(number))?;
    let mut letter: DeadLetter = stored.decode().map_err(|error| LetterError::Unreadable {
        number,
        error: error.to_string(),
    })?;
    let (mut history, ..) = desk.records(number).await?;
    history.retain(|record| record.letter.stored_at_ns == stored.stored_at_ns);

    let bytes = letter.payload_bytes().unwrap_or_default();
    // The answer, in base64 and with the headers, fits into what the server passes on.
    let most = MAX_SHOWN_PAYLOAD.min(desk.bus.max_payload() / 3);
    let payload = DeadLetter::encode_payload(&bytes[..bytes.len().min(most)]);
    Ok(ShownLetter {
        number,
        stored_at_ns: stored.stored_at_ns,
        headers: std::mem::take(&mut letter.headers),
        letter: LetterHead::of_letter(letter, usize::MAX),
        payload,
        payload_bytes: bytes.len(),
        history,
    })
}

/// Returns the status and the text of `error`.
fn refusal(error: &LetterError) -> Refusal {
    let status = match error {
        LetterError::Absent(_) => 404,
        LetterError::Speaker(_) => 400,
        LetterError::Another(_)
        | LetterError::Held(_)
        | LetterError::Unreadable { .. }
        | LetterError::Foreign(_)
        | LetterError::WithoutMessage { .. }
        | LetterError::Payload(_)
        | LetterError::NoStream { .. }
        | LetterError::Refused { .. }
        | LetterError::Dropped { .. }
        | LetterError::Redriving(_)
        | LetterError::Contended(_) => 409,
        LetterError::Late(_) | LetterError::Read(_) | LetterError::Record(_) => {
            tracing::warn!(error = describe_error(error), "request about a dead letter failed");
            503
        }
    };
    (status, error.to_string())
}
