//! The form of a message with a file. Source: <https://docs.discord.com/developers/reference#uploading-files>.

use bytes::Bytes;
use reqwest::Body;
use reqwest::multipart::{Form, Part};
use serde_json::json;

use super::message::CreateMessage;
use crate::part_file::PartFile;

/// Returns the form that sends `file` with `bytes` as `message`.
pub(super) fn file_form(message: &CreateMessage<'_>, file: &PartFile, bytes: &Bytes) -> Form {
    let mut payload = serde_json::to_value(message).unwrap_or_default();
    if let Some(fields) = payload.as_object_mut() {
        let attachments = json!([{"id": 0, "filename": file.name}]);
        fields.insert("attachments".to_owned(), attachments);
    }

    let part = || Part::stream_with_length(Body::from(bytes.clone()), file.size).file_name(file.name.clone());
    // The type was found by the content; one that is none is left out.
    let typed = part().mime_str(&file.mime_type).unwrap_or_else(|_| part());
    Form::new()
        .text("payload_json", payload.to_string())
        .part("files[0]", typed)
}
