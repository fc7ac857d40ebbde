//! Records of the outcomes of hooks, for operators: in `AUDIT` (`nexus.audit.turn`), and for commands also on the
//! session's live stream.
//!
//! A record's id is made of turn, ownership, call, hook, round and visit, so that a record repeated soon is stored
//! once.

use serde_json::{Map, Value, json};
use shared::bus::{Bus, OutgoingMessage};
use shared::clock::SharedClock;
use shared::wire::envelope::PayloadFormat;
use shared::wire::headers::{CONTENT_TYPE, Headers};
use shared::wire::subject;

use super::declared::DeclaredHook;
use super::hooked_turn::HookedTurn;
use super::outcome::HookContext;
use super::runs::TurnHookRun;
use crate::agent::message_text::shorten_text;
use crate::turn::arguments::args_hash;

/// Topic of the records.
pub const TOPIC: &str = "turn";
/// Maximum size of the arguments or result in a record of a call, bytes of JSON.
const MAX_TOLD_BYTES: usize = 64 * 1_024;

/// Writer of hook records; cheap to clone.
#[derive(Debug, Clone)]
pub struct HookRecorder {
    bus: Bus,
    clock: SharedClock,
}

impl HookRecorder {
    /// Creates a recorder on `bus`.
    #[must_use]
    pub const fn new(bus: Bus, clock: SharedClock) -> Self {
        Self { bus, clock }
    }

    /// Records a run that was not silent. If the record cannot be written, the ledger has the run all the same.
    pub async fn record_run(&self, ran: &TurnHookRun, moment: &HookedTurn, context: &HookContext, round: usize) {
        let mut record = self.record("hook", moment, context);
        record.insert("point".to_owned(), json!(ran.point));
        record.insert("hook".to_owned(), json!(ran.hook));
        record.extend(ran.audit_fields());
        let what = format!("{}:{}:{round}:{}", ran.point, ran.hook, moment.visit);
        let id = id(moment, context, &what);
        if let Err(error) = self.publish(&record, id).await {
            tracing::warn!(session = %moment.session, turn = %moment.turn, hook_id = ran.hook, error, "failed to audit a hook");
        }
    }

    /// Records a tool call: before it runs, or with its result.
    ///
    /// # Errors
    /// Returns the reason if the record cannot be written.
    pub async fn tool_call(
        &self,
        hook: &DeclaredHook,
        moment: &HookedTurn,
        context: &HookContext,
    ) -> Result<(), String> {
        let mut record = self.record("tool_call", moment, context);
        let hash = args_hash(&context.tool_args);
        let phase = if context.tool_result.is_some() {
            "after"
        } else {
            "before"
        };

        record.insert("phase".to_owned(), json!(phase));
        record.insert("arguments".to_owned(), shorten_value(&context.tool_args));
        record.insert("arguments_hash".to_owned(), json!(hash));

        if let Some(result) = &context.tool_result {
            record.insert("result".to_owned(), shorten_value(result));
            let error = context.metadata.get("is_error").cloned();
            record.insert("is_error".to_owned(), error.unwrap_or(json!(false)));
        }

        // The same id for a repetition, so that a call is recorded once. The hash tells calls with edited arguments
        // apart.
        let id = id(moment, context, &format!("{phase}:{}:{hash}", hook.key()));
        self.publish(&record, id).await
    }

    /// Records a command, on the live stream as well.
    pub async fn record_command(
        &self,
        kind: &str,
        moment: &HookedTurn,
        context: &HookContext,
        told: Map<String, Value>,
        id: &str,
    ) {
        let mut record = self.record(kind, moment, context);
        record.extend(told);
        let live = bytes::Bytes::from(Value::Object(record.clone()).to_string());
        self.bus
            .core_publish(&subject::stream(&moment.session), &json_headers(), live)
            .await;

        let id = self::id(moment, context, &format!("{kind}:{id}:{}", moment.visit));
        if let Err(error) = self.publish(&record, id).await {
            tracing::warn!(session = %moment.session, turn = %moment.turn, kind, error, "failed to audit a hook command");
        }
    }

    fn record(&self, kind: &str, moment: &HookedTurn, context: &HookContext) -> Map<String, Value> {
        let mut record = Map::new();
        record.insert("kind".to_owned(), json!(kind));
        record.insert("at".to_owned(), json!(self.clock.now()));
        record.insert("session".to_owned(), json!(moment.session));
        record.insert("turn".to_owned(), json!(moment.turn));
        record.insert("user".to_owned(), json!(context.user_id));

        if !context.tool_name.is_empty() {
            record.insert("tool".to_owned(), json!(context.tool_name));
        }

        for key in ["call", "step", "event", "channel"] {
            record.extend(context.metadata.get(key).map(|value| (key.to_owned(), value.clone())));
        }

        record
    }

    async fn publish(&self, record: &Map<String, Value>, id: String) -> Result<(), String> {
        let payload = serde_json::to_vec(record).map_err(|error| error.to_string())?;
        let out = OutgoingMessage::raw(subject::audit(TOPIC), json_headers(), payload.into()).msg_id(id);
        self.bus
            .publish(out)
            .await
            .map(|_| ())
            .map_err(|error| error.to_string())
    }
}

fn json_headers() -> Headers {
    [(CONTENT_TYPE, PayloadFormat::Json.content_type())]
        .into_iter()
        .collect()
}

fn id(moment: &HookedTurn, context: &HookContext, what: &str) -> String {
    let call = context.metadata_text("call");
    let step = moment.progress.turn;
    format!("hook:{}:{}:{step}:{call}:{what}", moment.turn, moment.epoch)
}

/// Returns `value`, or the beginning of its JSON if it is long.
fn shorten_value(value: &Value) -> Value {
    let text = value.to_string();
    if text.len() <= MAX_TOLD_BYTES {
        return value.clone();
    }
    json!(format!("{}… [cut]", shorten_text(&text, MAX_TOLD_BYTES)))
}
