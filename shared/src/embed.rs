//! Texts as vectors: the port, and the embedders that need no network.
//!
//! A [`TextEmbedder`] names its model. Every stored vector carries that name, so that a change of model is detected and
//! everything is embedded again. [`StaticModel`] looks up one vector per word piece and takes their mean: no
//! inference, some microseconds per text, which keeps pace with ingest. [`MiniLm`] reads a text as a whole with a
//! small network: it finds texts in other words, and takes a thousand times as long (`docs/read-model.md` "Search").

mod byte_pairs;
mod minilm;
mod static_model;
mod weights;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

pub use byte_pairs::LoadTokenizerError;
pub use minilm::{MINILM_MODEL, MiniLm, ReadNetworkError};
pub use static_model::{STATIC_MODEL, StaticModel};
pub use weights::ReadWeightsError;

/// Maximum number of characters of a text that are embedded, enough for the subject of a message.
pub const MAX_TEXT_CHARS: usize = 2_000;

/// Files of a local model's folder; only a network's folder has a `CONFIG`.
const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const TOKENIZER: &str = "tokenizer.json";

/// Returns the part of `text` that is embedded.
#[must_use]
pub fn embedded_text(text: &str) -> &str {
    let end = text.char_indices().nth(MAX_TEXT_CHARS).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

/// Reason why texts could not be embedded.
#[derive(Debug, thiserror::Error)]
pub enum EmbedTextsError {
    /// The model's server does not respond at present.
    #[error("failed to call the embedding server: {0}")]
    Unavailable(String),
    /// The server's response is not valid.
    #[error("malformed answer from the embedding server: {0}")]
    Answer(String),
}

/// Converts texts to vectors.
#[async_trait]
pub trait TextEmbedder: std::fmt::Debug + Send + Sync {
    /// Name of the model and of everything that determines its vectors.
    fn model(&self) -> &str;

    /// Number of texts that are best embedded in one call, which takes a fraction of a second.
    fn batch(&self) -> usize {
        256
    }

    /// Whether the work is done on another machine, so that it uses no processor here.
    fn is_remote(&self) -> bool {
        false
    }

    /// Returns one vector of length 1 (or 0, for a text without words) per text, in their order.
    ///
    /// # Errors
    /// Returns [`EmbedTextsError`]; the same texts may be tried again.
    async fn embed(&self, texts: Vec<String>) -> Result<Vec<Vec<f32>>, EmbedTextsError>;
}

/// Reason why the local model cannot be used; searching then works by words alone.
#[derive(Debug, thiserror::Error)]
pub enum LoadModelError {
    /// A file of the model is missing.
    #[error(
        "no embedding model: {file} is missing; run `deploy/fetch-tools {model}`, or set hooks.embedder_model to another folder"
    )]
    Absent {
        /// Path of the missing file.
        file: PathBuf,
        /// Name of the model in `deploy/tools.lock`.
        model: &'static str,
    },
    /// A file of the model cannot be read.
    #[error("failed to read the embedding model's file {path}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The tokenizer's file is not valid.
    #[error("failed to load the embedding model's tokenizer")]
    Tokenizer(#[from] LoadTokenizerError),
    /// The weights' file is not valid.
    #[error("failed to load the embedding model's weights")]
    Weights(#[from] ReadWeightsError),
    /// The network is of an unknown kind.
    #[error("failed to load the embedding model's network")]
    Network(#[from] ReadNetworkError),
    /// Tokenizer and weights are from different models.
    #[error("the tokenizer has {pieces} pieces and the weights have {rows} rows")]
    Mismatch {
        /// Number of word pieces of the tokenizer.
        pieces: usize,
        /// Number of vectors in the weights.
        rows: usize,
    },
}

/// Opens the local model in `folder`, of either kind: a network describes itself in `config.json`.
///
/// # Errors
/// Returns [`LoadModelError`] if the model is missing or not valid.
pub fn open(folder: &Path) -> Result<Arc<dyn TextEmbedder>, LoadModelError> {
    Ok(if folder.join(CONFIG).exists() {
        Arc::new(MiniLm::load(folder)?)
    } else {
        Arc::new(StaticModel::load(folder)?)
    })
}

/// Reads the file `name` of the model's `folder`; `model` is the model's name in the tooling.
fn read_file(folder: &Path, name: &str, model: &'static str) -> Result<Vec<u8>, LoadModelError> {
    let path = folder.join(name);
    std::fs::read(&path).map_err(|source| {
        if source.kind() == std::io::ErrorKind::NotFound {
            LoadModelError::Absent { file: path, model }
        } else {
            LoadModelError::Read { path, source }
        }
    })
}
