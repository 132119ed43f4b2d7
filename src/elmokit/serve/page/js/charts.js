// The charts of the page, drawn by Chart.js.
// Input: a canvas and numbers.  Output: a chart in the colours of the page; later calls update it.

const { Chart } = globalThis;

const live = new Set();
export const NUM_SENSE_COLOURS = 6; // of the style sheet: --sense-0 …

export function redraw() {
  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  for (const chart of live) chart.update("none");
}

export function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// ---- colours of numbers ----------------------------------------------------------------------------------------------

// share 0 to 1 -> a colour of the ramp "cool" or "warm"; the stops lie in the style sheet, for light and dark
export function rampColour(ramp, share) {
  const stops = css(`--${ramp}`).split(/\s+/).map(channels);
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  return stops[low].map((channel, i) => Math.round(channel + (place - low) * (stops[low + 1][i] - channel)));
}

// the colour of a found sense, the same in text, map and scatter plot
export function senseColour(sense) {
  return css(`--sense-${sense % NUM_SENSE_COLOURS}`);
}

export function rgb(colour) {
  return `rgb(${colour.join(" ")})`;
}

// black or white, whichever is easier to read on the colour
export function inkOn(colour) {
  const [r, g, b] = colour.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000" : "#fff";
}

function channels(hex) {
  return [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
}

// ---- charts ----------------------------------------------------------------------------------------------------------

function makeOrUpdate(canvas, label, { type, data, options, plugins }) {
  canvas.setAttribute("aria-label", label);
  let chart = Chart.getChart(canvas);
  if (chart) {
    chart.data = data;
    chart.options = options;
    chart.update("none");
    return chart;
  }
  chart = new Chart(canvas, { type, data, options, plugins });
  live.add(chart);
  return chart;
}

const soft = () => css("--ink-soft");
const line = () => css("--line");

const tooltip = {
  displayColors: false,
  backgroundColor: () => css("--ink"),
  titleColor: () => css("--paper"),
  bodyColor: () => css("--paper"),
};

// Words written beside points; later ones give way where they would overlap.
const texts = {
  id: "texts",
  afterDatasetsDraw(chart) {
    const { ctx } = chart;
    const taken = []; // where points lie that matter, then where words were written
    for (const [number, dataset] of chart.data.datasets.entries()) {
      if (!dataset.keepsFree) continue;
      for (const { x, y } of chart.getDatasetMeta(number).data) taken.push({ left: x - 6, top: y - 6, right: x + 6, bottom: y + 6 });
    }
    ctx.save();
    for (const [number, dataset] of chart.data.datasets.entries()) {
      if (!dataset.texts) continue;
      for (const [place, element] of chart.getDatasetMeta(number).data.entries()) {
        dataset.texts(ctx, element, place, taken, chart);
      }
    }
    ctx.restore();
  },
};

// Boxes for a word beside a point: right of it, left, above, below, and at the corners.
function beside({ x, y }, width, area) {
  const [w, h] = [width, 14];
  return [[x + 8, y - 7], [x - 8 - w, y - 7], [x - w / 2, y - 8 - h], [x - w / 2, y + 8], [x + 6, y - 6 - h], [x + 6, y + 6], [x - 6 - w, y - 6 - h], [x - 6 - w, y + 6]]
    .map(([left, top]) => ({ left, top, right: left + w, bottom: top + h }))
    .filter(({ left, right }) => left >= area.left && right <= area.right);
}

function overlap(a, b) {
  return a.left < b.right && a.right > b.left && a.top < b.bottom && a.bottom > b.top;
}

// points: { x, y, name, short, where, picked, sense }; where there is no room for the name, the short one is written
export function scatter(canvas, { points, withNames, label }) {
  const groups = [points.filter((point) => point.picked), points.filter((point) => !point.picked)];
  const written = (group, bold) => (ctx, element, place, taken, chart) => {
    ctx.font = `${bold ? "600 13" : "12"}px ${Chart.defaults.font.family}`;
    const { name, short } = group[place];
    const boxes = [name, short].filter(Boolean).flatMap((text) => beside(element, ctx.measureText(text).width + 4, chart.chartArea).map((box) => ({ text, ...box })));
    const box = boxes.find((free) => !taken.some((other) => overlap(free, other)));
    if (!box) return;
    taken.push(box);
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    ctx.fillStyle = bold ? senseColour(group[place].sense) : soft();
    ctx.fillText(box.text, box.left + 2, (box.top + box.bottom) / 2);
  };
  const axis = (title) => ({
    grid: { color: line },
    border: { display: false },
    ticks: { color: soft, maxTicksLimit: 7 },
    title: { display: true, text: title, color: soft },
    grace: "6%",
  });
  makeOrUpdate(canvas, label, {
    type: "scatter",
    plugins: [texts],
    data: {
      datasets: groups.map((group, number) => ({
        data: group,
        backgroundColor: ({ raw }) => (number || !raw ? css("--dot") : senseColour(raw.sense)),
        borderColor: () => css("--paper"),
        borderWidth: 1,
        pointRadius: number ? 4 : 7,
        pointHoverRadius: number ? 6 : 9,
        order: number,
        keepsFree: number === 0,
        texts: withNames || number === 0 ? written(group, number === 0) : undefined,
      })),
    },
    options: {
      maintainAspectRatio: false,
      animation: false,
      scales: { x: axis("first component"), y: axis("second component") },
      interaction: { mode: "nearest", intersect: true },
      plugins: {
        legend: { display: false },
        tooltip: { ...tooltip, callbacks: { title: ([item]) => item.raw.name, label: ({ raw }) => raw.where } },
      },
    },
  });
}

// Bars up for the first list, down for the second.
export function twoWayBars(canvas, { names, up, down, upName, downName, isChosen, unit, label, onChoose }) {
  const faded = (colour) => ({ dataIndex }) => css(isChosen(dataIndex) ? colour : `${colour}-soft`);
  const bars = (values, name, colour) => ({ label: name, data: values, backgroundColor: faded(colour), borderRadius: 2, categoryPercentage: 0.9, barPercentage: 0.9 });
  makeOrUpdate(canvas, label, {
    type: "bar",
    data: { labels: names, datasets: [bars(up, upName, "--forward"), bars(down.map((x) => (x === null ? null : -x)), downName, "--backward")] },
    options: {
      maintainAspectRatio: false,
      animation: false,
      onClick: (_, [element]) => element && onChoose(element.index),
      onHover: (event, elements) => {
        event.native.target.style.cursor = elements.length ? "pointer" : "default";
      },
      interaction: { mode: "index", intersect: false },
      scales: {
        x: { stacked: true, grid: { display: false }, ticks: { color: () => css("--ink"), autoSkip: false, maxRotation: 60 } },
        y: { stacked: true, grid: { color: line }, border: { display: false }, ticks: { color: soft, callback: (value) => Math.abs(value) }, title: { display: true, text: unit, color: soft } },
      },
      plugins: {
        legend: { position: "top", align: "start", labels: { color: soft, boxWidth: 12, boxHeight: 12, generateLabels: legendLabels } },
        tooltip: { ...tooltip, callbacks: { label: ({ raw, dataset }) => `${dataset.label}: ${Math.abs(raw).toFixed(1)} ${unit}` } },
      },
    },
  });
}

// the full colours, also where bars are faded
function legendLabels(chart) {
  return chart.data.datasets.map((dataset, datasetIndex) => ({
    text: dataset.label,
    fillStyle: css(datasetIndex ? "--backward" : "--forward"),
    strokeStyle: "transparent",
    fontColor: soft(),
    datasetIndex,
  }));
}
