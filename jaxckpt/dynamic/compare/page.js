"use strict";
// Draws each run's memory at a call (`now`), and the whole run with a line where that is (`whole`).
const colors = ["#7a828a", "#2f6fb3", "#c2610c"];
const slider = root.querySelector("input"), button = root.querySelector("button"), shown = root.querySelector(".call");
const words = root.querySelectorAll(".words");
const nows = root.querySelectorAll(".now"), wholes = root.querySelectorAll(".whole");
const text = (bytes) => bytes >= 2 ** 30 ? (bytes / 2 ** 30).toFixed(2) + " GiB" : (bytes / 2 ** 20).toFixed(1) + " MiB";

const first = maps.map((map) => {
  const found = [];
  map.calls.forEach((call, execution) => { if (found[call] === undefined) found[call] = execution; });
  return found;
});

const pictures = maps.map((map, i) => {
  const picture = document.createElement("canvas");
  picture.width = wholes[i].width; picture.height = wholes[i].height;
  const paint = picture.getContext("2d"), top = 8, height = picture.height - top;
  const x = picture.width / Math.max(1, map.calls.length), y = height / map.budget;
  paint.fillStyle = "rgba(128, 128, 128, .12)";
  paint.fillRect(0, top, picture.width, height);
  for (const [address, size, begin, end, kind] of map.residences) {
    paint.fillStyle = colors[kind];
    paint.fillRect(begin * x, top + address * y, Math.max(0.5, (end - begin) * x), Math.max(0.5, size * y));
  }
  paint.fillStyle = "#d02020";
  for (const [execution] of map.refusals) paint.fillRect(execution * x, 0, Math.max(1, x), top - 2);
  return picture;
});

function draw() {
  const call = Number(slider.value);
  shown.textContent = "call " + call + " of " + slider.max;
  maps.forEach((map, i) => {
    const reached = first[i][call] !== undefined;
    const execution = reached ? first[i][call] : map.calls.length - 1;
    const there = map.residences.filter((r) => r[2] <= execution && execution < r[3]).sort((a, b) => a[0] - b[0]);
    const now = nows[i].getContext("2d"), x = nows[i].width / map.budget;
    now.clearRect(0, 0, nows[i].width, nows[i].height);
    now.fillStyle = "rgba(128, 128, 128, .12)";
    now.fillRect(0, 0, nows[i].width, nows[i].height);
    let end = 0, largest = 0, used = 0;
    for (const [address, size, , , kind] of there) {
      now.fillStyle = colors[kind];
      now.fillRect(address * x, 0, Math.max(0.5, size * x - 0.5), nows[i].height);
      largest = Math.max(largest, address - end);
      end = address + size;
      used += size;
    }
    largest = Math.max(largest, map.budget - end);
    const refused = map.refusals.filter((r) => r[0] <= execution).length;
    words[i].textContent = map.name + ": " + text(map.budget - used) + " free, of these " + text(largest) +
      " in one piece; " + (execution - (reached ? call : first[i].length - 1)) + " calls again, " + refused +
      " requests refused" + (reached ? "" : "; it had to stop: " + map.ended);
    const whole = wholes[i].getContext("2d");
    whole.clearRect(0, 0, wholes[i].width, wholes[i].height);
    whole.drawImage(pictures[i], 0, 0);
    whole.fillStyle = "#d02020";
    whole.fillRect(execution * wholes[i].width / Math.max(1, map.calls.length), 0, 1.5, wholes[i].height);
  });
  root.dataset.drawn = call;
}

let timer = null;
button.addEventListener("click", () => {
  if (timer !== null) { clearInterval(timer); timer = null; button.textContent = "play"; return; }
  button.textContent = "stop";
  timer = setInterval(() => {
    slider.value = Number(slider.value) >= Number(slider.max) ? 0 : Number(slider.value) + 1;
    draw();
  }, 60);
});
slider.addEventListener("input", draw);
draw();
