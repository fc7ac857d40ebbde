//! Kustomizations, rendered by kubectl as an operator has it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Renders the kustomization in `folder`, or says so and returns `None` if kubectl cannot be run.
///
/// # Panics
/// Panics if the kustomization is wrong.
#[must_use]
pub fn try_render(folder: &Path) -> Option<String> {
    let output = match Command::new("kubectl").arg("kustomize").arg(folder).output() {
        Ok(output) => output,
        Err(error) => {
            println!("SKIPPED: kubectl cannot be run: {error}");
            return None;
        }
    };

    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "kubectl kustomize {}: {said}",
        folder.display()
    );
    Some(String::from_utf8(output.stdout).expect("kubectl writes UTF-8"))
}

/// Returns the path from one folder to another: kustomize takes relative paths alone.
///
/// # Panics
/// Panics if one of them is not there.
#[must_use]
pub fn relative_path(from: &Path, to: &Path) -> String {
    let absolute = |path: &Path| path.canonicalize().expect("a folder");
    let (from, to) = (absolute(from), absolute(to));
    let pairs = from.components().zip(to.components());
    let common = pairs.take_while(|(a, b)| a == b).count();

    let mut path = PathBuf::new();
    path.extend(from.components().skip(common).map(|_| ".."));
    path.extend(to.components().skip(common));
    path.display().to_string()
}
