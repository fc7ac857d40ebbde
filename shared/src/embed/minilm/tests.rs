//! Word pieces and vectors compared with those of the reference tokenizer and of a network written in numpy
//! (`tests/data/minilm.py` makes `tests/data/minilm.json`), and the errors of an incomplete model.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::json;

use super::network::{Config, Network, ReadNetworkError};
use super::word_pieces::WordPieces;
use super::{BATCH, CONFIG, MAX_PIECES, MINILM_MODEL, MiniLm, TOKENIZER, TensorFile, WEIGHTS};
use crate::embed::weights::ReadWeightsError;
use crate::embed::{LoadModelError, TextEmbedder as _};
use crate::testing::model_folder;

/// Largest difference of a component from the same in double precision.
const NEAR: f32 = 1e-4;

#[derive(Deserialize)]
struct Golden {
    embedded: Vec<Embedded>,
    split: Vec<Split>,
    tiny: Vec<Tiny>,
}

#[derive(Deserialize)]
struct Embedded {
    text: String,
    pieces: Vec<u32>,
    vector: Vec<f32>,
}

#[derive(Deserialize)]
struct Split {
    text: String,
    pieces: Vec<u32>,
}

#[derive(Deserialize)]
struct Tiny {
    pieces: Vec<u32>,
    vector: Vec<f32>,
}

fn golden() -> Golden {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/minilm.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn assert_near(found: &[f32], expected: &[f32], of: &str) {
    let apart = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let furthest = apart.fold(0.0, f32::max);
    assert_eq!(found.len(), expected.len(), "{of}");
    assert!(furthest < NEAR, "{of}: {furthest}");
}

#[test]
fn word_pieces_are_those_of_the_reference() {
    let Some(folder) = model_folder(MINILM_MODEL) else {
        return;
    };
    let pieces = WordPieces::parse(&std::fs::read(folder.join(TOKENIZER)).unwrap()).unwrap();
    let golden = golden();
    let embedded = golden.embedded.iter().map(|golden| (&golden.text, &golden.pieces));
    for (text, expected) in embedded.chain(golden.split.iter().map(|golden| (&golden.text, &golden.pieces))) {
        assert_eq!(&pieces.encode(text, MAX_PIECES), expected, "{text:?}");
    }
}

#[tokio::test]
async fn vectors_are_those_of_the_reference() {
    let Some(folder) = model_folder(MINILM_MODEL) else {
        return;
    };
    let model = MiniLm::load(&folder).unwrap();
    assert_eq!(model.model(), "all-minilm-l6-v2:ad404e0d");

    let golden = golden();
    let texts: Vec<String> = golden.embedded.iter().map(|golden| golden.text.clone()).collect();
    assert!(texts.len() <= BATCH);

    let together = model.embed(texts.clone()).await.unwrap();
    for ((text, vector), golden) in texts.iter().zip(&together).zip(&golden.embedded) {
        assert_near(vector, &golden.vector, text);
        assert_near(
            &model.embed_texts(std::slice::from_ref(text))[0],
            vector,
            "alone as together",
        );
    }

    let again: Vec<String> = texts.iter().rev().cycle().take(2 * texts.len()).cloned().collect();
    let vectors = model.embed_texts(&again);
    for (vector, expected) in vectors.iter().zip(together.iter().rev().cycle()) {
        assert_near(vector, expected, "beside others");
    }

    assert_eq!(vectors.len(), again.len());
    assert!(model.embed(Vec::new()).await.unwrap().is_empty());
}

/// Shapes of every tensor of an artificial network of two layers; `hidden` wide.
fn tiny_shapes(hidden: usize) -> Vec<(String, Vec<usize>)> {
    let mut shapes = vec![
        ("embeddings.word_embeddings.weight".to_owned(), vec![8, hidden]),
        ("embeddings.position_embeddings.weight".to_owned(), vec![6, hidden]),
        ("embeddings.token_type_embeddings.weight".to_owned(), vec![2, hidden]),
    ];
    let mut add = |part: String, weight: Vec<usize>| {
        shapes.push((format!("{part}.bias"), vec![weight[0]]));
        shapes.push((format!("{part}.weight"), weight));
    };

    add("embeddings.LayerNorm".to_owned(), vec![hidden]);

    for layer in ["encoder.layer.0", "encoder.layer.1"] {
        for part in ["self.query", "self.key", "self.value", "output.dense"] {
            add(format!("{layer}.attention.{part}"), vec![hidden, hidden]);
        }
        add(format!("{layer}.attention.output.LayerNorm"), vec![hidden]);
        add(format!("{layer}.intermediate.dense"), vec![2 * hidden, hidden]);
        add(format!("{layer}.output.dense"), vec![hidden, 2 * hidden]);
        add(format!("{layer}.output.LayerNorm"), vec![hidden]);
    }

    shapes.sort();
    shapes
}

/// Weights of that network as a file, made by a formula that `minilm.py` uses too.
fn tiny_weights(shapes: &[(String, Vec<usize>)]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (place, (name, shape)) in (1..).zip(shapes) {
        let from = data.len();
        let size = if name.ends_with(".bias") { 0.1 } else { 1.0 };
        for at in 0..shape.iter().product::<usize>() {
            let value = (0.7 * f64::from(place) + 1.3 * at as f64).sin() * size;
            data.extend_from_slice(&(value as f32).to_le_bytes());
        }

        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [from, data.len()]});
        header.insert(name.clone(), entry);
    }

    let header = serde_json::Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend(data);

    file
}

fn tiny_config() -> serde_json::Value {
    json!({"model_type": "bert", "hidden_act": "gelu", "hidden_size": 8, "intermediate_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 2, "layer_norm_eps": 1e-12, "max_position_embeddings": 6,
        "vocab_size": 8, "type_vocab_size": 2})
}

fn tiny_tokenizer() -> serde_json::Value {
    json!({"normalizer": {"type": "BertNormalizer", "lowercase": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4, "b": 5, "##c": 6, "d": 7}}})
}

#[test]
fn the_network_is_that_of_the_reference() {
    let config = Config::parse(tiny_config().to_string().as_bytes()).unwrap();
    let file = tiny_weights(&tiny_shapes(8));
    let network = Network::read(&config, &TensorFile::open(&file).unwrap()).unwrap();
    let golden = golden().tiny;
    let texts: Vec<Vec<u32>> = golden.iter().map(|golden| golden.pieces.clone()).collect();

    for (vector, golden) in network.embed(&texts).iter().zip(&golden) {
        assert_near(vector, &golden.vector, &format!("{:?}", golden.pieces));
    }

    assert!(network.embed(&[]).is_empty());

    let strange = network.embed(&[vec![2, 99, 3, 4, 4, 4, 4, 4, 4], Vec::new()]);
    assert!(strange[0].iter().all(|value| value.is_finite()), "{strange:?}");
    assert_eq!(strange[1], [0.0; 8], "nothing points nowhere");
}

/// Creates a folder with the artificial model, from the given files.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write(CONFIG, tiny_config().to_string().as_bytes());
        folder.write(TOKENIZER, tiny_tokenizer().to_string().as_bytes());
        folder.write(WEIGHTS, &tiny_weights(&tiny_shapes(8)));
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    fn load(&self) -> Result<MiniLm, LoadModelError> {
        MiniLm::load(self.0.path())
    }
}

#[test]
fn a_text_is_cut_to_what_the_network_can_place() {
    let model = Folder::new().load().unwrap();
    let fits = model.0.pieces.encode("ac b a", MAX_PIECES);
    assert_eq!(fits, [2, 4, 6, 5, 4, 3], "as many as there are places");
    let vectors = model.embed_texts(&["ac b ".repeat(50), "ac b ac".to_owned(), "ac b".to_owned()]);
    let fits = model.0.network.embed(&[fits]);
    assert_near(&vectors[0], &fits[0], "cut, and still ended");
    assert_near(&vectors[1], &fits[0], "one piece too long");
    let apart = vectors[2].iter().zip(&fits[0]).map(|(a, b)| (a - b).abs());
    assert!(apart.fold(0.0, f32::max) > NEAR, "fewer pieces are something else");
}

#[test]
fn a_text_without_words_has_no_vector() {
    let model = Folder::new().load().unwrap();
    let vectors = model.embed_texts(&["", "a", " \u{200b}\n"].map(str::to_owned));
    assert_eq!([&vectors[0], &vectors[2]], [&[0.0; 8], &[0.0; 8]]);
    assert_ne!(vectors[1], [0.0; 8]);
}

#[test]
fn a_folder_is_opened_as_the_model_that_it_holds() {
    let folder = Folder::new();
    let opened = crate::embed::open(folder.0.path()).unwrap();
    assert_eq!(opened.model(), folder.load().unwrap().model());
    std::fs::remove_file(folder.path(CONFIG)).unwrap();
    let error = crate::embed::open(folder.0.path()).unwrap_err();
    assert!(
        matches!(error, LoadModelError::Tokenizer(_)),
        "no word vectors: {error}"
    );
}

#[test]
fn another_file_in_the_same_place_is_another_model() {
    let folder = Folder::new();
    let before = folder.load().unwrap().model().to_owned();
    let mut weights = tiny_weights(&tiny_shapes(8));
    *weights.last_mut().unwrap() ^= 1;
    folder.write(WEIGHTS, &weights);
    let other = folder.load().unwrap().model().to_owned();

    assert_ne!(other, before);

    let mut tokenizer = tiny_tokenizer();
    tokenizer["model"]["max_input_chars_per_word"] = 3.into();
    folder.write(TOKENIZER, tokenizer.to_string().as_bytes());

    assert_ne!(folder.load().unwrap().model(), other);
}

#[test]
fn a_missing_file_is_named_and_so_is_what_brings_it() {
    for name in [CONFIG, TOKENIZER, WEIGHTS] {
        let folder = Folder::new();
        std::fs::remove_file(folder.path(name)).unwrap();
        let error = folder.load().unwrap_err();

        assert!(matches!(&error, LoadModelError::Absent { file, .. } if *file == folder.path(name)));

        let said = error.to_string();
        assert!(
            said.contains(name) && said.contains("`deploy/fetch-tools all-minilm-l6-v2`"),
            "{said}"
        );
    }
}

#[test]
fn files_of_another_model_are_refused() {
    let folder = Folder::new();
    folder.write(WEIGHTS, &tiny_weights(&tiny_shapes(12)));
    let error = folder.load().unwrap_err();
    let LoadModelError::Network(ReadNetworkError::Weights(error)) = error else {
        panic!("{error:?}");
    };

    assert!(matches!(error, ReadWeightsError::Shape { .. }), "{error}");

    let folder = Folder::new();
    folder.write(WEIGHTS, &tiny_weights(&tiny_shapes(8)[..5]));
    let error = folder.load().unwrap_err();

    assert!(
        matches!(
            &error,
            LoadModelError::Network(ReadNetworkError::Weights(ReadWeightsError::Absent(_)))
        ),
        "{error:?}"
    );

    let folder = Folder::new();
    folder.write(WEIGHTS, b"<html>not found</html>");
    assert!(matches!(
        folder.load(),
        Err(LoadModelError::Weights(ReadWeightsError::Header(_)))
    ));

    let folder = Folder::new();
    let mut config = tiny_config();
    for size in [7, 9] {
        config["vocab_size"] = size.into();
        folder.write(CONFIG, config.to_string().as_bytes());
        let error = folder.load().unwrap_err();

        assert!(
            matches!(error, LoadModelError::Mismatch { pieces: 8, rows } if rows == size),
            "{error}"
        );
    }
}

#[test]
fn another_network_is_refused_by_the_name_of_what_differs() {
    for (key, value) in [
        ("model_type", json!("roberta")),
        ("hidden_act", json!("relu")),
        ("position_embedding_type", json!("relative_key")),
        ("num_attention_heads", json!(3)),
        ("num_attention_heads", json!(0)),
        ("num_hidden_layers", json!(1_000)),
    ] {
        let mut config = tiny_config();
        config[key] = value;
        let error = Config::parse(config.to_string().as_bytes()).unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }

    assert!(matches!(Config::parse(b"{}"), Err(ReadNetworkError::Json(_))));
}
