//! Wire names of the types, and the bounds between their fields. *Pure.* Source: `docs/design/wire.md` §6.

use ciborium::value::Value;

use crate::breaker::Breaker;
use crate::model::approval::{ApprovalRecord, ApprovalRequest, ApprovalTimer, ConfirmationTerms, SessionDecision};
use crate::model::channel::{AccountTokens, BegunThread, ConfiguredChannels, StoppedAccount};
use crate::model::dispatch::Dispatch;
use crate::model::event::{
    Event, MAX_ATTACHMENTS, MAX_CONTENT_TYPES, MAX_EVENT_BYTES, MAX_HOPS, MAX_PARTICIPANTS, MAX_TAGS,
};
use crate::model::hook::{HookRecord, HookSpend, HookState, StoredAnswers};
use crate::model::intent::book::AgentBook;
use crate::model::intent::mark::IntentMark;
use crate::model::intent::timer::IntentTimer;
use crate::model::intent::{Intent, IntentRecord, MAX_PARAMETER_BYTES, MAX_REASON_BYTES};
use crate::model::invocation::EventInvocations;
use crate::model::ledger::LedgerRecord;
use crate::model::order::SessionOrder;
use crate::model::owner::OwnerLink;
use crate::model::pairing::{Pairing, PairingRecord};
use crate::model::rate::RateWindow;
use crate::model::receipt::Receipt;
use crate::model::reply::Reply;
use crate::model::restore::RestoreHold;
use crate::model::schedule::{ScheduleRecord, ScheduleTimer};
use crate::model::session::SessionRef;

use super::envelope::WireMessage;
use super::ledger_kinds::newer_kinds;

/// Maximum length of the name of a channel, account, peer, thread, persona or session, in bytes.
pub const MAX_NAME_BYTES: usize = 1_024;

fn name(field: &str, text: &str) -> Result<(), String> {
    if text.len() > MAX_NAME_BYTES {
        return Err(format!(
            "{field}: {} bytes, at most {MAX_NAME_BYTES} are allowed",
            text.len()
        ));
    }

    match text.chars().find(|c| c.is_control()) {
        Some(control) => Err(format!("{field}: control character U+{:04X}", u32::from(control))),
        None => Ok(()),
    }
}

fn check_required(field: &str, text: &str) -> Result<(), String> {
    if text.is_empty() {
        Err(format!("{field}: must not be empty"))
    } else {
        name(field, text)
    }
}

/// Checks a text that people wrote.
fn check_text(field: &str, text: &str) -> Result<(), String> {
    if text.len() > MAX_EVENT_BYTES {
        let size = text.len();
        return Err(format!("{field}: {size} bytes, at most {MAX_EVENT_BYTES} are allowed"));
    }

    if text.contains('\0') {
        return Err(format!("{field}: NUL byte"));
    }

    Ok(())
}

fn check_session(field: &str, at: &SessionRef) -> Result<(), String> {
    check_required(&format!("{field}.persona"), &at.persona)?;
    check_required(&format!("{field}.session"), &at.session)
}

impl WireMessage for Event {
    const SCHEMA: &'static str = "event";
    const VERSION: u16 = 2;
    const KEEPS_UNKNOWN: bool = true;

    fn check(&self) -> Result<(), String> {
        check_required("channel", &self.channel)?;
        name("account_id", self.account())?;
        name("peer.id", &self.peer.id)?;
        name("thread_id", self.thread_id.as_deref().unwrap_or_default())?;
        name("from.id", &self.from.id)?;

        // They are ids of events, which the read model searches for.
        name("target", self.target.as_deref().unwrap_or_default())?;
        if let Some(quote) = &self.quote {
            name("quote.id", &quote.id)?;
            check_text("quote.text", &quote.text)?;
        }
        for attachment in &self.attachments {
            check_text(
                "attachments.transcript",
                attachment.transcript.as_deref().unwrap_or_default(),
            )?;
        }

        // The names become parts of subjects and keys.
        for person in &self.speaks_for {
            name("speaks_for", person)?;
        }

        check_text("content", &self.content)?;

        // Each entry becomes at least one row in every read model and is passed to every hook.
        for (field, found, most) in [
            ("participants", self.participants.len(), MAX_PARTICIPANTS),
            ("attachments", self.attachments.len(), MAX_ATTACHMENTS),
            ("tags", self.tags.len(), MAX_TAGS),
            ("content_types", self.content_types.len(), MAX_CONTENT_TYPES),
        ] {
            if found > most {
                return Err(format!("{field}: {found} entries, at most {most} are allowed"));
            }
        }

        // One hop beyond the limit is accepted, so that the event is stored and its end is visible.
        if self.hops > MAX_HOPS.saturating_add(1) {
            return Err(format!("hops: {}, at most {MAX_HOPS} are followed", self.hops));
        }

        Ok(())
    }
}

impl WireMessage for Dispatch {
    const SCHEMA: &'static str = "dispatch";
    const KEEPS_UNKNOWN: bool = true;

    fn check(&self) -> Result<(), String> {
        check_session("target", &self.target)?;
        check_required("deliveryContext.channel", &self.delivery_context.channel)
    }
}

impl WireMessage for SessionOrder {
    const SCHEMA: &'static str = "session_order";

    fn check(&self) -> Result<(), String> {
        check_session("target", &self.target)
    }
}

impl WireMessage for Reply {
    const SCHEMA: &'static str = "reply";
    const KEEPS_UNKNOWN: bool = true;

    fn check(&self) -> Result<(), String> {
        check_session("session", &self.session)?;
        check_required("delivery_context.channel", &self.delivery_context.channel)
    }
}

impl WireMessage for RestoreHold {
    const SCHEMA: &'static str = "restore_hold";
}

impl WireMessage for Receipt {
    const SCHEMA: &'static str = "receipt";
    const VERSION: u16 = 2;
}

impl WireMessage for LedgerRecord {
    const SCHEMA: &'static str = "ledger";
    const VERSION: u16 = 2;

    fn check(&self) -> Result<(), String> {
        if self.entries.is_empty() {
            Err("entries: must not be empty".to_owned())
        } else {
            Ok(())
        }
    }

    fn find_newer_part(written: &Value) -> Option<String> {
        newer_kinds(written).next()
    }
}

impl WireMessage for EventInvocations {
    const SCHEMA: &'static str = "invocations";
}

impl WireMessage for HookRecord {
    const SCHEMA: &'static str = "hook";
}

impl WireMessage for ConfiguredChannels {
    const SCHEMA: &'static str = "channels";
}

impl WireMessage for StoppedAccount {
    const SCHEMA: &'static str = "stopped_account";
}

impl WireMessage for AccountTokens {
    const SCHEMA: &'static str = "account_tokens";
}

impl WireMessage for BegunThread {
    const SCHEMA: &'static str = "begun_thread";
}

impl WireMessage for HookSpend {
    const SCHEMA: &'static str = "hook_spend";
}

impl WireMessage for StoredAnswers {
    const SCHEMA: &'static str = "hook_results";
}

impl WireMessage for RateWindow {
    const SCHEMA: &'static str = "hook_limit";
}

impl WireMessage for HookState {
    const SCHEMA: &'static str = "hook_state";
}

impl WireMessage for Breaker {
    const SCHEMA: &'static str = "breaker";
}

impl WireMessage for OwnerLink {
    const SCHEMA: &'static str = "owner_link";
}

impl WireMessage for Pairing {
    const SCHEMA: &'static str = "pairing";
}

impl WireMessage for PairingRecord {
    const SCHEMA: &'static str = "pairing_record";
}

impl WireMessage for ApprovalRequest {
    const SCHEMA: &'static str = "approval";
}

impl WireMessage for ConfirmationTerms {
    const SCHEMA: &'static str = "confirmation";
}

impl WireMessage for SessionDecision {
    const SCHEMA: &'static str = "session_decision";

    fn check(&self) -> Result<(), String> {
        check_session("target", &self.target)
    }
}

impl WireMessage for ApprovalTimer {
    const SCHEMA: &'static str = "approval_timer";
}

impl WireMessage for ApprovalRecord {
    const SCHEMA: &'static str = "approval_record";
}

impl WireMessage for Intent {
    const SCHEMA: &'static str = "intent";

    fn check(&self) -> Result<(), String> {
        check_required("intent.kind", &self.intent.kind)?;
        check_required("intent.agent", &self.intent.agent)?;
        check_required("intent.session", &self.intent.session)?;
        check_session("target", &self.target())?;

        if self.intent.reason.len() > MAX_REASON_BYTES {
            return Err(format!("intent.reason: more than {MAX_REASON_BYTES} bytes"));
        }

        let parameters = serde_json::to_vec(&self.intent.parameters).map_or(0, |bytes| bytes.len());
        if parameters > MAX_PARAMETER_BYTES {
            return Err(format!("intent.parameters: more than {MAX_PARAMETER_BYTES} bytes"));
        }

        Ok(())
    }
}

impl WireMessage for IntentRecord {
    const SCHEMA: &'static str = "intent_record";
}

impl WireMessage for AgentBook {
    const SCHEMA: &'static str = "intent_book";
}

impl WireMessage for IntentMark {
    const SCHEMA: &'static str = "intent_mark";
}

impl WireMessage for IntentTimer {
    const SCHEMA: &'static str = "intent_timer";
}

impl WireMessage for ScheduleRecord {
    const SCHEMA: &'static str = "schedule";

    fn check(&self) -> Result<(), String> {
        check_required("spec.id", &self.spec.id)
    }
}

impl WireMessage for ScheduleTimer {
    const SCHEMA: &'static str = "schedule_timer";
}
