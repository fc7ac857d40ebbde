//! Command line of a service. *Pure* but for [`ServiceArguments::of_process`].

use std::path::PathBuf;

/// Options on the command line of a service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceArguments {
    /// `--config PATH`: path of the configuration file.
    pub config: Option<PathBuf>,
    /// `--check`: read the configuration, report, and end.
    pub check: bool,
    /// `--show`: print the service's section with all defaults, secrets as references, and end.
    pub show: bool,
    /// `--help`: print the options, and end.
    pub help: bool,
    /// `--version`: print the version, and end.
    pub version: bool,
}

/// The command line contains something else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentsError {
    /// An argument that does not exist.
    #[error("unknown argument `{0}`: expected --config PATH, --check, --show, --help or --version")]
    Unknown(String),
    /// `--config` without a path.
    #[error("--config: expected a path")]
    NoPath,
}

impl ServiceArguments {
    /// Parses the arguments that this process was started with.
    pub fn of_process() -> Result<Self, ArgumentsError> {
        Self::parse(
            std::env::args_os()
                .skip(1)
                .map(|argument| argument.to_string_lossy().into_owned()),
        )
    }

    /// Parses `given`, the arguments after the program's name.
    pub fn parse(given: impl IntoIterator<Item = String>) -> Result<Self, ArgumentsError> {
        let (mut read, mut given) = (Self::default(), given.into_iter());
        while let Some(argument) = given.next() {
            match argument.as_str() {
                "--check" => read.check = true,
                "--show" => read.show = true,
                "--help" | "-h" => read.help = true,
                "--version" | "-V" => read.version = true,
                "--config" | "-c" => read.config = Some(given.next().ok_or(ArgumentsError::NoPath)?.into()),
                other => match other.strip_prefix("--config=") {
                    Some("") => return Err(ArgumentsError::NoPath),
                    Some(path) => read.config = Some(path.into()),
                    None => return Err(ArgumentsError::Unknown(argument)),
                },
            }
        }

        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: &Result<ServiceArguments, ArgumentsError>) {
        assert_eq!(
            ServiceArguments::parse(line.split_whitespace().map(str::to_owned)),
            *expected,
            "{line}"
        );
    }

    #[test]
    fn a_command_line_is_read_or_refused() {
        let at = |path: &str| ServiceArguments {
            config: Some(path.into()),
            ..ServiceArguments::default()
        };
        check("", &Ok(ServiceArguments::default()));
        check("--config a.toml", &Ok(at("a.toml")));

        check(
            "--config=a.toml --check",
            &Ok(ServiceArguments {
                check: true,
                ..at("a.toml")
            }),
        );
        check("--config", &Err(ArgumentsError::NoPath));
        check("--verbose", &Err(ArgumentsError::Unknown("--verbose".to_owned())));
    }
}
