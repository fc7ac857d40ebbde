//! One pairing, with every field set.

use shared::model::pairing::{Pairing, PairingDecision, PairingOffer};

use super::samples::{AT, id, some};

pub(crate) fn pairing() -> Pairing {
    Pairing {
        channel: "telegram".to_owned(),
        account: "main".to_owned(),
        sender: "4711".to_owned(),
        name: some("Ann"),
        offer: Some(PairingOffer {
            code: "K7Q2M9PX".to_owned(),
            cause: id(),
            offered_at: AT,
            expires_at: AT.plus(3_600_000),
        }),
        decision: Some(PairingDecision {
            granted: true,
            at: AT.plus(60_000),
        }),
    }
}
