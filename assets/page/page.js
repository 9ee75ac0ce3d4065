// The page of one run, or of several beside one another. What it draws stands in #runs as JSON (src/watch/view.rs); while a run goes
// on, a newer one comes over `events`.
"use strict";
(() => {
  // After Okabe and Ito: told apart by most eyes, on light and on dark.
  const COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#A0A000"];
  // Without colours, lines are told apart by their strokes.
  const STROKES = [null, [7, 3], [2, 2], [9, 3, 2, 3], [4, 4], [12, 4], [2, 5], [6, 2, 2, 2]];
  const ACTIVITIES = ["data", "payload", "forward", "loss", "backward", "exchange", "step", "wait"];
  const FILLS = {
    data: "#E69F00", payload: "#CC79A7", forward: "#56B4E9", loss: "#A0A000", backward: "#5AA9E6", exchange: "#D55E00",
    step: "#009E73", wait: "#C9CED6",
  };
  const $ = (id) => document.getElementById(id);
  const main = $("main");
  let page = JSON.parse($("runs").textContent);
  let how = { over: "x", each: "mean", log: false, roll: 1 };
  const charts = new Map();

  // ---- text ----------------------------------------------------------------------------------------------------------------

  const element = (name, attributes = {}, ...children) => {
    const svg = ["svg", "g", "rect", "path", "text", "title"].includes(name);
    const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children.filter((child) => child !== null));
    return made;
  };
  const number = (value) => {
    if (value === null || value === undefined) return "–";
    if (Number.isInteger(value)) return value.toLocaleString("en");
    const size = Math.abs(value);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return size >= 0.001 || size === 0 ? String(+value.toPrecision(4)) : value.toExponential(2);
  };
  const bytes = (value) => {
    if (value === null || value === undefined) return "–";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    for (; value >= 1024 && at < units.length - 1; at += 1) value /= 1024;
    return `${+value.toPrecision(3)} ${units[at]}`;
  };
  const seconds = (value) => (value < 120 ? `${number(value)} s` : `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`);
  const share = (value) => `${(100 * value).toFixed(2)} %`;
  const words = (name) => name.replaceAll("_", " ");
  const figure = (name, value) => (name === "accuracy" && typeof value === "number" ? share(value) : number(value));
  const last = (list) => (list.length ? list[list.length - 1] : undefined);
  const several = () => page.runs.length > 1;

  const table = (head, rows, kind = "") => element("div", { class: "scroll", tabindex: "0" },
    element("table", { class: kind },
      element("thead", {}, element("tr", {}, ...head.map((cell) => element("th", { scope: "col" }, cell)))),
      element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, cell)))))));

  const section = (title, kind, ...children) => element("section", { class: kind }, element("h2", {}, title), ...children);

  // ---- lines of charts -----------------------------------------------------------------------------------------------------

  // The curves of one figure: { label, columns }, where columns are { x, mean, least, greatest }.
  const curves = (name) => page.runs.flatMap((run) => {
    const those = run.trainers.filter((trainer) => trainer.figures[name]);
    const label = (trainer) => `${several() ? `${run.name} ` : ""}rank ${trainer.rank}`;
    const own = those.map((trainer) => ({ label: label(trainer), columns: over(trainer.figures[name]) }));
    if (how.each === "each" || own.length < 2) {
      return own.map((curve) => (several() && own.length === 1 ? { ...curve, label: run.name } : curve));
    }
    return [{ label: several() ? run.name : `mean of ${own.length}`, columns: together(own.map((curve) => curve.columns)) }];
  });

  const over = (columns) => ({ ...columns, x: columns[how.over] });

  // The mean of several curves at the places of the first one.
  const together = (all) => {
    const at = all.map(() => 0);
    const out = { x: [], mean: [], least: [], greatest: [] };
    all[0].x.forEach((x) => {
      let sum = 0, count = 0, least = Infinity, greatest = -Infinity;
      all.forEach((columns, nth) => {
        while (at[nth] < columns.x.length - 1 && columns.x[at[nth]] < x) at[nth] += 1;
        const value = columns.mean[at[nth]];
        if (value === null || value === undefined || columns.x[at[nth]] < x) return;
        const lowest = columns.least[at[nth]] ?? value, highest = columns.greatest[at[nth]] ?? value;
        sum += value; count += 1; least = Math.min(least, lowest); greatest = Math.max(greatest, highest);
      });
      if (!count) return;
      out.x.push(x); out.mean.push(sum / count); out.least.push(least); out.greatest.push(greatest);
    });
    return out;
  };

  // Rows as Dygraphs has them with `customBars`: x, then [least, mean, greatest] of each curve.
  const rows = (drawn) => {
    const places = new Map();
    drawn.forEach(({ columns }, nth) => columns.x.forEach((x, at) => {
      if (!places.has(x)) places.set(x, drawn.map(() => [null, null, null]));
      const mean = columns.mean[at];
      places.get(x)[nth] = [columns.least[at] ?? mean, mean, columns.greatest[at] ?? mean];
    }));
    return [...places.entries()].sort((a, b) => a[0] - b[0]).map(([x, values]) => [x, ...values]);
  };

  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const chart = (key, title, drawn, options = {}) => {
    drawn = drawn.filter(({ columns }) => columns.x.length);
    if (!drawn.length) {
      const gone = charts.get(key);
      if (gone) { gone.graph?.destroy(); gone.room.remove(); charts.delete(key); }
      return;
    }
    let kept = charts.get(key);
    if (!kept) {
      const legend = element("div", { class: "legend" });
      const canvas = element("div", { class: "chart", tabindex: "0", role: "img" });
      const numbers = element("details", {}, element("summary", {}, "Numbers"));
      kept = { room: section(title, "", canvas, legend, numbers), canvas, legend, numbers };
      canvas.addEventListener("keydown", (event) => steer(event, kept.graph));
      charts.set(key, kept);
      main.append(kept.room);
    }
    const named = unique(drawn.map((curve) => curve.label));
    const show = options.show ?? number;
    const settings = {
      labels: [options.over ?? (how.over === "x" ? "step" : "seconds"), ...named],
      customBars: true, connectSeparatedPoints: true, rollPeriod: options.roll ? how.roll : 1, logscale: Boolean(options.log && how.log),
      labelsDiv: kept.legend, legend: "always", gridLineColor: ink("--line"), axisLineColor: ink("--line"), fillAlpha: 0.18,
      colors: named.map((_, nth) => COLORS[nth % COLORS.length]), strokeWidth: 1.6, highlightCircleSize: 4,
      series: Object.fromEntries(named.map((name, nth) => [name, {
        strokePattern: STROKES[nth % STROKES.length], drawPoints: drawn[nth].points ?? drawn[nth].columns.x.length < 3, pointSize: 3,
      }])),
      includeZero: options.zero ?? false,
      axes: { y: { axisLabelWidth: 62, valueFormatter: show, axisLabelFormatter: show }, x: { valueFormatter: number, axisLabelFormatter: number } },
    };
    const data = rows(drawn);
    if (kept.graph) kept.graph.updateOptions({ ...settings, file: data });
    else kept.graph = new Dygraph(kept.canvas, data, settings);
    const ends = drawn.map(({ columns }, nth) => `${named[nth]} ${show(last(columns.mean))}`);
    kept.canvas.setAttribute("aria-label", `${title}: at last ${ends.slice(0, 8).join(", ")}`);
    const finite = (list) => list.filter((value) => value !== null);
    const lines = drawn.map(({ columns }, nth) => [named[nth], show(columns.mean[0]), show(Math.min(...finite(columns.least.length ? columns.least : columns.mean))),
      show(Math.max(...finite(columns.greatest.length ? columns.greatest : columns.mean))), show(last(columns.mean))]);
    const numbers = table(["", "first", "least", "greatest", "last"], lines);
    kept.numbers.replaceChildren(kept.numbers.firstElementChild, numbers);
  };

  const unique = (names) => names.map((name, nth) => (names.indexOf(name) === nth ? name : `${name} (${nth + 1})`));

  const steer = (event, graph) => {
    const [from, to] = graph.xAxisRange();
    const long = to - from;
    const ways = {
      "+": [from + long / 4, to - long / 4], "=": [from + long / 4, to - long / 4], "-": [from - long / 2, to + long / 2],
      ArrowLeft: [from - long / 4, to - long / 4], ArrowRight: [from + long / 4, to + long / 4],
    };
    if (event.key === "0") graph.resetZoom();
    else if (ways[event.key]) graph.updateOptions({ dateWindow: ways[event.key] });
    else return;
    event.preventDefault();
  };

  // ---- sections ------------------------------------------------------------------------------------------------------------

  const rooms = new Map();
  // A part that is made anew each time; null: there is nothing to show.
  const part = (key, made) => {
    const before = rooms.get(key);
    if (!made) { before?.remove(); rooms.delete(key); return; }
    const opened = before ? [...before.querySelectorAll("details")].map((detail) => detail.open) : [];
    [...made.querySelectorAll("details")].forEach((detail, nth) => { if (opened[nth] !== undefined) detail.open = opened[nth]; });
    // What a person reads is not taken away under their eyes.
    if (before && before.contains(document.activeElement) && document.activeElement !== document.body) return;
    if (before) before.replaceWith(made); else main.append(made);
    rooms.set(key, made);
  };

  const rate = (run) => run.trainers.reduce((sum, trainer) => sum + (last(trainer.figures.samples_per_s?.mean ?? []) ?? 0), 0);
  const lossNow = (run) => {
    const all = run.trainers.map((trainer) => last(trainer.figures.loss?.mean ?? [])).filter((value) => typeof value === "number");
    return all.length ? all.reduce((a, b) => a + b) / all.length : null;
  };
  const steps = (run) => Math.max(0, ...run.trainers.map((trainer) => trainer.step));
  const epoch = (run) => Math.max(0, ...run.trainers.map((trainer) => trainer.epoch));
  const elapsed = (run) => Math.max(0, ...run.trainers.map((trainer) => last(trainer.figures.loss?.time_s ?? []) ?? 0));
  const numbersOf = (record) => Object.entries(record)
    .filter(([name, value]) => typeof value === "number" && !["step", "epoch", "rank", "time_s", "samples", "targets"].includes(name));

  const tiles = (run) => {
    const { summary } = run;
    const eval_ = last(run.evals);
    const best = run.evals.filter((record) => record.best).at(-1);
    const shown = [["step", number(steps(run))], ["epoch", number(epoch(run))], ["loss", number(summary?.loss_final ?? lossNow(run))]];
    if (eval_) numbersOf(eval_).slice(0, 4).forEach(([name, value]) => shown.push([`test ${words(name)}`, figure(name, value)]));
    if (best) shown.push(["best at step", number(best.step)]);
    shown.push(["samples/s", number(summary?.samples_per_s ?? rate(run))]);
    shown.push(["training", seconds(summary?.train_seconds ?? elapsed(run))]);
    if (summary) shown.push(["steps/s", number(summary.steps_per_s)], ["start-up", seconds(summary.startup_seconds)]);
    return element("dl", { class: "tiles" }, ...shown.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  };

  const compared = () => {
    const head = ["run", "state", "step", "loss", "samples/s"];
    const judged = [...new Set(page.runs.flatMap((run) => run.evals.flatMap((record) => numbersOf(record).map(([name]) => name))))].slice(0, 6);
    const differing = page.differing ?? [];
    const line = (run, nth) => [run.name, state(run), number(steps(run)), number(run.summary?.loss_final ?? lossNow(run)),
      number(run.summary?.samples_per_s ?? rate(run)), ...judged.map((name) => figure(name, last(run.evals)?.[name])),
      ...differing.map((key) => key.values[nth] ?? "–")];
    return section("Runs", "wide", table([...head, ...judged.map((name) => `test ${words(name)}`), ...differing.map((key) => key.key)], page.runs.map(line)));
  };

  const state = (run) => {
    if (run.under_way) return "under way";
    if (!run.summary) return "ended early";
    return run.summary.warnings?.length ? "finished, with warnings" : "finished";
  };

  const evalCurves = (name) => page.runs.map((run) => {
    const those = run.evals.filter((record) => typeof record[name] === "number");
    const x = those.map((record) => (how.over === "x" ? record.step : record.time_s));
    return { label: several() ? `${run.name} test` : "test", points: true, columns: { x, mean: those.map((record) => record[name]), least: [], greatest: [] } };
  });

  const rankCurves = (name) => page.runs.flatMap((run) => run.ranks.filter((rank) => rank.figures[name]).map((rank) => ({
    label: `${several() ? `${run.name} ` : ""}${rank.role}${rank.rank}`, columns: rank.figures[name],
  })));

  const busy = (run) => {
    const ranks = run.ranks.filter((rank) => Object.keys(rank.seconds).length);
    if (!ranks.length) return null;
    const bars = ranks.flatMap((rank) => {
      const all = Object.values(rank.seconds).reduce((a, b) => a + b, 0);
      const parts = ACTIVITIES.filter((name) => rank.seconds[name] > 0).map((name) => {
        const of = rank.seconds[name] / all;
        return element("span", { style: `width:${100 * of}%;background:${FILLS[name]}`, title: `${name}: ${seconds(rank.seconds[name])}, ${share(of)}` }, of > 0.07 ? name : "");
      });
      const said = ACTIVITIES.filter((name) => rank.seconds[name] > 0).map((name) => `${name} ${share(rank.seconds[name] / all)}`).join(", ");
      return [element("span", {}, `${rank.role}${rank.rank}`), element("div", { class: "bar", role: "img", "aria-label": said }, ...parts)];
    });
    const present = ACTIVITIES.filter((name) => ranks.some((rank) => rank.seconds[name]));
    const lines = ranks.map((rank) => [`${rank.role}${rank.rank}`, ...present.map((name) => number(rank.seconds[name] ?? 0))]);
    return section(`What the threads of each rank do${several() ? `: ${run.name}` : ""}`, "wide", element("div", { class: "ranks" }, ...bars),
      element("details", {}, element("summary", {}, "Seconds"), table(["", ...present], lines)));
  };

  const timeline = (run) => {
    const { timeline: moment } = run;
    if (!moment) return null;
    const [left, high, width] = [170, 20, 1400];
    const at = (ms) => left + (ms / moment.long) * (width - left);
    const drawing = element("svg", { viewBox: `0 0 ${width} ${moment.rows.length * high + 24}`, role: "img", "aria-label": `what each thread did in ${number(moment.long)} ms`, style: "min-width:900px" });
    moment.rows.forEach(([rank, thread], nth) => drawing.append(element("text", { x: 0, y: nth * high + 14 }, `${rank.replace(/^rank (\d+): (.*)$/, "$2$1")} ${thread}`)));
    moment.spans.forEach(({ row, activity, at: start, took }) => drawing.append(element("rect", {
      x: at(start).toFixed(2), y: row * high + 3, width: Math.max(0.5, at(took) - left).toFixed(2), height: high - 6, fill: FILLS[activity],
    }, element("title", {}, `${activity}, ${number(took)} ms`))));
    drawing.append(element("text", { x: left, y: moment.rows.length * high + 16, class: "soft" }, "0 ms"));
    drawing.append(element("text", { x: width, y: moment.rows.length * high + 16, class: "soft", "text-anchor": "end" }, `${number(moment.long)} ms`));
    const keys = ACTIVITIES.filter((name) => moment.spans.some((span) => span.activity === name));
    return section(`A moment of the run${several() ? `: ${run.name}` : ""}`, "wide",
      element("div", { class: "keys" }, ...keys.map((name) => element("span", {}, element("i", { style: `background:${FILLS[name]}` }), name))),
      element("div", { class: "scroll", tabindex: "0" }, drawing));
  };

  const links = (run) => {
    const measured = run.summary?.measured?.links;
    const rows = measured?.length
      ? measured.map((link) => [`${link.from} to ${link.to}`, bytes(link.bytes), bytes(link.planned_bytes)])
      : (run.plan?.links ?? []).map((link) => [`${link.from} to ${link.to}`, "–", bytes(link.bytes)]);
    if (!rows.length) return null;
    return section(`Bytes of a trainer's step${several() ? `: ${run.name}` : ""}`, "", table(["", "measured", "planned"], rows));
  };

  // Modules in columns: each stands behind all that it takes from.
  const graph = (run) => {
    const { plan } = run;
    if (!plan) return null;
    const trainers = plan.roles.find((role) => role.trains)?.name ?? "";
    const nodes = plan.graph ? plan.graph.nodes : [...plan.modules.map((module) => ({ name: module.name, role: module.role, takes: module.inputs })),
      { name: "loss", role: trainers, takes: plan.modules.length ? [{ name: last(plan.modules).name }] : [] }];
    const names = new Map(nodes.map((node) => [node.name, node]));
    // `module.output` is of `module`.
    const giver = (name) => names.get(name) ?? names.get(name.replace(/\.[^.]*$/, ""));
    const depth = new Map();
    const deep = (node, seen = new Set()) => {
      if (depth.has(node)) return depth.get(node);
      if (seen.has(node)) return 0;
      seen.add(node);
      const before = node.takes.map((wire) => giver(wire.name)).filter(Boolean);
      depth.set(node, 1 + Math.max(0, ...before.map((other) => deep(other, seen))));
      return depth.get(node);
    };
    const fields = [...new Set(nodes.flatMap((node) => node.takes.filter((wire) => !giver(wire.name)).map((wire) => wire.name)))];
    const boxes = [...fields.map((name) => ({ name, under: "field of the data", column: 0, takes: [] })),
      ...nodes.map((node) => {
        const of = plan.modules.find((module) => module.name === node.name);
        const under = of?.parameters != null ? `${node.role}, ${number(of.parameters)} parameters` : node.role;
        return { name: node.name, under, column: deep(node), takes: node.takes };
      })];
    const [wide, high, gap, space] = [190, 44, 56, 14];
    const filled = [];
    boxes.forEach((box) => { box.row = filled[box.column] = (filled[box.column] ?? -1) + 1; });
    const [across, down] = [filled.length * (wide + gap) - gap + 8, Math.max(...filled.map((rows) => (rows ?? 0) + 1)) * (high + space) + 4];
    const place = (box) => [box.column * (wide + gap) + 4, box.row * (high + space) + 4];
    const drawing = element("svg", { viewBox: `0 0 ${across} ${down}`, width: across, height: down, role: "img", "aria-label": `the graph of modules: ${boxes.map((box) => box.name).join(", ")}`, style: `min-width:${Math.min(across, 700)}px` });
    boxes.forEach((box) => box.takes.forEach((wire) => {
      const from = boxes.find((other) => other.name === wire.name) ?? boxes.find((other) => other.name === giver(wire.name)?.name);
      if (!from) return;
      const [[x, y], [toX, toY]] = [place(from), place(box)];
      const [startX, startY, endX, endY] = [x + wide, y + high / 2, toX - 6, toY + high / 2];
      const middle = (startX + endX) / 2;
      drawing.append(element("path", { class: "way", d: `M${startX} ${startY}C${middle} ${startY} ${middle} ${endY} ${endX} ${endY}` }),
        element("path", { class: "head", d: `M${endX + 6} ${endY}l-7 -4v8z` }));
    }));
    const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
    boxes.forEach((box) => {
      const [x, y] = place(box);
      drawing.append(element("g", {}, element("title", {}, `${box.name}: ${box.under}`), element("rect", { class: "box", x, y, width: wide, height: high, rx: 5 }),
        element("text", { x: x + 10, y: y + 18 }, cut(box.name, 26)), element("text", { x: x + 10, y: y + 35, class: "soft" }, cut(box.under, 30))));
    });
    const ranks = plan.roles.map((role) => [role.name, role.ranks.join(", "), role.trains ? "trains" : "", role.holds.join(", ")]);
    return section(`Modules and roles${several() ? `: ${run.name}` : ""}`, "wide", element("div", { class: "scroll", tabindex: "0" }, drawing),
      element("details", {}, element("summary", {}, "Roles"), table(["role", "ranks", "", "holds"], ranks, "text")));
  };

  const messages = (run) => {
    const warned = (run.summary?.warnings ?? []).map((text) => ["", "warn", "", text]);
    const said = run.messages.slice(-200).map((message) => [seconds(message.time_s), message.level, message.rank ?? "", message.text]);
    const lines = [...warned, ...said];
    if (!lines.length) return null;
    const made = section(`Messages${several() ? `: ${run.name}` : ""}`, "wide", table(["at", "level", "rank", "message"], lines, "text"));
    made.querySelectorAll("tbody tr").forEach((row, nth) => row.classList.add(lines[nth][1]));
    return made;
  };

  const job = (run) => (run.job ? section(`The job${several() ? `: ${run.name}` : ""}`, "wide",
    element("details", {}, element("summary", {}, "job.toml, as resolved"), element("pre", {}, run.job))) : null);

  // ---- all of it -----------------------------------------------------------------------------------------------------------

  const KNOWN = { loss: 1, lr: 1, samples_per_s: 1, data_wait_pct: 1, staleness: 1, grad_norm: 1, loss_scale: 1 };

  const draw = () => {
    const [first] = page.runs;
    $("title").textContent = several() ? `${page.runs.length} runs` : first.name;
    document.title = `${several() ? `${page.runs.length} runs` : first.name} – pstrain`;
    $("state").textContent = several() ? "" : `${state(first)} · ${first.folder}`;
    part("head", several() ? compared() : section("Now", "wide", tiles(first)));
    chart("loss", "Loss", [...curves("loss"), ...evalCurves("loss")], { log: true, roll: true });
    const judged = [...new Set(page.runs.flatMap((run) => run.evals.flatMap((record) => numbersOf(record).map(([name]) => name))))];
    judged.filter((name) => name !== "loss").forEach((name) => chart(`eval ${name}`, `Validation: ${words(name)}`, evalCurves(name), { show: (value) => figure(name, value) }));
    chart("lr", "Learning rate", curves("lr"), { zero: true });
    chart("rate", "Samples a second", curves("samples_per_s"), { zero: true, roll: true });
    chart("waits", "Standing still for data, % of the time", curves("data_wait_pct"), { zero: true, roll: true });
    chart("staleness", "Staleness, updates by others", curves("staleness"), { zero: true, roll: true });
    chart("norm", "Norm of the gradients", curves("grad_norm"), { log: true, roll: true });
    chart("scale", "Loss scale", curves("loss_scale"), { log: true });
    const told = [...new Set(page.runs.flatMap((run) => run.trainers.flatMap((trainer) => Object.keys(trainer.figures))))].filter((name) => !KNOWN[name]);
    told.forEach((name) => chart(`told ${name}`, `Training: ${words(name)}`, curves(name), { roll: true }));
    chart("memory", "Memory of each rank", rankCurves("memory"), { zero: true, over: "seconds", show: bytes });
    chart("processor", "Processor of each rank, % of a core", rankCurves("processor"), { zero: true, over: "seconds" });
    chart("gpu", "GPU of each rank, % of the time", rankCurves("gpu"), { zero: true, over: "seconds" });
    chart("gpu memory", "GPU memory of each rank", rankCurves("gpu_memory"), { zero: true, over: "seconds", show: bytes });
    page.runs.forEach((run, nth) => {
      part(`busy ${nth}`, busy(run));
      part(`timeline ${nth}`, timeline(run));
      part(`graph ${nth}`, graph(run));
      part(`links ${nth}`, links(run));
      part(`messages ${nth}`, messages(run));
      part(`job ${nth}`, job(run));
    });
  };

  document.querySelector("nav").addEventListener("input", () => {
    const chosen = (name) => document.querySelector(`input[name="${name}"]:checked`).value;
    how = { over: chosen("over"), each: chosen("each"), log: $("log").checked, roll: Number($("roll").value) };
    $("rolled").textContent = how.roll;
    charts.forEach(({ graph: drawn }) => drawn?.updateOptions({ dateWindow: null, valueRange: null }, true));
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  draw();
  if (page.live) {
    const events = new EventSource(`events${location.search}`);
    events.onmessage = (event) => { page = { ...page, ...JSON.parse(event.data) }; if (!document.hidden) draw(); };
    events.addEventListener("end", () => events.close());
    events.onerror = () => { $("state").textContent += " · nobody answers any more"; };
    document.addEventListener("visibilitychange", () => { if (!document.hidden) draw(); });
  }
})();
