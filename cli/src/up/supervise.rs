//! Watches a running stack: a process that dies is started again, after ever longer delays. Each death and each start
//! is printed on the terminal and written to `log/up.log`.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shared::clock::{Clock as _, SystemClock, pause};

use super::restart_delay::RestartDelay;
use crate::backup::quiesce;
use crate::complain;
use crate::launch::Stack;
use crate::launch::process::ProcessName;

/// Interval at which it is checked that every process runs.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// One process of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// A NATS server, by its number.
    Server(usize),
    /// A replica of a service, by name and number.
    Service(&'static str, u16),
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Server(index) => write!(f, "nats-{index}"),
            Self::Service(name, replica) => write!(f, "{name}-{replica}"),
        }
    }
}

/// History of a process that died at least once.
#[derive(Debug, Default)]
struct History {
    delay: RestartDelay,
    /// Time of the next start; `None` while the process runs.
    due: Option<Duration>,
}

/// Watches `stack`, whose data directory is `directory`, until the future is dropped.
pub(super) async fn supervise(stack: &mut Stack, directory: &Path) -> Infallible {
    let begun = SystemClock.monotonic();
    let mut histories: BTreeMap<Part, History> = BTreeMap::new();

    let log = log_file(directory);
    loop {
        pause(LOOK_EVERY).await;

        if let Some(asker) = quiesce::read(&directory.join(quiesce::ASKED)).filter(ProcessName::is_running) {
            stand_still(stack, directory, &asker, &log).await;
            histories.clear();
        }

        let now = since(begun);
        for (part, how) in ended(stack) {
            let history = histories.entry(part).or_default();
            if history.due.is_none() {
                let wait = history.delay.died(now);
                history.due = Some(now + wait);
                say(
                    &log,
                    &format!(
                        "{part} ended ({how}); starting it again in {:.2} s, see {}",
                        wait.as_secs_f64(),
                        shown_log(directory, part)
                    ),
                );
            }
        }

        let due = histories
            .iter_mut()
            .filter(|(_, history)| history.due.is_some_and(|due| due <= now));
        for (part, history) in due {
            start(stack, *part, history, now, &log);
        }
    }
}

/// Stops the services in good order, and starts them again once `asker` has finished or the time is over.
async fn stand_still(stack: &mut Stack, directory: &Path, asker: &ProcessName, log: &PathBuf) {
    let begun = SystemClock.monotonic();
    say(log, &format!("backup by process {}: pausing the services", asker.pid));

    stack.stop_services().await;

    let (asked, standing) = (directory.join(quiesce::ASKED), directory.join(quiesce::STANDING));
    if let Err(error) = std::fs::write(&standing, format!("{asker}\n")) {
        say(log, &format!("failed to write {}: {error}", standing.display()));
    }

    while since(begun) < quiesce::MOST && quiesce::read(&asked).as_ref() == Some(asker) && asker.is_running() {
        pause(LOOK_EVERY).await;
    }

    // A request that stays behind would be read again.
    for path in [standing, asked] {
        let _ = std::fs::remove_file(path);
    }

    match stack.launch_all() {
        Ok(()) => say(log, "services restarted"),
        Err(error) => say(
            log,
            &format!("failed to start the services: {error:#}; run `nexus down`, then `nexus up`"),
        ),
    }
}

fn since(begun: Instant) -> Duration {
    SystemClock.monotonic().saturating_duration_since(begun)
}

fn shown_log(directory: &Path, part: Part) -> String {
    directory.join(format!("log/{part}.log")).display().to_string()
}

/// Returns the processes that do not run, each with how it ended.
fn ended(stack: &mut Stack) -> Vec<(Part, String)> {
    let mut found = Vec::new();
    for (index, server) in stack.nats.iter_mut().enumerate() {
        if let Some(status) = server.status() {
            found.push((Part::Server(index), status.to_string()));
        }
    }

    for service in &mut stack.services {
        let part = Part::Service(service.name, service.replica);
        if let Some(status) = service.status() {
            found.push((part, status.to_string()));
        }
    }

    found
}

/// Starts `part` again; one that does not start is tried again later.
fn start(stack: &mut Stack, part: Part, history: &mut History, now: Duration, log: &PathBuf) {
    let started = match part {
        Part::Server(index) => stack.launch_server(index),
        Part::Service(name, replica) => stack.launch(name, replica),
    };
    match started {
        Ok(()) => {
            history.delay.started(now);
            history.due = None;
            say(log, &format!("{part} is started again"));
        }
        Err(error) => {
            let wait = history.delay.died(now);
            history.due = Some(now + wait);
            say(
                log,
                &format!(
                    "{part} does not start: {error:#}; trying again in {:.2} s",
                    wait.as_secs_f64()
                ),
            );
        }
    }
}

/// Returns the file to which `nexus up` logs.
pub(super) fn log_file(directory: &Path) -> PathBuf {
    directory.join("log/up.log")
}

/// Prints `text` on the terminal, and writes it to `log` with the time.
pub(super) fn say(log: &PathBuf, text: &str) {
    complain!("{text}");
    let at = jiff::Timestamp::from_millisecond(SystemClock.now().0).unwrap_or_default();
    let line = format!("{at} {text}\n");
    let written = std::fs::File::options().create(true).append(true).open(log);
    if let Err(error) = written.and_then(|mut file| file.write_all(line.as_bytes())) {
        complain!("failed to write {}: {error}", log.display());
    }
}
