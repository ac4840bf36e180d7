/* A task's root filesystem, by mount(2) and fixed paths, which are the cheapest calls for it. */
#define _GNU_SOURCE
#include "floor.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

void loopback_up(void)
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

void enter_root(const char *root)
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
