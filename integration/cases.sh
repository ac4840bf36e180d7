#!/bin/sh
# Runs black-box tests by the names of their modules, which are their files'.
#
#   integration/cases.sh [--absent FACILITY] all|MODULE…
#
# Needs the program of the tests, `cases`, in PATH, and BOWLINE_BIN_DIR. With
# --absent the binaries below BOWLINE_BIN_DIR/absent run, for which the kernel
# lacks FACILITY.
set -eu
if [ "$1" = --absent ]; then
    export BOWLINE_ABSENT="$2" BOWLINE_BIN_DIR="$BOWLINE_BIN_DIR/absent"
    shift 2
fi
echo "=== $*${BOWLINE_ABSENT:+, without $BOWLINE_ABSENT}"
[ "$1" != all ] || exec cases
modules=$(echo "$*" | tr ' ' '|')
# A filter of the runner would take whatever has the name in it.
names=$(cases --list --format terse | sed -n 's/: test$//p' | grep -E "^($modules)::")
# shellcheck disable=SC2086
exec cases --exact $names
