/* What every runtime has to do beyond making the kernel's objects: see floor.c. */
#define _GNU_SOURCE
#include "floor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* bowline's default capabilities, which are Nomad's. */
#define CAPABILITIES 0xa80405fbULL

static struct sock_fprog filter;

void read_filter(const char *path)
{
	struct stat stat;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	must(fd, "open the filter");
	must(fstat(fd, &stat), "examine the filter");
	filter.len = stat.st_size / sizeof *filter.filter;
	filter.filter = malloc(stat.st_size);
	if (!filter.filter || read(fd, filter.filter, stat.st_size) != stat.st_size)
		die("read the filter");
	close(fd);
}

void confine(int filtered)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct sets[2] = {
		{.effective = (uint32_t)CAPABILITIES, .permitted = (uint32_t)CAPABILITIES},
		{.effective = CAPABILITIES >> 32, .permitted = CAPABILITIES >> 32},
	};
	/* The kernel knows none from the first that it refuses on. */
	for (int bit = 0; bit < 64; bit++)
		if (!(CAPABILITIES >> bit & 1) && prctl(PR_CAPBSET_DROP, bit, 0, 0, 0))
			break;
	must(syscall(SYS_capset, &header, sets), "give up capabilities");
	must(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "clear the ambient capabilities");
	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "set no_new_privs");
	if (filtered)
		must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter), "load the filter");
}

void keep_record(const char *path, const struct place *place, pid_t pid)
{
	char text[512], temporary[512];
	print(text, sizeof text, "{\"cgroup\":\"%s\",\"pid\":%d}\n", place->path, pid);
	print(temporary, sizeof temporary, "%s.new", path);
	int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	must(fd, "create the record");
	must(write(fd, text, strlen(text)), "write the record");
	close(fd);
	must(rename(temporary, path), "rename the record");
}

/* struct bpf_insn by its fields (linux/bpf.h). */
#define LOAD(reg, field) {BPF_LDX | BPF_MEM | BPF_W, reg, BPF_REG_1, offsetof(struct bpf_cgroup_dev_ctx, field), 0}
#define MOVE(to, from) {BPF_ALU | BPF_MOV | BPF_X, to, from, 0, 0}
#define CHANGE(op, reg, value) {BPF_ALU | (op) | BPF_K, reg, 0, 0, value}
#define JUMP(op, reg, value, by) {BPF_JMP | (op) | BPF_K, reg, 0, by, value}
#define RETURN(value) {BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, value}, {BPF_JMP | BPF_EXIT, 0, 0, 0, 0}

/* mknod(2) of everything, and the use of 1:3, 1:5, 1:7 to 1:9, 5:0, 5:2 and 136:*, all of them character devices. */
static const struct bpf_insn devices[] = {
	LOAD(BPF_REG_2, access_type),
	MOVE(BPF_REG_3, BPF_REG_2),
	CHANGE(BPF_RSH, BPF_REG_2, 16),
	CHANGE(BPF_AND, BPF_REG_3, 0xffff),
	LOAD(BPF_REG_4, major),
	LOAD(BPF_REG_5, minor),
	JUMP(BPF_JEQ, BPF_REG_2, BPF_DEVCG_ACC_MKNOD, 14),
	JUMP(BPF_JNE, BPF_REG_3, BPF_DEVCG_DEV_CHAR, 11),
	JUMP(BPF_JEQ, BPF_REG_4, 136, 12),
	JUMP(BPF_JEQ, BPF_REG_4, 5, 7),
	JUMP(BPF_JNE, BPF_REG_4, 1, 8),
	JUMP(BPF_JEQ, BPF_REG_5, 3, 9),
	JUMP(BPF_JEQ, BPF_REG_5, 5, 8),
	JUMP(BPF_JEQ, BPF_REG_5, 7, 7),
	JUMP(BPF_JEQ, BPF_REG_5, 8, 6),
	JUMP(BPF_JEQ, BPF_REG_5, 9, 5),
	JUMP(BPF_JA, 0, 0, 2),
	JUMP(BPF_JEQ, BPF_REG_5, 0, 3),
	JUMP(BPF_JEQ, BPF_REG_5, 2, 2),
	RETURN(0),
	RETURN(1),
};

void limit_devices_v2(int cgroup)
{
	union bpf_attr load = {
		.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE,
		.insn_cnt = sizeof devices / sizeof *devices,
		.insns = (uintptr_t)devices,
		.license = (uintptr_t) "Apache",
	};
	int program = syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof load);
	must(program, "load the program over devices");
	union bpf_attr attach = {.target_fd = cgroup, .attach_bpf_fd = program, .attach_type = BPF_CGROUP_DEVICE};
	must(syscall(SYS_bpf, BPF_PROG_ATTACH, &attach, sizeof attach), "limit devices");
	close(program);
}
