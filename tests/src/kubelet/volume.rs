//! Volumes as folders: the entries of ConfigMaps and Secrets as files, folders that go with their pod, and their sizes.

use std::io;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};

use super::environment::{PodFacts, entries};
use crate::manifests::kinds::{Map, PodSpec, Volume, quantity};
use crate::manifests::objects::Objects;

/// Returns the folder of `volume` of a pod whose folders are below `pods`, and whose claims are below `claims`. The files
/// in it are those of the ConfigMap or the Secret at this time.
///
/// # Errors
/// Says what is missing: the pod waits for it.
pub fn place(
    volume: &Volume,
    facts: &PodFacts,
    objects: &Objects,
    spec: &PodSpec,
    (pods, claims): (&Path, &Path),
) -> Result<PathBuf, String> {
    let folder = pods.join("volumes").join(&volume.name);
    let failed = |error: io::Error| format!("{}: {error}", folder.display());
    let owned = |folder: &Path| {
        std::fs::create_dir_all(folder)?;
        let user = &spec.security_context;
        chown(folder, Some(user.run_as_user), Some(user.run_as_group))
    };

    match volume {
        Volume {
            config_map: Some(map), ..
        } => {
            write(&folder, &entries(map, facts, &objects.config_maps)?).map_err(failed)?;
        }
        Volume {
            secret: Some(secret), ..
        } => {
            write(&folder, &entries(secret, facts, &objects.secrets)?).map_err(failed)?;
        }
        Volume { empty_dir: Some(_), .. } => owned(&folder).map_err(failed)?,
        Volume {
            persistent_volume_claim: Some(claim),
            ..
        } => {
            let folder = claims.join(&facts.meta.namespace).join(&claim.claim_name);
            owned(&folder).map_err(failed)?;
            return Ok(folder);
        }
        Volume { name, .. } => return Err(format!("volume {name} is of no known kind")),
    }
    Ok(folder)
}

/// Writes `files` the way the kubelet does: all of them change at once, as a link to another folder.
fn write(folder: &Path, files: &Map) -> io::Result<()> {
    let present = std::fs::read_link(folder.join("..data")).unwrap_or_default();
    let read = |name: &String| std::fs::read_to_string(folder.join(&present).join(name)).ok();
    let count = std::fs::read_dir(folder.join(&present)).map_or(0, Iterator::count);
    if !present.as_os_str().is_empty() && count == files.len() && files.iter().all(|(k, v)| read(k).as_ref() == Some(v))
    {
        return Ok(());
    }

    let number: u64 = present.to_string_lossy().trim_start_matches('.').parse().unwrap_or(0);
    let next = format!("..{}", number + 1);
    std::fs::create_dir_all(folder.join(&next))?;
    for (name, text) in files {
        std::fs::write(folder.join(&next).join(name), text)?;
        match symlink(format!("..data/{name}"), folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }

    symlink(&next, folder.join("..data_tmp"))?;
    std::fs::rename(folder.join("..data_tmp"), folder.join("..data"))?;
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.starts_with("..") && !files.contains_key(&name) {
            std::fs::remove_file(folder.join(name))?;
        }
    }
    if number > 0 {
        std::fs::remove_dir_all(folder.join(present))?;
    }
    Ok(())
}

/// Returns why a pod whose folders are below `pods` is to be evicted, if it takes more room than it may.
#[must_use]
pub fn excess(spec: &PodSpec, pods: &Path) -> Option<String> {
    let mut sum = 0;
    for volume in &spec.volumes {
        let Some(empty) = &volume.empty_dir else { continue };
        let size = size(&pods.join("volumes").join(&volume.name));
        sum += size;
        let limit = empty.size_limit.as_ref().and_then(quantity);
        if limit.is_some_and(|limit| size as f64 > limit) {
            return Some(format!(
                "Usage of EmptyDir volume {} exceeds the limit: {size} bytes",
                volume.name
            ));
        }
    }

    let limits = spec
        .containers
        .iter()
        .map(|one| one.resources.limits.get("ephemeral-storage").and_then(quantity));
    // A container without a limit has none, and so has its pod.
    let limit = limits.collect::<Option<Vec<f64>>>()?.iter().sum::<f64>();
    (sum as f64 > limit).then(|| format!("Pod ephemeral local storage usage exceeds the limit: {sum} bytes"))
}

fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => size(&entry.path()),
        Ok(meta) => meta.len(),
        // It has just been removed.
        Err(_) => 0,
    });
    sizes.sum()
}
