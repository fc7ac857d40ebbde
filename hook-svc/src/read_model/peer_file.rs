//! The start of a copy from the file of another replica, in parts over the bus: copies of any size, while those in the
//! object store are bounded.
//!
//! Another replica is asked if no snapshot is stored, or so many events came since the newest one that another would be
//! due. A file that is fetched in part counts for nothing: its parts are of one moment, and a loan that ended begins at
//! another one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use shared::bus::{Bus, RequestError};
use shared::clock::pause;
use shared::error_chain::describe_error;
use shared::projection::snapshot::name_prefix;
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;

use super::access::ModelAccess;
use super::peer_api::{FilePartQuestion, FileQuestion, LentFile, ReachedQuestion, ReachedReply};
use super::peer_copies::PeerCopies;
use super::snapshot::{self, CopyModelError};

/// Time limit for the question how far the others have come.
const REACHED: Duration = Duration::from_secs(1);

/// Time limit for a loan to begin: the other replica's readers end first.
const BEGIN: Duration = Duration::from_secs(15);

/// Time limit for one part.
const PART: Duration = Duration::from_secs(10);

/// Pause before a part is asked for again.
const AGAIN: Duration = Duration::from_secs(1);

/// Number of times that a part is asked for.
const TRIES: u32 = 5;

/// Number of times that all replicas are tried.
const ROUNDS: u32 = 3;

/// Bytes after which progress is logged.
const PROGRESS: u64 = 1 << 30;

/// Reason why a file could not be fetched from another replica.
#[derive(Debug, thiserror::Error)]
enum FetchFileError {
    /// The other replica did not answer, or refused.
    #[error("the other replica gave no part of its file")]
    Ask(#[from] RequestError),
    /// The answer cannot be read.
    #[error("the other replica's answer cannot be read")]
    Answer(#[from] serde_json::Error),
    /// The other replica's file is of another version of the schema; contains its format.
    #[error("the other replica's file is {0}, which this version does not read")]
    Format(String),
    /// The file ended before its size.
    #[error("the file ended at byte {0}")]
    Short(u64),
    /// The file cannot be written here.
    #[error("{path}", path = path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the file system.
        source: std::io::Error,
    },
    /// The file cannot be put in its place.
    #[error("failed to put the file in its place")]
    Place(#[from] CopyModelError),
}

/// Fetches the file of another replica to `path` if no file exists there and the snapshots in the store are too old or
/// absent. Otherwise, or if no other replica lends its file, the file stays absent.
///
/// That may take an hour. If another copy answers, `access` says meanwhile that this replica keeps none, so that it takes
/// part as replicas without a copy do.
pub(crate) async fn bootstrap_from_peer(bus: &Bus, access: &ModelAccess, path: &Path) {
    if path.exists() || !is_wanted(bus, access).await {
        return;
    }

    let peers = access.peers();
    for round in 0..ROUNDS {
        let names = peers.names();
        if round > 0 && !names.is_empty() {
            pause(AGAIN).await;
        }

        for name in names {
            match fetch(peers, &name, path).await {
                Ok(lent) => {
                    tracing::info!(
                        replica = name,
                        bytes = lent.bytes,
                        events = lent.position,
                        "read model starts from the file of another replica"
                    );
                    return;
                }
                Err(error) => tracing::warn!(
                    replica = name,
                    error = describe_error(&error),
                    "failed to fetch the read model's file from another replica"
                ),
            }
        }
    }
}

/// Returns whether the others are so far ahead of the newest snapshot that their file is worth more.
async fn is_wanted(bus: &Bus, access: &ModelAccess) -> bool {
    let question = ReachedQuestion { beyond: 0 };
    let position = match access.peers().ask("reached", &question, REACHED).await {
        Ok(ReachedReply { position, .. }) => {
            access.decide_none();
            position
        }
        Err(error) => {
            tracing::debug!(%error, "no other replica has a copy of the read model");
            return false;
        }
    };

    match snapshot::read_stored(bus).await {
        // A file that is ahead of the stream is of other streams, and is about to be rebuilt.
        Ok((_, end)) if position > end => false,
        Ok((stored, _)) => snapshot::is_much_newer(stored, position),
        Err(error) => {
            let error = describe_error(&error);
            tracing::debug!(error, "unknown which snapshots of the read model are stored");
            position > 0
        }
    }
}

/// Fetches the file of the replica `name` to `path`, where it appears complete or not at all.
async fn fetch(peers: &PeerCopies, name: &str, path: &Path) -> Result<LentFile, FetchFileError> {
    let begun = peers.ask_one(name, "file", &FileQuestion {}, BEGIN).await?;
    let lent: LentFile = serde_json::from_slice(&begun)?;
    if lent.format != name_prefix() {
        return Err(FetchFileError::Format(lent.format));
    }
    tracing::info!(
        replica = name,
        bytes = lent.bytes,
        events = lent.position,
        "fetching the read model's file from another replica"
    );

    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|source| file_error(folder, source))?;
    }
    let unfinished = snapshot::unfinished_path(path);
    let written = write_parts(peers, name, &lent, &unfinished).await;
    if let Err(error) = written {
        // The room is needed for the file that is built instead.
        if let Err(error) = std::fs::remove_file(&unfinished) {
            tracing::debug!(%error, "no part of the read model's file is left to remove");
        }
        return Err(error);
    }

    snapshot::put_in_place(&unfinished, path)?;
    Ok(lent)
}

async fn write_parts(peers: &PeerCopies, name: &str, lent: &LentFile, to: &Path) -> Result<(), FetchFileError> {
    let failed = |source| file_error(to, source);
    let mut file = File::create(to).await.map_err(failed)?;
    let mut offset = 0_u64;
    let mut told = 0_u64;
    while offset < lent.bytes {
        let part = fetch_part(peers, name, lent, offset).await?;
        if part.is_empty() {
            return Err(FetchFileError::Short(offset));
        }

        file.write_all(&part).await.map_err(failed)?;
        offset += part.len() as u64;
        if offset - told >= PROGRESS {
            told = offset;
            tracing::info!(fetched = offset, bytes = lent.bytes, "fetching the read model's file");
        }
    }

    file.flush().await.map_err(failed)?;
    file.sync_all().await.map_err(failed)
}

/// Fetches the part at `offset`. A replica that does not answer is asked again; one that says that its loan has ended
/// is not.
async fn fetch_part(peers: &PeerCopies, name: &str, lent: &LentFile, offset: u64) -> Result<Bytes, FetchFileError> {
    let question = FilePartQuestion {
        file: lent.file.clone(),
        offset,
    };
    let mut tries = 1;
    loop {
        match peers.ask_one(name, "file_part", &question, PART).await {
            Ok(part) => return Ok(part),
            Err(RequestError::NoResponder { .. } | RequestError::Timeout { .. }) if tries < TRIES => {
                tries += 1;
                pause(AGAIN).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn file_error(path: &Path, source: std::io::Error) -> FetchFileError {
    FetchFileError::File {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shared::bus::{OutgoingMessage, ServiceSpec};
    use shared::clock::{SharedClock, SystemClock};
    use shared::testing::{eventually, world};
    use shared::wire::headers::Headers;
    use shared::wire::subject::token;
    use tokio::sync::watch;

    use super::*;
    use crate::read_model::access::ModelStanding;
    use crate::read_model::peer_api::SERVICE;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_replica_takes_part_with_the_copies_of_others_while_it_fetches_a_file() {
        let (_server, bus) = world().await;
        let stored = OutgoingMessage::raw("nexus.event.webchat.default.a".to_owned(), Headers::new(), "{}".into());
        bus.publish(stored).await.expect("stored");

        // Another replica has a copy of that event, and its loan does not begin.
        let spec = ServiceSpec::new(SERVICE, "a copy")
            .of_instance(token("h-0"))
            .endpoint("reached", |_: ReachedQuestion| async {
                Ok(ReachedReply {
                    position: 1,
                    building: false,
                })
            })
            .endpoint("file", |_: FileQuestion| {
                std::future::pending::<Result<LentFile, (usize, String)>>()
            });
        let _served = bus.serve(spec).await.expect("served");

        let (_told, holders) = watch::channel(vec!["h-0".to_owned()]);
        let clock: SharedClock = Arc::new(SystemClock);
        let peers = PeerCopies::new(&bus, "h-1", holders, Arc::clone(&clock));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("read-model.sqlite");
        let (access, _asker) = ModelAccess::new(path.clone(), peers);
        assert_eq!(access.standing(clock.now()), ModelStanding::Undecided);

        let (own, to) = (access.clone(), path.clone());
        let fetching = tokio::spawn(async move { bootstrap_from_peer(&bus, &own, &to).await });
        let of_another = ModelStanding::Peers(vec![token("h-0")]);
        eventually("the other copy is asked", async || {
            access.standing(clock.now()) == of_another
        })
        .await;
        assert!(!fetching.is_finished() && !path.exists());
        fetching.abort();
    }
}
