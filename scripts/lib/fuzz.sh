#!/usr/bin/env bash
# Fuzzes what a peer can send: bash scripts/lib/fuzz.sh SECONDS
#
# Builds every target of fuzz/ with coverage (stable Rust and a C++ compiler suffice) and runs each
# for SECONDS. A run starts from the small corpus in the tree, with a fixed seed and fixed addresses,
# so it does the same each time, but for how far it gets. Finds, logs and inputs that broke
# something go to the target directory, never into the tree. Ends with 1, naming the input, where a
# target failed. When the engine's dependencies change, so must fuzz/Cargo.lock: cargo update
# --workspace --manifest-path fuzz/Cargo.toml

set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=rust.sh
source "$repo/scripts/lib/rust.sh"

seed=1
# Longer than any private data, and than a frame whose length is checked.
length_max=256

[[ $# == 1 && $1 =~ ^[1-9][0-9]{0,5}$ ]] || die 2 "usage: bash scripts/lib/fuzz.sh SECONDS (1 to 999999, for each target)"
seconds=$1
find_cargo || exit 1
command -v c++ >/dev/null || die 1 "libFuzzer is built with c++, and there is none: apt-get install g++"

work=$target/fuzz
triple=$(rustc -vV | sed -n 's/^host: //p')
# What cargo-fuzz passes for coverage. With --target these flags spare build scripts and macros.
coverage=(-Cpasses=sancov-module -Ccodegen-units=1 -Clink-dead-code)
for argument in level=4 inline-8bit-counters pc-table trace-compares; do
	coverage+=("-Cllvm-args=-sanitizer-coverage-$argument")
done

say "building the targets of fuzz/ into $work"
RUSTFLAGS="${coverage[*]} --cfg fuzzing" cargo build --quiet --locked --release \
	--manifest-path "$repo/fuzz/Cargo.toml" --target "$triple" --target-dir "$work" >&2

# libFuzzer's choices depend on addresses, so the seed alone fixes nothing.
fixed=(setarch -R)
"${fixed[@]}" true 2>/dev/null || {
	say "address randomisation cannot be turned off here (setarch -R): runs will differ"
	fixed=()
}

failed=0
for source in "$repo"/fuzz/targets/*.rs; do
	name=$(basename "$source" .rs)
	binary=$work/$triple/release/$name
	corpus=$repo/fuzz/corpus/$name
	finds=$work/finds/$name
	broken=$work/broken/$name
	log=$work/$name.log
	# Finds of the last run would make this one another.
	rm -rf "$finds"
	mkdir -p "$finds" "$broken"
	printf '%s: %s s from %d inputs, seed %d\n' "$name" "$seconds" "$(find "$corpus" -type f | wc -l)" "$seed"
	# libFuzzer writes what it finds to the first folder and only reads the second.
	if RUST_BACKTRACE=0 "${fixed[@]}" "$binary" -seed="$seed" -max_total_time="$seconds" -max_len="$length_max" -reload=0 -timeout=10 \
		-rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="$broken/" "$finds" "$corpus" \
		>"$log" 2>&1 </dev/null; then
		printf '%s: ok, %s runs, %s of coverage, %d finds in %s\n' "$name" \
			"$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
			"$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)" \
			"$(find "$finds" -type f | wc -l)" "$finds"
		continue
	fi
	failed=1
	input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
	printf '%s: FAILED; from %s:\n' "$name" "$log"
	grep -A 3 'panicked at' "$log" || tail -n 20 "$log"
	printf '%s: the input is %s; to run it again: %s %s\n' "$name" "${input:-unknown}" "$binary" "${input:-INPUT}"
done
exit "$failed"
