/*
 * containerd's floor: a shim that answers every call at once and does nothing.
 *
 * What is above its times is a runtime's own; what is below is containerd's,
 * the start of two programs and the calls between them.
 *
 * It has no process, so it says its own pid. A container that sleeps ends when
 * it is killed, every other one, and every exec, once it was started.
 */
#define _GNU_SOURCE
#include "floor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define HEADER 10
#define LONGEST (1 << 20)
#define CONNECTIONS 8

/* A message that is written: bytes, and how many. */
struct message {
	unsigned char bytes[2048];
	size_t length;
};

/* What may be in a message that is read. */
struct field {
	const unsigned char *bytes;
	size_t length;
};

static const char *namespace = "", *id = "", *events_path;
static int events = -1, sleeps;
static unsigned next_event = 1;
/* Who waits for the container's end. */
static struct waiting {
	int fd;
	unsigned stream;
} waiting[CONNECTIONS];
static int waiters;

static void put_number(struct message *m, uint64_t n)
{
	for (; n >= 128; n >>= 7)
		m->bytes[m->length++] = 128 | (n & 127);
	m->bytes[m->length++] = n;
}

static void put(struct message *m, int field, uint64_t n)
{
	put_number(m, field << 3);
	put_number(m, n);
}

static void put_bytes(struct message *m, int field, const void *bytes, size_t length)
{
	if (m->length + length + 16 > sizeof m->bytes)
		die("write a message");
	put_number(m, field << 3 | 2);
	put_number(m, length);
	memcpy(m->bytes + m->length, bytes, length);
	m->length += length;
}

static void put_text(struct message *m, int field, const char *text)
{
	put_bytes(m, field, text, strlen(text));
}

static void put_message(struct message *m, int field, const struct message *inner)
{
	put_bytes(m, field, inner->bytes, inner->length);
}

static uint64_t number(const unsigned char **at, const unsigned char *end)
{
	uint64_t n = 0;
	for (int shift = 0; *at < end && shift < 64; shift += 7) {
		unsigned char byte = *(*at)++;
		n |= (uint64_t)(byte & 127) << shift;
		if (byte < 128)
			break;
	}
	return n;
}

/* The texts among the first eight fields; all others are passed over. */
static void read_fields(struct field in, struct field out[8])
{
	const unsigned char *at = in.bytes, *end = in.bytes + in.length;
	memset(out, 0, 8 * sizeof *out);
	while (at < end) {
		uint64_t key = number(&at, end), length = number(&at, end);
		if ((key & 7) != 2)
			continue;
		if (length > (size_t)(end - at))
			die("read a message");
		if (key >> 3 < 8)
			out[key >> 3] = (struct field){ at, length };
		at += length;
	}
}

static int is(struct field field, const char *text)
{
	return field.length == strlen(text) && !memcmp(field.bytes, text, field.length);
}

static void put_now(struct message *m, int field)
{
	struct message inner = { .length = 0 };
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	put(&inner, 1, t.tv_sec);
	put(&inner, 2, t.tv_nsec);
	put_message(m, field, &inner);
}

/* ttrpc's frame: length, stream, kind (1 asks, 2 answers), flags. */
static void send_frame(int fd, unsigned stream, int kind, const struct message *m)
{
	unsigned char frame[HEADER + sizeof m->bytes] = {
		m->length >> 24, m->length >> 16, m->length >> 8, m->length,
		stream >> 24, stream >> 16, stream >> 8, stream, kind,
	};
	memcpy(frame + HEADER, m->bytes, m->length);
	must(write(fd, frame, HEADER + m->length), "answer");
}

static void answer(int fd, unsigned stream, const struct message *payload)
{
	struct message m = { .length = 0 };
	put_message(&m, 2, payload);
	send_frame(fd, stream, 2, &m);
}

static int connect_to(const char *path)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(fd, "make a socket");
	print(to.sun_path, sizeof to.sun_path, "%s", path);
	must(connect(fd, (struct sockaddr *)&to, sizeof to), "connect to containerd");
	return fd;
}

/* Tells containerd that the container, or `exec` in it, has ended. */
static void tell_end(const char *what, size_t length, int status)
{
	struct message exit = { .length = 0 }, any = { .length = 0 }, envelope = { .length = 0 };
	struct message request = { .length = 0 }, m = { .length = 0 };
	put_text(&exit, 1, id);
	put_bytes(&exit, 2, what, length);
	put(&exit, 3, getpid());
	put(&exit, 4, status);
	put_now(&exit, 5);
	put_text(&any, 1, "containerd.events.TaskExit");
	put_message(&any, 2, &exit);
	put_now(&envelope, 1);
	put_text(&envelope, 2, namespace);
	put_text(&envelope, 3, "/tasks/exit");
	put_message(&envelope, 4, &any);
	put_message(&request, 1, &envelope);
	put_text(&m, 1, "containerd.services.events.ttrpc.v1.Events");
	put_text(&m, 2, "Forward");
	put_message(&m, 3, &request);
	if (events < 0)
		events = connect_to(events_path);
	send_frame(events, next_event, 1, &m);
	next_event += 2;
}

/* An end as the answers to Wait and Delete have it: their fields are the same but for the first. */
static struct message ended(int status, int first)
{
	struct message m = { .length = 0 };
	if (first > 1)
		put(&m, 1, getpid());
	put(&m, first, status);
	put_now(&m, first + 1);
	return m;
}

static int status;

static void end(int code)
{
	struct message m = ended(code, 1);
	status = code;
	for (int i = 0; i < waiters; i++)
		answer(waiting[i].fd, waiting[i].stream, &m);
	waiters = 0;
	tell_end(id, strlen(id), code);
}

/* Does what one request asks. */
static void serve(int fd, unsigned stream, struct field request)
{
	struct field fields[8], asked[8];
	struct message m = { .length = 0 };
	read_fields(request, fields);
	read_fields(fields[3], asked);
	struct field method = fields[2], exec = asked[2];
	if (is(method, "Wait")) {
		if (waiters == CONNECTIONS)
			die("let one more wait");
		waiting[waiters++] = (struct waiting){ fd, stream };
		return;
	}
	if (is(method, "Create") || is(method, "Start")) {
		put(&m, 1, getpid());
	} else if (is(method, "State")) {
		put_text(&m, 1, id);
		put(&m, 3, getpid());
		put(&m, 4, 2); /* running */
	} else if (is(method, "Pids")) {
		struct message process = { .length = 0 };
		put(&process, 1, getpid());
		put_message(&m, 1, &process);
	} else if (is(method, "Stats")) {
		struct message any = { .length = 0 };
		put_text(&any, 1, "nothing");
		put_message(&m, 1, &any);
	} else if (is(method, "Connect")) {
		put(&m, 1, getpid());
		put(&m, 2, getpid());
	} else if (is(method, "Delete")) {
		m = ended(exec.length ? 0 : status, 2);
	}
	answer(fd, stream, &m);
	if (is(method, "Start") && exec.length)
		tell_end((const char *)exec.bytes, exec.length, 0);
	else if (is(method, "Start") && !sleeps)
		end(0);
	else if (is(method, "Kill") && !exec.length)
		end(128 + SIGKILL);
	else if (is(method, "Shutdown"))
		_exit(0);
}

/* Reads a whole frame into `buffer`; its length without the header, -1 at the end. */
static ssize_t read_frame(int fd, unsigned char *buffer)
{
	size_t have = 0, want = HEADER;
	while (have < want) {
		ssize_t got = read(fd, buffer + have, want - have);
		if (got <= 0)
			return -1;
		have += got;
		if (have == HEADER) {
			want = HEADER + ((size_t)buffer[0] << 24 | buffer[1] << 16 | buffer[2] << 8 | buffer[3]);
			if (want > LONGEST)
				die("read so long a message");
		}
	}
	return want - HEADER;
}

static void serve_all(int listener)
{
	static unsigned char buffer[LONGEST];
	struct pollfd polled[CONNECTIONS + 2] = { { listener, POLLIN, 0 } };
	int count = 1;
	for (;;) {
		polled[count] = (struct pollfd){ events, POLLIN, 0 };
		must(poll(polled, count + (events >= 0), -1), "wait");
		if (events >= 0 && polled[count].revents && read_frame(events, buffer) < 0)
			_exit(0); /* containerd has gone */
		for (int i = 1; i < count; i++) {
			if (!polled[i].revents)
				continue;
			ssize_t length = read_frame(polled[i].fd, buffer);
			if (length < 0)
				_exit(0);
			unsigned stream = buffer[4] << 24 | buffer[5] << 16 | buffer[6] << 8 | buffer[7];
			serve(polled[i].fd, stream, (struct field){ buffer + HEADER, length });
		}
		if (polled[0].revents && count <= CONNECTIONS)
			polled[count++] = (struct pollfd){ accept4(listener, NULL, NULL, SOCK_CLOEXEC), POLLIN, 0 };
	}
}

/* Listens beside containerd's own socket, says where, and leaves a process that serves. */
static void start(void)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	char config[65536];
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(listener, "make a socket");
	read_file(AT_FDCWD, "config.json", config, sizeof config);
	sleeps = strstr(config, "\"/bin/sleep\"") != NULL;
	print(at.sun_path, sizeof at.sun_path, "%.*s/%s.s", (int)(strrchr(events_path, '/') - events_path), events_path, id);
	unlink(at.sun_path);
	must(bind(listener, (struct sockaddr *)&at, sizeof at), "bind a socket");
	must(listen(listener, CONNECTIONS), "listen");
	pid_t pid = fork();
	must(pid, "fork");
	if (pid) {
		printf("unix://%s", at.sun_path);
		fflush(stdout);
		return;
	}
	setsid();
	/* containerd reads what `start` says until nobody holds it. */
	for (int fd = 0; fd < 3; fd++)
		close(fd);
	serve_all(listener);
}

int shim(int argc, char **argv)
{
	events_path = getenv("TTRPC_ADDRESS");
	for (int i = 1; i + 1 < argc; i++) {
		if (!strcmp(argv[i], "-namespace"))
			namespace = argv[i + 1];
		else if (!strcmp(argv[i], "-id"))
			id = argv[i + 1];
	}
	if (!events_path || !strchr(events_path, '/')) {
		fprintf(stderr, "containerd starts this: there is no TTRPC_ADDRESS\n");
		return 2;
	}
	if (!strcmp(argv[argc - 1], "start")) {
		start();
	} else {
		struct message m = ended(128 + SIGKILL, 2);
		must(write(STDOUT_FILENO, m.bytes, m.length), "answer");
	}
	return 0;
}
