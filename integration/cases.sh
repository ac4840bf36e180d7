#!/bin/sh
# Runs black-box tests by the names of their modules, which are their files'.
#
#   integration/cases.sh [--absent FACILITY] all|MODULE|MODULE::CASE… [-MODULE|-MODULE::CASE…]
#
# CASES is the program of the tests, by default `cases` beside this script, and
# BOWLINE_BIN_DIR holds the binaries. What has a `-` before it is left out. With
# --absent those below absent/ there run, for which the kernel lacks FACILITY.
#
# A case that fails runs three times more, alone. If it fails once, the run has
# failed. If it never does, other cases were in its way: it is named UNSTABLE,
# below what it said as it failed, and is a defect to be found all the same. No
# more than six may be in one run: a systemd that answers late fails several at once.
set -eu
program=${CASES:-$(dirname "$0")/cases}
# A background job of a shell without job control ignores SIGINT, and so would all that it starts.
run() {
    env --default-signal "$program" "$@"
}
most_unstable=6

if [ "$1" = --absent ]; then
    export BOWLINE_ABSENT="$2" BOWLINE_BIN_DIR="$BOWLINE_BIN_DIR/absent"
    shift 2
fi
echo "=== $*${BOWLINE_ABSENT:+, without $BOWLINE_ABSENT}"
names=$("$program" --list --format terse | sed -n 's/: test$//p')
# A filter of the runner would take whatever has the name in it.
wanted= unwanted=
for name; do
    case $name in
    -*) unwanted="$unwanted|${name#-}" ;;
    all) wanted="$wanted|[^:]+" ;;
    *) wanted="$wanted|$name" ;;
    esac
done
names=$(echo "$names" | grep -E "^(${wanted#|})(::|\$)" | grep -vE "^(${unwanted#|})(::|\$)")

results=$(mktemp)
trap 'rm -f "$results"' EXIT
# shellcheck disable=SC2086
run --logfile "$results" --exact $names && exit
# A program that has died tells nothing of the cases that it had not ended.
[ "$(wc -l <"$results")" -eq "$(echo "$names" | wc -l)" ] || {
    echo "=== The program died: $(wc -l <"$results") of $(echo "$names" | wc -l) cases have a result"
    exit 1
}
failed=$(sed -n 's/^failed //p' "$results")
# The runner itself has failed, or too much has.
[ -n "$failed" ] && [ "$(echo "$failed" | wc -l)" -le "$most_unstable" ] || exit 1
for name in $failed; do
    for _ in 1 2 3; do
        run --exact "$name" || exit 1
    done
    echo "=== UNSTABLE: $name failed beside others, and not alone"
done
