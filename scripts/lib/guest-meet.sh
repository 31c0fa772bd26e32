# shellcheck shell=bash
# How a server and its client meet in the guest, for those who run perftest beside us. Sourced there.
# shellcheck disable=SC2154 # of the caller: port, and limit, the seconds after which either is ended

# Waits until process $1 listens on port $2 at some device.
wait_listen() {
	for _ in {1..150}; do
		kill -0 "$1" 2>/dev/null || return 1
		rdma resource show cm_id | grep -Eq "LISTEN .*src-addr [^ ]*:$2( |\$)" && return
		sleep 0.1
	done
	return 1
}

# Runs a server (its words up to --) and, once it listens on $port, a client; $1 is the name of the
# files with what they say. Server and client are pinned by the caller.
meet() {
	local name=$1 server=() pid status=0
	shift
	while [[ $1 != -- ]]; do
		server+=("$1")
		shift
	done
	shift
	timeout -k 2 "$limit" "${server[@]}" >"$name.server.txt" 2>&1 &
	pid=$!
	if wait_listen "$pid" "$port"; then
		# The kernel shows LISTEN a moment before siw's socket does listen.
		for _ in 1 2 3 4 5; do
			status=0
			timeout -k 2 "$limit" "$@" >"$name.out" 2>"$name.err" || status=$?
			if ((status == 0)) || ! kill -0 "$pid" 2>/dev/null || ! grep -qi refused "$name.err"; then
				break
			fi
			echo "  refused on port $port; once more" >&2
			sleep 0.5
		done
	else
		echo "the server does not listen on port $port" >"$name.err"
		status=1
	fi
	# perftest's server ends with its client, ours when told; a child of timeout dies with it.
	((status == 0)) && [[ $name != *.spinwire ]] || kill -TERM "$pid" 2>/dev/null || true
	wait "$pid" || true
	return "$status"
}
