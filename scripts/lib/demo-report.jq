# Makes scripts/demo's report.html: one file, nothing loaded from elsewhere.
#   jq -rs --argjson facts '[["processor","…"], …]' -f demo-report.jq RUN.json…
# Each RUN is a document of `spinwire bench --json`.

def group: if length <= 3 then . else (.[:-3] | group) + "\u202f" + .[-3:] end;
def whole: round | tostring | group;
def fixed($digits): pow(10; $digits) as $p | (. * $p | round) / $p | tostring;
def bytes: if . >= 1024 and . % 1024 == 0 then "\(. / 1024) KiB" else "\(.) B" end;
def time:
  if . < 1000 then "\(whole) ns"
  elif . < 1000000 then "\(. / 1000 | fixed(2)) µs"
  else "\(. / 1000000 | fixed(2)) ms" end;
def per_second:
  if . >= 1000000 then "\(. / 1000000 | fixed(2)) M/s" else "\(. / 1000 | fixed(1)) k/s" end;
def bandwidth: "\(. / 1000 | fixed(2)) GB/s";

# SVG, in a box of 720 wide.
def text($x; $y; $anchor): "<text x='\($x | fixed(1))' y='\($y | fixed(1))' text-anchor='\($anchor)'>\(. | @html)</text>";
def box($x; $y; $w; $h; $class; $title):
  "<rect class='\($class)' x='\($x | fixed(2))' y='\($y | fixed(2))' width='\($w | fixed(2))' height='\($h | fixed(2))'><title>\($title | @html)</title></rect>";
def upright($x; $top; $bottom; $class):
  "<line class='\($class)' x1='\($x | fixed(1))' x2='\($x | fixed(1))' y1='\($top)' y2='\($bottom)'/>";
def svg($height; $what; body):
  "<svg viewBox='0 0 720 \($height)' role='img' aria-label='\($what | @html)'>\([body] | join(""))</svg>";

# Rows of {name, value, shown} as bars from the left, on a linear scale.
def bars($what):
  . as $rows | ([$rows[].value] | max) as $most
  | svg(($rows | length) * 30 + 6; $what;
      range($rows | length) as $i | $rows[$i] as $row
      | (if $most > 0 then $row.value / $most * 480 else 0 end) as $w
      | ($row.name | text(80; $i * 30 + 20; "end")),
        box(90; $i * 30 + 5; ([$w, 1] | max); 20; "bar"; "\($row.name): \($row.shown)"),
        ($row.shown | text(98 + ([$w, 1] | max); $i * 30 + 20; "start")));

# Times of one size: buckets up to the 99.9th percentile, on a logarithmic scale.
def histogram:
  .latency_ns as $l | .size_bytes as $size
  | ([.histogram[].count] | add) as $all
  | [.histogram[] | select(.from_ns <= $l.p999 and .from_ns > 0)
      | . + {dense: (.count / ((.to_ns | log) - (.from_ns | log)))}] as $buckets
  | if ($buckets | length) == 0 then "" else
      ($buckets[0].from_ns | log) as $low
      | ([($buckets[-1].to_ns | log), $low + 0.1] | max) as $high
      | ([$buckets[].dense] | max) as $most
      | def at: ((log - $low) / ($high - $low) * 690 + 15);
      "<h3>\($size | bytes)</h3>"
      + svg(190; "Histogram of latencies of \($size) bytes";
          ($buckets[] | (.dense / $most * 130) as $h
            | box(.from_ns | at; 150 - $h; ([(.to_ns | at) - (.from_ns | at) - 0.5, 0.5] | max); $h; "bar";
                "\(.from_ns) to \(.to_ns) ns: \(.count | whole) (\(.count / $all * 100 | fixed(2)) %)")),
          "<line class='axis' x1='15' x2='705' y1='150.5' y2='150.5'/>",
          ([(if $high - $low > 1.5 then 1, 2, 5 else 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8 end)
              | . * (range(10) as $e | pow(10; $e))][]
            | select(log >= $low and log <= $high)
            | at as $x | upright($x; 150; 155; "axis"), (time | text($x; 168; "middle"))),
          (["p50", $l.p50], ["p99", $l.p99] | .[0] as $name | .[1]
            | select(. > 0 and log >= $low and log <= $high)
            | at as $x | upright($x; 4; 150; "mark"),
              ("\($name) \(time)" | (if $x > 560 then -4 else 4 end) as $off
                | text($x + $off; if $name == "p50" then 13 else 27 end; if $off < 0 then "end" else "start" end))))
    end;

def cells($tag): "<tr>" + (map("<\($tag)>\(. | @html)</\($tag)>") | join("")) + "</tr>";

(map(select(.mode == "latency").results[]) | sort_by(.size_bytes)) as $latency
| (map(select(.mode != "latency").results[]) | sort_by(.size_bytes)) as $rate
| .[0] as $first
| "<!doctype html>
<html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width'>
<title>spinwire: messages between two processes</title>
<style>
:root { color-scheme: light dark; --ink: #1a2330; --soft: #5b6675; --line: #d5dbe3; --bar: #2a78b8; --mark: #c2571a; --page: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa5b4; --line: #36404d; --bar: #5ba4dd; --mark: #ef9a5d; --page: #141a22; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 760px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } h3 { font-size: 1rem; margin: 1rem 0 0; }
p, dl { color: var(--soft); } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .5rem; border-bottom: 1px solid var(--line); } th { color: var(--soft); font-weight: 600; }
.wide { overflow-x: auto; } dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; } dd { margin: 0; color: var(--ink); }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--ink); } .bar { fill: var(--bar); }
.axis { stroke: var(--soft); } .mark { stroke: var(--mark); stroke-dasharray: 4 3; }
</style></head><body>
<h1>Messages between two processes</h1>
<p>spinwire \($first.version | @html), SEND from one process of this machine to another over shared memory, each worker spinning on a core of its own. The figures are of this machine and this run, and of no other.</p>
<dl>\($facts | map("<dt>\(.[0] | @html)</dt><dd>\(.[1] | @html)</dd>") | join(""))</dl>

<h2>Latency: one message at a time</h2>
<p>Half of the round trip, in which the peer answers with the same message. A time stamp costs \($first.clock.stamp_cost_ns | fixed(0)) ns and is part of a round trip.</p>
\($latency | map({name: (.size_bytes | bytes), value: .latency_ns.p50, shown: (.latency_ns.p50 | time)}) | bars("Median latency by size"))
<div class='wide'><table>
\(["bytes", "min", "p50", "p90", "p99", "p99.9", "max", "round trips"] | cells("th"))
\($latency | map([(.size_bytes | whole), (.latency_ns | .min, .p50, .p90, .p99, .p999, .max | time), (.iterations | whole)] | cells("td")) | join("\n"))
</table></div>

<h2>Throughput: \($rate[0].depth // 0) messages outstanding</h2>
\($rate | map({name: (.size_bytes | bytes), value: .rate.per_second, shown: (.rate.per_second | per_second)}) | bars("Messages in a second by size"))
\($rate | map({name: (.size_bytes | bytes), value: .rate.megabytes_per_second, shown: (.rate.megabytes_per_second | bandwidth)}) | bars("Bytes in a second by size"))
<div class='wide'><table>
\(["bytes", "messages a second", "bandwidth", "messages", "seconds"] | cells("th"))
\($rate | map([(.size_bytes | whole), (.rate.per_second | whole), (.rate.megabytes_per_second | bandwidth), (.iterations | whole), (.seconds | fixed(2))] | cells("td")) | join("\n"))
</table></div>

<h2>Where the times lie</h2>
<p>All round trips of a size, halved, up to the 99.9th percentile. Point at a bar for its numbers.</p>
\($latency | map(histogram) | join("\n"))
</body></html>"
