//! `search()`: its results and their quality, on the labelled set in `tests/data/search.json`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use tokio::sync::Semaphore;

use super::Case;
use super::samples::{at, event, stored};
use crate::clock::{SystemClock, pause};
use crate::embed::{EmbedTextsError, MINILM_MODEL, MiniLm, STATIC_MODEL, StaticModel, TextEmbedder};
use crate::model::event::{Event, EventDirection, EventId};
use crate::projection::api::{SearchReply, SearchRequest};
use crate::projection::search::keep;
use crate::projection::{AppliedRecord, Projection};
use crate::testing::model_folder;

/// Longest wait for vectors: a network computes them in an unoptimised build, beside other tests.
const ALL_THERE: Duration = Duration::from_secs(240);

#[derive(Deserialize)]
struct Labelled {
    /// Id, channel, text.
    documents: Vec<(String, String, String)>,
    /// Query, ids of the right answers, whether it is a paraphrase.
    queries: Vec<(String, Vec<String>, String)>,
}

fn labelled() -> Labelled {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/search.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn documents(labelled: &Labelled) -> Vec<AppliedRecord> {
    let stored_at = |(n, (id, channel, text)): (u64, &(String, String, String))| {
        let mut event = Event::new(EventId::parse(format!("{channel}:{id}")).unwrap(), channel, "p", at(n));
        event.content.clone_from(text);
        stored(n, event)
    };
    (1..).zip(&labelled.documents).map(stored_at).collect()
}

pub(super) fn keep_vectors(projection: &Projection, embedder: Arc<dyn TextEmbedder>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(keep::run(projection.clone(), embedder, Arc::new(SystemClock)))
}

pub(super) async fn vectors(projection: &Projection, count: usize) {
    let all_there = async {
        while projection.vector_count() < count {
            pause(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(ALL_THERE, all_there).await.unwrap();
}

async fn found(projection: &Projection, request: SearchRequest) -> Vec<String> {
    shown(&projection.search(request).await.unwrap())
}

/// As [`found`], with the time that the model needs on a busy machine.
async fn found_by_meaning(projection: &Projection, request: SearchRequest) -> Vec<String> {
    let answered = async {
        loop {
            let reply = projection.search(request.clone()).await.unwrap();
            if reply.by_meaning {
                return shown(&reply);
            }
        }
    };
    tokio::time::timeout(ALL_THERE, answered).await.unwrap()
}

fn shown(reply: &SearchReply) -> Vec<String> {
    assert!(
        reply.hits.iter().all(|hit| hit.score > 0.0 && hit.score <= 1.0),
        "{reply:?}"
    );
    assert!(
        reply.hits.windows(2).all(|pair| pair[0].score >= pair[1].score),
        "{reply:?}"
    );

    reply
        .hits
        .iter()
        .map(|hit| hit.event_id.as_str().split_once(':').unwrap().1.to_owned())
        .collect()
}

fn query(text: &str) -> SearchRequest {
    SearchRequest {
        query: text.to_owned(),
        ..SearchRequest::default()
    }
}

/// Returns the share of the right answers among the first five, and the mean reciprocal rank of the first right
/// answer.
async fn quality(projection: &Projection, labelled: &Labelled, kind: Option<&str>) -> (f64, f64) {
    let (mut recall, mut rank, mut count) = (0.0, 0.0, 0.0);
    for (text, answers, of_kind) in &labelled.queries {
        if kind.is_some_and(|kind| kind != of_kind) {
            continue;
        }

        let ids = if projection.vector_count() > 0 {
            found_by_meaning(projection, query(text)).await
        } else {
            found(projection, query(text)).await
        };
        let among = answers
            .iter()
            .filter(|answer| ids.iter().take(5).any(|id| id == *answer))
            .count();

        let first = ids.iter().position(|id| answers.contains(id));
        if first.is_none_or(|at| at > 4) {
            println!("{of_kind} missed: {text} -> {ids:?}");
        }

        recall += among as f64 / answers.len() as f64;
        rank += first.map_or(0.0, |at| 1.0 / (at as f64 + 1.0));
        count += 1.0;
    }

    (recall / count, rank / count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quality_of_words_alone() {
    let labelled = labelled();
    let case = Case::with(documents(&labelled)).await;
    let (recall, mrr) = quality(&case.projection, &labelled, Some("words")).await;
    println!("words alone, queries in the documents' words: recall@5 {recall:.3}, MRR {mrr:.3}");
    assert!(recall >= 0.95 && mrr >= 0.95, "recall@5 {recall:.3}, MRR {mrr:.3}");
    let (recall, mrr) = quality(&case.projection, &labelled, Some("paraphrase")).await;
    println!("words alone, paraphrases: recall@5 {recall:.3}, MRR {mrr:.3}");
}

/// Kind of query, minimum recall@5, minimum MRR.
type Bounds = [(Option<&'static str>, f64, f64); 3];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quality_with_the_static_model() {
    let Some(folder) = model_folder(STATIC_MODEL) else {
        return;
    };
    let bounds = [
        (Some("words"), 0.95, 0.95),
        (Some("paraphrase"), 0.6, 0.5),
        (None, 0.75, 0.7),
    ];
    finds(Arc::new(StaticModel::load(&folder).unwrap()), bounds).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quality_with_minilm() {
    let Some(folder) = model_folder(MINILM_MODEL) else {
        return;
    };
    let bounds = [
        (Some("words"), 0.95, 0.95),
        (Some("paraphrase"), 0.83, 0.83),
        (None, 0.85, 0.79),
    ];
    finds(Arc::new(MiniLm::load(&folder).unwrap()), bounds).await;
}

/// Asserts how well words and the meaning by `embedder` find the labelled answers.
async fn finds(embedder: Arc<dyn TextEmbedder>, bounds: Bounds) {
    let labelled = labelled();
    let case = Case::with(documents(&labelled)).await;
    let model = embedder.model().to_owned();
    let keeping = keep_vectors(&case.projection, embedder);
    vectors(&case.projection, labelled.documents.len()).await;

    for (kind, least_recall, least_mrr) in bounds {
        let (recall, mrr) = quality(&case.projection, &labelled, kind).await;
        let of = kind.unwrap_or("all");
        println!("{model}, {of}: recall@5 {recall:.3}, MRR {mrr:.3}");

        assert!(
            recall >= least_recall && mrr >= least_mrr,
            "{model}, {of}: recall@5 {recall:.3}, MRR {mrr:.3}"
        );
    }

    keeping.abort();
}

/// Embedder for which texts that begin with the same letter point in the same direction.
#[derive(Debug)]
pub(super) struct Letters(pub(super) &'static str);

#[async_trait]
impl TextEmbedder for Letters {
    fn model(&self) -> &str {
        self.0
    }

    async fn embed(&self, texts: Vec<String>) -> Result<Vec<Vec<f32>>, EmbedTextsError> {
        if texts.iter().any(|text| text == "unavailable") {
            return Err(EmbedTextsError::Unavailable("down".to_owned()));
        }

        let vector = |text: &String| {
            let mut vector = vec![0.0; 26];
            if let Some(letter) = text.bytes().next().filter(u8::is_ascii_lowercase) {
                vector[usize::from(letter - b'a')] = 1.0;
            }
            vector
        };

        Ok(texts.iter().map(vector).collect())
    }
}

pub(super) fn text(sequence: u64, channel: &str, id: u64, content: &str, direction: EventDirection) -> AppliedRecord {
    let mut event = event(id);
    event.channel = channel.to_owned();
    event.content = content.to_owned();
    event.direction = direction;
    stored(sequence, event)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_limits_changes_and_a_silent_embedder() {
    let received = EventDirection::Received;
    let case = Case::with(vec![
        text(1, "sms", 1, "apple pie", received),
        text(2, "email", 2, "avocado toast", received),
        text(3, "sms", 3, "banana split", received),
        text(4, "sms", 4, "", received),
    ])
    .await;

    let projection = &case.projection;
    let keeping = keep_vectors(projection, Arc::new(Letters("letters")));
    vectors(projection, 3).await;

    assert_eq!(
        found(projection, query("apple")).await,
        ["demo/1", "demo/2"],
        "both know the first"
    );

    let only = |channels: &[&str]| Some(channels.iter().map(ToString::to_string).collect());
    let request = SearchRequest {
        channels: only(&["email"]),
        ..query("apple")
    };

    assert_eq!(found(projection, request).await, ["demo/2"]);

    let request = SearchRequest {
        since: Some(at(2)),
        until: Some(at(3)),
        ..query("apple")
    };
    assert_eq!(found(projection, request).await, ["demo/2"]);

    let request = SearchRequest {
        limit: Some(1),
        ..query("apple")
    };
    assert_eq!(found(projection, request).await, ["demo/1"]);
    assert_eq!(found(projection, query("")).await, [""; 0]);

    let reply = projection.search(query("unavailable")).await.unwrap();
    assert!(
        !reply.by_meaning && reply.hits.is_empty(),
        "words alone answer: {reply:?}"
    );

    projection
        .apply(vec![
            text(5, "sms", 1, "zucchini", EventDirection::Updated),
            text(6, "email", 2, "avocado toast", EventDirection::Deleted),
        ])
        .await
        .unwrap();

    let changed = async {
        while found(projection, query("zebra")).await != ["demo/1"] {
            pause(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), changed).await.unwrap();
    assert_eq!(found(projection, query("apple")).await, [""; 0]);

    keeping.abort();
}

/// Embedder that never finishes a text.
#[derive(Debug)]
struct Stuck(Semaphore);

#[async_trait]
impl TextEmbedder for Stuck {
    fn model(&self) -> &str {
        "stuck"
    }

    fn batch(&self) -> usize {
        8
    }

    async fn embed(&self, texts: Vec<String>) -> Result<Vec<Vec<f32>>, EmbedTextsError> {
        if texts.len() == self.batch() {
            self.0.add_permits(1);
        }
        std::future::pending().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_comes_back_has_each_event_once() {
    let case = Case::with((1..=600).map(|n| stored(n, event(n))).collect()).await;
    let keeping = keep_vectors(&case.projection, Arc::new(Letters("old")));
    vectors(&case.projection, 600).await;
    keeping.abort();
    case.projection.close().await;
    let other = Projection::open(case.projection.path()).unwrap();

    // Another model comes, and goes before it has embedded anything.
    let stuck = Arc::new(Stuck(Semaphore::new(0)));
    let keeping = keep_vectors(&other, Arc::clone(&stuck) as Arc<dyn TextEmbedder>);
    stuck.0.acquire().await.unwrap().forget();
    keeping.abort();
    other.close().await;
    let other = Projection::open(case.projection.path()).unwrap();
    let keeping = keep_vectors(&other, Arc::new(Letters("old")));

    let far = "SELECT coalesce(max(sequence), 0) FROM nexus_positions WHERE stream = 'embeddings:old'";
    let all_again = async {
        while case.value::<i64>(far) < 600 || other.vector_count() < 600 {
            pause(Duration::from_millis(5)).await;
        }
    };

    tokio::time::timeout(Duration::from_secs(60), all_again).await.unwrap();
    assert_eq!(other.vector_count(), 600);

    keeping.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_taken_in_and_found_while_none_gets_embedded() {
    let case = Case::with((1..=20).map(|n| stored(n, event(n))).collect()).await;
    let stuck = Arc::new(Stuck(Semaphore::new(0)));
    let keeping = keep_vectors(&case.projection, Arc::clone(&stuck) as Arc<dyn TextEmbedder>);
    stuck.0.acquire().await.unwrap().forget();

    for first in (21..=1_000).step_by(98) {
        let some = (first..first + 98).map(|n| stored(n, event(n))).collect();
        case.projection.apply(some).await.unwrap();
    }

    assert_eq!(case.value::<i64>("SELECT count(*) FROM events"), 1_000);
    assert_eq!(case.projection.vector_count(), 0);

    let reply = case.projection.search(query(&event(7).content)).await.unwrap();
    assert!(!reply.by_meaning && !reply.hits.is_empty(), "words alone: {reply:?}");

    keeping.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vectors_outlive_a_restart_and_not_their_model() {
    let all: Vec<AppliedRecord> = (1..=600).map(|n| stored(n, event(n))).collect();
    let case = Case::with(all).await;
    let keeping = keep_vectors(&case.projection, Arc::new(Letters("old")));
    vectors(&case.projection, 600).await;
    keeping.abort();
    case.projection.close().await;
    let again = Projection::open(case.projection.path()).unwrap();
    let keeping = keep_vectors(&again, Arc::new(Letters("old")));
    vectors(&again, 600).await;

    assert_eq!(
        case.value::<i64>("SELECT count(*) FROM embeddings WHERE model = 'old' AND length(vector) = 26"),
        600
    );

    keeping.abort();
    again.close().await;
    let other = Projection::open(case.projection.path()).unwrap();
    let keeping = keep_vectors(&other, Arc::new(Letters("new")));
    vectors(&other, 600).await;

    assert_eq!(
        case.value::<i64>("SELECT count(*) FROM embeddings WHERE model = 'new'"),
        600
    );
    assert_eq!(
        case.value::<i64>("SELECT count(*) FROM embeddings WHERE model <> 'new'"),
        0
    );

    keeping.abort();
}
