//! The Bun floor: throughput of bare processes with the same hooks and the same events, as a measure for the runner.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use shared::clock::{Clock as _, SystemClock};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::figure::Figure;
use super::percentile;
use crate::launch::programs::{BUN_MINIMUM, tool};

/// Source of the bare loop.
const LOOP: &str = include_str!("floor.ts");
/// Number of events in one frame, the most that the runner sends.
const BATCH: usize = 16;
/// Number of frames in flight in one process.
const DEPTH: usize = 4;
/// Largest answer that is read, in bytes.
const MAX_FRAME: usize = 64 * 1024 * 1024;

/// One bare process.
struct Bare {
    _child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
}

impl Bare {
    async fn start(folder: &Path, count: usize) -> Result<Self> {
        let script = folder.join("floor.ts");
        std::fs::write(&script, LOOP).context("failed to write the bare loop")?;
        let mut child = Command::new(tool("bun", BUN_MINIMUM)?)
            .arg("run")
            .arg(&script)
            .arg(folder)
            .arg(count.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("failed to start bun")?;

        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let mut bare = Self {
            _child: child,
            stdin: stdin.context("failed to open a pipe")?,
            stdout: stdout.context("failed to open a pipe")?,
        };

        bare.answer().await?;
        Ok(bare)
    }

    async fn ask(&mut self, events: &[String]) -> Result<()> {
        let body = format!("[{}]", events.join(","));
        let mut frame = u32::try_from(body.len())?.to_le_bytes().to_vec();
        frame.extend_from_slice(body.as_bytes());
        self.stdin.write_all(&frame).await.context("failed to write to bun")
    }

    async fn answer(&mut self) -> Result<()> {
        let size = self.stdout.read_u32_le().await.context("failed to read from bun")? as usize;
        if size > MAX_FRAME {
            bail!("bun said {size} bytes");
        }
        let mut body = vec![0; size];
        self.stdout
            .read_exact(&mut body)
            .await
            .context("failed to read from bun")?;
        Ok(())
    }
}

/// Measures `workers` bare processes with `count` hooks of `folder` and `events` (JSON), for the given time.
///
/// # Errors
/// Fails if Bun does not start or gives an invalid answer.
pub(super) async fn run(
    folder: &Path,
    count: usize,
    workers: usize,
    events: &[String],
    span: Duration,
) -> Result<Figure> {
    let mut all = Vec::new();
    for _ in 0..workers {
        all.push(Bare::start(folder, count).await?);
    }

    let alone = latencies(&mut all[0], events, span / 2).await?;
    let began = SystemClock.monotonic();
    let running = all.into_iter().map(|bare| {
        let events = events.to_vec();
        tokio::spawn(async move { flood(bare, &events, span).await })
    });

    let mut done = 0;
    for one in running.collect::<Vec<_>>() {
        done += one.await.context("a reader panicked")??;
    }

    let seconds = SystemClock.monotonic().duration_since(began).as_secs_f64();
    Ok(Figure {
        events_per_s: done as f64 / seconds,
        p50_us: percentile(&alone, 0.5),
        p99_us: percentile(&alone, 0.99),
    })
}

/// Returns the times of single events, in µs, ascending.
async fn latencies(bare: &mut Bare, events: &[String], span: Duration) -> Result<Vec<f64>> {
    let mut all = Vec::new();
    let end = SystemClock.monotonic() + span;
    for at in 0.. {
        let began = SystemClock.monotonic();
        if began > end {
            break;
        }
        let next = at % events.len();
        bare.ask(&events[next..=next]).await?;
        bare.answer().await?;
        all.push(SystemClock.monotonic().duration_since(began).as_secs_f64() * 1e6);
    }

    // The first half ran in the interpreter, before compilation.
    let mut warm = all.split_off(all.len() / 2);
    warm.sort_by(f64::total_cmp);

    Ok(warm)
}

/// Returns the number of events that the process handles in `span`.
async fn flood(mut bare: Bare, events: &[String], span: Duration) -> Result<u64> {
    let frames: Vec<&[String]> = events.chunks_exact(BATCH).collect();
    let end = SystemClock.monotonic() + span;

    let (mut asked, mut done) = (0, 0);
    while SystemClock.monotonic() < end {
        while asked - done < DEPTH {
            bare.ask(frames[asked % frames.len()]).await?;
            asked += 1;
        }
        bare.answer().await?;
        done += 1;
    }

    Ok((done * BATCH) as u64)
}
