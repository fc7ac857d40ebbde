//! The agent of runner `process`, an external harness: a program that reads `AgentRequest/1` as JSON on its standard
//! input and writes JSON lines to its standard output.
//!
//! A line is `{"type": "text", "text": "…"}` (a piece of the answer, shown as it comes), `{"type": "answer",
//! "content": "…", "attachments": […], "usage": {…}}` (the end; without `content` the pieces are the answer),
//! `{"type": "error", "error": "…", "retryable": false}`, or `{"type": "waiting", "approval": "…"}` (the program is
//! started again once a human has decided). The program runs in a process group of its own, which is killed as a
//! whole when the turn is canceled, when its time is over, and when the answer is there. Source:
//! `docs/design/sessions.md` §6.3.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use shared::bus::Bus;
use shared::clock::SharedClock;
use shared::model::ledger::TurnUsage;
use shared::process::SecretValue;
use shared::wire::agent::{AgentFile, AgentRequest};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdout};

use super::answer_files::AnswerFiles;
use super::port::{Agent, TurnOrigin};
use crate::agent::live::LiveAnswer;
use crate::agent::personas::{AgentProgram, Personas};
use crate::agent::port::{AgentAnswer, AskAgentError, MAX_ANSWER_BYTES};
use crate::child::{InputLimit, KEPT, ProcessGroup, SupervisedCommand, pass_variables, read_output, walls};
use crate::hooks::TurnHooks;

/// Maximum length of a line, bytes.
const MAX_LINE_BYTES: u64 = 4 * 1_024 * 1_024;
/// Part of standard error that is kept for the log and the ledger, bytes.
const MAX_STDERR_BYTES: u64 = 2_000;
/// Time in which a harness that has closed its output must end.
const END_WITHIN: Duration = Duration::from_millis(500);
/// The agent of runner `process`.
#[derive(Debug)]
pub struct ProcessAgent {
    personas: Arc<Personas>,
    bus: Bus,
    files: AnswerFiles,
    hooks: Option<Arc<TurnHooks>>,
}

/// One line of a harness's output.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line {
    Text {
        text: String,
    },
    Answer {
        #[serde(default)]
        content: Option<String>,
        #[serde(default)]
        attachments: Vec<AgentFile>,
        #[serde(default)]
        usage: Option<TurnUsage>,
    },
    Error {
        error: String,
        #[serde(default)]
        retryable: bool,
    },
    Waiting {
        approval: String,
    },
}

impl ProcessAgent {
    /// Creates an agent that runs the programs of `personas`.
    #[must_use]
    pub fn new(personas: Arc<Personas>, bus: Bus, clock: &SharedClock) -> Self {
        Self {
            files: AnswerFiles::new(&bus, clock),
            personas,
            bus,
            hooks: None,
        }
    }

    /// Returns the agent with `hooks`: it shows no partial answer if they may change the answer.
    #[must_use]
    pub fn with_hooks(self, hooks: Arc<TurnHooks>) -> Self {
        Self {
            hooks: Some(hooks),
            ..self
        }
    }

    async fn run(
        &self,
        program: &AgentProgram,
        request: &AgentRequest,
        origin: &TurnOrigin,
    ) -> Result<AgentAnswer, AskAgentError> {
        let mut question = serde_json::to_vec(request).unwrap_or_default();
        question.push(b'\n');
        let (mut child, is_held) = start(program, request, question.len())?;
        let group = ProcessGroup::led_by(&child);
        let unreachable = |what: &str| AskAgentError::Unreachable(format!("{} has no {what}", program.command));
        let mut stdin = Some(child.stdin.take().ok_or_else(|| unreachable("input"))?);
        let stdout = child.stdout.take().ok_or_else(|| unreachable("output"))?;

        let stderr = child.stderr.take().ok_or_else(|| unreachable("error output"))?;
        // A harness may write before it has read everything, and may not read at all.
        let told = async {
            if let Some(stdin) = &mut stdin {
                let _ = stdin.write_all(&question).await;
            }
            stdin = stdin.take().filter(|_| is_held);
            std::future::pending::<()>().await;
        };

        let complaint = tokio::spawn(read_output(stderr, MAX_STDERR_BYTES));
        let hooks = self.hooks.as_ref();
        let quiet = hooks.is_some_and(|hooks| hooks.hooks_of(&request.session, &origin.works_for).withholds_output());
        let begin = || LiveAnswer::begin_call(self.bus.clone(), &request.session, origin, request.turn, 1);
        let live = (!quiet).then(begin);
        let answer = tokio::select! {
            answer = listen(stdout, live.as_ref()) => answer,
            () = told => Ok(None),
        };

        drop(live);

        if let Some(said) = answer? {
            return Ok(AgentAnswer {
                content: said.content,
                attachments: self.files.admit(said.files, origin).await?,
                usage: said.usage,
            });
        }

        // The output is closed: the program gets a moment to end, so that its exit code is its own.
        let status = tokio::time::timeout(END_WITHIN, child.wait()).await;
        drop(group);
        let status = status
            .ok()
            .and_then(Result::ok)
            .map_or_else(|| "running".to_owned(), |status| status.to_string());

        let said = tokio::time::timeout(END_WITHIN, complaint).await;
        let said = said.ok().and_then(Result::ok).unwrap_or_default();

        Err(AskAgentError::Malformed(format!(
            "the program ended without an answer ({status}): {}",
            said.trim()
        )))
    }
}

/// The last line of a harness.
struct SaidAnswer {
    content: String,
    files: Vec<AgentFile>,
    usage: TurnUsage,
}

async fn listen(stdout: ChildStdout, live: Option<&LiveAnswer>) -> Result<Option<SaidAnswer>, AskAgentError> {
    let mut lines = BufReader::new(stdout);
    let mut pieces = String::new();
    loop {
        let mut line = Vec::new();
        // The bound stops a program that never ends its line from filling the memory.
        let read = (&mut lines).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await;
        match read {
            Ok(0) => return Ok(None),
            Ok(_) if line.iter().all(u8::is_ascii_whitespace) => continue,
            Ok(_) => {}
            Err(error) => return Err(AskAgentError::Unreachable(error.to_string())),
        }

        let said = serde_json::from_slice::<Line>(&line);
        match said.map_err(|error| AskAgentError::Malformed(format!("bad line: {error}")))? {
            Line::Text { text } => {
                // Text over the bound is dropped: the answer would be too large to be stored.
                if pieces.len() + text.len() <= MAX_ANSWER_BYTES {
                    live.iter().for_each(|live| live.push_text(&text));
                    pieces.push_str(&text);
                }
            }
            Line::Answer {
                content,
                attachments,
                usage,
            } => {
                // A program may send its text in pieces and end with an empty answer.
                return Ok(Some(SaidAnswer {
                    content: content.unwrap_or(pieces),
                    files: attachments,
                    usage: usage.unwrap_or_default(),
                }));
            }
            Line::Error { error, retryable } => return Err(AskAgentError::Refused { error, retryable }),
            Line::Waiting { approval } => return Err(AskAgentError::Waits(approval)),
        }
    }
}

/// Starts the program; returns it and whether its input must be held open. `bytes` is the length of its question.
fn start(program: &AgentProgram, request: &AgentRequest, bytes: usize) -> Result<(Child, bool), AskAgentError> {
    // The supervisor ends the program if the broker dies.
    let SupervisedCommand { mut command, is_held } = SupervisedCommand::new(&program.command, InputLimit::Bytes(bytes));
    command
        .args(&program.args)
        .env("NEXUS_TURN", request.turn.to_string())
        .env("NEXUS_PERSONA", &request.persona);

    pass_variables(&mut command, &KEPT);

    // Secrets are resolved at each start, so a changed secret needs no restart.
    for (name, value) in &program.env {
        let value = match value.starts_with("env:") || value.starts_with("file:") {
            true => SecretValue::resolve(value).map_err(|error| AskAgentError::Refused {
                error: format!("process.env.{name}: {error}"),
                retryable: false,
            })?,
            false => {
                command.env(name, value);
                continue;
            }
        };

        command.env(name, value.reveal());
    }

    if !program.directory.is_empty() {
        command.current_dir(&program.directory);
    }

    let started = walls::start(command, program.env.contains_key(walls::BUS)).map_err(|error| AskAgentError::Refused {
        error: format!("{} cannot be started: {error}", program.command),
        retryable: false,
    });

    Ok((started?, is_held))
}

#[async_trait]
impl Agent for ProcessAgent {
    fn is_pure(&self) -> bool {
        false
    }

    async fn answer_request(
        &self,
        request: &AgentRequest,
        origin: &TurnOrigin,
        timeout: Duration,
    ) -> Result<AgentAnswer, AskAgentError> {
        let persona = self.personas.persona_of(&request.persona);
        let Some(program) = &persona.process else {
            return Err(AskAgentError::Refused {
                error: format!("persona {} names no program", request.persona),
                retryable: false,
            });
        };

        let silent = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        tokio::time::timeout(timeout, self.run(program, request, origin))
            .await
            .unwrap_or(Err(AskAgentError::Silent(silent)))
    }
}
