//! Vectors from another copy of the read model, so that a text is embedded once and not once for each copy: the port,
//! the question and its answer.
//!
//! A vector belongs to a model and to a text. The question names both, the text by a digest: streams are the same for
//! all copies, but an event may have been edited in one of them and not yet in the other.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::vectors::QuantizedVector;

/// Most texts whose vectors are asked for at once.
pub const MAX_TEXTS: usize = 1_000;

/// Maximum size of an answer's vectors in bytes, below the default limit of a server.
pub(super) const MAX_REPLY_BYTES: usize = 480 * 1024;

/// Bytes of a vector in an answer beside its dimensions: sequence, length, scale.
pub(super) const VECTOR_HEAD: usize = 16;

/// First byte of an answer; one of another form is not read.
const FORMAT: u8 = 1;

/// Copies of the read model elsewhere, of which one may have embedded the texts that this copy is to embed.
#[async_trait]
pub trait VectorSource: std::fmt::Debug + Send + Sync {
    /// Whether another copy is to be asked before this one embeds.
    fn is_there(&self) -> bool;

    /// Asks for vectors; gives up after some seconds. Returns `None` if no copy has answered, or none has the model.
    async fn lend(&self, question: VectorsQuestion) -> Option<VectorsReply>;
}

/// Question for the vectors of some texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VectorsQuestion {
    /// Name of the model.
    pub model: String,
    /// Sequences of events in `EVENTS`, ascending, each with [`text_digest`] of the event's text; at most
    /// [`MAX_TEXTS`] are looked at.
    pub texts: Vec<(u64, u64)>,
}

impl VectorsQuestion {
    /// Returns the question for the vectors by `model` of `texts`: sequences, ascending, and texts.
    pub fn new<'a>(model: &str, texts: impl Iterator<Item = (u64, &'a str)>) -> Self {
        Self {
            model: model.to_owned(),
            texts: texts.map(|(sequence, text)| (sequence, text_digest(text))).collect(),
        }
    }
}

/// Returns a digest that tells the versions of an event's text apart: the beginning of the SHA-256 of `text`.
#[must_use]
pub fn text_digest(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    digest
        .iter()
        .take(8)
        .fold(0_u64, |all, byte| all << 8 | u64::from(*byte))
}

/// Answer to [`VectorsQuestion`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VectorsReply {
    /// Sequence up to which the texts of the question were looked at; those after it are not embedded yet, or had no
    /// room. One up to it that is not in `vectors` is another text here, or is about to be embedded again.
    pub(super) through: u64,
    /// Whether the answer ends because of its size.
    pub(super) is_cut: bool,
    /// Sequences with their vectors; `None` for a text that has none.
    pub(super) vectors: Vec<(u64, Option<QuantizedVector>)>,
}

/// Bytes that are no [`VectorsReply`]; contains the offset at which they cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer cannot be read at byte {0}")]
pub struct ReadVectorsError(pub usize);

impl VectorsReply {
    /// Returns the number of texts whose vectors are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.vectors.len()
    }

    /// Returns whether no vector is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.vectors.is_empty()
    }

    /// Returns the reply as bytes, numbers big-endian: format (1 byte), `is_cut` (1), `through` (8), and for each text
    /// its sequence (8) and the length of its vector (4), followed by scale (4) and dimensions if that is not 0.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let dimensions = self
            .vectors
            .iter()
            .flat_map(|(_, vector)| vector)
            .map(|it| it.bytes.len());
        let mut bytes = Vec::with_capacity(10 + VECTOR_HEAD * self.vectors.len() + dimensions.sum::<usize>());
        bytes.extend_from_slice(&[FORMAT, u8::from(self.is_cut)]);
        bytes.extend_from_slice(&self.through.to_be_bytes());
        for (sequence, vector) in &self.vectors {
            bytes.extend_from_slice(&sequence.to_be_bytes());
            let length = vector.as_ref().map_or(0, |vector| vector.bytes.len());
            bytes.extend_from_slice(&(length as u32).to_be_bytes());
            if let Some(vector) = vector {
                bytes.extend_from_slice(&vector.scale.to_be_bytes());
                bytes.extend(vector.bytes.iter().map(|byte| byte.cast_unsigned()));
            }
        }

        bytes
    }

    /// Returns the reply that `bytes` hold.
    ///
    /// # Errors
    /// Returns [`ReadVectorsError`] if they are cut off, or of another form.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ReadVectorsError> {
        let mut rest = bytes;
        let read = Self::read(&mut rest);
        read.ok_or(ReadVectorsError(bytes.len() - rest.len()))
    }

    fn read(rest: &mut &[u8]) -> Option<Self> {
        let [format, is_cut] = take_bytes::<2>(rest)?;
        if format != FORMAT {
            return None;
        }

        let through = u64::from_be_bytes(take_bytes(rest)?);
        let mut vectors = Vec::new();
        while !rest.is_empty() {
            let sequence = u64::from_be_bytes(take_bytes(rest)?);
            let length = u32::from_be_bytes(take_bytes(rest)?) as usize;
            let vector = match length {
                0 => None,
                length => Some(read_vector(rest, length)?),
            };
            vectors.push((sequence, vector));
        }

        Some(Self {
            through,
            is_cut: is_cut != 0,
            vectors,
        })
    }
}

fn read_vector(rest: &mut &[u8], length: usize) -> Option<QuantizedVector> {
    let scale = f32::from_be_bytes(take_bytes(rest)?);
    let all = *rest;
    let (bytes, after) = all.split_at_checked(length)?;
    *rest = after;
    // Such a scale would count for nearer than every other, or for none.
    (scale.is_finite() && scale > 0.0).then(|| QuantizedVector {
        bytes: bytes.iter().map(|byte| byte.cast_signed()).collect(),
        scale,
    })
}

fn take_bytes<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let all = *rest;
    let (taken, after) = all.split_first_chunk::<N>()?;
    *rest = after;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply() -> VectorsReply {
        let vector = |values: &[f32]| QuantizedVector::from_vector(values);
        VectorsReply {
            through: u64::MAX - 7,
            is_cut: true,
            vectors: vec![
                (3, vector(&[1.0, -0.5, 0.25])),
                (4, None),
                (1 << 40, vector(&[-1e-9, 2e-9, 0.0])),
            ],
        }
    }

    #[test]
    fn an_answer_survives_its_way() {
        for reply in [reply(), VectorsReply::default()] {
            assert_eq!(VectorsReply::from_bytes(&reply.to_bytes()), Ok(reply));
        }
    }

    #[test]
    fn an_answer_that_is_cut_off_or_another_is_none() {
        let bytes = reply().to_bytes();
        // Whole up to the end of its head and of each of its vectors.
        let whole = [10, 10 + 19, 10 + 19 + 12, bytes.len()];
        for end in 0..bytes.len() {
            let read = VectorsReply::from_bytes(&bytes[..end]);
            assert_eq!(read.is_ok(), whole.contains(&end), "{end}: {read:?}");
        }

        let mut other = bytes.clone();
        other[0] = FORMAT + 1;
        assert_eq!(VectorsReply::from_bytes(&other), Err(ReadVectorsError(2)));

        // The scale of the first vector.
        for scale in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
            let mut other = bytes.clone();
            other[22..26].copy_from_slice(&scale.to_be_bytes());
            assert!(VectorsReply::from_bytes(&other).is_err(), "{scale}");
        }
    }

    #[test]
    fn a_digest_tells_texts_apart_and_is_the_same_everywhere() {
        assert_ne!(text_digest("apple"), text_digest("apple "));
        // The beginning of SHA-256 of nothing.
        assert_eq!(text_digest(""), 0xe3b0_c442_98fc_1c14);
    }
}
