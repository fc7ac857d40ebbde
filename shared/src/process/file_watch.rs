//! A file of the configuration, read at the start and followed while the process runs.
//!
//! Source: `docs/design/operations.md` §1.

use std::time::Duration;

use crate::clock::pause;
use crate::process::ShutdownSignal;

/// Interval at which a followed file is read.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Parser of a file's text; returns the value, or all faults at once.
pub type Parse<T> = fn(&str) -> Result<T, Vec<String>>;

/// Reads the file at `path`; returns the default if the path is empty.
///
/// # Errors
/// Returns the file's faults, or the reason why it cannot be read, each with the path.
pub fn load<T: Default>(path: &str, parse: Parse<T>) -> Result<T, Vec<String>> {
    if path.is_empty() {
        return Ok(T::default());
    }
    let read = std::fs::read_to_string(path).map_err(|error| vec![format!("cannot be read: {error}")]);
    let named = |faults: Vec<String>| faults.into_iter().map(|fault| format!("{path}: {fault}")).collect();
    read.and_then(|text| parse(&text)).map_err(named)
}

/// Reads the file at `path` at intervals until `stop`, and passes its value to `put` each time it differs from the one
/// `known` before. A file that cannot be read or is faulty is logged once, and the known value stays in use.
pub async fn follow_file<T>(path: &str, parse: Parse<T>, known: T, stop: &ShutdownSignal, mut put: impl FnMut(T))
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

        // The file may lie on a network drive, and this thread also renews leases.
        let file = path.to_owned();
        let looked = tokio::task::spawn_blocking(move || load(&file, parse)).await;
        match looked.unwrap_or_else(|error| Err(vec![format!("{path}: {error}")])) {
            Ok(read) => {
                told.clear();
                // An editor may write the file without changing it.
                if read != known {
                    tracing::info!(path, "watched file changed");
                    known = read.clone();
                    put(read);
                }
            }
            // The same fault is reported once, not at every look.
            Err(faults) if faults != told => {
                tracing::warn!(
                    faults = faults.join("; "),
                    "failed to load a changed file; keeping the former content"
                );
                told = faults;
            }
            Err(_) => {}
        }
    }
}
