//! From a worker: answers, and what it says of itself.

use std::sync::{Arc, PoisonError};

use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStdout;

use super::{MAX_FORMER, READ_BYTES, Role, Run, State, UpMark, WorkerDeath};
use crate::runner::flight::{Flight, ImpossibleAnswer, Stage};
use crate::runner::protocol::{self, CallFrame, Frame, Reply};
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
                    if let Some((stage, flight)) = state.absorb(answer)? {
                        self.answered(&state, stage, flight);
                    }
                }
                self.moved.notify_one();
            }
            Some("ready") => {
                state.up = Some(UpMark::new(match self.role {
                    Role::Beside => &self.common.ready,
                    Role::Apart => &self.common.ready_apart,
                }));
                self.common.changed.notify_waiters();
                self.moved.notify_one();
            }
            Some("loaded") => {
                if let Some(loaded) = state.loading.take() {
                    log_failed_loads(&loaded, &frame.bad, state.mine.as_deref());
                    state.hold(loaded);
                }
                self.moved.notify_one();
            }
            Some("stray") => {
                let stack = frame.stack.as_deref().unwrap_or_default();
                let hook = state.held.hook_in_stack(stack).unwrap_or("unknown");
                let error = frame.message.as_deref().unwrap_or_default();
                tracing::warn!(hook, error, "hook threw outside of its evaluation");
            }
            Some("call") => {
                for call in frame.k {
                    self.call(&state, call)?;
                }
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Every hook that `flight` was open for has answered.
    fn answered(&self, state: &State<'_>, stage: Stage, flight: Flight) {
        if self.role == Role::Beside && stage == Stage::Over {
            return;
        }
        let mut board = self.common.board();
        let set = state.held.set();
        let mine = state.mine.as_ref().and_then(|mine| set.index(mine));
        if let Some(hook) = mine.and_then(|index| set.hooks().get(index as usize))
            && board.ran(hook)
        {
            tracing::info!(hook = hook.id, "hook is no suspect any more");
        }
        match stage {
            Stage::Apart => board.set_apart(flight),
            Stage::UnderWay | Stage::Over => {}
        }
        drop(board);
        if stage == Stage::Apart {
            self.common.apart.notify_one();
        }
    }

    /// Has a script's call answered; the answer finds its way back where the process still lives then. The task ends
    /// with the host's answer, which comes in bounded time.
    fn call(
        &self,
        state: &State<'_>,
        (slot, index, number, name, args): CallFrame<'_>,
    ) -> Result<(), ImpossibleAnswer> {
        let Some(flight) = state.in_flight.get(&slot) else {
            return Ok(());
        };
        let call = flight.call(index, number, name.into_owned())?;
        let (calls, host) = (Arc::clone(flight.calls()), Arc::clone(&self.common.host));
        let (replies, moved) = (Arc::clone(&self.replies), Arc::clone(&self.moved));
        let args = args.into_owned();
        tokio::spawn(async move {
            let answered = calls.answer(&*host, call, args).await;
            let reply = Reply {
                slot,
                index,
                number,
                answered,
            };
            replies.lock().unwrap_or_else(PoisonError::into_inner).push(reply);
            moved.notify_one();
        });
        Ok(())
    }
}

impl State<'_> {
    fn hold(&mut self, loaded: Arc<Loaded>) {
        self.former.push_front(std::mem::replace(&mut self.held, loaded));
        self.former.truncate(MAX_FORMER);
    }

    /// Takes `answer` in; answers the event where it is done here.
    fn absorb(&mut self, answer: protocol::Answer<'_>) -> Result<Option<(Stage, Flight)>, ImpossibleAnswer> {
        let slot = answer.slot;
        let Some(flight) = self.in_flight.get_mut(&slot) else {
            return Ok(None);
        };
        if !flight.is_answered() {
            self.unanswered -= 1;
        }
        let stage = flight.absorb(answer)?;
        let flight = match stage {
            Stage::UnderWay => None,
            Stage::Apart | Stage::Over => self.in_flight.remove(&slot),
        };
        Ok(flight.map(|flight| (stage, flight)))
    }
}

/// `alone`: only this one was to be loaded.
fn log_failed_loads(loaded: &Loaded, bad: &[(u32, std::borrow::Cow<'_, str>)], alone: Option<&str>) {
    for (index, error) in bad {
        let hook = loaded
            .set()
            .hooks()
            .get(*index as usize)
            .map_or("", |hook| hook.id.as_str());
        if alone.is_some_and(|alone| alone != hook) {
            continue;
        }
        tracing::warn!(hook, %error, "hook does not load");
    }
}
