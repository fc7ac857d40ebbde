//! Local model with one vector per word piece; a text's vector is their mean.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::byte_pairs::BpeTokenizer;
use super::weights::{TensorFile, WeightMatrix};
use super::{EmbedTextsError, LoadModelError, TOKENIZER, TextEmbedder, WEIGHTS, embedded_text, read_file};

/// Name of the model that `deploy/fetch-tools` puts into `.tools/models`, and of its folder.
pub const STATIC_MODEL: &str = "wordllama-l2-supercat-256";

/// Maximum number of words whose pieces are kept in memory; beyond it the memory is cleared.
const MAX_REMEMBERED: usize = 65_536;

/// Maximum length of a word that is kept in memory, in bytes.
const MAX_REMEMBERED_BYTES: usize = 32;

/// Number of texts beyond which the work is moved off the runtime's threads.
const MANY: usize = 8;

/// A loaded model; clones share it.
#[derive(Debug, Clone)]
pub struct StaticModel(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    tokenizer: BpeTokenizer,
    matrix: WeightMatrix,
    words: Mutex<HashMap<Box<str>, Box<[u32]>>>,
}

impl StaticModel {
    /// Loads the model in `folder`; its name is the folder's name.
    ///
    /// # Errors
    /// Returns [`LoadModelError`] if the model is missing or not valid.
    pub fn load(folder: &Path) -> Result<Self, LoadModelError> {
        let tokenizer = BpeTokenizer::parse(&read_file(folder, TOKENIZER, STATIC_MODEL)?)?;
        let matrix = TensorFile::open(&read_file(folder, WEIGHTS, STATIC_MODEL)?)?.read_matrix()?;
        if matrix.rows() < tokenizer.piece_limit() {
            return Err(LoadModelError::Mismatch {
                pieces: tokenizer.piece_limit(),
                rows: matrix.rows(),
            });
        }

        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self(Arc::new(Inner {
            name,
            tokenizer,
            matrix,
            words: Mutex::default(),
        })))
    }

    /// Returns the vector of `text`.
    #[must_use]
    pub fn embed_text(&self, text: &str) -> Vec<f32> {
        let inner = &*self.0;
        let mut sum = vec![0.0; inner.matrix.columns];
        let mut add = |pieces: &[u32]| {
            for &piece in pieces {
                for (sum, value) in sum.iter_mut().zip(inner.matrix.row(piece)) {
                    *sum += value;
                }
            }
        };

        // One lock per text: taking it for each word costs more than the sums.
        let mut words = inner.words.lock().unwrap_or_else(PoisonError::into_inner);
        for word in embedded_text(text).split_whitespace() {
            if let Some(known) = words.get(word) {
                add(known);
                continue;
            }

            let pieces = inner.tokenizer.encode(word);
            add(&pieces);

            // Long words are rare, and would fill the memory with entries that are never used again.
            if word.len() <= MAX_REMEMBERED_BYTES {
                if words.len() >= MAX_REMEMBERED {
                    words.clear();
                }
                words.insert(word.into(), pieces.into());
            }
        }

        drop(words);
        // Vectors of length one can be compared by their product alone.
        let length = sum.iter().map(|value| value * value).sum::<f32>().sqrt();
        if length > 0.0 {
            sum.iter_mut().for_each(|value| *value /= length);
        }

        sum
    }
}

#[async_trait]
impl TextEmbedder for StaticModel {
    fn model(&self) -> &str {
        &self.0.name
    }

    async fn embed(&self, texts: Vec<String>) -> Result<Vec<Vec<f32>>, EmbedTextsError> {
        let (model, many) = (self.clone(), texts.len() > MANY);
        let work = move || texts.iter().map(|text| model.embed_text(text)).collect::<Vec<_>>();
        if !many {
            return Ok(work());
        }
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| EmbedTextsError::Unavailable(error.to_string()))
    }
}
