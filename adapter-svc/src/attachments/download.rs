//! Downloads from a platform's own hosts, within bounds.
//!
//! The platform says where a file is, and the platform's word may be wrong or forged: an address is asked only if it is one
//! of the account's server or of the hosts that the platform documents, and only at a public address, whatever its name
//! resolves to. A redirect is another address, and is checked as the first one. Source: `docs/security.md` "Files".

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::LOCATION;
use reqwest::{Client, Response, StatusCode, Url};
use shared::error_chain::describe_causes;
use shared::platform::base_url::BaseUrl;
use shared::platform::http_answer::{ReadBodyError, read_bounded};
use shared::platform::public_address::{NoPublicAddress, PublicResolver};
use shared::process::SecretValue;

use super::media::FetchFileError;

/// Maximum time for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time without a byte.
const READ_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum number of redirects.
const MAX_REDIRECTS: usize = 3;

/// Opens the HTTP client of all accounts' files. `bases` are the servers of the accounts, of which those that are none of
/// `official` were chosen by the operator and may have any address.
///
/// # Errors
/// Returns the client's error if the system's certificates cannot be loaded.
pub fn open_http<'a>(bases: impl Iterator<Item = &'a BaseUrl>, official: &[&str]) -> Result<Client, reqwest::Error> {
    let hosts = bases.filter_map(|base| base.join("").host_str().map(str::to_owned));
    let trusted: BTreeSet<String> = hosts.filter(|host| !official.contains(&host.as_str())).collect();
    Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .dns_resolver(PublicResolver { trusted })
        // Each is checked before it is followed.
        .redirect(reqwest::redirect::Policy::none())
        // The bytes are stored as they come.
        .no_gzip()
        .build()
}

/// Downloads the files of one account.
#[derive(Debug, Clone)]
pub struct FileClient {
    http: Client,
    base: Url,
    hosts: &'static [&'static str],
}

impl FileClient {
    /// Returns the client of an account whose server is `base`, which calls by `http`. Files may also be at `hosts`, by
    /// `https`.
    #[must_use]
    pub fn new(http: Client, base: &BaseUrl, hosts: &'static [&'static str]) -> Self {
        Self {
            http,
            base: base.join(""),
            hosts,
        }
    }

    /// Returns whether `url` may be asked.
    #[must_use]
    pub fn may_ask(&self, url: &Url) -> bool {
        let is_bare = url.username().is_empty() && url.password().is_none();
        let is_own = url.origin() == self.base.origin();
        let is_platforms = || {
            let is_https = url.scheme() == "https" && url.port_or_known_default() == Some(443);
            is_https && url.host_str().is_some_and(|host| self.hosts.contains(&host))
        };
        is_bare && (is_own || is_platforms())
    }

    /// Returns the bytes at `url`, at most `max`. `bearer` is the token that is shown to the platform's hosts.
    ///
    /// # Errors
    /// Returns [`FetchFileError`]; [`FetchFileError::Expired`] stands for every answer that the file is not there, or not
    /// for this account.
    pub async fn download(
        &self,
        mut url: Url,
        bearer: Option<&SecretValue>,
        max: u64,
    ) -> Result<Bytes, FetchFileError> {
        for _ in 0..=MAX_REDIRECTS {
            if !self.may_ask(&url) {
                return Err(FetchFileError::ForbiddenAddress);
            }

            let mut request = self.http.get(url.clone());
            if let Some(bearer) = bearer {
                request = request.bearer_auth(bearer.reveal());
            }
            let response = request.send().await.map_err(describe)?;
            if !response.status().is_redirection() {
                return read_file(response, max).await;
            }

            let next = response.headers().get(LOCATION);
            let next = next.and_then(|next| url.join(next.to_str().ok()?).ok());
            url = next.ok_or_else(|| FetchFileError::Unavailable("a redirect without an address".to_owned()))?;
        }
        Err(FetchFileError::Unavailable("too many redirects".to_owned()))
    }
}

async fn read_file(mut response: Response, max: u64) -> Result<Bytes, FetchFileError> {
    let status = response.status();
    if status != StatusCode::OK {
        return Err(match status.as_u16() {
            401 | 403 | 404 | 410 => FetchFileError::Expired,
            408 | 425 | 429 | 500..=599 => FetchFileError::NotNow(format!("status {status}")),
            _ => FetchFileError::Unavailable(format!("status {status}")),
        });
    }
    if response.content_length().is_some_and(|length| length > max) {
        return Err(FetchFileError::TooLarge { max });
    }

    let most = usize::try_from(max).unwrap_or(usize::MAX);
    match read_bounded(&mut response, most).await {
        Ok(bytes) => Ok(bytes.into()),
        Err(ReadBodyError::TooLong { .. }) => Err(FetchFileError::TooLarge { max }),
        Err(ReadBodyError::Lost(error)) => Err(describe(error)),
    }
}

/// Describes an error of the HTTP client without the URL, which may contain a token.
fn describe(error: reqwest::Error) -> FetchFileError {
    if NoPublicAddress::is_cause_of(&error) {
        return FetchFileError::ForbiddenAddress;
    }
    let error = error.without_url();
    FetchFileError::NotNow(describe_causes("the download failed", &error))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::extract::State;
    use axum::http::{HeaderMap, Uri};
    use axum::response::{IntoResponse, Redirect};

    use super::*;

    /// A server that notes the tokens that it is shown, and the paths.
    async fn server() -> (String, Arc<Mutex<Vec<String>>>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let routes = Router::new().fallback(answer).with_state(Arc::clone(&seen));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (base, seen)
    }

    async fn answer(
        State(seen): State<Arc<Mutex<Vec<String>>>>,
        uri: Uri,
        headers: HeaderMap,
    ) -> axum::response::Response {
        let token = headers
            .get("authorization")
            .map_or("", |value| value.to_str().expect("text"));
        seen.lock().expect("sound").push(format!("{} {token}", uri.path()));
        let status = uri.path().strip_prefix("/status/").and_then(|code| code.parse().ok());
        match (uri.path(), status) {
            (_, Some(code)) => StatusCode::from_u16(code).expect("a status").into_response(),
            ("/there", _) => Redirect::temporary("/file").into_response(),
            ("/away", _) => Redirect::temporary(uri.query().expect("an address")).into_response(),
            ("/round", _) => Redirect::temporary("/round").into_response(),
            ("/nowhere", _) => StatusCode::FOUND.into_response(),
            // Without a length, so that only counting helps.
            ("/long", _) => axum::body::Body::from_stream(futures_util::stream::iter(
                (0..100).map(|_| Ok::<_, std::io::Error>(Bytes::from_static(&[7; 100]))),
            ))
            .into_response(),
            _ => "0123456789".into_response(),
        }
    }

    fn client(base: &str, hosts: &'static [&'static str]) -> FileClient {
        let base = BaseUrl::parse(base).expect("a base");
        let http = open_http(std::iter::once(&base), &["api.example.com"]).expect("a client");
        FileClient::new(http, &base, hosts)
    }

    fn url(text: &str) -> Url {
        Url::parse(text).expect("a URL")
    }

    #[test]
    fn only_the_server_and_the_platform_s_hosts_are_asked() {
        let files = client("https://api.example.com/v1", &["cdn.example.com"]);
        for good in ["https://api.example.com/x", "https://cdn.example.com:443/x"] {
            assert!(files.may_ask(&url(good)), "{good}");
        }
        for bad in [
            "http://api.example.com/x",
            "http://cdn.example.com/x",
            "https://cdn.example.com:8443/x",
            "https://user@cdn.example.com/x",
            "https://cdn.example.com.evil.example/x",
            "https://evil.example/cdn.example.com",
            "https://169.254.169.254/latest/meta-data",
            "https://127.0.0.1/x",
            "https://[::1]/x",
            "ftp://cdn.example.com/x",
            "file:///etc/passwd",
        ] {
            assert!(!files.may_ask(&url(bad)), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_name_of_the_platform_s_that_leads_into_this_network_is_not_asked() {
        // The host is one of the platform's, and resolves to this machine.
        let files = client("https://api.example.com", &["localhost"]);
        let found = files.download(url("https://localhost/x"), None, 10).await;
        assert_eq!(found, Err(FetchFileError::ForbiddenAddress));
    }

    #[tokio::test]
    async fn redirects_are_checked_and_the_token_stays_with_the_platform() {
        let (base, seen) = server().await;
        let (other, of_other) = server().await;
        let files = client(&base, &[]);
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        std::fs::write(&file, "secret").expect("written");
        let token = SecretValue::resolve(&format!("file:{}", file.display())).expect("a secret");
        let get = async |path: &str| files.download(url(&format!("{base}{path}")), Some(&token), 10).await;

        assert_eq!(get("/there").await, Ok(Bytes::from_static(b"0123456789")));
        assert_eq!(
            *seen.lock().expect("sound"),
            ["/there Bearer secret", "/file Bearer secret"]
        );
        for away in [
            other.as_str(),
            "http://169.254.169.254/latest/meta-data",
            "https://127.0.0.1/",
            "//localhost/x",
        ] {
            let found = get(&format!("/away?{away}")).await;
            assert_eq!(found, Err(FetchFileError::ForbiddenAddress), "{away}");
        }
        assert!(of_other.lock().expect("sound").is_empty(), "it was never asked");
        for path in ["/round", "/nowhere"] {
            assert!(matches!(get(path).await, Err(FetchFileError::Unavailable(_))), "{path}");
        }
    }

    #[tokio::test]
    async fn a_file_is_read_up_to_its_bound_and_its_status_decides() {
        let (base, _) = server().await;
        let files = client(&base, &[]);
        let get = async |path: &str, max: u64| files.download(url(&format!("{base}{path}")), None, max).await;
        for path in ["/file", "/long"] {
            assert_eq!(get(path, 9).await, Err(FetchFileError::TooLarge { max: 9 }), "{path}");
        }
        assert_eq!(get("/file", 10).await.map(|file| file.len()), Ok(10));
        assert_eq!(get("/long", 10_000).await.map(|file| file.len()), Ok(10_000));

        for (status, expected) in [
            (403, Some(FetchFileError::Expired)),
            (404, Some(FetchFileError::Expired)),
            (206, None),
            (418, None),
        ] {
            let found = get(&format!("/status/{status}"), 10).await;
            match expected {
                Some(expected) => assert_eq!(found, Err(expected)),
                None => assert!(matches!(found, Err(FetchFileError::Unavailable(_))), "{found:?}"),
            }
        }
        for status in [429, 500, 503] {
            let found = get(&format!("/status/{status}"), 10).await;
            assert!(matches!(found, Err(FetchFileError::NotNow(_))), "{found:?}");
        }
        let nobody = client("http://127.0.0.1:1", &[]);
        let lost = nobody.download(url("http://127.0.0.1:1/x"), None, 9).await;
        let lost = lost.expect_err("nobody listens");
        assert!(
            matches!(&lost, FetchFileError::NotNow(words) if !words.contains("127.0.0.1:1/x")),
            "{lost:?}"
        );
    }
}
