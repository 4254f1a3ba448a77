"""The page's frame and style sheet: no network, light and dark, phone and paper."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>$title</title>
<style>$css</style>
</head>
<body>
<header>
<p class="kicker">fedenergy report</p>
<h1>$title</h1>
<p class="meta">$meta</p>
$stamp
<nav aria-label="Contents"><ul>$contents</ul></nav>
</header>
<main>
$body
</main>
<footer><p>$footer</p></footer>
</body>
</html>
"""

CSS = """
:root {
  color-scheme: light dark;
  --ground: #fbfbfa; --card: #ffffff; --ink: #1b1f24; --muted: #5c6670; --grid: #d9dee3; --line: #e3e6ea;
  --accent: #0a5c8f;
  --warn-ground: #fff4e0; --warn-line: #d99a2b; --warn-ink: #6b4300;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #aa4499; --c4: #3aa0d8; --c5: #c28a00; --c6: #5b5f97;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14171a; --card: #1b1f23; --ink: #e8eaed; --muted: #a2abb4; --grid: #343b42; --line: #2c3238;
  --accent: #7cc4f2;
    --warn-ground: #33270f; --warn-line: #b98225; --warn-ink: #f4d9a6;
    --c0: #4aa8e0; --c1: #f58442; --c2: #2cc79b; --c3: #d98bcb; --c4: #93d3f7; --c5: #e8b93c; --c6: #a6aaf0;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-padding-top: 1rem; }
body {
  margin: 0 auto; padding: 2.2rem clamp(1rem, 4vw, 2.5rem) 3rem; max-width: 1200px;
  background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  overflow-wrap: anywhere;
}
h1 {
  font-size: clamp(1.6rem, 5vw, 2.25rem); line-height: 1.15; margin: 0 0 .4rem; letter-spacing: -.015em;
  text-wrap: balance;
}
h2 {
  font-size: 1.3rem; line-height: 1.25; margin: 2.8rem 0 .7rem; padding-top: .9rem; border-top: 1px solid var(--line);
}
h3 { font-size: 1.02rem; margin: 1.6rem 0 .4rem; }
p, li, dd { max-width: 70ch; }
p { margin: 0 0 .8rem; }
a { color: var(--accent); }
.kicker { margin: 0 0 .3rem; color: var(--muted); font-size: .82rem; letter-spacing: .06em; text-transform: uppercase; }
.meta, .note, figcaption, caption, footer { color: var(--muted); font-size: .88rem; }
.stamp {
  display: inline-block; margin: .5rem 0; padding: .5rem .8rem; background: var(--warn-ground); color: var(--warn-ink);
  border-left: 4px solid var(--warn-line); border-radius: 0 6px 6px 0; font-weight: 600;
}
nav ul {
  display: flex; flex-wrap: wrap; gap: .3rem 1rem; list-style: none; margin: .9rem 0 0; padding: 0; font-size: .92rem;
}
.short {
  margin: 1.6rem 0 0; padding: 1.1rem 1.3rem .9rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px;
}
.short h2 { margin: 0 0 .5rem; padding: 0; border: 0; }
.short ul { margin: 0; padding-left: 1.1rem; }
.short li { margin-bottom: .35rem; }
dl { display: grid; grid-template-columns: 11rem 1fr; gap: .25rem 1.2rem; margin: 0 0 1rem; }
dt { color: var(--muted); }
dd { margin: 0; min-width: 0; }
.scroll {
  overflow-x: auto; max-width: 100%; margin: .4rem 0 1rem; border: 1px solid var(--line); border-radius: 8px;
  background: var(--card);
}
.tall { max-height: 75vh; overflow-y: auto; }
.scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
table {
  border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; overflow-wrap: normal;
}
caption { text-align: left; padding: .6rem .65rem .4rem; caption-side: top; }
caption span { position: sticky; left: .65rem; display: inline-block; max-width: min(100ch, calc(100vw - 4rem)); }
th, td { padding: .36rem .65rem; text-align: left; vertical-align: baseline; border-top: 1px solid var(--line); }
thead th {
  border-top: 0; border-bottom: 1px solid var(--muted); font-weight: 600; vertical-align: bottom;
  background: var(--card); position: sticky; top: 0; z-index: 1;
}
tbody tr:first-child > * { border-top: 0; }
tbody tr.group > * { border-top: 1px solid var(--muted); }
th[scope=row] { font-weight: 600; position: sticky; left: 0; background: var(--card); max-width: 42vw; }
thead th:first-child { left: 0; z-index: 2; }
td { white-space: nowrap; }
.n { text-align: right; }
td.wide { white-space: normal; min-width: 13rem; }
.plates {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr)); gap: 1.2rem;
  align-items: start;
}
figure {
  margin: 0; padding: .9rem 1rem; background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  min-width: 0;
}
figure h3 { margin: 0 0 .3rem; }
figure svg { display: block; width: 100%; max-width: 560px; height: auto; margin: 0 auto; }
figure svg text {
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif !important;
}
figcaption { margin-top: .4rem; }
details { margin: .6rem 0 1rem; }
summary { cursor: pointer; color: var(--accent); padding: .2rem 0; }
pre {
  margin: .5rem 0 1rem; padding: .8rem 1rem; overflow-x: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; font-size: .84rem; line-height: 1.45;
}
code, pre {
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; overflow-wrap: normal;
}
.tag {
  display: inline-block; padding: 0 .5em; border: 1px solid var(--warn-line); border-radius: 1em;
  color: var(--warn-ink); background: var(--warn-ground); font-size: .78rem; font-weight: 600; vertical-align: .1em;
  white-space: nowrap;
}
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: .8rem; }
@media (max-width: 480px) {
  body { padding-top: 1.3rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .5rem; }
  th, td { padding: .35rem .45rem; }
  caption { padding-left: .45rem; }
  figure { padding: .8rem .5rem; }
  figure h3, figcaption { padding: 0 .3rem; }
}
@media print {
  :root {
    --ground: #fff; --card: #fff; --ink: #000; --muted: #444; --grid: #ccc; --line: #bbb; --accent: #000;
    --warn-ground: #fff; --warn-line: #000; --warn-ink: #000;
    --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #aa4499; --c4: #3aa0d8; --c5: #c28a00; --c6: #5b5f97;
  }
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav, .download { display: none; }
  .scroll { overflow: visible; max-height: none; border: 0; }
  table { font-size: 8pt; }
  th, td { padding: 2pt 4pt; position: static !important; }
  figure, tr, .short { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
"""
