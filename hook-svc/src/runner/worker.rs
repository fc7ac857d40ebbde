//! One worker: a Bun process, kept alive.
//!
//! Three loops share one task while a process lives: `write` takes events from the board in batches, `read` takes
//! answers, `watch` sees whether anything moves. The first to end ends the process; what was in flight goes back to
//! the board, whoever was running is blamed, and the next process starts.

mod burial;
mod death;
mod feed;
mod leaving;
mod listen;
mod output;
mod queries;
mod terms;

use std::collections::{HashMap, VecDeque};
use std::io::PipeWriter;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use shared::clock::{SharedClock, pause};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{Notify, Semaphore, broadcast};
use tokio_util::sync::CancellationToken;

use super::Stray;
use super::board::Board;
use super::flight::Flight;
use super::host::Host;
use super::note::NoteFile;
use super::protocol::Reply;
use super::sandbox::Jail;
use super::sources::Loaded;
use super::watch::{self, Pulse, Times, Work};
use death::WorkerDeath;
use leaving::{Leave, Leaver};
use output::Allowance;
use queries::Asking;
use terms::Terms;

/// Bytes read from a worker at once.
const READ_BYTES: usize = 64 * 1024;

/// First and longest wait before a process is started after one that did not come up.
const RESTART_FIRST: Duration = Duration::from_millis(50);
const RESTART_MAX: Duration = Duration::from_secs(5);

/// A process that has sent so many frames was ready and has loaded or answered something.
const FRAMES_OF_A_WORKER: u64 = 2;

/// Memory beyond which a worker is killed, in MiB: what its sandbox's limit of data, much of which is only reserved, comes
/// to where it is held.
const MAX_MEMORY_MB: u64 = 640;

/// Memory beyond which a worker is replaced when nothing is under way in it, in MiB.
const GROWN_MEMORY_MB: u64 = 384;

/// How long a worker that is started for work alone stays without any.
const IDLE: Duration = Duration::from_mins(1);

/// Hard budgets of a suspect: its code is not compiled.
const APART_BUDGETS: u32 = 2;

/// How long what a dead process has said is still read.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Most sets remembered that a process held before: timers of their hooks may still run in it.
const MAX_FORMER: usize = 8;

/// What all workers of a pool share.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) board: Mutex<Board>,
    /// Rings when something was queued or a set was put in force.
    pub(super) queued: Notify,
    /// Rings when something was queued for the worker of suspects.
    pub(super) apart: Notify,
    /// Rings for all when a set was put in force, a worker has come up, or another one stands by.
    pub(super) changed: Notify,
    pub(super) stop: CancellationToken,
    pub(super) ready: AtomicUsize,
    /// Workers of suspects that are up.
    pub(super) ready_apart: AtomicUsize,
    /// How many workers take events.
    pub(super) workers: usize,
    pub(super) jail: Jail,
    pub(super) lazy: bool,
    pub(super) dir: PathBuf,
    pub(super) db_path: Arc<str>,
    pub(super) host: Arc<dyn Host>,
    /// What scripts throw outside of their evaluations.
    pub(super) strays: broadcast::Sender<Stray>,
    pub(super) hard_budget: Duration,
    /// Counts processes, to name their notes.
    pub(super) launched: AtomicU64,
    /// Queries of the read model that run at once: those of one author wait for each other, not for another's.
    pub(super) queries: Arc<Semaphore>,
}

impl Common {
    /// Worker `index` takes nothing more, and whoever stands by takes its place.
    fn retire(&self, index: usize) {
        self.board().retire(index);
        self.changed.notify_waiters();
        self.queued.notify_one();
    }

    /// The board. A panic while it is held would leave it whole: every change is one call.
    pub(super) fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a worker is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It holds all hooks, and takes events or stands by.
    Beside,
    /// It holds one suspect at a time.
    Apart,
}

/// Keeps worker `index` alive until the pool stops.
pub(super) async fn keep(common: Arc<Common>, clock: SharedClock, index: usize, role: Role) {
    let mut delay = Duration::ZERO;
    let output = Mutex::new(Allowance::new(clock.monotonic()));
    while !common.stop.is_cancelled() {
        if !wait_for_work(&common, index, role).await {
            return;
        }

        let run = Run::new(&common, &clock, &output, (index, role));
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

/// Waits until the process of worker `index` is needed; false where the pool is stopped before.
async fn wait_for_work(common: &Common, index: usize, role: Role) -> bool {
    loop {
        let (queued, apart, changed) = (
            common.queued.notified(),
            common.apart.notified(),
            common.changed.notified(),
        );
        let bell = match role {
            Role::Apart if common.board().has_apart() => return true,
            Role::Apart => Bell::Apart,
            Role::Beside if common.lazy && !common.board().is_waiting() => Bell::Queue,
            // Whoever stands by comes up when those are up that are needed at once.
            Role::Beside
                if common.board().stands_by(index) && common.ready.load(Ordering::Relaxed) < common.workers =>
            {
                Bell::Changes
            }
            Role::Beside => return true,
        };

        tokio::select! {
            () = common.stop.cancelled() => return false,
            () = queued, if bell == Bell::Queue => {}
            () = apart, if bell == Bell::Apart => {}
            () = changed, if bell == Bell::Changes => {}
        }
    }
}

/// Which of a pool's bells a worker listens to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bell {
    Queue,
    Apart,
    Changes,
    None,
}

/// The life of one process.
struct Run<'a> {
    common: &'a Common,
    clock: &'a SharedClock,
    index: usize,
    role: Role,
    state: Mutex<State<'a>>,
    /// Rings when the window has room again, a set has loaded, or a ping is wanted.
    moved: Arc<Notify>,
    /// Answers to scripts' calls that the process has not been told.
    replies: Arc<Mutex<Vec<Reply>>>,
    /// Rings when the read model is asked, and when an evaluation that may have asked it is over.
    asked: Notify,
    /// What of its output is logged.
    output: &'a Mutex<Allowance>,
}

struct State<'a> {
    in_flight: HashMap<u32, Flight>,
    next_slot: u32,
    unanswered: usize,
    held: Arc<Loaded>,
    loading: Option<Arc<Loaded>>,
    former: VecDeque<Arc<Loaded>>,
    /// The suspect that it holds, by id, and since when.
    mine: Option<String>,
    turn: Option<Instant>,
    up: Option<UpMark<'a>>,
    ping: bool,
    /// Pings that it has answered; whether one is under way.
    pongs: u64,
    is_asked: bool,
    frames: u64,
    /// Evaluations and loads that it was asked for and that have ended.
    ended: u64,
    /// Until when what is in flight must have ended.
    terms: Terms,
    /// How much time has passed for the process, as of the last look.
    age: Duration,
    retires: bool,
    /// Since when files that it has loaded are not in its set any more.
    left: Option<Instant>,
    note: Option<NoteFile>,
    query: Asking,
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
    fn new(
        common: &'a Common,
        clock: &'a SharedClock,
        output: &'a Mutex<Allowance>,
        (index, role): (usize, Role),
    ) -> Self {
        let state = State {
            in_flight: HashMap::new(),
            next_slot: 0,
            unanswered: 0,
            held: Arc::new(Loaded::empty()),
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
            terms: Terms::default(),
            age: Duration::ZERO,
            retires: false,
            left: None,
            note: None,
            query: Asking::default(),
        };

        Self {
            common,
            clock,
            index,
            role,
            state: Mutex::new(state),
            moved: Arc::default(),
            replies: Arc::default(),
            asked: Notify::new(),
            output,
        }
    }

    fn state(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn live(&self) -> WorkerDeath {
        let (mut child, stdin, stdout, stderr, answers) = match self.launch() {
            Ok(parts) => parts,
            Err(source) => return WorkerDeath::Start(source),
        };
        let pid = child.id().unwrap_or_default();
        let mut reading = std::pin::pin!(self.read(stdout));
        let mut has_ended = false;

        let ended = tokio::select! {
            end = self.write(stdin) => end,
            end = &mut reading => {
                has_ended = true;
                end
            }
            end = self.watch(pid) => end,
            end = self.answer_queries(answers) => end,
            () = self.log_output(stderr) => Err(WorkerDeath::Exited),
        };

        // The note is read only after nobody writes it any more.
        let killed = child.kill().await;
        if let Err(error) = killed {
            tracing::warn!(worker = self.index, pid, %error, "failed to kill a hook worker");
        }

        // What it has said is in the pipe; that it then ends, or says what makes no sense, is no news.
        if !has_ended {
            let _ = tokio::time::timeout(LAST_WORDS, reading).await;
        }

        ended.err().unwrap_or(WorkerDeath::Exited)
    }

    fn launch(&self) -> std::io::Result<(Child, ChildStdin, ChildStdout, ChildStderr, PipeWriter)> {
        let number = self.common.launched.fetch_add(1, Ordering::Relaxed);
        let (jail, user) = (&self.common.jail, self.common.jail.user());
        let note = NoteFile::create(self.common.dir.join(format!("note-{number}")), user)?;
        let compiles = self.role == Role::Beside;
        let (reader, answers) = std::io::pipe()?;
        let mut child = jail.launch(&self.common.dir, &note, &self.common.db_path, compiles, &reader)?;
        let mut state = self.state();
        state.note = Some(note);
        drop(state);

        let piped = || std::io::Error::other("a pipe is missing");
        let stdin = child.stdin.take().ok_or_else(piped)?;
        let stdout = child.stdout.take().ok_or_else(piped)?;
        let stderr = child.stderr.take().ok_or_else(piped)?;

        Ok((child, stdin, stdout, stderr, answers))
    }

    /// Ends when it does not get on with what it is asked, by the host's clocks alone.
    async fn watch(&self, pid: u32) -> Result<(), WorkerDeath> {
        let mut idle_since = None;
        let budget = match self.role {
            Role::Beside => self.common.hard_budget,
            Role::Apart => self.common.hard_budget * APART_BUDGETS,
        };

        let mut pulse = Pulse::new(budget);
        loop {
            pause(budget / watch::LOOKS_PER_BUDGET).await;
            let now = self.clock.monotonic();
            let mut state = self.state();
            let sight = state.sight();

            let is_needed = sight.work != Work::Nothing || self.is_wanted();
            idle_since = (!is_needed).then(|| idle_since.unwrap_or(now));

            let is_idle = idle_since.is_some_and(|since| now.saturating_duration_since(since) > IDLE);
            if is_idle && (self.common.lazy || self.role == Role::Apart) {
                return Err(WorkerDeath::Idle);
            }

            self.weigh(&mut state, pid)?;
            self.replace(&mut state, now)?;

            let look = pulse.look(sight, Times::of(pid), now);
            state.age = pulse.age();

            match look {
                watch::Look::Moving => {}
                watch::Look::Ask if state.is_asked => {}
                watch::Look::Ask => {
                    (state.ping, state.is_asked) = (true, true);
                    self.moved.notify_one();
                }
                watch::Look::Stuck(computed) => return Err(WorkerDeath::Stuck(computed.as_millis())),
                watch::Look::Still(since) => return Err(WorkerDeath::Still(since.as_millis())),
            }

            if let Some((slot, over)) = state.terms.overdue(state.age) {
                let over_ms = over.as_millis();
                return Err(WorkerDeath::Overdue { slot, over_ms });
            }
        }
    }

    /// Whether there is anything to do for it.
    fn is_wanted(&self) -> bool {
        match self.role {
            Role::Beside => self.common.board().is_waiting(),
            Role::Apart => self.common.board().has_apart(),
        }
    }

    /// Ends a process that holds too much, and one that has grown once nothing is under way in it.
    fn weigh(&self, state: &mut State<'_>, pid: u32) -> Result<(), WorkerDeath> {
        let held = watch::memory_mb(pid).unwrap_or_default();
        if held > MAX_MEMORY_MB {
            return Err(WorkerDeath::Memory(held));
        }

        if held > GROWN_MEMORY_MB && state.loading.is_none() {
            if state.in_flight.is_empty() {
                return Err(WorkerDeath::Grown(held));
            }

            // Where others are up it takes no more, so that it comes to its end.
            if self.has_others() {
                self.drain(state);
            }
        }

        Ok(())
    }

    /// Whether another process of the pool is up that takes events.
    fn has_others(&self) -> bool {
        self.role == Role::Beside && self.common.ready.load(Ordering::Relaxed) > 1
    }

    /// Has the process take nothing more.
    fn drain(&self, state: &mut State<'_>) {
        if !std::mem::replace(&mut state.retires, true) && self.role == Role::Beside {
            self.common.retire(self.index);
        }
    }

    /// Ends a process in which hooks are loaded that were deleted or replaced: so does what they left to run.
    fn replace(&self, state: &mut State<'_>, now: Instant) -> Result<(), WorkerDeath> {
        if self.role == Role::Apart && state.mine.is_some() && state.left.is_none() {
            // It loads a further set only when its suspect is called.
            let is_old = self.common.board().current().generation() != state.held.generation();
            state.left = is_old.then_some(now);
        }

        let Some(left) = state.left.filter(|_| state.loading.is_none()) else {
            return Ok(());
        };

        let waited = now.saturating_duration_since(left);
        let has_turn =
            self.role == Role::Apart || (leaving::wants_turn(waited) && self.common.board().takes_turn(self.index));
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
