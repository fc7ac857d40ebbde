//! Decoder of a `safetensors` file. *Pure.*
//!
//! The format: u64 little endian length of a JSON header, the header (`name → {dtype, shape, data_offsets}`), the
//! bytes.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Maximum size of the header, in bytes.
const MAX_HEADER_BYTES: usize = 1024 * 1024;

/// Reason why bytes are not the expected numbers.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReadWeightsError {
    /// The header does not end within the file.
    #[error("the file is shorter than its header of {0} bytes")]
    Header(u64),
    /// The header is not JSON of the expected form.
    #[error("malformed header: {0}")]
    Json(String),
    /// The file contains no matrix of half or single precision.
    #[error("the file has no two-dimensional tensor of type F16 or F32")]
    NoMatrix,
    /// A tensor is outside the file, or its size does not match its shape.
    #[error("tensor {0} is incomplete")]
    Truncated(String),
    /// A tensor that the model needs is missing.
    #[error("tensor {0} is missing: these are the weights of another model")]
    Absent(String),
    /// The shape of a tensor is not that of the model's configuration.
    #[error("tensor {name} is {found:?}, expected {expected:?}: these are the weights of another model")]
    Shape {
        /// Name of the tensor.
        name: String,
        /// Shape of the tensor in the file.
        found: Vec<usize>,
        /// Shape of the tensor by the configuration.
        expected: Vec<usize>,
    },
    /// The numbers of a tensor are of an unsupported type.
    #[error("tensor {name} is of type {found}, expected F16 or F32")]
    Type {
        /// Name of the tensor.
        name: String,
        /// Type of its numbers, as the file names it.
        found: String,
    },
}

#[derive(Debug, Deserialize)]
struct Tensor {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

/// Rows of equal length.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WeightMatrix {
    pub(super) columns: usize,
    pub(super) values: Vec<f32>,
}

impl WeightMatrix {
    /// Returns the row `index`; empty if there is none.
    pub(super) fn row(&self, index: u32) -> &[f32] {
        let start = (index as usize).saturating_mul(self.columns);
        self.values.get(start..start + self.columns).unwrap_or_default()
    }

    /// Returns the number of rows.
    pub(super) fn rows(&self) -> usize {
        self.values.len().checked_div(self.columns).unwrap_or(0)
    }
}

/// Tensors of a file, according to its header; their data is not read yet.
#[derive(Debug)]
pub(super) struct TensorFile<'a> {
    entries: BTreeMap<String, Tensor>,
    data: &'a [u8],
}

impl<'a> TensorFile<'a> {
    /// Parses the header of `bytes`.
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, ReadWeightsError> {
        // A file that is too short reads as a length that no header has, which ends in the same error.
        let length = bytes
            .first_chunk::<8>()
            .map_or(u64::MAX, |length| u64::from_le_bytes(*length));
        let size = usize::try_from(length).ok().filter(|&size| size <= MAX_HEADER_BYTES);
        let header = size
            .and_then(|size| bytes.get(8..8 + size))
            .ok_or(ReadWeightsError::Header(length))?;

        let mut values: BTreeMap<String, serde_json::Value> =
            serde_json::from_slice(header).map_err(|error| ReadWeightsError::Json(error.to_string()))?;
        // The only entry that describes no tensor.
        values.remove("__metadata__");
        let entry = |(name, value)| match serde_json::from_value(value) {
            Ok(tensor) => Ok((name, tensor)),
            Err(error) => Err(ReadWeightsError::Json(format!("{name}: {error}"))),
        };

        Ok(Self {
            entries: values.into_iter().map(entry).collect::<Result<_, _>>()?,
            data: &bytes[8 + header.len()..],
        })
    }

    /// Returns the first matrix of the file.
    pub(super) fn read_matrix(&self) -> Result<WeightMatrix, ReadWeightsError> {
        let is_matrix = |tensor: &Tensor| dtype_width(&tensor.dtype).is_some() && tensor.shape.len() == 2;
        let found = self.entries.iter().find(|(_, tensor)| is_matrix(tensor));
        let (name, tensor) = found.ok_or(ReadWeightsError::NoMatrix)?;
        Ok(WeightMatrix {
            columns: tensor.shape[1],
            values: self.values(name, tensor)?,
        })
    }

    /// Returns the numbers of tensor `name`, row by row.
    pub(super) fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ReadWeightsError> {
        let tensor = self.entries.get(name);
        let tensor = tensor.ok_or_else(|| ReadWeightsError::Absent(name.to_owned()))?;
        if tensor.shape != shape {
            return Err(ReadWeightsError::Shape {
                name: name.to_owned(),
                found: tensor.shape.clone(),
                expected: shape.to_vec(),
            });
        }

        self.values(name, tensor)
    }

    fn values(&self, name: &str, tensor: &Tensor) -> Result<Vec<f32>, ReadWeightsError> {
        let width = dtype_width(&tensor.dtype).ok_or_else(|| ReadWeightsError::Type {
            name: name.to_owned(),
            found: tensor.dtype.clone(),
        })?;
        let [from, to] = tensor.data_offsets;
        let wanted = tensor
            .shape
            .iter()
            .try_fold(width, |bytes, &side| bytes.checked_mul(side));

        // Offsets and shape come from the file, so they are compared before use.
        let cells = self.data.get(from..to).filter(|cells| Some(cells.len()) == wanted);
        let cells = cells.ok_or_else(|| ReadWeightsError::Truncated(name.to_owned()))?;

        Ok(cells.chunks_exact(width).map(value).collect())
    }
}

fn dtype_width(dtype: &str) -> Option<usize> {
    match dtype {
        "F16" => Some(2),
        "F32" => Some(4),
        _ => None,
    }
}

fn value(cell: &[u8]) -> f32 {
    match *cell {
        [a, b] => half_to_single(u16::from_le_bytes([a, b])),
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
        _ => 0.0,
    }
}

/// Converts IEEE 754 half precision to single precision; NaN and infinity are converted to 0.
fn half_to_single(bits: u16) -> f32 {
    /// Smallest half without a leading one: 2⁻²⁴.
    const LEAST: f32 = 1.0 / 16_777_216.0;
    /// Difference of the exponents' biases.
    const BIAS: u32 = 127 - 15;

    let (exponent, fraction) = (u32::from(bits >> 10 & 0x1f), u32::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction as f32 * LEAST,
        0x1f => 0.0,
        _ => f32::from_bits((exponent + BIAS) << 23 | fraction << 13),
    };

    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    fn first(bytes: &[u8]) -> Result<WeightMatrix, ReadWeightsError> {
        TensorFile::open(bytes)?.read_matrix()
    }

    #[test]
    fn halves_are_read() {
        for (bits, value) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x3555, 0.333_251_95),
            (0x0001, 5.960_464_5e-8),
            (0, 0.0),
        ] {
            assert!(
                (half_to_single(bits) - value).abs() < 1e-9,
                "{bits:#x}: {}",
                half_to_single(bits)
            );
        }
    }

    #[test]
    fn a_matrix_is_found_by_its_shape() {
        let header = r#"{"__metadata__":{"a":"b"},"bias":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
            "embedding":{"dtype":"F16","shape":[2,2],"data_offsets":[4,12]}}"#;
        let matrix = first(&file(header, &[0, 0, 0, 0, 0, 0x3c, 0, 0xc0, 0, 0, 0, 0x3c])).expect("a matrix");
        assert_eq!(
            (matrix.rows(), matrix.row(0), matrix.row(1)),
            (2, [1.0, -2.0].as_slice(), [0.0, 1.0].as_slice())
        );
        assert_eq!(matrix.row(2), [0.0_f32; 0]);
    }

    #[test]
    fn what_is_no_matrix_is_refused() {
        assert_eq!(first(b"short"), Err(ReadWeightsError::Header(u64::MAX)));
        assert_eq!(first(&u64::MAX.to_le_bytes()), Err(ReadWeightsError::Header(u64::MAX)));
        assert_eq!(first(&file("{}", &[])), Err(ReadWeightsError::NoMatrix));
        let cut = r#"{"e":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]}}"#;
        assert_eq!(
            first(&file(cut, &[0; 7])),
            Err(ReadWeightsError::Truncated("e".to_owned()))
        );
        assert!(matches!(first(&file("[", &[])), Err(ReadWeightsError::Json(_))));
    }

    #[test]
    fn a_tensor_is_found_by_its_name_and_is_what_is_expected() {
        let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"n":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#;
        let bytes = file(header, &[0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]);
        let tensors = TensorFile::open(&bytes).expect("a file");

        assert_eq!(tensors.read("a", &[2]), Ok(vec![1.0, -2.0]));
        assert!(matches!(
            tensors.read("a", &[1, 2]),
            Err(ReadWeightsError::Shape { .. })
        ));
        assert!(matches!(tensors.read("n", &[1]), Err(ReadWeightsError::Type { .. })));
        assert_eq!(tensors.read("b", &[2]), Err(ReadWeightsError::Absent("b".to_owned())));
    }
}
