// Elements, and numbers for people.
"use strict";
const Parts = (() => {
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
    return size >= 0.0001 || size === 0 ? String(+value.toPrecision(4)) : value.toExponential(2);
  };
  const bytes = (value) => {
    if (value === null || value === undefined) return "–";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    for (; value >= 1024 && at < units.length - 1; at += 1) value /= 1024;
    return `${+value.toPrecision(3)} ${units[at]}`;
  };
  const seconds = (value) => {
    if (value < 60) return `${value < 1 ? number(value) : value.toFixed(1)} s`;
    const whole = Math.round(value), two = (part) => String(part).padStart(2, "0");
    return whole < 3600 ? `${Math.floor(whole / 60)} min ${two(whole % 60)} s` : `${Math.floor(whole / 3600)} h ${two(Math.floor(whole % 3600 / 60))} min`;
  };
  const share = (value) => `${(100 * value).toFixed(2)} %`;
  const words = (name) => name.replaceAll("_", " ");
  const figure = (name, value) => (name === "accuracy" && typeof value === "number" ? share(value) : number(value));

  const table = (head, rows, kind = "") => element("div", { class: "scroll", tabindex: "0" },
    element("table", { class: kind },
      element("thead", {}, element("tr", {}, ...head.map((cell) => element("th", { scope: "col" }, cell)))),
      element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, cell)))))));

  const section = (title, kind, ...children) => element("section", { class: kind }, element("h2", {}, title), ...children);

  // Puts `made` in the place of `before`, open where that was open, scrolled as that was, and with the focus where that had it.
  const replace = (before, made) => {
    const those = (within, which) => [...within.querySelectorAll(which)];
    const usable = "summary, [tabindex]";
    const focused = those(before, usable).indexOf(document.activeElement);
    const scrolls = those(before, ".scroll").map((room) => [room.scrollLeft, room.scrollTop]);
    those(before, "details").forEach((detail, nth) => { const other = those(made, "details")[nth]; if (other) other.open = detail.open; });
    if (before.open) made.open = true;
    before.replaceWith(made);
    those(made, ".scroll").forEach((room, nth) => { if (scrolls[nth]) [room.scrollLeft, room.scrollTop] = scrolls[nth]; });
    those(made, usable)[focused]?.focus({ preventScroll: true });
  };

  return { bytes, element, figure, number, replace, seconds, section, share, table, words };
})();
