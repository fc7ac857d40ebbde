//! Files of messages, which the Bot API hands out up to 20 MB.
//!
//! `getFile` names the path of a file, which is valid for an hour; its URL contains the token. Source:
//! <https://core.telegram.org/bots/api#getfile>, <https://core.telegram.org/bots/api#file>.

use async_trait::async_trait;
use bytes::Bytes;
use shared::model::event::Attachment;
use shared::platform::telegram::TelegramAccount;

use super::client::{BotCallError, BotClient};
use super::media::MAX_FETCHED_BYTES;
use crate::attachments::download::FileClient;
use crate::attachments::{FetchFileError, Media};

/// Word of the vendor's refusal of a file above its limit.
const TOO_BIG: &str = "too big";
/// Word of the vendor's refusal of a file that it does not have yet.
const TEMPORARILY: &str = "temporarily";

/// The files of one bot.
#[derive(Debug)]
pub struct TelegramMedia {
    client: BotClient,
    account: TelegramAccount,
    files: FileClient,
}

impl TelegramMedia {
    /// Returns the files of `account`, which calls by `http` and downloads by `files`.
    #[must_use]
    pub fn new(account: TelegramAccount, http: reqwest::Client, files: reqwest::Client) -> Self {
        Self {
            client: BotClient::new(http, account.clone()),
            files: FileClient::new(files, &account.base_url, &[]),
            account,
        }
    }
}

#[async_trait]
impl Media for TelegramMedia {
    async fn fetch(&self, file: &Attachment, max: u64) -> Result<Bytes, FetchFileError> {
        let handle = file.handle.as_deref().unwrap_or_default();
        let found = self.client.find_file(handle).await.map_err(refusal)?;
        if found.file_size.is_some_and(|size| size > max) {
            return Err(FetchFileError::TooLarge { max });
        }

        let path = found.file_path.unwrap_or_default();
        if !is_path(&path) {
            // A server that was started with `--local` names a path of its own disk.
            return Err(FetchFileError::Unavailable("no path of the server's".to_owned()));
        }
        self.files.download(self.account.file_url(&path), None, max).await
    }
}

/// Returns whether `path` is one below the server's files: it must lead nowhere else.
fn is_path(path: &str) -> bool {
    let is_name = |name: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        !name.is_empty() && !name.starts_with('.') && name.bytes().all(is_allowed)
    };
    path.split('/').all(is_name)
}

fn refusal(error: BotCallError) -> FetchFileError {
    match error {
        BotCallError::Refused { code: 400, words } if words.contains(TOO_BIG) => {
            FetchFileError::TooLarge { max: MAX_FETCHED_BYTES }
        }
        BotCallError::Refused { code: 400, words } if !words.contains(TEMPORARILY) => {
            FetchFileError::Unavailable(words)
        }
        BotCallError::Refused { .. }
        | BotCallError::Unauthorized(_)
        | BotCallError::Conflict(_)
        | BotCallError::Limited(_)
        | BotCallError::Unreachable(_)
        | BotCallError::Malformed(_) => FetchFileError::NotNow(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_nowhere_else() {
        for good in ["photos/file_0.jpg", "voice/file-1.oga", "a"] {
            assert!(is_path(good), "{good}");
        }
        for bad in [
            "",
            "/var/lib/telegram/file",
            "../getMe",
            "a/../b",
            "a//b",
            "a?x=1",
            "a#x",
            "a%2f..",
            "http://evil.example/",
            "a\\b",
        ] {
            assert!(!is_path(bad), "{bad}");
        }
    }

    #[test]
    fn the_vendor_s_words_say_whether_it_may_help_to_ask_again() {
        let refused = |code: i64, words: &str| {
            refusal(BotCallError::Refused {
                code,
                words: words.to_owned(),
            })
        };
        assert_eq!(
            refused(400, "Bad Request: file is too big"),
            FetchFileError::TooLarge { max: MAX_FETCHED_BYTES }
        );
        let gone = refused(400, "Bad Request: wrong file_id or the file is not found");
        assert!(matches!(gone, FetchFileError::Unavailable(_)));
        for error in [
            refused(400, "Bad Request: wrong file_id or the file is temporarily unavailable"),
            refused(500, "Internal Server Error"),
            refusal(BotCallError::Unauthorized("401".to_owned())),
        ] {
            assert!(error.refusal().is_none(), "{error}");
        }
    }
}
