//! Texts as vectors: the port, and the embedder that needs no network.
//!
//! An [`Embedder`] names its model; every stored vector carries that name, so that a change of model is seen and
//! everything is embedded anew. [`StaticModel`] looks up one vector per word piece and takes their mean: no inference,
//! some microseconds a text, which keeps pace with ingest (`libraries.md` "embedder").

mod static_model;
mod tokens;
mod weights;

use async_trait::async_trait;

pub use static_model::{STATIC_MODEL, StaticModel};
pub use tokens::LoadTokenizerError;
pub use weights::ReadWeightsError;

/// Longest piece of a text that is embedded, in characters: what a message says, it says by then.
pub const MAX_TEXT_CHARS: usize = 2_000;

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
        "no embedding model in {0}: `deploy/fetch-tools wordllama-l2-supercat-256` brings it, `hooks.embedder_model` names another place"
    )]
    Absent(std::path::PathBuf),
    /// A file of it cannot be read.
    #[error("the embedding model's file {path} cannot be read")]
    Read {
        /// The file.
        path: std::path::PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Its word pieces cannot be understood.
    #[error("the embedding model's tokenizer cannot be used")]
    Tokenizer(#[from] LoadTokenizerError),
    /// Its vectors cannot be understood.
    #[error("the embedding model's weights cannot be used")]
    Weights(#[from] ReadWeightsError),
    /// A piece of a word has no vector.
    #[error("the tokenizer knows {pieces} pieces, the weights {rows}")]
    Mismatch {
        /// Word pieces.
        pieces: usize,
        /// Vectors.
        rows: usize,
    },
}
