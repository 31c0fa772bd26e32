# shellcheck shell=bash
# The rounds of a comparison with peers. Sourced.
# shellcheck disable=SC2154 # of the caller: raw, rounds, limit, port, cases
#
# A case is "DEVICE OP MODE SETTINGS". The caller defines
#   peer_of SETTINGS                                the name of the case's peer
#   run_TOOL DEVICE OP MODE SETTINGS NAME           for spinwire and each peer: runs it, what it says goes
#                                                   to files that begin with NAME, prints the figure
#   is_expected DEVICE OP                           a run without a figure is no failure
# Each run has its own $port, of ten that nobody else is given. A line a run goes to $raw/results.tsv:
# device, operation, mode, settings, round, tool, figure, message; with `-` for the figure the message
# says why there is none. A case that a tool fails in the first round is not tried again.

# figure_of MODE FILE: of a document of `spinwire bench --json`.
figure_of() {
	local figure
	case $1 in
	latency) figure='.latency_ns.p50 / 1000' ;;
	rate) figure='.rate.per_second' ;;
	bandwidth) figure='.rate.megabytes_per_second' ;;
	esac
	jq -er ".results[0] | $figure" "$2"
}

# The first line of what a tool said that tells what went wrong.
complaint() {
	local name=$1 line
	line=$(cat "$name.err" "$name.out" "$name.server.txt" 2>/dev/null |
		grep -Eiv 'inline feature|^ *$|^-+$' |
		grep -Eim1 'error|errno|fail|not support|unable|couldn.t|refused|cannot|no atomics' || true)
	echo "${line:-no figure and no message within $limit s}" | tr '\t' ' '
}

failures=0
declare -A hopeless=()
measure() {
	local case=$1 round=$2 tool=$3 figure message=''
	local device op mode setting key
	read -r device op mode setting <<<"$case"
	tool=${tool/peer/$(peer_of "$setting")}
	key="$case ${tool%-again}"
	[[ -z ${hopeless[$key]:-} ]] || return 0
	local name=$raw/$device-$op-$mode-${setting//[=,]/-}-$round.$tool
	if ! figure=$("run_${tool%-again}" "$device" "$op" "$mode" "$setting" "$name"); then
		figure=- message=$(complaint "$name")
		((round > 1)) || hopeless[$key]=yes
		is_expected "$device" "$op" || ((failures += 1))
	fi
	printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' \
		"$device" "$op" "$mode" "$setting" "$round" "$tool" "$figure" "$message" >>"$raw/results.tsv"
	printf '  round %s  %-60s %-16s %s\n' "$round" "$case" "$tool" "${message:-$figure}"
	# The ports that the run used are seen no more by a later one.
	((port += 10))
}

run_rounds() {
	local round case tool
	# Each tool comes first, in the middle and last in turn.
	local orders=('peer spinwire peer-again' 'spinwire peer-again peer' 'peer-again peer spinwire')
	for ((round = 1; round <= rounds; round++)); do
		for case in "${cases[@]}"; do
			for tool in ${orders[round % ${#orders[@]}]}; do
				measure "$case" "$round" "$tool"
			done
		done
	done
}
