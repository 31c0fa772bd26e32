# shellcheck shell=bash
# What building needs on the host: a Rust toolchain, and packages for the verbs bindings.
# Sourced, after common.sh.

# shellcheck disable=SC2034,SC2154 # used by those who source this; cache and repo are of common.sh
target=${CARGO_TARGET_DIR:-$repo/target}
tools=$cache/tools

# Whether `cargo` is there and new enough for the workspace.
cargo_fits() {
	local have
	have=$(cargo --version 2>/dev/null | cut -d' ' -f2) || return 1
	[[ -n $have && $(printf '%s\n' "$1" "$have" | sort -V | head -n 1) == "$1" ]]
}

find_cargo() {
	local need
	need=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$repo/Cargo.toml")
	cargo_fits "$need" && return
	PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
	cargo_fits "$need" && return
	say "no cargo $need or newer was found in PATH or ~/.cargo/bin, and Debian's own may be too old:"
	say "install Rust with rustup (apt-get install rustup, where Debian has it; then: rustup default stable)"
	return 1
}

# The verbs bindings are made with cmake and libclang.
build_install() {
	apt_install cmake clang libclang-dev pkg-config gcc g++ make jq
}

# Prints the path of cargo-deny, built into the cache the first time.
deny_version=0.20.2
find_deny() {
	if [[ -x $tools/bin/cargo-deny ]]; then
		echo "$tools/bin/cargo-deny"
	else
		command -v cargo-deny
	fi
}

deny_install() {
	find_deny >/dev/null && return
	say "building cargo-deny $deny_version into $tools: once, some minutes"
	env -u CARGO_TARGET_DIR cargo install --quiet --locked --root "$tools" "cargo-deny@$deny_version" >&2
}
