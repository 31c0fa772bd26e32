#!/usr/bin/env bash
# The guest's half of benches/lab-peers: guest-peers.sh RAW_DIR SPINWIRE_BINARY CASE...
# Runs every case in every round, as rounds.sh says. The figure is the p50 in µs, or messages or megabytes
# (10^6) per second.

set -euo pipefail
raw=$1 spinwire=$2
shift 2
cases=("$@")
rounds=$SPINWIRE_PEERS_ROUNDS scale=$SPINWIRE_PEERS_SCALE
port=18600 limit=60
# Receives that either side posts.
receives=512
# READs and atomics outstanding: what spinwire asks for by itself.
fetches=16
# shellcheck source=../../scripts/lib/guest-meet.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib/guest-meet.sh"
# shellcheck source=rounds.sh
source "$(dirname "${BASH_SOURCE[0]}")/rounds.sh"

declare -A address=([rxe0]=10.9.0.1 [siw0]=10.9.1.1)
declare -A verb=([send]=send [write]=write [read]=read [faa]=atomic [cas]=atomic)

# The settings of a case to size, depth, list.
settings() {
	local pair
	size=64 depth='' list=''
	for pair in ${1//,/ }; do
		[[ $pair == defaults ]] || printf -v "${pair%%=*}" %s "${pair#*=}"
	done
}

# Operations of a run; a multiple of every post list.
operations() {
	local n
	case $1 in
	latency) n=5000 ;;
	rate) n=32000 ;;
	bandwidth) n=1600 ;;
	esac
	n=$((n * scale / 100))
	echo $((n < 320 ? 320 : n - n % 32))
}

run_perftest() {
	local device=$1 op=$2 mode=$3 setting=$4 name=$5 command try
	local size depth list
	settings "$setting"
	command=("ib_${verb[$op]}" -R -d "$device" -n "$(operations "$mode")" -F)
	if [[ $mode == latency ]]; then command[0]+=_lat; else command[0]+=_bw; fi
	case $op in
	faa) command+=(-A FETCH_AND_ADD) ;;
	cas) command+=(-A CMP_AND_SWAP) ;;
	*) command+=(-s "$size") ;;
	esac
	if [[ $setting != defaults ]]; then
		case $op in
		send | write) command+=(-I 0) ;;
		*) command+=(-o "$fetches") ;;
		esac
		[[ $mode == latency ]] || command+=(-t "$depth" -l "$list" -Q "$list" -N)
		[[ $op-$mode != send-* || $mode == latency ]] || command+=(-r "$receives")
	fi
	echo "${command[*]}" >"$name.command.txt"
	# Now and then perftest fails to connect, or to calibrate its clock, and then reports `inf`.
	for try in 1 2 3 4; do
		((port += 1))
		if meet "$name" taskset -c 1 "${command[@]}" -p "$port" -- \
			taskset -c 0 "${command[@]}" -p "$port" "${address[$device]}"; then
			# Latency: bytes, iterations, min, max, typical (the median) …; else bytes, iterations,
			# peak, average, million messages per second.
			awk -v mode="$mode" -v size="$size" '
				$1 == size && $5 + 0 > 0 && $5 != "inf" && (mode == "latency" ? NF == 9 : NF == 5) {
					print mode == "latency" ? $5 : mode == "rate" ? $5 * 1e6 : $5 * size
					found = 1
				}
				END { exit !found }' "$name.out" && return
		fi
		# What the device cannot do it will not do the next time.
		! grep -Eiq "couldn't post|not supported by|atomic.*(support|capab)" "$name.err" "$name.out" || return 1
		[[ $try == 4 ]] || echo "  perftest: $(complaint "$name"); once more" >&2
	done
	return 1
}

run_spinwire() {
	local device=$1 op=$2 mode=$3 setting=$4 name=$5
	local size depth list url
	settings "$setting"
	((port += 1))
	url=rdma://${address[$device]}:$port
	local server=("$spinwire" serve --listen "$url") client=("$spinwire" bench "$url" --json
		--op "$op" --mode "$mode" --iters "$(operations "$mode")")
	# Told the size, the receives and the one connection, as perftest's server is.
	if [[ $setting != defaults ]]; then
		server+=(--size-max "$size" --connections 1 --inline 0 --recv-depth "$receives")
		client+=(--size "$size" --inline 0)
		[[ $mode == latency ]] || client+=(--depth "$depth" --post-list "$list")
	fi
	echo "${client[*]}" >"$name.command.txt"
	meet "$name" "${server[@]}" --worker-core 1 --control-core 0 -- \
		"${client[@]}" --worker-core 0 --control-core 1 || return
	figure_of "$mode" "$name.out"
}

peer_of() { echo perftest; }

# A device without atomics is no failure of a tool.
is_expected() { [[ $1-$2 == siw0-faa || $1-$2 == siw0-cas ]]; }

run_rounds
((failures == 0)) || echo "$failures runs failed"
((failures == 0))
