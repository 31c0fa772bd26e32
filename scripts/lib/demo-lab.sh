# shellcheck shell=bash
# scripts/demo --lab: spinwire beside perftest on the lab's devices. Sourced there.
# shellcheck disable=SC2154 # of the caller: raw, sizes, target

run_demo() {
	export SPINWIRE_DEMO_ROUNDS=${SPINWIRE_DEMO_ROUNDS:-5}
	export SPINWIRE_DEMO_ITERS=${SPINWIRE_DEMO_ITERS:-20000}
	export SPINWIRE_DEMO_PEER_ONLY=${SPINWIRE_DEMO_PEER_ONLY:-0}
	[[ $SPINWIRE_DEMO_ROUNDS =~ ^[1-9][0-9]{0,2}$ ]] || die 2 "SPINWIRE_DEMO_ROUNDS takes a number from 1 to 999"
	[[ $SPINWIRE_DEMO_ITERS =~ ^[1-9][0-9]{1,6}$ ]] || die 2 "SPINWIRE_DEMO_ITERS takes a number from 10 to 9999999"

	locked apt_install jq || die 1 "jq could not be installed"
	if [[ $SPINWIRE_DEMO_PEER_ONLY != 1 ]]; then
		find_cargo || exit 1
		locked build_install || die 1 "what building needs could not be installed"
		say "building the release binary"
		cargo build --release -p spinwire-apps >&2
	fi

	rm -rf "$raw"
	mkdir -p "$raw"
	local limit status=0
	limit=$((300 + ${#sizes[@]} * SPINWIRE_DEMO_ROUNDS * 6 * (10 + SPINWIRE_DEMO_ITERS / 1000)))
	scripts/lab --timeout "$limit" --cpus 2 --rwdir "$raw" \
		bash scripts/lib/guest-demo.sh "$raw" "$target/release/spinwire" || status=$?
	[[ ! -s $raw/results.tsv ]] || awk -f scripts/lib/demo-report.awk "$raw/results.tsv"
	((status == 0)) || die 1 "not all of it ran (status $status); the tools' output is in $raw"
	say "raw output: $raw"
}
