# shellcheck shell=bash
# scripts/demo: spinwire between two processes of this machine. Sourced there.
#
#   server ◄─ shm:// ─► client    a pair for each size, so that buffers are just as large
#   raw/latency-SIZE.json, raw/rate-SIZE.json ─► tables, histogram, report.html
# shellcheck disable=SC2154 # of the caller: raw, sizes, target, repo

server=''

stop_server() {
	[[ -n $server ]] || return 0
	local pid=$server status=0
	server=''
	kill -TERM "$pid" 2>/dev/null || true
	wait "$pid" || status=$?
	return "$status"
}

# start_server SIZE: at $url; returns when it listens.
start_server() {
	local log=$raw/server-$1.txt
	: >"$log"
	timeout -k 2 "$limit" "$spinwire" serve --listen "$url" --size-max "$1" --connections 1 >"$log" 2>&1 &
	server=$!
	for _ in {1..200}; do
		! grep -q '^listening on ' "$log" || return 0
		kill -0 "$server" 2>/dev/null || break
		sleep 0.05
	done
	fail "the server did not start" "$log"
}

fail() {
	say "error: $1; it said:"
	tail -n 10 "$2" >&2
	exit 1
}

# measure MODE SIZE: its figures go to a file, and one of them to the terminal.
measure() {
	local mode=$1 size=$2 file=$raw/$1-$2 shown
	((done_runs += 1))
	timeout -k 2 "$limit" "$spinwire" bench "$url" --op send --mode "$mode" --size "$size" \
		--duration "$seconds" --json >"$file.json" 2>"$file.err" || fail "$mode of $size bytes failed" "$file.err"
	if [[ $mode == latency ]]; then
		shown=$(jq -er '.results[0].latency_ns | "p50 \(.p50) ns, p99 \(.p99) ns"' "$file.json")
	else
		shown=$(jq -er '.results[0].rate
			| "\(.per_second / 1000 | round / 1000) million a second, \(.megabytes_per_second | round) MB/s"' "$file.json")
	fi
	printf '[%*d/%d] %-7s %6d B  %s\n' "${#all_runs}" "$done_runs" "$all_runs" "$mode" "$size" "$shown"
}

tables() {
	printf '\nLatency of SEND, half of the round trip, ns\n'
	jq -r '.results[0] | [.size_bytes, (.latency_ns | .min, .p50, .p90, .p99, .p999, .max), .iterations] | @tsv' \
		"${latency[@]}" | awk -F '\t' '
		BEGIN { form = "%8s %9s %9s %9s %9s %9s %11s %12s\n"
			printf form, "bytes", "min", "p50", "p90", "p99", "p99.9", "max", "round trips" }
		{ printf form, $1, $2, $3, $4, $5, $6, $7, $8 }'
	printf '\nThroughput of SEND, 128 outstanding\n'
	jq -r '.results[0] | [.size_bytes, .rate.per_second, .rate.megabytes_per_second, .iterations] | @tsv' \
		"${rate[@]}" | awk -F '\t' '
		BEGIN { printf "%8s %18s %12s %14s\n", "bytes", "messages a second", "GB/s", "messages" }
		{ printf "%8s %18.0f %12.2f %14s\n", $1, $2, $3 / 1000, $4 }'
}

# histogram FILE: up to the 99.9th percentile, in lines of a terminal.
histogram() {
	printf '\nHalf round trips of %d bytes\n' "$(jq '.results[0].size_bytes' "$1")"
	jq -r '.results[0] | .latency_ns.p999 as $most | .histogram[] | select(.from_ns <= $most) | [.from_ns, .count] | @tsv' \
		"$1" | awk -F '\t' '
		{ from[NR] = $1; count[NR] = $2; all += $2 }
		END {
			# Neighbours are put together until there are no more lines than a screen has.
			for (each = 1; NR / each > 24; each++) continue
			for (i = 1; i <= NR; i++) { line = int((i - 1) / each) + 1; sum[line] += count[i]; if (!((line) in first)) first[line] = from[i] }
			lines = int((NR - 1) / each) + 1
			for (i = 1; i <= lines; i++) if (sum[i] > most) most = sum[i]
			for (i = 1; i <= lines; i++) {
				bar = ""
				for (n = int(56 * sum[i] / most + 0.5); n > 0; n--) bar = bar "#"
				printf "%8d ns %6.2f %%  %s\n", first[i], 100 * sum[i] / all, bar
			}
		}'
}

facts() {
	local cpu commit
	cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
	commit=$(git -C "$repo" describe --always --dirty 2>/dev/null || true)
	jq -n --arg when "$(date -u '+%Y-%m-%d %H:%M UTC')" --arg cpu "${cpu:-$(uname -m)}" \
		--arg cores "$(nproc)" --arg kernel "$(uname -sr)" --arg commit "$commit" '
		[["measured", $when], ["processor", $cpu], ["cores", $cores], ["kernel", $kernel], ["commit", $commit]]
		| map(select(.[1] != ""))'
}

run_demo() {
	seconds=${SPINWIRE_DEMO_SECONDS:-1.5}
	[[ $seconds =~ ^[0-9]{1,3}(\.[0-9]{1,3})?$ && $seconds =~ [1-9] ]] ||
		die 2 "SPINWIRE_DEMO_SECONDS takes a time like 1.5"
	limit=$((20 + 3 * (${seconds%%.*} + 1)))
	locked apt_install gcc libc6-dev jq || die 1 "what building needs could not be installed"
	find_cargo || exit 1
	say "building the release binary, without verbs"
	# A directory of its own: a build with verbs is not undone.
	cargo build --release -p spinwire-apps --no-default-features --target-dir "$target/without-verbs" >&2
	spinwire=$target/without-verbs/release/spinwire
	url=shm://demo-$$
	trap 'stop_server || true' EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	trap 'exit 129' HUP

	rm -rf "$raw"
	mkdir -p "$raw"
	(($(nproc) > 1)) || say "there is one core: server and client take turns on it, which shows nothing of spinwire's speed"
	local size begin=$SECONDS
	done_runs=0 all_runs=$((2 * ${#sizes[@]})) latency=() rate=()
	printf '\nSEND between two processes, over shared memory\n'
	for size in "${sizes[@]}"; do
		start_server "$size"
		measure latency "$size"
		measure rate "$size"
		latency+=("$raw/latency-$size.json") rate+=("$raw/rate-$size.json")
		stop_server || fail "the server did not end well" "$raw/server-$size.txt"
	done
	tables
	histogram "${latency[0]}"
	jq -rs --argjson facts "$(facts)" -f "$repo/scripts/lib/demo-report.jq" \
		"${latency[@]}" "${rate[@]}" >"$raw/report.html"
	printf '\nThe figures are of this machine and this run. Measured in %d s.\nreport: %s\n' \
		$((SECONDS - begin)) "$raw/report.html"
}
