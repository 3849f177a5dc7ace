// What stands in words around the picture: the tip at the pointer, the chosen buffer, legend, figures and table.

function showTip(px, py) {
  tip.replaceChildren();
  if (state.hover.rectangle !== null) tipOfRectangle(rectangles[state.hover.rectangle]);
  else if (data.samples.length) tipOfKernel(sampleAt(state.hover.kernel), py > box.ribbon);
  else return;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${px + 18 + width < box.width ? px + 18 : Math.max(0, px - 18 - width)}px`;
  tip.style.top = `${Math.max(0, Math.min(py + 14, box.height - height))}px`;
}

function tipOfRectangle(each) {
  if (each[COUNT] > 1) {
    tip.append(make("b", `${each[COUNT]} small buffers, ${bytes(each[SIZE])} together`));
    tip.append(make("div", `layer ${groupOf(each, "layer")}, ${groupOf(each, "role")}, ${groupOf(each, "part")}`));
    for (const [name, , , array, , size] of each[NAME]) tip.append(row(null, `${text(name)} ${text(array)}`, bytes(size)));
    return;
  }
  tip.append(make("b", text(each[NAME])));
  tip.append(make("div", `${bytes(each[SIZE])}  ${text(each[ARRAY])}  ${groupOf(each, "role")}, ${groupOf(each, "part")}`, "strong"));
  tip.append(make("div", text(each[SCOPE]) || "no scope"));
  tip.append(make("div", text(each[SOURCE]) || "line of code unknown"));
  tip.append(make("div", `kernels ${each[START]} to ${each[STOP] - 1}`));
}

function tipOfKernel(index, inCurve) {
  const [, , at, name, op, scope, part, source] = data.samples[index];
  tip.append(make("b", `kernel ${at}: ${text(name)}`));
  tip.append(make("div", [text(op), text(part)].filter(Boolean).join(", "), "strong"));
  if (text(scope)) tip.append(make("div", text(scope)));
  if (text(source)) tip.append(make("div", text(source)));
  const values = curves[state.color].map((curve, group) => [curve[index], group]);
  tip.append(row(null, "alive", bytes(values.reduce((sum, [value]) => sum + value, 0))));
  if (!inCurve) return;
  const largest = values.filter(([value]) => value).sort((a, b) => b[0] - a[0]);
  for (const [value, group] of largest.slice(0, 8)) {
    const { label, colour } = data.groups[state.color][group];
    tip.append(row(colour, label, bytes(value)));
  }
  if (largest.length > 8) tip.append(row(null, `${largest.length - 8} more`, bytes(largest.slice(8).reduce((sum, [v]) => sum + v, 0))));
}

const groupOf = (each, key) => data.groups[key][each[KEYS[key]]].label;

function row(colour, label, figure) {
  const line = make("div", undefined, "row");
  if (colour) line.append(swatch(colour));
  line.append(make("span", label), make("span", figure));
  return line;
}

function swatch(colour) {
  const mark = make("span", undefined, "swatch");
  mark.style.background = colour;
  return mark;
}

function showDetails() {
  const panel = document.getElementById("details");
  const chosen = state.pinned !== null ? state.pinned : state.hover && state.hover.rectangle;
  panel.setAttribute("aria-live", state.pinned === null ? "off" : "polite"); // a pointer passing by is not read out
  panel.replaceChildren();
  if (chosen === null || chosen === undefined) {
    panel.append(make("p", "Point at a rectangle to see which buffer it is, which layer and which line of code. Click to keep it here."));
    return;
  }
  const each = rectangles[chosen];
  panel.append(make("b", each[COUNT] > 1 ? `${each[COUNT]} small buffers` : text(each[NAME])));
  const list = make("dl");
  for (const [term, value] of facts(each)) if (value) list.append(make("dt", term), pathed(value));
  panel.append(list);
}

function pathed(value) { // long paths break after a slash
  const cell = make("dd");
  value.split("/").forEach((name, at, names) => {
    cell.append(at + 1 < names.length ? `${name}/` : name);
    if (at + 1 < names.length) cell.append(make("wbr"));
  });
  return cell;
}

function facts(each) {
  const common = [
    ["size", `${bytes(each[SIZE])} (${each[SIZE].toLocaleString("en")} bytes)`],
    ["role", groupOf(each, "role")],
    ["part", groupOf(each, "part")],
    ["alive", `kernels ${each[START]} to ${each[STOP] - 1} of ${data.kernels}`],
    ["at the peak", each[AT_PEAK] ? bytes(each[AT_PEAK]) : "not alive"],
    ["address", `${bytes(each[LOW])} to ${bytes(each[HIGH])}`],
  ];
  if (each[COUNT] > 1) {
    const named = each[NAME].map(([name, , , array, , size]) => `${text(name)} ${text(array)} ${bytes(size)}`);
    return [["layer", groupOf(each, "layer")], ...common, ["largest", named.join("; ")]];
  }
  const [, op, scope, array, source, reader, order, times] = each.slice(NAME);
  return [
    ["scope", text(scope) || "none"],
    ["line", text(source) || "unknown"],
    ["array", text(order) ? `${text(array)}, minor to major ${text(order)}` : text(array)],
    ["made by", text(op)],
    ["last read by", text(reader)],
    ...common,
    ["written", times > 1 ? `${times} times a step` : ""],
  ];
}

function fillHead() {
  for (const [label, figure] of data.figures) {
    const item = make("li");
    item.append(make("b", typeof figure === "number" ? bytes(figure) : figure), make("span", label));
    document.getElementById("figures").append(item);
  }
  const problems = document.getElementById("problems");
  for (const problem of data.problems) problems.append(make("li", problem));
  problems.hidden = !data.problems.length;
}

const share = (size) => `${((100 * size) / Math.max(data.peak.bytes, 1)).toFixed(1)}%`;

function fillTable() {
  document.querySelector("#peak h2").textContent = `The largest buffers alive at the peak (kernel ${data.peak.at})`;
  const body = document.querySelector("#peak tbody");
  for (const [index, size, role, name, , scope, array, source] of data.largest) {
    const line = make("tr");
    const pick = make("button", text(name));
    pick.type = "button";
    pick.addEventListener("click", () => pin(index, true));
    const cell = make("td");
    cell.append(pick);
    line.dataset.rectangle = index;
    line.append(make("td", bytes(size), "figure"), make("td", share(size), "figure"), cell);
    const short = text(source).split("/").slice(-2).join("/");
    for (const words of [text(array), data.groups.role[role].label, text(scope), short]) line.append(make("td", words));
    line.lastChild.title = text(source);
    body.append(line);
  }
  const shown = data.largest.reduce((sum, [, size]) => sum + size, 0);
  if (data.largest_of > data.largest.length) {
    const foot = make("tfoot"), line = make("tr");
    const rest = make("td", `and ${data.largest_of - data.largest.length} smaller ones`);
    rest.colSpan = 5;
    line.append(make("td", bytes(data.peak.bytes - shown), "figure"), make("td", share(data.peak.bytes - shown), "figure"), rest);
    foot.append(line);
    document.querySelector("#peak table").append(foot);
  }
}

function fillLegend() {
  const panel = document.getElementById("legend");
  panel.replaceChildren(make("h2", { layer: "Layers", role: "Roles", part: "Parts of the step", line: "Lines of code" }[state.color]));
  for (const members of entries(data.groups[state.color])) panel.append(members.length > 1 ? family(members) : single(members[0]));
  panel.append(make("p", "Bytes alive at the peak. Click one to see it alone."));
  panel.append(make("h2", "Kernels (band below the map)"));
  for (const [label, colour] of new Map(data.parts.map(([, , shade, name]) => [name, shade]))) panel.append(row(colour, label, ""));
}

function entries(groups) { // topmost first; members of a family together
  const found = new Map();
  groups.forEach(({ family }, at) => {
    const key = family === null ? `alone ${at}` : family;
    found.set(key, [...(found.get(key) || []), at]);
  });
  return [...found.values()].reverse();
}

const atPeak = (group) => (data.samples.length ? curves[state.color][group][sampleAt(data.peak.at)] : 0);

function single(group) {
  const { label, colour } = data.groups[state.color][group];
  const button = lightButton(group, `${label}: show it alone`);
  button.className = "single";
  button.append(swatch(colour), make("span", label, "label"), make("span", bytes(atPeak(group))));
  return button;
}

function family(members) {
  const groups = data.groups[state.color];
  const block = make("div", undefined, "family"), strip = make("div", undefined, "strip"), words = make("div", undefined, "row");
  for (const group of members) {
    const button = lightButton(group, `${groups[group].label}: ${bytes(atPeak(group))}`);
    button.style.background = groups[group].colour;
    strip.append(button);
  }
  const [first, last] = [members[0], members[members.length - 1]].map((group) => groups[group].label);
  words.append(make("span", `${first} to ${last}`), make("span", bytes(members.reduce((sum, group) => sum + atPeak(group), 0))));
  block.append(strip, words);
  return block;
}

function lightButton(group, title) {
  const button = make("button");
  button.type = "button";
  button.title = title;
  button.setAttribute("aria-label", title);
  button.setAttribute("aria-pressed", String(state.lit === group));
  button.addEventListener("click", () => light(group));
  return button;
}

function light(group) {
  state.lit = state.lit === group ? null : group;
  const at = [...document.querySelectorAll("#legend button")].indexOf(document.activeElement);
  fillLegend();
  if (at >= 0) document.querySelectorAll("#legend button")[at].focus();
  draw();
}

function pin(index, moveTo) {
  state.pinned = index;
  if (moveTo && index !== null) {
    const each = rectangles[index];
    if (each[STOP] < state.from || each[START] > state.to) show(each[START] - 10, each[STOP] + 10);
  }
  for (const line of document.querySelectorAll("#peak tbody tr"))
    line.classList.toggle("chosen", index !== null && Number(line.dataset.rectangle) === index);
  showDetails();
  drawOver();
}
