# Makes scripts/demo's tables of results.tsv: device size round tool p50 min p99, in µs.

function median(key, count,    i, j, swap, sorted) {
	for (i = 1; i <= count; i++) sorted[i] = value[key, i]
	for (i = 2; i <= count; i++)
		for (j = i; j > 1 && sorted[j - 1] > sorted[j]; j--) {
			swap = sorted[j]; sorted[j] = sorted[j - 1]; sorted[j - 1] = swap
		}
	if (count == 0) return 0
	return count % 2 ? sorted[(count + 1) / 2] : (sorted[count / 2] + sorted[count / 2 + 1]) / 2
}

function show(x) { return x ? sprintf("%.2f", x) : "-" }
function ratio(a, b) { return a && b ? sprintf("%.3f", a / b) : "-" }

function add(group, tool, x) { value[group SUBSEP tool, ++count[group, tool]] = x + 0 }

{
	group = $1 SUBSEP $2
	if (!(group in seen)) { seen[group] = 1; groups[++total] = group }
	if ($3 > rounds[group]) rounds[group] = $3
	p50[group, $3, $4] = $5
	add(group, $4, $5)
	if ($4 != "spinwire") add(group, "peer", $5)
	add(group, $4 " min", $6)
	add(group, $4 " p99", $7)
}

END {
	for (g = 1; g <= total; g++) {
		group = groups[g]
		split(group, name, SUBSEP)
		printf "\n%s, send, %s bytes, inline 0: p50 of the half round trip, us\n\n", name[1], name[2]
		form = "  %-8s %10s %10s %15s %22s %12s\n"
		printf form, "round", "spinwire", "perftest", "perftest again", "spinwire / perftest", "again / first"
		for (r = 1; r <= rounds[group]; r++) {
			a = p50[group, r, "perftest"]; b = p50[group, r, "perftest-again"]; o = p50[group, r, "spinwire"]
			printf form, r, show(o), show(a), show(b), ratio(o, a), ratio(b, a)
		}
		a = median(group SUBSEP "perftest", count[group, "perftest"])
		b = median(group SUBSEP "perftest-again", count[group, "perftest-again"])
		o = median(group SUBSEP "spinwire", count[group, "spinwire"])
		peer = median(group SUBSEP "peer", count[group, "peer"])
		printf form, "median", show(o), show(a), show(b), ratio(o, a), ratio(b, a)
		printf form, "min", show(median(group SUBSEP "spinwire min", count[group, "spinwire min"])),
			show(median(group SUBSEP "perftest min", count[group, "perftest min"])),
			show(median(group SUBSEP "perftest-again min", count[group, "perftest-again min"])), "", ""
		printf form, "p99", show(median(group SUBSEP "spinwire p99", count[group, "spinwire p99"])),
			show(median(group SUBSEP "perftest p99", count[group, "perftest p99"])),
			show(median(group SUBSEP "perftest-again p99", count[group, "perftest-again p99"])), "", ""
		print "  (min and p99: medians over the rounds)"
		if (o && peer)
			printf "\n  %s: spinwire / perftest = %.3f over all runs of both, %s 1.05; perftest / itself = %s\n",
				name[1], o / peer, o / peer <= 1.05 ? "at most" : "MORE THAN", ratio(b, a)
		else
			printf "\n  %s: no comparison; perftest / itself = %s\n", name[1], ratio(b, a)
	}
}
