#!/usr/bin/env bash
# The guest's half of scripts/lab --shell: guest-shell.sh JOB_DIR

set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
topology='' siw=''
# shellcheck source=/dev/null
source "$1/settings"
ulimit -l unlimited
if bash "$here/guest-topology.sh" "$topology" "$siw"; then
	rdma link show
else
	echo "the topology could not be set up; the shell is yours all the same" >&2
fi
exec bash "$1/command"
