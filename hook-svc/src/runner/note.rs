//! The note that a worker keeps in a file that it maps: who is running now (`shim/note.ts`).
//!
//! Read, not mapped, on this side: a read of 16 bytes costs a microsecond and happens only when something seems
//! stuck, or after a death.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Cells of four bytes: slot, running hook + 1, steps, generation.
const NOTE_BYTES: usize = 16;

/// What a note says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Note {
    /// Slot of the event being evaluated; `None` while hooks load.
    pub(super) slot: Option<u32>,
    /// Index of the hook now running.
    pub(super) running: Option<u32>,
    /// Counts up with every hook called.
    pub(super) steps: u32,
    /// The set to which the index belongs.
    pub(super) generation: u32,
}

/// The file of one worker process, removed with it.
#[derive(Debug)]
pub(super) struct NoteFile {
    file: File,
    path: PathBuf,
}

impl NoteFile {
    /// Makes the file at `path`, telling of nobody.
    pub(super) fn create(path: PathBuf) -> std::io::Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        file.write_all_at(&[0; NOTE_BYTES], 0)?;
        Ok(Self { file, path })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What it says now.
    pub(super) fn read(&self) -> std::io::Result<Note> {
        let mut bytes = [0; NOTE_BYTES];
        self.file.read_exact_at(&mut bytes, 0)?;
        let cell = |at: usize| {
            let mut four = [0; 4];
            four.copy_from_slice(&bytes[at * 4..at * 4 + 4]);
            u32::from_ne_bytes(four)
        };
        Ok(Note {
            slot: i32::try_from(cell(0)).is_ok().then(|| cell(0)),
            running: cell(1).checked_sub(1),
            steps: cell(2),
            generation: cell(3),
        })
    }
}

impl Drop for NoteFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
