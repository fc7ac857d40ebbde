//! `ctx.fetch()`: HTTP for hooks, made by the host, so that a hook never holds a socket.
//!
//! A fetch needs three conditions: the hook asks for the server (`@allow net=…`), the operator grants it
//! (`hooks.grants`), and the hook is an operator's own, since an agent may change the hooks that it made. A granted
//! name may resolve only to the internet (otherwise the owner of its DNS zone could direct a hook into this network),
//! and the connection uses the addresses that were checked. Redirects are not followed: the script sees their target,
//! and may request it.
//!
//! Source: `docs/design/hooks.md` §2.1.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Response, Url};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use shared::model::hook_api::OPERATOR;
use shared::platform::http_answer::{ReadBodyError, read_bounded};
use shared::platform::public_address::{NoPublicAddress, PublicResolver};
use tokio::sync::Semaphore;

use crate::host::server_origin::{ParseOriginError, ServerOrigin};
use crate::runner::{CallError, CallResult, CallUsage, HookSource, HostCall, NOT_AVAILABLE, ScriptHost};

/// Time for a fetch whose script names none, including the wait for its turn.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time that a script may name: a server that writes down what is spoken takes a while.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

/// Most fetches that run at once; more wait for their turn.
const AT_ONCE: usize = 16;

/// Most fetches of one hook that run at once, so that a slow server leaves turns to other hooks.
const AT_ONCE_EACH: usize = 4;

/// Largest text that is sent, and largest body that is read, in bytes.
const MAX_BODY_BYTES: usize = 1024 * 1024;

/// Largest body of bytes that is sent, such as a file, in bytes.
const MAX_SENT_BYTES: usize = 8 * 1024 * 1024 + 64 * 1024;

/// Most headers of a request.
const MAX_HEADERS: usize = 64;

/// Methods that scripts may use.
const METHODS: [Method; 6] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
];

/// Headers that only the client may set.
const NOT_THEIRS: [&str; 8] = [
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Arguments that scripts pass.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    url: String,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    headers: Option<BTreeMap<String, String>>,
    #[serde(default)]
    body: Option<String>,
    /// Body in base64, from a script that sends bytes.
    #[serde(default)]
    body_base64: Option<String>,
    #[serde(default)]
    timeout: Option<f64>,
}

/// Servers granted to one hook.
#[derive(Debug)]
struct Grant {
    servers: Vec<ServerOrigin>,
    turns: Semaphore,
}

/// Host that answers `fetch`, and passes all other calls to another host.
#[derive(Debug)]
pub struct FetchHost {
    /// Grants by hook id.
    grants: BTreeMap<String, Grant>,
    client: Result<Client, String>,
    turns: Semaphore,
    rest: Arc<dyn ScriptHost>,
}

impl FetchHost {
    /// Creates a host that fetches from the servers in `grants` (`hooks.grants`, servers by hook id).
    ///
    /// # Errors
    /// Returns [`ParseOriginError`] if a grant names no valid server.
    pub fn new(grants: &BTreeMap<String, Vec<String>>, rest: Arc<dyn ScriptHost>) -> Result<Self, ParseOriginError> {
        let parse = |(id, servers): (&String, &Vec<String>)| {
            let servers: Result<Vec<ServerOrigin>, _> =
                servers.iter().map(|server| ServerOrigin::parse(server)).collect();
            let turns = Semaphore::new(AT_ONCE_EACH);
            Ok((
                id.clone(),
                Grant {
                    servers: servers?,
                    turns,
                },
            ))
        };

        // A redirect or a proxy would lead to servers that no operator has granted.
        let client = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .dns_resolver(PublicResolver::default())
            .build();

        Ok(Self {
            grants: grants.iter().map(parse).collect::<Result<_, _>>()?,
            client: client.map_err(|error| error.to_string()),
            turns: Semaphore::new(AT_ONCE),
            rest,
        })
    }

    async fn fetch(&self, call: &HostCall) -> Result<Value, CallError> {
        let given: Arguments =
            serde_json::from_value(call.args.clone()).map_err(|error| bad_arguments(&error.to_string()))?;
        let url = Url::parse(&given.url).map_err(|error| bad_arguments(&format!("{}: {error}", given.url)))?;
        let grant = self.granting_entry(&call.hook, &url)?;
        let client = self
            .client
            .as_ref()
            .map_err(|error| CallError::new(NOT_AVAILABLE, format!("fetch() is not available: {error}")))?;

        let timeout = time_limit(given.timeout, call.hook.timeout_ms);
        let request = build_request(client, url, given)?;
        let answer = async {
            let _own = grant.turns.acquire().await;
            let _turn = self.turns.acquire().await;
            read(request.send().await.map_err(|error| unreachable_error(&error))?).await
        };

        let late = |_| {
            CallError::new(
                "timed_out",
                format!("fetch() took more than {} ms", timeout.as_millis()),
            )
        };

        tokio::time::timeout(timeout, answer).await.map_err(late)?
    }

    /// Returns the grant by which `hook` may request `url`.
    fn granting_entry(&self, hook: &HookSource, url: &Url) -> Result<&Grant, CallError> {
        let wanted =
            url_origin(url).ok_or_else(|| bad_arguments("expected https://… or http://… without user and password"))?;
        let asked = hook
            .net
            .iter()
            .any(|text| ServerOrigin::parse(text).as_ref() == Ok(&wanted));
        if !asked {
            let message = format!("fetch() of {wanted}: the hook does not request it with `@allow net=…`");
            return Err(CallError::new("not_requested", message));
        }

        let grant = self.grants.get(&hook.id).filter(|_| hook.created_by == OPERATOR);
        grant.filter(|grant| grant.servers.contains(&wanted)).ok_or_else(|| {
            let message = format!(
                "fetch() of {wanted}: no operator has granted it to {} (`hooks.grants`)",
                hook.id
            );
            CallError::new("not_granted", message)
        })
    }
}

#[async_trait]
impl ScriptHost for FetchHost {
    async fn call(&self, call: HostCall) -> CallResult {
        match call.name.as_str() {
            "fetch" => CallResult {
                outcome: self.fetch(&call).await,
                spent: CallUsage::default(),
            },
            _ => self.rest.call(call).await,
        }
    }
}

/// Returns the time limit of a fetch whose script names `wanted`, and whose hook may take `hook_ms`, both in milliseconds.
fn time_limit(wanted: Option<f64>, hook_ms: u64) -> Duration {
    let wanted = wanted.filter(|ms| ms.is_finite() && *ms > 0.0);
    let wanted = wanted.and_then(|ms| Duration::try_from_secs_f64(ms / 1_000.0).ok());
    // Nobody waits for the answer after the hook's own time.
    wanted
        .unwrap_or(TIMEOUT)
        .min(MAX_TIMEOUT)
        .min(Duration::from_millis(hook_ms))
}

/// Returns the origin of `url`; `None` if it has none or contains credentials.
fn url_origin(url: &Url) -> Option<ServerOrigin> {
    let is_https = match url.scheme() {
        "https" => true,
        "http" => false,
        _ => return None,
    };

    if !url.username().is_empty() || url.password().is_some() {
        return None;
    }

    Some(ServerOrigin {
        is_https,
        host: url.host_str()?.to_owned(),
        port: url.port_or_known_default()?,
    })
}

fn build_request(client: &Client, url: Url, given: Arguments) -> Result<reqwest::RequestBuilder, CallError> {
    let name = given.method.unwrap_or_else(|| "GET".to_owned());
    let method = METHODS.into_iter().find(|method| method.as_str() == name);
    let method = method.ok_or_else(|| bad_arguments(&format!("the method {name:?} is unknown")))?;

    let headers = given.headers.unwrap_or_default();
    if headers.len() > MAX_HEADERS {
        return Err(bad_arguments(&format!("more than {MAX_HEADERS} headers")));
    }

    let mut all = HeaderMap::new();
    for (name, value) in headers {
        let header = HeaderName::from_bytes(name.as_bytes()).ok();
        // A script must not set `host`, lengths and the like: the client alone does.
        let header = header.filter(|header| !NOT_THEIRS.contains(&header.as_str()));
        let (Some(header), Ok(value)) = (header, HeaderValue::from_str(&value)) else {
            return Err(bad_arguments(&format!("the header {name:?} cannot be sent")));
        };
        all.append(header, value);
    }

    let (body, most) = match (given.body, given.body_base64) {
        (None, Some(coded)) => {
            let bytes = STANDARD
                .decode(coded)
                .map_err(|_| bad_arguments("the body is not base64"))?;
            (bytes, MAX_SENT_BYTES)
        }
        (Some(text), None) => (text.into_bytes(), MAX_BODY_BYTES),
        (None, None) => (Vec::new(), MAX_BODY_BYTES),
        (Some(_), Some(_)) => return Err(bad_arguments("two bodies")),
    };
    if body.len() > most {
        return Err(bad_arguments(&format!("a body of {} bytes", body.len())));
    }

    let request = client.request(method, url).headers(all);
    Ok(if body.is_empty() { request } else { request.body(body) })
}

/// Reads the response for the script: status, headers by lower-case name, the body as text.
async fn read(mut response: Response) -> Result<Value, CallError> {
    let status = response.status().as_u16();
    let mut headers: Map<String, Value> = Map::new();
    for (name, value) in response.headers() {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        match headers.get_mut(name.as_str()) {
            Some(Value::String(known)) => {
                // Repeated headers are joined with commas, which means the same.
                let _ = write!(known, ", {value}");
            }
            Some(_) | None => {
                headers.insert(name.as_str().to_owned(), value.into());
            }
        }
    }

    let body = read_bounded(&mut response, MAX_BODY_BYTES).await;
    let body = body.map_err(|error| match error {
        ReadBodyError::Lost(error) => unreachable_error(&error),
        ReadBodyError::TooLong { most } => {
            CallError::new("too_large", format!("fetch(): the response has more than {most} bytes"))
        }
    })?;
    let body = String::from_utf8(body).map_err(|_| CallError::new("not_text", "fetch(): the response is not text"))?;
    Ok(json!({"status": status, "headers": headers, "body": body}))
}

fn bad_arguments(what: &str) -> CallError {
    CallError::new("bad_arguments", format!("fetch(): {what}"))
}

fn unreachable_error(error: &reqwest::Error) -> CallError {
    let code = if NoPublicAddress::is_cause_of(error) {
        "forbidden_address"
    } else {
        "unreachable"
    };
    CallError::new(code, format!("fetch(): {}", shared::error_chain::describe_error(error)))
}

#[cfg(test)]
mod tests;
