/* Errors, files, the clock. */
#include "floor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void die(const char *what)
{
	fprintf(stderr, "floor: cannot %s: %s\n", what, strerror(errno));
	_exit(1);
}

void must(long rc, const char *what)
{
	if (rc < 0)
		die(what);
}

char *print(char *buffer, size_t size, const char *format, ...)
{
	va_list values;
	va_start(values, format);
	vsnprintf(buffer, size, format, values);
	va_end(values);
	return buffer;
}

int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

void read_file(int dir, const char *file, char *buffer, size_t size)
{
	int fd = openat(dir, file, O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? -1 : read(fd, buffer, size - 1);
	must(length, file);
	buffer[length] = 0;
	close(fd);
}

int write_file(int dir, const char *file, const char *value)
{
	int fd = openat(dir, file, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	long rc = write(fd, value, strlen(value));
	close(fd);
	return rc < 0 ? -1 : 0;
}
