// What stands in words around the pictures: the tip at the pointer, the chosen buffer, legend, figures and tables.

const TITLES = { layer: data.words.layers, role: "Roles", part: "Parts of the step", line: "Lines of code" };

function showTip(view, px, py) {
  const { tip, hover, box } = view;
  tip.replaceChildren();
  if (hover.rectangle !== null) tipOfRectangle(tip, view.map.rectangles[hover.rectangle]);
  else if (view.map.samples.length) tipOfKernel(view, view.sampleAt(hover.kernel), py > box.ribbon);
  else return;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${px + 18 + width < box.width ? px + 18 : Math.max(0, px - 18 - width)}px`;
  tip.style.top = `${Math.max(0, Math.min(py + 14, box.height - height))}px`;
}

const lifetime = (each) => `${data.words.clock}s ${each[START]} to ${each[STOP] - 1}`;
const isTold = (key) => data.groups[key].length > 1; // a key of one group tells nothing
const kinds = (each) => ["role", "part"].filter(isTold).map((key) => groupOf(each, key).label).join(", ");

function tipOfRectangle(tip, each) {
  if (each[COUNT] > 1) {
    tip.append(make("b", `${each[COUNT]} small buffers, ${bytes(each[SIZE])} together`));
    tip.append(make("div", [groupOf(each, "layer").label, kinds(each)].filter(Boolean).join(", ")));
    for (const [name, , , array, , size] of each[NAME]) tip.append(row(null, `${text(name)} ${text(array)}`, bytes(size)));
    return;
  }
  tip.append(make("b", text(each[NAME])));
  tip.append(make("div", [bytes(each[SIZE]), text(each[ARRAY]), kinds(each)].filter(Boolean).join("  "), "strong"));
  tip.append(make("div", text(each[SCOPE]) || "no scope"));
  if (isTold("line") || text(each[SOURCE])) tip.append(make("div", text(each[SOURCE]) || "line of code unknown"));
  tip.append(make("div", lifetime(each)));
}

function tipOfKernel(view, index, inCurve) {
  const [, , at, name, op, scope, part, source] = view.map.samples[index], { tip } = view;
  tip.append(make("b", `${data.words.clock} ${at}: ${text(name)}`));
  tip.append(make("div", [text(op), text(part)].filter(Boolean).join(", "), "strong"));
  if (text(scope)) tip.append(make("div", text(scope)));
  if (text(source)) tip.append(make("div", text(source)));
  const values = view.curves[state.color].map((curve, group) => [curve[index], group]);
  tip.append(row(null, "alive", bytes(values.reduce((sum, [value]) => sum + value, 0))));
  if (!inCurve) return;
  const largest = values.filter(([value]) => value).sort((a, b) => b[0] - a[0]);
  for (const [value, group] of largest.slice(0, 8)) {
    const { label, colour } = data.groups[state.color][group];
    tip.append(row(colour, label, bytes(value)));
  }
  if (largest.length > 8) tip.append(row(null, `${largest.length - 8} more`, bytes(largest.slice(8).reduce((sum, [v]) => sum + v, 0))));
}

function row(colour, label, ...figures) {
  const line = make("div", undefined, "row");
  if (colour) line.append(swatch(colour));
  line.append(make("span", label, "label"), ...figures.map((figure) => make("span", figure, "figure")));
  return line;
}

function swatch(colour) {
  const mark = make("span", undefined, "swatch");
  mark.style.background = colour;
  return mark;
}

function showDetails() {
  const panel = document.getElementById("details"), chosen = state.pinned || state.hovered;
  panel.setAttribute("aria-live", state.pinned ? "polite" : "off"); // a pointer passing by is not read out
  panel.replaceChildren();
  if (!chosen) {
    panel.append(make("p", "Point at a rectangle to see what it is and where it comes from. Click to keep it here."));
    return;
  }
  const each = chosen.view.map.rectangles[chosen.index];
  panel.append(make("b", each[COUNT] > 1 ? `${each[COUNT]} small buffers` : text(each[NAME])));
  const list = make("dl");
  for (const [term, value] of facts(chosen.view, each)) if (value) list.append(make("dt", term), pathed(value));
  panel.append(list);
  const stack = stackOf(chosen.view.map, each);
  if (stack.length > 1) panel.append(make("div", "Python stack, innermost call first", "quiet"), listed(stack));
}

function stackOf(map, each) { // [function, line of code] of each frame
  const stack = [];
  for (let at = each[COUNT] > 1 ? -1 : each[FRAME]; at >= 0; at = map.frames[at][2]) stack.push(map.frames[at].slice(0, 2).map(text));
  return stack;
}

function listed(stack) {
  const list = make("ol", undefined, "stack");
  for (const [name, source] of stack) {
    const item = make("li");
    item.append(make("b", name), pathed(source, "span"));
    list.append(item);
  }
  return list;
}

function pathed(value, tag = "dd") { // long paths break after a slash
  const cell = make(tag);
  value.split("/").forEach((name, at, names) => {
    cell.append(at + 1 < names.length ? `${name}/` : name);
    if (at + 1 < names.length) cell.append(make("wbr"));
  });
  return cell;
}

function facts({ map }, each) {
  const common = [
    ["size", `${bytes(each[SIZE])} (${each[SIZE].toLocaleString("en")} bytes)`],
    ["role", isTold("role") && groupOf(each, "role").label],
    ["part", isTold("part") && groupOf(each, "part").label],
    ["alive", `${lifetime(each)} of ${map.kernels}`],
    ["at the peak", each[AT_PEAK] ? bytes(each[AT_PEAK]) : "not alive"],
    ["address", `${bytes(each[LOW])} to ${bytes(each[HIGH])}`],
  ];
  if (each[COUNT] > 1) {
    const named = each[NAME].map(([name, , , array, , size]) => `${text(name)} ${text(array)} ${bytes(size)}`);
    return [["layer", groupOf(each, "layer").label], ...common, ["largest", named.join("; ")]];
  }
  const [, op, scope, array, source, reader, order, times] = each.slice(NAME);
  return [
    ["map", views.length > 1 && map.name],
    ["scope", text(scope) || "none"],
    ["line", text(source)],
    ["array", text(order) ? `${text(array)}, minor to major ${text(order)}` : text(array)],
    ["made by", text(op)],
    ["last read by", text(reader)],
    ...common,
    ["written", times > 1 ? `${times} times a step` : ""],
  ];
}

function fillMap(view) { // heading, figures and problems above a map
  const { map } = view, section = make("section", undefined, "map"), list = make("ul", undefined, "figures");
  if (map.name) section.append(make("h2", map.name));
  for (const [label, figure] of map.figures) {
    const item = make("li");
    item.append(make("b", typeof figure === "number" ? bytes(figure) : figure), make("span", label));
    list.append(item);
  }
  const problems = make("ul", undefined, "problems");
  for (const problem of map.problems) problems.append(make("li", problem));
  problems.hidden = !map.problems.length;
  section.append(list, problems);
  if (map.states.length) section.append(view.words);
  section.append(view.plot);
  document.getElementById("maps").append(section);
}

function fillTable(view) {
  const { map } = view, section = make("section", undefined, "peak"), share = (size) => `${((100 * size) / Math.max(map.peak.bytes, 1)).toFixed(1)}%`;
  const where = `${map.name ? `${map.name}, ` : ""}${data.words.clock} ${map.peak.at}`;
  section.append(make("h2", `The largest buffers alive at the peak (${where})`));
  section.append(document.getElementById("table").content.cloneNode(true));
  const body = section.querySelector("tbody");
  for (const [index, size, role, name, , scope, array, source] of map.largest) {
    const line = make("tr"), pick = make("button", text(name)), cell = make("td");
    pick.type = "button";
    pick.addEventListener("click", () => pin(view, index, true));
    cell.append(pick);
    line.dataset.rectangle = index;
    line.append(make("td", bytes(size), "figure"), make("td", share(size), "figure"), cell);
    const short = text(source).split("/").slice(-2).join("/");
    for (const words of [text(array), data.groups.role[role].label, text(scope), short]) line.append(make("td", words));
    line.lastChild.title = text(source);
    body.append(line);
  }
  const shown = map.largest.reduce((sum, [, size]) => sum + size, 0);
  if (map.largest_of > map.largest.length) {
    const foot = make("tfoot"), line = make("tr");
    const rest = make("td", `and ${map.largest_of - map.largest.length} smaller ones`);
    rest.colSpan = 5;
    line.append(make("td", bytes(map.peak.bytes - shown), "figure"), make("td", share(map.peak.bytes - shown), "figure"), rest);
    foot.append(line);
    section.querySelector("table").append(foot);
  }
  view.table = section;
  if (!map.states.length) document.getElementById("tables").append(section); // a run always fills its memory
}

function fillLegend() {
  const panel = document.getElementById("legend");
  panel.replaceChildren(make("h2", TITLES[state.color]));
  if (views.length > 1) panel.append(row(null, "", ...views.map((view) => view.map.name)));
  for (const members of entries(data.groups[state.color])) panel.append(members.length > 1 ? family(members) : single(members[0]));
  panel.append(make("p", "Bytes alive at the peak. Click one to see it alone."));
  panel.append(make("h2", `${data.words.kernels} (band below the map)`));
  const parts = new Map(data.maps.flatMap((map) => map.parts).map(([, , shade, name]) => [name, shade]));
  for (const [label, colour] of parts) panel.append(row(colour, label));
  const refused = data.maps.some(({ states }) => states.some((state) => state[REFUSED]));
  if (refused) panel.append(make("h2", "Marks above the map"), row(ink.peak, "a request that no free piece could serve"));
}

function entries(groups) { // topmost first; members of a family together
  const found = new Map();
  groups.forEach(({ family }, at) => {
    const key = family === null ? `alone ${at}` : family;
    found.set(key, [...(found.get(key) || []), at]);
  });
  return [...found.values()].reverse();
}

const atPeaks = (members) => views.map((view) => bytes(members.reduce((sum, group) => sum + view.atPeak(group), 0)));

function single(group) {
  const { label, colour } = data.groups[state.color][group];
  const button = lightButton(group, `${label}: show it alone`);
  button.className = "single row";
  button.append(...row(colour, label, ...atPeaks([group])).childNodes);
  return button;
}

function family(members) {
  const groups = data.groups[state.color];
  const block = make("div", undefined, "family"), strip = make("div", undefined, "strip");
  for (const group of members) {
    const button = lightButton(group, `${groups[group].label}: ${atPeaks([group]).join(", ")}`);
    button.style.background = groups[group].colour;
    strip.append(button);
  }
  const [first, last] = [members[0], members[members.length - 1]].map((group) => groups[group].label);
  block.append(strip, row(null, `${first} to ${last}`, ...atPeaks(members)));
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
  redraw();
}

function pin(view, index, moveTo) {
  state.pinned = index === null ? null : { view, index };
  if (moveTo && index !== null) {
    const each = view.map.rectangles[index];
    if (each[STOP] < view.from || each[START] > view.to) view.show(each[START] - 10, each[STOP] + 10);
  }
  for (const other of views) {
    for (const line of other.table.querySelectorAll("tbody tr"))
      line.classList.toggle("chosen", other === view && Number(line.dataset.rectangle) === index);
    other.drawOver();
  }
  showDetails();
}
