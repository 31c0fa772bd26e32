# shellcheck shell=bash
# What the lab needs on the host: Debian packages, virtme-ng, the siw module.
# Sourced by scripts/lab, after common.sh.

virtme_ng=1.42
# shellcheck disable=SC2154 # cache is of common.sh
venv=$cache/virtme-ng-$virtme_ng

# The newest kernel that is installed together with its headers, e.g. 6.1.0-57-amd64.
lab_kernel() {
	local image version
	while read -r image; do
		version=${image#/boot/vmlinuz-}
		[[ $version =~ ^[0-9][0-9.+~a-z-]*-amd64$ && $version != *-cloud-amd64 && $version != *-rt-amd64 ]] || continue
		[[ -e /lib/modules/$version/build/Makefile ]] || continue
		printf '%s\n' "$version"
		return
	done < <(find /boot -maxdepth 1 -name 'vmlinuz-*-amd64' | sort -rV)
	return 1
}

# Where the siw module for a kernel is: "kernel" when the kernel package has it.
lab_siw() {
	local kernel=$1 source
	if modinfo -k "$kernel" siw >/dev/null 2>&1; then
		echo kernel
		return
	fi
	source=$(dpkg-query -W -f='${Version}' "$(lab_source "$kernel")" 2>/dev/null) || source=none
	printf '%s/siw-%s-%s/siw.ko\n' "$cache" "$kernel" "$source"
}

# The package with a kernel's source: 6.1.0-57-amd64 gives linux-source-6.1.
lab_source() {
	[[ $1 =~ ^([0-9]+\.[0-9]+) ]] && printf 'linux-source-%s\n' "${BASH_REMATCH[1]}"
}

lab_install() {
	[[ $(uname -m) == x86_64 ]] || {
		say "the lab needs an x86_64 machine"
		return 1
	}
	apt_install qemu-system-x86 rdma-core ibverbs-utils ibverbs-providers rdmacm-utils perftest \
		iproute2 kmod busybox-static cpio file udev util-linux xz-utils gcc make python3 python3-venv || return 1
	lab_kernel >/dev/null || apt_install linux-image-amd64 linux-headers-amd64 || return 1

	local kernel siw
	kernel=$(lab_kernel) || {
		say "no kernel in /boot has its headers installed: apt-get install linux-image-amd64 linux-headers-amd64"
		return 1
	}
	if [[ ! -e $venv/installed ]]; then
		say "installing virtme-ng $virtme_ng into $venv"
		rm -rf "$venv"
		/usr/bin/python3 -m venv "$venv" >&2 || return 1
		"$venv/bin/pip" install --quiet "virtme-ng==$virtme_ng" >&2 </dev/null || return 1
		touch "$venv/installed"
	fi
	if [[ $(lab_siw "$kernel") != kernel ]]; then
		apt_install "$(lab_source "$kernel")" || return 1
		siw=$(lab_siw "$kernel")
		[[ -e $siw ]] || build_siw "$kernel" "$siw" || return 1
	fi
}

# Debian's kernel package has no siw before 6.12, but its source package does.
build_siw() {
	local kernel=$1 siw=$2 build source
	source=$(lab_source "$kernel")
	say "building the siw module for $kernel from $source"
	build=$(mktemp -d "$cache/build.XXXXXX") || return 1
	if tar -xJf "/usr/src/$source.tar.xz" -C "$build" --strip-components=1 \
		"$source/drivers/infiniband/sw/siw" &&
		make -C "/lib/modules/$kernel/build" M="$build/drivers/infiniband/sw/siw" \
			CONFIG_RDMA_SIW=m modules >"$build/log" 2>&1; then
		mkdir -p "${siw%/*}"
		mv "$build/drivers/infiniband/sw/siw/siw.ko" "$siw"
		rm -rf "$build"
	else
		say "the siw build failed:"
		[[ ! -e $build/log ]] || tail -n 20 "$build/log" >&2
		rm -rf "$build"
		return 1
	fi
}
