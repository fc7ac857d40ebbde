//! What the programs of one account may take of a server together. *Pure.*

use super::BusAccount;
use crate::wire::envelope::MAX_PAYLOAD_BYTES;
use crate::wire::topology::MAX_STORED_BYTES;

/// Limits of an account whose users are no part of the installation. What a server holds for them at once, a message that
/// is half sent on each connection, must fit beside the services' work into the 1 GiB that `k8s/base` gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccountLimits {
    /// Maximum number of connections of all its users, in the whole cluster.
    pub connections: i64,
    /// Maximum number of subscriptions of one connection.
    pub subscriptions: i64,
    /// Maximum size of a message that its users publish, in bytes, headers included.
    pub payload_bytes: i64,
}

impl BusAccount {
    /// Returns the limits of the account; `None` if there are none: what the services need grows with the installation.
    #[must_use]
    pub const fn limits(self) -> Option<AccountLimits> {
        match self {
            // Some for each program: one that reconnects may be counted twice for a while.
            Self::Agents => Some(AccountLimits {
                connections: 128,
                // One for each persona and one for the answers to its questions.
                subscriptions: 64,
                payload_bytes: MAX_PAYLOAD_BYTES as i64,
            }),
            Self::Edge => Some(AccountLimits {
                connections: 64,
                // It hears nothing but the server's acknowledgements.
                subscriptions: 16,
                payload_bytes: MAX_STORED_BYTES as i64,
            }),
            Self::Nexus | Self::Sys => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of a server in `k8s/base`.
    const SERVER_BYTES: i64 = 1 << 30;

    #[test]
    fn no_account_but_that_of_the_services_can_fill_a_server() {
        for account in BusAccount::ALL {
            match account.limits() {
                Some(limits) => assert!(
                    limits.connections * limits.payload_bytes <= SERVER_BYTES / 2,
                    "{account:?}"
                ),
                None => assert!(account.has_streams() || account == BusAccount::Sys, "{account:?}"),
            }
        }
    }

    #[test]
    fn the_page_has_the_limits_of_every_account() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/rights.md");
        let text = std::fs::read_to_string(page).expect("docs/rights.md");
        for account in BusAccount::ALL {
            let Some(limits) = account.limits() else { continue };
            let row = format!(
                "| `{}` | {} | {} | {} MiB |\n",
                account.name(),
                limits.connections,
                limits.subscriptions,
                limits.payload_bytes >> 20
            );
            assert!(text.contains(&row), "docs/rights.md should have this row:\n{row}");
        }
    }
}
