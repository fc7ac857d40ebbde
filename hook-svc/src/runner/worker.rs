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

use std::collections::{HashMap, VecDeque};
use std::io::PipeWriter;
use std::os::fd::{AsFd as _, OwnedFd};
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
use super::process_places::{IDLE_WHILE_WANTED, PlaceWaits, ProcessPlace, ProcessPlaces};
use super::progress_watch;
use super::progress_watch::{ProcessTimes, WorkerPulse, WorkerTask};
use super::protocol::CallReply;
use super::sandbox::Jail;
use super::sources::LoadedHooks;
use super::work_queue::WorkQueue;
use death::WorkerDeath;
use leaving::{Leave, Leaver};
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

/// Memory in MiB above which a worker is killed. The sandbox limits data memory, much of which is only reserved; this
/// limits the memory that is held.
const MAX_MEMORY_MB: u64 = 640;

/// Memory in MiB above which a worker is replaced once no event is under way in it.
const GROWN_MEMORY_MB: u64 = 384;

/// Number of requested loads and evaluations that have ended once a process has loaded its hooks and answered for an event.
const FIRST_ANSWER: u64 = 2;

/// Time after which a worker that runs only on demand ends if it has no work. It ends at once if its pool has no hooks.
const IDLE: Duration = Duration::from_mins(1);

/// Interval of looks at a process without work that computes nothing.
const REST: Duration = Duration::from_secs(1);

/// Hard budgets granted to a suspect, because its code is not compiled.
const APART_BUDGETS: u32 = 2;

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

    /// Returns an error once the process makes no progress on its work. Uses only the host's clocks and the kernel's
    /// figures. `output` is the pipe into which the process writes.
    async fn watch_progress(&self, pid: u32, output: OwnedFd) -> Result<(), WorkerDeath> {
        let (mut idle_since, mut worked_since, mut gives_way) = (None, None, false);
        // The code of a suspect is not compiled, so it gets more time.
        let budget = match self.role {
            WorkerRole::Beside => self.common.hard_budget,
            WorkerRole::Apart => self.common.hard_budget * APART_BUDGETS,
        };

        let mut pulse = WorkerPulse::new(budget);
        let mut rests = false;
        loop {
            if rests {
                let _begun = tokio::time::timeout(REST, self.begun.notified()).await;
            }
            pause(budget / progress_watch::LOOKS_PER_BUDGET).await;
            let now = self.clock.monotonic();
            let mut state = self.state();
            let mut sight = state.current_sight();

            // Work may be queued that the worker has not taken yet.
            let is_needed = sight.work != WorkerTask::Nothing || self.is_wanted();
            idle_since = (!is_needed).then(|| idle_since.unwrap_or(now));

            let is_idle = idle_since.is_some_and(|since| now.saturating_duration_since(since) >= self.may_idle());
            if is_idle && (self.common.lazy || self.role == WorkerRole::Apart) {
                return Err(WorkerDeath::Idle);
            }

            worked_since = worked_since.or((state.ended >= FIRST_ANSWER).then_some(now));
            let turn = worked_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
            gives_way = gives_way || self.common.places.is_turn_over(turn);
            if gives_way {
                self.give_way(&mut state, now)?;
            }

            self.weigh_memory(&mut state, pid)?;
            self.replace(&mut state, now)?;

            // The pipe comes last: bytes that a thread writes before it sleeps are then seen.
            let times = ProcessTimes::of_process(pid, sight.is_pinged);
            sight.has_unread = progress_watch::has_unread_bytes(&output);
            let look = pulse.judge_sight(sight, times, now);
            state.age = pulse.process_age();
            rests = !is_needed && pulse.is_quiet();

            match look {
                progress_watch::WatchResult::Moving => {}
                progress_watch::WatchResult::Ask if state.is_asked => {}
                progress_watch::WatchResult::Ask => {
                    (state.ping, state.is_asked) = (true, true);
                    self.moved.notify_one();
                }
                progress_watch::WatchResult::Stuck(computed) => return Err(WorkerDeath::Stuck(computed.as_millis())),
                progress_watch::WatchResult::Still(since) => return Err(WorkerDeath::Still(since.as_millis())),
            }

            // The last net: a worker may answer pings and yet never finish an evaluation.
            if let Some((slot, over)) = state.terms.find_overdue(state.age) {
                let over_ms = over.as_millis();
                return Err(WorkerDeath::Overdue { slot, over_ms });
            }
        }
    }

    /// Returns whether work is queued for this worker.
    fn is_wanted(&self) -> bool {
        match self.role {
            WorkerRole::Beside => self.common.lock_board().is_waiting(),
            WorkerRole::Apart => self.common.lock_board().has_apart(),
        }
    }

    /// Returns whether the pool has any hooks. Without them no event will come, and what a process still runs is left over.
    fn has_hooks(&self) -> bool {
        !self.common.lock_board().current_set().set().hooks().is_empty()
    }

    /// Returns how long a process without work goes on.
    fn may_idle(&self) -> Duration {
        if !self.has_hooks() {
            Duration::ZERO
        } else if self.common.places.are_wanted() {
            IDLE_WHILE_WANTED
        } else {
            IDLE
        }
    }

    /// Ends a process whose place others wait for once no event is under way in it; until then it takes no more.
    fn give_way(&self, state: &mut State<'_>, now: Instant) -> Result<(), WorkerDeath> {
        self.common.place_waits.note_giving_way(now);
        if state.in_flight.is_empty() && state.loading.is_none() {
            return Err(WorkerDeath::Idle);
        }
        self.drain(state);
        Ok(())
    }

    /// Ends a process that exceeds its memory limit, and one that has grown once no event is under way in it.
    fn weigh_memory(&self, state: &mut State<'_>, pid: u32) -> Result<(), WorkerDeath> {
        let held = progress_watch::memory_mb(pid).unwrap_or_default();
        if held > MAX_MEMORY_MB {
            return Err(WorkerDeath::Memory(held));
        }

        if held > GROWN_MEMORY_MB && state.loading.is_none() {
            if state.in_flight.is_empty() {
                return Err(WorkerDeath::Grown(held));
            }

            // If other workers are up, this one takes no more events, so that it can end.
            if self.has_others() {
                self.drain(state);
            }
        }

        Ok(())
    }

    /// Returns whether another process of the pool that takes events is up.
    fn has_others(&self) -> bool {
        self.role == WorkerRole::Beside && self.common.ready.load(Ordering::Relaxed) > 1
    }

    /// Makes the process take no more events.
    fn drain(&self, state: &mut State<'_>) {
        if !std::mem::replace(&mut state.retires, true) && self.role == WorkerRole::Beside {
            self.common.retire_worker(self.index);
        }
    }

    /// Ends a process that has loaded hooks which were deleted or replaced; code that they left running ends with it.
    fn replace(&self, state: &mut State<'_>, now: Instant) -> Result<(), WorkerDeath> {
        if self.role == WorkerRole::Apart && state.mine.is_some() && state.left.is_none() {
            // A worker for suspects loads a further set only when its suspect is called.
            let is_old = self.common.lock_board().current_set().generation() != state.held.generation();
            state.left = is_old.then_some(now);
        }

        let Some(left) = state.left.filter(|_| state.loading.is_none()) else {
            return Ok(());
        };

        let waited = now.saturating_duration_since(left);
        let has_turn = self.role == WorkerRole::Apart
            || (leaving::wants_turn(waited) && self.common.lock_board().takes_turn(self.index));
        let leaver = Leaver {
            waited,
            is_free: state.in_flight.is_empty(),
            has_turn,
            has_others: self.has_others(),
        };

        match leaving::decide(leaver) {
            Leave::Stay => Ok(()),
            Leave::Drain => {
                self.drain(state);
                Ok(())
            }
            Leave::End => Err(WorkerDeath::Replaced),
        }
    }
}
