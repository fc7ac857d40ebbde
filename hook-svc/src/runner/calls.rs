//! The host calls of one event under way: each is made once, even if its worker dies several times.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::OnceCell;

use super::host::{CallError, CallResult, CallUsage, HostCall, ScriptHost};

/// Most calls of one hook for one event; a further call fails with `too_many_calls`.
const MAX_CALLS: u32 = 100;

/// Most different calls of one hook for one event, counted over all numbers: a second run after a death may ask
/// differently.
const MAX_ASKED: u32 = 2 * MAX_CALLS;

/// Maximum size of the answers that are kept for one event, in bytes; a further answer is replaced by the error
/// `too_much_kept`.
const MAX_KEPT_BYTES: usize = 64 * 1024 * 1024;

/// Identifies a call: the hook's id and the number among its calls.
type Key = (String, u32);

#[derive(Debug)]
struct Made {
    name: String,
    /// SHA-256 of the arguments, which may be large.
    args: [u8; 32],
    answer: Arc<OnceCell<CallResult>>,
}

/// Number of calls of one hook, and their usage.
#[derive(Debug, Default)]
struct Bill {
    asked: u32,
    spent: CallUsage,
}

#[derive(Debug, Default)]
struct All {
    made: HashMap<Key, Made>,
    bills: HashMap<String, Bill>,
    /// Size of the answers, in bytes.
    kept: usize,
}

impl All {
    /// Adds the size of `answered`, or replaces the answer if there is no room for it.
    fn keep_answer(&mut self, name: &str, answered: &mut CallResult) {
        let size = match &answered.outcome {
            Ok(value) => value_bytes(value),
            Err(error) => error.message.len(),
        };
        if self.kept.saturating_add(size) > MAX_KEPT_BYTES {
            let message = format!("{name}(): the answers for an event may have {MAX_KEPT_BYTES} bytes together");
            answered.outcome = Err(CallError::new("too_much_kept", message));
            return;
        }
        self.kept += size;
    }
}

/// Returns the approximate size of `value` in memory, in bytes.
fn value_bytes(value: &Value) -> usize {
    let below = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(value_bytes).sum(),
        Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + value_bytes(value)).sum(),
    };
    size_of::<Value>() + below
}

/// Answers of the host calls of one event; see the module.
#[derive(Debug, Default)]
pub(super) struct PendingCalls(Mutex<All>);

impl PendingCalls {
    fn lock_calls(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the answer to `call`, whose arguments came as the text `args`: the answer given before the event lost
    /// its worker, or a new one from `host`. A script that asks something else under the same number gets its own
    /// answer.
    pub(super) async fn answer_call(&self, host: &dyn ScriptHost, mut call: HostCall, args: String) -> CallResult {
        let too_many = || {
            let message = format!("a hook may make {MAX_CALLS} calls on one event");
            CallError::new("too_many_calls", message).into()
        };
        if call.number >= MAX_CALLS {
            return too_many();
        }

        call.args = match serde_json::from_str::<Value>(&args) {
            Ok(value) => value,
            Err(error) => return CallError::new("bad_arguments", error.to_string()).into(),
        };
        // Identical calls share a cell: the host is asked once, and a repetition gets the same answer.
        let Some(cell) = self.answer_cell(&call, Sha256::digest(&args).into()) else {
            return too_many();
        };

        drop(args);
        let (hook_id, name) = (call.hook.id.clone(), call.name.clone());
        let answered = cell.get_or_init(|| async {
            let mut answered = host.call(call).await;
            let mut all = self.lock_calls();
            all.bills.entry(hook_id).or_default().spent.add(answered.spent);
            all.keep_answer(&name, &mut answered);
            answered
        });

        answered.await.clone()
    }

    /// Returns the cell that holds the answer to `call`; `None` if its hook has made too many calls.
    fn answer_cell(&self, call: &HostCall, args: [u8; 32]) -> Option<Arc<OnceCell<CallResult>>> {
        let mut all = self.lock_calls();
        let key = (call.hook.id.clone(), call.number);
        if let Some(made) = all.made.get(&key)
            && made.name == call.name
            && made.args == args
        {
            return Some(Arc::clone(&made.answer));
        }

        // A repetition with another name or other arguments is a new question, which costs like any other.
        let bill = all.bills.entry(call.hook.id.clone()).or_default();
        if bill.asked >= MAX_ASKED {
            return None;
        }

        bill.asked += 1;
        let answer = Arc::default();
        let made = Made {
            name: call.name.clone(),
            args,
            answer: Arc::clone(&answer),
        };

        all.made.insert(key, made);
        Some(answer)
    }

    /// Returns the usage of the answered calls of `hook_id`.
    pub(super) fn spent_by(&self, hook_id: &str) -> CallUsage {
        self.lock_calls()
            .bills
            .get(hook_id)
            .map(|bill| bill.spent)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use async_trait::async_trait;
    use shared::model::event::EventId;
    use shared::model::time::UnixMillis;

    use super::*;
    use crate::runner::HookSource;

    #[derive(Debug, Default)]
    struct Counting(AtomicU32);

    #[async_trait]
    impl ScriptHost for Counting {
        async fn call(&self, call: HostCall) -> CallResult {
            let count = self.0.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            CallResult {
                outcome: Ok(serde_json::json!([call.name, count])),
                spent: CallUsage {
                    search_calls: 1,
                    ..CallUsage::default()
                },
            }
        }
    }

    fn call(number: u32, name: &str) -> HostCall {
        let hook = HookSource {
            id: "h".to_owned(),
            name: "h".to_owned(),
            source: String::new(),
            content_hash: String::new(),
            timeout_ms: 1,
            created_at: UnixMillis(0),
            created_by: "operator".to_owned(),
            sees: crate::runner::HookScope::Everything,
            net: Vec::new(),
        };

        HostCall {
            event_id: EventId::parse("web:1").expect("valid"),
            event_json: bytes::Bytes::new(),
            sequence: 0,
            now: UnixMillis(0),
            hook: Arc::new(hook),
            number,
            name: name.to_owned(),
            args: Value::Null,
        }
    }

    #[tokio::test]
    async fn one_call_is_made_once_and_another_anew() {
        let (calls, host) = (PendingCalls::default(), Counting::default());
        let ask = |number, name: &'static str, args: &'static str| {
            calls.answer_call(&host, call(number, name), args.to_owned())
        };
        let (first, again) = tokio::join!(ask(0, "search", "{}"), ask(0, "search", "{}"));

        assert_eq!(first, again);
        assert_eq!(
            ask(1, "search", "{}").await.outcome,
            Ok(serde_json::json!(["search", 1]))
        );
        assert_eq!(
            ask(0, "search", "{\"a\":1}").await.outcome,
            Ok(serde_json::json!(["search", 2]))
        );
        assert_eq!(
            ask(2, "search", "{").await.outcome.expect_err("refused").code,
            "bad_arguments"
        );

        assert_eq!(
            ask(100, "search", "{}").await.outcome.expect_err("refused").code,
            "too_many_calls"
        );
        assert_eq!(calls.spent_by("h").search_calls, 3, "what was replaced was used too");

        for number in 3..MAX_ASKED {
            ask(0, "search", Box::leak(format!("{{\"a\":{number}}}").into_boxed_str())).await;
        }

        let forged = ask(0, "search", "{\"a\":-1}").await.outcome;
        assert_eq!(forged.expect_err("refused").code, "too_many_calls");
        assert_eq!(calls.spent_by("other"), CallUsage::default());
    }

    /// Answers with a text of eleven million bytes, as a file of eight.
    #[derive(Debug)]
    struct Large;

    #[async_trait]
    impl ScriptHost for Large {
        async fn call(&self, _call: HostCall) -> CallResult {
            CallResult {
                outcome: Ok("x".repeat(11_000_000).into()),
                spent: CallUsage::default(),
            }
        }
    }

    #[tokio::test]
    async fn the_answers_for_an_event_have_a_bound_together() {
        let calls = PendingCalls::default();
        let ask = |number| calls.answer_call(&Large, call(number, "readFile"), "{}".to_owned());
        for number in 0..6 {
            assert!(ask(number).await.outcome.is_ok(), "{number}");
        }
        let refused = ask(6).await.outcome.expect_err("refused");
        assert_eq!(refused.code, "too_much_kept");
        assert!(ask(5).await.outcome.is_ok(), "what was answered stays");
        assert!(calls.lock_calls().kept <= MAX_KEPT_BYTES);
    }
}
