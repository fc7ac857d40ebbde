//! The demo's two senders: GitHub, and a page of the web chat.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures_util::{SinkExt as _, StreamExt as _};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use shared::clock::{IdSource as _, SystemIds};
use tokio_tungstenite::tungstenite::Message;

/// Posts a push as GitHub does, signed with `secret`. Returns the event's id.
///
/// # Errors
/// Fails if the gateway does not accept the push.
pub async fn github(gateway: &str, secret: &str) -> Result<String> {
    let body = json!({
        "ref": "refs/heads/main",
        "repository": { "full_name": "nexus/demo" },
        "pusher": { "name": "ada" },
        "sender": { "login": "ada" },
        "commits": [{ "id": "0123456789abcdef", "message": "Make it fast", "author": { "name": "Ada" } }],
    })
    .to_string();

    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).context("failed to create the signature")?;
    mac.update(body.as_bytes());
    let signature = hex::encode(mac.finalize().into_bytes());

    let answer = crate::http::client()?
        .post(format!("{gateway}/hooks/github"))
        .header("content-type", "application/json")
        .header("x-github-event", "push")
        .header("x-github-delivery", SystemIds.ulid().to_string())
        .header("x-hub-signature-256", format!("sha256={signature}"))
        .body(body)
        .send()
        .await
        .context("failed to post the webhook")?;

    if !answer.status().is_success() {
        bail!(
            "the webhook was answered {}: {}",
            answer.status(),
            answer.text().await.unwrap_or_default()
        );
    }

    let answer: Value = answer.json().await.context("failed to read the gateway's answer")?;
    let id = answer["id"].as_str().context("the gateway's answer names no event")?;

    Ok(id.to_owned())
}

/// Sends `text` as a visitor of the web chat. Returns the event's id and the answer.
///
/// # Errors
/// Fails if the page is not served, or if no answer comes in time.
pub async fn chat(gateway: &str, text: &str, patience: Duration) -> Result<(String, String)> {
    let address = gateway.replacen("http", "ws", 1);
    let (mut socket, _) = tokio_tungstenite::connect_async(format!("{address}/webchat/ws"))
        .await
        .context("failed to open the web chat")?;
    let hello = json!({ "type": "hello", "key": format!("{}{}", SystemIds.ulid(), SystemIds.ulid()) });
    socket
        .send(Message::text(hello.to_string()))
        .await
        .context("failed to send the hello to the web chat")?;

    let message = json!({ "type": "message", "id": SystemIds.ulid().to_string(), "text": text });
    socket
        .send(Message::text(message.to_string()))
        .await
        .context("failed to send the chat message")?;

    let conversation = tokio::time::timeout(patience, async {
        let mut event = None;
        while let Some(frame) = socket.next().await {
            let Message::Text(text) = frame.context("failed to read the web chat")? else {
                continue;
            };
            let value: Value = serde_json::from_str(&text).context("failed to read the web chat")?;
            match value["type"].as_str() {
                Some("stored") => event = value["event_id"].as_str().map(str::to_owned),
                Some("error") => bail!("the web chat refused it: {}", value["error"]),
                Some("part") => {
                    let answer = value["text"].as_str().unwrap_or_default().to_owned();
                    return event
                        .map(|event| (event, answer))
                        .context("the reply came before the message was stored");
                }
                Some(_) | None => {}
            }
        }

        bail!("the web chat was closed")
    });

    conversation.await.context("no answer on the web chat")?
}
