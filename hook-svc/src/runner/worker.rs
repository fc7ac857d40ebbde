//! One worker: a Bun process, kept alive.
//!
//! Three loops share one task while a process lives: `write` takes events from the board in batches, `read` takes
//! answers, `watch` sees whether anything moves. The first to end ends the process; what was in flight goes back to
//! the board, whoever was running is blamed, and the next process starts.

mod feed;
mod listen;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shared::clock::{SharedClock, pause};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::board::Board;
use super::flight::{Flight, ImpossibleAnswer};
use super::host::Host;
use super::note::NoteFile;
use super::protocol::{ReadFrameError, Reply};
use super::sandbox::Jail;
use super::sources::Loaded;
use super::watch::{self, Pulse};

/// Bytes read from a worker at once.
const READ_BYTES: usize = 64 * 1024;

/// First and longest wait before a process is started after one that did not come up.
const RESTART_FIRST: Duration = Duration::from_millis(50);
const RESTART_MAX: Duration = Duration::from_secs(5);

/// A process that has sent so many frames was ready and has loaded or answered something.
const FRAMES_OF_A_WORKER: u64 = 2;

/// Memory beyond which a worker is killed, in MiB: above what its sandbox lets it hold, so that this is for machines
/// without one.
const MAX_MEMORY_MB: u64 = 768;

/// Memory beyond which a worker is replaced when nothing is under way in it, in MiB.
const GROWN_MEMORY_MB: u64 = 384;

/// How long a worker that is started for work alone stays without any.
const IDLE: Duration = Duration::from_mins(1);

/// Longest piece of what a script prints that is logged at once, in bytes.
const MAX_PRINTED_BYTES: usize = 2_048;

/// What all workers of a pool share.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) board: Mutex<Board>,
    /// Rings when something was queued or a set was put in force.
    pub(super) queued: Notify,
    pub(super) stop: CancellationToken,
    pub(super) ready: AtomicUsize,
    pub(super) jail: Jail,
    pub(super) lazy: bool,
    pub(super) dir: PathBuf,
    pub(super) db_path: Arc<str>,
    pub(super) host: Arc<dyn Host>,
    pub(super) hard_budget: Duration,
    /// Counts processes, to name their notes.
    pub(super) launched: AtomicU64,
    /// Processes of a lower number are replaced.
    pub(super) wanted_from: AtomicU64,
}

impl Common {
    /// The board. A panic while it is held would leave it whole: every change is one call.
    pub(super) fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a worker process ended.
#[derive(Debug, thiserror::Error)]
enum WorkerDeath {
    #[error("the process could not be started")]
    Start(#[source] std::io::Error),
    #[error("the pipe broke")]
    Pipe(#[source] std::io::Error),
    #[error("the process exited")]
    Exited,
    #[error("no progress for {0} ms")]
    Stuck(u128),
    #[error("it sent {0}")]
    Frame(#[source] ReadFrameError),
    #[error("it sent {0}")]
    Hook(#[from] ImpossibleAnswer),
    #[error("it holds {0} MiB of memory")]
    Memory(u64),
    #[error("it has grown to {0} MiB and is replaced")]
    Grown(u64),
    #[error("it had nothing to do")]
    Idle,
    #[error("it is replaced as was asked")]
    Replaced,
}

impl WorkerDeath {
    /// Whether it ended because we wanted it to, with nothing under way.
    const fn is_orderly(&self) -> bool {
        match self {
            Self::Grown(_) | Self::Idle | Self::Replaced => true,
            Self::Start(_)
            | Self::Pipe(_)
            | Self::Exited
            | Self::Stuck(_)
            | Self::Frame(_)
            | Self::Hook(_)
            | Self::Memory(_) => false,
        }
    }
}

/// Keeps worker `index` alive until the pool stops.
pub(super) async fn keep(common: Arc<Common>, clock: SharedClock, index: usize) {
    let mut delay = Duration::ZERO;
    while !common.stop.is_cancelled() {
        if common.lazy && !wait_for_work(&common).await {
            return;
        }
        let run = Run::new(&common, &clock, index);
        let death = tokio::select! {
            () = common.stop.cancelled() => return,
            death = run.live() => death,
        };
        let has_worked = run.bury(&death);
        delay = if has_worked {
            Duration::ZERO
        } else {
            (delay * 2).clamp(RESTART_FIRST, RESTART_MAX)
        };
        if !delay.is_zero() {
            tokio::select! {
                () = common.stop.cancelled() => return,
                () = pause(delay) => {}
            }
        }
    }
}

/// Waits until an event is queued; false where the pool is stopped before.
async fn wait_for_work(common: &Common) -> bool {
    loop {
        let queued = common.queued.notified();
        if common.board().is_waiting() {
            return true;
        }
        tokio::select! {
            () = common.stop.cancelled() => return false,
            () = queued => {}
        }
    }
}

/// The life of one process.
struct Run<'a> {
    common: &'a Common,
    clock: &'a SharedClock,
    index: usize,
    state: Mutex<State<'a>>,
    /// Rings when the window has room again, a set has loaded, or a ping is wanted.
    moved: Arc<Notify>,
    /// Answers to scripts' calls that the process has not been told.
    replies: Arc<Mutex<Vec<Reply>>>,
}

struct State<'a> {
    in_flight: HashMap<u32, Flight>,
    next_slot: u32,
    unanswered: usize,
    held: Arc<Loaded>,
    loading: Option<Arc<Loaded>>,
    up: Option<UpMark<'a>>,
    ping: bool,
    frames: u64,
    retires: bool,
    note: Option<NoteFile>,
    /// Counts processes.
    number: u64,
}

/// Counts a process as up for as long as it is.
struct UpMark<'a>(&'a AtomicUsize);

impl<'a> UpMark<'a> {
    fn new(ready: &'a AtomicUsize) -> Self {
        ready.fetch_add(1, Ordering::Relaxed);
        Self(ready)
    }
}

impl Drop for UpMark<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<'a> Run<'a> {
    fn new(common: &'a Common, clock: &'a SharedClock, index: usize) -> Self {
        let state = State {
            in_flight: HashMap::new(),
            next_slot: 0,
            unanswered: 0,
            held: Arc::new(Loaded::empty()),
            loading: None,
            up: None,
            ping: false,
            frames: 0,
            retires: false,
            note: None,
            number: 0,
        };
        Self {
            common,
            clock,
            index,
            state: Mutex::new(state),
            moved: Arc::default(),
            replies: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn live(&self) -> WorkerDeath {
        let (mut child, stdin, stdout, stderr) = match self.launch() {
            Ok(parts) => parts,
            Err(source) => return WorkerDeath::Start(source),
        };
        let pid = child.id().unwrap_or_default();
        let ended = tokio::select! {
            end = self.write(stdin) => end,
            end = self.read(stdout) => end,
            end = self.watch(pid) => end,
            () = self.log_output(stderr) => Err(WorkerDeath::Exited),
        };
        // The note is read only after nobody writes it any more.
        let killed = child.kill().await;
        if let Err(error) = killed {
            tracing::warn!(worker = self.index, pid, %error, "hook worker could not be killed");
        }
        ended.err().unwrap_or(WorkerDeath::Exited)
    }

    fn launch(&self) -> std::io::Result<(Child, ChildStdin, ChildStdout, ChildStderr)> {
        let number = self.common.launched.fetch_add(1, Ordering::Relaxed);
        let note = NoteFile::create(self.common.dir.join(format!("note-{number}")))?;
        let mut child = self.common.jail.launch(&self.common.dir, &note, &self.common.db_path)?;
        let mut state = self.state();
        (state.note, state.number) = (Some(note), number);
        drop(state);
        let piped = || std::io::Error::other("a pipe is missing");
        let stdin = child.stdin.take().ok_or_else(piped)?;
        let stdout = child.stdout.take().ok_or_else(piped)?;
        let stderr = child.stderr.take().ok_or_else(piped)?;
        Ok((child, stdin, stdout, stderr))
    }

    /// Ends when nothing has moved for the hard budget although something is to be done.
    async fn watch(&self, pid: u32) -> Result<(), WorkerDeath> {
        let mut idle_since = None;
        let mut pulse = Pulse::new(self.common.hard_budget, pid);
        loop {
            pause(self.common.hard_budget / watch::LOOKS_PER_BUDGET).await;
            let now = self.clock.monotonic();
            let mut state = self.state();
            let is_busy = !state.in_flight.is_empty() || state.loading.is_some() || state.up.is_none();
            let steps = match &state.note {
                Some(note) => note.read().map_err(WorkerDeath::Pipe)?.steps,
                None => 0,
            };
            let is_needed = is_busy || self.common.board().is_waiting();
            idle_since = (!is_needed).then(|| idle_since.unwrap_or(now));
            let is_idle = idle_since.is_some_and(|since| now.saturating_duration_since(since) > IDLE);
            if self.common.lazy && is_idle {
                return Err(WorkerDeath::Idle);
            }
            self.weigh(&mut state, pid)?;
            match pulse.look(is_busy, state.up.is_some(), (steps, state.frames), now) {
                watch::Look::Moving => {}
                watch::Look::Ask => {
                    state.ping = true;
                    self.moved.notify_one();
                }
                watch::Look::Stuck(since) => return Err(WorkerDeath::Stuck(since.as_millis())),
            }
        }
    }

    /// Ends a process that holds too much, and one that has grown or is to be replaced once nothing is under way in it.
    fn weigh(&self, state: &mut State<'_>, pid: u32) -> Result<(), WorkerDeath> {
        let held = watch::memory_mb(pid).unwrap_or_default();
        if held > MAX_MEMORY_MB {
            return Err(WorkerDeath::Memory(held));
        }
        let is_unwanted = state.number < self.common.wanted_from.load(Ordering::Relaxed);
        if (held > GROWN_MEMORY_MB || is_unwanted) && state.loading.is_none() {
            if state.in_flight.is_empty() {
                return Err(if is_unwanted {
                    WorkerDeath::Replaced
                } else {
                    WorkerDeath::Grown(held)
                });
            }
            // Where others are up it takes no more, so that it comes to its end.
            state.retires = is_unwanted || self.common.ready.load(Ordering::Relaxed) > 1;
        }
        Ok(())
    }

    async fn log_output(&self, mut stderr: ChildStderr) {
        let mut buffer = [0; MAX_PRINTED_BYTES];
        while let Ok(length) = stderr.read(&mut buffer).await {
            if length == 0 {
                break;
            }
            let text = String::from_utf8_lossy(&buffer[..length]);
            tracing::info!(worker = self.index, text = text.trim_end(), "hooks printed");
        }
        // A script may close the stream; the process lives on.
        std::future::pending::<()>().await;
    }

    /// Gives back what was in flight and blames whoever was running. Whether the process had done anything.
    fn bury(self, death: &WorkerDeath) -> bool {
        let now = self.clock.monotonic();
        let mut state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let cause = chain(death);
        let note = state
            .note
            .as_ref()
            .and_then(|note| note.read().ok())
            .unwrap_or_default();
        let sets = state.loading.iter().chain([&state.held]);
        let loaded = sets.into_iter().find(|loaded| loaded.generation() == note.generation);
        let culprit = note.running.and_then(|index| loaded?.set().hooks().get(index as usize));
        let hook = culprit.map_or("", |hook| hook.id.as_str());
        let in_flight = state.in_flight.len();
        let event = note
            .slot
            .and_then(|slot| state.in_flight.get(&slot))
            .map(|flight| flight.job().event_id.to_string());
        if death.is_orderly() {
            tracing::debug!(worker = self.index, cause, "hook worker is ended");
        } else {
            tracing::warn!(
                worker = self.index,
                cause,
                hook,
                event_id = event,
                in_flight,
                "hook worker died"
            );
            metrics::counter!("nexus_hook_worker_deaths_total").increment(1);
        }
        state.up = None;
        let mut slots: Vec<_> = state.in_flight.drain().collect();
        slots.sort_unstable_by_key(|(slot, _)| *slot);
        let mut flights: Vec<Flight> = slots.into_iter().map(|(_, flight)| flight).collect();
        flights.retain_mut(|flight| !flight.lost_worker(culprit.is_some(), &cause));
        let mut board = self.common.board();
        if let Some(hook) = culprit
            && board.died(hook, note.slot.is_none(), &cause, now)
        {
            tracing::error!(
                hook = hook.id,
                cause,
                "hook is not called for a while: it keeps killing its worker"
            );
        }
        board.requeue(flights);
        drop(board);
        self.common.queued.notify_one();
        state.frames >= FRAMES_OF_A_WORKER
    }
}

fn chain(error: &WorkerDeath) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
