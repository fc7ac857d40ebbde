//! Transcripts that a hook has made of its event's recordings: they become part of the sender's message, as data of the
//! sender, and never of the prompt. *Pure.*
//!
//! Source: `docs/design/hooks.md` §2.2.

use shared::model::event::{Attachment, Event};
use shared::model::hook::{HookResult, Transcript};

/// Returns the reason why the transcripts of `result` are not of attachments of `event`; `None` if they are.
#[must_use]
pub fn transcript_fault(event: &Event, result: &HookResult) -> Option<String> {
    let count = event.attachments.len();
    let mut transcripts = result.transcripts().iter();
    let unknown = transcripts.find(|transcript| transcript.index >= count)?;
    Some(format!(
        "`context.transcripts`: the event has {count} attachments, and none with the index {}",
        unknown.index
    ))
}

/// Returns `attachments` with `transcripts`, which replace those of the source.
#[must_use]
pub fn with_transcripts(attachments: &[Attachment], transcripts: &[Transcript]) -> Vec<Attachment> {
    let mut attachments = attachments.to_vec();
    for transcript in transcripts {
        if let Some(attachment) = attachments.get_mut(transcript.index) {
            attachment.transcript = Some(transcript.text.clone());
        }
    }
    attachments
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shared::model::event::EventId;
    use shared::model::time::UnixMillis;

    use super::*;

    fn recording(transcript: Option<&str>) -> Attachment {
        Attachment {
            media_type: "audio".to_owned(),
            transcript: transcript.map(str::to_owned),
            ..Attachment::default()
        }
    }

    #[test]
    fn a_transcript_is_of_its_attachment_and_replaces_the_source_s() {
        let spoken = |index: usize, text: &str| Transcript {
            index,
            text: text.to_owned(),
        };
        let attachments = [recording(None), recording(Some("helo")), recording(None)];
        let written = with_transcripts(&attachments, &[spoken(1, "hello"), spoken(2, "")]);
        assert_eq!(
            written,
            [recording(None), recording(Some("hello")), recording(Some(""))]
        );
        assert_eq!(with_transcripts(&attachments, &[]), attachments);
    }

    #[test]
    fn an_index_beyond_the_attachments_is_a_fault() {
        let id = EventId::parse("telegram:main/7/99").expect("an id");
        let mut event = Event::new(id, "telegram", "7", UnixMillis(1_700_000_000_000));
        event.attachments = vec![recording(None), recording(None)];
        let fault = |index: u64| {
            let context = json!({"transcripts": [{"index": 0, "text": "a"}, {"index": index, "text": "b"}]});
            let result: HookResult =
                serde_json::from_value(json!({"fire": true, "context": context})).expect("a result");
            transcript_fault(&event, &result)
        };
        assert_eq!(fault(1), None);
        let beyond = fault(2).expect("a fault");
        assert!(
            beyond.contains("2 attachments") && beyond.ends_with("index 2"),
            "{beyond}"
        );
    }
}
