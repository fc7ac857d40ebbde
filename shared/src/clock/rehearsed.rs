//! The clock of a process under test: the host's clock with the offsets of [`TEST_CLOCK`]. Not part of release
//! builds.

use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::{ClockOffsets, TEST_CLOCK, process_time};

/// Time for which offsets are used before the file is read again.
const KEPT: Duration = Duration::from_millis(1);

/// The source of the offsets.
enum OffsetSource {
    /// Fixed offsets in the variable itself.
    Fixed(ClockOffsets),
    /// The first of these files that exists.
    Files([PathBuf; 2], Mutex<KnownOffsets>),
}

/// The offsets as last read, with the time of reading.
#[derive(Debug, Default)]
struct KnownOffsets {
    offsets: ClockOffsets,
    read_at: Option<Instant>,
}

/// Returns whether the variable is set.
pub(super) fn is_set() -> bool {
    source().is_some()
}

/// Returns the offsets at this moment.
pub(super) fn current_offsets() -> ClockOffsets {
    match source() {
        None => ClockOffsets::default(),
        Some(OffsetSource::Fixed(offsets)) => *offsets,
        Some(OffsetSource::Files(paths, known)) => read(paths, known),
    }
}

#[expect(clippy::disallowed_methods, reason = "tests set it; no configuration has it")]
fn source() -> Option<&'static OffsetSource> {
    static SOURCE: OnceLock<Option<OffsetSource>> = OnceLock::new();
    let source = SOURCE.get_or_init(|| {
        let value = std::env::var(TEST_CLOCK).ok().filter(|value| !value.is_empty())?;
        let instance = std::env::var("NEXUS_INSTANCE").unwrap_or_default();
        Some(OffsetSource::from_value(&value, &instance))
    });
    source.as_ref()
}

impl OffsetSource {
    fn from_value(value: &str, instance: &str) -> Self {
        if value.contains('=') {
            return Self::Fixed(parse(value).unwrap_or_else(|problem| panic!("{TEST_CLOCK}: {problem}")));
        }
        let paths = [PathBuf::from(format!("{value}.{instance}")), PathBuf::from(value)];
        Self::Files(paths, Mutex::default())
    }
}

/// Returns the offsets in the first of `paths` that exists, or zero if none does. The boot time never goes back: a test
/// that stops a process for as long as its clock is to have stood sets no boot time back.
fn read(paths: &[PathBuf; 2], known: &Mutex<KnownOffsets>) -> ClockOffsets {
    let now = process_time();
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    if known.read_at.is_some_and(|at| now.saturating_duration_since(at) < KEPT) {
        return known.offsets;
    }

    let text = paths.iter().find_map(|path| std::fs::read_to_string(path).ok());
    let told = parse(&text.unwrap_or_default()).unwrap_or_else(|problem| panic!("{TEST_CLOCK}: {problem}"));
    known.offsets = ClockOffsets {
        wall_ms: told.wall_ms,
        boot: told.boot.max(known.offsets.boot),
        stood: told.stood.max(known.offsets.stood),
    };

    known.read_at = Some(now);
    known.offsets
}

/// Parses `wall=+86400s boot=+500ms stood=5s`. A clock that is not named has the offset zero.
fn parse(text: &str) -> Result<ClockOffsets, String> {
    let mut offsets = ClockOffsets::default();
    for word in text.split_whitespace() {
        let (name, value) = word
            .split_once('=')
            .ok_or_else(|| format!("`{word}`: expected wall=… or boot=…"))?;
        let millis =
            parse_millis(value).ok_or_else(|| format!("`{word}`: expected a time such as +86400s or -500ms"))?;
        match name {
            "wall" => offsets.wall_ms = millis,
            "boot" => {
                let ahead = u64::try_from(millis).map_err(|_| format!("`{word}`: boot time never goes back"))?;
                offsets.boot = Duration::from_millis(ahead);
            }
            "stood" => {
                let stood =
                    u64::try_from(millis).map_err(|_| format!("`{word}`: expected a time that is not negative"))?;
                offsets.stood = Duration::from_millis(stood);
            }
            _ => return Err(format!("`{word}`: expected wall=…, boot=… or stood=…")),
        }
    }

    Ok(offsets)
}

fn parse_millis(text: &str) -> Option<i64> {
    match text.strip_suffix("ms") {
        Some(millis) => millis.parse().ok(),
        None => text.strip_suffix('s')?.parse::<i64>().ok()?.checked_mul(1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_in_seconds_and_milliseconds() {
        let day = ClockOffsets {
            wall_ms: 86_400_000,
            boot: Duration::from_secs(86_400),
            stood: Duration::ZERO,
        };
        assert_eq!(parse("wall=+86400s boot=86400s\n"), Ok(day));

        let back = ClockOffsets {
            wall_ms: -1_500,
            ..ClockOffsets::default()
        };
        assert_eq!(parse("wall=-1500ms"), Ok(back));

        let paused = ClockOffsets {
            wall_ms: -1_500,
            stood: Duration::from_millis(1_500),
            ..ClockOffsets::default()
        };
        assert_eq!(parse("wall=-1500ms stood=1500ms"), Ok(paused));
        assert_eq!(parse(""), Ok(ClockOffsets::default()));

        for wrong in ["wall", "wall=1", "boot=-1s", "moon=+1s", "wall=1h"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_file_is_read_again_and_a_replica_s_own_goes_first() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("clock");
        let OffsetSource::Files(paths, known) = OffsetSource::from_value(path.to_str().expect("text"), "broker-0")
        else {
            panic!("a path is a file");
        };

        let fresh = || {
            known.lock().expect("not poisoned").read_at = None;
            read(&paths, &known)
        };
        assert_eq!(fresh(), ClockOffsets::default(), "no file yet");

        std::fs::write(&path, "wall=+60s boot=+60s").expect("written");
        assert_eq!(fresh().wall_ms, 60_000);

        std::fs::write(directory.path().join("clock.broker-0"), "wall=-5s boot=+10s").expect("written");
        let own = fresh();
        assert_eq!(own.wall_ms, -5_000);
        assert_eq!(own.boot, Duration::from_secs(60), "it does not go back");
    }
}
