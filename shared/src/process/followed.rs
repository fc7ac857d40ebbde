//! A file of the configuration, read at the start and followed while the process runs.
//!
//! Source: `docs/design/operations.md` §1.

use std::time::Duration;

use crate::clock::pause;
use crate::process::Shutdown;

/// How often a file is looked at.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What the text of a file says, or its faults, all at once.
pub type Parse<T> = fn(&str) -> Result<T, Vec<String>>;

/// What the file at `path` says; the default where that is empty.
///
/// # Errors
/// Its faults, or why it cannot be read, each with the path.
pub fn load<T: Default>(path: &str, parse: Parse<T>) -> Result<T, Vec<String>> {
    if path.is_empty() {
        return Ok(T::default());
    }
    let read = std::fs::read_to_string(path).map_err(|error| vec![format!("cannot be read: {error}")]);
    let named = |faults: Vec<String>| faults.into_iter().map(|fault| format!("{path}: {fault}")).collect();
    read.and_then(|text| parse(&text)).map_err(named)
}

/// Hands what the file at `path` says to `put` whenever that is no more what was `known`, until `stop`. A file that cannot
/// be read or is faulty is told of once, and what was known stands.
pub async fn follow<T>(path: &str, parse: Parse<T>, known: T, stop: &Shutdown, mut put: impl FnMut(T))
where
    T: Default + Clone + PartialEq + Send + 'static,
{
    if path.is_empty() {
        return;
    }

    let (mut known, mut told) = (known, Vec::new());
    loop {
        tokio::select! {
            () = stop.requested() => return,
            () = pause(LOOK_EVERY) => {}
        }

        // The file may lie behind a network, and the thread renews leases.
        let file = path.to_owned();
        let looked = tokio::task::spawn_blocking(move || load(&file, parse)).await;
        match looked.unwrap_or_else(|error| Err(vec![format!("{path}: {error}")])) {
            Ok(read) => {
                told.clear();
                if read != known {
                    tracing::info!(path, "a followed file changed");
                    known = read.clone();
                    put(read);
                }
            }
            Err(faults) if faults != told => {
                tracing::warn!(faults = faults.join("; "), "a changed file is not taken over");
                told = faults;
            }
            Err(_) => {}
        }
    }
}
