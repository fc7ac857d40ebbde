//! `nexus hook test`: runs one hook file on one event.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use shared::clock::{Clock as _, IdSource as _, SystemClock, SystemIds};
use shared::model::event::{Event, EventId};
use shared::model::hook_api::{HookRun, TestHook};
use shared::model::time::UnixMillis;

use super::ask;
use crate::args::{Common, TestOptions};
use crate::output::{bus, json, json_text, plain_lines};
use crate::say;

pub(super) async fn run(common: &Common, options: &TestOptions) -> Result<()> {
    let source = std::fs::read_to_string(&options.file).with_context(|| format!("read {}", options.file.display()))?;
    let event = event(options)?;
    let question = TestHook {
        source,
        event,
        now: options.now.map(UnixMillis),
    };

    let run: HookRun = ask(&bus(common).await?, "test", &question).await?;
    if common.json {
        json(&run)?;
    } else {
        print(&run)?;
    }

    if run.error.is_some() {
        bail!("the hook failed");
    }

    Ok(())
}

/// Returns the whole event of `options`, or the id of a stored one.
fn event(options: &TestOptions) -> Result<Value> {
    if let Some(text) = &options.text {
        let now = SystemClock.now();
        let id = EventId::parse(format!("{}:{}", options.channel, SystemIds.ulid()))?;
        let mut event = Event::new(id, &options.channel, "me", now);
        event.content.clone_from(text);
        return serde_json::to_value(&event).context("write the event");
    }

    let given = options.event.as_deref().unwrap_or_default();
    if given == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("read the event")?;
        return serde_json::from_str(&text).context("the event is not JSON");
    }

    if Path::new(given).is_file() {
        let text = std::fs::read_to_string(given).with_context(|| format!("read {given}"))?;
        return serde_json::from_str(&text).with_context(|| format!("{given} is not JSON"));
    }

    Ok(Value::from(given))
}

fn print(run: &HookRun) -> Result<()> {
    let outcome = match (&run.error, run.fired, &run.result) {
        (Some(_), ..) => "failed",
        (None, true, _) => "fires",
        (None, false, Some(_)) => "passes and disables itself",
        (None, false, None) => "passes",
    };

    say!("outcome   {outcome}");
    say!("took      {:.3} ms", run.latency_us as f64 / 1_000.0);

    if run.llm_calls > 0 {
        say!(
            "llm       {} calls, {} tokens in, {} out, ${:.6}",
            run.llm_calls,
            run.llm_tokens_in,
            run.llm_tokens_out,
            run.llm_cost_usd
        );
    }

    if run.search_calls > 0 {
        say!("search    {} calls", run.search_calls);
    }

    if let Some(error) = &run.error {
        say!("error     {}", plain_lines(error));
    }

    if let Some(stack) = &run.stack {
        say!("{}", plain_lines(stack));
    }

    if let Some(result) = &run.result {
        say!("result    {}", json_text(result)?);
    }

    Ok(())
}
