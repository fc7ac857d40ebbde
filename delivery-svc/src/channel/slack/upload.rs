//! Sending a file: a place for its bytes, the bytes, and then the message that shows it.
//!
//! Nothing is shown before the last call. Its answer does not name the message, which is asked for afterwards. Source:
//! <https://docs.slack.dev/messaging/working-with-files#upload>,
//! <https://docs.slack.dev/reference/methods/files.completeUploadExternal>.

use std::time::Duration;

use reqwest::Url;
use serde::Deserialize;
use serde_json::{Value, json};
use shared::clock::pause;
use shared::model::time::UnixMillis;
use shared::platform::slack::SlackAccount;
use shared::platform::slack_api::{WebAnswer, is_user_id, message_name};

use super::SlackChannel;
use super::answer::read_answer;
use super::message::thread_of;
use crate::attempt::{CallOutcome, Refusal, RequestSent};
use crate::channel::SendRequest;
use crate::channel::raw_answer::{ANSWER_BYTES, RawAnswer, call_for_answer, upload_time};
use crate::part_file::PartFile;

/// Number of times that the message of a file is asked for, and the pause between them: Slack shows it a moment later.
const LOOKS: u32 = 5;
const LOOK_EVERY: Duration = Duration::from_millis(400);

/// Host of Slack to which bytes are sent.
const UPLOAD_HOST: &str = "files.slack.com";

/// The answer to `files.getUploadURLExternal`.
#[derive(Debug, Deserialize)]
struct UploadPlace {
    upload_url: String,
    file_id: String,
}

/// The answer to `conversations.open`.
#[derive(Debug, Deserialize)]
struct OpenedConversation {
    channel: OpenedChannel,
}

#[derive(Debug, Deserialize)]
struct OpenedChannel {
    id: String,
}

impl SlackChannel {
    /// Sends the file of `shipment`.
    pub(super) async fn send_file(
        &self,
        account: &SlackAccount,
        shipment: &SendRequest<'_>,
        file: &PartFile,
    ) -> CallOutcome {
        match self.upload(account, shipment, file).await {
            Ok(outcome) | Err(outcome) => outcome,
        }
    }

    async fn upload(
        &self,
        account: &SlackAccount,
        shipment: &SendRequest<'_>,
        file: &PartFile,
    ) -> Result<CallOutcome, CallOutcome> {
        let refused = |reason: String| CallOutcome::Refused {
            refusal: Refusal::Permanent,
            reason,
        };
        let Some(bytes) = shipment.file else {
            return Err(refused("the bytes of the file are missing".to_owned()));
        };
        let peer = shipment.peer();
        let thread = thread_of(account, shipment.reply, peer).map_err(|error| refused(error.to_string()))?;

        // Until here nothing is shown, so that a call without an answer has sent nothing.
        let now = shipment.now;
        let channel = self.conversation(account, peer, now).await.map_err(unshown)?;
        let query = [("filename", file.name.clone()), ("length", file.size.to_string())];
        let mut url = account.method_url("files.getUploadURLExternal");
        url.query_pairs_mut().extend_pairs(query);
        let place: UploadPlace = self.ask(account, self.client.get(url), now).await.map_err(unshown)?;
        let address = Url::parse(&place.upload_url).ok();
        let Some(address) = address.filter(|address| is_upload_address(account, address)) else {
            return Err(refused(
                "Slack names an address for the file that is not its own".to_owned(),
            ));
        };
        let request = self.client.post(address).body(bytes.clone());
        let stored = call_for_answer(request, upload_time(self.whole, file.size), ANSWER_BYTES);
        let stored = stored.await.map_err(unshown)?;
        if !(200..=299).contains(&stored.status) {
            return Err(unshown(CallOutcome::Unreachable {
                sent: RequestSent::No,
                reason: format!("the bytes were answered with status {}", stored.status),
            }));
        }
        if !shipment.lease.is_live() {
            return Err(CallOutcome::Withheld);
        }

        let mut body = json!({
            "files": [{"id": place.file_id, "title": file.name}], "channel_id": channel,
        });
        if let Some(thread) = thread {
            body["thread_ts"] = json!(thread);
        }
        let request = self.client.post(account.method_url("files.completeUploadExternal"));
        let request = request.bearer_auth(account.token.current().reveal()).json(&body);
        let answer = call_for_answer(request, self.whole, ANSWER_BYTES).await?;
        read_completed(&answer, now)?;

        let ts = self.shown_at(account, &place.file_id, &channel).await;
        Ok(CallOutcome::Accepted {
            platform_ids: ts.map(|ts| message_name(&channel, &ts)).into_iter().collect(),
            live: None,
        })
    }

    /// Returns the id of the conversation `peer`, or that of the direct messages with the person `peer`.
    async fn conversation(&self, account: &SlackAccount, peer: &str, now: UnixMillis) -> Result<String, CallOutcome> {
        if !is_user_id(peer) {
            return Ok(peer.to_owned());
        }
        let request = self.client.post(account.method_url("conversations.open"));
        let opened: OpenedConversation = self.ask(account, request.json(&json!({"users": peer})), now).await?;
        Ok(opened.channel.id)
    }

    /// Makes the call `request`; returns its answer, or the outcome of an error.
    async fn ask<T: serde::de::DeserializeOwned>(
        &self,
        account: &SlackAccount,
        request: reqwest::RequestBuilder,
        now: UnixMillis,
    ) -> Result<T, CallOutcome> {
        let request = request.bearer_auth(account.token.current().reveal());
        let answer = call_for_answer(request, self.whole, ANSWER_BYTES).await?;
        read_completed(&answer, now)?;
        serde_json::from_slice(&answer.body).map_err(|error| CallOutcome::Unreachable {
            sent: RequestSent::No,
            reason: format!("an answer that cannot be read: {error}"),
        })
    }

    /// Returns the time stamp of the message in `channel` that shows the file `id`; `None` if Slack does not say it soon.
    async fn shown_at(&self, account: &SlackAccount, id: &str, channel: &str) -> Option<String> {
        for look in 0..LOOKS {
            if look > 0 {
                pause(LOOK_EVERY).await;
            }
            let mut url = account.method_url("files.info");
            url.query_pairs_mut().append_pair("file", id);
            let request = self.client.get(url).bearer_auth(account.token.current().reveal());
            let answer = call_for_answer(request, self.whole, ANSWER_BYTES).await.ok()?;
            if let Some(ts) = read_share(&answer.body, channel) {
                return Some(ts);
            }
        }
        None
    }
}

/// Returns whether bytes may be sent to `url`: Slack's host for them, or the account's own server.
fn is_upload_address(account: &SlackAccount, url: &Url) -> bool {
    let is_slacks = url.scheme() == "https" && url.host_str() == Some(UPLOAD_HOST) && url.port().is_none();
    is_slacks || url.origin() == account.base_url.join("").origin()
}

/// Returns the outcome of a call before the last one: whatever became of it, nothing is shown.
fn unshown(outcome: CallOutcome) -> CallOutcome {
    match outcome {
        CallOutcome::Unreachable { reason, .. } => CallOutcome::Unreachable {
            sent: RequestSent::No,
            reason,
        },
        outcome @ (CallOutcome::Accepted { .. }
        | CallOutcome::Limited { .. }
        | CallOutcome::Refused { .. }
        | CallOutcome::Reauth { .. }
        | CallOutcome::WindowClosed { .. }
        | CallOutcome::TooLarge { .. }
        | CallOutcome::Unformattable { .. }
        | CallOutcome::Withheld) => outcome,
    }
}

/// Fails with the outcome of `answer`, asked for at `now`, unless it says that the call is done.
fn read_completed(answer: &RawAnswer, now: UnixMillis) -> Result<(), CallOutcome> {
    let is_done = serde_json::from_slice::<WebAnswer>(&answer.body).is_ok_and(|read| read.ok);
    if is_done {
        return Ok(());
    }
    Err(read_answer(answer, now))
}

/// Returns the time stamp at which the file of `body`, the answer to `files.info`, is shown in `channel`.
fn read_share(body: &[u8], channel: &str) -> Option<String> {
    let info: Value = serde_json::from_slice(body).ok()?;
    let shares = &info["file"]["shares"];
    ["public", "private"].iter().find_map(|kind| {
        let ts = shares[kind][channel].as_array()?.first()?["ts"].as_str()?;
        Some(ts.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_a_file_is_found_in_its_shares() {
        let info = json!({"ok": true, "file": {"id": "F1", "shares": {
            "private": {"D1": [{"ts": "1.000002"}]}, "public": {"C1": [{"ts": "1.000001"}]},
        }}});
        let body = serde_json::to_vec(&info).expect("JSON");
        assert_eq!(read_share(&body, "C1").as_deref(), Some("1.000001"));
        assert_eq!(read_share(&body, "D1").as_deref(), Some("1.000002"));
        assert_eq!(read_share(&body, "C2"), None);
        assert_eq!(read_share(b"{}", "C1"), None);
    }
}
