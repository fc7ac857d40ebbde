//! The files of the stand-ins, which are handed out, or not, as the vendors do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::get;
use bytes::Bytes;
use tokio::sync::watch;

/// The page on which people sign in.
const PAGE: &str = "<!DOCTYPE html><html><head><title>Sign in</title></head></html>";

/// The files of a stand-in. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct FileShelf {
    files: Arc<Mutex<BTreeMap<String, ShelfFile>>>,
    changed: watch::Sender<u64>,
}

impl Default for FileShelf {
    fn default() -> Self {
        Self {
            files: Arc::default(),
            changed: watch::channel(0).0,
        }
    }
}

#[derive(Debug, Clone)]
struct ShelfFile {
    bytes: Bytes,
    fault: FileFault,
    asked: usize,
}

/// How a file is handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileFault {
    /// As it is.
    None,
    /// To whoever shows a token; others get a page.
    Private,
    /// Not before it has another fault.
    Hangs,
    /// With this status instead.
    Status(u16),
    /// A page instead.
    Page,
    /// By a redirect to this address.
    MovesTo(String),
    /// At a refreshed address alone.
    Expires,
    /// It is announced and not there yet.
    NotYet,
}

impl FileShelf {
    /// The routes at which the stand-ins have their files.
    pub(crate) fn routes(&self) -> Router {
        Router::new()
            .route("/file/{bot}/files/{id}", get(of_bot))
            .route("/files-pri/{id}", get(serve))
            .route("/cdn/{id}", get(serve))
            .with_state(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, ShelfFile>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the file `id` there, or replaces it.
    pub(crate) fn put(&self, id: &str, bytes: &[u8], fault: FileFault) {
        let bytes = Bytes::copy_from_slice(bytes);
        let mut files = self.lock();
        let asked = files.get(id).map_or(0, |file| file.asked);
        files.insert(id.to_owned(), ShelfFile { bytes, fault, asked });
        drop(files);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Hands out the file `id` as `fault` says from now on.
    pub(crate) fn set(&self, id: &str, fault: FileFault) {
        let bytes = self.lock().get(id).expect("a file").bytes.clone();
        self.put(id, &bytes, fault);
    }

    /// How often the bytes of `id` were asked for.
    pub(crate) fn asked(&self, id: &str) -> usize {
        self.lock().get(id).map_or(0, |file| file.asked)
    }

    /// The size of the file `id`; `None` if there is none, or not yet.
    pub(crate) fn size(&self, id: &str) -> Option<usize> {
        let files = self.lock();
        let file = files.get(id).filter(|file| file.fault != FileFault::NotYet)?;
        Some(file.bytes.len())
    }
}

async fn of_bot(state: State<FileShelf>, Path((_, id)): Path<(String, String)>, headers: HeaderMap) -> Response {
    serve(state, Path(id), RawQuery(None), headers).await
}

async fn serve(
    State(shelf): State<FileShelf>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let mut changed = shelf.changed.subscribe();
    if let Some(file) = shelf.lock().get_mut(&id) {
        file.asked += 1;
    }
    loop {
        let Some(file) = shelf.lock().get(&id).cloned() else {
            return StatusCode::NOT_FOUND.into_response();
        };
        let page = || ([("content-type", "text/html; charset=utf-8")], PAGE).into_response();
        let whole = || ([("content-type", "application/octet-stream")], file.bytes.clone()).into_response();
        return match file.fault {
            FileFault::None => whole(),
            FileFault::Private if headers.contains_key("authorization") => whole(),
            FileFault::Private | FileFault::Page => page(),
            FileFault::Status(status) => StatusCode::from_u16(status).expect("a status").into_response(),
            FileFault::MovesTo(address) => Redirect::temporary(&address).into_response(),
            FileFault::Expires if query.as_deref().is_some_and(|query| query.contains("fresh")) => whole(),
            FileFault::Expires => StatusCode::NOT_FOUND.into_response(),
            FileFault::NotYet => StatusCode::NOT_FOUND.into_response(),
            FileFault::Hangs => {
                if changed.changed().await.is_err() {
                    return StatusCode::BAD_GATEWAY.into_response();
                }
                continue;
            }
        };
    }
}
