#!/usr/bin/env bash
# Runs the lab tests in the guest: guest-tests.sh TEST_BINARY PREFIX
# The ignored tests whose names begin with PREFIX are run one by one; then the kernel must hold
# the RDMA resources that it held before.

set -euo pipefail
binary=$1 prefix=$2
limit=1350

# By name and not by libtest's filter, which takes any part of a name: `down_` contains `own_`.
mapfile -t tests < <("$binary" --list --ignored --format terse |
	sed -n 's/: test$//p' | grep -E "(^|::)$prefix" || true)
echo "lab: ${#tests[@]} tests named $prefix*"
if ((${#tests[@]} == 0)); then
	"$binary" --list --ignored
	exit 1
fi

before=$(rdma resource show)
status=0
timeout -k 5 "$limit" "$binary" --ignored --test-threads=1 --exact "${tests[@]}" || status=$?
((status != 124)) || echo "lab: the tests were ended after $limit s"

# The kernel takes some things down later than the process that held them.
for _ in {1..50}; do
	after=$(rdma resource show)
	[[ $after != "$before" ]] || break
	sleep 0.2
done
if [[ $after == "$before" ]]; then
	echo "lab: RDMA resources are as before"
else
	echo "lab: RDMA resources were left behind; before:"
	printf '%s\n' "$before" "after:" "$after"
	for kind in qp cq mr pd cm_id; do rdma resource show "$kind"; done
	status=1
fi
exit "$status"
