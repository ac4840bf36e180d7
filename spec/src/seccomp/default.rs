//! The default profile: what containerd and Docker let a container call.
//!
//! An allow-list; whatever is not on it fails with EPERM. The facts (names,
//! conditions) are those of moby/profiles and containerd's contrib/seccomp as
//! of August 2026. One profile per set of capabilities, architecture and
//! kernel: conditions are decided here, so that an OCI runtime sees none.
//!
//! A call whose argument decides has other doors: bits that the kernel ignores, the calls of another architecture, a
//! multiplexer such as socketcall, a queue such as io_uring. The test module `hostile_doors` tries each.

use std::collections::BTreeSet;

use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder, LinuxSeccompBuilder,
    LinuxSeccompOperator, LinuxSyscall, LinuxSyscallBuilder,
};

use super::{Abis, sub_architectures};
use crate::capability::Capability;

/// Counts up with every change of the profile: see [`default_profile_name`].
const VERSION: u32 = 2;

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// Allowed to everyone, on every architecture. libseccomp skips the names that
/// an architecture does not have.
const EVERYONE: &str = "\
    _llseek _newselect accept accept4 access adjtimex alarm bind brk cachestat capget capset \
    chdir chmod chown chown32 clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 \
    clock_gettime clock_gettime64 clock_nanosleep clock_nanosleep_time64 close close_range \
    connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl \
    epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 execve \
    execveat exit exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate \
    fanotify_mark fchdir fchmod fchmodat fchmodat2 fchown fchown32 fchownat fcntl fcntl64 \
    fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstat64 fstatat64 \
    fstatfs fstatfs64 fsync ftruncate ftruncate64 futex futex_requeue futex_time64 \
    futex_wait futex_waitv futex_wake futimesat get_robust_list get_thread_area getcpu \
    getcwd getdents getdents64 getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups \
    getgroups32 getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom \
    getresgid getresgid32 getresuid getresuid32 getrlimit getrusage getsid getsockname \
    getsockopt gettid gettimeofday getuid getuid32 getxattr getxattrat inotify_add_watch \
    inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents \
    io_pgetevents io_pgetevents_time64 io_setup io_submit ioctl ioprio_get ioprio_set ipc \
    kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lchown32 \
    lgetxattr link linkat listen listmount listxattr listxattrat llistxattr lremovexattr \
    lseek lsetxattr lstat lstat64 madvise map_shadow_stack membarrier memfd_create \
    memfd_secret mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap mmap2 \
    mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64 \
    mq_timedsend mq_timedsend_time64 mq_unlink mremap mseal msgctl msgget msgrcv msgsnd \
    msync munlock munlockall munmap name_to_handle_at nanosleep newfstatat open openat \
    openat2 pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect \
    poll ppoll ppoll_time64 prctl pread64 preadv preadv2 prlimit64 process_mrelease pselect6 \
    pselect6_time64 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv recv \
    recvfrom recvmmsg recvmmsg_time64 recvmsg remap_file_pages removexattr removexattrat \
    rename renameat renameat2 restart_syscall riscv_hwprobe rmdir rseq rt_sigaction \
    rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait \
    rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min \
    sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval \
    sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam \
    sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop \
    semtimedop_time64 send sendfile sendfile64 sendmmsg sendmsg sendto set_robust_list \
    set_thread_area set_tid_address setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 \
    setgroups setgroups32 setitimer setpgid setpriority setregid setregid32 setresgid \
    setresgid32 setresuid setresuid32 setreuid setreuid32 setrlimit setsid setsockopt setuid \
    setuid32 setxattr setxattrat shmat shmctl shmdt shmget shutdown sigaltstack signalfd \
    signalfd4 sigprocmask sigreturn splice stat stat64 statfs statfs64 \
    statmount statx symlink symlinkat sync sync_file_range syncfs sysinfo tee tgkill time \
    timer_create timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime \
    timer_settime64 timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime \
    timerfd_settime64 times tkill truncate truncate64 ugetrlimit umask uname unlink unlinkat \
    uretprobe utime utimensat utimensat_time64 utimes vfork vmsplice wait4 waitid waitpid \
    write writev";

/// The Linux from which on a tracer cannot change a call behind the filter's back.
const SAFE_TRACING: (u32, u32) = (4, 8);

/// Calls that are safe from that version on.
const SINCE_4_8: &str = "process_vm_readv process_vm_writev ptrace";

/// Allowed with a capability that lets the kernel refuse the rest by itself.
const WITH_CAPABILITY: [(&str, &str); 14] = [
    ("DAC_READ_SEARCH", "open_by_handle_at"),
    (
        "SYS_ADMIN",
        "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie \
         lsm_get_self_attr lsm_list_modules lsm_set_self_attr mount mount_setattr move_mount \
         open_tree perf_event_open quotactl quotactl_fd setdomainname sethostname setns syslog \
         umount umount2 unshare",
    ),
    ("SYS_BOOT", "reboot"),
    ("SYS_CHROOT", "chroot"),
    ("SYS_MODULE", "delete_module init_module finit_module"),
    ("SYS_PACCT", "acct"),
    ("SYS_PTRACE", "kcmp pidfd_getfd process_madvise process_vm_readv process_vm_writev ptrace"),
    ("SYS_RAWIO", "iopl ioperm"),
    ("SYS_TIME", "settimeofday stime clock_settime clock_settime64"),
    ("SYS_TTY_CONFIG", "vhangup"),
    ("SYS_NICE", "get_mempolicy mbind set_mempolicy set_mempolicy_home_node"),
    ("SYSLOG", "syslog"),
    ("BPF", "bpf"),
    ("PERFMON", "perf_event_open"),
];

/// The values of personality(2) that change nothing dangerous: PER_LINUX,
/// PER_LINUX32, each with UNAME26, and the query.
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// The socket families of the kernel, in blocks by their first member and their size. Two are left out, as they are in no
/// namespace: AF_ALG (38), the kernel's crypto, and AF_VSOCK (40), the hypervisor's link.
///
/// A block is compared with its common bits among the lower 32, since the kernel ignores the upper ones: a comparison of
/// all 64 takes 2³² + 38 for another family. Blocks and not "neither", because runc joins conditions on one argument by "or".
const FAMILIES: [(u64, u64); 8] = [(0, 32), (32, 4), (36, 2), (39, 1), (41, 1), (42, 2), (44, 4), (48, 16)];

/// The bits of an argument that is an `int`.
const INT: u64 = 0xffff_ffff;

/// CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
const NEW_NAMESPACES: u64 =
    0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000;

/// The default profile for a task with these capabilities (its bounding set),
/// on this architecture and kernel (6.12 is `(6, 12)`).
pub fn default_profile(
    capabilities: &BTreeSet<Capability>,
    arch: Arch,
    kernel: (u32, u32),
    abis: Abis,
) -> LinuxSeccomp {
    let has = |name: &str| capabilities.iter().any(|c| c.name() == name);
    let mut rules = vec![allow(EVERYONE, None)];
    if kernel >= SAFE_TRACING {
        rules.push(allow(SINCE_4_8, None));
    }
    for (first, size) in FAMILIES {
        let of_block = argument(0, LinuxSeccompOperator::ScmpCmpMaskedEq, INT & !(size - 1), Some(first));
        rules.push(allow("socket socketpair", Some(of_block)));
    }
    // The family is behind a pointer, where no filter sees it. 32-bit programs of glibc and Go have no other way to a
    // socket; on s390x and ppc64le all programs can call it.
    if abis == Abis::All {
        rules.push(allow("socketcall", None));
    }
    for personality in PERSONALITIES {
        let equal = argument(0, LinuxSeccompOperator::ScmpCmpEq, personality, None);
        rules.push(allow("personality", Some(equal)));
    }
    rules.extend(for_architecture(arch).map(|names| allow(names, None)));
    let granted = WITH_CAPABILITY.iter().filter(|(capability, _)| has(capability));
    rules.extend(granted.map(|(_, names)| allow(names, None)));
    if !has("SYS_ADMIN") {
        // s390 has the flags second.
        let flags = usize::from(matches!(arch, Arch::ScmpArchS390 | Arch::ScmpArchS390x));
        let masked = LinuxSeccompOperator::ScmpCmpMaskedEq;
        let none_new = argument(flags, masked, NEW_NAMESPACES, Some(0));
        rules.push(allow("clone", Some(none_new)));
        // A filter cannot see clone3's flags, they are behind a pointer: "no
        // such call" makes libc fall back to clone.
        rules.push(rule("clone3", LinuxSeccompAction::ScmpActErrno, Some(ENOSYS), None));
    }
    let mut architectures = vec![arch];
    architectures.extend(sub_architectures(arch).into_iter().filter(|_| abis == Abis::All));
    LinuxSeccompBuilder::default()
        .default_action(LinuxSeccompAction::ScmpActErrno)
        .default_errno_ret(EPERM)
        .architectures(architectures)
        .syscalls(rules)
        .build()
        .expect("every required field is set")
}

/// What tells [`default_profile`] of these from all others, of other versions
/// too, without making it.
pub fn default_profile_name(capabilities: &BTreeSet<Capability>, arch: Arch, kernel: (u32, u32), abis: Abis) -> String {
    let mut name = format!("default {VERSION} {arch}");
    if abis == Abis::Native {
        name += " native";
    }
    if kernel >= SAFE_TRACING {
        name += " 4.8";
    }
    let names = capabilities.iter().map(|capability| capability.name());
    for opens in names.filter(|name| WITH_CAPABILITY.iter().any(|(capability, _)| capability == name)) {
        name += " ";
        name += opens;
    }
    name
}

/// What only some architectures have, or only there is harmless.
fn for_architecture(arch: Arch) -> Option<&'static str> {
    match arch {
        Arch::ScmpArchX86_64 | Arch::ScmpArchX32 => Some("arch_prctl modify_ldt"),
        Arch::ScmpArchX86 => Some("modify_ldt"),
        Arch::ScmpArchAarch64 | Arch::ScmpArchArm => {
            Some("arm_fadvise64_64 arm_sync_file_range sync_file_range2 breakpoint cacheflush set_tls")
        }
        Arch::ScmpArchPpc64le => Some("sync_file_range2 swapcontext"),
        Arch::ScmpArchS390 | Arch::ScmpArchS390x => Some("s390_pci_mmio_read s390_pci_mmio_write s390_runtime_instr"),
        Arch::ScmpArchRiscv64 => Some("riscv_flush_icache"),
        _ => None,
    }
}

fn allow(names: &str, condition: Option<LinuxSeccompArg>) -> LinuxSyscall {
    rule(names, LinuxSeccompAction::ScmpActAllow, None, condition)
}

fn rule(
    names: &str,
    action: LinuxSeccompAction,
    errno: Option<u32>,
    condition: Option<LinuxSeccompArg>,
) -> LinuxSyscall {
    let names: Vec<String> = names.split_whitespace().map(String::from).collect();
    let mut rule =
        LinuxSyscallBuilder::default().names(names).action(action).build().expect("every required field is set");
    rule.set_errno_ret(errno);
    rule.set_args(condition.map(|condition| vec![condition]));
    rule
}

fn argument(index: usize, operator: LinuxSeccompOperator, value: u64, value_two: Option<u64>) -> LinuxSeccompArg {
    let argument = LinuxSeccompArgBuilder::default().index(index).value(value).op(operator);
    let argument = match value_two {
        Some(value_two) => argument.value_two(value_two),
        None => argument,
    };
    argument.build().expect("every required field is set")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::capability::default_set;

    const X86: Arch = Arch::ScmpArchX86_64;
    const NOW: (u32, u32) = (6, 12);

    fn with(capability: &str) -> BTreeSet<Capability> {
        let mut set = default_set();
        set.insert(capability.parse().unwrap());
        set
    }

    fn rules_for(profile: &LinuxSeccomp, name: &str) -> Vec<LinuxSyscall> {
        let rules = profile.syscalls().as_ref().unwrap().iter();
        let named = rules.filter(|rule| rule.names().iter().any(|n| n == name));
        named.cloned().collect()
    }

    #[test]
    fn everything_else_is_eperm_on_every_architecture_the_kernel_runs() {
        let profile = default_profile(&default_set(), X86, NOW, Abis::All);
        assert_eq!(profile.default_action(), LinuxSeccompAction::ScmpActErrno);
        assert_eq!(profile.default_errno_ret(), Some(1));
        let expected = vec![X86, Arch::ScmpArchX86, Arch::ScmpArchX32];
        assert_eq!(profile.architectures(), &Some(expected));
        let arm = default_profile(&default_set(), Arch::ScmpArchAarch64, NOW, Abis::All);
        let expected = vec![Arch::ScmpArchAarch64, Arch::ScmpArchArm];
        assert_eq!(arm.architectures(), &Some(expected));
    }

    #[test]
    fn the_native_one_has_one_architecture_and_no_socketcall() {
        for arch in [X86, Arch::ScmpArchAarch64, Arch::ScmpArchS390x] {
            let native = default_profile(&default_set(), arch, NOW, Abis::Native);
            assert_eq!(native.architectures(), &Some(vec![arch]));
            assert!(rules_for(&native, "socketcall").is_empty());
            assert!(!rules_for(&default_profile(&default_set(), arch, NOW, Abis::All), "socketcall").is_empty());
        }
    }

    #[test]
    fn all_families_but_two_are_in_one_block_each() {
        let profile = default_profile(&default_set(), X86, NOW, Abis::All);
        for call in ["socket", "socketpair"] {
            let rules = rules_for(&profile, call);
            let allowed = |family: u64| {
                let fits = |rule: &&LinuxSyscall| {
                    let condition = rule.args().as_ref().unwrap()[0];
                    family & condition.value() == condition.value_two().unwrap()
                };
                rules.iter().filter(fits).count()
            };
            for family in 0..64 {
                let expected = usize::from(!matches!(family, 38 | 40));
                // The kernel ignores the upper half.
                for upper in [0, 1 << 32, 1 << 63] {
                    assert_eq!(allowed(upper | family), expected, "{call} {family} {upper:#x}");
                }
            }
        }
    }

    /// A multiplexer that is allowed must not lead to a call that is not, or only with some arguments.
    #[test]
    fn multiplexers_lead_only_to_what_is_allowed_by_itself() {
        let ipc = "semop semget semctl semtimedop msgsnd msgrcv msgget msgctl shmat shmdt shmget shmctl";
        let sockets = "bind connect listen accept accept4 getsockname getpeername send sendto sendmsg sendmmsg recv \
                       recvfrom recvmsg recvmmsg shutdown setsockopt getsockopt";
        let profile = default_profile(&BTreeSet::new(), Arch::ScmpArchX86, NOW, Abis::All);
        for name in ipc.split_whitespace().chain(sockets.split_whitespace()) {
            let rules = rules_for(&profile, name);
            assert!(rules.iter().any(|rule| rule.args().is_none()), "{name}");
        }
        assert!(rules_for(&profile, "syscall").is_empty());
    }

    #[test]
    fn no_name_is_listed_twice_for_everyone() {
        let names: Vec<&str> = EVERYONE.split_whitespace().collect();
        let unique: BTreeSet<&&str> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        for name in ["keyctl", "add_key", "io_uring_setup", "userfaultfd", "mount", "kexec_load"] {
            assert!(!names.contains(&name), "{name}");
        }
    }

    #[test]
    fn new_namespaces_need_sys_admin() {
        let without = default_profile(&default_set(), X86, NOW, Abis::All);
        let clone = rules_for(&without, "clone");
        let condition = clone[0].args().as_ref().unwrap()[0];
        assert_eq!((condition.index(), condition.value()), (0, 0x7e02_0000));
        assert_eq!(condition.value_two(), Some(0));
        let clone3 = rules_for(&without, "clone3");
        assert_eq!(clone3[0].errno_ret(), Some(ENOSYS));
        assert!(rules_for(&without, "unshare").is_empty());
        assert!(rules_for(&without, "mount").is_empty());

        let admin = default_profile(&with("SYS_ADMIN"), X86, NOW, Abis::All);
        for name in ["clone", "clone3", "unshare", "mount"] {
            let rules = rules_for(&admin, name);
            assert_eq!(rules.len(), 1, "{name}");
            assert_eq!(rules[0].action(), LinuxSeccompAction::ScmpActAllow);
            assert!(rules[0].args().is_none());
        }
    }

    #[test]
    fn capabilities_open_their_calls() {
        for (capability, names) in WITH_CAPABILITY {
            let profile = default_profile(&with(capability), X86, NOW, Abis::All);
            for name in names.split_whitespace() {
                assert!(!rules_for(&profile, name).is_empty(), "{capability} {name}");
            }
        }
    }

    /// Profiles of this version that differ, of every capability and kernel
    /// that matters and some that do not.
    fn all() -> Vec<(String, String)> {
        let mut sets = vec![BTreeSet::new(), default_set(), Capability::all()];
        sets.extend(Capability::all().into_iter().map(|capability| [capability].into()));
        let arches = [X86, Arch::ScmpArchAarch64, Arch::ScmpArchRiscv64, Arch::ScmpArchS390x];
        let mut all = Vec::new();
        for (capabilities, arch) in sets.iter().flat_map(|set| arches.map(|arch| (set, arch))) {
            for (kernel, abis) in [((4, 7), Abis::All), ((4, 8), Abis::All), (NOW, Abis::All), (NOW, Abis::Native)] {
                let profile = default_profile(capabilities, arch, kernel, abis);
                let name = default_profile_name(capabilities, arch, kernel, abis);
                all.push((name, serde_json::to_string(&profile).unwrap()));
            }
        }
        all
    }

    #[test]
    fn profiles_that_differ_have_names_that_differ() {
        let mut named = std::collections::BTreeMap::new();
        for (name, profile) in all() {
            let first = named.entry(name.clone()).or_insert_with(|| profile.clone());
            assert_eq!(*first, profile, "{name}");
        }
        // What a capability does not change needs no filter of its own.
        let chown = default_profile_name(&with("CHOWN"), X86, NOW, Abis::All);
        assert_eq!(chown, default_profile_name(&default_set(), X86, NOW, Abis::All));
    }

    /// Filters are kept by the profile's name: one that has changed under the
    /// name of the last version would not be used.
    #[test]
    fn a_changed_profile_has_a_new_version() {
        // FNV-1a, 64 bits.
        let bytes = all().into_iter().flat_map(|(_, profile)| profile.into_bytes());
        let digest = bytes
            .fold(0xcbf2_9ce4_8422_2325, |digest: u64, byte| (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        let told = "count VERSION up, then write it and the digest here";
        assert_eq!((VERSION, format!("{digest:016x}").as_str()), (2, "096f4a2e6a9e9c87"), "{told}");
    }

    #[test]
    fn kernels_before_4_8_do_not_let_ptrace_through() {
        let old = default_profile(&default_set(), X86, (4, 7), Abis::All);
        assert!(rules_for(&old, "ptrace").is_empty());
        assert!(!rules_for(&default_profile(&default_set(), X86, (4, 8), Abis::All), "ptrace").is_empty());
    }

    #[test]
    fn each_argument_rule_has_a_single_condition() {
        let profile = default_profile(&default_set(), X86, NOW, Abis::All);
        for rule in profile.syscalls().as_ref().unwrap() {
            assert!(rule.args().as_ref().is_none_or(|args| args.len() == 1));
        }
        assert_eq!(rules_for(&profile, "socket").len(), FAMILIES.len());
        assert_eq!(rules_for(&profile, "personality").len(), 5);
    }
}
