//! A container as a process: its own mounts over a read-only root, its pod's network, its user, no rights to gain.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use tokio::process::{Child, Command};

use crate::manifests::kinds::{Map, Security};

/// The content of an image.
#[derive(Debug, Clone, Default)]
pub struct Image {
    /// Its programs by their names.
    pub programs: BTreeMap<String, PathBuf>,
    /// Variables of its containers, unless a pod gives them other values.
    pub variables: Map,
}

/// Images by their names without registry and tag.
pub type Images = BTreeMap<String, Image>;

/// What a container consists of.
#[derive(Debug)]
pub struct Parts {
    /// Namespace of the pod's network.
    pub space: String,
    /// Name of the pod, which is that of its host.
    pub host: String,
    /// Empty folder on which its root is mounted.
    pub root: PathBuf,
    /// Address of the server for names, and where names without a dot are looked for.
    pub resolver: String,
    /// Folder here, path there, whether it is read-only.
    pub mounts: Vec<(PathBuf, String, bool)>,
    /// Programs of its image.
    pub programs: BTreeMap<String, PathBuf>,
    /// Whom it runs as.
    pub user: Security,
    /// Its environment.
    pub variables: Map,
    /// Program and arguments.
    pub command: Vec<String>,
}

/// A container that was started.
#[derive(Debug)]
pub struct Running {
    /// Id of its process, which is that of the program from the moment at which it is executed.
    pub pid: u32,
    parts: Parts,
}

impl Running {
    /// Starts it, with its output at the end of `log`; the process is killed when dropped.
    ///
    /// # Errors
    /// Says what is not there.
    pub fn start(parts: Parts, log: &Path) -> Result<(Child, Self), String> {
        let file = File::options().create(true).append(true).open(log);
        let file = file.map_err(|error| format!("{}: {error}", log.display()))?;
        let copy = file.try_clone().map_err(|error| error.to_string())?;
        std::fs::create_dir_all(&parts.root).map_err(|error| error.to_string())?;

        let mut command = Command::new("nsenter");
        let child = command
            .arg(format!("--net=/run/netns/{}", parts.space))
            .args(["unshare", "--mount", "--uts", "--propagation", "private", "sh", "-c"])
            .arg(script(&parts))
            .arg("sh")
            .args(&parts.command)
            .env_clear()
            .envs(environment(&parts))
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(copy)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("nsenter: {error}"))?;

        let pid = child.id().unwrap_or_default();
        Ok((child, Self { pid, parts }))
    }

    /// Returns the command that runs `words` in the container.
    #[must_use]
    pub fn enter(&self, words: &[String]) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args([
                "--target",
                &self.pid.to_string(),
                "--mount",
                "--net",
                "--uts",
                "--root",
                "--wd=/",
            ])
            .args(privileges(&self.parts.user))
            .args(words)
            .env_clear()
            .envs(environment(&self.parts))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Asks the program to end.
    pub async fn ask_to_end(&self) {
        signal("-TERM", &self.pid.to_string()).await;
    }

    /// Kills the program with all that it has started in its group.
    pub async fn kill(&self) {
        signal("-KILL", &format!("-{}", self.pid)).await;
    }
}

async fn signal(name: &str, pid: &str) {
    // Fails if it has ended by itself.
    let sent: std::io::Result<Output> = Command::new("kill").args([name, "--", pid]).output().await;
    drop(sent);
}

fn environment(parts: &Parts) -> Map {
    let mut all = parts.variables.clone();
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    all.entry("PATH".to_owned()).or_insert_with(|| path.to_owned());
    all.entry("HOSTNAME".to_owned()).or_insert_with(|| parts.host.clone());
    all
}

/// Returns the command by which a program has the rights of `user`, and none to gain.
fn privileges(user: &Security) -> Vec<String> {
    let words = format!(
        "setpriv --reuid {} --regid {} --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all --",
        user.run_as_user, user.run_as_group
    );
    words.split(' ').map(str::to_owned).collect()
}

/// Returns the commands that make the root of the container, and become its program.
fn script(parts: &Parts) -> String {
    let Parts {
        root, host, resolver, ..
    } = parts;
    let root = root.display();
    let mut text = format!(
        "set -eu
echo {host} > /proc/sys/kernel/hostname
mount -t tmpfs -o mode=755,size=4m nexus {root}
cd {root}
mkdir usr proc dev etc etc/ssl
mount --rbind /usr usr; mount --rbind /proc proc; mount --rbind /dev dev
for one in bin sbin lib lib64; do
    if [ -L /$one ]; then ln -s usr/$one $one; elif [ -d /$one ]; then mkdir $one; mount --rbind /$one $one; fi
done
if [ -d /etc/ssl ]; then mount --rbind /etc/ssl etc/ssl; fi
printf '{resolver}' > etc/resolv.conf
printf 'nexus:x:{user}:{group}::/:/bin/false\\n' > etc/passwd
mount -t tmpfs -o mode=755,size=1m nexus usr/local/bin
",
        user = parts.user.run_as_user,
        group = parts.user.run_as_group,
    );

    for (name, program) in &parts.programs {
        let program = program.display();
        _ = writeln!(
            text,
            ": > usr/local/bin/{name}; mount --bind {program} usr/local/bin/{name}"
        );
    }
    for (folder, path, is_read_only) in &parts.mounts {
        _ = writeln!(text, "mkdir -p .{path}; mount --bind {} .{path}", folder.display());
        if *is_read_only {
            _ = writeln!(text, "mount -o remount,bind,ro .{path}");
        }
    }

    _ = write!(
        text,
        "mount -o remount,ro {root}; cd /\nexec chroot {root} {} \"$@\"",
        privileges(&parts.user).join(" ")
    );
    text
}
