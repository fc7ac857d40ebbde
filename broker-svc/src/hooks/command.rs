//! Command hooks: a program of the operator's, within the allow-list, asked on standard input.
//!
//! A command that is not on the list is never run. It is started with exactly the words that the list took; no shell
//! reads it again. The command leads a process group of its own, which is killed as a whole at its time-out, when the
//! turn is canceled, and when the command has ended. A command that is not waited for runs beside the turn. Source:
//! seed 004 §3; `docs/design/sessions.md` §7.4.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, json};
use shared::clock::SharedClock;
use tokio::io::{AsyncRead, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::Semaphore;

use super::allow_list::{AllowList, CommandDirectories, PlainCommand, StderrTarget};
use super::claude::{CommandExit, MAX_OUTPUT_BYTES, exit_outcome, hook_input};
use super::declared::DeclaredHook;
use super::hooked_turn::HookedTurn;
use super::outcome::{HookContext, HookOutcome, RunHookError};
use super::point::HookPoint;
use super::record::HookRecorder;
use crate::agent::message_text::shorten_text;
use crate::child::{InputLimit, KEPT, ProcessGroup, SupervisedCommand, pass_variables, read_output, walls};

/// Maximum number of commands that run at once beside turns; further ones are skipped and reported.
const MAX_BESIDE: usize = 32;
/// Maximum output that is read as an answer, bytes; the rest is read and discarded.
const MAX_ANSWER_BYTES: u64 = 256 * 1_024;
/// Runner of command hooks; cheap to clone.
#[derive(Debug, Clone)]
pub struct CommandRunner {
    allow: Arc<AllowList>,
    recorder: HookRecorder,
    clock: SharedClock,
    beside: Arc<Semaphore>,
}

/// One run of a command, as its records describe it.
struct Run {
    hook: Arc<DeclaredHook>,
    command: String,
    moment: HookedTurn,
    context: HookContext,
    round: usize,
}

impl Run {
    fn record(&self) -> Map<String, serde_json::Value> {
        let mut record = Map::new();
        record.insert("hook".to_owned(), json!(self.hook.key()));
        record.insert("point".to_owned(), json!(self.hook.point.name()));
        record.insert("command".to_owned(), json!(self.command));
        record
    }
}

impl CommandRunner {
    /// Creates a runner for commands within `allow`.
    #[must_use]
    pub fn new(allow: AllowList, recorder: HookRecorder, clock: SharedClock) -> Self {
        Self {
            allow: Arc::new(allow),
            recorder,
            clock,
            beside: Arc::new(Semaphore::new(MAX_BESIDE)),
        }
    }

    /// Runs `command`, if it may run, and returns its outcome. For a command that is not `blocking` only the start is
    /// awaited, except at the turn's end, where nothing else waits and the run is owed.
    ///
    /// # Errors
    /// Returns [`RunHookError`] if there is no outcome.
    pub async fn run(
        &self,
        hook: &Arc<DeclaredHook>,
        command: &str,
        moment: &HookedTurn,
        context: &HookContext,
        round: usize,
    ) -> Result<HookOutcome, RunHookError> {
        let run = Run {
            hook: Arc::clone(hook),
            command: command.to_owned(),
            moment: moment.clone(),
            context: context.clone(),
            round,
        };

        // The allow-list decides before anything is started.
        let plain = match self.admit_command(command).await {
            Ok(plain) => plain,
            Err(refusal) => {
                self.record_skipped(&run, &refusal).await;
                return Err(RunHookError::OffList(refusal));
            }
        };

        if hook.blocking || hook.point == HookPoint::PostSession {
            return self.run_to_end(&run, plain).await;
        }

        // A hook that is not waited for must not start processes without a bound.
        let Ok(slot) = Arc::clone(&self.beside).try_acquire_owned() else {
            let hint = format!("{MAX_BESIDE} commands are running already");
            self.record_skipped(&run, &hint).await;
            return Err(RunHookError::Failed(hint));
        };

        let commands = self.clone();
        tokio::spawn(async move {
            if let Err(error) = commands.run_to_end(&run, plain).await {
                tracing::info!(hook_id = run.hook.name, %error, "hook command failed");
            }
            drop(slot);
        });

        Ok(HookOutcome::default())
    }

    /// Returns the words to execute for `command` in the broker's working directory, whose files its patterns name.
    async fn admit_command(&self, command: &str) -> Result<PlainCommand, String> {
        let (allow, command) = (Arc::clone(&self.allow), command.to_owned());
        let read = tokio::task::spawn_blocking(move || allow.admit_command(&command, &CommandDirectories::here()?));
        let read = read.await.map_err(|error| error.to_string())?;
        read.map_err(|refusal| refusal.to_string())
    }

    async fn run_to_end(&self, run: &Run, plain: PlainCommand) -> Result<HookOutcome, RunHookError> {
        let began = self.clock.monotonic();
        let within = Duration::from_millis(run.hook.timeout_ms);
        let exit = tokio::time::timeout(within, execute(&plain, run)).await;
        let took = self.clock.monotonic().saturating_duration_since(began);

        let (told, said) = match exit {
            Err(_) => (None, Err(RunHookError::TimedOut(run.hook.timeout_ms))),
            Ok(Err(error)) => (None, Err(RunHookError::Failed(error))),
            Ok(Ok(exit)) => {
                let said = exit_outcome(&run.hook, &exit);
                (Some(exit), said)
            }
        };

        // Recorded however it ended: a command that timed out may have had effects as well.
        let mut record = run.record();
        record.insert(
            "duration_ms".to_owned(),
            json!(u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
        );

        record.insert("exit_code".to_owned(), json!(told.as_ref().and_then(|exit| exit.code)));

        if let Some(exit) = &told {
            record.insert("stdout".to_owned(), json!(shorten_text(&exit.stdout, MAX_OUTPUT_BYTES)));
            record.insert("stderr".to_owned(), json!(shorten_text(&exit.stderr, MAX_OUTPUT_BYTES)));
        }

        if let Err(error) = &said {
            record.insert("error".to_owned(), json!(error.to_string()));
        }

        self.record_command("hook_command", run, record).await;
        said
    }

    async fn record_skipped(&self, run: &Run, hint: &str) {
        let mut record = run.record();
        record.insert("hint".to_owned(), json!(hint));
        tracing::warn!(
            session = %run.moment.session,
            turn = %run.moment.turn,
            hook_id = run.hook.name,
            command = run.command,
            hint,
            "hook command skipped"
        );

        self.record_command("hook_command_skipped", run, record).await;
    }

    async fn record_command(&self, kind: &str, run: &Run, record: Map<String, serde_json::Value>) {
        let id = format!("{}:{}:{}", run.hook.point.name(), run.hook.key(), run.round);
        self.recorder
            .record_command(kind, &run.moment, &run.context, record, &id)
            .await;
    }
}

/// A command that is running.
struct Started {
    child: Child,
    /// Whether the command's input must be held open as long as it runs.
    is_held: bool,
    /// Pipe of standard output; none = the output is discarded.
    stdout: Option<Output>,
    stderr: Option<Output>,
}

type Output = Box<dyn AsyncRead + Send + Unpin>;

async fn execute(plain: &PlainCommand, run: &Run) -> Result<CommandExit, String> {
    let directory = std::env::current_dir().map_err(|error| error.to_string())?;
    let directory = directory.display().to_string();
    let asked = hook_input(&run.hook, &run.context, &directory).to_string();
    let mut started = start(plain, run, &directory, asked.len())?;
    let group = ProcessGroup::led_by(&started.child);

    let mut stdin = started.child.stdin.take();
    // A command may answer before it has read everything, and may not read at all.
    let told = async {
        if let Some(stdin) = &mut stdin {
            let _ = stdin.write_all(asked.as_bytes()).await;
        }
        stdin = stdin.take().filter(|_| started.is_held);
    };

    let (stdout, stderr) = (read_answer(started.stdout), read_answer(started.stderr));
    let ((), stdout, stderr, status) = tokio::join!(told, stdout, stderr, wait_for_end(&mut started.child, group));

    let status = status.map_err(|error| error.to_string())?;
    Ok(CommandExit {
        code: status.code(),
        stdout,
        stderr,
    })
}

async fn read_answer(output: Option<Output>) -> String {
    match output {
        Some(output) => read_output(output, MAX_ANSWER_BYTES).await,
        None => String::new(),
    }
}

/// Waits for the command's end, then ends every process that it has left behind, which closes the output.
async fn wait_for_end(child: &mut Child, group: ProcessGroup) -> std::io::Result<std::process::ExitStatus> {
    let status = child.wait().await;
    drop(group);
    status
}

/// Starts the command; `bytes` is the length of the question on its input.
fn start(plain: &PlainCommand, run: &Run, directory: &str, bytes: usize) -> Result<Started, String> {
    let failed = |error: std::io::Error| format!("cannot be started: {error}");
    let (program, arguments) = plain.words.split_first().ok_or("there is no command")?;
    let SupervisedCommand { mut command, is_held } = SupervisedCommand::new(program, InputLimit::Bytes(bytes));
    command
        .args(arguments)
        .env("NEXUS_TURN", run.moment.turn.to_string())
        .env("NEXUS_PERSONA", &run.moment.session.persona)
        .env("CLAUDE_PROJECT_DIR", directory);

    // Everything else of the broker's environment is withheld: it may hold secrets.
    pass_variables(&mut command, &KEPT);

    let joined = redirect_outputs(&mut command, plain).map_err(failed)?;
    let mut child = walls::start(command, false).map_err(failed)?;
    let boxed = |output: ChildStdout| Box::new(output) as Output;

    Ok(Started {
        stdout: joined.or(child.stdout.take().map(boxed)),
        stderr: child.stderr.take().map(|output| Box::new(output) as Output),
        child,
        is_held,
    })
}

/// Redirects the outputs of `command`; if both have the same destination, returns the reading end.
fn redirect_outputs(command: &mut Command, plain: &PlainCommand) -> std::io::Result<Option<Output>> {
    let redirects = plain.redirects;
    if redirects.silent {
        command.stdout(Stdio::null());
    }

    match redirects.errors {
        StderrTarget::Apart => Ok(None),
        StderrTarget::Nowhere => {
            command.stderr(Stdio::null());
            Ok(None)
        }
        StderrTarget::WithOutput => {
            // One pipe for both outputs keeps their order.
            let (ours, theirs) = std::io::pipe()?;
            if !redirects.silent {
                command.stdout(theirs.try_clone()?);
            }
            command.stderr(theirs);
            let ours = pipe::Receiver::from_owned_fd(ours.into())?;

            Ok(Some(Box::new(ours)))
        }
    }
}
