//! BERT encoder: converts the pieces of texts to one vector each, of length 1. *Pure.*
//!
//! Texts are consecutive rows of one matrix: operations on rows run for all of them at once, and only attention treats
//! each text by itself. So there is no padding and no mask: the mean over a text's own rows is the mean under its
//! mask.

use std::ops::Range;

use ndarray::{Array2, ArrayView2, Axis, ShapeError, s};
use serde::Deserialize;

use super::super::weights::{ReadWeightsError, TensorFile};

/// Maximum number of layers.
const MAX_LAYERS: usize = 64;

/// Reason why a model's network cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadNetworkError {
    /// The configuration is not JSON of the expected form.
    #[error("failed to read config.json")]
    Json(#[from] serde_json::Error),
    /// The network is of another kind.
    #[error("config.json has {key} = {found}; expected {expected}")]
    OtherKind {
        /// Key of the configuration.
        key: &'static str,
        /// Value in the configuration.
        found: String,
        /// Value that this embedder supports.
        expected: &'static str,
    },
    /// The weights are not valid, or from another model.
    #[error("the weights do not match config.json")]
    Weights(#[from] ReadWeightsError),
    /// The number of values does not match their shape.
    #[error("the weights have no shape")]
    Shape(#[from] ShapeError),
}

/// Contents of a model's `config.json`.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    model_type: String,
    hidden_act: String,
    #[serde(default = "absolute")]
    position_embedding_type: String,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    layer_norm_eps: f32,
    max_position_embeddings: usize,
    vocab_size: usize,
    type_vocab_size: usize,
}

fn absolute() -> String {
    "absolute".to_owned()
}

impl Config {
    /// Parses the text of a `config.json`.
    pub(super) fn parse(text: &[u8]) -> Result<Self, ReadNetworkError> {
        let config: Self = serde_json::from_slice(text)?;
        let (width, heads) = (config.hidden_size, config.num_attention_heads);
        let layers = config.num_hidden_layers;

        // Everything that the network below computes in one fixed way.
        let faults = [
            (
                "model_type",
                config.model_type != "bert",
                config.model_type.clone(),
                "bert",
            ),
            (
                "hidden_act",
                config.hidden_act != "gelu",
                config.hidden_act.clone(),
                "gelu",
            ),
            (
                "position_embedding_type",
                config.position_embedding_type != "absolute",
                config.position_embedding_type.clone(),
                "absolute",
            ),
            (
                "num_attention_heads",
                heads == 0 || !width.is_multiple_of(heads.max(1)),
                heads.to_string(),
                "a divisor of hidden_size",
            ),
            (
                "num_hidden_layers",
                layers > MAX_LAYERS,
                layers.to_string(),
                "at most 64",
            ),
        ];

        match faults.into_iter().find(|(_, is_wrong, ..)| *is_wrong) {
            Some((key, _, found, expected)) => Err(ReadNetworkError::OtherKind { key, found, expected }),
            None => Ok(config),
        }
    }

    /// Maximum number of pieces of a text.
    pub(super) const fn max_pieces(&self) -> usize {
        self.max_position_embeddings
    }

    /// Number of pieces that have a vector.
    pub(super) const fn piece_count(&self) -> usize {
        self.vocab_size
    }
}

/// Linear layer with weights `[out, in]`.
#[derive(Debug)]
struct Linear {
    weight: Array2<f32>,
    bias: Vec<f32>,
}

impl Linear {
    fn read(tensors: &TensorFile<'_>, name: &str, from: usize, to: usize) -> Result<Self, ReadNetworkError> {
        Ok(Self {
            weight: read_matrix(tensors, &format!("{name}.weight"), to, from)?,
            bias: tensors.read(&format!("{name}.bias"), &[to])?,
        })
    }

    fn apply(&self, rows: &Array2<f32>) -> Array2<f32> {
        let mut result = rows.dot(&self.weight.t());
        each_row(&mut result, |row| {
            for (value, bias) in row.iter_mut().zip(&self.bias) {
                *value += bias;
            }
        });
        result
    }
}

#[derive(Debug)]
struct Norm {
    weight: Vec<f32>,
    bias: Vec<f32>,
    least: f32,
}

impl Norm {
    fn read(tensors: &TensorFile<'_>, name: &str, config: &Config) -> Result<Self, ReadNetworkError> {
        Ok(Self {
            weight: tensors.read(&format!("{name}.weight"), &[config.hidden_size])?,
            bias: tensors.read(&format!("{name}.bias"), &[config.hidden_size])?,
            least: config.layer_norm_eps,
        })
    }

    fn apply(&self, rows: &mut Array2<f32>) {
        each_row(rows, |row| {
            let count = row.len() as f32;
            let mean = row.iter().sum::<f32>() / count;
            let spread = row.iter().map(|value| (value - mean) * (value - mean)).sum::<f32>() / count;
            let scale = 1.0 / (spread + self.least).sqrt();
            for ((value, weight), bias) in row.iter_mut().zip(&self.weight).zip(&self.bias) {
                *value = (*value - mean) * scale * weight + bias;
            }
        });
    }
}

#[derive(Debug)]
struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    attended: Linear,
    attended_norm: Norm,
    wide: Linear,
    narrow: Linear,
    norm: Norm,
}

impl Layer {
    fn read(tensors: &TensorFile<'_>, at: usize, config: &Config) -> Result<Self, ReadNetworkError> {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        let name = |part: &str| format!("encoder.layer.{at}.{part}");
        let linear = |part: &str, from, to| Linear::read(tensors, &name(part), from, to);

        Ok(Self {
            query: linear("attention.self.query", width, width)?,
            key: linear("attention.self.key", width, width)?,
            value: linear("attention.self.value", width, width)?,
            attended: linear("attention.output.dense", width, width)?,
            attended_norm: Norm::read(tensors, &name("attention.output.LayerNorm"), config)?,
            wide: linear("intermediate.dense", width, inner)?,
            narrow: linear("output.dense", inner, width)?,
            norm: Norm::read(tensors, &name("output.LayerNorm"), config)?,
        })
    }

    fn apply(&self, rows: &Array2<f32>, texts: &[Range<usize>], heads: usize) -> Array2<f32> {
        let (query, key, value) = (self.query.apply(rows), self.key.apply(rows), self.value.apply(rows));
        let mut seen = Array2::zeros(rows.raw_dim());

        let width = rows.ncols() / heads;
        for text in texts {
            for head in 0..heads {
                let part = s![text.clone(), head * width..(head + 1) * width];
                let attended = apply_attention(&query.slice(part), &key.slice(part), &value.slice(part));
                seen.slice_mut(part).assign(&attended);
            }
        }

        // Each of the two blocks adds its input to its output, and normalises the sum.
        let mut attended = self.attended.apply(&seen);
        attended += rows;
        self.attended_norm.apply(&mut attended);
        let mut wide = self.wide.apply(&attended);
        each_row(&mut wide, |row| row.iter_mut().for_each(|value| *value = gelu(*value)));
        let mut result = self.narrow.apply(&wide);
        result += &attended;
        self.norm.apply(&mut result);

        result
    }
}

/// Returns the rows of `value`, weighted for each row of `query` by its attention to them.
fn apply_attention(query: &ArrayView2<'_, f32>, key: &ArrayView2<'_, f32>, value: &ArrayView2<'_, f32>) -> Array2<f32> {
    let scale = 1.0 / (query.ncols() as f32).sqrt();
    let mut weights = query.dot(&key.t());
    each_row(&mut weights, |row| {
        let largest = row.iter().fold(f32::MIN, |largest, &value| largest.max(value));
        row.iter_mut()
            .for_each(|value| *value = ((*value - largest) * scale).exp());
        let sum = row.iter().sum::<f32>();
        row.iter_mut().for_each(|value| *value /= sum);
    });

    weights.dot(value)
}

/// A loaded network: embeddings and layers.
#[derive(Debug)]
pub(super) struct Network {
    pieces: Array2<f32>,
    /// Vectors of positions, with the vector of a first text added.
    places: Array2<f32>,
    norm: Norm,
    layers: Vec<Layer>,
    heads: usize,
}

impl Network {
    /// Reads the weights that `config` describes.
    pub(super) fn read(config: &Config, tensors: &TensorFile<'_>) -> Result<Self, ReadNetworkError> {
        let table = |name: &str, rows| {
            read_matrix(
                tensors,
                &format!("embeddings.{name}_embeddings.weight"),
                rows,
                config.hidden_size,
            )
        };

        let mut places = table("position", config.max_position_embeddings)?;
        // A text is always the first of its pair here, so the vector of its kind can be added once, when loading.
        let kinds = table("token_type", config.type_vocab_size)?;
        if let Some(first) = kinds.axis_iter(Axis(0)).next() {
            places += &first;
        }

        let layers = 0..config.num_hidden_layers;
        Ok(Self {
            pieces: table("word", config.vocab_size)?,
            places,
            norm: Norm::read(tensors, "embeddings.LayerNorm", config)?,
            layers: layers
                .map(|at| Layer::read(tensors, at, config))
                .collect::<Result<_, _>>()?,
            heads: config.num_attention_heads,
        })
    }

    /// Returns one vector per text. Pieces beyond the vocabulary, and positions beyond the longest text, count as
    /// zero.
    pub(super) fn embed(&self, texts: &[Vec<u32>]) -> Vec<Vec<f32>> {
        // All texts become one matrix, so that each layer multiplies once for all of them. The ranges keep the texts
        // apart where one must not attend to another.
        let mut ranges = Vec::with_capacity(texts.len());
        let mut end = 0;
        for text in texts {
            ranges.push(end..end + text.len());
            end += text.len();
        }

        let mut rows = Array2::zeros((end, self.pieces.ncols()));
        let placed = texts.iter().flat_map(|text| text.iter().enumerate());
        for (mut row, (place, &piece)) in rows.axis_iter_mut(Axis(0)).zip(placed) {
            if piece as usize >= self.pieces.nrows() || place >= self.places.nrows() {
                continue;
            }
            row.assign(&self.pieces.row(piece as usize));
            row += &self.places.row(place);
        }

        self.norm.apply(&mut rows);

        for layer in &self.layers {
            rows = layer.apply(&rows, &ranges, self.heads);
        }

        ranges
            .into_iter()
            .map(|range| unit_mean(&rows.slice(s![range, ..])))
            .collect()
    }
}

/// Returns the mean of `rows`, of length 1. (The sum has the same direction as the mean.)
fn unit_mean(rows: &ArrayView2<'_, f32>) -> Vec<f32> {
    let sum = rows.sum_axis(Axis(0));
    let length = sum.iter().map(|value| value * value).sum::<f32>().sqrt();
    sum.iter()
        .map(|value| if length > 0.0 { value / length } else { 0.0 })
        .collect()
}

fn read_matrix(
    tensors: &TensorFile<'_>,
    name: &str,
    rows: usize,
    columns: usize,
) -> Result<Array2<f32>, ReadNetworkError> {
    let values = tensors.read(name, &[rows, columns])?;
    Ok(Array2::from_shape_vec((rows, columns), values)?)
}

fn each_row(rows: &mut Array2<f32>, mut change: impl FnMut(&mut [f32])) {
    let columns = rows.ncols().max(1);
    // The results of products and zeros are stored row by row.
    if let Some(values) = rows.as_slice_mut() {
        values.chunks_exact_mut(columns).for_each(&mut change);
    }
}

fn gelu(value: f32) -> f32 {
    0.5 * value * (1.0 + erf(value * std::f32::consts::FRAC_1_SQRT_2))
}

/// The error function with an error of 1.5e-7 (Abramowitz and Stegun 7.1.26).
fn erf(value: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.327_591_1 * value.abs());
    let polynomial = ((((1.061_405_4 * t - 1.453_152) * t + 1.421_413_7) * t - 0.284_496_74) * t + 0.254_829_6) * t;
    (1.0 - polynomial * (-value * value).exp()).copysign(value)
}
