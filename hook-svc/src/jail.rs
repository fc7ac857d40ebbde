//! Implementation of `nexus-jail` on Linux.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset,
    RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetStatus, Scope,
};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

#[path = "jail/calls.rs"]
mod calls;

/// Exit code of a jail that does not run its program.
const REFUSED: u8 = 97;

/// Landlock version that the rules are written for: files, truncation, device control, TCP, signals and abstract
/// sockets.
const LANDLOCK_ABI: ABI = ABI::V6;

/// Oldest Landlock version that confines hooks: which files may be read, written and executed. The filter of system calls
/// denies whatever later versions add: links and renames between folders, truncation (also by opening a file), device
/// control, TCP, signals and abstract sockets.
const OLDEST_LANDLOCK_ABI: ABI = ABI::V1;

/// First descriptor after the three pipes that every program has.
const FIRST_DESCRIPTOR: i32 = 3;

const MIB: u64 = 1024 * 1024;

/// Runs the program in the jail that `arguments` describe; returns only if that fails.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let Some(end) = arguments.iter().position(|argument| argument == "--") else {
        return refuse_start("expected `--` and a program");
    };
    let (options, program) = (&arguments[..end], &arguments[end + 1..]);
    let Some((path, rest)) = program.split_first() else {
        return refuse_start("expected a program after `--`");
    };

    let options: Vec<(&str, &str)> = options.iter().filter_map(|option| option.split_once('=')).collect();
    // Another user may not enter the group.
    if let Err(error) = join_group(&options) {
        return refuse_start(&error);
    }

    // The user is changed first, by a second start of this program: the later steps would forbid it.
    if let Some(user) = values(&options, "user").next() {
        return refuse_start(&become_user(user, arguments));
    }

    // A hook that loops does not notice that its answers are no longer read.
    if let Err(error) = die_with_parent(&options) {
        return refuse_start(&error);
    }

    if let Err(error) = keep_descriptors(&options) {
        return refuse_start(&error);
    }

    // In strict mode a restriction that the kernel lacks ends the start; else it is reported and left out.
    let is_strict = values(&options, "strict").any(|value| value == "1");
    let files = confine_files(&options);
    if values(&options, "report").any(|value| value == "1") && files == Ok(RulesetStatus::PartiallyEnforced) {
        eprintln!("older: Landlock");
    }
    for (name, confined) in [
        ("resource limits", set_limits(&options)),
        ("Landlock", files.map(|_| ())),
        ("seccomp", confine_calls(&options)),
    ] {
        if let Err(error) = confined {
            if is_strict {
                return refuse_start(&format!("{name}: {error}"));
            }
            eprintln!("missing: {name}: {error}");
        }
    }

    // The environment may hold secrets: only the named variables are passed on.
    let mut command = Command::new(path);
    command.args(rest).env_clear();
    command.envs(values(&options, "env").filter_map(|pair| pair.split_once(':')));

    refuse_start(&format!("{path} does not run: {}", command.exec()))
}

fn refuse_start(why: &str) -> ExitCode {
    eprintln!("nexus-jail: {why}");
    ExitCode::from(REFUSED)
}

fn values<'a>(options: &'a [(&'a str, &'a str)], key: &'a str) -> impl Iterator<Item = &'a str> {
    options
        .iter()
        .filter(move |(name, _)| *name == key)
        .map(|(_, value)| *value)
}

/// Runs this jail again as `user`, a user id and a group id, without further groups. Returns only if that fails, with
/// the reason. This must come first: the later steps forbid it, and the kernel clears the parent-death signal when the
/// user changes.
fn become_user(user: &str, arguments: &[String]) -> String {
    let numbers = user.split_once(':');
    let numbers = numbers.and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    let Some((uid, gid)) = numbers else {
        return format!("user={user}: expected two numbers");
    };

    let jail = match std::env::current_exe() {
        Ok(jail) => jail,
        Err(error) => return format!("user={user}: {error}"),
    };
    let options = arguments
        .iter()
        .position(|argument| argument == "--")
        .unwrap_or_default();

    let (options, program) = arguments.split_at(options);
    // Without the options that are done, or the new run would change its user again.
    let is_done = |option: &str| option.starts_with("user=") || option.starts_with("group=");
    let options = options.iter().filter(|option| !is_done(option));
    let mut command = Command::new(jail);
    command.args(options.chain(program)).env_clear().gid(gid).uid(uid);
    format!("user={user}: {}", command.exec())
}

/// Enters the control group whose folder is named: the program's use from now on counts there.
fn join_group(options: &[(&str, &str)]) -> Result<(), String> {
    for group in values(options, "group") {
        let members = Path::new(group).join("cgroup.procs");
        let opened = std::fs::OpenOptions::new().write(true).open(members);
        let joined = opened.and_then(|mut file| file.write_all(b"0"));
        joined.map_err(|error| format!("group={group}: {error}"))?;
    }
    Ok(())
}

/// Makes the kernel end this process, and any program that it executes, with the thread that started it: a hook that
/// loops does not notice that its answers are no longer read.
fn die_with_parent(options: &[(&str, &str)]) -> Result<(), String> {
    let Some(wanted) = values(options, "parent").next() else {
        return Ok(());
    };
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| format!("parent={wanted}: {error}"))?;

    // The parent may have died before the signal was set.
    let parent = getppid().map(|parent| parent.as_raw_nonzero().to_string());
    if parent.as_deref() == Some(wanted) {
        Ok(())
    } else {
        Err(format!("parent={wanted}: the process does not exist"))
    }
}

/// Lets the program inherit its three pipes and the named descriptors, and no other: the later rules do not apply to
/// descriptors that are already open.
fn keep_descriptors(options: &[(&str, &str)]) -> Result<(), String> {
    let number = |value: &str| value.parse().map_err(|_| format!("keep={value}: expected a number"));
    let kept: Result<Vec<i32>, String> = values(options, "keep").map(number).collect();
    close_fds::set_fds_cloexec(FIRST_DESCRIPTOR, &kept?);

    Ok(())
}

fn set_limits(options: &[(&str, &str)]) -> Result<(), String> {
    use rlimit::Resource;

    let set = |resource: Resource, most: u64| {
        resource
            .set(most, most)
            .map_err(|error| format!("{}: {error}", resource.as_name()))
    };

    for (key, resource, unit) in [
        ("data_mb", Resource::DATA, MIB),
        ("file_mb", Resource::FSIZE, MIB),
        ("files", Resource::NOFILE, 1),
        ("cpu_s", Resource::CPU, 1),
    ] {
        // Set for good: the program cannot raise them again.
        for value in values(options, key) {
            let number: u64 = value.parse().map_err(|_| format!("{key}={value}: expected a number"))?;
            set(resource, number.saturating_mul(unit))?;
        }
    }

    // A core file would contain the data that the hook has seen.
    set(Resource::CORE, 0)
}

/// Denies all files and directories but the named ones, and as much of the rest of [`LANDLOCK_ABI`] as the kernel has.
/// Fails without [`OLDEST_LANDLOCK_ABI`].
fn confine_files(options: &[(&str, &str)]) -> Result<RulesetStatus, String> {
    let text = |error: landlock::RulesetError| error.to_string();
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(OLDEST_LANDLOCK_ABI))
        .map_err(|error| format!("the kernel does not have it: {error}"))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK_ABI))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(LANDLOCK_ABI)))
        .and_then(|rules| rules.scope(Scope::from_all(LANDLOCK_ABI)))
        .and_then(Ruleset::create)
        .map_err(text)?;

    // Everything that is not listed is denied, including the network.
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    for (key, access) in [
        ("ro", read),
        ("rx", read | AccessFs::Execute),
        ("wf", AccessFs::ReadFile | AccessFs::WriteFile),
    ] {
        for path in values(options, key) {
            rules = allow_path(rules, Path::new(path), access)?;
        }
    }

    match rules.restrict_self().map_err(text)?.ruleset {
        status @ (RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced) => Ok(status),
        RulesetStatus::NotEnforced => Err("the kernel does not have it".to_owned()),
    }
}

/// Adds a rule for `path`. A path that does not exist is skipped, since it cannot be opened.
fn allow_path(rules: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Result<RulesetCreated, String> {
    let Ok(metadata) = std::fs::metadata(path) else {
        return Ok(rules);
    };

    let fd = PathFd::new(path).map_err(|error| error.to_string())?;
    let access = if metadata.is_dir() {
        access
    } else {
        access & AccessFs::from_file(LANDLOCK_ABI)
    };

    rules
        .add_rule(PathBeneath::new(fd, access))
        .map_err(|error| format!("{}: {error}", path.display()))
}

fn confine_calls(options: &[(&str, &str)]) -> Result<(), String> {
    let refusal = match values(options, "errno").next() {
        Some(number) => number
            .parse()
            .map_err(|_| format!("errno={number}: expected a number"))?,
        None => libc::EPERM,
    };

    let text = |error: seccompiler::BackendError| error.to_string();
    let arch: TargetArch = std::env::consts::ARCH.try_into().map_err(text)?;
    let filter = |rules: BTreeMap<i64, Vec<SeccompRule>>, otherwise, on_match| -> Result<BpfProgram, String> {
        SeccompFilter::new(rules, otherwise, on_match, arch)
            .and_then(TryInto::try_into)
            .map_err(text)
    };

    let errno = |code: i32| SeccompAction::Errno(code.unsigned_abs());

    // With "no such call" the C library and Bun fall back to calls that are checked here. The second filter must be
    // installed under the first one, and then forbids that call too.
    let known = calls::allowed_calls().into_iter().chain([libc::SYS_seccomp]);
    let known = known.map(|call| (call, Vec::new())).collect();
    let unknown = filter(known, errno(libc::ENOSYS), SeccompAction::Allow)?;
    let deny = filter(denied_calls().map_err(text)?, SeccompAction::Allow, errno(refusal))?;

    // If two filters refuse a call, the kernel uses the refusal of the one installed last.
    seccompiler::apply_filter(&unknown).map_err(|error| error.to_string())?;
    seccompiler::apply_filter(&deny).map_err(|error| error.to_string())
}

/// Returns the calls that fail as forbidden: calls that reach outside the process, and allowed calls with dangerous
/// arguments.
fn denied_calls() -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    let mut denied: BTreeMap<i64, Vec<SeccompRule>> = calls::forbidden_calls()
        .into_iter()
        .map(|call| (call, Vec::new()))
        .collect();
    let rule = |argument, length, comparison, value| {
        SeccompCondition::new(argument, length, comparison, value)
            .and_then(|condition| SeccompRule::new(vec![condition]))
    };

    // Threads may be created, processes may not; signals may go to this process's own threads only.
    let no_thread = SeccompCmpOp::MaskedEq(libc::CLONE_THREAD.unsigned_abs().into());
    denied.insert(libc::SYS_clone, vec![rule(0, SeccompCmpArgLen::Qword, no_thread, 0)?]);
    let own = u64::from(std::process::id());
    denied.insert(
        libc::SYS_tgkill,
        vec![rule(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, own)?],
    );

    // Landlock before its third version lets a file that may be read be emptied.
    for (call, argument) in calls::OPENS {
        let truncates = SeccompCmpOp::MaskedEq(libc::O_TRUNC.unsigned_abs().into());
        let flag = libc::O_TRUNC.unsigned_abs().into();
        denied.insert(*call, vec![rule(*argument, SeccompCmpArgLen::Dword, truncates, flag)?]);
    }

    // Limits may be read but not set.
    denied.insert(
        libc::SYS_prlimit64,
        vec![rule(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?],
    );

    for (call, argument, commands) in calls::COMMANDS {
        let others = commands.iter().map(|command| {
            SeccompCondition::new(
                *argument,
                SeccompCmpArgLen::Dword,
                SeccompCmpOp::Ne,
                u64::from(*command),
            )
        });

        let others: Result<Vec<SeccompCondition>, _> = others.collect();
        denied.insert(*call, vec![SeccompRule::new(others?)?]);
    }

    Ok(denied)
}
