//! What a copy of the read model lends to another: its file, and vectors.

use std::time::Duration;

use shared::embed::{MINILM_MODEL, MiniLm, TextEmbedder as _};
use shared::process::status::ask_replicas;
use shared::projection::Projection;
use shared::projection::search::peers::{VectorsQuestion, VectorsReply, text_digest};
use shared::testing::{eventually, eventually_some, model_folder};
use shared::wire::headers::Headers;
use shared::wire::topology::streams::EVENTS;

use crate::copies::{PLAIN, check, publish, world};
use crate::world::{DEADLINE, World, event};

#[tokio::test(flavor = "multi_thread")]
async fn a_new_copy_begins_with_the_file_of_another_replica_if_the_store_has_no_snapshot() {
    let mut world = world(2).await;
    // A process that was killed while it fetched a file has left the beginning of it.
    let unfinished = world.read_model("h-0").with_extension("fetching");
    std::fs::create_dir_all(unfinished.parent().expect("a folder")).expect("made");
    std::fs::write(&unfinished, "SQLite").expect("written");
    world.start("h-0");
    world.wait_for_members(1).await;
    assert!(!unfinished.exists() && world.read_model("h-0").exists());
    let text = "hello ".repeat(300);
    let events: Vec<_> = (0..300)
        .map(|number| event(&format!("v{}", number % 40), number, &text))
        .collect();
    world.publish_all(&events).await;
    world.wait_for_records(300).await;
    world.wait_until_acked().await;

    // The file of the first copy alone has these events.
    let purged = world.bus.purge_subject(EVENTS, ">").await.expect("purged");
    assert_eq!(purged, 300);
    world.start("h-1");
    world.wait_for_members(2).await;
    eventually("the second copy has a file", async || world.read_model("h-1").exists()).await;

    // Both go on from there: nothing is evaluated again, and nothing is missing.
    publish(&world, 300, 100).await;
    check(&world, 400).await;
    world.replica("h-1").kill();
    let fetched = Projection::open(&world.read_model("h-1")).expect("it opens");
    let bytes = std::fs::metadata(fetched.path()).expect("its size").len();
    assert!(bytes > 512 * 1024, "it was fetched in one part: {bytes} bytes");
    for event in &events {
        let first = fetched.first_sequence(&event.id).expect("readable");
        assert!(first.is_some_and(|first| first <= 300), "{}: {first:?}", event.id);
    }
}

/// Returns how many texts replica `name` has embedded, and of how many it took the vectors, as it tells others.
async fn embedded_and_taken(world: &World, name: &str) -> (f64, f64) {
    eventually_some("the replica tells its counters", async || {
        let heard = ask_replicas(&world.bus, Duration::from_secs(3)).await.ok()?;
        let replica = heard.into_iter().find(|replica| replica.instance == name)?;
        let counted = |counter: &str| replica.metrics.get(counter).copied();
        let embedded = counted("nexus_projection_embedded_total")?;
        Some((embedded, counted("nexus_projection_vectors_taken_total")?))
    })
    .await
}

/// Returns the vectors that the copy of replica `name` lends, once it has all that `question` asks for.
async fn vectors(world: &World, name: &str, question: &VectorsQuestion) -> VectorsReply {
    let (subject, headers) = (format!("nexus.svc.model.{name}.vectors"), Headers::new());
    eventually_some("the copy has every vector", async || {
        let payload = serde_json::to_vec(question).expect("JSON").into();
        let asked = world.bus.request_bytes(&subject, &headers, payload, DEADLINE);
        let answer = asked.await.ok()?;
        let reply = VectorsReply::from_bytes(&answer.payload).expect("a reply");
        (reply.len() == question.texts.len()).then_some(reply)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_is_embedded_by_one_copy_and_by_another_once_that_is_gone() {
    // Vectors of the static model are made sooner than they are asked for.
    let Some(folder) = model_folder(MINILM_MODEL) else {
        return;
    };
    let model = MiniLm::load(&folder).expect("the model").model().to_owned();
    let mut world = World::new(&[("plain.ts", PLAIN)]).await;
    world.sections = format!(
        "embedder = \"minilm\"\nembedder_model = \"{}\"\n[hooks.read_model]\ncopies = 2\n",
        folder.display()
    );
    world.start("h-0");
    world.wait_for_members(1).await;
    world.start("h-1");
    world.wait_for_members(2).await;

    // A copy that hears nothing of the other one for two seconds embeds itself for a while: on a busy machine, not
    // in each round.
    let mut question = VectorsQuestion {
        model,
        texts: Vec::new(),
    };
    let mut number = 0;
    eventually("the second copy takes what the first has embedded", async || {
        let (embedded, taken) = embedded_and_taken(&world, "h-1").await;
        let texts = publish_texts(&world, number, 20).await;
        number += 20;
        question.texts.extend(texts);

        let first = vectors(&world, "h-0", &question).await;
        assert_eq!(vectors(&world, "h-1", &question).await, first);
        let after = embedded_and_taken(&world, "h-1").await;
        after.0 <= embedded && after.1 >= taken + 20.0
    })
    .await;
    assert!(embedded_and_taken(&world, "h-0").await.0 >= 20.0);

    world.replica("h-0").kill();
    let (embedded, _) = embedded_and_taken(&world, "h-1").await;
    question.texts.extend(publish_texts(&world, number, 20).await);
    vectors(&world, "h-1", &question).await;
    eventually("the second copy has counted them", async || {
        embedded_and_taken(&world, "h-1").await.0 >= embedded + 20.0
    })
    .await;
}

/// Publishes `count` events with texts of their own. Returns their sequences with the digests of the texts.
async fn publish_texts(world: &World, from: u32, count: u32) -> Vec<(u64, u64)> {
    let mut texts = Vec::new();
    for number in from..from + count {
        let text = format!("message {number} of the day");
        let sequence = world.publish(&event(&format!("v{}", number % 40), number, &text)).await;
        texts.push((sequence, text_digest(&text)));
    }
    texts
}
