//! Messages from a worker: answers, and reports of its state.

use std::borrow::Cow;
use std::sync::{Arc, PoisonError};

use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStdout;

use super::{MAX_FORMER, READ_BYTES, Run, State, WorkerDeath, WorkerRole};
use crate::runner::counted::Counted;
use crate::runner::in_flight::{FlightStage, ImpossibleAnswer, InFlightEvent};
use crate::runner::progress_watch::{WorkerSnapshot, WorkerTask};
use crate::runner::protocol::{self, CallFrame, CallReply, WorkerFrame};
use crate::runner::sources::LoadedHooks;
use crate::runner::{AsyncError, HookSource};

impl Run<'_> {
    /// Handles the messages of the process until it closes the pipe.
    pub(super) async fn read(&self, mut stdout: ChildStdout) -> Result<(), WorkerDeath> {
        let mut buffer = Vec::with_capacity(READ_BYTES);
        loop {
            buffer.reserve(READ_BYTES);

            if stdout.read_buf(&mut buffer).await.map_err(WorkerDeath::Pipe)? == 0 {
                return Ok(());
            }

            let mut at = 0;
            while let Some((body, length)) = protocol::split(&buffer[at..]).map_err(WorkerDeath::Frame)? {
                self.handle_frame(protocol::read(body).map_err(WorkerDeath::Frame)?)?;
                at += length;
            }

            buffer.drain(..at);
        }
    }

    fn handle_frame(&self, frame: WorkerFrame<'_>) -> Result<(), WorkerDeath> {
        let mut state = self.state();
        state.frames += 1;

        match frame.t {
            None => {
                for answer in frame.r {
                    // One frame may carry answers of many events.
                    if let Some((stage, flight)) = state.absorb_answer(answer)? {
                        self.handle_answered(&state, stage, flight);
                        self.asked.notify_one();
                    }
                }

                self.moved.notify_one();
            }
            Some("ready") => {
                // Readiness is counted by this value, and taken back when it is dropped with the process.
                state.up = Some(Counted::new(match self.role {
                    WorkerRole::Beside => &self.common.ready,
                    WorkerRole::Apart => &self.common.ready_apart,
                }));
                if self.role == WorkerRole::Beside {
                    self.common.lock_board().came_up(self.index);
                }
                self.common.changed.notify_waiters();
                self.moved.notify_one();
            }
            // A pong proves only that the scripts' thread is free.
            Some("pong") => {
                state.pongs += 1;
                state.is_asked = false;
            }
            Some("loaded") => {
                if let Some(loaded) = state.loading.take() {
                    state.ended += 1;
                    self.log_failed_loads(&loaded, &frame.bad, state.mine.as_deref());
                    state.hold_set(loaded);
                }
                self.moved.notify_one();
            }
            Some("stray") => self.handle_stray(&state, frame),
            Some("call") => {
                for call in frame.k {
                    self.call(&state, call)?;
                }
            }
            Some("query") => {
                if let Some(query) = frame.q {
                    state.queue_query(query)?;
                    self.asked.notify_one();
                }
            }
            Some(_) => {}
        }

        Ok(())
    }

    /// Reports an error that a script threw outside of evaluations. The process knows the hook for timers; for other
    /// errors the stack names it, if there is one.
    fn handle_stray(&self, state: &State<'_>, frame: WorkerFrame<'_>) {
        let error = protocol::cut(frame.message.unwrap_or_default());
        let Some(hook) = stray_hook(state, frame.by, frame.stack.as_deref()) else {
            if self.may_log(&error) {
                tracing::warn!(error, "uncaught error of an unknown hook outside of evaluations");
            }
            return;
        };

        let hook = Arc::clone(hook);
        if self.may_log(&format!("{}{error}", hook.id)) {
            tracing::warn!(
                hook_id = hook.id,
                error,
                "uncaught error of a hook outside of evaluations"
            );
        }

        // There may be no subscriber.
        let _ = self.common.strays.send(AsyncError { hook, error });
    }

    /// Logs why hooks of `loaded` did not load; `alone`: only this hook was to be loaded.
    fn log_failed_loads(&self, loaded: &LoadedHooks, bad: &[(u32, Cow<'_, str>)], alone: Option<&str>) {
        for (index, error) in bad {
            let hook = loaded
                .set()
                .hooks()
                .get(*index as usize)
                .map_or("", |hook| hook.id.as_str());

            if alone.is_some_and(|alone| alone != hook) {
                continue;
            }

            if self.may_log(&format!("{hook}{error}")) {
                tracing::warn!(hook_id = hook, %error, "failed to load a hook");
            }
        }
    }

    /// Records that every hook that `flight` was open for has answered.
    fn handle_answered(&self, state: &State<'_>, stage: FlightStage, flight: InFlightEvent) {
        if self.role == WorkerRole::Beside && stage == FlightStage::Over {
            return;
        }

        let mut board = self.common.lock_board();
        let set = state.held.set();
        let mine = state.mine.as_ref().and_then(|mine| set.index(mine));
        if let Some(hook) = mine.and_then(|index| set.hooks().get(index as usize))
            && board.record_clean_run(hook)
        {
            tracing::info!(hook_id = hook.id, "hook no longer suspected of crashing workers");
        }

        match stage {
            FlightStage::Apart => board.set_apart(flight),
            FlightStage::UnderWay | FlightStage::Over => {}
        }

        drop(board);

        if stage == FlightStage::Apart {
            self.common.apart.notify_one();
        }
    }

    /// Lets the host answer a script's call in a task; the answer is sent back if the process still lives then. The
    /// task ends with the host's answer, which comes in bounded time.
    fn call(
        &self,
        state: &State<'_>,
        (slot, index, number, name, args): CallFrame<'_>,
    ) -> Result<(), ImpossibleAnswer> {
        // The event may be over already, for example if a script did not await its call.
        let Some(flight) = state.in_flight.get(&slot) else {
            return Ok(());
        };
        let call = flight.call(index, number, name.into_owned())?;
        let (calls, host) = (Arc::clone(flight.calls()), Arc::clone(&self.common.host));
        let (replies, moved) = (Arc::clone(&self.replies), Arc::clone(&self.moved));
        let args = args.into_owned();

        tokio::spawn(async move {
            let answered = calls.answer_call(&*host, call, args).await;
            let reply = CallReply {
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
    /// Returns the sets whose hooks may run in the process.
    pub(super) fn known_sets(&self) -> impl Iterator<Item = &Arc<LoadedHooks>> {
        self.loading.iter().chain([&self.held]).chain(&self.former)
    }

    /// Returns the host's knowledge of the process, without the kernel's.
    pub(super) fn current_sight(&self) -> WorkerSnapshot {
        let work = match (&self.up, &self.loading) {
            (None, _) => WorkerTask::Starting,
            (Some(_), Some(loading)) => WorkerTask::Loading(loading.set().hooks().len()),
            (Some(_), None) if self.in_flight.is_empty() => WorkerTask::Nothing,
            (Some(_), None) => WorkerTask::Evaluating(self.held.set().hooks().len()),
        };

        WorkerSnapshot {
            work,
            ended: self.ended,
            pongs: self.pongs,
            waits_for_host: self.query.is_open(),
            is_pinged: self.is_asked,
            has_unread: false,
        }
    }

    fn hold_set(&mut self, loaded: Arc<LoadedHooks>) {
        self.former.push_front(std::mem::replace(&mut self.held, loaded));
        self.former.truncate(MAX_FORMER);
    }

    /// Applies `answer`. Returns the event if this worker is done with it.
    fn absorb_answer(
        &mut self,
        answer: protocol::EventAnswer<'_>,
    ) -> Result<Option<(FlightStage, InFlightEvent)>, ImpossibleAnswer> {
        let slot = answer.slot;
        let Some(flight) = self.in_flight.get_mut(&slot) else {
            return Ok(None);
        };

        if !flight.is_answered() {
            self.unanswered -= 1;
        }

        let is_first = !flight.is_answered();
        let ends_some =
            is_first || !(answer.results.is_empty() && answer.failures.is_empty() && answer.late.is_empty());
        let stage = flight.absorb_answer(answer)?;
        let longest = (stage == FlightStage::UnderWay).then(|| flight.longest_timeout());
        self.terms.note_answered(slot, longest, self.age);
        self.ended += u64::from(ends_some);

        let flight = match stage {
            FlightStage::UnderWay => None,
            FlightStage::Apart | FlightStage::Over => self.in_flight.remove(&slot),
        };

        Ok(flight.map(|flight| (stage, flight)))
    }
}

/// Returns the hook that caused an error thrown in the name of `by` with this `stack`.
fn stray_hook<'a>(state: &'a State<'_>, by: Option<(u32, u32)>, stack: Option<&str>) -> Option<&'a Arc<HookSource>> {
    if let Some(mine) = &state.mine {
        let set = state.loading.as_ref().unwrap_or(&state.held).set();
        return set.hooks().get(set.index(mine)? as usize);
    }

    let mut known = state.known_sets();
    match (by, stack) {
        (Some((index, generation)), _) => {
            let loaded = known.find(|loaded| loaded.generation() == generation)?;
            loaded.set().hooks().get(index as usize)
        }
        (None, Some(stack)) => known.find_map(|loaded| loaded.hook_in_stack(stack)),
        (None, None) => None,
    }
}
