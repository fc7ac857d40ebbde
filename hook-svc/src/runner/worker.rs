//! One worker: a Bun process that is restarted when it ends.
//!
//! Loops share one task while a process lives: `write` takes events from the board in batches, `read` takes answers,
//! `watch` checks for progress, and two more answer queries and log output. The first loop to end ends the process;
//! events in flight go back to the board, the hook that was running is blamed, and the next process starts.

mod death;
mod death_handler;
mod feed;
mod leaving;
mod listen;
mod output;
mod queries;
mod terms;
mod watch;

use std::collections::{HashMap, VecDeque};
use std::io::PipeWriter;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use shared::clock::{SharedClock, pause};
use shared::retry::RetryWaits;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{Notify, Semaphore, broadcast};
use tokio_util::sync::CancellationToken;

use super::AsyncError;
use super::counted::Counted;
use super::crash_journal::NoteFile;
use super::host::ScriptHost;
use super::in_flight::InFlightEvent;
use super::model_source::ModelSource;
use super::process_places::{PlaceWaits, ProcessPlace, ProcessPlaces};
use super::protocol::CallReply;
use super::sandbox::Jail;
use super::sources::LoadedHooks;
use super::work_queue::WorkQueue;
use death::WorkerDeath;
use output::OutputAllowance;
use queries::QueryState;
use terms::EvaluationTerms;

/// Bytes read from a worker at a time.
const READ_BYTES: usize = 64 * 1024;

/// First and longest wait before a restart, if the last process did not come up.
const RESTART_FIRST: Duration = Duration::from_millis(50);
const RESTART_MAX: Duration = Duration::from_secs(5);

/// Frames after which a process counts as having worked: it was ready and has loaded or answered something.
const FRAMES_OF_A_WORKER: u64 = 2;

/// Time limit for reading the remaining output of a dead process.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Most former sets remembered per process: timers of their hooks may still run in it.
const MAX_FORMER: usize = 8;

/// State that all workers of a pool share.
#[derive(Debug)]
pub(super) struct PoolContext {
    pub(super) board: Mutex<WorkQueue>,
    /// Notifies one worker that an event was queued or a set was put in force.
    pub(super) queued: Notify,
    /// Notifies the worker for suspects that an event was queued for it.
    pub(super) apart: Notify,
    /// Notifies all workers that a set was put in force, a worker has come up, or the standby has changed.
    pub(super) changed: Notify,
    pub(super) stop: CancellationToken,
    pub(super) ready: AtomicUsize,
    /// Number of workers for suspects that are up.
    pub(super) ready_apart: AtomicUsize,
    /// Number of workers that take events and have a place for their process.
    pub(super) placed: AtomicUsize,
    /// Places for processes, which other pools share.
    pub(super) places: Arc<ProcessPlaces>,
    /// Times when a process of the pool waited for one of them.
    pub(super) place_waits: PlaceWaits,
    /// Number of workers that take events.
    pub(super) workers: usize,
    pub(super) jail: Jail,
    pub(super) lazy: bool,
    pub(super) dir: PathBuf,
    pub(super) db_path: Arc<str>,
    pub(super) model: Arc<dyn ModelSource>,
    pub(super) host: Arc<dyn ScriptHost>,
    /// Errors that scripts throw outside of their evaluations.
    pub(super) strays: broadcast::Sender<AsyncError>,
    pub(super) hard_budget: Duration,
    /// Number of processes launched, which names their notes.
    pub(super) launched: AtomicU64,
    /// Limits the queries of the read model that run at once: those of one author wait for each other, not for
    /// another's.
    pub(super) queries: Arc<Semaphore>,
}

impl PoolContext {
    /// Takes a place for a process, and waits while there is none. Returns `None` if the pool is stopped first.
    async fn take_place(&self, clock: &SharedClock) -> Option<ProcessPlace> {
        if let Some(place) = self.places.take_free() {
            return Some(place);
        }

        let _wait = self.place_waits.begin(clock);
        tokio::select! {
            () = self.stop.cancelled() => None,
            place = self.places.take() => Some(place),
        }
    }

    /// Retires worker `index`: it takes no more events, and the standby takes its place.
    fn retire_worker(&self, index: usize) {
        self.lock_board().retire_worker(index);
        self.changed.notify_waiters();
        self.queued.notify_one();
    }

    /// Locks the board. A panic while it is locked leaves it consistent: every change is one call.
    pub(super) fn lock_board(&self) -> MutexGuard<'_, WorkQueue> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Purpose of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkerRole {
    /// The worker holds all hooks, and takes events or stands by.
    Beside,
    /// The worker holds one suspect at a time.
    Apart,
}

/// Keeps worker `index` alive until the pool stops.
pub(super) async fn keep_worker(common: Arc<PoolContext>, clock: SharedClock, index: usize, role: WorkerRole) {
    let mut waits = RetryWaits::new(RESTART_FIRST, RESTART_MAX);
    let output = Mutex::new(OutputAllowance::new(clock.monotonic()));
    while !common.stop.is_cancelled() {
        if !wait_for_work(&common, index, role).await {
            return;
        }

        let Some(place) = common.take_place(&clock).await else {
            return;
        };
        let placed = (role == WorkerRole::Beside).then(|| Counted::new(&common.placed));
        let run = Run::new(&common, &clock, &output, (index, role));
        let death = tokio::select! {
            () = common.stop.cancelled() => return,
            death = run.run_process() => death,
        };

        let has_worked = run.handle_death(&death);
        // Before a wait: others may have the place meanwhile.
        drop((placed, place));
        // A process that did no work may fail at each start, so the wait grows.
        if has_worked {
            waits.reset();
            continue;
        }

        tokio::select! {
            () = common.stop.cancelled() => return,
            () = pause(waits.next_wait()) => {}
        }
    }
}

/// Waits until the process of worker `index` is needed. Returns false if the pool is stopped first.
async fn wait_for_work(common: &PoolContext, index: usize, role: WorkerRole) -> bool {
    loop {
        let (queued, apart, changed) = (
            common.queued.notified(),
            common.apart.notified(),
            common.changed.notified(),
        );
        let bell = match role {
            WorkerRole::Apart if common.lock_board().has_apart() => return true,
            WorkerRole::Apart => Bell::Apart,
            WorkerRole::Beside if common.lazy && !common.lock_board().is_waiting() => Bell::Queue,
            // The standby comes up once the workers that are needed at once are up.
            WorkerRole::Beside
                if common.lock_board().stands_by(index) && common.ready.load(Ordering::Relaxed) < common.workers =>
            {
                Bell::Changes
            }
            WorkerRole::Beside => return true,
        };

        tokio::select! {
            () = common.stop.cancelled() => return false,
            () = queued, if bell == Bell::Queue => {}
            () = apart, if bell == Bell::Apart => {}
            () = changed, if bell == Bell::Changes => {}
        }
    }
}

/// Notification of the pool that a worker listens to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bell {
    Queue,
    Apart,
    Changes,
    None,
}

/// The lifetime of one process.
struct Run<'a> {
    common: &'a PoolContext,
    clock: &'a SharedClock,
    index: usize,
    role: WorkerRole,
    state: Mutex<State<'a>>,
    /// Notifies the writer that the window has room again, a set has loaded, or a ping is wanted.
    moved: Arc<Notify>,
    /// Answers to scripts' calls that have not been sent to the process.
    replies: Arc<Mutex<Vec<CallReply>>>,
    /// Notifies the watch that the process has got work.
    begun: Notify,
    /// Notifies the query loop that a query has arrived, or that an evaluation that may have made one is over.
    asked: Notify,
    /// Allowance for logging the worker's output.
    output: &'a Mutex<OutputAllowance>,
}

struct State<'a> {
    in_flight: HashMap<u32, InFlightEvent>,
    next_slot: u32,
    unanswered: usize,
    held: Arc<LoadedHooks>,
    loading: Option<Arc<LoadedHooks>>,
    former: VecDeque<Arc<LoadedHooks>>,
    /// Id of the suspect that the process holds, if any.
    mine: Option<String>,
    turn: Option<Instant>,
    /// Present once the process takes work.
    up: Option<Counted<'a>>,
    ping: bool,
    /// Number of pings that the process has answered.
    pongs: u64,
    is_asked: bool,
    frames: u64,
    /// Number of requested evaluations and loads that have ended.
    ended: u64,
    /// Deadlines of the evaluations in flight.
    terms: EvaluationTerms,
    /// Time that has passed for the process, as of the last look.
    age: Duration,
    retires: bool,
    /// Time when files that the process has loaded left its set, if any did.
    left: Option<Instant>,
    note: Option<NoteFile>,
    query: QueryState,
}

impl<'a> Run<'a> {
    fn new(
        common: &'a PoolContext,
        clock: &'a SharedClock,
        output: &'a Mutex<OutputAllowance>,
        (index, role): (usize, WorkerRole),
    ) -> Self {
        let state = State {
            in_flight: HashMap::new(),
            next_slot: 0,
            unanswered: 0,
            held: Arc::new(LoadedHooks::empty_set()),
            loading: None,
            former: VecDeque::new(),
            mine: None,
            turn: None,
            up: None,
            ping: false,
            pongs: 0,
            is_asked: false,
            frames: 0,
            ended: 0,
            terms: EvaluationTerms::default(),
            age: Duration::ZERO,
            retires: false,
            left: None,
            note: None,
            query: QueryState::default(),
        };

        Self {
            common,
            clock,
            index,
            role,
            state: Mutex::new(state),
            moved: Arc::default(),
            replies: Arc::default(),
            begun: Notify::new(),
            asked: Notify::new(),
            output,
        }
    }

    fn state(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run_process(&self) -> WorkerDeath {
        let (mut child, stdin, stdout, stderr, answers) = match self.launch_process() {
            Ok(parts) => parts,
            Err(source) => return WorkerDeath::Start(source),
        };
        let pid = child.id().unwrap_or_default();
        // Whether bytes of the process are still unread is asked of the pipe itself.
        let unread = match stdout.as_fd().try_clone_to_owned() {
            Ok(unread) => unread,
            Err(source) => return WorkerDeath::Start(source),
        };
        let mut reading = std::pin::pin!(self.read(stdout));
        let mut has_ended = false;

        let ended = tokio::select! {
            end = self.write(stdin) => end,
            end = &mut reading => {
                has_ended = true;
                end
            }
            end = self.watch_progress(pid, unread) => end,
            end = self.answer_queries(answers, pid) => end,
            () = self.log_output(stderr) => Err(WorkerDeath::Exited),
        };

        // Killing the process first makes the note final before it is read.
        let killed = child.kill().await;
        if let Err(error) = killed {
            tracing::warn!(worker = self.index, pid, %error, "failed to kill a hook worker");
        }

        // The remaining output is still in the pipe; how reading it ends does not matter, since the process is dead.
        if !has_ended {
            let _ = tokio::time::timeout(LAST_WORDS, reading).await;
        }

        ended.err().unwrap_or(WorkerDeath::Exited)
    }

    fn launch_process(&self) -> std::io::Result<(Child, ChildStdin, ChildStdout, ChildStderr, PipeWriter)> {
        let number = self.common.launched.fetch_add(1, Ordering::Relaxed);
        let (jail, user) = (&self.common.jail, self.common.jail.worker_user());
        let note = NoteFile::create_note(self.common.dir.join(format!("note-{number}")), user)?;
        let compiles = self.role == WorkerRole::Beside;
        let (reader, answers) = std::io::pipe()?;
        let mut child = jail.launch_worker(&self.common.dir, &note, &self.common.db_path, compiles, &reader)?;
        let mut state = self.state();
        state.note = Some(note);
        drop(state);

        let piped = || std::io::Error::other("a pipe is missing");
        let stdin = child.stdin.take().ok_or_else(piped)?;
        let stdout = child.stdout.take().ok_or_else(piped)?;
        let stderr = child.stderr.take().ok_or_else(piped)?;

        Ok((child, stdin, stdout, stderr, answers))
    }
}
