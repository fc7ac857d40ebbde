//! Notifies the scheduler that a session was reset: intents may wait for the end of a chat.
//!
//! The notice may be lost: the scheduler then finds the reset in the ledger when it looks by itself.

use std::time::Duration;

use shared::bus::Bus;
use shared::model::intent::service::{IntentList, TellReset};
use shared::model::ledger::{LedgerEntry, LedgerRecord};
use shared::model::session::SessionRef;
use shared::wire::headers::Headers;

/// Subject of the notice.
const SUBJECT: &str = "nexus.svc.intent.session_reset";
/// Maximum wait for the scheduler's response.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Sends the notice if the appended `record` resets `session`, without waiting for the response.
pub fn notify_reset(bus: &Bus, session: &SessionRef, record: &LedgerRecord) {
    let mut entries = record.entries.iter();
    if !entries.any(|entry| matches!(entry, LedgerEntry::SessionReset { .. })) {
        return;
    }

    let question = TellReset {
        agent: session.persona.clone(),
        session: session.session.clone(),
        at: record.at,
    };
    let bus = bus.clone();
    tokio::spawn(async move {
        let asked = bus.request::<_, IntentList>(SUBJECT, Headers::new(), &question, ANSWER_WITHIN);
        if let Err(error) = asked.await {
            tracing::debug!(session = question.session, %error, "failed to announce a session reset");
        }
    });
}
