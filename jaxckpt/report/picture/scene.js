// The pictures themselves: data, places and the canvases of each map; `base` holds the picture, `over` what is chosen.

const data = JSON.parse(document.getElementById("data").textContent);
const KEYS = { layer: 4, role: 5, part: 6, line: 7 }; // where a rectangle keeps its group
const [START, STOP, LOW, HIGH] = [0, 1, 2, 3];
const [SIZE, AT_PEAK, COUNT, NAME, OP, SCOPE, ARRAY, SOURCE] = [8, 9, 10, 11, 12, 13, 14, 15]; // of several, NAME is a list
const FRAME = 19; // the innermost frame of its Python stack, -1 where unknown
const [TICK, FREE, PIECE, REPEATED, REFUSED] = [0, 1, 2, 3, 4]; // fields of a state
const UNITS = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
const FONT = "12px system-ui, 'DejaVu Sans', sans-serif";
const TITLE = 22; // pixels at the left edge for the titles of the axes; ticks stand to the right of them
const ink = {};

// What all maps of the page share: the key and the one group that are shown, the rectangle that is kept, the search.
const state = { color: data.first_key, lit: null, pinned: null, hovered: null, search: "" };
// Equal bytes are equally high in every map.
const ceiling = Math.max(1, ...data.maps.map((map) => Math.max(map.extent, map.peak.bytes)));

const text = (at) => data.texts[at];
const groupOf = (each, key) => data.groups[key][each[KEYS[key]]];

function sums(differences) {
  let sum = 0;
  return differences.map((difference) => (sum += difference));
}

function bytes(amount) {
  for (const [name, unit] of UNITS)
    if (amount >= unit) return `${name === "GiB" ? (amount / unit).toFixed(2) : +(amount / unit).toPrecision(4)} ${name}`;
  return `${amount} B`;
}

function make(tag, content, className) {
  const element = document.createElement(tag);
  if (content !== undefined) element.textContent = content; // text, never HTML: names are anybody's
  if (className) element.className = className;
  return element;
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ground", "ink", "quiet", "line", "grid", "peak", "edge", "focus", "shade", "panel"])
    ink[name] = style.getPropertyValue(`--${name}`).trim();
}

function isDark(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue < 140;
}

function nice(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= step);
}

function byteTicks(tall) { // [bytes, words], some 55 pixels apart
  const [name, unit] = UNITS.find(([, each]) => ceiling >= each) || ["B", 1];
  const step = nice(ceiling / unit / Math.max(tall / 55, 1)), ticks = [];
  for (let value = 0; value * unit <= ceiling * 1.02; value += step)
    ticks.push([value * unit, value ? `${+value.toFixed(3)} ${name}` : "0"]);
  return ticks;
}

function shortened(c, words, room) { // to what fits, with its end: names differ there
  let kept = words;
  while (kept.length > 1 && c.measureText(kept).width > room) kept = `…${kept.slice(kept[0] === "…" ? 2 : 1)}`;
  return kept;
}

function halo(c, words, px, py, colour) {
  c.lineJoin = "round";
  c.lineWidth = 4;
  c.strokeStyle = ink.ground;
  c.strokeText(words, px, py);
  c.fillStyle = colour;
  c.fillText(words, px, py);
}

function line(c, x0, y0, x1, y1, colour, dash) {
  c.beginPath();
  c.setLineDash(dash || []);
  c.moveTo(x0, y0);
  c.lineTo(x1, y1);
  c.strokeStyle = colour;
  c.lineWidth = 1;
  c.stroke();
  c.setLineDash([]);
}

class View { // one map: its canvases, its stretch of time, and what the pointer is on
  constructor(map) {
    this.map = map;
    this.total = Math.max(map.kernels, 1);
    [this.from, this.to] = [0, this.total];
    this.hover = this.drag = this.cursor = null;
    this.curves = {};
    for (const key in KEYS) this.curves[key] = map.curves[key].map(sums);
    this.plot = make("div", undefined, "plot");
    [this.base, this.over] = [make("canvas"), make("canvas")];
    this.base.className = "base";
    this.base.setAttribute("aria-hidden", "true");
    this.over.className = "over";
    this.over.tabIndex = 0;
    this.over.setAttribute("role", "application");
    this.over.setAttribute("aria-describedby", "help");
    const name = map.name ? `Memory map of ${map.name}` : "Memory map";
    this.over.setAttribute("aria-label", `${name}: time across, address up. Up and down go from buffer to buffer.`);
    this.tip = make("div", undefined, "tip");
    this.tip.hidden = true;
    this.plot.append(this.base, this.over, this.tip);
    this.words = make("p", undefined, "state"); // what is counted where the slider is
    this.reached = new Map(); // for each call its first execution
    map.states.forEach((state, at) => this.reached.has(state[TICK]) || this.reached.set(state[TICK], at));
  }

  measure() {
    const { width, height } = this.over.getBoundingClientRect();
    const scale = window.devicePixelRatio || 1;
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
    }
    const c = this.base.getContext("2d");
    c.font = FONT;
    const widest = Math.max(...byteTicks(height).map(([, words]) => c.measureText(words).width));
    const left = TITLE + widest + 8, right = width - 24, top = 24, bottom = height - 40;
    const split = top + (bottom - top) * 0.66;
    this.box = { left, right, top, mapBottom: split, ribbon: split + 8, curveTop: split + 30, bottom, width, height };
    this.over.dataset.map = JSON.stringify({ left, right, top, bottom: split }); // for whoever drives the page from outside
  }

  x(kernel) { return this.box.left + ((kernel - this.from) / (this.to - this.from)) * (this.box.right - this.box.left); }
  kernelAt(px) { return this.from + ((px - this.box.left) / (this.box.right - this.box.left)) * (this.to - this.from); }
  y(address) { return this.box.mapBottom - (address / (ceiling * 1.01)) * (this.box.mapBottom - this.box.top); }
  z(live) { return this.box.bottom - (live / (ceiling * 1.08)) * (this.box.bottom - this.box.curveTop); }

  clip(c) {
    c.save();
    c.beginPath();
    c.rect(this.box.left, 0, this.box.right - this.box.left, this.box.height);
    c.clip();
  }

  draw() {
    const c = this.base.getContext("2d"), box = this.box;
    c.clearRect(0, 0, box.width, box.height);
    c.fillStyle = ink.ground;
    c.fillRect(0, 0, box.width, box.height);
    c.font = FONT;
    this.byteAxis(c, (value) => this.y(value), box.top, "address");
    this.byteAxis(c, (value) => this.z(value), box.curveTop, "alive");
    this.clip(c);
    this.drawPhases(c);
    this.map.rectangles.forEach((each, index) => this.drawRectangle(c, each, index));
    this.drawRibbon(c);
    this.drawCurve(c);
    this.drawPeak(c);
    this.callOut(c);
    c.restore();
    this.kernelAxis(c);
    this.drawOver();
  }

  drawRectangle(c, each, index) {
    const box = this.box, left = this.x(each[START]), right = this.x(each[STOP]);
    if (right < box.left || left > box.right) return;
    const up = this.y(each[HIGH]), tall = Math.max(this.y(each[LOW]) - up, 0.7), wide = Math.max(right - left, 1);
    const group = each[KEYS[state.color]];
    c.globalAlpha = (state.lit !== null && state.lit !== group) || (this.found && !this.found[index]) ? 0.1 : 1;
    c.fillStyle = data.groups[state.color][group].colour;
    c.fillRect(left, up, wide, tall);
    if (tall > 4 && wide > 3) {
      c.strokeStyle = ink.edge;
      c.lineWidth = 0.7;
      c.strokeRect(left, up, wide, tall);
    }
    if (tall > 12 && wide > 60 && each[COUNT] === 1) this.nameRectangle(c, each, left, up, wide, tall);
    c.globalAlpha = 1;
  }

  nameRectangle(c, each, left, up, wide, tall) {
    const name = text(each[NAME]), scope = text(each[SCOPE]), array = text(each[ARRAY]);
    const from = Math.max(left, this.box.left), room = Math.min(left + wide, this.box.right) - from - 12;
    const called = this.map.states.length ? name : scope || name;
    const wanted = [[called, array, bytes(each[SIZE])].filter(Boolean).join("  "), called, array];
    c.font = `${Math.min(11, tall - 2)}px system-ui, 'DejaVu Sans', sans-serif`;
    const fits = wanted.find((words) => words && c.measureText(words).width < room);
    if (!fits) return;
    c.fillStyle = isDark(c.fillStyle) ? "#ffffff" : "#1f2328";
    c.textAlign = "left";
    c.textBaseline = "middle";
    c.fillText(fits, from + 6, up + tall / 2 + 0.5);
  }

  drawPhases(c) {
    const box = this.box;
    c.textBaseline = "bottom";
    c.textAlign = "center";
    for (const [start, stop, label] of this.map.phases) {
      const left = Math.max(this.x(start), box.left), right = Math.min(this.x(stop), box.right);
      c.fillStyle = ink.quiet;
      if (right - left > c.measureText(label).width + 10) c.fillText(label, (left + right) / 2, box.top - 6);
      if (start > 0) line(c, this.x(start), box.top - 16, this.x(start), box.bottom, ink.line, [2, 3]);
    }
    c.fillStyle = ink.peak; // requests that no free piece could serve
    this.map.states.forEach((state, at, states) => {
      if (state[REFUSED] > (at ? states[at - 1][REFUSED] : 0)) c.fillRect(this.x(at), box.top - 8, Math.max(1, this.x(at + 1) - this.x(at)), 5);
    });
  }

  drawRibbon(c) {
    for (const [start, stop, colour] of this.map.parts) {
      const left = this.x(start), right = this.x(stop);
      if (right < this.box.left || left > this.box.right) continue;
      c.fillStyle = colour;
      c.fillRect(left, this.box.ribbon, Math.max(right - left, 0.5), 9);
    }
  }

  drawCurve(c) {
    const { map, box } = this, heights = [new Array(map.samples.length).fill(0)];
    for (const values of this.curves[state.color]) heights.push(heights[heights.length - 1].map((below, at) => below + values[at]));
    // From the top down, each to the ground: bands side by side would let the ground shine through between them.
    for (let group = heights.length - 2; group >= 0; group--)
      this.drawBand(c, group, heights[state.lit === null ? 0 : group], heights[group + 1]);
    c.globalAlpha = 1;
    line(c, box.left, this.z(map.extent), box.right, this.z(map.extent), ink.quiet, [5, 4]);
    c.fillStyle = ink.quiet;
    c.textAlign = "right";
    c.textBaseline = "bottom";
    c.fillText(`allocated ${bytes(map.extent)}`, box.right - 4, this.z(map.extent) - 2);
  }

  drawBand(c, group, low, high) {
    const samples = this.map.samples;
    const stair = (sample, height, first, second) => {
      c.lineTo(this.x(sample[first]), height);
      c.lineTo(this.x(sample[second]), height);
    };
    c.beginPath();
    for (let at = 0; at < samples.length; at++) stair(samples[at], this.z(high[at]), 0, 1);
    for (let at = samples.length - 1; at >= 0; at--) stair(samples[at], this.z(low[at]), 1, 0);
    c.closePath();
    c.globalAlpha = state.lit !== null && state.lit !== group ? 0.1 : 1;
    c.fillStyle = data.groups[state.color][group].colour;
    c.fill();
  }

  drawPeak(c) {
    const { map, box } = this;
    if (!map.kernels) return;
    const at = this.x(map.peak.at + 0.5);
    line(c, at, box.top - 4, at, box.bottom, ink.peak, [6, 4]);
    c.fillStyle = ink.peak;
    c.beginPath();
    c.moveTo(at - 6, box.top - 10);
    c.lineTo(at + 6, box.top - 10);
    c.lineTo(at, box.top);
    c.fill();
    if (at < box.left || at > box.right) return;
    const words = `peak ${bytes(map.peak.bytes)} at ${data.words.clock} ${map.peak.at}`;
    c.font = `600 ${FONT}`;
    const wide = c.measureText(words).width, right = at + 12 + wide < box.right;
    c.textAlign = "left";
    c.textBaseline = "top";
    // Where neither side has the room, the words cover the line rather than leave the picture.
    const from = right ? at + 10 : Math.min(Math.max(at - 10 - wide, box.left + 2), box.right - wide - 2);
    halo(c, words, from, this.z(map.peak.bytes) + 4, ink.peak);
    c.font = FONT;
  }

  callOut(c) { // the largest buffers at the peak, named beside it where they are too narrow for their names
    const { map, box } = this, peak = this.x(map.peak.at);
    if (map.states.length) return; // a run fills its memory with any values
    const chosen = [...new Set(map.largest.map(([index]) => index))].map((index) => map.rectangles[index]);
    const taken = { left: [], right: [] };
    for (const each of chosen.filter((one) => one[COUNT] === 1 && one[AT_PEAK] > 0.04 * map.peak.bytes).slice(0, 5)) {
      const left = this.x(each[START]), right = this.x(each[STOP]), middle = (this.y(each[LOW]) + this.y(each[HIGH])) / 2;
      if (right - left > 90 || right < box.left || left > box.right) continue;
      const edges = { left: Math.min(left, peak) - 16, right: Math.max(right, peak) + 16 };
      const room = { left: edges.left - box.left - 4, right: box.right - edges.right - 4 };
      const side = room.right > 260 || room.right >= room.left ? "right" : "left";
      const owner = text(each[SCOPE]) ? `${text(each[SCOPE])}: ${text(each[NAME])}` : text(each[NAME]);
      const array = text(each[ARRAY]) ? `${text(each[ARRAY])}, ${bytes(each[SIZE])}` : bytes(each[SIZE]);
      const words = [owner, array].map((one) => shortened(c, one, room[side]));
      const clear = taken[side].every((other) => Math.abs(other - middle) > 32);
      if (!clear || room[side] < 60) continue; // the table below names it
      taken[side].push(middle);
      line(c, side === "right" ? right : left, middle, edges[side] - (side === "right" ? 3 : -3), middle, ink.quiet);
      c.textAlign = side === "right" ? "left" : "right";
      c.textBaseline = "middle";
      words.forEach((one, at) => halo(c, one, edges[side], middle + 15 * at - 7, at ? ink.quiet : ink.ink));
    }
  }

  byteAxis(c, place, top, title) {
    c.textBaseline = "middle";
    for (const [value, words] of byteTicks(place(0) - top)) {
      const at = place(value);
      line(c, this.box.left, at, this.box.right, at, value ? ink.grid : ink.line);
      c.fillStyle = ink.quiet;
      c.textAlign = "right";
      c.fillText(words, this.box.left - 7, at);
    }
    c.save();
    c.translate(TITLE / 2, (place(0) + top) / 2);
    c.rotate(-Math.PI / 2);
    c.textAlign = "center";
    c.fillText(title, 0, 0);
    c.restore();
  }

  kernelAxis(c) {
    const box = this.box, step = Math.max(1, nice(((this.to - this.from) * 80) / (box.right - box.left)));
    c.fillStyle = ink.quiet;
    c.textAlign = "center";
    c.textBaseline = "top";
    for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
      line(c, this.x(at), box.bottom, this.x(at), box.bottom + 4, ink.line);
      c.fillText(at.toLocaleString("en"), this.x(at), box.bottom + 7);
    }
    c.fillText(data.words.time_axis, (box.left + box.right) / 2, box.bottom + 24);
  }

  drawOver() {
    const c = this.over.getContext("2d"), { box, hover, drag } = this;
    c.clearRect(0, 0, box.width, box.height);
    this.clip(c);
    if (drag && drag.moved) {
      const [from, to] = [drag.from, drag.to].sort((a, b) => a - b);
      c.fillStyle = ink.shade;
      c.fillRect(from, box.top, to - from, box.bottom - box.top);
    } else if (hover) this.upright(c, hover.kernel, ink.quiet);
    if (this.cursor !== null) this.upright(c, this.cursor, ink.focus);
    if (hover && hover.rectangle !== null) this.outline(c, hover.rectangle, ink.ink, 1.5);
    if (state.pinned && state.pinned.view === this) this.outline(c, state.pinned.index, ink.focus, 2.5);
    c.restore();
  }

  upright(c, kernel, colour) {
    const at = this.x(Math.floor(kernel) + 0.5);
    line(c, at, this.box.top, at, this.box.bottom, colour);
  }

  outline(c, index, colour, width) {
    const each = this.map.rectangles[index], left = this.x(each[START]), up = this.y(each[HIGH]);
    for (const [stroke, grow] of [[ink.ground, width], [colour, 0]]) {
      c.strokeStyle = stroke;
      c.lineWidth = width + grow;
      c.strokeRect(left, up, Math.max(this.x(each[STOP]) - left, 2), Math.max(this.y(each[LOW]) - up, 2));
    }
  }

  rectangleAt(px, py) {
    if (py < this.box.top - 2 || py > this.box.mapBottom + 2) return null;
    for (const slack of [0, 2.5]) // a thin one is found beside it, where nothing is hit itself
      for (let index = this.map.rectangles.length - 1; index >= 0; index--) {
        const each = this.map.rectangles[index], left = this.x(each[START]);
        const right = Math.max(this.x(each[STOP]), left + 1), [up, down] = [this.y(each[HIGH]), this.y(each[LOW])];
        if (px >= left - slack && px <= right + slack && py >= up - slack && py <= down + slack) return index;
      }
    return null;
  }

  sampleAt(kernel) {
    let low = 0, high = this.map.samples.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.map.samples[middle][0] <= kernel) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  atPeak(group) { // bytes
    return this.map.samples.length ? this.curves[state.color][group][this.sampleAt(this.map.peak.at)] : 0;
  }
}

const views = data.maps.map((map) => new View(map));
const redraw = () => views.forEach((view) => view.draw());
