//! The note that a worker keeps in a file that it maps: the hook that is running, and results that were not yet sent
//! (`shim/note.ts`).
//!
//! The host reads the file and does not map it: a read of 16 bytes costs a microsecond and happens only when a worker
//! seems stuck, or after a death. A script may write any bytes into it, so nothing in it is trusted.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::in_flight::{CrashNote, NotedOutcome};
use super::protocol;
use super::user::UnixUser;

/// Bytes of the note: four cells of four bytes for slot, running hook + 1, steps, generation.
const NOTE_BYTES: usize = 16;

/// Index of the cell that holds the number of journal cells in use, and of the cell at which the journal begins.
const USED_CELL: u64 = 4;
const FIRST_CELL: u64 = 8;

/// Number of cells of a journal entry before its text: slot, index, kind, microseconds, bytes of text.
const ENTRY_CELLS: usize = 5;

/// Size of the whole file in bytes: several times the answers that a worker gives within two milliseconds.
const FILE_BYTES: u64 = 1024 * 1024;

const CELL_BYTES: usize = 4;

/// Content of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct JournalNote {
    /// Slot of the event being evaluated; `None` while hooks load.
    pub(super) slot: Option<u32>,
    /// Index of the hook that is running now.
    pub(super) running: Option<u32>,
    /// Counter that grows with every hook called.
    pub(super) steps: u32,
    /// Generation of the set to which the index belongs.
    pub(super) generation: u32,
}

/// File of one worker process, removed when dropped.
#[derive(Debug)]
pub(super) struct NoteFile {
    file: File,
    path: PathBuf,
}

impl NoteFile {
    /// Creates the file at `path` with an empty note. If `user` is given, that user owns it.
    pub(super) fn create_note(path: PathBuf, user: Option<UnixUser>) -> std::io::Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;

        file.set_len(FILE_BYTES)?;

        if let Some(UnixUser { uid, gid }) = user {
            std::os::unix::fs::fchown(&file, Some(uid), Some(gid))?;
        }

        Ok(Self { file, path })
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the current note.
    pub(super) fn read(&self) -> std::io::Result<JournalNote> {
        let mut bytes = [0; NOTE_BYTES];
        self.file.read_exact_at(&mut bytes, 0)?;
        let cell = |at| read_cell(&bytes, at).unwrap_or_default();
        Ok(JournalNote {
            slot: i32::try_from(cell(0)).is_ok().then(|| cell(0)),
            running: cell(1).checked_sub(1),
            steps: cell(2),
            generation: cell(3),
        })
    }

    /// Reads the results that the worker had not sent, in the order of the answers.
    pub(super) fn read_journal(&self) -> std::io::Result<Vec<CrashNote>> {
        let mut used = [0; CELL_BYTES];
        self.file.read_exact_at(&mut used, USED_CELL * CELL_BYTES as u64)?;
        let begin = FIRST_CELL * CELL_BYTES as u64;
        let used = u64::from(u32::from_ne_bytes(used)) * CELL_BYTES as u64;
        let length = usize::try_from(used.min(FILE_BYTES - begin)).unwrap_or_default();
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, begin)?;
        Ok(read_entries(&bytes))
    }
}

fn read_cell(bytes: &[u8], at: usize) -> Option<u32> {
    let (four, _) = bytes.get(at * CELL_BYTES..)?.split_first_chunk()?;
    Some(u32::from_ne_bytes(*four))
}

/// Parses a journal up to the first invalid entry.
fn read_entries(bytes: &[u8]) -> Vec<CrashNote> {
    let mut noted = Vec::new();
    let mut rest = bytes;
    while let Some((entry, length)) = read_entry(rest) {
        noted.push(entry);
        rest = rest.get(length..).unwrap_or_default();
    }
    noted
}

/// Returns the first entry of `bytes`, and its length in bytes.
fn read_entry(bytes: &[u8]) -> Option<(CrashNote, usize)> {
    let head = ENTRY_CELLS * CELL_BYTES;
    let length = read_cell(bytes, 4)? as usize;
    let text = bytes.get(head..head.checked_add(length)?)?;
    let text = || Some(std::str::from_utf8(text).ok()?.to_owned());

    let what = match read_cell(bytes, 2)? {
        1 => NotedOutcome::Passed,
        2 => NotedOutcome::Result(text()?),
        3 => NotedOutcome::Failed(protocol::cut(text()?)),
        _ => return None,
    };

    let entry = CrashNote {
        slot: read_cell(bytes, 0)?,
        index: read_cell(bytes, 1)?,
        latency_us: read_cell(bytes, 3)?,
        what,
    };

    Some((entry, head + length.next_multiple_of(CELL_BYTES)))
}

impl Drop for NoteFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(cells: &[u32]) -> Vec<u8> {
        cells.iter().flat_map(|cell| cell.to_ne_bytes()).collect()
    }

    #[test]
    fn a_journal_is_read_up_to_what_makes_no_sense() {
        let text = u32::from_ne_bytes(*b"{}  ");
        let journal = bytes(&[
            7, 3, 1, 20, 0, 7, 4, 2, 30, 2, text, 8, 0, 3, 40, 1, text, 8, 1, 9, 50, 0,
        ]);
        let noted = |slot, index, latency_us, what| CrashNote {
            slot,
            index,
            latency_us,
            what,
        };

        assert_eq!(
            read_entries(&journal),
            [
                noted(7, 3, 20, NotedOutcome::Passed),
                noted(7, 4, 30, NotedOutcome::Result("{}".to_owned())),
                noted(8, 0, 40, NotedOutcome::Failed("{".to_owned())),
            ]
        );
        assert!(
            read_entries(&bytes(&[7, 3, 2, 20, u32::MAX])).is_empty(),
            "longer than the file"
        );
    }

    #[test]
    fn a_fresh_note_tells_of_nobody() {
        let folder = tempfile::tempdir().expect("a folder");
        let note = NoteFile::create_note(folder.path().join("note"), None).expect("made");
        assert_eq!(note.read().expect("read").running, None);
        assert_eq!(note.read_journal().expect("read"), []);
        note.file.write_all_at(&u32::MAX.to_ne_bytes(), 16).expect("written");
        assert_eq!(note.read_journal().expect("read"), []);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(cells in prop::collection::vec(prop_oneof![0..4_u32, any::<u32>()], 0..40)) {
            let _ = read_entries(&bytes(&cells));
        }
    }
}
