/* What a page fault takes, by its kind. */
#define _GNU_SOURCE
#include "floor.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
/* The kernel maps so much of a file around a fault, unless it is told otherwise. */
#define AROUND (16 * PAGE)
#define TIMES 64
#define PAGES 256

static void *map(size_t size, int protection, int flags, int fd)
{
	void *at = mmap(NULL, size, protection, MAP_PRIVATE | flags, fd, 0);
	if (at == MAP_FAILED)
		die("map memory");
	return at;
}

/* Nanoseconds until each page has been written to. */
static int64_t write_to_each(volatile char *memory)
{
	int64_t begin = now();
	for (size_t at = 0; at < (size_t)PAGES * PAGE; at += PAGE)
		memory[at] = 1;
	return now() - begin;
}

static void of_file(struct faults *faults)
{
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	struct stat stat;
	must(fd, "open this program");
	must(fstat(fd, &stat), "examine this program");
	volatile char *memory = map(stat.st_size, PROT_READ | PROT_EXEC, 0, fd);
	close(fd);
	int64_t taken = 0;
	size_t touched = 0;
	for (int time = 0; time < TIMES; time++) {
		must(madvise((void *)memory, stat.st_size, MADV_DONTNEED), "give memory back");
		int64_t begin = now();
		for (off_t at = 0; at < stat.st_size; at += AROUND, touched++)
			(void)memory[at];
		taken += now() - begin;
	}
	faults->file = taken / touched;
	munmap((void *)memory, stat.st_size);
}

/* New pages, and then those that a child shares. */
static void of_memory(struct faults *faults)
{
	int64_t fresh = 0, copied = 0;
	for (int time = 0; time < TIMES; time++) {
		char *memory = map(PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_ANONYMOUS, -1);
		/* As in a heap that is small: a huge page would be one fault for all. */
		must(madvise(memory, PAGES * PAGE, MADV_NOHUGEPAGE), "ask for small pages");
		fresh += write_to_each(memory);
		pid_t child = fork();
		must(child, "fork");
		if (!child) {
			pause();
			_exit(0);
		}
		copied += write_to_each(memory);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		munmap(memory, PAGES * PAGE);
	}
	faults->fresh = fresh / (TIMES * PAGES);
	faults->copied = copied / (TIMES * PAGES);
}

void measure_faults(struct faults *faults)
{
	of_file(faults);
	of_memory(faults);
}
