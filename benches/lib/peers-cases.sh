# shellcheck shell=bash
# What benches/lab-peers compares, a line a case: device, operation, mode, settings. Sourced.
#
#   rxe0 write rate size=64,depth=128,list=16
#
# `defaults` as settings: neither tool is told more than the size.

peers_cases() {
	local device op list
	for device in rxe0 siw0; do
		for op in send write read faa cas; do
			echo "$device $op latency size=8"
		done
		for op in send write read; do
			for list in 1 16; do
				echo "$device $op rate size=64,depth=128,list=$list"
			done
		done
		for op in send write read; do
			echo "$device $op bandwidth size=65536,depth=128,list=1"
		done
	done
	echo "rxe0 send rate defaults"
}
