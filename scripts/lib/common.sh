# shellcheck shell=bash
# Parts that every script here shares. Sourced, never run.
# shellcheck disable=SC2034

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# Everything that the scripts install or build for themselves lives here, outside the tree.
cache=${SPINWIRE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/spinwire}
program=${0##*/}

# Progress and errors go to stderr: a command's stdout may be data.
say() { printf '%s: %s\n' "$program" "$*" >&2; }

die() {
	local status=$1
	shift
	say "error: $*"
	exit "$status"
}

# Prints the part of a script's head comment that is its help.
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; }

installed() {
	[[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# Installs the named Debian packages that are missing; silent when none is.
apt_install() {
	local package missing=()
	for package; do
		installed "$package" || missing+=("$package")
	done
	((${#missing[@]})) || return 0
	command -v apt-get >/dev/null || {
		say "these packages are missing, and this is no Debian system: ${missing[*]}"
		return 1
	}
	((EUID == 0)) || {
		say "these packages are missing; as root: apt-get install --no-install-recommends ${missing[*]}"
		return 1
	}
	say "installing Debian packages: ${missing[*]}"
	local apt=(apt-get -qq -o DPkg::Lock::Timeout=600)
	"${apt[@]}" update >&2 </dev/null || return 1
	DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y --no-install-recommends \
		"${missing[@]}" >&2 </dev/null
}

# Runs a command while no other run of these scripts installs or builds anything.
locked() {
	mkdir -p "$cache"
	(
		flock -w 1800 9 || die 1 "another run has held $cache/install.lock for half an hour"
		"$@" 9>&-
	) 9>"$cache/install.lock"
}
