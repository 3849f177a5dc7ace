// Draws the pictures of a report with Chart.js, each on its canvas, in the colours of the page around it.
const COLOURS = ["#2f6fb3", "#3a8f5c", "#c2610c", "#8a5bc2", "#7a828a", "#b03a5b"]; // seen on white and on black
const ACCENT = "#c2610c", LINE = "rgba(128, 128, 128, 0.3)";
const UNITS = {
  bytes: [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]],
  seconds: [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]],
};

const short = (name) => (name.length <= 40 ? name : `${name.slice(0, 18)}...${name.slice(-18)}`);

function nice(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= step);
}

function unitTicks(unit, values) { // round numbers of the largest unit that some value reaches
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const [name, each] = UNITS[unit].find(([, size]) => high >= size) || UNITS[unit][UNITS[unit].length - 1];
  const callback = (value) => `${Number((value / each).toPrecision(4))} ${name}`;
  return high > low ? { stepSize: nice((high - low) / 5 / each) * each, callback } : { callback };
}

function axis(title, unit, values, log) {
  return {
    type: log ? "logarithmic" : "linear",
    title: { display: true, text: title },
    grid: { color: LINE },
    border: { color: LINE },
    ticks: unit ? unitTicks(unit, values) : { maxTicksLimit: 9 },
  };
}

const dots = (points) => points.map(([name, x, y, words]) => ({ x, y, name, words }));

function datasets(picture) {
  if (picture.lines)
    return picture.lines.map(([name, dashed, points], at) => ({
      label: name,
      data: dots(points),
      showLine: true,
      borderWidth: 1.6,
      borderDash: dashed ? [5, 3] : [],
      borderColor: COLOURS[at % COLOURS.length],
      backgroundColor: COLOURS[at % COLOURS.length],
      pointRadius: 3,
    }));
  const frontier = { showLine: true, stepped: "before", borderDash: [4, 3], borderWidth: 1.5, borderColor: ACCENT };
  return [
    { data: dots(picture.frontier), ...frontier, backgroundColor: ACCENT, pointBorderColor: ACCENT, pointRadius: 5 },
    { data: dots(picture.beaten), inked: true, pointRadius: 5 },
    { data: dots(picture.small), inked: true, pointRadius: 2 },
  ];
}

const names = { // beside their points, where there is room
  id: "names",
  afterDatasetsDraw(chart) {
    const { ctx, chartArea, data, options } = chart, taken = [];
    ctx.save();
    ctx.fillStyle = options.color;
    ctx.font = `12px ${options.font.family}`;
    ctx.textBaseline = "middle";
    data.datasets.forEach((dataset, index) => chart.getDatasetMeta(index).data.forEach((point, at) => {
      const words = short(dataset.data[at].name), wide = ctx.measureText(words).width;
      const left = point.x + 9 + wide < chartArea.right ? point.x + 9 : point.x - 9 - wide, up = point.y - 9;
      const free = taken.every(([x, y, length]) => Math.abs(up - y) > 13 || left > x + length || left + wide < x);
      if (!words || !free || left < chartArea.left) return; // the tip at the pointer names it
      taken.push([left, up, wide]);
      ctx.fillText(words, left, up);
    }));
    ctx.restore();
  },
};

function drawn(canvas, picture) {
  const drawnSets = datasets(picture), points = drawnSets.flatMap((each) => each.data);
  const chart = new Chart(canvas, {
    type: "scatter",
    data: { datasets: drawnSets },
    plugins: picture.lines ? [] : [names],
    options: {
      animation: false,
      maintainAspectRatio: false,
      font: { family: getComputedStyle(canvas).fontFamily },
      interaction: { mode: "nearest", intersect: false },
      scales: {
        x: axis(picture.x_heading, picture.x_unit, points.map(({ x }) => x), false),
        y: axis(picture.y_heading, picture.y_unit, points.map(({ y }) => y), picture.log),
      },
      plugins: {
        legend: { display: Boolean(picture.lines), labels: { boxHeight: 2 } },
        tooltip: { displayColors: false, callbacks: { title: () => "", label: ({ raw }) => raw.words } },
      },
    },
  });
  const ink = () => {
    const color = getComputedStyle(canvas.parentElement).color, { options } = chart;
    options.color = options.plugins.legend.labels.color = color;
    for (const scale of [options.scales.x, options.scales.y]) scale.title.color = scale.ticks.color = color;
    for (const dataset of chart.data.datasets) if (dataset.inked) dataset.backgroundColor = dataset.borderColor = color;
    chart.update();
  };
  ink();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ink);
  return chart;
}

for (const root of document.querySelectorAll(`[data-charts="${name}"]:not([data-drawn])`)) {
  const canvases = [...root.querySelectorAll("canvas")];
  root.jaxckptCharts = pictures.map((picture, at) => drawn(canvases[at], picture)); // for whoever drives the page from outside
  root.dataset.drawn = String(canvases.length);
}
