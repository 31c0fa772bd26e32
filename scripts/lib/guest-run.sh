#!/usr/bin/env bash
# The guest's half of scripts/lab: guest-run.sh JOB_DIR
# Sets the topology up, runs JOB_DIR/command, and tells the host how that went over the ports that
# scripts/lab gave the guest: spinwire.status, spinwire.out, spinwire.err. Its own output goes to
# the host's log.

set -euo pipefail
job=$1
here=$(dirname "${BASH_SOURCE[0]}")
topology='' siw='' merge=''
# shellcheck source=/dev/null
source "$job/settings"

# The device of a virtio port, by name: udev's links may come later than we do.
port() {
	local entry
	for entry in /sys/class/virtio-ports/*; do
		if [[ -r $entry/name && $(<"$entry/name") == "spinwire.$1" ]]; then
			printf '/dev/%s\n' "${entry##*/}"
			return
		fi
	done
	echo "no port spinwire.$1" >&2
	return 1
}

exec 5>"$(port status)"
out=$(port out)
err=$(port err)
ulimit -l unlimited

echo "spinwire: setting up topology $topology"
if ! bash "$here/guest-topology.sh" "$topology" "$siw"; then
	echo "spinwire: the topology could not be set up"
	dmesg | tail -n 20
	echo failed >&5
	exit 1
fi
echo begin >&5

# A port can be opened only once, so a pipe stands before it: /dev/stdout works in the command.
# Where stdout and stderr are one thing on the host they are one here too, and keep their order.
status=0
pipes=()
if [[ $merge == yes ]]; then
	exec 6> >(exec 5>&- && exec cat >"$out")
	pipes+=($!)
	bash "$job/command" >&6 2>&1 5>&- 6>&- </dev/null || status=$?
	exec 6>&-
else
	exec 6> >(exec 5>&- && exec cat >"$out")
	pipes+=($!)
	exec 7> >(exec 5>&- 6>&- && exec cat >"$err")
	pipes+=($!)
	bash "$job/command" >&6 2>&7 5>&- 6>&- 7>&- </dev/null || status=$?
	exec 6>&- 7>&-
fi
# What the command left running may hold the pipes: give up on those after three seconds.
for _ in {1..30}; do
	kill -0 "${pipes[@]}" 2>/dev/null || break
	sleep 0.1
done
sync
if dmesg | grep -Eq 'BUG: |Oops: |WARNING: CPU: |blocked for more than'; then
	echo "spinwire: the kernel complained:"
	dmesg | grep -E -A 30 'BUG: |Oops: |WARNING: CPU: |blocked for more than'
	echo complained >&5
fi
echo "exit $status" >&5
