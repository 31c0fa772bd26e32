#!/usr/bin/env bash
# The guest's half of scripts/demo: guest-demo.sh RAW_DIR SPINWIRE_BINARY
# Measures perftest, spinwire and perftest again, on each device, size and round. A line a
# measurement goes to RAW_DIR/results.tsv (device size round tool p50 min p99, in µs), and what the
# tools said to files beside it. Settings come from SPINWIRE_DEMO_*: see scripts/demo.

set -euo pipefail
raw=$1 spinwire=$2
iterations=$SPINWIRE_DEMO_ITERS
# Each server and client is ended by then, whatever happened.
limit=$((30 + iterations / 500))
port=18600

# shellcheck source=guest-meet.sh
source "$(dirname "${BASH_SOURCE[0]}")/guest-meet.sh"

run_perftest() {
	local device=$1 address=$2 size=$3 name=$4
	local common=(ib_send_lat -R -d "$device" -s "$size" -n "$iterations" -I 0 -F)
	# Now and then perftest fails to connect, or to calibrate its clock, and then reports `inf`.
	for _ in 1 2 3 4; do
		if ! meet "$name" taskset -c 1 "${common[@]}" -p "$port" -- \
			taskset -c 0 "${common[@]}" -p "$port" "$address"; then
			echo "  perftest failed: $(head -n 1 "$name.err"); once more" >&2
			((port += 1))
			continue
		fi
		# Columns: bytes, iterations, min, max, typical (the median), mean, deviation, 99 %, 99.9 %
		awk -v size="$size" '$1 == size && NF == 9 && $5 + 0 > 0 && $5 != "inf" {
				printf "%s\t%s\t%s\n", $5, $3, $8; found = 1 }
			END { exit !found }' "$name.out" && return
		echo "  perftest reported no figures; once more" >&2
		((port += 1))
	done
	return 1
}

run_spinwire() {
	local address=$2 size=$3 name=$4
	# Told the size and the one connection, as perftest's server is.
	meet "$name" "$spinwire" serve --listen "rdma://$address:$port" --size-max "$size" --connections 1 --worker-core 1 --control-core 0 --inline 0 -- \
		"$spinwire" bench "rdma://$address:$port" --op send --mode latency --size "$size" \
		--iters "$iterations" --inline 0 --worker-core 0 --control-core 1 --json || return
	jq -er '.results[0].latency_ns | [.p50, .min, .p99] | map(. / 1000 | . * 100 | round / 100) | @tsv' "$name.out"
}

failures=0
measure() {
	local device=$1 address=$2 size=$3 round=$4 tool=$5 figures
	local name=$raw/$device-$size-$round.$tool
	((port += 10))
	if figures=$("run_${tool%-again}" "$device" "$address" "$size" "$name"); then
		printf '%s\t%s\t%s\t%s\t%s\n' "$device" "$size" "$round" "$tool" "$figures" >>"$raw/results.tsv"
		printf '  %-5s %6s B  round %s  %-15s p50 %8s us\n' "$device" "$size" "$round" "$tool" "${figures%%$'\t'*}"
	else
		printf '  %-5s %6s B  round %s  %-15s FAILED\n' "$device" "$size" "$round" "$tool"
		tail -n 5 "$name.server.txt" "$name.out" "$name.err" 2>/dev/null || true
		((failures += 1))
	fi
}

# Each tool comes first, in the middle and last in turn.
orders=('perftest spinwire perftest-again' 'spinwire perftest-again perftest'
	'perftest-again perftest spinwire')
for entry in 'rxe0 10.9.0.1' 'siw0 10.9.1.1'; do
	read -r device address <<<"$entry"
	for size in $SPINWIRE_DEMO_SIZES; do
		for ((round = 1; round <= SPINWIRE_DEMO_ROUNDS; round++)); do
			for tool in ${orders[round % ${#orders[@]}]}; do
				[[ $tool == spinwire && $SPINWIRE_DEMO_PEER_ONLY == 1 ]] ||
					measure "$device" "$address" "$size" "$round" "$tool"
			done
		done
	done
done
((failures == 0))
