//! System calls that a hook's process may make. *Pure.*
//!
//! The list holds the calls that Bun needs for hooks, recorded with `strace` from the tests of the runner and of the
//! service (`docs/hooks-isolation.md`, "Working on it"; Bun 1.4.5, x86-64), and those that the C library makes instead
//! on another kernel. Any other call does not exist for a hook: "no such call". Calls that are known to reach outside
//! fail as forbidden, so that a script reads the right error.

use libc::c_long;

/// Calls of which only some commands are allowed: the call, the index of the argument that names the command, the
/// commands. They include names for threads and memory, but no file locks: hooks have no database except in memory.
pub(super) const COMMANDS: &[(c_long, u8, &[u32])] = &[
    (libc::SYS_prctl, 0, &[PR_SET_NAME, PR_GET_NAME, PR_SET_VMA]),
    (
        libc::SYS_fcntl,
        1,
        &[F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC],
    ),
    (
        libc::SYS_ioctl,
        1,
        &[TCGETS, TIOCGWINSZ, TIOCGPTN, FIONREAD, FIONBIO, FIOCLEX],
    ),
];

/// Calls that open a file, and the index of the argument with the flags. `openat2` is not allowed.
#[cfg(target_arch = "x86_64")]
pub(super) const OPENS: &[(c_long, u8)] = &[(libc::SYS_open, 1), (libc::SYS_openat, 2)];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const OPENS: &[(c_long, u8)] = &[(libc::SYS_openat, 2)];

// Numbers of the kernel (`linux/prctl.h`, `asm-generic/fcntl.h`, `asm-generic/ioctls.h`), the same for both
// architectures.
const PR_SET_NAME: u32 = 15;
const PR_GET_NAME: u32 = 16;
const PR_SET_VMA: u32 = 0x5356_4d41;
const F_DUPFD: u32 = 0;
const F_GETFD: u32 = 1;
const F_SETFD: u32 = 2;
const F_GETFL: u32 = 3;
const F_SETFL: u32 = 4;
const F_DUPFD_CLOEXEC: u32 = 1_030;
const TCGETS: u32 = 0x5401;
const TIOCGWINSZ: u32 = 0x5413;
const TIOCGPTN: u32 = 0x8004_5430;
const FIONREAD: u32 = 0x541b;
const FIONBIO: u32 = 0x5421;
const FIOCLEX: u32 = 0x5451;

/// Returns the allowed calls; some of them only with certain arguments ([`COMMANDS`]).
pub(super) fn allowed_calls() -> Vec<c_long> {
    let mut calls = ALLOWED.to_vec();
    calls.extend(OF_THIS_ARCHITECTURE);
    calls
}

const ALLOWED: &[c_long] = &[
    // Start, exit, and threads.
    libc::SYS_execve,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_clone,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_prctl,
    // Memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_msync,
    // Signals of the process itself.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_restart_syscall,
    // Time.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_times,
    // Files, as far as Landlock allows.
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_readv,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_pwrite64,
    libc::SYS_writev,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_fadvise64,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_umask,
    // Waiting.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    // Identity of the process and its system.
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getgroups,
    libc::SYS_getpgid,
    libc::SYS_getsid,
    libc::SYS_getpriority,
    libc::SYS_getrusage,
    libc::SYS_getrandom,
    libc::SYS_prlimit64,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// Older variants of these calls, which this architecture has kept.
#[cfg(target_arch = "x86_64")]
const OF_THIS_ARCHITECTURE: &[c_long] = &[
    libc::SYS_arch_prctl,
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_getdents,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_pipe,
    libc::SYS_dup2,
    libc::SYS_getrlimit,
    libc::SYS_getpgrp,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OF_THIS_ARCHITECTURE: &[c_long] = &[];

/// Returns the calls that reach outside of the process, change files, or create memory that is not charged to a
/// process.
pub(super) fn forbidden_calls() -> Vec<c_long> {
    let mut calls = FORBIDDEN.to_vec();
    calls.extend(FORBIDDEN_OF_THIS_ARCHITECTURE);
    calls
}

const FORBIDDEN: &[c_long] = &[
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_pidfd_getfd,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_kexec_load,
    libc::SYS_open_by_handle_at,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_fsopen,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_personality,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_setrlimit,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_execveat,
    libc::SYS_mount_setattr,
    libc::SYS_delete_module,
    libc::SYS_clock_settime,
    libc::SYS_settimeofday,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_quotactl,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_memfd_create,
    libc::SYS_memfd_secret,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_shmdt,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semctl,
    libc::SYS_semtimedop,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setaffinity,
    libc::SYS_setpriority,
    libc::SYS_ioprio_set,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mlockall,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_flock,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_mknodat,
    libc::SYS_truncate,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_vmsplice,
    libc::SYS_setsid,
    libc::SYS_setpgid,
    libc::SYS_seccomp,
    libc::SYS_landlock_restrict_self,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_timer_create,
    libc::SYS_setitimer,
];

#[cfg(target_arch = "x86_64")]
const FORBIDDEN_OF_THIS_ARCHITECTURE: &[c_long] = &[
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_ioperm,
    libc::SYS_iopl,
    libc::SYS_fchmodat2,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_mknod,
    libc::SYS_inotify_init,
    libc::SYS_renameat,
    libc::SYS_creat,
    libc::SYS_alarm,
];
#[cfg(not(target_arch = "x86_64"))]
const FORBIDDEN_OF_THIS_ARCHITECTURE: &[c_long] = &[];
