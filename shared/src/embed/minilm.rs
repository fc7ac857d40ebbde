//! Local model that reads a text as a whole: MiniLM, a BERT encoder of six layers, on one processor.
//!
//! It computes on threads for blocking work: at most two calls at once, each on one thread, because events need the
//! other processors. `docs/adr/0028-minilm-is-ours.md` says why no library computes it. Vectors are compared with a
//! computation in numpy and word pieces with the reference tokenizer, both frozen by `tests/data/minilm.py`.

mod network;
#[cfg(test)]
mod tests;
mod word_pieces;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

pub use self::network::ReadNetworkError;
use self::network::{Config, Network};
use self::word_pieces::WordPieces;
use super::weights::TensorFile;
use super::{CONFIG, EmbedTextsError, LoadModelError, TOKENIZER, TextEmbedder, WEIGHTS, embedded_text, read_file};

/// Name of the model that `deploy/fetch-tools` puts into `.tools/models`, and of its folder.
pub const MINILM_MODEL: &str = "all-minilm-l6-v2";

/// Maximum number of pieces of a text, including the marks of its beginning and end (the model's
/// `sentence_bert_config.json`).
const MAX_PIECES: usize = 256;

/// Number of texts in one call: a tenth of a second of one processor, a second if they are long.
const BATCH: usize = 8;

/// Maximum number of pieces of texts that are read together: enough for the processor's caches, a limit for the
/// memory.
const MAX_PIECES_TOGETHER: usize = 512;

/// Maximum number of calls that compute at once, including the one that maintains the vectors; others wait.
const AT_ONCE: usize = 2;

/// Number of characters of the weights' hash in the model's name.
const HASH_CHARS: usize = 8;

/// A loaded model; clones share it. About 90 MB.
#[derive(Debug, Clone)]
pub struct MiniLm(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    pieces: WordPieces,
    most: usize,
    network: Network,
    computing: Arc<Semaphore>,
}

/// Number of pieces of a text without words: the marks of its beginning and its end.
const MARKS: usize = 2;

impl MiniLm {
    /// Loads the model in `folder`. Its name consists of the folder's name and a hash of its files: another file in
    /// the same place is another model.
    ///
    /// # Errors
    /// Returns [`LoadModelError`] if the model is missing or not valid.
    pub fn load(folder: &Path) -> Result<Self, LoadModelError> {
        let read = |name| read_file(folder, name, MINILM_MODEL);
        let (config, tokenizer, weights) = (read(CONFIG)?, read(TOKENIZER)?, read(WEIGHTS)?);
        // Every file that determines the vectors must change the model's name.
        let hash = Sha256::new()
            .chain_update(&config)
            .chain_update(&tokenizer)
            .chain_update(&weights);

        let hash = data_encoding::HEXLOWER.encode(&hash.finalize());
        let config = Config::parse(&config)?;

        let pieces = WordPieces::parse(&tokenizer)?;
        if config.piece_count() != pieces.count() {
            return Err(LoadModelError::Mismatch {
                pieces: pieces.count(),
                rows: config.piece_count(),
            });
        }

        let network = Network::read(&config, &TensorFile::open(&weights)?)?;
        let folder = folder.file_name().unwrap_or_default().to_string_lossy();

        Ok(Self(Arc::new(Inner {
            name: format!("{folder}:{}", &hash[..HASH_CHARS]),
            pieces,
            most: MAX_PIECES.min(config.max_pieces()),
            network,
            computing: Arc::new(Semaphore::new(AT_ONCE)),
        })))
    }

    /// Returns the vectors of `texts`, in their order.
    #[must_use]
    pub fn embed_texts(&self, texts: &[String]) -> Vec<Vec<f32>> {
        let inner = &*self.0;
        let mut vectors = Vec::with_capacity(texts.len());
        let mut together: Vec<Vec<u32>> = Vec::new();
        let mut wordless = Vec::with_capacity(texts.len());

        let mut count = 0;
        for text in texts {
            let pieces = inner.pieces.encode(embedded_text(text), inner.most);
            wordless.push(pieces.len() <= MARKS);

            if count + pieces.len() > MAX_PIECES_TOGETHER {
                vectors.extend(inner.network.embed(&together));
                together.clear();
                count = 0;
            }

            count += pieces.len();
            together.push(pieces);
        }

        vectors.extend(inner.network.embed(&together));

        // A text without words has only the marks of its beginning and its end, whose vector from the network means
        // nothing.
        for (_, vector) in wordless.into_iter().zip(&mut vectors).filter(|(wordless, _)| *wordless) {
            vector.fill(0.0);
        }

        vectors
    }
}

#[async_trait]
impl TextEmbedder for MiniLm {
    fn model(&self) -> &str {
        &self.0.name
    }

    fn batch(&self) -> usize {
        BATCH
    }

    async fn embed(&self, texts: Vec<String>) -> Result<Vec<Vec<f32>>, EmbedTextsError> {
        let unavailable = |error: &dyn std::fmt::Display| EmbedTextsError::Unavailable(error.to_string());
        let turn = Arc::clone(&self.0.computing).acquire_owned().await;
        let turn = turn.map_err(|error| unavailable(&error))?;
        let model = self.clone();
        let work = move || {
            let vectors = model.embed_texts(&texts);
            drop(turn);
            vectors
        };

        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|error| unavailable(&error))
    }
}
