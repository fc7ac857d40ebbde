//! A kernel with an older Landlock, for the programs that a thread starts: whoever asks for the version is answered by the
//! test, and then asks only for what that version has. The kernel enforces no more than it is asked for.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

/// Flag of `landlock_create_ruleset` by which the version is asked for (`linux/landlock.h`).
const ASKS_VERSION: u32 = 1;

/// Requests of a filter's listener (`linux/seccomp.h`).
const RECEIVE: libc::c_ulong = 0xC050_2100;
const ANSWER: libc::c_ulong = 0xC018_2101;

/// Longest wait of the supervisor before it looks whether the programs have ended, in milliseconds.
const LOOK_EVERY: libc::c_int = 100;

/// Returns the version of Landlock that this kernel has, 0 without.
pub(crate) fn landlock_version() -> i64 {
    let (call, flags) = (libc::SYS_landlock_create_ruleset, ASKS_VERSION);
    #[expect(unsafe_code, reason = "a call that reads nothing of ours")]
    // SAFETY: with this flag the kernel takes no pointer.
    let version = unsafe { libc::syscall(call, std::ptr::null::<u8>(), 0_usize, flags) };
    version.max(0)
}

/// Runs `command` where Landlock says that it has `version`.
pub(crate) fn run_on(version: i64, mut command: Command) -> Output {
    let (tell, told) = mpsc::channel();
    let running = std::thread::spawn(move || {
        // What a thread is answered, the processes that it starts are answered too; other threads are not.
        tell.send(ask_listener_for_versions()).expect("told");
        command.output().expect("it runs")
    });

    let listener = told.recv().expect("a listener");
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let answering = std::thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            answer_one(&listener, version);
        }
    });

    let output = running.join().expect("it ends");
    is_over.store(true, Ordering::Relaxed);
    answering.join().expect("it answers");
    output
}

/// Has this thread and all that it starts ask the returned listener for the version of Landlock.
fn ask_listener_for_versions() -> OwnedFd {
    let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    let answer = |action| statement(libc::BPF_RET | libc::BPF_K, action);
    let call = u32::try_from(libc::SYS_landlock_create_ruleset).expect("a number");
    // Of `struct seccomp_data` the call is at 0, and the lower half of its third argument at 32.
    let mut program = [
        load(0),
        goes_on_if(call),
        load(32),
        goes_on_if(ASKS_VERSION),
        answer(libc::SECCOMP_RET_USER_NOTIF),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    // Both jumps lead to the last line.
    program[1].jf = 3;
    program[3].jf = 1;

    let filter = libc::sock_fprog {
        len: 6,
        filter: program.as_mut_ptr(),
    };
    #[expect(unsafe_code, reason = "no library of filters knows listeners")]
    // SAFETY: the program outlives the call, which copies it; the descriptor is new and nobody else's.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let listens = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        let made = libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            listens,
            &raw const filter,
        );
        assert!(made >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(i32::try_from(made).expect("a descriptor"))
    }
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    let code = u16::try_from(code).expect("a short code");
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

fn goes_on_if(loaded: u32) -> libc::sock_filter {
    statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, loaded)
}

/// Answers `version` to one question, if there is one within a moment.
fn answer_one(listener: &OwnedFd, version: i64) {
    let mut ready = libc::pollfd {
        fd: listener.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    #[expect(unsafe_code, reason = "no library of filters knows listeners")]
    // SAFETY: both values are whole, of the kernel's layout, and outlive the calls; zeroes are valid in them.
    unsafe {
        if libc::poll(&raw mut ready, 1, LOOK_EVERY) < 1 || ready.revents & libc::POLLIN == 0 {
            return;
        }
        let mut asked: libc::seccomp_notif = std::mem::zeroed();
        if libc::ioctl(listener.as_raw_fd(), RECEIVE, &raw mut asked) != 0 {
            return;
        }
        let mut answer: libc::seccomp_notif_resp = std::mem::zeroed();
        answer.id = asked.id;
        answer.val = version;
        libc::ioctl(listener.as_raw_fd(), ANSWER, &raw mut answer);
    }
}
