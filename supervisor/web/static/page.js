// Keeps a page fresh: parts of it, its plots and a log come as server-sent events. Without it the page is whole, too.
"use strict";
(() => {
  const status = document.getElementById("link");
  const AGAIN_MS = 1000, MOST_POINTS = 600, MOST_LOG = 200000;
  const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  const date = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "2-digit", day: "2-digit" });

  const told = (moment) => {
    const today = moment.toDateString() === new Date().toDateString();
    return (today ? "" : date.format(moment) + " ") + clock.format(moment);
  };
  const localise = (root) => {
    for (const each of root.querySelectorAll("time")) {
      each.title = each.dateTime;
      each.textContent = told(new Date(each.dateTime));
    }
    for (const each of root.querySelectorAll("text[data-ms]")) each.textContent = clock.format(new Date(Number(each.dataset.ms)));
  };
  const say = (text, away) => {
    if (status.textContent !== text) status.textContent = text;
    status.classList.toggle("away", away);
  };

  // Parts. One in which text is selected waits until it is not.
  const waiting = new Map();
  const selected = (part) => {
    const selection = getSelection();
    return selection && !selection.isCollapsed && selection.containsNode(part, true);
  };
  const index = (part, element) => [...part.querySelectorAll("*")].indexOf(element);
  const put = (part, html) => {
    const focused = part.contains(document.activeElement) ? index(part, document.activeElement) : -1;
    const open = [...part.querySelectorAll("details")].map((each) => each.open);
    const scrolled = [...part.querySelectorAll(".wide, pre")].map((each) => [each.scrollLeft, each.scrollTop]);
    part.innerHTML = html;
    localise(part);
    part.querySelectorAll("details").forEach((each, at) => { each.open = open[at] || false; });
    part.querySelectorAll(".wide, pre").forEach((each, at) => { if (scrolled[at]) [each.scrollLeft, each.scrollTop] = scrolled[at]; });
    if (focused >= 0) part.querySelectorAll("*")[focused]?.focus({ preventScroll: true });
  };
  const refresh = () => {
    for (const [name, html] of waiting) {
      const part = document.getElementById("part-" + name);
      if (part && selected(part)) continue;
      waiting.delete(name);
      if (part) put(part, html);
    }
  };

  // Plots.
  const root = document.querySelector("[data-samples]");
  const plots = [];
  let known = root ? JSON.parse(root.dataset.samples) : null;
  const colour = (at, all) => `hsl(${Math.round((360 * at) / Math.max(1, all) + 210) % 360} 60% 50%)`;
  const draw = () => {
    if (!root || typeof uPlot === "undefined") return;
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--dim"), grid = { stroke: style.getPropertyValue("--line"), width: 1 };
    for (const each of plots) each.destroy();
    plots.length = 0;
    if (!known.members.length || known.seconds.length < 2) return;
    for (const [id, what, values] of [["plot-steps", "step", known.steps], ["plot-rates", "steps a second", known.rates]]) {
      const box = document.getElementById(id);
      const series = known.members.map((name, at) => ({ label: name, stroke: colour(at, known.members.length), width: 1.5, spanGaps: false, points: { show: false } }));
      plots.push(new uPlot({
        width: box.clientWidth - 14, height: 220, title: "", cursor: { drag: { x: true, y: false } }, legend: { show: known.members.length <= 12, live: false },
        scales: { y: { range: (_, low, high) => [what === "step" ? low : 0, high > low ? high : low + 1] } },
        series: [{ label: "time" }, ...series],
        axes: [{ stroke: ink, grid, ticks: grid, space: 90, values: (_, ticks) => ticks.map((each) => clock.format(new Date(1000 * each))) }, { stroke: ink, grid, ticks: grid, size: 62, label: what, labelSize: 18 }],
      }, [known.seconds, ...values], box));
    }
  };
  const sample = (news) => {
    if (!root || !news.seconds.length || news.seconds[0] <= (known.seconds.at(-1) ?? 0)) return;
    if (news.members.join() !== known.members.join()) {
      const all = [...new Set([...known.members, ...news.members])].sort();
      for (const values of [known, news]) {
        for (const column of ["steps", "rates"]) {
          values[column] = all.map((name) => {
            const at = values.members.indexOf(name);
            return at >= 0 ? values[column][at] : values.seconds.map(() => null);
          });
        }
        values.members = all;
      }
      for (const column of ["steps", "rates"]) known[column].forEach((values, at) => values.push(...news[column][at]));
      known.seconds.push(...news.seconds);
      draw();
      return;
    }
    for (const column of ["steps", "rates"]) known[column].forEach((values, at) => values.push(...news[column][at]));
    known.seconds.push(...news.seconds);
    if (known.seconds.length > MOST_POINTS) for (const values of [known.seconds, ...known.steps, ...known.rates]) values.shift();
    if (!plots.length) draw();
    else plots.forEach((plot, at) => plot.setData([known.seconds, ...(at ? known.rates : known.steps)]));
  };

  // A log.
  const box = document.querySelector("section.log");
  const text = document.getElementById("log-text");
  let log = null, shown = "";
  const harmful = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
  const append = (added) => {
    const below = text.scrollHeight - text.scrollTop - text.clientHeight < 30;
    text.append(added.replace(/\r\n?/g, "\n").replace(/\u001b\[[0-9;?]*[A-Za-z]/g, "").replace(harmful, "\u00b7"));
    if (text.textContent.length > MOST_LOG) text.textContent = text.textContent.slice(-MOST_LOG / 2);
    if (below) text.scrollTop = text.scrollHeight;
  };
  const follow = (task) => {
    log?.close();
    box.hidden = false;
    shown = task;
    text.textContent = "";
    document.getElementById("log-task").textContent = task;
    let attempt = "", decoder = new TextDecoder();
    const path = `/api/v1/jobs/${encodeURIComponent(box.dataset.job)}/logs/${encodeURIComponent(task)}`;
    log = new EventSource(`${path}?follow=1`);
    log.onopen = () => { text.textContent = ""; attempt = ""; };
    log.addEventListener("chunk", (event) => {
      const chunk = JSON.parse(event.data);
      if (chunk.place.attempt && chunk.place.attempt !== attempt) {
        attempt = chunk.place.attempt;
        decoder = new TextDecoder();
        append(`\n=== ${attempt}${chunk.node ? " on " + chunk.node : ""} ===\n`);
      }
      if (chunk.note) append(`\n(${chunk.note})\n`);
      if (chunk.data) append(decoder.decode(Uint8Array.from(atob(chunk.data), (c) => c.charCodeAt(0)), { stream: true }));
    });
    log.addEventListener("failure", (event) => { append(`\n(${JSON.parse(event.data).message})\n`); log.close(); });
  };
  if (box) document.addEventListener("click", (event) => {
    const chosen = event.target.closest?.("a[data-log]");
    if (!chosen || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    follow(chosen.dataset.log);
    box.scrollIntoView({ block: "nearest" });
    text.focus({ preventScroll: true });
  });

  // The stream. A page that nobody sees has none: a browser has few connections to one server.
  const parts = document.querySelector("[id^=part-]");
  let stream = null, since = null, probing = 0;
  const away = (text) => {
    since ??= new Date();
    say(`${text} since ${clock.format(since)}; trying again`, true);
  };
  const probe = async () => {
    clearTimeout(probing);
    try {
      const answer = await fetch(location.href, { method: "HEAD", redirect: "manual", cache: "no-store" });
      if (answer.ok || answer.type === "opaqueredirect" || answer.status === 404) return location.reload();
      away(answer.status === 401 || answer.status === 403 ? "no right to see this" : "no leader");
    } catch {
      away("no answer");
    }
    probing = setTimeout(probe, AGAIN_MS);
  };
  const open = () => {
    const query = new URLSearchParams(location.search);
    query.set("live", "1");
    stream = new EventSource(`${location.pathname}?${query}`);
    stream.onopen = () => { since = null; say("live", false); };
    stream.onerror = () => {
      away("no answer");
      if (stream && stream.readyState === EventSource.CLOSED) probe();
    };
    stream.addEventListener("parts", (event) => {
      for (const [name, html] of Object.entries(JSON.parse(event.data))) waiting.set(name, html);
      refresh();
    });
    stream.addEventListener("samples", (event) => { refresh(); sample(JSON.parse(event.data)); });
    stream.addEventListener("moved", () => { stream.close(); away("no leader"); probe(); });
    stream.addEventListener("gone", () => { stream.close(); location.reload(); });
  };
  const close = () => { stream?.close(); log?.close(); stream = log = null; };
  localise(document);
  draw();
  if (parts) {
    open();
    document.addEventListener("visibilitychange", () => {
      close();
      clearTimeout(probing);
      if (document.visibilityState === "visible") { open(); if (box && !box.hidden) follow(shown); }
    });
  }
  if (box && document.visibilityState === "visible") {
    const first = new URLSearchParams(location.search).get("task") || document.querySelector("a[data-log]")?.dataset.log;
    if (first) follow(first);
  }
  addEventListener("resize", () => plots.forEach((plot) => plot.setSize({ width: plot.root.parentElement.clientWidth - 14, height: 220 })));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
