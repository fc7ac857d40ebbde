//! Selects the embedder that `search()` uses, by configuration; without one, search uses words alone.

mod remote;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use shared::clock::SharedClock;
use shared::embed::{MINILM_MODEL, MiniLm, STATIC_MODEL, StaticModel, TextEmbedder};
use shared::process::Health;
use shared::projection::Projection;
use shared::projection::search::keep;
use shared::projection::search::peers::VectorSource;

use crate::config::{EmbedderKind, HooksConfig};

/// Path of the models below the checkout's root.
const MODELS: &str = ".tools/models";

/// Name of the part on the health page.
const PART: &str = "search";

/// Embeds the texts that the read model takes in, or takes their vectors from `peers` if the embedder is slow or costs money;
/// returns only if there is no embedder. Search by words works in either case, so a missing model is reported but does not make the replica unready.
pub(crate) async fn run(
    config: HooksConfig,
    projection: Projection,
    peers: Arc<dyn VectorSource>,
    clock: SharedClock,
    health: Health,
) {
    // One vector a word piece is made sooner than it is asked for.
    let is_cheap = matches!(config.embedder, EmbedderKind::Static);
    let embedder = tokio::task::spawn_blocking(move || open_embedder(&config)).await;
    match embedder.unwrap_or_else(|error| Err(error.to_string())) {
        Ok(Some(embedder)) => {
            health.set(PART, true, format!("words and meaning ({})", embedder.model()));
            if is_cheap {
                keep::run(projection, embedder, clock).await;
            } else {
                keep::run_beside(projection, embedder, peers, clock).await;
            }
        }
        Ok(None) => health.set(PART, true, "words only, as configured"),
        Err(reason) => {
            tracing::warn!(error = reason, "no embedding model: search uses words only");
            health.set_degraded(PART, &format!("words only: {reason}"));
        }
    }
}

fn open_embedder(config: &HooksConfig) -> Result<Option<Arc<dyn TextEmbedder>>, String> {
    match config.embedder {
        EmbedderKind::None => Ok(None),
        EmbedderKind::Static => {
            let model = StaticModel::load(&model_folder(&config.embedder_model, STATIC_MODEL));
            Ok(Some(Arc::new(
                model.map_err(|error| shared::error_chain::describe_error(&error))?,
            )))
        }
        EmbedderKind::Minilm => {
            let model = MiniLm::load(&model_folder(&config.embedder_model, MINILM_MODEL));
            Ok(Some(Arc::new(
                model.map_err(|error| shared::error_chain::describe_error(&error))?,
            )))
        }
        EmbedderKind::Openai => {
            let key = config.embedder_key.as_ref();
            let remote = remote::RemoteEmbedder::new(&config.embedder_url, &config.embedder_model, key)?;
            Ok(Some(Arc::new(remote)))
        }
    }
}

/// Returns the configured folder, else that of `model` among the checkout's tools, above the executable or the working
/// directory.
fn model_folder(configured: &str, model: &str) -> PathBuf {
    if !configured.is_empty() {
        return PathBuf::from(configured);
    }

    let below = Path::new(MODELS).join(model);
    let starts = [std::env::current_exe().ok(), std::env::current_dir().ok()];
    let mut above = starts
        .iter()
        .flatten()
        .flat_map(|start| start.ancestors().map(|dir| dir.join(&below)));

    above.find(|folder| folder.is_dir()).unwrap_or(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_model_that_is_missing_is_told_of_with_what_brings_it() {
        let folder = tempfile::tempdir().expect("a folder");
        for (kind, file, tool) in [
            ("static", "tokenizer.json", STATIC_MODEL),
            ("minilm", "config.json", MINILM_MODEL),
        ] {
            let config = serde_json::json!({"embedder": kind, "embedder_model": folder.path()});
            let config: HooksConfig = serde_json::from_value(config).expect("a configuration");
            assert_eq!(config.find_faults(), [""; 0]);

            let reason = open_embedder(&config).expect_err("there is no model");
            let file = folder.path().join(file).display().to_string();
            assert!(reason.contains(&file), "{reason}");
            assert!(reason.contains(&format!("`deploy/fetch-tools {tool}`")), "{reason}");
        }
    }
}
