// What the reader does: zoom, pan, choose; with pointer, wheel or keys. Then the first drawing.

function show(from, to) {
  const least = Math.min(total, 4);
  const length = Math.max(least, Math.min(total, to - from));
  const middle = Math.max(length / 2, Math.min(total - length / 2, (from + to) / 2));
  [state.from, state.to] = [middle - length / 2, middle + length / 2];
  draw();
}

function zoom(factor, around) {
  const at = around === undefined ? (state.from + state.to) / 2 : around;
  const length = (state.to - state.from) * factor;
  const share = (at - state.from) / (state.to - state.from);
  show(at - length * share, at + length * (1 - share));
}

const pan = (share) => show(state.from + share * (state.to - state.from), state.to + share * (state.to - state.from));
const whole = () => show(0, total);
const toPeak = () => show(data.peak.at - Math.max(8, total / 30), data.peak.at + Math.max(8, total / 30));

function place(event) {
  const bounds = over.getBoundingClientRect();
  return [event.clientX - bounds.left, event.clientY - bounds.top];
}

over.addEventListener("pointermove", (event) => {
  const [px, py] = place(event);
  if (state.drag) {
    state.drag.to = Math.max(box.left, Math.min(box.right, px));
    state.drag.moved = state.drag.moved || Math.abs(px - state.drag.from) > 5;
  }
  const inside = px >= box.left && px <= box.right && py >= box.top - 4 && py <= box.bottom;
  const kernel = Math.min(kernelAt(px), total - 0.001);
  state.hover = inside ? { kernel, rectangle: rectangleAt(px, py) } : null;
  if (inside && !(state.drag && state.drag.moved)) showTip(px, py);
  else tip.hidden = true;
  if (state.pinned === null) showDetails();
  drawOver();
});

over.addEventListener("pointerleave", () => {
  state.hover = null;
  tip.hidden = true;
  if (state.pinned === null) showDetails();
  drawOver();
});

over.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  const [px] = place(event);
  state.drag = { from: Math.max(box.left, Math.min(box.right, px)), to: px, moved: false };
  over.setPointerCapture(event.pointerId);
});

over.addEventListener("pointerup", (event) => {
  const drag = state.drag;
  state.drag = null;
  if (!drag) return;
  if (drag.moved) {
    const [from, to] = [kernelAt(drag.from), kernelAt(drag.to)].sort((a, b) => a - b);
    show(from, to);
  } else {
    const [px, py] = place(event);
    pin(rectangleAt(px, py));
  }
});

over.addEventListener("pointercancel", () => { state.drag = null; drawOver(); });
over.addEventListener("dblclick", whole);

over.addEventListener("wheel", (event) => {
  const [px] = place(event);
  const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
  const out = event.deltaY > 0 && state.to - state.from >= total;
  if (out && !sideways) return; // all is shown: let the page scroll
  event.preventDefault();
  if (sideways) pan((event.deltaX || event.deltaY) / 1500);
  else zoom(Math.exp(Math.max(-0.5, Math.min(0.5, event.deltaY / 400))), kernelAt(px));
}, { passive: false });

const inOrder = rectangles.map((_, at) => at).sort((a, b) => rectangles[a][START] - rectangles[b][START] || rectangles[a][LOW] - rectangles[b][LOW]);
const step = (by) => {
  if (!inOrder.length) return;
  const at = state.pinned === null ? (by > 0 ? -1 : inOrder.length) : inOrder.indexOf(state.pinned);
  pin(inOrder[(at + by + inOrder.length) % inOrder.length], true);
};
const keys = {
  ArrowLeft: () => pan(-0.1), ArrowRight: () => pan(0.1), ArrowUp: () => step(-1), ArrowDown: () => step(1),
  "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7), 0: whole, Home: whole, p: toPeak,
  Enter: () => data.largest.length && pin(data.largest[0][0], true), Escape: () => pin(null),
};
over.addEventListener("keydown", (event) => {
  const act = keys[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
});

function fillColours() {
  const field = document.getElementById("color");
  for (const key in KEYS) {
    const label = make("label"), input = make("input");
    input.type = "radio";
    input.name = "color";
    input.value = key;
    input.checked = state.color === key;
    input.addEventListener("change", () => {
      state.color = key;
      state.lit = null;
      fillLegend();
      draw();
    });
    label.append(input, key);
    field.append(label);
  }
}

document.getElementById("closer").addEventListener("click", () => zoom(0.6));
document.getElementById("wider").addEventListener("click", () => zoom(1 / 0.6));
document.getElementById("whole").addEventListener("click", whole);
document.getElementById("to-peak").addEventListener("click", toPeak);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { measure(); draw(); });
new ResizeObserver(() => { measure(); draw(); }).observe(over);

fillColours();
fillHead();
fillTable();
fillLegend();
showDetails();
measure();
draw();
document.documentElement.dataset.drawn = String(rectangles.length);
