// The page of one run, or of several beside one another. What it draws stands in #runs as JSON (src/watch/view.rs); while a run goes
// on, a newer one comes over `events`.
"use strict";
(() => {
  const { bytes, element, figure, number, replace, seconds, section, share, table, words } = Parts;
  // After Okabe and Ito: told apart by most eyes, on light and on dark.
  const ON_LIGHT = ["#0072B2", "#C04F00", "#007A59", "#AD4D84", "#946200", "#2477A8", "#7A55A3", "#6B6B00"];
  const ON_DARK = ["#56B4E9", "#FF9A4D", "#2EC79B", "#E79AC4", "#F0B93A", "#8FD0F5", "#B79CE0", "#CFCF4A"];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  // Without colours, lines are told apart by their strokes.
  const STROKES = [null, [7, 3], [2, 2], [9, 3, 2, 3], [4, 4], [12, 4], [2, 5], [6, 2, 2, 2]];
  const ACTIVITIES = ["data", "payload", "forward", "loss", "backward", "exchange", "step", "wait"];
  const FILLS = {
    data: "#E69F00", payload: "#D98CB8", forward: "#9AD5F7", loss: "#B5B53A", backward: "#3F8FCB", exchange: "#E0702A",
    step: "#1FA67E", wait: "#D5D9DF",
  };
  // As in `pstrain top`: where there is no room for a name, or no colour.
  const LETTERS = { data: "D", payload: "P", forward: "F", loss: "L", backward: "B", exchange: "X", step: "S", wait: "." };
  const $ = (id) => document.getElementById(id);
  const main = $("main");
  let page = JSON.parse($("runs").textContent);
  let how = { over: "x", each: "mean", log: false, roll: 1 };
  const charts = new Map();
  // What is shown, in its order.
  let shown = [];

  const last = (list) => (list.length ? list[list.length - 1] : undefined);
  const several = () => page.runs.length > 1;

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

  // The mean of several curves at the places of the one that goes furthest.
  const together = (all) => {
    const at = all.map(() => 0);
    const out = { x: [], mean: [], least: [], greatest: [] };
    const furthest = all.reduce((one, other) => (last(other.x) > last(one.x) ? other : one));
    furthest.x.forEach((x) => {
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

  // The bands of more curves hide one another, and take long to be drawn.
  const MOST_BANDS = 8;

  // Rows as Dygraphs has them: x, then the mean of each curve; with `customBars` [least, mean, greatest].
  const rows = (drawn) => {
    const places = new Map();
    const bands = drawn.length <= MOST_BANDS;
    drawn.forEach(({ columns }, nth) => columns.x.forEach((x, at) => {
      if (!places.has(x)) places.set(x, drawn.map(() => (bands ? [null, null, null] : null)));
      const mean = columns.mean[at];
      places.get(x)[nth] = bands ? [columns.least[at] ?? mean, mean, columns.greatest[at] ?? mean] : mean;
    }));
    return [...places.entries()].sort((a, b) => a[0] - b[0]).map(([x, values]) => [x, ...values]);
  };

  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Charts that are out of sight are drawn when they come into it.
  const sight = new IntersectionObserver((seen) => seen.forEach(({ target, isIntersecting }) => {
    const kept = [...charts.values()].find(({ canvas }) => canvas === target);
    if (!kept) return;
    kept.isSeen = isIntersecting;
    drawSoon();
  }), { rootMargin: "300px" });

  // One chart in a frame, so that the page answers meanwhile.
  let waits = false;
  const drawSoon = () => {
    const next = () => [...charts.values()].find((kept) => kept.isSeen && kept.draw);
    main.setAttribute("aria-busy", String(Boolean(next())));
    if (waits || !next()) return;
    waits = true;
    requestAnimationFrame(() => {
      waits = false;
      next()?.draw();
      drawSoon();
    });
  };

  const chart = (key, title, drawn, options = {}) => {
    drawn = drawn.filter(({ columns }) => columns.x.length);
    const before = charts.get(key);
    if (!drawn.length) {
      before?.graph?.destroy();
      before?.room.remove();
      charts.delete(key);
      return;
    }
    const kept = before ?? newChart(key, title);
    const named = unique(drawn.map((curve) => curve.label));
    const show = options.show ?? number;
    kept.draw = () => {
      kept.draw = null;
      const settings = looks(named, drawn, show, options), data = rows(drawn);
      if (kept.graph) kept.graph.updateOptions({ ...settings, file: data });
      else kept.graph = new Dygraph(kept.canvas, data, { ...settings, labelsDiv: kept.legend });
      const ends = drawn.map(({ columns }, nth) => `${named[nth]} ${show(last(columns.mean))}`);
      kept.canvas.setAttribute("aria-label", `${title}: at last ${ends.slice(0, 8).join(", ")}`);
      const finite = (list) => list.filter((value) => value !== null);
      const numbers = table(["", "first", "least", "greatest", "last"], drawn.map(({ columns: { mean, least, greatest } }, nth) => [
        named[nth], show(mean[0]), show(Math.min(...finite(least.length ? least : mean))),
        show(Math.max(...finite(greatest.length ? greatest : mean))), show(last(mean))]));
      replace(kept.numbers, kept.numbers = element("details", {}, element("summary", {}, "Numbers"), numbers));
    };
    drawSoon();
    shown.push(kept.room);
  };

  const newChart = (key, title) => {
    const legend = element("div", { class: "legend" });
    const canvas = element("div", { class: "chart", tabindex: "0", role: "img", "aria-label": title });
    const numbers = element("details", {}, element("summary", {}, "Numbers"));
    const kept = { room: section(title, "", canvas, legend, numbers), canvas, legend, numbers, isSeen: false };
    canvas.addEventListener("keydown", (event) => { if (kept.graph) steer(event, kept.graph); });
    charts.set(key, kept);
    sight.observe(canvas);
    return kept;
  };

  const looks = (named, drawn, show, options) => {
    const colors = dark.matches ? ON_DARK : ON_LIGHT;
    const over = options.over ?? (how.over === "x" ? "step" : "seconds");
    return {
      labels: [over, ...named], xlabel: over, xLabelHeight: 16,
      customBars: drawn.length <= MOST_BANDS, connectSeparatedPoints: true, rollPeriod: options.roll ? how.roll : 1, logscale: Boolean(options.log && how.log),
      legend: "always", gridLineColor: ink("--line"), axisLineColor: ink("--line"),
      // Bands of many curves lie upon one another.
      fillAlpha: Math.min(0.18, 0.36 / drawn.length),
      colors: named.map((_, nth) => colors[nth % colors.length]), strokeWidth: 1.6, highlightCircleSize: 4,
      series: Object.fromEntries(named.map((name, nth) => [name, {
        strokePattern: STROKES[nth % STROKES.length], drawPoints: drawn[nth].points ?? drawn[nth].columns.x.length < 3, pointSize: 3,
      }])),
      includeZero: options.zero ?? false, labelsKMG2: show === bytes,
      axes: { y: { axisLabelWidth: 62, valueFormatter: show, axisLabelFormatter: show }, x: { valueFormatter: number, axisLabelFormatter: number } },
    };
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
    if (before && before.isEqualNode(made)) { shown.push(before); return; }
    if (before) replace(before, made);
    rooms.set(key, made);
    shown.push(made);
  };

  const rate = (run) => run.trainers.reduce((sum, trainer) => sum + (trainer.last?.samples_per_s ?? 0), 0);
  const lossNow = (run) => {
    const all = run.trainers.map((trainer) => trainer.last?.loss).filter((value) => typeof value === "number");
    return all.length ? all.reduce((a, b) => a + b) / all.length : null;
  };
  const steps = (run) => Math.max(0, ...run.trainers.map((trainer) => trainer.last?.step ?? 0));
  const epoch = (run) => Math.max(0, ...run.trainers.map((trainer) => trainer.last?.epoch ?? 0));
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

  // Of each rank; of several runs the mean over the ranks of each.
  const rankCurves = (name) => page.runs.flatMap((run) => {
    const those = run.ranks.filter((rank) => rank.figures[name]);
    if (several() && those.length) return [{ label: run.name, columns: together(those.map((rank) => rank.figures[name])) }];
    return those.map((rank) => ({ label: `${rank.role}${rank.rank}`, columns: rank.figures[name] }));
  });

  const keys = (names) => element("div", { class: "keys" }, ...names.map((name) => element("span", {},
    element("i", { style: `background:${FILLS[name]}` }, LETTERS[name]), name)));

  // What a rank's time went into, altogether: seconds by activity.
  const bar = (of) => {
    const spent = Object.entries(of);
    const all = spent.reduce((sum, [, value]) => sum + value, 0);
    const room = main.clientWidth - 150;
    const label = (name, pixels) => (pixels > 9 * name.length ? name : pixels > 12 ? LETTERS[name] : "");
    const parts = spent.map(([name, value]) => element("span", {
      style: `width:${100 * value / all}%;background:${FILLS[name]}`, title: `${name}: ${seconds(value)}, ${share(value / all)}`,
    }, label(name, room * value / all)));
    return element("div", { class: "bar", role: "img", "aria-label": spent.map(([name, value]) => `${name} ${share(value / all)}`).join(", ") }, ...parts);
  };

  // The same from the run's beginning to `end`, in seconds: how many of its threads are at what. A wait is told when it is over, all
  // of it, so it has no place here.
  const strip = (rank, end) => {
    const all = ACTIVITIES.filter((name) => name !== "wait" && rank.activities[name]).map((name) => [name, rank.activities[name]]);
    if (!all.length || !end) return null;
    const times = all.map(([, columns]) => columns.x).reduce((one, other) => (other.length > one.length ? other : one));
    const levels = all.map(([name, { x, mean }]) => {
      let at = 0;
      return [name, times.map((time) => {
        while (at < x.length - 1 && x[at] < time) at += 1;
        return x[at] >= time ? mean[at] ?? 0 : 0;
      })];
    });
    const most = Math.max(1, ...times.map((_, nth) => levels.reduce((sum, [, of]) => sum + of[nth], 0)));
    const [wide, high] = [1000, 36];
    const across = (time) => (wide * time / end).toFixed(1), down = (level) => (high - high * level / most).toFixed(1);
    const below = times.map(() => 0);
    const drawing = element("svg", { viewBox: `0 0 ${wide} ${high}`, preserveAspectRatio: "none", class: "strip", role: "img",
      "aria-label": `over time, up to ${number(most)} threads` });
    levels.forEach(([name, of]) => {
      const above = of.map((level, nth) => below[nth] + level);
      const to = above.map((level, nth) => `V${down(level)}H${across(times[nth])}`).join("");
      const back = below.map((level, nth) => `V${down(level)}H${across(nth ? times[nth - 1] : 0)}`).reverse().join("");
      drawing.append(element("path", { d: `M0 ${down(below[0])}${to}${back}z`, fill: FILLS[name] }, element("title", {}, name)));
      above.forEach((level, nth) => { below[nth] = level; });
    });
    return drawing;
  };

  const busy = (run) => {
    const trainers = new Set(run.trainers.map((trainer) => trainer.rank));
    // The main thread of a rank that only serves waits for the end of the run, whatever its others do.
    const spent = (rank) => Object.fromEntries(ACTIVITIES.filter((name) => rank.seconds[name] > 0 && (name !== "wait" || trainers.has(rank.rank)))
      .map((name) => [name, rank.seconds[name]]));
    const ranks = run.ranks.filter((rank) => Object.keys(spent(rank)).length);
    if (!ranks.length) return null;
    const end = Math.max(...ranks.map((rank) => last(rank.figures.memory?.x ?? []) ?? 0));
    const called = (rank) => `${rank.role}${rank.rank}`;
    const rowsOf = (made) => element("div", { class: "ranks" }, ...ranks.flatMap((rank) => [element("span", {}, called(rank)), made(rank) ?? ""]));
    const present = ACTIVITIES.filter((name) => ranks.some((rank) => spent(rank)[name]));
    const lines = ranks.map((rank) => [called(rank), ...present.map((name) => number(spent(rank)[name] ?? 0))]);
    return section("What the threads of each rank do", "wide", keys(present), rowsOf((rank) => bar(spent(rank))),
      element("h3", {}, `From the beginning to ${seconds(end)}, by threads at work`), rowsOf((rank) => strip(rank, end)),
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
    return section("A moment of the run", "wide",
      keys(ACTIVITIES.filter((name) => moment.spans.some((span) => span.activity === name))),
      element("div", { class: "scroll", tabindex: "0" }, drawing));
  };

  const links = (run) => {
    const measured = run.summary?.measured?.links;
    const rows = measured?.length
      ? measured.map((link) => [`${link.from} to ${link.to}`, bytes(link.bytes), bytes(link.planned_bytes)])
      : (run.plan?.links ?? []).map((link) => [`${link.from} to ${link.to}`, "–", bytes(link.bytes)]);
    if (!rows.length) return null;
    return section("Bytes of a trainer's step", "", table(["", "measured", "planned"], rows));
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
    return section("Modules and roles", "wide", element("div", { class: "scroll", tabindex: "0" }, drawing),
      element("details", {}, element("summary", {}, "Roles"), table(["role", "ranks", "", "holds"], ranks, "text")));
  };

  const messages = (run) => {
    const warned = (run.summary?.warnings ?? []).map((text) => ["", "warn", "", text]);
    const said = run.messages.slice(-200).map((message) => [`${message.time_s.toFixed(1)} s`, message.level, message.rank ?? "", message.text]);
    const lines = [...warned, ...said];
    if (!lines.length) return null;
    const made = section("Messages", "wide", table(["at", "level", "rank", "message"], lines, "text said"));
    made.querySelectorAll("tbody tr").forEach((row, nth) => row.classList.add(lines[nth][1]));
    return made;
  };

  const job = (run) => (run.job ? section("The job", "wide",
    element("details", {}, element("summary", {}, "job.toml, as resolved"), element("pre", {}, run.job))) : null);

  // ---- all of it -----------------------------------------------------------------------------------------------------------

  const KNOWN = new Set(["loss", "lr", "samples_per_s", "data_wait_pct", "staleness", "grad_norm", "loss_scale"]);

  const OF_A_RUN = { links, busy, timeline, graph, messages, job };

  // One of several runs: what there is of it alone is made when somebody wants to see it.
  const folded = (run) => {
    const made = element("details", { class: "run" }, element("summary", {}, run.name));
    made.addEventListener("toggle", () => {
      if (made.children.length === 1) made.append(...Object.values(OF_A_RUN).map((part) => part(run)).filter(Boolean));
    });
    return made;
  };

  const draw = () => {
    const [first] = page.runs;
    shown = [];
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
    const told = [...new Set(page.runs.flatMap((run) => run.trainers.flatMap((trainer) => Object.keys(trainer.figures))))].filter((name) => !KNOWN.has(name));
    told.forEach((name) => chart(`told ${name}`, `Training: ${words(name)}`, curves(name), { roll: true }));
    const ofRanks = several() ? "(mean of ranks)" : "of each rank";
    chart("memory", `Memory ${ofRanks}`, rankCurves("memory"), { zero: true, over: "seconds", show: bytes });
    chart("processor", `Processor ${ofRanks}, % of a core`, rankCurves("processor"), { zero: true, over: "seconds" });
    chart("gpu", `GPU ${ofRanks}, % of the time`, rankCurves("gpu"), { zero: true, over: "seconds" });
    chart("gpu memory", `GPU memory ${ofRanks}`, rankCurves("gpu_memory"), { zero: true, over: "seconds", show: bytes });
    if (several()) page.runs.forEach((run, nth) => part(`run ${nth}`, folded(run)));
    else Object.entries(OF_A_RUN).forEach(([key, made]) => part(key, made(first)));
    // What stands where it belongs is not touched: moving it would take its focus.
    shown.forEach((room, nth) => { if (main.children[nth] !== room) main.insertBefore(room, main.children[nth] ?? null); });
  };

  document.querySelector("nav").addEventListener("input", () => {
    const chosen = (name) => document.querySelector(`input[name="${name}"]:checked`).value;
    how = { over: chosen("over"), each: chosen("each"), log: $("log").checked, roll: Number($("roll").value) };
    $("rolled").textContent = how.roll;
    charts.forEach(({ graph: drawn }) => drawn?.updateOptions({ dateWindow: null, valueRange: null }, true));
    draw();
  });
  dark.addEventListener("change", draw);
  addEventListener("beforeprint", () => charts.forEach((kept) => kept.draw?.()));

  main.replaceChildren();
  draw();
  if (page.live) {
    const events = new EventSource(`events${location.search}`);
    events.onmessage = (event) => { page = { ...page, ...JSON.parse(event.data) }; if (!document.hidden) draw(); };
    events.addEventListener("end", () => events.close());
    events.onerror = () => { $("state").textContent = `${state(page.runs[0])} · nobody answers any more · ${page.runs[0].folder}`; };
    document.addEventListener("visibilitychange", () => { if (!document.hidden) draw(); });
  }
})();
