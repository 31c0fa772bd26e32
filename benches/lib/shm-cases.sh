# shellcheck shell=bash
# What benches/peers compares over shared memory, a line a case: device, operation, mode, settings.
# Sourced. Among the settings: vs, the peer; atmost or atleast, the target of the ratio.
#
# ucp-am, uct-am  UCX over posix shared memory; uct-am is its transport alone
# libfabric       fi_pingpong over the shm provider; its figure is a mean
# line            a cache line that goes to and fro between two threads that spin, half a round trip
# ring            our own inbox without lane and engine around it, payload read
# memcpy          one thread that copies from 64 MiB to 64 MiB, beyond its caches

shm_cases() {
	cat <<'END'
shm send latency size=8,vs=ucp-am,atmost=1.0
shm send latency size=8,vs=uct-am,atmost=1.0
shm send latency size=8,vs=libfabric,atmost=1.0
shm send latency size=8,vs=line,atmost=1.5
shm send latency size=8,vs=ring,atmost=1.25
shm send rate size=8,vs=uct-am,atleast=3
shm send rate size=8,vs=ring,atleast=0.5
shm send rate size=4096,vs=ucp-am,atleast=1
shm write bandwidth size=4096,depth=16,span=67108864,vs=memcpy,atleast=0.7
shm write bandwidth size=65536,depth=16,span=67108864,vs=memcpy,atleast=0.9
shm write bandwidth size=1048576,depth=16,span=67108864,vs=memcpy,atleast=0.9
shm read bandwidth size=4096,depth=16,span=67108864,vs=memcpy,atleast=0.7
shm read bandwidth size=65536,depth=16,span=67108864,vs=memcpy,atleast=0.9
shm read bandwidth size=1048576,depth=16,span=67108864,vs=memcpy,atleast=0.9
END
}
