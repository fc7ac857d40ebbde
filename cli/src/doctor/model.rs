//! Checks the model's provider: whether it can be reached, accepts the key and knows the model. Only the list of models
//! is requested, which costs nothing, and neither the key nor the provider's own text is printed.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use reqwest::StatusCode;
use serde_json::Value;
use shared::llm::{LlmConfig, ModelProvider};
use shared::platform::http_answer::{ReadBodyError, read_bounded};
use shared::process::SecretValue;

use super::{Finding, Surroundings};

/// Longest time that the provider may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// Longest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 4 << 20;
/// Version of Anthropic's API.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// Checks the configured model with the provider of section `[llm]`.
pub(super) fn provider(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    async {
        if surroundings.options.offline {
            return vec![Finding::ok("model", "not asked (--offline)")];
        }

        if !surroundings.document.has_section("llm") {
            return vec![Finding::ok("model", "none is configured (section [llm])")];
        }

        let loaded = surroundings.document.section("llm", LlmConfig::find_faults);
        if let Some(fault) = loaded.faults.first() {
            return vec![Finding::unknown("model", fault)];
        }

        let config = loaded.value;
        let model = match config.usable_model() {
            Ok(model) => model.to_owned(),
            Err(fault) => return vec![Finding::unknown("model", fault)],
        };

        vec![ask(&config, &model).await]
    }
    .boxed_local()
}

async fn ask(config: &LlmConfig, model: &str) -> Finding {
    let base = config.endpoint();
    let shown = format!("{model} at {base}");
    let answered = tokio::time::timeout(ANSWER_WITHIN, listing(config, &base)).await;

    let (status, listed) = match answered {
        Ok(Ok(answer)) => answer,
        Ok(Err(why)) => return Finding::fault("model", format!("{shown}: cannot be reached ({why})")),
        Err(_) => {
            let waited = ANSWER_WITHIN.as_secs();
            return Finding::fault("model", format!("{shown}: no answer in {waited} s"));
        }
    };

    judge(&shown, model, status, listed.as_deref())
}

/// Requests the list of models. Returns the status and the listed models, or `None` for them if the body is not a list.
async fn listing(config: &LlmConfig, base: &str) -> Result<(StatusCode, Option<Vec<String>>), String> {
    let client = crate::http::client().map_err(|error| error.to_string())?;
    let key = config.api_key.as_ref().map(SecretValue::reveal);
    let most = match config.provider {
        ModelProvider::Gemini => "?pageSize=1000",
        ModelProvider::Anthropic => "?limit=1000",
        ModelProvider::OpenAi => "",
    };

    let request = client.get(format!("{base}models{most}"));
    let request = match (config.provider, key) {
        (ModelProvider::Gemini, Some(key)) => request.header("x-goog-api-key", key),
        (ModelProvider::OpenAi, Some(key)) => request.bearer_auth(key),
        (ModelProvider::Gemini | ModelProvider::OpenAi, None) => request,
        (ModelProvider::Anthropic, key) => request
            .header("x-api-key", key.unwrap_or_default())
            .header("anthropic-version", ANTHROPIC_VERSION),
    };

    // The address is in the configuration; the rest of the error may hold the query, but never the key.
    let mut answer = request.send().await.map_err(|error| error.without_url().to_string())?;
    let status = answer.status();

    match read_bounded(&mut answer, MAX_ANSWER_BYTES).await {
        Ok(body) => Ok((status, names(&body))),
        Err(ReadBodyError::TooLong { .. }) => Ok((status, None)),
        Err(ReadBodyError::Lost(error)) => Err(error.without_url().to_string()),
    }
}

/// Returns the models of a list, in the providers' three forms, or `None` if `body` is not a list.
fn names(body: &[u8]) -> Option<Vec<String>> {
    let listed: Value = serde_json::from_slice(body).ok()?;
    if !listed["data"].is_array() && !listed["models"].is_array() {
        return None;
    }

    let of = |list: &str, key: &str| -> Vec<String> {
        let entries = listed[list].as_array().into_iter().flatten();
        let named = entries.filter_map(|entry| entry[key].as_str());
        named
            .map(|name| name.trim_start_matches("models/").to_owned())
            .collect()
    };

    Some([of("data", "id"), of("models", "name")].concat())
}

fn judge(shown: &str, model: &str, status: StatusCode, listed: Option<&[String]>) -> Finding {
    let Some(listed) = listed.or((!status.is_success()).then_some(&[])) else {
        return Finding::unknown("model", format!("{shown}: its list of models cannot be read"));
    };

    match status.as_u16() {
        200..=299 if listed.is_empty() => Finding::warning(
            "model",
            format!("{shown}: reachable; it lists no models, so the model is not checked"),
        ),
        200..=299 if listed.iter().any(|name| name == model) => {
            Finding::ok("model", format!("{shown}: reachable, takes the key, knows the model"))
        }
        // Aliases and dated versions are not always listed.
        200..=299 => Finding::warning(
            "model",
            format!("{shown}: reachable and takes the key, but does not list the model"),
        ),
        400 | 401 | 403 => Finding::fault("model", format!("{shown}: refuses the key (status {status})")),
        404 | 405 => Finding::warning(
            "model",
            format!("{shown}: reachable, but has no list of models (status {status}): key and model are not checked"),
        ),
        429 => Finding::warning(
            "model",
            format!("{shown}: reachable, and limits the rate (status {status})"),
        ),
        _ => Finding::fault("model", format!("{shown}: answers with status {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn check(status: u16, body: &str, level: Level, says: &str) {
        let status = StatusCode::from_u16(status).expect("a status");
        let found = judge("m at http://p/", "m", status, names(body.as_bytes()).as_deref());
        assert_eq!(found.level, level, "{found:?}");
        assert!(found.detail.contains(says), "{found:?}");
    }

    #[test]
    fn what_a_provider_says_is_judged() {
        check(200, r#"{"data":[{"id":"m"},{"id":"n"}]}"#, Level::Ok, "knows the model");
        check(200, r#"{"models":[{"name":"models/m"}]}"#, Level::Ok, "knows the model");
        check(200, r#"{"data":[{"id":"n"}]}"#, Level::Warning, "does not list");
        check(200, r#"{"data":[]}"#, Level::Warning, "not checked");
        check(200, "no JSON", Level::Fault, "not known");
        check(200, r#"{"error":"busy"}"#, Level::Fault, "not known");
        check(401, "{}", Level::Fault, "refuses the key");
        check(404, "", Level::Warning, "no list of models");
        check(503, "", Level::Fault, "503");
    }
}
