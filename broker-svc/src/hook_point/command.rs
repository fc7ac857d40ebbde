//! Command hooks: a program of the operator's, within the allow-list, asked on standard input.
//!
//! What is not on the list is never run. A plain command is started as its words, without a shell; one that redirects or
//! names files by a pattern is read by `sh`, as a whole. It leads a process group of its own, all of which is killed at
//! its time-out, when the turn is cancelled, and when it has ended. One whose answer nobody waits for runs beside the
//! turn. Source: `004_bf6295fcf892806e.txt` (`RunCommandHooks`); `sessions.md` "Command hooks".

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, json};
use shared::clock::SharedClock;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Child;
use tokio::sync::Semaphore;

use super::allow_list::{AllowList, Spelled};
use super::claude::{Exit, MAX_OUTPUT_BYTES, answer, question};
use super::declared::Hook;
use super::moment::Moment;
use super::outcome::{HookContext, HookOutcome, RunHookError};
use super::point::Point;
use super::record::Recorder;
use crate::child::{Group, Handed, KEPT, Tethered, heard, keep};
use crate::fold::shortened;

/// Commands that run at once beside turns; further ones are skipped and reported.
const MAX_BESIDE: usize = 32;
/// Output that is read as an answer, bytes; what is beyond is read and forgotten.
const MAX_ANSWER_BYTES: u64 = 256 * 1_024;
/// Runs command hooks; cheap to clone.
#[derive(Debug, Clone)]
pub struct Commands {
    allow: Arc<AllowList>,
    recorder: Recorder,
    clock: SharedClock,
    beside: Arc<Semaphore>,
}

/// What is to be told of one run.
struct Run {
    hook: Arc<Hook>,
    command: String,
    moment: Moment,
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

impl Commands {
    /// Commands within `allow`.
    #[must_use]
    pub fn new(allow: AllowList, recorder: Recorder, clock: SharedClock) -> Self {
        Self {
            allow: Arc::new(allow),
            recorder,
            clock,
            beside: Arc::new(Semaphore::new(MAX_BESIDE)),
        }
    }

    /// Runs `command`, where it may be run, and says what it answered. Of one that is not `blocking` only its start is
    /// waited for, but at the turn's end, where nothing else waits and the run is owed.
    ///
    /// # Errors
    /// [`RunHookError`] says why there is no answer.
    pub async fn run(
        &self,
        hook: &Arc<Hook>,
        command: &str,
        moment: &Moment,
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
        let spelled = match self.allow.admit(command) {
            Ok(spelled) => spelled,
            Err(refusal) => {
                self.skipped(&run, &refusal.to_string()).await;
                return Err(RunHookError::OffList(refusal.to_string()));
            }
        };
        if hook.blocking || hook.point == Point::PostSession {
            return self.ended(&run, spelled).await;
        }
        let Ok(slot) = Arc::clone(&self.beside).try_acquire_owned() else {
            let hint = format!("{MAX_BESIDE} commands run already");
            self.skipped(&run, &hint).await;
            return Err(RunHookError::Failed(hint));
        };
        let commands = self.clone();
        tokio::spawn(async move {
            if let Err(error) = commands.ended(&run, spelled).await {
                tracing::info!(hook = run.hook.name, %error, "command of a hook failed");
            }
            drop(slot);
        });
        Ok(HookOutcome::default())
    }

    async fn ended(&self, run: &Run, spelled: Spelled) -> Result<HookOutcome, RunHookError> {
        let began = self.clock.monotonic();
        let within = Duration::from_millis(run.hook.timeout_ms);
        let exit = tokio::time::timeout(within, execute(&run.command, &spelled, run)).await;
        let took = self.clock.monotonic().saturating_duration_since(began);
        let (told, said) = match exit {
            Err(_) => (None, Err(RunHookError::TimedOut(run.hook.timeout_ms))),
            Ok(Err(error)) => (None, Err(RunHookError::Failed(error))),
            Ok(Ok(exit)) => {
                let said = answer(&run.hook, &exit);
                (Some(exit), said)
            }
        };
        let mut record = run.record();
        record.insert(
            "duration_ms".to_owned(),
            json!(u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
        );
        record.insert("exit_code".to_owned(), json!(told.as_ref().and_then(|exit| exit.code)));
        if let Some(exit) = &told {
            record.insert("stdout".to_owned(), json!(shortened(&exit.stdout, MAX_OUTPUT_BYTES)));
            record.insert("stderr".to_owned(), json!(shortened(&exit.stderr, MAX_OUTPUT_BYTES)));
        }
        if let Err(error) = &said {
            record.insert("error".to_owned(), json!(error.to_string()));
        }
        self.tell("hook_command", run, record).await;
        said
    }

    async fn skipped(&self, run: &Run, hint: &str) {
        let mut record = run.record();
        record.insert("hint".to_owned(), json!(hint));
        tracing::warn!(
            session = %run.moment.session,
            turn = %run.moment.turn,
            hook = run.hook.name,
            command = run.command,
            hint,
            "command of a hook is skipped"
        );
        self.tell("hook_command_skipped", run, record).await;
    }

    async fn tell(&self, kind: &str, run: &Run, record: Map<String, serde_json::Value>) {
        let id = format!("{}:{}:{}", run.hook.point.name(), run.hook.key(), run.round);
        self.recorder
            .command(kind, &run.moment, &run.context, record, &id)
            .await;
    }
}

async fn execute(command: &str, spelled: &Spelled, run: &Run) -> Result<Exit, String> {
    let directory = std::path::absolute(".").map_err(|error| error.to_string())?;
    let directory = directory.display().to_string();
    let asked = question(&run.hook, &run.context, &directory).to_string();
    let (mut child, is_held) = start(command, spelled, run, &directory, asked.len())?;
    let group = Group::led_by(&child);
    let mut stdin = child.stdin.take();
    // A command may answer before it has read everything, and may not read at all.
    let told = async {
        if let Some(stdin) = &mut stdin {
            let _ = stdin.write_all(asked.as_bytes()).await;
        }
        stdin = stdin.take().filter(|_| is_held);
    };
    let none = || "has no output".to_owned();
    let stdout = heard(child.stdout.take().ok_or_else(none)?, MAX_ANSWER_BYTES);
    let stderr = heard(child.stderr.take().ok_or_else(none)?, MAX_ANSWER_BYTES);
    let ((), stdout, stderr, status) = tokio::join!(told, stdout, stderr, ended(&mut child, group));
    let status = status.map_err(|error| error.to_string())?;
    Ok(Exit {
        code: status.code(),
        stdout,
        stderr,
    })
}

/// The command's end; then whatever it has left behind ends as well, and with it the output.
async fn ended(child: &mut Child, group: Group) -> std::io::Result<std::process::ExitStatus> {
    let status = child.wait().await;
    drop(group);
    status
}

/// The command, started, and whether its input is to be held open; `bytes` of that are its question.
fn start(line: &str, spelled: &Spelled, run: &Run, directory: &str, bytes: usize) -> Result<(Child, bool), String> {
    let shell = ["-c".to_owned(), line.to_owned()];
    let (program, arguments) = match spelled.words.split_first() {
        Some((program, arguments)) if !spelled.needs_shell => (program.as_str(), arguments),
        Some(_) | None => ("sh", shell.as_slice()),
    };
    let Tethered { mut command, is_held } = Tethered::new(program, Handed::Bytes(bytes));
    command
        .args(arguments)
        .env("NEXUS_TURN", run.moment.turn.to_string())
        .env("NEXUS_PERSONA", &run.moment.session.persona)
        .env("CLAUDE_PROJECT_DIR", directory);
    keep(&mut command, &KEPT);
    let started = command.spawn().map_err(|error| format!("cannot be started: {error}"));
    Ok((started?, is_held))
}
