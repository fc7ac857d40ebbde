//! Capabilities of programs: which only read with any arguments, and with which options some of them write files or
//! run other programs after all. *Pure.*
//!
//! The effect of a wildcard is unknown for a program that is not listed here: a program that is not listed as harmless
//! is not harmless.

/// Programs that neither run others nor change anything with any arguments, except by the options of [`PROGRAMS`].
#[rustfmt::skip]
const HARMLESS: &[&str] = &[
    // Names and texts of files.
    "ls", "gls", "eza", "exa", "tree", "fd", "fdfind", "stat", "file", "du", "df", "readlink", "realpath", "basename",
    "dirname", "pwd", "which", "whereis",
    "cat", "tac", "head", "tail", "nl", "wc", "cut", "paste", "join", "comm", "fold", "fmt", "expand", "unexpand", "pr", "tr",
    "rev", "column", "col", "colrm", "look", "tsort", "sort", "gsort", "od", "hexdump", "hd", "strings", "cmp", "diff",
    "grep", "egrep", "fgrep", "ggrep", "rg", "cksum", "sum", "md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum",
    "sha512sum", "b2sum", "shasum", "base32", "base64", "basenc",
    // Values.
    "echo", "printf", "seq", "sleep", "true", "false", "test", "expr", "factor", "numfmt", "cal", "ncal",
    // The machine.
    "id", "whoami", "groups", "users", "who", "w", "last", "logname", "tty", "uname", "arch", "nproc", "hostid", "uptime",
    "free", "ps", "pgrep", "pidof", "vmstat", "lsblk", "lscpu", "lsmem", "printenv", "getent", "locale",
    // Checkers that read only.
    "shellcheck",
];

/// Programs that run other programs, or change files of others, depending on their arguments: none of them counts as
/// a script of the operator's own in any directory.
#[rustfmt::skip]
const POWERFUL: &[&str] = &[
    // Version control, and builders.
    "git", "hg", "svn", "cvs", "bzr", "fossil", "jj", "gh", "glab",
    "make", "gmake", "ninja", "cmake", "ctest", "meson", "just", "task", "rake", "ant", "mvn", "gradle", "gradlew",
    "bazel", "buck", "scons", "waf", "dune", "sbt", "lein", "cargo", "rustc", "go", "gcc", "cc", "g++", "c++", "clang",
    "clang++", "ld", "as", "javac", "tsc", "dotnet", "msbuild", "swift", "zig",
    // Archives and copies.
    "tar", "gtar", "bsdtar", "cpio", "pax", "zip", "unzip", "7z", "7za", "rar", "unrar", "ar", "rsync", "scp", "sftp",
    "rclone", "dd", "cp", "mv", "rm", "rmdir", "unlink", "ln", "install", "tee", "truncate", "shred", "mkdir", "touch",
    "chmod", "chown", "chgrp", "chattr", "setfacl", "patch", "gzip", "gunzip", "bzip2", "bunzip2", "xz", "unxz", "zstd",
    "split", "csplit", "mkfifo", "mknod", "mktemp", "sponge", "rename",
    "uniq", "xxd", "shuf", "iconv", "sdiff", "objcopy", "strip",
    // Text tools with a language of their own, editors and pagers.
    "sed", "gsed", "awk", "gawk", "mawk", "nawk", "ed", "ex", "vi", "vim", "view", "nvim", "emacs", "nano", "pico",
    "less", "more", "most", "man", "info", "jed", "joe", "micro", "hx", "code",
    // Programs that start others.
    "find", "gfind", "xargs", "gxargs", "parallel", "env", "sudo", "doas", "su", "runuser", "pkexec", "nice", "ionice",
    "chrt", "taskset", "nohup", "setsid", "timeout", "time", "stdbuf", "script", "watch", "entr", "flock", "unshare",
    "nsenter", "chroot", "setpriv", "capsh", "prlimit", "strace", "ltrace", "gdb", "lldb", "perf", "valgrind", "busybox",
    "toybox", "expect", "screen", "tmux", "at", "batch", "crontab", "systemd-run", "systemctl", "service", "launchctl",
    "start-stop-daemon", "run-parts", "logrotate", "ld.so", "ld-linux", "ld-linux-x86-64.so", "ld-linux-aarch64.so", "ld-musl-x86_64.so", "firejail", "bwrap", "proxychains", "direnv",
    // Shells and interpreters.
    "sh", "bash", "dash", "ash", "zsh", "fish", "ksh", "mksh", "csh", "tcsh", "pwsh", "powershell", "nu", "elvish",
    "rbash", "python", "pypy", "ipython", "perl", "ruby", "irb", "node", "nodejs", "bun", "deno", "php", "lua", "luajit",
    "tclsh", "wish", "r", "rscript", "julia", "java", "jshell", "groovy", "scala", "kotlin", "clojure", "guile", "racket",
    "sbcl", "ghci", "runghc", "erl", "elixir", "iex", "escript", "octave", "m4", "bc", "dc", "jq", "yq", "gnuplot",
    "ts-node", "tsx", "osascript",
    // Programs that test, format or check code load code of the tree.
    "pytest", "tox", "nox", "jest", "vitest", "mocha", "phpunit", "rspec", "eslint", "prettier", "ruff", "black", "isort",
    "mypy", "pylint", "pre-commit",
    // Package managers.
    "npm", "npx", "pnpm", "pnpx", "yarn", "bunx", "corepack", "pip", "pipx", "uv", "uvx", "poetry", "pdm", "hatch",
    "conda", "mamba", "gem", "bundle", "bundler", "composer", "apt", "apt-get", "aptitude", "dpkg", "yum", "dnf", "rpm",
    "zypper", "pacman", "apk", "brew", "port", "nix", "nix-env", "nix-shell", "guix", "snap", "flatpak", "rustup",
    "opam", "cabal", "stack", "mix", "hex", "luarocks", "cpan",
    // Other machines, containers and databases.
    "ssh", "autossh", "mosh", "telnet", "nc", "ncat", "netcat", "socat", "curl", "wget", "aria2c", "ftp", "lftp", "http",
    "docker", "podman", "nerdctl", "buildah", "skopeo", "ctr", "crictl", "runc", "lxc", "kubectl", "oc", "helm", "k9s",
    "kustomize", "terraform", "tofu", "pulumi", "ansible", "ansible-playbook", "vagrant", "packer", "aws", "gcloud", "az",
    "psql", "mysql", "mariadb", "sqlite3", "sqlite", "mongo", "mongosh", "redis-cli", "duckdb", "clickhouse", "nats",
    // Systems.
    "mount", "umount", "mkfs", "fdisk", "parted", "kill", "killall", "pkill", "reboot", "shutdown", "halt", "poweroff",
    "useradd", "usermod", "userdel", "passwd", "chpasswd", "visudo", "iptables", "nft", "ip", "sysctl", "modprobe",
    "insmod", "tcpdump", "nmap", "openssl", "gpg", "ssh-keygen", "mail", "mutt", "sendmail", "ffmpeg", "convert",
    "magick", "pandoc", "latex", "pdflatex", "tex",
];

/// Subcommands of git that only read; their dangerous options are listed below.
const READ_ONLY_GIT: &[&str] = &[
    "annotate",
    "blame",
    "cat-file",
    "cherry",
    "count-objects",
    "describe",
    "diff",
    "diff-files",
    "diff-index",
    "diff-tree",
    "for-each-ref",
    "grep",
    "log",
    "ls-files",
    "ls-tree",
    "merge-base",
    "name-rev",
    "range-diff",
    "rev-list",
    "rev-parse",
    "shortlog",
    "show",
    "show-branch",
    "show-ref",
    "status",
    "whatchanged",
];

/// A program and its dangerous options.
struct Program {
    names: &'static [&'static str],
    /// Whole options; for those with two hyphens, every abbreviation and every value count too.
    words: &'static [&'static str],
    /// Letters of short options, which may be clustered behind one hyphen.
    letters: &'static str,
}

const PROGRAMS: [Program; 7] = [
    Program {
        names: &["git"],
        words: &[
            "--output",
            "--output-directory",
            "--ext-diff",
            "--textconv",
            "--filters",
            "--exec-path",
            "--config-env",
            "--open-files-in-pager",
            "--upload-pack",
            "--receive-pack",
            "--exec",
        ],
        letters: "O",
    },
    Program {
        names: &["fd", "fdfind"],
        words: &["--exec", "--exec-batch"],
        letters: "xX",
    },
    Program {
        names: &["sort", "gsort"],
        words: &["--output", "--compress-program"],
        letters: "o",
    },
    Program {
        names: &["rg"],
        words: &["--pre", "--hostname-bin", "--search-zip"],
        letters: "z",
    },
    // The program's options outside of GNU.
    Program {
        names: &["base64"],
        words: &["--output"],
        letters: "o",
    },
    Program {
        names: &["file"],
        words: &["--compile"],
        letters: "C",
    },
    Program {
        names: &["tree"],
        words: &[],
        letters: "oR",
    },
];

/// Last components of directories with programs: a file there is no script of the operator's own.
const OF_PROGRAMS: [&str; 6] = ["bin", "sbin", ".bin", "libexec", "games", "shims"];

/// Returns whether the program of an entry, whose words before the first wildcard are `literals`, only reads with any
/// words that a wildcard takes, or is a script of the operator's own, which is responsible for its arguments itself.
pub(super) fn is_harmless(literals: &[String]) -> bool {
    let Some(name) = literals.first() else {
        return false;
    };
    let (directory, file) = match name.rsplit_once('/') {
        Some((directory, file)) => (Some(directory), file),
        None => (None, name.as_str()),
    };

    let reads = file == "git"
        && literals
            .get(1)
            .is_some_and(|command| READ_ONLY_GIT.contains(&command.as_str()));
    let is_script = directory.is_some_and(|directory| {
        let last = directory.rsplit('/').next().unwrap_or(directory);
        !OF_PROGRAMS.contains(&last) && !POWERFUL.contains(&base_name(file).as_str())
    });

    reads || is_script || HARMLESS.contains(&file)
}

/// Returns the first option of `words` that writes files or runs other programs. Each word comes with whether the
/// entry names it: an option that the operator wrote out is intended.
pub(super) fn dangerous_option(words: &[(&str, bool)]) -> Option<String> {
    let ((name, _), arguments) = words.split_first()?;
    let name = base_name(name);
    let program = PROGRAMS.iter().find(|program| program.names.contains(&name.as_str()))?;
    // Words behind `--` count too: if an option before it takes a value, `--` is that value, and an option follows.
    let found = arguments
        .iter()
        .find(|(word, named)| !named && program.refuses_option(word));
    found.map(|(word, _)| (*word).to_owned())
}

/// Returns the name of a program without its directory, its version and its case.
fn base_name(name: &str) -> String {
    let name = name.rsplit('/').next().unwrap_or(name).to_lowercase();
    let name = name.strip_suffix(".exe").unwrap_or(&name);
    let plain = name.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-'));
    // The digit belongs to the name, as in `7z` and `sqlite3`.
    if plain.is_empty() || POWERFUL.contains(&name) {
        name.to_owned()
    } else {
        plain.to_owned()
    }
}

impl Program {
    fn refuses_option(&self, word: &str) -> bool {
        if let Some(long) = word.strip_prefix("--") {
            let name = long.split('=').next().unwrap_or(long);
            let mut names = self.words.iter().filter_map(|word| word.strip_prefix("--"));
            return !name.is_empty() && names.any(|known| known.starts_with(name));
        }
        let Some(cluster) = word.strip_prefix('-') else {
            return false;
        };
        self.words.contains(&word) || cluster.chars().any(|letter| self.letters.contains(letter))
    }
}
