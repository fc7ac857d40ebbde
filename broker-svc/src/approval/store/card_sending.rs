//! Sending the cards of approvals, and the changes that turn them into decisions.

use shared::bus::{OutgoingMessage, PublishError};
use shared::model::approval::{CardReason, ConfirmationTerms};
use shared::model::reply::Reply;

use super::{ApprovalStore, KeepApprovalError};
use crate::approval::card::{build_cards, build_decided_cards};

impl ApprovalStore {
    /// Sends the cards of `confirmation` for the reason `why`. A card that was sent before is delivered once.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`] if the server does not take one now.
    pub(super) async fn send(
        &self,
        confirmation: &ConfirmationTerms,
        why: CardReason,
    ) -> Result<(), KeepApprovalError> {
        for card in build_cards(confirmation, why, &self.config) {
            self.send_reply(&card).await?;
        }
        Ok(())
    }

    /// Sends the changes that turn the cards of `confirmation` into its decision. A change that was sent before is made
    /// once.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`]; repeating the decision repeats the changes.
    pub(super) async fn send_decision(&self, confirmation: &ConfirmationTerms) -> Result<(), KeepApprovalError> {
        for card in build_decided_cards(confirmation) {
            self.send_reply(&card).await?;
        }
        Ok(())
    }

    /// Publishes `reply`; a reply that was published before is delivered once.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`] if the server does not take it now.
    pub async fn send_reply(&self, reply: &Reply) -> Result<(), KeepApprovalError> {
        match self.bus.publish(OutgoingMessage::reply(reply).repeated()).await {
            Ok(_) => Ok(()),
            // A card that no server takes must not keep a human from deciding in another way.
            Err(error @ (PublishError::TooLarge { .. } | PublishError::Rejected { .. })) => {
                tracing::warn!(
                    delivery_id = %reply.id, event_id = %reply.causation.event, session = %reply.session, %error,
                    "failed to send an approval card"
                );
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}
