/*
 * The floor of the benchmark: what the kernel needs for a task, and for an
 * exec in one, without any runtime's work.
 *
 *   floor ROOT NAME     ROOT is the root filesystem; NAME a cgroup for our own
 *
 * Reads a word a line and answers each with two numbers, nanoseconds from the
 * word's arrival: until the program had ended, until everything was removed.
 *
 *   launch   cgroups with limits, namespaces, mounts, /bin/true, all removed
 *   hold     a task of that kind that stays: exec's
 *   exec     /bin/true in it
 *
 * It makes the kernel do what bowline's defaults do with a network namespace
 * of the task's own: the same namespaces, filesystems, device nodes, masked
 * and read-only paths, the same v1 device rules and pids limit, by the
 * cheapest calls that there are: mount(2), fixed paths, folders that are open
 * already. It leaves out what makes a runtime: resolving paths safely, giving
 * up rights, a filter, pipes for errors and output, records on disk; and, on
 * cgroup v2, the eBPF program over devices.
 *
 * Ends at the end of its input, and removes what it has made.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <mntent.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 32
#define NAMESPACES (CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)

struct hierarchy {
	int top;    /* where it is mounted */
	int parent; /* our own cgroup, that the tasks' are in */
	int unified, devices, pids, cpuset;
	char cpus[256], mems[256];
};

/* One task's cgroups. */
struct place {
	const char *name;
	int tasks[MOST]; /* v1: the file to join by, -1 in the unified one */
	int unified;     /* its folder there, or -1 */
};

static struct hierarchy all[MOST];
static int count;
static const char *root, *name;
static char *const environment[] = {"PATH=/bin", NULL};
static int held = -1;
static pid_t held_pid;
static struct place held_place;

static void die(const char *what)
{
	fprintf(stderr, "floor: cannot %s: %s\n", what, strerror(errno));
	_exit(1);
}

static void must(long rc, const char *what)
{
	if (rc < 0)
		die(what);
}

static char *print(char *buffer, size_t size, const char *format, ...)
{
	va_list values;
	va_start(values, format);
	vsnprintf(buffer, size, format, values);
	va_end(values);
	return buffer;
}

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void read_file(int dir, const char *file, char *buffer, size_t size)
{
	int fd = openat(dir, file, O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? -1 : read(fd, buffer, size - 1);
	must(length, file);
	buffer[length] = 0;
	close(fd);
}

static int write_file(int dir, const char *file, const char *value)
{
	int fd = openat(dir, file, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	long rc = write(fd, value, strlen(value));
	close(fd);
	return rc < 0 ? -1 : 0;
}

/* On cgroup v2: its children have the controllers. */
static void hand_down(int dir)
{
	static const char *const wanted[] = {"+cpu", "+cpuset", "+io", "+memory", "+pids"};
	for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
		write_file(dir, "cgroup.subtree_control", wanted[i]);
}

static void find_hierarchies(void)
{
	FILE *mounts = setmntent("/proc/self/mounts", "r");
	struct mntent *mount;
	dev_t seen[MOST];
	if (!mounts)
		die("read /proc/self/mounts");
	while ((mount = getmntent(mounts)) && count < MOST) {
		int unified = !strcmp(mount->mnt_type, "cgroup2"), twice = 0;
		struct stat stat;
		if (!unified && strcmp(mount->mnt_type, "cgroup"))
			continue;
		must(lstat(mount->mnt_dir, &stat), mount->mnt_dir);
		for (int i = 0; i < count; i++)
			twice |= seen[i] == stat.st_dev;
		if (twice)
			continue;
		seen[count] = stat.st_dev;
		struct hierarchy *h = &all[count++];
		h->unified = unified;
		h->devices = !!hasmntopt(mount, "devices");
		h->pids = !!hasmntopt(mount, "pids");
		h->cpuset = !!hasmntopt(mount, "cpuset");
		h->top = open(mount->mnt_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		must(h->top, mount->mnt_dir);
		if (unified)
			hand_down(h->top);
		if (mkdirat(h->top, name, 0755) && errno != EEXIST)
			die("make its cgroup");
		h->parent = openat(h->top, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		must(h->parent, "open its cgroup");
		if (unified) {
			hand_down(h->parent);
			h->pids = !faccessat(h->parent, "pids.max", F_OK, 0);
		}
		if (h->cpuset) {
			read_file(h->top, "cpuset.cpus", h->cpus, sizeof h->cpus);
			read_file(h->top, "cpuset.mems", h->mems, sizeof h->mems);
			must(write_file(h->parent, "cpuset.cpus", h->cpus), "write cpuset.cpus");
			must(write_file(h->parent, "cpuset.mems", h->mems), "write cpuset.mems");
		}
	}
	endmntent(mounts);
}

static void limit_devices(const struct hierarchy *h, const char *task)
{
	static const char *const allowed[] = {"c *:* m",   "b *:* m",   "c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm",  "c 1:8 rwm",
	                                      "c 1:9 rwm", "c 5:0 rwm", "c 5:1 rwm", "c 5:2 rwm", "c 136:* rwm"};
	char path[256];
	must(write_file(h->parent, print(path, sizeof path, "%s/devices.deny", task), "a"), "deny devices");
	int fd = openat(h->parent, print(path, sizeof path, "%s/devices.allow", task), O_WRONLY | O_CLOEXEC);
	must(fd, "allow devices");
	for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
		must(write(fd, allowed[i], strlen(allowed[i])), "allow a device");
	close(fd);
}

static void make_place(struct place *place, const char *task)
{
	char path[256];
	place->name = task;
	place->unified = -1;
	for (int i = 0; i < count; i++) {
		const struct hierarchy *h = &all[i];
		must(mkdirat(h->parent, task, 0755), "make a cgroup");
		place->tasks[i] = -1;
		if (h->unified) {
			place->unified = openat(h->parent, task, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
			must(place->unified, "open a cgroup");
		} else {
			place->tasks[i] = openat(h->parent, print(path, sizeof path, "%s/tasks", task), O_WRONLY | O_CLOEXEC);
			must(place->tasks[i], "open tasks");
		}
		if (h->cpuset) {
			must(write_file(h->parent, print(path, sizeof path, "%s/cpuset.cpus", task), h->cpus), "set cpus");
			must(write_file(h->parent, print(path, sizeof path, "%s/cpuset.mems", task), h->mems), "set mems");
		}
		if (h->devices)
			limit_devices(h, task);
		if (h->pids)
			must(write_file(h->parent, print(path, sizeof path, "%s/pids.max", task), "4096"), "set pids.max");
	}
}

static void remove_place(struct place *place)
{
	for (int i = 0; i < count; i++) {
		close(all[i].unified ? place->unified : place->tasks[i]);
		/* A process is in its cgroup for a moment after it was reaped. */
		while (unlinkat(all[i].parent, place->name, AT_REMOVEDIR) && errno == EBUSY)
			sched_yield();
	}
}

static void join(const struct place *place)
{
	for (int i = 0; i < count; i++)
		if (place->tasks[i] >= 0)
			must(write(place->tasks[i], "0", 1), "join a cgroup");
}

static pid_t clone_into(uint64_t flags, const struct place *place, int *pidfd)
{
	struct clone_args args = {.flags = flags, .exit_signal = SIGCHLD};
	if (pidfd) {
		args.flags |= CLONE_PIDFD;
		args.pidfd = (uintptr_t)pidfd;
	}
	if (place->unified >= 0) {
		args.flags |= CLONE_INTO_CGROUP;
		args.cgroup = place->unified;
	}
	pid_t pid = syscall(SYS_clone3, &args, sizeof args);
	must(pid, "clone");
	return pid;
}

static void loopback_up(void)
{
	struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	must(fd, "make a socket");
	must(ioctl(fd, SIOCSIFFLAGS, &request), "bring loopback up");
	close(fd);
}

static void fill_dev(void)
{
	static const struct {
		const char *path;
		int major, minor;
	} devices[] = {{"dev/null", 1, 3},   {"dev/zero", 1, 5},    {"dev/full", 1, 7},
	               {"dev/random", 1, 8}, {"dev/urandom", 1, 9}, {"dev/tty", 5, 0}};
	static const char *const links[][2] = {{"/proc/self/fd", "dev/fd"},
	                                       {"/proc/self/fd/0", "dev/stdin"},
	                                       {"/proc/self/fd/1", "dev/stdout"},
	                                       {"/proc/self/fd/2", "dev/stderr"},
	                                       {"pts/ptmx", "dev/ptmx"}};
	for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
		must(mknod(devices[i].path, S_IFCHR | 0666, makedev(devices[i].major, devices[i].minor)), "make a device");
	for (size_t i = 0; i < sizeof links / sizeof *links; i++)
		must(symlink(links[i][0], links[i][1]), "make a link");
}

static void seal(void)
{
	static const char *const read_only[] = {"proc/bus", "proc/fs", "proc/irq", "proc/sys", "proc/sysrq-trigger"};
	static const char *const files[] = {"proc/interrupts",  "proc/kcore",      "proc/keys",       "proc/latency_stats",
	                                    "proc/sched_debug", "proc/timer_list", "proc/timer_stats"};
	static const char *const folders[] = {"proc/acpi", "proc/asound", "proc/scsi", "sys/devices/virtual/powercap",
	                                      "sys/firmware"};
	const unsigned long safe = MS_NOSUID | MS_NOEXEC | MS_NODEV;
	/* What does not exist needs no protection. */
	for (size_t i = 0; i < sizeof read_only / sizeof *read_only; i++) {
		if (mount(read_only[i], read_only[i], NULL, MS_BIND, NULL)) {
			if (errno != ENOENT)
				die("bind a path");
			continue;
		}
		must(mount(NULL, read_only[i], NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | safe, NULL), "make a path read-only");
	}
	for (size_t i = 0; i < sizeof files / sizeof *files; i++)
		if (mount("/dev/null", files[i], NULL, MS_BIND, NULL) && errno != ENOENT)
			die("mask a file");
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
		if (mount("tmpfs", folders[i], "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, NULL) && errno != ENOENT)
			die("mask a folder");
}

static void enter_root(void)
{
	const unsigned long safe = MS_NOSUID | MS_NOEXEC | MS_NODEV;
	umask(0);
	must(mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL), "part from the host's mounts");
	must(mount(root, root, NULL, MS_BIND | MS_REC, NULL), "bind the root");
	must(chdir(root), "enter the root");
	must(mount("proc", "proc", "proc", safe, NULL), "mount proc");
	must(mount("tmpfs", "dev", "tmpfs", MS_NOSUID | MS_STRICTATIME, "mode=755,size=65536k"), "mount dev");
	must(mkdir("dev/pts", 0755), "make dev/pts");
	must(mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5"),
	     "mount devpts");
	must(mkdir("dev/shm", 0755), "make dev/shm");
	must(mount("shm", "dev/shm", "tmpfs", safe, "mode=1777,size=65536k"), "mount shm");
	must(mkdir("dev/mqueue", 0755), "make dev/mqueue");
	must(mount("mqueue", "dev/mqueue", "mqueue", safe, NULL), "mount mqueue");
	must(mount("sysfs", "sys", "sysfs", safe | MS_RDONLY, NULL), "mount sys");
	fill_dev();
	seal();
	must(syscall(SYS_pivot_root, ".", "."), "pivot");
	must(umount2(".", MNT_DETACH), "detach the host's root");
	must(chdir("/"), "enter the new root");
}

/* Clones a task's init, which executes `argv` and says so by `running`'s end. */
static pid_t start(const struct place *place, char *const argv[], int *pidfd)
{
	pid_t pid = clone_into(NAMESPACES, place, pidfd);
	if (pid)
		return pid;
	join(place);
	must(unshare(CLONE_NEWCGROUP), "make a cgroup namespace");
	loopback_up();
	enter_root();
	if (pidfd)
		/* Whatever ends us ends what we hold. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	execve(argv[0], argv, environment);
	die("execute the program");
	return -1;
}

static void wait_for(pid_t pid)
{
	int status;
	must(waitpid(pid, &status, 0), "wait");
	if (status) {
		errno = ECHILD;
		die("go on: a child failed");
	}
}

static void launch(int64_t *exited)
{
	static char *const argv[] = {"/bin/true", NULL};
	struct place place;
	make_place(&place, "task");
	wait_for(start(&place, argv, NULL));
	*exited = now();
	remove_place(&place);
}

static void hold(int64_t *exited)
{
	static char *const argv[] = {"/bin/sleep", "1000000", NULL};
	int running[2];
	char byte;
	must(pipe2(running, O_CLOEXEC), "make a pipe");
	make_place(&held_place, "held");
	held_pid = start(&held_place, argv, &held);
	close(running[1]);
	/* Its end is init's execve, or init's own. */
	must(read(running[0], &byte, 1), "hear of init");
	close(running[0]);
	*exited = now();
}

static void exec_in_held(int64_t *exited)
{
	static char *const argv[] = {"/bin/true", NULL};
	if (held < 0) {
		errno = ESRCH;
		die("exec without a held task");
	}
	pid_t worker = fork();
	must(worker, "fork");
	if (!worker) {
		must(setns(held, NAMESPACES), "enter the held task");
		pid_t pid = clone_into(0, &held_place, NULL);
		if (pid) {
			wait_for(pid);
			_exit(0);
		}
		join(&held_place);
		/* Last: under nsdelegate one cannot get to the cgroup from inside. */
		must(setns(held, CLONE_NEWCGROUP), "enter the cgroup namespace");
		execve(argv[0], argv, environment);
		die("execute the program");
	}
	wait_for(worker);
	*exited = now();
}

static void clean_up(void)
{
	if (held >= 0) {
		syscall(SYS_pidfd_send_signal, held, SIGKILL, NULL, 0);
		waitpid(held_pid, NULL, 0);
		remove_place(&held_place);
	}
	for (int i = 0; i < count; i++)
		unlinkat(all[i].top, name, AT_REMOVEDIR);
}

int main(int argc, char **argv)
{
	char line[64];
	if (argc != 3) {
		fprintf(stderr, "usage: floor ROOT NAME\n");
		return 2;
	}
	root = argv[1];
	name = argv[2];
	find_hierarchies();
	while (fgets(line, sizeof line, stdin)) {
		int64_t begin = now(), exited = begin;
		if (!strcmp(line, "launch\n"))
			launch(&exited);
		else if (!strcmp(line, "hold\n"))
			hold(&exited);
		else if (!strcmp(line, "exec\n"))
			exec_in_held(&exited);
		else
			break;
		int64_t removed = now();
		printf("%lld %lld\n", (long long)(exited - begin), (long long)(removed - begin));
		fflush(stdout);
	}
	clean_up();
	return 0;
}
