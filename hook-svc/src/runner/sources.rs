//! Hook sources as files that workers import.
//!
//! Every new source gets a path of its own, below a number that is never used again: a worker that still evaluates the
//! former version keeps it, and no module cache confuses the two. A file is removed when the last set that holds it is
//! dropped.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{HookSet, HookSource};

/// A source that cannot be written for the workers.
#[derive(Debug, thiserror::Error)]
#[error("failed to write the source of hook {hook} to {path}")]
pub struct WriteSourceError {
    /// Id of the hook.
    pub hook: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Cause of the failure.
    pub source: std::io::Error,
}

/// A set of hooks whose files are in place.
#[derive(Debug)]
pub(super) struct LoadedHooks {
    generation: u32,
    set: Arc<HookSet>,
    files: Vec<Arc<SourceFile>>,
}

/// One source on disk, removed when dropped.
#[derive(Debug)]
struct SourceFile {
    key: (String, String),
    path: String,
}

impl Drop for SourceFile {
    fn drop(&mut self) {
        // A file that remains is in the pool's own directory, which is removed with the pool.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl LoadedHooks {
    /// Returns the empty set, in force before the first load.
    pub(super) fn empty_set() -> Self {
        Self {
            generation: 0,
            set: Arc::new(HookSet::default()),
            files: Vec::new(),
        }
    }

    /// Writes the files of `set` into `dir`; those that `former` already has stay at their paths.
    pub(super) fn unpack_set(set: Arc<HookSet>, former: &Self, dir: &Path) -> Result<Self, WriteSourceError> {
        let generation = former.generation.wrapping_add(1);
        let known: HashMap<_, _> = former.files.iter().map(|file| (&file.key, file)).collect();
        let root = dir.join(format!("hooks/{generation}"));

        let mut files = Vec::with_capacity(set.hooks().len());
        for hook in set.hooks() {
            let key = (hook.id.clone(), hook.content_hash.clone());
            // A known source keeps its path, so that workers do not import it a second time.
            let file = match known.get(&key) {
                Some(file) => Arc::clone(file),
                None => {
                    let path = root.join(relative_path(&hook.id));
                    write(&path, &hook.source).map_err(|source| WriteSourceError {
                        hook: hook.id.clone(),
                        path: path.clone(),
                        source,
                    })?;

                    Arc::new(SourceFile {
                        key,
                        path: path.to_string_lossy().into_owned(),
                    })
                }
            };

            files.push(file);
        }

        Ok(Self { generation, set, files })
    }

    /// Returns the number of the set, counted from 1 (0 for the empty set).
    pub(super) const fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns the hooks of the set.
    pub(super) const fn set(&self) -> &Arc<HookSet> {
        &self.set
    }

    /// Returns the path of the file of hook `index`.
    pub(super) fn path(&self, index: usize) -> Option<&str> {
        self.files.get(index).map(|file| file.path.as_str())
    }

    /// Returns the paths of `former` that are not in this set.
    pub(super) fn dropped_paths<'a>(&self, former: &'a Self) -> Vec<&'a str> {
        let kept: std::collections::HashSet<_> = self.files.iter().map(|file| file.path.as_str()).collect();
        former
            .files
            .iter()
            .map(|file| file.path.as_str())
            .filter(|path| !kept.contains(path))
            .collect()
    }

    /// Returns the hook whose file `stack` names.
    pub(super) fn hook_in_stack(&self, stack: &str) -> Option<&Arc<HookSource>> {
        let at = self.files.iter().position(|file| stack.contains(&file.path))?;
        self.set.hooks().get(at)
    }
}

fn write(path: &Path, source: &str) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(path, source)
}

/// Returns the id as a path that stays below its root for any id; readable ids stay readable in stacks.
fn relative_path(id: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in id.split('/') {
        let safe: String = part
            .bytes()
            .map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => char::from(byte).to_string(),
                other => format!("={other:02X}"),
            })
            .collect();

        // The empty part has a name of its own, because `a//b` and `a/b` are two hooks.
        path.push(if safe.is_empty() { "=" } else { &safe });
    }

    path.as_mut_os_string().push(".ts");
    path
}

#[cfg(test)]
mod tests {
    use super::relative_path;

    #[test]
    fn no_id_leaves_the_directory() {
        for (id, path) in [
            ("work/stripe-high_value", "work/stripe-high_value.ts"),
            ("../../etc/passwd", "=2E=2E/=2E=2E/etc/passwd.ts"),
            ("/etc//x", "=/etc/=/x.ts"),
            ("mum 2fa.v2", "mum=202fa=2Ev2.ts"),
        ] {
            assert_eq!(relative_path(id).to_string_lossy(), path);
        }
    }
}
