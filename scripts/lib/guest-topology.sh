#!/usr/bin/env bash
# Sets up the RDMA devices in the lab's guest: guest-topology.sh A|B SIW_MODULE
#   A  rxe0 at 10.9.0.1 and siw0 at 10.9.1.1, each reached at its own address: rxe then passes
#      packets on inside the driver, so no loss, filter, link or MTU shows there
#   B  rxe0 at 10.9.0.1 and rxe1 at 10.9.0.2, joined by a wire: v0 and v1, a veth pair

set -euo pipefail
topology=$1 siw=$2

# Waits until a device's port is up, and its address is in the GID table.
wait_active() {
	local state
	for _ in {1..300}; do
		state=$(<"/sys/class/infiniband/$1/ports/1/state")
		[[ $state != *ACTIVE ]] || return 0
		sleep 0.1
	done
	echo "port of $1 is still: $state" >&2
	return 1
}

modprobe -a rdma_rxe ib_uverbs rdma_ucm veth
# RDMA over Ethernet sends 4096 bytes a packet only where they fit with its headers.
ip link add v0 mtu 4200 type veth peer name v1 mtu 4200
ip link set lo up

case $topology in
A)
	ip addr add 10.9.0.1/24 dev v0
	ip addr add 10.9.1.1/24 dev v1
	;;
B)
	for interface in all default v0 v1; do
		conf=/proc/sys/net/ipv4/conf/$interface
		echo 1 >"$conf/accept_local"
		echo 0 >"$conf/rp_filter"
		echo 1 >"$conf/arp_ignore"
	done
	ip addr add 10.9.0.1/24 dev v0
	ip addr add 10.9.0.2/24 dev v1
	;;
esac
ip link set v0 up
ip link set v1 up

if [[ $topology == B ]]; then
	# Traffic between the two local addresses crosses the wire instead of lo.
	ip rule add pref 100 lookup local
	ip rule del pref 0
	# That holds for a client that names no source too: it gets the address of the near end.
	ip rule add pref 10 iif lo to 10.9.0.2 lookup 101
	ip route add 10.9.0.2 dev v0 src 10.9.0.1 table 101
	ip rule add pref 11 iif lo to 10.9.0.1 lookup 102
	ip route add 10.9.0.1 dev v1 src 10.9.0.2 table 102
fi

rdma link add rxe0 type rxe netdev v0
if [[ $topology == A ]]; then
	if [[ $siw == kernel ]]; then
		modprobe siw
	else
		modprobe -a ib_core iw_cm libcrc32c
		insmod "$siw"
	fi
	rdma link add siw0 type siw netdev v1
	devices=(rxe0 siw0)
else
	rdma link add rxe1 type rxe netdev v1
	devices=(rxe0 rxe1)
fi
for device in "${devices[@]}"; do wait_active "$device"; done
