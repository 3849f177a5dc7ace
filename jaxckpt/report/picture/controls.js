// What the reader does: zoom, pan, choose, search; with pointer, wheel or keys. Then the first drawing.

View.prototype.show = function (from, to) {
  const least = Math.min(this.total, 4);
  const length = Math.max(least, Math.min(this.total, to - from));
  const middle = Math.max(length / 2, Math.min(this.total - length / 2, (from + to) / 2));
  [this.from, this.to] = [middle - length / 2, middle + length / 2];
  this.draw();
};

View.prototype.zoom = function (factor, around) {
  const at = around === undefined ? (this.from + this.to) / 2 : around;
  const length = (this.to - this.from) * factor;
  const share = (at - this.from) / (this.to - this.from);
  this.show(at - length * share, at + length * (1 - share));
};

View.prototype.pan = function (share) {
  const by = share * (this.to - this.from);
  this.show(this.from + by, this.to + by);
};

View.prototype.whole = function () {
  this.show(0, this.total);
};

View.prototype.toPeak = function () {
  const around = Math.max(8, this.total / 30);
  this.show(this.map.peak.at - around, this.map.peak.at + around);
};

function listen(view) {
  const { over, tip } = view;
  const place = (event) => {
    const bounds = over.getBoundingClientRect();
    return [event.clientX - bounds.left, event.clientY - bounds.top];
  };
  const hover = (kernel, rectangle) => {
    view.hover = kernel === null ? null : { kernel, rectangle };
    state.hovered = kernel === null || rectangle === null ? null : { view, index: rectangle };
    if (!state.pinned) showDetails();
    view.drawOver();
  };

  over.addEventListener("pointermove", (event) => {
    const [px, py] = place(event), { box, drag } = view;
    if (drag) {
      drag.to = Math.max(box.left, Math.min(box.right, px));
      drag.moved = drag.moved || Math.abs(px - drag.from) > 5;
    }
    const inside = px >= box.left && px <= box.right && py >= box.top - 4 && py <= box.bottom;
    if (inside) hover(Math.min(view.kernelAt(px), view.total - 0.001), view.rectangleAt(px, py));
    else hover(null);
    if (inside && !(drag && drag.moved)) showTip(view, px, py);
    else tip.hidden = true;
  });

  over.addEventListener("pointerleave", () => {
    tip.hidden = true;
    hover(null);
  });

  over.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const [px] = place(event), { box } = view;
    view.drag = { from: Math.max(box.left, Math.min(box.right, px)), to: px, moved: false };
    over.setPointerCapture(event.pointerId);
  });

  over.addEventListener("pointerup", (event) => {
    const drag = view.drag;
    view.drag = null;
    if (!drag) return;
    if (drag.moved) view.show(...[view.kernelAt(drag.from), view.kernelAt(drag.to)].sort((a, b) => a - b));
    else pin(view, view.rectangleAt(...place(event)));
  });

  over.addEventListener("pointercancel", () => { view.drag = null; view.drawOver(); });
  over.addEventListener("dblclick", () => view.whole());

  over.addEventListener("wheel", (event) => {
    const [px] = place(event);
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const out = event.deltaY > 0 && view.to - view.from >= view.total;
    if (out && !sideways) return; // all is shown: let the page scroll
    event.preventDefault();
    if (sideways) view.pan((event.deltaX || event.deltaY) / 1500);
    else view.zoom(Math.exp(Math.max(-0.5, Math.min(0.5, event.deltaY / 400))), view.kernelAt(px));
  }, { passive: false });

  const { rectangles, largest } = view.map;
  const inOrder = rectangles.map((_, at) => at).sort((a, b) => rectangles[a][START] - rectangles[b][START] || rectangles[a][LOW] - rectangles[b][LOW]);
  const step = (by) => {
    if (!inOrder.length) return;
    const pinned = state.pinned && state.pinned.view === view;
    const at = pinned ? inOrder.indexOf(state.pinned.index) : by > 0 ? -1 : inOrder.length;
    pin(view, inOrder[(at + by + inOrder.length) % inOrder.length], true);
  };
  const keys = {
    ArrowLeft: () => view.pan(-0.1), ArrowRight: () => view.pan(0.1), ArrowUp: () => step(-1), ArrowDown: () => step(1),
    "+": () => view.zoom(0.7), "=": () => view.zoom(0.7), "-": () => view.zoom(1 / 0.7),
    0: () => view.whole(), Home: () => view.whole(), p: () => view.toPeak(),
    Enter: () => largest.length && pin(view, largest[0][0], true), Escape: () => pin(view, null),
  };
  over.addEventListener("keydown", (event) => {
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
  new ResizeObserver(() => { view.measure(); view.draw(); }).observe(over);
}

function fillColours() {
  const field = document.getElementById("color");
  field.hidden = Object.keys(KEYS).every((key) => key === state.color || !isTold(key));
  for (const key of field.hidden ? [] : Object.keys(KEYS)) {
    const label = make("label"), input = make("input");
    input.type = "radio";
    input.name = "color";
    input.value = key;
    input.checked = state.color === key;
    input.addEventListener("change", () => {
      state.color = key;
      state.lit = null;
      fillLegend();
      redraw();
    });
    label.append(input, key);
    field.append(label);
  }
}

function wordsOf(each) { // all that a search looks through
  const groups = ["layer", "role", "part"].map((key) => groupOf(each, key).label);
  const own = each[COUNT] > 1 ? each[NAME].flatMap((names) => names.slice(0, 5)) : each.slice(NAME, SOURCE + 1);
  return [...groups, ...own.map(text)].join(" ").toLowerCase();
}

function search() { // buffers that have every word that was typed
  const words = document.getElementById("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const told = [];
  for (const view of views) {
    const { rectangles } = view.map;
    view.texts = view.texts || rectangles.map(wordsOf);
    view.found = words.length ? view.texts.map((each) => words.every((word) => each.includes(word))) : null;
    for (const line of view.table.querySelectorAll("tbody tr"))
      line.hidden = Boolean(view.found && !view.found[Number(line.dataset.rectangle)]);
    const found = rectangles.filter((_, index) => view.found && view.found[index]);
    const [count, atPeak] = [COUNT, AT_PEAK].map((field) => found.reduce((sum, each) => sum + each[field], 0));
    const name = views.length > 1 ? `${view.map.name}: ` : "";
    told.push(`${name}${count} ${count === 1 ? "buffer" : "buffers"}, ${bytes(atPeak)} at the peak`);
  }
  document.getElementById("found").textContent = words.length ? told.join("; ") : "";
  redraw();
}

const last = Math.max(-1, ...views.map((view) => Math.max(-1, ...view.reached.keys())));
const tick = document.getElementById("tick"), play = document.getElementById("play");

function moveToCall() { // all runs at the call of the slider
  const call = Number(tick.value);
  document.getElementById("now").textContent = `call ${call} of ${last}`;
  for (const view of views) {
    const { states, problems } = view.map, reached = view.reached.get(call);
    view.cursor = reached === undefined ? states.length - 1 : reached;
    view.drawOver();
    if (view.cursor < 0) continue;
    const [, free, piece, repeated, refused] = states[view.cursor];
    const stopped = reached === undefined ? `; ${problems.join("; ")}` : "";
    view.words.textContent = `${bytes(free)} free, of these ${bytes(piece)} in one piece; ${repeated} calls again, ${refused} requests refused${stopped}`;
  }
  document.documentElement.dataset.call = String(call);
}

let timer = null;
play.addEventListener("click", () => {
  clearInterval(timer);
  timer = timer !== null ? null : setInterval(() => {
    tick.value = Number(tick.value) >= last ? 0 : Number(tick.value) + 1;
    moveToCall();
  }, 60);
  play.textContent = timer === null ? "play" : "stop";
});
tick.addEventListener("input", moveToCall);
document.getElementById("search").addEventListener("input", search);
document.getElementById("closer").addEventListener("click", () => views.forEach((view) => view.zoom(0.6)));
document.getElementById("wider").addEventListener("click", () => views.forEach((view) => view.zoom(1 / 0.6)));
document.getElementById("whole").addEventListener("click", () => views.forEach((view) => view.whole()));
document.getElementById("to-peak").addEventListener("click", () => views.forEach((view) => view.toPeak()));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); redraw(); });

readColours();
views.forEach(fillMap);
views.forEach(fillTable);
document.body.classList.toggle("several", views.length > 1);
fillColours();
fillLegend();
showDetails();
views.forEach(listen);
for (const view of views) {
  view.measure();
  view.draw();
}
document.getElementById("clock").hidden = last < 0;
if (last >= 0) {
  tick.max = last;
  moveToCall();
}
document.documentElement.dataset.drawn = String(views.reduce((sum, view) => sum + view.map.rectangles.length, 0));
