/* What the parts of the floor share; floor.c says what it is. */
#ifndef FLOOR_H
#define FLOOR_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define MOST 32

/* common.c */

/* Says what failed and why, and ends the process. */
void die(const char *what);
void must(long rc, const char *what);
char *print(char *buffer, size_t size, const char *format, ...);
int64_t now(void);
void read_file(int dir, const char *file, char *buffer, size_t size);
int write_file(int dir, const char *file, const char *value);

/* cgroups.c */

/* One task's cgroups. */
struct place {
	char path[128];  /* below our own cgroup */
	int tasks[MOST]; /* v1: the file to join by, -1 in the unified one */
	int unified;     /* its folder there, or -1 */
};

/* Finds the hierarchies and makes our own cgroup `name` in each. */
void find_hierarchies(const char *name);
void remove_own(const char *name);
/* Makes a cgroup that others are made in. */
void make_level(const char *path);
void remove_level(const char *path);
/* Makes a task's cgroups with their limits; `dutiful` limits devices on cgroup v2 too. */
void make_place(struct place *place, const char *path, int dutiful);
/* Closes its files; its cgroups stay. */
void close_place(const struct place *place);
void remove_place(const struct place *place);
void join(const struct place *place);

/* root.c */

void loopback_up(void);
/* Fills `root` with mounts and devices and makes it the root of this process. */
void enter_root(const char *root);

/* duty.c */

/* Reads the seccomp filter that `confine` loads: an array of struct sock_filter. */
void read_filter(const char *path);
/* Gives up rights, then loads the filter if `filtered`. */
void confine(int filtered);
/* Writes the record of a task, whole or not at all. */
void keep_record(const char *path, const struct place *place, pid_t pid);
/* Denies all but the usual devices to a cgroup of v2. */
void limit_devices_v2(int cgroup);

/* faults.c */

/* Nanoseconds that one takes: a piece of a file that is cached; a new page; a page that a child shares. */
struct faults {
	int64_t file, fresh, copied;
};
void measure_faults(struct faults *faults);

/* shim.c */

/* What containerd starts: `start` leaves a process that serves. */
int shim(int argc, char **argv);

#endif
