//! `nexus.svc.pairing.{list,grant,withdraw}`: the operator's requests, answered by any replica with accounts.
//!
//! A user that may publish to these subjects is an operator. Agents, HTTP tokens and hook processes may not.

use shared::bus::ServiceSpec;
use shared::error_chain::describe_error;
use shared::model::pairing_api::{GrantPairing, ListPairings, PairingList, WithdrawPairing};

use super::{PairingError, PairingStore};

/// Returns the service over `store`.
#[must_use]
pub fn service_spec(store: &PairingStore) -> ServiceSpec {
    let (list, grant, withdraw) = (store.clone(), store.clone(), store.clone());

    ServiceSpec::new("pairing", "strangers who may write to an account")
        .endpoint("list", move |ListPairings {}| {
            let store = list.clone();
            async move {
                let listed = store.list().await.map(|pairings| PairingList { pairings });
                listed.map_err(|error| refusal(&error))
            }
        })
        .endpoint("grant", move |request: GrantPairing| {
            let store = grant.clone();
            async move { store.grant(&request).await.map_err(|error| refusal(&error)) }
        })
        .endpoint("withdraw", move |request: WithdrawPairing| {
            let store = withdraw.clone();
            async move { store.withdraw(&request).await.map_err(|error| refusal(&error)) }
        })
}

/// Returns the status and the text of `error`.
fn refusal(error: &PairingError) -> (usize, String) {
    let status = match error {
        PairingError::Code(_) | PairingError::UnknownSender { .. } => 404,
        PairingError::TooMany => 429,
        PairingError::Contended(_) => 409,
        PairingError::Read(_) | PairingError::Write(_) | PairingError::Publish(_) => 503,
    };
    if status == 503 {
        tracing::warn!(error = describe_error(error), "request about a pairing failed");
    }
    (status, error.to_string())
}
