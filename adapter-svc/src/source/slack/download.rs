//! Files of messages, which Slack hands out to the app's token.
//!
//! `files.info` names the current address of a file. Without the right `files:read`, and for a file that the app may not
//! see, Slack answers with the page on which people sign in, and with status 200. Source:
//! <https://docs.slack.dev/reference/methods/files.info>, <https://docs.slack.dev/reference/objects/file-object>.

use async_trait::async_trait;
use bytes::Bytes;
use reqwest::Url;
use shared::attachments::FileType;
use shared::model::event::Attachment;
use shared::platform::slack::SlackAccount;

use super::client::{FoundFile, WebCallError, find_file};
use crate::attachments::download::FileClient;
use crate::attachments::{FetchFileError, Media};

/// Hosts of files. The token is shown to no other.
const HOSTS: &[&str] = &["files.slack.com"];
/// Errors of `files.info` that stay.
const GONE: [&str; 3] = ["file_deleted", "access_denied", "not_allowed"];
/// Error without the right `files:read`.
const MISSING_SCOPE: &str = "missing_scope";
/// Type of a web page.
const PAGE: &str = "text/html";

/// The files of one app.
#[derive(Debug)]
pub struct SlackMedia {
    account: SlackAccount,
    http: reqwest::Client,
    files: FileClient,
}

impl SlackMedia {
    /// Returns the files of `account`, which calls by `http` and downloads by `files`.
    #[must_use]
    pub fn new(account: SlackAccount, http: reqwest::Client, files: reqwest::Client) -> Self {
        Self {
            files: FileClient::new(files, &account.base_url, HOSTS),
            account,
            http,
        }
    }
}

#[async_trait]
impl Media for SlackMedia {
    async fn fetch(&self, file: &Attachment, max: u64) -> Result<Bytes, FetchFileError> {
        let handle = file.handle.as_deref().unwrap_or_default();
        let found = find_file(&self.http, &self.account, handle).await.map_err(refusal)?;
        if found.size.is_some_and(|size| size > max) {
            return Err(FetchFileError::TooLarge { max });
        }

        let address = found.url_private_download.as_ref().or(found.url_private.as_ref());
        // A file may be announced before it can be read.
        let address = address.ok_or_else(|| FetchFileError::NotNow("the file has no address yet".to_owned()))?;
        let url = Url::parse(address).map_err(|_| FetchFileError::ForbiddenAddress)?;
        let bytes = self
            .files
            .download(url, Some(&self.account.token.current()), max)
            .await?;
        check_file(&found, &bytes)?;
        Ok(bytes)
    }
}

/// Checks that `bytes` are those of `found`, and not a page in their place.
fn check_file(found: &FoundFile, bytes: &[u8]) -> Result<(), FetchFileError> {
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let is_page = FileType::of(bytes, None, "document").mime_type == PAGE;
    if is_page && found.mimetype.as_deref() != Some(PAGE) {
        return Err(FetchFileError::Unavailable(
            "a page in place of the file; the app may lack files:read".to_owned(),
        ));
    }
    match found.size {
        Some(said) if said != size => Err(FetchFileError::Unavailable(format!("{size} bytes in place of {said}"))),
        Some(_) | None => Ok(()),
    }
}

fn refusal(error: WebCallError) -> FetchFileError {
    match error {
        WebCallError::Refused(name) if GONE.contains(&name.as_str()) => FetchFileError::Unavailable(name),
        // The operator gives the app the right at a time of their own; a void token is soon replaced.
        WebCallError::Unauthorized(name) if name == MISSING_SCOPE => FetchFileError::Unavailable(name),
        WebCallError::Refused(_)
        | WebCallError::Unauthorized(_)
        | WebCallError::Limited(_)
        | WebCallError::Unreachable(_) => FetchFileError::NotNow(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_in_place_of_the_file_is_not_the_file() {
        let page = b"<!DOCTYPE html><html><head><title>Slack</title></head></html>";
        let check = |mimetype: Option<&str>, size: Option<u64>, bytes: &[u8]| {
            let found = FoundFile {
                mimetype: mimetype.map(str::to_owned),
                size,
                ..FoundFile::default()
            };
            check_file(&found, bytes).is_ok()
        };
        let length = u64::try_from(page.len()).expect("small");
        assert!(!check(Some("image/png"), Some(length), page));
        assert!(!check(None, None, page));
        assert!(
            check(Some("text/html"), Some(length), page),
            "a page that somebody sent"
        );
        assert!(!check(Some("text/html"), Some(length + 1), page), "another one");
        assert!(check(Some("text/plain"), Some(5), b"words") && check(None, None, b""));
        assert!(!check(Some("text/plain"), Some(6), b"words"));
    }

    #[test]
    fn a_file_that_is_not_known_yet_is_asked_for_again() {
        let of = |name: &str| refusal(WebCallError::Refused(name.to_owned())).refusal().is_some();
        assert!(of("file_deleted") && !of("file_not_found") && !of("fatal_error"));
        let error = refusal(WebCallError::Unauthorized("missing_scope".to_owned()));
        assert!(error.to_string().contains("missing_scope"), "{error}");
        assert!(error.refusal().is_some());
        for passing in ["token_expired", "token_revoked", "invalid_auth"] {
            let error = refusal(WebCallError::Unauthorized(passing.to_owned()));
            assert_eq!(
                error.refusal(),
                None,
                "{passing}: an operator gives the app another token"
            );
        }
    }
}
