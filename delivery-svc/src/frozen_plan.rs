//! The plan of a delivery as its receipts keep it.
//!
//! A delivery of several parts is planned once. The plan is stored before the first call, so that a restart with
//! another version or other settings of the renderer sends the remaining parts of the same text: a new limit would move
//! the cuts, and text would be lost or appear twice. A delivery of one part needs no plan, because its text is whole in
//! any form.

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use shared::bus::{Bus, ReadStreamError};
use shared::model::approval::ApprovalCard;
use shared::model::pairing::PairingNotice;
use shared::model::receipt::{PlanReference, PlannedFile, PlannedPart, PlannedStyle, Receipt, ReceiptStep};
use shared::model::reply::Reply;
use shared::wire::topology::streams;

use crate::job::DeliveryJob;
use crate::markdown::signal::{StyleRange, known_style};
use crate::part_file::PartFile;
use crate::plan::MessagePart;

/// Size from which a piece of a plan takes no further part, in bytes of text.
const PIECE_BYTES: usize = 64 * 1024;

/// Returns `parts` as receipts keep them.
#[must_use]
pub fn planned_parts(parts: &[MessagePart]) -> Vec<PlannedPart> {
    let styles = |part: &MessagePart| {
        let styles = part.styles.iter().map(|range| PlannedStyle {
            start: range.start,
            length: range.length,
            style: range.style.to_owned(),
        });
        styles.collect()
    };
    let planned = parts.iter().map(|part| PlannedPart {
        content: part.content.clone(),
        format: part.format.name().to_owned(),
        plain: part.plain.clone(),
        styles: styles(part),
        file: part.file.as_ref().map(planned_file),
    });
    planned.collect()
}

fn planned_file(file: &PartFile) -> PlannedFile {
    let PartFile {
        hash,
        size,
        name,
        mime_type,
        media_type,
    } = file.clone();
    PlannedFile {
        hash,
        size,
        name,
        mime_type,
        media_type,
    }
}

fn part_file(file: PlannedFile) -> PartFile {
    let PlannedFile {
        hash,
        size,
        name,
        mime_type,
        media_type,
    } = file;
    PartFile {
        hash,
        size,
        name,
        mime_type,
        media_type,
    }
}

/// Returns the parts of a stored plan; `None` if a newer version has written a form that this one does not know.
#[must_use]
pub fn message_parts(planned: Vec<PlannedPart>) -> Option<Vec<MessagePart>> {
    let part = |(index, part): (u32, PlannedPart)| {
        let styles = part.styles.into_iter().map(|range| {
            Some(StyleRange {
                start: range.start,
                length: range.length,
                style: known_style(&range.style)?,
            })
        });
        Some(MessagePart {
            index,
            content: part.content,
            format: serde_json::from_value(Value::String(part.format)).ok()?,
            plain: part.plain,
            styles: styles.collect::<Option<_>>()?,
            file: part.file.map(part_file),
        })
    };
    (0..).zip(planned).map(part).collect()
}

/// Splits `planned` into the pieces that one receipt each has.
#[must_use]
pub fn split_pieces(planned: &[PlannedPart]) -> Vec<Vec<PlannedPart>> {
    let mut pieces: Vec<Vec<PlannedPart>> = Vec::new();
    let mut room = 0;
    for part in planned {
        let size = part.content.len() + part.plain.as_ref().map_or(0, String::len);
        match pieces.last_mut() {
            Some(piece) if size <= room => piece.push(part.clone()),
            Some(_) | None => {
                pieces.push(vec![part.clone()]);
                room = PIECE_BYTES;
            }
        }
        room = room.saturating_sub(size);
    }
    pieces
}

/// Returns the SHA-256 of `planned`, in hex.
#[must_use]
pub fn plan_hash(planned: &[PlannedPart]) -> String {
    let text = serde_json::to_vec(planned).unwrap_or_default();
    hex::encode(Sha256::digest(text))
}

/// Returns whether the text of `reply` has words that decide something for every reader: the code or the link of a
/// card, or the code of a pairing. Receipts are kept for long, and may have none of it.
#[must_use]
pub fn has_secret(reply: &Reply) -> bool {
    let interactive = reply.interactive.as_ref();
    ApprovalCard::from_interactive(interactive).is_some() || PairingNotice::from_interactive(interactive).is_some()
}

/// Returns the hash by which the plan `parts` of `reply` is known again. That of a text with a secret is the hash of the
/// parts' sizes: a short code could be found out from the hash of its text.
#[must_use]
pub fn reply_plan_hash(reply: &Reply, parts: &[MessagePart]) -> String {
    if !has_secret(reply) {
        return plan_hash(&planned_parts(parts));
    }
    let sizes = parts.iter().map(|part| {
        let plain = part.plain.as_ref().map_or(0, String::len);
        format!("{} {} {plain}\n", part.format.name(), part.content.len())
    });
    hex::encode(Sha256::digest(sizes.collect::<String>()))
}

/// Reads the parts of the plan `reference` of `job`. Returns `None` if its pieces are not stored (any more), or are
/// others than the reference means.
///
/// # Errors
/// Returns [`ReadStreamError`] if the stream cannot be read.
pub async fn read_plan(
    bus: &Bus,
    job: &DeliveryJob,
    reference: &PlanReference,
) -> Result<Option<Vec<MessagePart>>, ReadStreamError> {
    let subject = job.destination.receipt_subject();
    let mut planned = Vec::new();
    for sequence in &reference.pieces {
        // A stream that was put back may have another message there: the hash tells.
        let stored = bus.at_sequence(streams::RECEIPTS, *sequence).await?;
        let stored = stored.filter(|stored| stored.subject == subject);
        let receipt = stored.and_then(|stored| stored.decode::<Receipt>().ok());
        match receipt.filter(|receipt| receipt.delivery == job.reply.id) {
            Some(Receipt {
                step: ReceiptStep::Planned { first: _, parts },
                ..
            }) => planned.extend(parts),
            Some(_) | None => return Ok(None),
        }
    }

    let is_meant = plan_hash(&planned) == reference.sha256;
    Ok(Some(planned).filter(|_| is_meant).and_then(message_parts))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use shared::model::approval::CARD;

    use super::*;
    use crate::examples::reply;
    use crate::markdown::signal::MESSAGE;
    use crate::plan::{PartLayout, TextFormat, plan_parts};

    const FORMATS: [TextFormat; 8] = [
        TextFormat::Markdown,
        TextFormat::Plain,
        TextFormat::Slack,
        TextFormat::Discord,
        TextFormat::TelegramHtml,
        TextFormat::Whatsapp,
        TextFormat::Signal,
        TextFormat::EmailHtml,
    ];

    #[test]
    fn every_form_reads_back_as_it_was_planned() {
        for format in FORMATS {
            let layout = PartLayout {
                format,
                limit: Some(MESSAGE),
                max_lines: None,
            };
            let text = "**bold** _slanted_ ~~gone~~ `code` and more words\n\n".repeat(200);
            let parts = plan_parts(&reply(&text), layout);
            // Mail is not cut.
            assert!(parts.len() > 1 || format == TextFormat::EmailHtml, "{format:?}");
            assert_eq!(message_parts(planned_parts(&parts)), Some(parts), "{format:?}");
        }
    }

    #[test]
    fn a_file_reads_back_as_it_was_planned() {
        let part = MessagePart {
            file: Some(PartFile {
                hash: "a".repeat(64),
                size: 7,
                name: "chart.png".to_owned(),
                mime_type: "image/png".to_owned(),
                media_type: "image".to_owned(),
            }),
            ..MessagePart::default()
        };
        assert_eq!(
            message_parts(planned_parts(std::slice::from_ref(&part))),
            Some(vec![part])
        );
    }

    #[test]
    fn an_unknown_form_or_style_is_no_plan() {
        let part = |format: &str, style: &str| PlannedPart {
            content: "x".to_owned(),
            format: format.to_owned(),
            plain: None,
            styles: vec![PlannedStyle {
                start: 0,
                length: 1,
                style: style.to_owned(),
            }],
            file: None,
        };
        assert!(message_parts(vec![part("signal", "BOLD")]).is_some());
        assert_eq!(message_parts(vec![part("hologram", "BOLD")]), None);
        assert_eq!(message_parts(vec![part("signal", "BLINKING")]), None);
    }

    #[test]
    fn the_hash_of_a_plan_with_a_code_says_nothing_of_the_code() {
        let card = |code: &str| {
            let mut card = reply(&format!("**Reply** approve {code}, {}", "and more words ".repeat(30)));
            card.interactive = Some(json!({
                "kind": CARD, "approval": "a1", "code": code, "arguments_hash": "ab",
            }));
            card
        };
        let layout = |format| PartLayout {
            format,
            limit: Some(MESSAGE),
            max_lines: Some(3),
        };
        let hash = |reply: &Reply, format| reply_plan_hash(reply, &plan_parts(reply, layout(format)));
        let of_card = hash(&card("K7Q2-M9PX"), TextFormat::Slack);
        assert_eq!(of_card, hash(&card("AAAA-BBBB"), TextFormat::Slack));
        assert_ne!(of_card, hash(&card("K7Q2-M9PX"), TextFormat::Plain));

        let words = |words: &str| hash(&reply(words), TextFormat::Slack);
        assert_ne!(
            words("K7Q2-M9PX"),
            words("AAAA-BBBB"),
            "other texts are known by their words"
        );
    }

    proptest! {
        #[test]
        fn pieces_are_small_unless_a_part_is_large_and_joined_they_are_the_plan(
            sizes in proptest::collection::vec(0_usize..100_000, 0..40)
        ) {
            let part = |size| PlannedPart {
                content: "x".repeat(size),
                format: "plain".to_owned(),
                plain: None,
                styles: Vec::new(),
                file: None,
            };
            let planned: Vec<_> = sizes.into_iter().map(part).collect();
            let pieces = split_pieces(&planned);
            for piece in &pieces {
                let size: usize = piece.iter().map(|part| part.content.len()).sum();
                prop_assert!(piece.len() == 1 || size <= PIECE_BYTES);
            }
            prop_assert_eq!(pieces.concat(), planned);
        }
    }
}
