//! Exit codes of all commands, with and without `--json`.

use std::process::ExitCode;

use anyhow::Result;
use shared::bus::{CasError, ConnectBusError, EnsureTopologyError, PublishError, ReadStreamError, RequestError};

/// Class of a command's end. The number is the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The command succeeded.
    Done = 0,
    /// The answer is no (a check found a fault, a wait ended in vain), or the command failed for a reason without a
    /// code of its own, for example a full disk.
    No = 1,
    /// The command line, or the configuration that it names, is wrong.
    Usage = 2,
    /// The named thing does not exist.
    NotFound = 3,
    /// The server, a service or the gateway cannot be reached, or does not answer in time.
    Unreachable = 4,
    /// The server or a service refuses the request, or the state of the thing does not allow it.
    Refused = 5,
}

impl Exit {
    /// All classes, in the order of their codes, each with its meaning for the page about the command line.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Done, "done"),
        (
            Self::No,
            "the answer is no (`doctor`, `status`, `config check`, `topology plan`, `session wait`, `hook test`), or \
             the command failed for a reason without a code of its own",
        ),
        (
            Self::Usage,
            "the command line, or the configuration that it names, is wrong",
        ),
        (Self::NotFound, "the named thing does not exist"),
        (
            Self::Unreachable,
            "the NATS server, a service or adapter-svc cannot be reached",
        ),
        (
            Self::Refused,
            "the server or a service refuses, or the state of the thing does not allow it",
        ),
    ];

    /// Returns the class of `error`: the one that a [`Failure`] in it names, else that of the typed error in its chain.
    #[must_use]
    pub fn of_error(error: &anyhow::Error) -> Self {
        if let Some(failure) = error.downcast_ref::<Failure>() {
            return failure.exit;
        }
        error.chain().find_map(of_cause).unwrap_or(Self::No)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An error with its exit code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    exit: Exit,
    text: String,
}

/// Returns an error with exit code `exit` and message `text`.
pub fn failure(exit: Exit, text: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Failure {
        exit,
        text: text.into(),
    })
}

/// Gives the error of a result an exit code.
pub(crate) trait ExitContext<T> {
    /// Returns the value, or the error, unchanged for readers, with exit code `exit`.
    ///
    /// # Errors
    /// Returns the error of `self`.
    fn exit(self, exit: Exit) -> Result<T>;
}

impl<T, E: Into<anyhow::Error>> ExitContext<T> for std::result::Result<T, E> {
    fn exit(self, exit: Exit) -> Result<T> {
        self.map_err(|error| failure(exit, format!("{:#}", error.into())))
    }
}

/// Returns the class of a typed error, or `None` if the error has none.
fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    if let Some(error) = cause.downcast_ref::<ConnectBusError>() {
        return Some(of_connect(error));
    }
    if let Some(error) = cause.downcast_ref::<RequestError>() {
        return Some(of_request(error));
    }
    if let Some(error) = cause.downcast_ref::<ReadStreamError>() {
        return Some(of_read(error));
    }
    if let Some(error) = cause.downcast_ref::<PublishError>() {
        return Some(of_publish(error));
    }

    if let Some(error) = cause.downcast_ref::<CasError>() {
        return Some(match error {
            CasError::Conflict { .. } => Exit::Refused,
            CasError::Publish(error) => of_publish(error),
            CasError::Read(error) => of_read(error),
        });
    }

    if cause.is::<EnsureTopologyError>() {
        return Some(Exit::Refused);
    }

    let error = cause.downcast_ref::<reqwest::Error>()?;
    (error.is_connect() || error.is_timeout()).then_some(Exit::Unreachable)
}

fn of_connect(error: &ConnectBusError) -> Exit {
    match error {
        ConnectBusError::Address(_) | ConnectBusError::Credentials { .. } => Exit::Usage,
        ConnectBusError::Unreachable { detail, .. } if detail.to_lowercase().contains("authorization") => Exit::Refused,
        ConnectBusError::Unreachable { .. } => Exit::Unreachable,
    }
}

fn of_request(error: &RequestError) -> Exit {
    match error {
        RequestError::NoResponder { .. } | RequestError::Timeout { .. } => Exit::Unreachable,
        RequestError::Service { code, .. } => of_status(*code),
        RequestError::Answer { .. } => Exit::No,
    }
}

fn of_read(error: &ReadStreamError) -> Exit {
    match error {
        ReadStreamError::Unavailable { .. } => Exit::Unreachable,
        ReadStreamError::Unreadable { .. } => Exit::No,
        ReadStreamError::Refused { .. } => Exit::Refused,
    }
}

fn of_publish(error: &PublishError) -> Exit {
    match error {
        PublishError::WrongLastSequence { .. }
        | PublishError::SubjectFull { .. }
        | PublishError::TooLarge { .. }
        | PublishError::NoStream { .. }
        | PublishError::Rejected { .. } => Exit::Refused,
        PublishError::Unknown { .. } | PublishError::Closed { .. } => Exit::Unreachable,
    }
}

/// Returns the class of a service's error code, which has the meaning of an HTTP status.
#[must_use]
pub fn of_status(code: u16) -> Exit {
    match code {
        404 => Exit::NotFound,
        502..=504 => Exit::Unreachable,
        _ => Exit::Refused,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    fn service(code: u16) -> RequestError {
        RequestError::Service {
            subject: "nexus.svc.x".to_owned(),
            code,
            text: "no".to_owned(),
        }
    }

    #[test]
    fn the_class_of_an_error_is_found_below_its_contexts() {
        let of = |error: anyhow::Error| Exit::of_error(&error.context("outer").context("outermost"));
        assert_eq!(of(failure(Exit::NotFound, "no such thing")), Exit::NotFound);
        assert_eq!(of(service(404).into()), Exit::NotFound);
        assert_eq!(of(service(409).into()), Exit::Refused);
        assert_eq!(of(service(503).into()), Exit::Unreachable);
        assert_eq!(of(anyhow::anyhow!("the disk is full")), Exit::No);

        let subject = "nexus.svc.x".to_owned();
        assert_eq!(of(RequestError::NoResponder { subject }.into()), Exit::Unreachable);

        let gone = ConnectBusError::Unreachable {
            servers: "a".to_owned(),
            detail: "timed out".to_owned(),
        };
        assert_eq!(of(gone.into()), Exit::Unreachable);
    }

    #[test]
    fn an_exit_code_keeps_the_words_of_its_error() {
        let read = std::fs::read_to_string("/nowhere").context("failed to read the file");
        let words = format!("{:#}", read.as_ref().expect_err("no such file"));
        let error = read.exit(Exit::Usage).expect_err("no such file");
        assert_eq!((Exit::of_error(&error), error.to_string()), (Exit::Usage, words));
    }

    #[test]
    fn the_codes_are_those_of_the_page() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|(exit, _)| *exit as u8).collect();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5]);
    }
}
