//! The keys that check platforms' callbacks.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;

use crate::source::webhook::signature::SignatureChecks;

/// The checks of callbacks.
#[derive(Debug, Clone)]
pub enum CallbackAuth {
    /// One set of keys, which may sign for every platform's channel.
    Any(SignatureChecks),
    /// Keys by channel, which may sign for their own channel only.
    Own(BTreeMap<String, SignatureChecks>),
}

impl CallbackAuth {
    /// Returns the checks for the channel in `body`; checks that always fail if the channel is unknown.
    pub(super) fn checks_for(&self, body: &[u8]) -> Cow<'_, SignatureChecks> {
        #[derive(Deserialize)]
        struct Speaks {
            channel: String,
        }

        match self {
            Self::Any(checks) => Cow::Borrowed(checks),
            Self::Own(channels) => {
                let speaks = serde_json::from_slice::<Speaks>(body).ok();
                let own = speaks.and_then(|speaks| channels.get(&speaks.channel));
                own.map_or_else(|| Cow::Owned(SignatureChecks::default()), Cow::Borrowed)
            }
        }
    }
}
