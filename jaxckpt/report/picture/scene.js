// The picture itself: data, places and the two canvases; `base` holds the picture, `over` what is chosen.

const data = JSON.parse(document.getElementById("data").textContent);
const KEYS = { layer: 4, role: 5, part: 6, line: 7 }; // where a rectangle keeps its group
const [START, STOP, LOW, HIGH] = [0, 1, 2, 3];
const [SIZE, AT_PEAK, COUNT, NAME, OP, SCOPE, ARRAY, SOURCE] = [8, 9, 10, 11, 12, 13, 14, 15]; // of several, NAME is a list
const text = (at) => data.texts[at];
const rectangles = data.rectangles;
const total = Math.max(data.kernels, 1);
const curves = {};
for (const key in KEYS) curves[key] = data.curves[key].map(sums);

const state = { color: data.first_key, from: 0, to: total, hover: null, pinned: null, lit: null, drag: null };
const base = document.getElementById("base");
const over = document.getElementById("over");
const tip = document.getElementById("tip");
const ink = {};
const FONT = "12px system-ui, 'DejaVu Sans', sans-serif";
const TITLE = 22; // pixels at the left edge for the titles of the axes; ticks stand to the right of them
let box = {};

function sums(differences) {
  let sum = 0;
  return differences.map((difference) => (sum += difference));
}

const UNITS = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

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

function measure() {
  const { width, height } = over.getBoundingClientRect();
  const scale = window.devicePixelRatio || 1;
  for (const canvas of [base, over]) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
  }
  const c = base.getContext("2d");
  c.font = FONT;
  const widest = Math.max(...byteTicks(height).map(([, words]) => c.measureText(words).width));
  const left = TITLE + widest + 8, right = width - 24, top = 24, bottom = height - 40;
  const split = top + (bottom - top) * 0.66;
  box = { left, right, top, mapBottom: split, ribbon: split + 8, curveTop: split + 30, bottom, width, height };
  over.dataset.map = JSON.stringify({ left, right, top, bottom: split }); // for whoever drives the page from outside
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ground", "ink", "quiet", "line", "grid", "peak", "edge", "focus", "shade", "panel"])
    ink[name] = style.getPropertyValue(`--${name}`).trim();
}

const ceiling = () => Math.max(data.extent, data.peak.bytes, 1);
const x = (kernel) => box.left + ((kernel - state.from) / (state.to - state.from)) * (box.right - box.left);
const kernelAt = (px) => state.from + ((px - box.left) / (box.right - box.left)) * (state.to - state.from);
const y = (address) => box.mapBottom - (address / (ceiling() * 1.01)) * (box.mapBottom - box.top);
const z = (live) => box.bottom - (live / (ceiling() * 1.08)) * (box.bottom - box.curveTop);

function draw() {
  const c = base.getContext("2d");
  c.clearRect(0, 0, box.width, box.height);
  c.fillStyle = ink.ground;
  c.fillRect(0, 0, box.width, box.height);
  c.font = FONT;
  byteAxis(c, y, box.top, "address");
  byteAxis(c, z, box.curveTop, "alive");
  c.save();
  c.beginPath();
  c.rect(box.left, 0, box.right - box.left, box.height);
  c.clip();
  drawPhases(c);
  for (const each of rectangles) drawRectangle(c, each);
  drawRibbon(c);
  drawCurve(c);
  drawPeak(c);
  callOut(c);
  c.restore();
  kernelAxis(c);
  drawOver();
}

const alpha = (group) => (state.lit !== null && state.lit !== group ? 0.1 : 1);

function drawRectangle(c, each) {
  const left = x(each[START]), right = x(each[STOP]);
  if (right < box.left || left > box.right) return;
  const up = y(each[HIGH]), tall = Math.max(y(each[LOW]) - up, 0.7), wide = Math.max(right - left, 1);
  const group = each[KEYS[state.color]];
  c.globalAlpha = alpha(group);
  c.fillStyle = data.groups[state.color][group].colour;
  c.fillRect(left, up, wide, tall);
  if (tall > 4 && wide > 3) {
    c.strokeStyle = ink.edge;
    c.lineWidth = 0.7;
    c.strokeRect(left, up, wide, tall);
  }
  if (tall > 12 && wide > 60) nameRectangle(c, each, left, up, wide, tall);
  c.globalAlpha = 1;
}

function nameRectangle(c, each, left, up, wide, tall) {
  if (each[COUNT] > 1) return;
  const name = text(each[NAME]), scope = text(each[SCOPE]), array = text(each[ARRAY]);
  const from = Math.max(left, box.left), room = Math.min(left + wide, box.right) - from - 12;
  const wanted = [`${scope || name}  ${array}  ${bytes(each[SIZE])}`, `${scope || name}`, array];
  c.font = `${Math.min(11, tall - 2)}px system-ui, 'DejaVu Sans', sans-serif`;
  const fits = wanted.find((words) => c.measureText(words).width < room);
  if (fits) {
    c.fillStyle = isDark(c.fillStyle) ? "#ffffff" : "#1f2328";
    c.textAlign = "left";
    c.textBaseline = "middle";
    c.fillText(fits, from + 6, up + tall / 2 + 0.5);
  }
}

function isDark(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue < 140;
}

function drawPhases(c) {
  c.textBaseline = "bottom";
  c.textAlign = "center";
  for (const [start, stop, label] of data.phases) {
    const left = Math.max(x(start), box.left), right = Math.min(x(stop), box.right);
    c.fillStyle = ink.quiet;
    if (right - left > c.measureText(label).width + 10) c.fillText(label, (left + right) / 2, box.top - 6);
    if (start > 0) line(c, x(start), box.top - 16, x(start), box.bottom, ink.line, [2, 3]);
  }
}

function drawRibbon(c) {
  for (const [start, stop, colour] of data.parts) {
    const left = x(start), right = x(stop);
    if (right < box.left || left > box.right) continue;
    c.fillStyle = colour;
    c.fillRect(left, box.ribbon, Math.max(right - left, 0.5), 9);
  }
}

function drawCurve(c) {
  const heights = [new Array(data.samples.length).fill(0)];
  for (const values of curves[state.color]) heights.push(heights[heights.length - 1].map((below, at) => below + values[at]));
  // From the top down, each to the ground: bands side by side would let the ground shine through between them.
  for (let group = heights.length - 2; group >= 0; group--) drawBand(c, group, heights[state.lit === null ? 0 : group], heights[group + 1]);
  c.globalAlpha = 1;
  line(c, box.left, z(data.extent), box.right, z(data.extent), ink.quiet, [5, 4]);
  c.fillStyle = ink.quiet;
  c.textAlign = "right";
  c.textBaseline = "bottom";
  c.fillText(`allocated ${bytes(data.extent)}`, box.right - 4, z(data.extent) - 2);
}

function drawBand(c, group, low, high) {
  const samples = data.samples;
  c.beginPath();
  for (let at = 0; at < samples.length; at++) stair(c, samples[at], z(high[at]));
  for (let at = samples.length - 1; at >= 0; at--) stair(c, samples[at], z(low[at]), true);
  c.closePath();
  c.globalAlpha = alpha(group);
  c.fillStyle = data.groups[state.color][group].colour;
  c.fill();
}

function stair(c, sample, height, backwards) {
  c.lineTo(x(sample[backwards ? 1 : 0]), height);
  c.lineTo(x(sample[backwards ? 0 : 1]), height);
}

function drawPeak(c) {
  if (!data.kernels) return;
  const at = x(data.peak.at + 0.5);
  line(c, at, box.top - 4, at, box.bottom, ink.peak, [6, 4]);
  c.fillStyle = ink.peak;
  c.beginPath();
  c.moveTo(at - 6, box.top - 10);
  c.lineTo(at + 6, box.top - 10);
  c.lineTo(at, box.top);
  c.fill();
  const words = `peak ${bytes(data.peak.bytes)} at kernel ${data.peak.at}`;
  c.font = "600 12px system-ui, 'DejaVu Sans', sans-serif";
  const wide = c.measureText(words).width, right = at + 12 + wide < box.right;
  c.textAlign = "left";
  c.textBaseline = "top";
  // Where neither side has the room, the words cover the line rather than leave the picture.
  const from = right ? at + 10 : Math.min(Math.max(at - 10 - wide, box.left + 2), box.right - wide - 2);
  halo(c, words, from, z(data.peak.bytes) + 4, ink.peak);
  c.font = FONT;
}

function callOut(c) { // the largest buffers at the peak, named beside it where they are too narrow for their names
  const chosen = [...new Set(data.largest.map(([index]) => index))].map((index) => rectangles[index]);
  const taken = { left: [], right: [] };
  for (const each of chosen.filter((one) => one[COUNT] === 1 && one[AT_PEAK] > 0.04 * data.peak.bytes).slice(0, 5)) {
    const left = x(each[START]), right = x(each[STOP]), middle = (y(each[LOW]) + y(each[HIGH])) / 2;
    if (right - left > 90 || right < box.left || left > box.right) continue;
    const edges = { left: Math.min(left, x(data.peak.at)) - 16, right: Math.max(right, x(data.peak.at)) + 16 };
    const room = { left: edges.left - box.left - 4, right: box.right - edges.right - 4 };
    const side = room.right > 260 || room.right >= room.left ? "right" : "left";
    const owner = text(each[SCOPE]) ? `${text(each[SCOPE])}: ${text(each[NAME])}` : text(each[NAME]);
    const words = [owner, `${text(each[ARRAY])}, ${bytes(each[SIZE])}`].map((one) => shortened(c, one, room[side]));
    const clear = taken[side].every((other) => Math.abs(other - middle) > 32);
    if (!clear || room[side] < 60) continue; // the table below names it
    taken[side].push(middle);
    line(c, side === "right" ? right : left, middle, edges[side] - (side === "right" ? 3 : -3), middle, ink.quiet);
    c.textAlign = side === "right" ? "left" : "right";
    c.textBaseline = "middle";
    words.forEach((one, at) => halo(c, one, edges[side], middle + 15 * at - 7, at ? ink.quiet : ink.ink));
  }
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

function byteTicks(tall) { // [bytes, words], some 55 pixels apart
  const [name, unit] = UNITS.find(([, each]) => ceiling() >= each) || ["B", 1];
  const step = nice(ceiling() / unit / Math.max(tall / 55, 1)), ticks = [];
  for (let value = 0; value * unit <= ceiling() * 1.02; value += step)
    ticks.push([value * unit, value ? `${+value.toFixed(3)} ${name}` : "0"]);
  return ticks;
}

function byteAxis(c, place, top, title) {
  c.textBaseline = "middle";
  for (const [value, words] of byteTicks(place(0) - top)) {
    const at = place(value);
    line(c, box.left, at, box.right, at, value ? ink.grid : ink.line);
    c.fillStyle = ink.quiet;
    c.textAlign = "right";
    c.fillText(words, box.left - 7, at);
  }
  c.save();
  c.translate(TITLE / 2, (place(0) + top) / 2);
  c.rotate(-Math.PI / 2);
  c.textAlign = "center";
  c.fillText(title, 0, 0);
  c.restore();
}

function kernelAxis(c) {
  const step = Math.max(1, nice(((state.to - state.from) * 80) / (box.right - box.left)));
  c.fillStyle = ink.quiet;
  c.textAlign = "center";
  c.textBaseline = "top";
  for (let at = Math.ceil(state.from / step) * step; at <= state.to; at += step) {
    line(c, x(at), box.bottom, x(at), box.bottom + 4, ink.line);
    c.fillText(at.toLocaleString("en"), x(at), box.bottom + 7);
  }
  c.fillText("kernels in the order of the schedule", (box.left + box.right) / 2, box.bottom + 24);
}

function nice(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= step);
}

function drawOver() {
  const c = over.getContext("2d");
  c.clearRect(0, 0, box.width, box.height);
  c.save();
  c.beginPath();
  c.rect(box.left, 0, box.right - box.left, box.height);
  c.clip();
  if (state.drag && state.drag.moved) {
    const [from, to] = [state.drag.from, state.drag.to].sort((a, b) => a - b);
    c.fillStyle = ink.shade;
    c.fillRect(from, box.top, to - from, box.bottom - box.top);
  } else if (state.hover) {
    const at = x(Math.floor(state.hover.kernel) + 0.5);
    line(c, at, box.top, at, box.bottom, ink.quiet);
  }
  if (state.hover && state.hover.rectangle !== null) outline(c, state.hover.rectangle, ink.ink, 1.5);
  if (state.pinned !== null) outline(c, state.pinned, ink.focus, 2.5);
  c.restore();
}

function outline(c, index, colour, width) {
  const each = rectangles[index];
  const left = x(each[START]), up = y(each[HIGH]);
  c.lineWidth = width;
  for (const [stroke, grow] of [[ink.ground, width], [colour, 0]]) {
    c.strokeStyle = stroke;
    c.lineWidth = width + grow;
    c.strokeRect(left, up, Math.max(x(each[STOP]) - left, 2), Math.max(y(each[LOW]) - up, 2));
  }
}

function rectangleAt(px, py) {
  if (py < box.top - 2 || py > box.mapBottom + 2) return null;
  for (const slack of [0, 2.5]) // a thin one is found beside it, where nothing is hit itself
    for (let index = rectangles.length - 1; index >= 0; index--) {
      const each = rectangles[index];
      const right = Math.max(x(each[STOP]), x(each[START]) + 1);
      if (px >= x(each[START]) - slack && px <= right + slack && py >= y(each[HIGH]) - slack && py <= y(each[LOW]) + slack)
        return index;
    }
  return null;
}

function sampleAt(kernel) {
  let low = 0, high = data.samples.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (data.samples[middle][0] <= kernel) low = middle;
    else high = middle - 1;
  }
  return low;
}
