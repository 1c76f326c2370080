"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // Texts come from models and agents: they only ever become text nodes.
  const el = (tag, cls, text) => {
    const e = document.createElement(tag);
    if (cls) e.className = cls;
    if (text !== undefined) e.textContent = text;
    return e;
  };

  // ---- charts ----
  const blue = "#2f7ed8", green = "#1a9e5c", grey = "#9aa4b5", orange = "#d98324";
  const alpha = (hex, a) => hex + Math.round(a * 255).toString(16).padStart(2, "0");
  const axes = (label) => [
    { stroke: css("--dim"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, label: "training step", labelSize: 22, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 10000] },
    { stroke: css("--dim"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, label, labelSize: 22 },
  ];
  const plots = [];
  const width = (box) => Math.max(280, box.clientWidth);
  const chart = (box, height, make) => {
    const build = () => {
      box.replaceChildren();
      const o = make();
      plots.push(new uPlot({ width: width(box), height, cursor: { points: { size: 7 } }, ...o.options }, o.data, box));
    };
    build();
    return build;
  };
  const number = (u, v) => (v == null ? "–" : v.toFixed(3));

  function learningCurve() {
    const xs = [...new Set([...data.steps.map((s) => s[0]), ...data.validations.map((v) => v[0])])].sort((a, b) => a - b);
    const at = new Map(xs.map((x, i) => [x, i]));
    const column = () => new Array(xs.length).fill(null);
    const cols = { reward: column(), t: column(), tl: column(), th: column(), g: column(), gl: column(), gh: column() };
    for (const s of data.steps) cols.reward[at.get(s[0])] = s[1];
    for (const [step, t, g] of data.validations) {
      const i = at.get(step);
      cols.t[i] = t.value; cols.tl[i] = t.low; cols.th[i] = t.high;
      if (g) { cols.g[i] = g.value; cols.gl[i] = g.low; cols.gh[i] = g.high; }
    }
    const edge = { stroke: "transparent", points: { show: false }, spanGaps: true };
    const lineOf = (label, color) => ({ label, stroke: color, width: 2.4, spanGaps: true, points: { show: true, size: 7, fill: color, stroke: color }, value: number });
    const series = [
      { label: "step" },
      { label: "training reward", stroke: grey, width: 1.2, points: { show: false }, spanGaps: true, value: number },
      { ...edge, label: "T=1 high" }, { ...edge, label: "T=1 low" }, lineOf("validation, T=1", blue),
      { ...edge, label: "greedy high" }, { ...edge, label: "greedy low" }, lineOf("validation, greedy", green),
    ];
    const list = [xs, cols.reward, cols.th, cols.tl, cols.t, cols.gh, cols.gl, cols.g];
    const target = (u) => {
      if (!data.target) return;
      const y = u.valToPos(data.target, "y", true), c = u.ctx;
      c.save(); c.strokeStyle = orange; c.lineWidth = devicePixelRatio; c.setLineDash([6, 5]); c.beginPath();
      c.moveTo(u.bbox.left, y); c.lineTo(u.bbox.left + u.bbox.width, y); c.stroke(); c.restore();
    };
    const tallest = Math.max(1, ...data.steps.map((s) => s[1]));
    const lowest = Math.min(0, ...data.steps.map((s) => s[1]));
    return {
      data: list,
      options: {
        scales: { x: { time: false }, y: { range: [lowest, tallest * 1.02] } }, axes: axes("solved"), series,
        bands: [{ series: [2, 3], fill: alpha(blue, 0.15) }, { series: [5, 6], fill: alpha(green, 0.15) }],
        hooks: { draw: [target], ready: [(u) => u.root.querySelectorAll(".u-legend .u-series").forEach((row, i) => { if ([2, 3, 5, 6].includes(i)) row.style.display = "none"; })] },
      },
    };
  }

  function timing() {
    const xs = data.steps.map((s) => s[0]);
    const parts = [[3, "rollouts", blue], [4, "update", orange], [5, "validation", green]];
    const sums = data.steps.map(() => 0);
    const stacked = parts.map(([col]) => data.steps.map((s, i) => (sums[i] += s[col])));
    const raw = (col) => (u, v, si, i) => (i == null || !data.steps[i] ? "–" : data.steps[i][col].toFixed(2) + " s");
    const bars = uPlot.paths.bars({ size: [0.92, 40], gap: 0 });
    // The tallest stack first: the lower ones are drawn over it.
    return {
      data: [xs, ...stacked.slice().reverse()],
      options: {
        scales: { x: { time: false, range: (u, a, b) => [a - 0.6, b + 0.6] }, y: { range: (u, a, b) => [0, (b || 1) * 1.04] } }, axes: axes("seconds"),
        series: [{ label: "step" }, ...parts.slice().reverse().map(([col, label, color]) => ({ label, fill: color, stroke: color, width: 0, paths: bars, points: { show: false }, value: raw(col) }))],
      },
    };
  }

  const rebuild = [];
  if (data.steps.length || data.validations.length) rebuild.push(chart(byId("curve"), 340, learningCurve));
  else byId("curve").append(el("p", "note", "No step was made."));
  if (data.target) byId("curve-note").textContent = "The dashed line is the score at which training stops.";
  if (data.steps.length && byId("timing")) rebuild.push(chart(byId("timing"), 220, timing));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { plots.length = 0; rebuild.forEach((f) => f()); });
  addEventListener("resize", () => plots.forEach((p) => p.setSize({ width: width(p.root.parentElement), height: p.height })));

  // ---- transcripts ----
  // A token: [text, id], read; or [text, id, kind, weight, log prob, version, reason].
  const tip = byId("tip");
  const kinds = ["read", "sampled, not trained", "trained"];
  const describe = ([text, id, kind = 0, weight, logProb, version, reason]) => {
    const lines = [JSON.stringify(text) + "  id " + id, kinds[kind]];
    if (kind > 0) lines.push("log prob " + logProb.toFixed(3) + "  (p " + Math.exp(logProb).toFixed(3) + ")", "policy version " + version);
    if (kind === 2) lines.push("weight " + weight.toPrecision(3));
    if (reason) lines.push(reason);
    return lines.join("\n");
  };
  function tokens(list, largest) {
    const box = el("div", "tokens");
    for (const t of list) {
      const [text, , kind = 0, weight = 0] = t;
      const cls = kind === 0 ? "read" : kind === 1 || weight === 0 ? "skip" : weight > 0 ? "plus" : "minus";
      const span = el("span", "tok " + cls);
      for (const [i, part] of text.split("\n").entries()) {
        if (i > 0) span.append(el("span", "nl", "⏎"), "\n");
        span.append(part);
      }
      if (kind === 2 && largest > 0) span.style.setProperty("--a", (0.14 + 0.46 * Math.abs(weight) / largest).toFixed(2));
      span.token = t;
      box.append(span);
    }
    return box;
  }
  document.addEventListener("mouseover", (e) => {
    const span = e.target.closest && e.target.closest(".tokens .tok");
    tip.hidden = !span;
    if (!span) return;
    tip.textContent = describe(span.token);
    const r = span.getBoundingClientRect();
    tip.style.left = Math.max(8, Math.min(r.left, innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = (r.bottom + tip.offsetHeight + 12 > innerHeight ? r.top - tip.offsetHeight - 6 : r.bottom + 6) + "px";
  });
  addEventListener("scroll", () => { tip.hidden = true; }, true);

  function rollout(r, name, largest) {
    const box = el("div", "roll");
    const head = el("h3", "", name);
    if (r) {
      if (r.reward != null) head.append(el("span", "pill " + (r.reward > 0 ? "win" : "lose"), "reward " + +r.reward.toFixed(3)));
      if (r.advantage != null) head.append(el("span", "pill", "advantage " + (r.advantage > 0 ? "+" : "") + r.advantage.toFixed(2)));
      if (r.outcome && r.outcome !== "ok") head.append(el("span", "pill agent_failure", r.outcome));
      head.append(el("span", "ex", r.id));
      if (r.samples.length > 1) head.append(el("span", "ex", r.samples.length + " samples"));
    }
    box.append(head);
    if (!r) box.append(el("p", "note", "not measured"));
    else if (!r.samples.length) box.append(el("p", "note", "no model call"));
    else for (const s of r.samples) box.append(tokens(s, largest));
    return box;
  }
  function tabs(nav, items, label, show) {
    if (!nav || !items.length) return;
    const buttons = items.map((item, i) => {
      const b = el("button", "", label(item, i));
      b.type = "button";
      b.onclick = () => { buttons.forEach((x) => x.setAttribute("aria-selected", x === b)); show(item); };
      nav.append(b);
      return b;
    });
    buttons[0].click();
  }
  const mark = (r) => (!r || r.reward == null ? "–" : r.reward > 0 ? "✓" : "✗");
  tabs(byId("problem-tabs"), data.problems || [], (p, i) => i + 1 + "  " + mark(p.before) + " → " + mark(p.after), (p) => {
    const task = el("p", "task", p.text);
    if (p.expected) task.append(el("small", "", "right answer: " + p.expected));
    const pair = el("div", "pair");
    pair.append(rollout(p.before, "before", 0), rollout(p.after, "after", 0));
    byId("problem").replaceChildren(task, pair);
  });
  tabs(byId("group-tabs"), data.groups || [], (g) => "step " + g.step, (g) => {
    let largest = 0;
    for (const r of g.rollouts) for (const s of r.samples) for (const t of s) if (t[2] === 2) largest = Math.max(largest, Math.abs(t[3]));
    const pair = el("div", "pair");
    g.rollouts.forEach((r, i) => pair.append(rollout(r, "rollout " + (i + 1), largest)));
    byId("group").replaceChildren(el("p", "task", g.text), pair);
  });
})();
