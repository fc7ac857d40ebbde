//! Texts as vectors: the port, and the embedders that need no network.
//!
//! An [`Embedder`] names its model; every stored vector carries that name, so that a change of model is seen and
//! everything is embedded anew. [`StaticModel`] looks up one vector per word piece and takes their mean: no inference,
//! some microseconds a text, which keeps pace with ingest. [`MiniLm`] reads a text as a whole with a small network: it
//! finds what is said in other words, and takes a thousand times as long (`docs/read-model.md` "Search").

mod minilm;
mod static_model;
mod tokens;
mod weights;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

pub use minilm::{MINILM_MODEL, MiniLm, ReadNetworkError};
pub use static_model::{STATIC_MODEL, StaticModel};
pub use tokens::LoadTokenizerError;
pub use weights::ReadWeightsError;

/// Longest piece of a text that is embedded, in characters: what a message says, it says by then.
pub const MAX_TEXT_CHARS: usize = 2_000;

/// Files of a local model's folder; only that of a network has a `CONFIG`.
const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const TOKENIZER: &str = "tokenizer.json";

/// What of `text` is embedded.
#[must_use]
pub fn cut(text: &str) -> &str {
    let end = text.char_indices().nth(MAX_TEXT_CHARS).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

/// Why texts have no vectors.
#[derive(Debug, thiserror::Error)]
pub enum EmbedTextsError {
    /// The model's server does not answer, or not now.
    #[error("the embedding server cannot be asked now: {0}")]
    Unavailable(String),
    /// It answers something else than was asked for.
    #[error("the embedding server's answer makes no sense: {0}")]
    Answer(String),
}

/// Turns texts into vectors.
#[async_trait]
pub trait Embedder: std::fmt::Debug + Send + Sync {
    /// Name of the model and of everything that decides its vectors.
    fn model(&self) -> &str;

    /// Texts that are best embedded in one call: what takes a fraction of a second.
    fn batch(&self) -> usize {
        256
    }

    /// Whether the work is done elsewhere, so that asking takes no processor here.
    fn is_remote(&self) -> bool {
        false
    }

    /// One vector of length 1 (or 0, for a text without words) per text, in their order.
    ///
    /// # Errors
    /// [`EmbedTextsError`]; the same texts may be tried again.
    async fn embed(&self, texts: Vec<String>) -> Result<Vec<Vec<f32>>, EmbedTextsError>;
}

/// Why the local model cannot be used; searching goes on by words alone.
#[derive(Debug, thiserror::Error)]
pub enum LoadModelError {
    /// It is not where it should be.
    #[error(
        "there is no embedding model: {file} is missing; `deploy/fetch-tools {model}` brings it, `hooks.embedder_model` names another folder"
    )]
    Absent {
        /// What is missing.
        file: PathBuf,
        /// The model's name in `deploy/tools.lock`.
        model: &'static str,
    },
    /// A file of it cannot be read.
    #[error("the embedding model's file {path} cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Its word pieces cannot be understood.
    #[error("the embedding model's tokenizer cannot be used")]
    Tokenizer(#[from] LoadTokenizerError),
    /// Its vectors cannot be understood.
    #[error("the embedding model's weights cannot be used")]
    Weights(#[from] ReadWeightsError),
    /// Its network is not one that is known.
    #[error("the embedding model's network cannot be used")]
    Network(#[from] ReadNetworkError),
    /// Tokenizer and weights are not of one model.
    #[error("the tokenizer knows {pieces} pieces, the weights {rows}")]
    Mismatch {
        /// Word pieces.
        pieces: usize,
        /// Vectors.
        rows: usize,
    },
}

/// The local model in `folder`, of whichever kind it is: a network says in `config.json` how it is built.
///
/// # Errors
/// [`LoadModelError`]: it is not there, or not what it should be.
pub fn open(folder: &Path) -> Result<Arc<dyn Embedder>, LoadModelError> {
    Ok(if folder.join(CONFIG).exists() {
        Arc::new(MiniLm::load(folder)?)
    } else {
        Arc::new(StaticModel::load(folder)?)
    })
}

/// The file `name` of the model's `folder`; `model` is what the tooling brings.
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
