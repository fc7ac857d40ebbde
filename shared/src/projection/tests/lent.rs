//! Vectors that one copy of the read model takes from another.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::Case;
use super::search::{Letters, keep_vectors, text, vectors};
use crate::clock::{SystemClock, pause};
use crate::embed::{EmbedTextsError, TextEmbedder};
use crate::model::event::EventDirection;
use crate::projection::search::keep;
use crate::projection::search::peers::{VectorSource, VectorsQuestion, VectorsReply};
use crate::projection::{AppliedRecord, Projection};

const MODEL: &str = "letters";

/// The embedder of the copy that takes vectors, which remembers the texts that it has embedded.
#[derive(Debug, Default)]
struct Remembering(Mutex<Vec<String>>);

impl Remembering {
    fn embedded(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

#[async_trait]
impl TextEmbedder for Remembering {
    fn model(&self) -> &str {
        MODEL
    }

    async fn embed(&self, texts: Vec<String>) -> Result<Vec<Vec<f32>>, EmbedTextsError> {
        self.0.lock().unwrap().extend(texts.iter().cloned());
        Letters(MODEL).embed(texts).await
    }
}

/// The other copy, which may be away.
#[derive(Debug)]
struct Other(Option<Projection>);

#[async_trait]
impl VectorSource for Other {
    fn is_there(&self) -> bool {
        true
    }

    async fn lend(&self, question: VectorsQuestion) -> Option<VectorsReply> {
        let other = self.0.as_ref()?;
        let lent = other.lend_vectors(question).await.unwrap()?;
        // As it comes over the network.
        Some(VectorsReply::from_bytes(&lent.to_bytes()).unwrap())
    }
}

fn keep_beside(projection: &Projection, other: Option<&Projection>) -> (Arc<Remembering>, tokio::task::JoinHandle<()>) {
    let embedder = Arc::<Remembering>::default();
    let other = Arc::new(Other(other.cloned()));
    let keeping = keep::run_beside(
        projection.clone(),
        Arc::clone(&embedder) as Arc<dyn TextEmbedder>,
        other,
        Arc::new(SystemClock),
    );
    (embedder, tokio::spawn(keeping))
}

/// Returns `count` events of which one in thirteen has no text, and one no vector.
fn events(count: u64) -> Vec<AppliedRecord> {
    let content = |n: u64| match n % 13 {
        0 => String::new(),
        1 => format!("No {n}"),
        letter => format!("{}{n}", ('a'..='z').nth(letter as usize).unwrap()),
    };
    let event = |n| text(n, "sms", n, &content(n), EventDirection::Received);
    (1..=count).map(event).collect()
}

/// Returns everything that is stored of the vectors.
fn stored_vectors(case: &Case) -> String {
    case.value(
        "SELECT group_concat(v) FROM (SELECT event_id || ' ' || model || ' ' || sequence || ' ' || scale || ' ' ||
           hex(vector) AS v FROM embeddings ORDER BY sequence)",
    )
}

/// Waits until `case` has embedded every event up to `sequence`.
async fn embedded(case: &Case, sequence: u64) {
    let far = "SELECT coalesce(max(sequence), 0) FROM nexus_positions WHERE stream = 'embeddings:letters'";
    let all_there = async {
        while case.value::<i64>(far) < sequence.cast_signed() {
            pause(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all_there).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_copy_takes_what_the_first_has_embedded_and_embeds_nothing() {
    let (first, second) = (Case::with(events(1_500)).await, Case::with(events(1_500)).await);
    let keeping = keep_vectors(&first.projection, Arc::new(Letters(MODEL)));
    embedded(&first, 1_500).await;

    let (embedder, beside) = keep_beside(&second.projection, Some(&first.projection));
    embedded(&second, 1_500).await;
    assert_eq!(embedder.embedded(), [""; 0]);
    assert_eq!(stored_vectors(&second), stored_vectors(&first));
    vectors(&second.projection, first.projection.vector_count()).await;

    // Their rows are as if they had been made here: another process goes on with them.
    beside.abort();
    second.projection.close().await;
    let again = Projection::open(second.projection.path()).unwrap();
    let alone = keep_vectors(&again, Arc::new(Letters(MODEL)));
    vectors(&again, first.projection.vector_count()).await;

    keeping.abort();
    alone.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vector_of_an_older_text_is_never_taken_for_the_newer_one() {
    let edited = || text(4, "sms", 2, "zucchini", EventDirection::Updated);
    let (first, second) = (Case::with(events(3)).await, Case::with(events(3)).await);
    let keeping = keep_vectors(&first.projection, Arc::new(Letters(MODEL)));
    embedded(&first, 3).await;

    // The second copy knows of an edit, the first does not.
    second.projection.apply(vec![edited()]).await.unwrap();
    let (embedder, beside) = keep_beside(&second.projection, Some(&first.projection));
    embedded(&second, 3).await;
    assert_eq!(embedder.embedded(), ["zucchini"]);

    // The first copy knows of it too, and has not embedded it: neither text has a vector there.
    keeping.abort();
    assert!(keeping.await.is_err());
    first.projection.apply(vec![edited()]).await.unwrap();
    for text in ["c2", "zucchini"] {
        let question = VectorsQuestion::new(MODEL, [(2, text), (3, "d3")].into_iter());
        let lent = first.projection.lend_vectors(question).await.unwrap();
        assert_eq!(lent.map(|lent| lent.len()), Some(1), "{text}");
    }

    // Of another model it has none.
    let question = VectorsQuestion::new("another", std::iter::once((3, "d3")));
    assert_eq!(first.projection.lend_vectors(question).await.unwrap(), None);

    let keeping = keep_vectors(&first.projection, Arc::new(Letters(MODEL)));
    let same = async {
        while stored_vectors(&second) != stored_vectors(&first) {
            pause(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), same).await.unwrap();

    keeping.abort();
    beside.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_beside_one_that_is_away_embeds_itself() {
    let case = Case::with(events(100)).await;
    let (embedder, beside) = keep_beside(&case.projection, None);
    embedded(&case, 100).await;
    assert_eq!(embedder.embedded().len(), 93, "those that have text");
    beside.abort();
}
