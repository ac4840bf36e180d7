/* The cgroups of tasks, in every hierarchy, by folders that are open already. */
#define _GNU_SOURCE
#include "floor.h"

#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct hierarchy {
	int top;    /* where it is mounted */
	int parent; /* our own cgroup, that the tasks' are in */
	int unified, devices, pids, cpuset;
	char cpus[256], mems[256];
};

static struct hierarchy all[MOST];
static int count;

/* On cgroup v2: its children have the controllers. */
static void hand_down(int dir)
{
	static const char *const wanted[] = {"+cpu", "+cpuset", "+io", "+memory", "+pids"};
	for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
		write_file(dir, "cgroup.subtree_control", wanted[i]);
}

/* On cgroup v1: no process joins a cgroup without processors and memory nodes. */
static void fill_sets(const struct hierarchy *h, const char *path)
{
	char file[256];
	if (!h->cpuset)
		return;
	must(write_file(h->parent, print(file, sizeof file, "%s/cpuset.cpus", path), h->cpus), "set cpus");
	must(write_file(h->parent, print(file, sizeof file, "%s/cpuset.mems", path), h->mems), "set mems");
}

static void add_hierarchy(const struct mntent *mount, const char *name, int unified)
{
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
		fill_sets(h, ".");
	}
}

void find_hierarchies(const char *name)
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
		add_hierarchy(mount, name, unified);
	}
	endmntent(mounts);
}

void remove_own(const char *name)
{
	for (int i = 0; i < count; i++)
		unlinkat(all[i].top, name, AT_REMOVEDIR);
}

void make_level(const char *path)
{
	for (int i = 0; i < count; i++) {
		must(mkdirat(all[i].parent, path, 0755), "make a cgroup");
		fill_sets(&all[i], path);
		if (all[i].unified) {
			int dir = openat(all[i].parent, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
			must(dir, "open a cgroup");
			hand_down(dir);
			close(dir);
		}
	}
}

void remove_level(const char *path)
{
	for (int i = 0; i < count; i++) {
		/* A process is in its cgroup for a moment after it was reaped. */
		while (unlinkat(all[i].parent, path, AT_REMOVEDIR) && errno == EBUSY)
			sched_yield();
	}
}

static void limit_devices(const struct hierarchy *h, const char *task)
{
	static const char *const allowed[] = {"c *:* m",   "b *:* m",   "c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm",  "c 1:8 rwm",
	                                      "c 1:9 rwm", "c 5:0 rwm", "c 5:2 rwm", "c 136:* rwm"};
	char path[256];
	must(write_file(h->parent, print(path, sizeof path, "%s/devices.deny", task), "a"), "deny devices");
	int fd = openat(h->parent, print(path, sizeof path, "%s/devices.allow", task), O_WRONLY | O_CLOEXEC);
	must(fd, "allow devices");
	for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
		must(write(fd, allowed[i], strlen(allowed[i])), "allow a device");
	close(fd);
}

void make_place(struct place *place, const char *path, int dutiful)
{
	char file[256];
	print(place->path, sizeof place->path, "%s", path);
	place->unified = -1;
	for (int i = 0; i < count; i++) {
		const struct hierarchy *h = &all[i];
		must(mkdirat(h->parent, path, 0755), "make a cgroup");
		place->tasks[i] = -1;
		if (h->unified) {
			place->unified = openat(h->parent, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
			must(place->unified, "open a cgroup");
			/* Beside v1, its devices are that one's. */
			if (dutiful && count == 1)
				limit_devices_v2(place->unified);
		} else {
			place->tasks[i] = openat(h->parent, print(file, sizeof file, "%s/tasks", path), O_WRONLY | O_CLOEXEC);
			must(place->tasks[i], "open tasks");
		}
		fill_sets(h, path);
		if (h->devices)
			limit_devices(h, path);
		if (h->pids)
			must(write_file(h->parent, print(file, sizeof file, "%s/pids.max", path), "4096"), "set pids.max");
	}
}

void close_place(const struct place *place)
{
	for (int i = 0; i < count; i++)
		close(all[i].unified ? place->unified : place->tasks[i]);
}

void remove_place(const struct place *place)
{
	close_place(place);
	remove_level(place->path);
}

void join(const struct place *place)
{
	for (int i = 0; i < count; i++)
		if (place->tasks[i] >= 0)
			must(write(place->tasks[i], "0", 1), "join a cgroup");
}
