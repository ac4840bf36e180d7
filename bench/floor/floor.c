/*
 * The floors of the benchmark: what the kernel needs for a task, and for an
 * exec in one, without any runtime's work.
 *
 *   floor ROOT NAME                  the bare floor
 *   floor ROOT NAME FILTER RECORD    the duty floor
 *
 * ROOT is the root filesystem; NAME a cgroup for our own; FILTER a file with
 * the instructions of a seccomp filter; RECORD where a task's record goes.
 *
 * Reads a line of words and answers it with two numbers, nanoseconds from the
 * line's arrival: until the program had ended, until everything was removed.
 *
 *   launch [filter] [init]   cgroups with limits, namespaces, mounts, /bin/true,
 *                            all removed; `init`: the program has a parent in
 *                            the task, which reaps
 *   hold [filter]            a task of that kind that stays: exec's
 *   exec [filter]            /bin/true in it
 *   stop                     that task killed and removed
 *   crowd N                  tasks of that kind until there are N; bare floor alone
 *   disperse                 all of these killed and removed
 *   faults                   nanoseconds of a page fault: in a file, in new
 *                            memory, in memory that a child shares
 *
 * Both make the kernel do what bowline's defaults do with a network namespace
 * of the task's own: the same namespaces, filesystems, device nodes, masked
 * and read-only paths, the same device rules and pids limit, by the cheapest
 * calls that there are: mount(2), fixed paths, folders that are open already.
 *
 * The bare floor has one cgroup in each hierarchy, no filter, no program over
 * devices on cgroup v2, and gives up no rights.
 *
 * The duty floor adds what no runtime can leave out: a process for each task
 * that is asked by a socket, answers once, and ends last (forked ahead, as
 * bowline's shims are started); the two levels of cgroups of bowline's
 * configuration, of which the upper is made ahead; the program over devices; a
 * record of the task on disk, whole or not at all, removed in the end;
 * capabilities dropped, no_new_privs, the filter loaded.
 *
 * Neither resolves paths safely, captures output, reports errors of a child,
 * or reads a configuration.
 *
 * By the name of containerd-shim-floor-v1 it is neither: see shim.c.
 *
 * Ends at the end of its input, and removes what it has made.
 */
#define _GNU_SOURCE
#include "floor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NAMESPACES (CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)

/* What is asked for. */
struct words {
	char verb[16];
	int filter, init, count;
};

static const char *root, *record;
static int dutiful;
static char *const environment[] = {"PATH=/bin", NULL};
static int held = -1;
static pid_t held_pid;
static struct place held_place;
/* The tasks of `crowd`, each in a cgroup that has its number. */
static pid_t crowd[10000];
static int crowded;

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

static void wait_for(pid_t pid)
{
	int status;
	must(waitpid(pid, &status, 0), "wait");
	if (status) {
		errno = ECHILD;
		die("go on: a child failed");
	}
}

/* Clones a task's init, which executes `argv`. */
static pid_t start(const struct place *place, const struct words *words, char *const argv[], int *pidfd)
{
	pid_t pid = clone_into(NAMESPACES, place, pidfd);
	if (pid)
		return pid;
	join(place);
	must(unshare(CLONE_NEWCGROUP), "make a cgroup namespace");
	loopback_up();
	enter_root(root);
	if (pidfd)
		/* Whatever ends us ends what we hold. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (dutiful)
		confine(words->filter);
	if (words->init) {
		pid_t program = fork();
		must(program, "fork");
		if (program) {
			wait_for(program);
			_exit(0);
		}
	}
	execve(argv[0], argv, environment);
	die("execute the program");
	return -1;
}

/* Runs a task until its program has ended. */
static void launch(struct place *place, const struct words *words)
{
	static char *const argv[] = {"/bin/true", NULL};
	make_place(place, dutiful ? "task/task" : "task", dutiful);
	pid_t pid = start(place, words, argv, NULL);
	if (dutiful)
		keep_record(record, place, pid);
	wait_for(pid);
}

/* Starts a task that stays: until its program is executed. */
static pid_t start_sleeper(struct place *place, const char *path, const struct words *words, int *pidfd)
{
	static char *const argv[] = {"/bin/sleep", "1000000", NULL};
	int running[2];
	char byte;
	must(pipe2(running, O_CLOEXEC), "make a pipe");
	make_place(place, path, dutiful);
	pid_t pid = start(place, words, argv, pidfd);
	close(running[1]);
	/* Its end is init's execve, or init's own. */
	must(read(running[0], &byte, 1), "hear of init");
	close(running[0]);
	return pid;
}

static void hold(const struct words *words)
{
	if (dutiful)
		make_level("held");
	held_pid = start_sleeper(&held_place, dutiful ? "held/held" : "held", words, &held);
}

static void add_to_crowd(const struct words *words)
{
	char path[32];
	while (crowded < words->count && crowded < (int)(sizeof crowd / sizeof *crowd)) {
		struct place place;
		int pidfd;
		print(path, sizeof path, "crowd-%d", crowded);
		crowd[crowded++] = start_sleeper(&place, path, words, &pidfd);
		close(pidfd);
		close_place(&place);
	}
}

static void disperse(void)
{
	char path[32];
	for (int i = 0; i < crowded; i++)
		kill(crowd[i], SIGKILL);
	for (int i = 0; i < crowded; i++) {
		waitpid(crowd[i], NULL, 0);
		remove_level(print(path, sizeof path, "crowd-%d", i));
	}
	crowded = 0;
}

static void exec_in_held(const struct words *words)
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
		if (dutiful)
			confine(words->filter);
		execve(argv[0], argv, environment);
		die("execute the program");
	}
	wait_for(worker);
}

/* Kills the held task, if there is one. */
static void kill_held(void)
{
	if (held < 0)
		return;
	syscall(SYS_pidfd_send_signal, held, SIGKILL, NULL, 0);
	waitpid(held_pid, NULL, 0);
	close(held);
}

static void remove_held(void)
{
	if (held < 0)
		return;
	remove_place(&held_place);
	if (dutiful)
		remove_level("held");
	held = -1;
}

static void end_held(void)
{
	kill_held();
	remove_held();
}

static int is(const struct words *words, const char *verb)
{
	return !strcmp(words->verb, verb);
}

/* The bare floor: all in this process. Returns whether it knows the verb. */
static int act(const struct words *words, int64_t *exited)
{
	struct place place;
	if (is(words, "launch"))
		launch(&place, words);
	else if (is(words, "hold"))
		hold(words);
	else if (is(words, "exec"))
		exec_in_held(words);
	else if (is(words, "stop"))
		kill_held();
	else if (is(words, "crowd"))
		add_to_crowd(words);
	else if (is(words, "disperse"))
		disperse();
	else
		return 0;
	*exited = now();
	if (is(words, "launch"))
		remove_place(&place);
	if (is(words, "stop"))
		remove_held();
	return 1;
}

/* The duty floor: a process of its own for each task. */
struct server {
	int socket;
	pid_t pid;
};

/* Serves one launch, or one held task until nobody asks any more. */
static void serve(int socket)
{
	struct words words;
	struct place place;
	while (read(socket, &words, sizeof words) == sizeof words) {
		int over = is(&words, "launch");
		if (over)
			launch(&place, &words);
		else if (is(&words, "hold"))
			hold(&words);
		else if (is(&words, "exec"))
			exec_in_held(&words);
		else
			kill_held();
		must(write(socket, "", 1), "answer");
		if (is(&words, "stop"))
			goto killed;
		if (over) {
			remove_place(&place);
			remove_level("task");
			unlink(record);
			_exit(0);
		}
	}
	/* Nobody asks any more. */
	kill_held();
killed:
	remove_held();
	_exit(0);
}

static struct server ready, holding;

static void close_other(const struct server *other)
{
	if (other->pid)
		close(other->socket);
}

static struct server start_server(void)
{
	struct server server;
	int ends[2];
	must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), "make a socket");
	server.pid = fork();
	must(server.pid, "fork");
	if (!server.pid) {
		/* Ours alone, so that their processes see us end. */
		close(ends[0]);
		close_other(&ready);
		close_other(&holding);
		serve(ends[1]);
	}
	close(ends[1]);
	server.socket = ends[0];
	return server;
}

/* Asks by the socket. What was asked for is answered by one byte. */
static void ask(const struct server *server, const struct words *words)
{
	char answer;
	must(write(server->socket, words, sizeof *words), "ask");
	if (read(server->socket, &answer, 1) != 1) {
		errno = ECHILD;
		die("go on: the process of a task failed");
	}
}

static void dismiss(struct server *server)
{
	close(server->socket);
	waitpid(server->pid, NULL, 0);
	server->pid = 0;
}

/* What is there before a launch is asked for. */
static void prepare(void)
{
	if (!dutiful || ready.pid)
		return;
	make_level("task");
	ready = start_server();
}

static int have_served(const struct words *words, int64_t *exited)
{
	if (is(words, "launch")) {
		ask(&ready, words);
		*exited = now();
		wait_for(ready.pid);
		close(ready.socket);
		ready.pid = 0;
	} else if (is(words, "hold") || is(words, "exec")) {
		if (!holding.pid)
			holding = start_server();
		ask(&holding, words);
		*exited = now();
	} else if (is(words, "stop") && holding.pid) {
		ask(&holding, words);
		*exited = now();
		dismiss(&holding);
	} else {
		return 0;
	}
	return 1;
}

static void clean_up(const char *name)
{
	if (holding.pid)
		dismiss(&holding);
	if (ready.pid) {
		dismiss(&ready);
		remove_level("task");
	}
	end_held();
	disperse();
	remove_own(name);
}

static struct words parse(char *line)
{
	struct words words = {0};
	char *verb = strtok(line, " \n"), *word;
	print(words.verb, sizeof words.verb, "%s", verb ? verb : "");
	while ((word = strtok(NULL, " \n"))) {
		words.filter |= !strcmp(word, "filter");
		words.init |= !strcmp(word, "init");
		words.count += atoi(word);
	}
	return words;
}

static void tell_faults(void)
{
	struct faults faults;
	measure_faults(&faults);
	printf("%lld %lld %lld\n", (long long)faults.file, (long long)faults.fresh, (long long)faults.copied);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	char line[64];
	const char *name = strrchr(argv[0], '/');
	if (!strcmp(name ? name + 1 : argv[0], "containerd-shim-floor-v1"))
		return shim(argc, argv);
	if (argc != 3 && argc != 5) {
		fprintf(stderr, "usage: floor ROOT NAME [FILTER RECORD]\n");
		return 2;
	}
	root = argv[1];
	dutiful = argc == 5;
	find_hierarchies(argv[2]);
	if (dutiful) {
		read_filter(argv[3]);
		record = argv[4];
	}
	prepare();
	while (fgets(line, sizeof line, stdin)) {
		int64_t begin = now(), exited = begin;
		struct words words = parse(line);
		if (is(&words, "faults")) {
			tell_faults();
			continue;
		}
		if (!(dutiful ? have_served : act)(&words, &exited))
			break;
		int64_t removed = now();
		/* Before the answer, so that nobody else is measured meanwhile. */
		prepare();
		printf("%lld %lld\n", (long long)(exited - begin), (long long)(removed - begin));
		fflush(stdout);
	}
	clean_up(argv[2]);
	return 0;
}
