//! Options with which harmless programs write files or run others. *Pure.*
//!
//! They are refused whatever an entry says: whoever needs one puts the command into a script, and lists the script.

/// A program and its options.
struct Program {
    names: &'static [&'static str],
    /// Whole words; of those with two hyphens every abbreviation too, and every value.
    words: &'static [&'static str],
    /// Letters that may stand in a cluster behind one hyphen.
    letters: &'static str,
}

const PROGRAMS: [Program; 12] = [
    Program {
        names: &["find", "gfind"],
        words: &[
            "-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint", "-fprint0", "-fprintf", "-fls",
        ],
        letters: "",
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
        names: &["git"],
        words: &[
            "--output",
            "--output-directory",
            "--ext-diff",
            "--textconv",
            "--exec-path",
            "--config-env",
            "--open-files-in-pager",
            "--upload-pack",
            "--receive-pack",
            "--exec",
        ],
        letters: "oO",
    },
    Program {
        names: &["rg"],
        words: &["--pre", "--hostname-bin"],
        letters: "",
    },
    Program {
        names: &["sed", "gsed"],
        words: &["--in-place", "--file"],
        letters: "if",
    },
    Program {
        names: &["tar", "gtar", "bsdtar"],
        words: &[
            "--to-command",
            "--checkpoint-action",
            "--use-compress-program",
            "--rmt-command",
            "--rsh-command",
            "--info-script",
            "--new-volume-script",
        ],
        letters: "IF",
    },
    Program {
        names: &["curl"],
        words: &[
            "--output",
            "--remote-name",
            "--remote-name-all",
            "--output-dir",
            "--config",
            "--upload-file",
        ],
        letters: "oOKT",
    },
    Program {
        names: &["wget"],
        words: &[
            "--output-document",
            "--output-file",
            "--directory-prefix",
            "--use-askpass",
            "--execute",
        ],
        letters: "oOPe",
    },
    Program {
        names: &["tree"],
        words: &[],
        letters: "oR",
    },
    Program {
        names: &["awk", "gawk", "mawk"],
        words: &["--file", "--include", "--load", "--exec"],
        letters: "fil",
    },
    Program {
        names: &["xxd", "split"],
        words: &["--filter"],
        letters: "r",
    },
];

/// The first option of `words` that writes files or runs other programs.
pub(super) fn dangerous(words: &[String]) -> Option<String> {
    let (name, arguments) = words.split_first()?;
    let name = name.rsplit('/').next().unwrap_or(name);
    let program = PROGRAMS.iter().find(|program| program.names.contains(&name))?;
    let mut found = arguments.iter().filter(|word| program.refuses(word));
    let of_git = || {
        // `git -c core.pager=… log`: only in front of the subcommand.
        let before = arguments.iter().take_while(|word| word.starts_with('-'));
        before.into_iter().find(|word| word.starts_with("-c"))
    };
    let option = found.next().or_else(|| if name == "git" { of_git() } else { None });
    option.cloned()
}

impl Program {
    fn refuses(&self, word: &str) -> bool {
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
