//! Embedder that uses an OpenAI-compatible `/v1/embeddings` endpoint.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use shared::embed::{EmbedTextsError, TextEmbedder, embedded_text};
use shared::platform::http_answer::{ReadBodyError, read_bounded};
use shared::process::SecretValue;

/// Time limit for one request.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Most texts in one request; servers refuse more than some thousands of tokens at once.
const MAX_TEXTS: usize = 64;

/// Largest response that is read, in bytes: 64 vectors of 4,096 numbers, as text.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// Client for the endpoint, with the requested model.
#[derive(Debug)]
pub(super) struct RemoteEmbedder {
    client: reqwest::Client,
    url: String,
    model: String,
    key: Option<SecretValue>,
}

#[derive(Serialize)]
struct Question<'a> {
    model: &'a str,
    input: Vec<&'a str>,
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    index: usize,
    embedding: Vec<f32>,
}

impl RemoteEmbedder {
    /// Creates the client for `model` at the base address `url` (`…/v1`).
    pub(super) fn new(url: &str, model: &str, key: Option<&SecretValue>) -> Result<Self, String> {
        let client = reqwest::Client::builder().timeout(TIMEOUT).build();
        Ok(Self {
            client: client.map_err(|error| error.to_string())?,
            url: format!("{}/embeddings", url.trim_end_matches('/')),
            model: model.to_owned(),
            key: key.cloned(),
        })
    }

    async fn request_vectors(&self, input: Vec<&str>) -> Result<Vec<Vec<f32>>, EmbedTextsError> {
        let count = input.len();
        let question = Question {
            model: &self.model,
            input,
        };

        let mut request = self.client.post(&self.url).json(&question);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key.reveal());
        }

        // The address may contain a key, which must not reach the log.
        let unavailable = |error: reqwest::Error| EmbedTextsError::Unavailable(error.without_url().to_string());
        let mut response = request.send().await.map_err(unavailable)?;
        let status = response.status();
        if !status.is_success() {
            return Err(EmbedTextsError::Unavailable(format!("the server answered {status}")));
        }

        let body = read_bounded(&mut response, MAX_ANSWER_BYTES).await;
        let body = body.map_err(|error| match error {
            ReadBodyError::Lost(error) => unavailable(error),
            ReadBodyError::TooLong { .. } => EmbedTextsError::Answer(error.to_string()),
        })?;
        read(&body, count)
    }
}

/// Parses a response into one vector of length 1 per text, in the order of the request.
fn read(body: &[u8], count: usize) -> Result<Vec<Vec<f32>>, EmbedTextsError> {
    let answer: Answer = serde_json::from_slice(body).map_err(|error| EmbedTextsError::Answer(error.to_string()))?;
    let mut vectors = vec![Vec::new(); count];
    for row in answer.data {
        let place = vectors.get_mut(row.index);
        *place.ok_or_else(|| EmbedTextsError::Answer(format!("a vector for text {} of {count}", row.index)))? =
            unit_vector(row.embedding);
    }

    match vectors.iter().position(Vec::is_empty) {
        Some(at) => Err(EmbedTextsError::Answer(format!("no vector for text {at} of {count}"))),
        None => Ok(vectors),
    }
}

fn unit_vector(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|value| *value /= length);
    }
    vector
}

#[async_trait]
impl TextEmbedder for RemoteEmbedder {
    fn model(&self) -> &str {
        &self.model
    }

    fn is_remote(&self) -> bool {
        true
    }

    async fn embed(&self, texts: Vec<String>) -> Result<Vec<Vec<f32>>, EmbedTextsError> {
        let mut vectors = Vec::with_capacity(texts.len());
        for some in texts.chunks(MAX_TEXTS) {
            vectors.extend(
                self.request_vectors(some.iter().map(|text| embedded_text(text)).collect())
                    .await?,
            );
        }
        Ok(vectors)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Starts a server that responds once, and returns the request that it received.
    async fn answering(status: &'static str, body: String) -> (RemoteEmbedder, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/v1/", listener.local_addr().expect("an address"));
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("somebody asks");
            let mut heard = Vec::new();
            while !heard.ends_with(b"}") {
                assert!(
                    stream.read_buf(&mut heard).await.expect("reads") > 0,
                    "the question is cut off"
                );
            }

            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            stream.write_all((head + &body).as_bytes()).await.expect("writes");

            String::from_utf8_lossy(&heard).into_owned()
        });

        (RemoteEmbedder::new(&url, "small", None).expect("a client"), served)
    }

    #[tokio::test]
    async fn vectors_come_back_in_the_order_of_the_texts() {
        let body = r#"{"object":"list","data":[{"index":1,"embedding":[0,2]},{"index":0,"embedding":[3,4]}]}"#;
        let (remote, served) = answering("200 OK", body.to_owned()).await;
        let vectors = remote
            .embed(vec!["one".to_owned(), "two".to_owned()])
            .await
            .expect("vectors");

        assert_eq!(vectors, [[0.6, 0.8], [0.0, 1.0]]);

        let heard = served.await.expect("served");
        assert!(heard.starts_with("POST /v1/embeddings HTTP/1.1"), "{heard}");
        assert!(heard.ends_with(r#"{"model":"small","input":["one","two"]}"#), "{heard}");
    }

    #[tokio::test]
    async fn refusals_and_rubbish_are_told_apart() {
        for (status, body, unavailable) in [
            ("429 Too Many Requests", "{}", true),
            ("200 OK", "{\"data\":[]}", false),
            ("200 OK", "{\"data\":[{\"index\":7,\"embedding\":[1]}]}", false),
            ("200 OK", "not json }", false),
        ] {
            let (remote, served) = answering(status, body.to_owned()).await;
            let error = remote.embed(vec!["x".to_owned()]).await.expect_err(body);
            assert_eq!(matches!(error, EmbedTextsError::Unavailable(_)), unavailable, "{error}");
            served.await.expect("served");
        }
    }
}
