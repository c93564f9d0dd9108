// A line chart: canvas for the lines, text for the values under the cursor, so that it can be read without seeing it.
import { canvas, clock, color, h, number, replace } from "./dom.js";

const HEIGHT = 190, LEFT = 52, RIGHT = 12, TOP = 10, BOTTOM = 22;

export function niceTicks(low, high, count) {
  const span = high - low || Math.abs(high) || 1;
  const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) {
    ticks.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
  }
  return ticks;
}

export function smoothed(ys, weight) {
  if (!weight) return ys;
  let last = 0, norm = 0;
  return ys.map((y) => {
    last = last * weight + y * (1 - weight);
    norm = norm * weight + (1 - weight);
    return last / norm;
  });
}

function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1; else high = middle;
  }
  return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
}

// Of lines that have one colour, by `dash`; the theme has the same for the legend.
const DASHES = [[], [6, 4], [2, 3], [8, 3, 2, 3]];

// Chart of {title, unit, help}; `set(series, options)` draws [{label, color, dash, xs, ys}].
export class Chart {
  constructor({ title, unit, help }) {
    this.series = [];
    this.options = {};
    this.hidden = new Set();
    this.cursor = null;
    this.readout = h("p", { class: "readout", "aria-live": "polite" });
    this.legend = h("div", { class: "legend" });
    this.picture = canvas(HEIGHT, (context, width, height) => this.draw(context, width, height), {
      tabindex: 0, role: "img", "aria-label": `${title}${unit ? `, ${unit}` : ""}. Left and right arrows read values.`,
    });
    this.element = h("figure", { class: "chart" },
      h("figcaption", {}, h("strong", {}, title), unit ? h("span", { class: "quiet" }, ` ${unit}`) : null,
        h("span", { class: "help" }, help)),
      this.picture, this.legend, this.readout);
    this.picture.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.picture.addEventListener("pointerleave", () => this.point(null));
    this.picture.addEventListener("blur", () => this.point(null));
    this.picture.addEventListener("keydown", (event) => this.key(event));
  }

  set(series, options = {}) {
    this.series = series;
    this.options = options;
    replace(this.legend, series.map((line) => {
      const shown = !this.hidden.has(line.label);
      const key = h("button", { type: "button", "aria-pressed": String(shown), onclick: () => this.toggle(line.label) },
        h("i", { class: `key dash${line.dash} ${line.color}` }), line.label);
      return key;
    }));
    this.read();
    this.picture.paint();
  }

  toggle(label) {
    if (!this.hidden.delete(label)) this.hidden.add(label);
    this.set(this.series, this.options);
  }

  get shown() {
    return this.series.filter((line) => line.xs.length && !this.hidden.has(line.label));
  }

  range() {
    let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const line of this.shown) {
      left = Math.min(left, line.xs[0]);
      right = Math.max(right, line.xs[line.xs.length - 1]);
      for (const y of line.ys) { if (y < low) low = y; if (y > high) high = y; }
    }
    if (low === high) { const pad = Math.abs(low) * 0.1 || 0.5; low -= pad; high += pad; }
    const pad = (high - low) * 0.06;
    return { left, right: right === left ? left + 1 : right, low: low >= 0 && low - pad < 0 ? 0 : low - pad, high: high + pad };
  }

  point(offset) {
    const { left, right } = this.range();
    const width = this.picture.clientWidth - LEFT - RIGHT;
    this.cursor = offset === null || !this.shown.length ? null
      : left + Math.min(Math.max((offset - LEFT) / width, 0), 1) * (right - left);
    this.read();
    this.picture.paint();
  }

  key(event) {
    if (!["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key) || !this.shown.length) return;
    event.preventDefault();
    const xs = this.shown.reduce((one, other) => (other.xs.length > one.xs.length ? other : one)).xs;
    let at = this.cursor === null ? xs.length - 1 : nearest(xs, this.cursor);
    if (event.key === "ArrowLeft") at -= event.shiftKey ? 10 : 1;
    if (event.key === "ArrowRight") at += event.shiftKey ? 10 : 1;
    if (event.key === "Home") at = 0;
    if (event.key === "End") at = xs.length - 1;
    this.cursor = xs[Math.min(Math.max(at, 0), xs.length - 1)];
    this.read();
    this.picture.paint();
  }

  read() {
    const shown = this.shown;
    if (!shown.length) { this.readout.textContent = "no numbers yet"; return; }
    const parts = shown.map((line) => {
      const at = this.cursor === null ? line.xs.length - 1 : nearest(line.xs, this.cursor);
      return [line, line.xs[at], line.ys[at]];
    });
    const x = this.cursor === null ? Math.max(...parts.map((part) => part[1])) : parts[0][1];
    const place = this.options.x === "seconds" ? clock(x, 1000) : `step ${x}`;
    replace(this.readout, `${this.cursor === null ? "now, " : ""}${place}: `,
      parts.map(([line, , y], i) => `${i ? ", " : ""}${shown.length > 1 ? `${line.label} ` : ""}${number(y, 4)}`));
  }

  draw(context, width, height) {
    const shown = this.shown;
    if (!shown.length) return;
    const { left, right, low, high } = this.range();
    const wide = width - LEFT - RIGHT, tall = height - TOP - BOTTOM;
    const px = (x) => LEFT + ((x - left) / (right - left)) * wide;
    const py = (y) => TOP + (1 - (y - low) / (high - low)) * tall;
    context.font = "11px system-ui, sans-serif";
    context.lineWidth = 1;
    context.fillStyle = color("quiet");
    context.strokeStyle = color("grid");
    context.textAlign = "right";
    context.textBaseline = "middle";
    const ticks = niceTicks(low, high, 4);
    const digits = Math.max(2, -Math.floor(Math.log10(ticks[1] - ticks[0] || 1)));
    for (const tick of ticks) {
      context.beginPath();
      context.moveTo(LEFT, Math.round(py(tick)) + 0.5);
      context.lineTo(width - RIGHT, Math.round(py(tick)) + 0.5);
      context.stroke();
      context.fillText(number(tick, digits), LEFT - 6, py(tick));
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const tick of niceTicks(left, right, Math.max(2, wide / 90))) {
      if (this.options.x !== "seconds" && !Number.isInteger(tick)) continue;
      context.fillText(this.options.x === "seconds" ? clock(tick, right - left) : String(tick), px(tick), height - BOTTOM + 6);
    }
    for (const line of shown) this.line(context, line, px, py, wide);
    if (this.cursor !== null) {
      context.strokeStyle = color("quiet");
      context.beginPath();
      context.moveTo(px(this.cursor), TOP);
      context.lineTo(px(this.cursor), TOP + tall);
      context.stroke();
    }
  }

  line(context, line, px, py, wide) {
    const tint = color(line.color), smooth = line.sparse ? 0 : this.options.smooth ?? 0;
    context.strokeStyle = context.fillStyle = tint;
    context.setLineDash(DASHES[line.dash]);
    if (smooth) {
      context.globalAlpha = 0.25;
      this.path(context, line.xs, line.ys, px, py, wide);
      context.globalAlpha = 1;
    }
    context.lineWidth = 1.6;
    this.path(context, line.xs, smoothed(line.ys, smooth), px, py, wide);
    context.setLineDash([]);
    if (line.xs.length < 40 || line.sparse) {
      for (let i = 0; i < line.xs.length; i += 1) {
        context.beginPath();
        context.arc(px(line.xs[i]), py(line.ys[i]), line.sparse ? 3 : 1.8, 0, 7);
        context.fill();
      }
    }
    context.lineWidth = 1;
  }

  // Of many points only the lowest and highest of each column of pixels: the picture is the same.
  path(context, xs, ys, px, py, wide) {
    context.beginPath();
    const many = xs.length > wide * 3;
    let column = NaN, low = 0, high = 0, last = 0;
    for (let i = 0; i < xs.length; i += 1) {
      const x = px(xs[i]), y = py(ys[i]);
      if (!many) { if (i) context.lineTo(x, y); else context.moveTo(x, y); continue; }
      if (Math.floor(x) !== column) {
        if (!Number.isNaN(column)) { context.lineTo(column, low); context.lineTo(column, high); context.lineTo(column, last); }
        else context.moveTo(x, y);
        column = Math.floor(x);
        low = high = y;
      }
      low = Math.min(low, y);
      high = Math.max(high, y);
      last = y;
    }
    if (many) { context.lineTo(column, low); context.lineTo(column, high); }
    context.stroke();
  }
}
