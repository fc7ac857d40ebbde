//! Jobs: a reply to deliver, with its destination and its place in the destination's order.

use bytes::Bytes;
use shared::bus::OutgoingMessage;
use shared::model::approval::ApprovalCard;
pub use shared::model::position::StreamPlace;
use shared::model::receipt::{Receipt, ReceiptStep};
use shared::model::reply::{Reply, ReplyAction};
use shared::model::time::UnixMillis;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::envelope::{DecodeError, decode};
use shared::wire::headers::{DISPATCH, Headers, MSG_ID, REDRIVE, REPEATED, TraceCarrier};
use shared::wire::held::{HeldKind, HeldMessage, HeldUntil};
use shared::wire::topology::streams;

use crate::destination::Destination;

/// Name of the service in dead letters.
pub const SERVICE: &str = "delivery-svc";

/// Header of receipts and parked replies: the [`StreamPlace`] of the copy of the delivery to which they belong.
pub const DELIVERY_COPY: &str = "Nexus-Delivery-Copy";

/// A delivery to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct DeliveryJob {
    /// Destination of the reply.
    pub destination: Destination,
    /// Place in `DELIVERIES`, which orders the deliveries of a destination.
    pub place: StreamPlace,
    /// Reply that has to be delivered.
    pub reply: Reply,
    headers: Headers,
    payload: Bytes,
}

impl DeliveryJob {
    /// Decodes the delivery in a message of `DELIVERIES`, or in a parked copy of one.
    ///
    /// # Errors
    /// Returns [`DecodeError`] if the payload is not a reply.
    pub fn read(
        destination: Destination,
        place: StreamPlace,
        headers: &Headers,
        payload: &Bytes,
    ) -> Result<Self, DecodeError> {
        let reply = decode(headers, payload)?;
        Ok(Self {
            destination,
            place,
            reply,
            headers: headers.clone(),
            payload: payload.clone(),
        })
    }

    /// Returns the time of the turn's first dispatch. No receipt of the delivery is older.
    #[must_use]
    pub fn made_at(&self) -> UnixMillis {
        UnixMillis(i64::try_from(self.reply.id.timestamp_ms()).unwrap_or(i64::MAX))
    }

    /// Returns whether its publisher may have published it before, according to its headers.
    #[must_use]
    pub fn is_repeated(&self) -> bool {
        self.headers.get(REPEATED).is_some()
    }

    /// Returns whether an operator has published it again, according to its headers.
    #[must_use]
    pub fn is_redriven(&self) -> bool {
        self.headers.get(MSG_ID).is_some_and(|id| id.starts_with(REDRIVE))
    }

    /// Returns the dispatch to which it replies, if the broker recorded it.
    #[must_use]
    pub fn dispatch_id(&self) -> Option<&str> {
        self.headers.get(DISPATCH)
    }

    /// Returns the trace to which it belongs.
    #[must_use]
    pub fn carrier(&self) -> TraceCarrier {
        TraceCarrier::read(&self.headers)
    }

    /// Returns its copy for the destination's parked subject: the same bytes with an id of its own.
    #[must_use]
    pub fn parked_copy(&self) -> OutgoingMessage {
        let mut headers = self.headers.clone();
        headers.insert(MSG_ID, format!("parked:{}:{}", self.reply.id, self.place));
        headers.insert(DELIVERY_COPY, self.place.to_string());
        OutgoingMessage::raw(self.destination.parked_subject(), headers, self.payload.clone())
    }

    /// Returns a receipt of the delivery.
    #[must_use]
    pub fn new_receipt(&self, at: UnixMillis, step: ReceiptStep) -> Receipt {
        Receipt {
            delivery: self.reply.id,
            session: self.reply.session.clone(),
            target: self.reply.delivery_context.clone(),
            causation: self.reply.causation.clone(),
            at,
            card: ApprovalCard::from_interactive(self.reply.interactive.as_ref()).is_some(),
            changes: changed_target(&self.reply).map(str::to_owned),
            step,
        }
    }

    /// Returns the held message for a delivery with an unknown outcome.
    #[must_use]
    pub fn held_message(&self, at: UnixMillis) -> HeldMessage {
        HeldMessage {
            kind: HeldKind::Delivery,
            id: self.reply.id,
            stream: streams::DELIVERIES.to_owned(),
            sequence: self.place.sequence,
            subject: self.destination.published_subject(),
            headers: self
                .headers
                .iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            payload: HeldMessage::encode_payload(&self.payload),
            why: format!(
                "the receipts were restored to a state before the reply to {}, which may have been sent",
                self.destination.as_str()
            ),
            at,
            wanted: HeldUntil::Decided,
        }
    }

    /// Returns its dead letter with the whole payload, which can be published again as the same delivery.
    #[must_use]
    pub fn dead_letter(&self, detail: String, attempts: u32, at: UnixMillis) -> DeadLetter {
        DeadLetter {
            service: SERVICE.to_owned(),
            subject: self.destination.delivery_subject(),
            redrive_subject: self.destination.published_subject(),
            stream: streams::DELIVERIES.to_owned(),
            sequence: self.place.sequence,
            headers: self
                .headers
                .iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            payload: DeadLetter::encode_payload(&self.payload),
            reason: "gave_up".to_owned(),
            detail,
            attempts: u64::from(attempts),
            at,
        }
    }
}

/// Returns the message whose words `reply` changes, as it names it.
#[must_use]
pub fn changed_target(reply: &Reply) -> Option<&str> {
    match reply.action.as_ref()? {
        ReplyAction::Edit { target } | ReplyAction::Delete { target } => Some(target),
        ReplyAction::React { .. } => None,
    }
}

/// Returns the copy of the delivery to which a receipt or a parked reply belongs, from its headers.
#[must_use]
pub fn delivery_copy(headers: &Headers) -> Option<StreamPlace> {
    StreamPlace::parse(headers.get(DELIVERY_COPY)?)
}

#[cfg(test)]
mod tests {
    use shared::wire::envelope::{PayloadFormat, encode};

    use super::*;
    use crate::examples::reply;

    const PLACE: StreamPlace = StreamPlace {
        sequence: 41,
        stored_at_ns: 7,
    };

    fn job() -> DeliveryJob {
        let (payload, headers) = encode(&reply("hello"), PayloadFormat::Json);
        let destination = Destination::of_delivery("nexus.dl.3.nats.demo.ann").expect("a destination");
        DeliveryJob::read(destination, PLACE, &headers, &payload).expect("a reply")
    }

    #[test]
    fn a_parked_copy_reads_back_as_the_same_delivery() {
        let job = job();
        let parked = job.parked_copy();
        assert_eq!(parked.subject, "nexus.parked.3.nats.demo.ann");
        assert_eq!(delivery_copy(&parked.headers), Some(PLACE));

        let destination = Destination::of_parked(&parked.subject).expect("a destination");
        let again = DeliveryJob::read(destination, PLACE, &parked.headers, &parked.payload).expect("a reply");
        assert_eq!(
            (again.reply, again.destination, again.payload),
            (job.reply, job.destination, job.payload)
        );
    }

    #[test]
    fn a_dead_letter_carries_the_whole_payload_and_where_it_came_in() {
        let job = job();
        let letter = job.dead_letter("status 400".to_owned(), 1, UnixMillis(9));
        assert_eq!(letter.redrive_subject, "nexus.delivery.nats.demo.ann");
        assert_eq!(letter.payload_bytes().expect("base64"), job.payload);
        assert_eq!((letter.stream.as_str(), letter.sequence), ("DELIVERIES", 41));
    }

    #[test]
    fn rubbish_is_an_error() {
        let destination = Destination::of_delivery("nexus.dl.3.nats.demo.ann").expect("a destination");
        let error = DeliveryJob::read(destination, PLACE, &Headers::new(), &Bytes::from_static(b"\xff\x00"))
            .expect_err("rubbish");
        assert_eq!(error.reason(), "malformed");
    }
}
