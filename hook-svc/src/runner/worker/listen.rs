//! From a worker: answers, and what it says of itself.

use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStdout;

use super::{READ_BYTES, Run, State, UpMark, WorkerDeath};
use crate::runner::flight::UnknownHook;
use crate::runner::protocol::{self, Frame};
use crate::runner::sources::Loaded;

impl Run<'_> {
    /// Takes what the process says until it says no more.
    pub(super) async fn read(&self, mut stdout: ChildStdout) -> Result<(), WorkerDeath> {
        let mut buffer = Vec::with_capacity(READ_BYTES);
        loop {
            buffer.reserve(READ_BYTES);
            if stdout.read_buf(&mut buffer).await.map_err(WorkerDeath::Pipe)? == 0 {
                return Ok(());
            }
            let mut at = 0;
            while let Some((body, length)) = protocol::split(&buffer[at..]).map_err(WorkerDeath::Frame)? {
                self.hear(protocol::read(body).map_err(WorkerDeath::Frame)?)?;
                at += length;
            }
            buffer.drain(..at);
        }
    }

    fn hear(&self, frame: Frame<'_>) -> Result<(), WorkerDeath> {
        let mut state = self.state();
        state.frames += 1;
        match frame.t {
            None => {
                for answer in frame.r {
                    state.absorb(answer)?;
                }
                self.moved.notify_one();
            }
            Some("ready") => {
                state.up = Some(UpMark::new(&self.common.ready));
                self.moved.notify_one();
            }
            Some("loaded") => {
                if let Some(loaded) = state.loading.take() {
                    log_failed_loads(&loaded, &frame.bad);
                    state.held = loaded;
                }
                self.moved.notify_one();
            }
            Some("stray") => {
                let stack = frame.stack.as_deref().unwrap_or_default();
                let hook = state.held.hook_in_stack(stack).unwrap_or("unknown");
                let error = frame.message.as_deref().unwrap_or_default();
                tracing::warn!(hook, error, "hook threw outside of its evaluation");
            }
            Some(_) => {}
        }
        Ok(())
    }
}

impl State<'_> {
    fn absorb(&mut self, answer: protocol::Answer<'_>) -> Result<(), UnknownHook> {
        let slot = answer.slot;
        let Some(flight) = self.in_flight.get_mut(&slot) else {
            return Ok(());
        };
        if !flight.is_answered() {
            self.unanswered -= 1;
        }
        if flight.absorb(answer)? {
            self.in_flight.remove(&slot);
        }
        Ok(())
    }
}

fn log_failed_loads(loaded: &Loaded, bad: &[(u32, std::borrow::Cow<'_, str>)]) {
    for (index, error) in bad {
        let hook = loaded
            .set()
            .hooks()
            .get(*index as usize)
            .map_or("", |hook| hook.id.as_str());
        tracing::warn!(hook, %error, "hook does not load");
    }
}
