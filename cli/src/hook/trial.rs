//! `nexus hook test`: runs one hook file on one event.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;
use shared::clock::{Clock as _, IdSource as _, SystemClock, SystemIds};
use shared::model::event::Event;
use shared::model::hook_api::{HookRun, TestHook};
use shared::model::time::UnixMillis;

use super::ask_hooks;
use super::push::place_fault;
use crate::args::{Common, TestOptions};
use crate::connect::connect_bus;
use crate::events::parse_event_id;
use crate::exit::{Exit, ExitContext as _, failure};
use crate::output::{Cell, View, json_text};

pub(super) async fn run(common: &Common, options: &TestOptions) -> Result<()> {
    let source = std::fs::read_to_string(&options.file);
    let source = source.with_context(|| format!("failed to read {}", options.file.display()));
    let question = TestHook {
        source: source.exit(Exit::Usage)?,
        event: read_event(options).exit(Exit::Usage)?,
        now: options.now.map(UnixMillis),
    };

    let bus = connect_bus(common).await?;
    let run = ask_hooks(&bus, "test", &question).await;
    let run: HookRun = run.map_err(|error| place_fault(&options.file, error))?;
    run_view(&run)?.show(common)?;

    if run.error.is_some() {
        return Err(failure(Exit::No, "the hook failed"));
    }

    Ok(())
}

/// Returns the whole event of `options`, or the id of a stored one.
fn read_event(options: &TestOptions) -> Result<Value> {
    if let Some(text) = &options.text {
        let now = SystemClock.now();
        let id = parse_event_id(format!("{}:{}", options.channel, SystemIds.ulid()))?;
        let mut event = Event::new(id, &options.channel, "me", now);
        event.content.clone_from(text);
        return serde_json::to_value(&event).context("failed to write the event");
    }

    let given = options.event.as_deref().unwrap_or_default();
    if given == "-" {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("failed to read the event")?;
        return serde_json::from_str(&text).context("the event is not valid JSON");
    }

    if Path::new(given).is_file() {
        let text = std::fs::read_to_string(given).with_context(|| format!("failed to read {given}"))?;
        return serde_json::from_str(&text).with_context(|| format!("{given} is not valid JSON"));
    }

    Ok(Value::from(given))
}

/// Returns the outcome of the hook's run.
fn run_view(run: &HookRun) -> Result<View> {
    let outcome = match (&run.error, run.fired, &run.result) {
        (Some(_), ..) => "failed",
        (None, true, _) => "fires",
        (None, false, Some(_)) => "passes and disables itself",
        (None, false, None) => "passes",
    };
    let llm = (run.llm_calls > 0).then(|| {
        format!(
            "{} calls, {} tokens in, {} out, ${:.6}",
            run.llm_calls, run.llm_tokens_in, run.llm_tokens_out, run.llm_cost_usd
        )
    });
    let search = (run.search_calls > 0).then(|| format!("{} calls", run.search_calls));
    let result = run.result.as_ref().map(json_text).transpose()?;

    let view = View::of(run)?.ids([outcome.to_owned()]).fields([
        ("outcome", outcome.into()),
        ("took", format!("{:.3} ms", run.latency_us as f64 / 1_000.0).into()),
        ("llm", llm.into()),
        ("search", search.into()),
        ("error", run.error.as_ref().into()),
        ("stack", run.stack.as_ref().into()),
        ("result", Cell::from(result)),
    ]);
    Ok(view)
}
