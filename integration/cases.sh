#!/bin/sh
# Runs black-box tests by the names of their modules, which are their files'.
#
#   integration/cases.sh [--absent FACILITY] all|MODULE|MODULE::CASE…
#
# CASES is the program of the tests, by default `cases` beside this script, and
# BOWLINE_BIN_DIR holds the binaries. With --absent those below absent/ there
# run, for which the kernel lacks FACILITY.
set -eu
program=${CASES:-$(dirname "$0")/cases}
if [ "$1" = --absent ]; then
    export BOWLINE_ABSENT="$2" BOWLINE_BIN_DIR="$BOWLINE_BIN_DIR/absent"
    shift 2
fi
echo "=== $*${BOWLINE_ABSENT:+, without $BOWLINE_ABSENT}"
[ "$1" != all ] || exec "$program"
wanted=$(echo "$*" | tr ' ' '|')
# A filter of the runner would take whatever has the name in it.
names=$("$program" --list --format terse | sed -n 's/: test$//p' | grep -E "^($wanted)(::|$)")
# shellcheck disable=SC2086
exec "$program" --exact $names
