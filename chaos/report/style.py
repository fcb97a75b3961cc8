"""The style of the page: light or dark as the reader's device is, and no wider than a telephone."""

CSS = """
:root { color-scheme: light dark;
  --bg: #fff; --fg: #1b1f24; --dim: #5b6470; --line: #d6dbe1; --soft: #f3f5f8;
  --good: #1a7f4b; --good-bg: #def5e7; --bad: #b3261e; --bad-bg: #fde4e1; --odd: #7a5a00; --odd-bg: #fdf1cf;
  --blue: #2f6fd0; --fault: #d9534a; --run: #9db8dd; --lead: #b9a3dc; --job: #a8cfae; }
@media (prefers-color-scheme: dark) { :root {
  --bg: #14171b; --fg: #e6e9ee; --dim: #98a2b0; --line: #333a44; --soft: #1d2229;
  --good: #5fd08f; --good-bg: #163a27; --bad: #ff8a80; --bad-bg: #4a1b19; --odd: #f0c65a; --odd-bg: #3d310e;
  --blue: #7fb0ff; --fault: #c9483f; --run: #3d5a85; --lead: #5a4784; --job: #2f6440; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 76rem; background: var(--bg); color: var(--fg);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: .2rem 0 .6rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; } p { margin: .4rem 0; max-width: 60rem; }
.dim { color: var(--dim); } nav a { margin-right: .9rem; } a { color: var(--blue); }
.cards { display: flex; flex-wrap: wrap; gap: .6rem; margin: .8rem 0; }
.card { border: 1px solid var(--line); border-radius: .4rem; padding: .5rem .8rem; min-width: 7rem; }
.card b { display: block; font-size: 1.4rem; }
.good { color: var(--good); } .bad { color: var(--bad); } .odd { color: var(--odd); }
.wide { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: .88rem; }
th, td { border-bottom: 1px solid var(--line); padding: .22rem .5rem; text-align: left; vertical-align: top; }
th { font-weight: 600; } td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.matrix td { text-align: center; } .matrix td:first-child, .matrix th:first-child { text-align: left;
  position: sticky; left: 0; background: var(--bg); }
.matrix thead th { vertical-align: bottom; } .matrix thead th span { writing-mode: vertical-rl;
  transform: rotate(180deg); white-space: nowrap; font-weight: 500; }
td.held { background: var(--good-bg); color: var(--good); } td.failed { background: var(--bad-bg);
  color: var(--bad); font-weight: 700; } td.none { color: var(--dim); }
td.unproven { background: var(--odd-bg); color: var(--odd); }
pre { background: var(--soft); padding: .5rem .7rem; border-radius: .3rem; overflow-x: auto; margin: .4rem 0;
  white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin: .35rem 0; } summary { cursor: pointer; }
.run { border-left: 4px solid var(--line); padding: .1rem 0 .4rem .8rem; margin: 1rem 0; }
.run.broken { border-color: var(--bad); } .run.error { border-color: var(--odd); }
.run.passed { border-color: var(--good); }
svg { display: block; } svg text { font: 11px system-ui, sans-serif; fill: var(--fg); pointer-events: none; }
svg.timeline { min-width: 640px; max-width: 100%; height: auto; }
svg .tick { text-anchor: middle; fill: var(--dim); }
svg .end { text-anchor: end; fill: var(--dim); } svg .dim { fill: var(--dim); }
svg .label { fill: var(--dim); } svg .grid { stroke: var(--line); stroke-width: 1; }
svg .fault { fill: var(--fault); opacity: .75; } svg .runs { fill: var(--run); }
svg .leads { fill: var(--lead); }
svg .phase-of-job { fill: var(--job); } svg .phase { stroke: var(--bg); stroke-width: .5; }
svg .p0 { fill: #e8a33d; } svg .p1 { fill: #d07fae; } svg .p2 { fill: #5b9bd8; } svg .p3 { fill: #7c6fd0; }
svg .p4 { fill: #3fae9a; } svg .p5 { fill: #7db54a; } svg .p6 { fill: #8a94a3; }
svg .on { fill: #14171b; }
svg .moment { stroke-width: 1.5; } svg .healed { stroke: var(--blue); stroke-dasharray: 4 3; }
svg .well { stroke: var(--good); } svg .broken { stroke: var(--bad); stroke-width: 2.5; }
svg .commit { stroke: var(--dim); } svg .dot { fill: var(--blue); opacity: .55; }
svg .median { stroke: var(--fg); stroke-width: 2; }
.key span { display: inline-block; margin-right: .9rem; } .key i { display: inline-block; width: .8rem;
  height: .8rem; border-radius: 2px; margin-right: .3rem; vertical-align: -1px; }
"""
