// Puts the page together once its arrays are unpacked.
async function start() {
  const data = await loadData();
  const byId = (id) => document.getElementById(id);
  const panel = byId("panel"), tip = byId("tip"), search = byId("search");
  let hintTimer = 0;
  const select = (id, go = false) => { if (go && id >= 0) map.goTo(id); map.select(id); };
  const map = new ClusterMap(byId("canvas"), data, {
    select(id) {
      showCluster(panel, data, id, select);
      if (id >= 0) bringIntoView(panel, byId("map"));
      history.replaceState(null, "", id < 0 ? location.pathname + location.search : `#cluster-${id}`);
    },
    hover(id) {
      tip.hidden = id < 0;
      if (id < 0) return;
      fillTip(tip, `Cluster ${whole.format(id)}`, sizeText(data, id), data.errors ? `${data.error_name} ${digits(data.errors[id])}` : "");
      const x = map.screenX(id) + 14, y = map.screenY(id) + 14;
      tip.style.left = `${Math.max(6, x + tip.offsetWidth > map.width ? x - tip.offsetWidth - 28 : x)}px`;
      tip.style.top = `${Math.min(y, map.height - tip.offsetHeight - 6)}px`;
    },
    hint() {
      byId("hint").classList.add("on");
      clearTimeout(hintTimer);
      hintTimer = setTimeout(() => byId("hint").classList.remove("on"), 1400);
    },
  });
  showCluster(panel, data, -1, select);
  byId("zoom-in").addEventListener("click", () => map.zoomBy(1.6));
  byId("zoom-out").addEventListener("click", () => map.zoomBy(1 / 1.6));
  byId("zoom-all").addEventListener("click", () => map.showAll());
  byId("edges").addEventListener("change", (event) => { map.edges = event.target.checked; map.draw(); });
  search.addEventListener("input", () => search.classList.remove("unknown"));
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    const id = Number(search.value.replace(/[,\s]/g, ""));
    const known = search.value.trim() !== "" && Number.isInteger(id) && id >= 0 && id < data.n;
    search.classList.toggle("unknown", !known);
    search.setAttribute("aria-invalid", String(!known));
    search.title = known ? "" : `ids go from 0 to ${whole.format(data.n - 1)}`;
    if (known) select(id, true);
  });
  setUpColors(map, data);
  drawCharts(data, select);
  byId("map-note").textContent = mapNote(data);
  const wanted = /^#cluster-(\d+)$/.exec(location.hash);
  if (wanted && Number(wanted[1]) < data.n) select(Number(wanted[1]), true);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => map.draw());
  let resizing = 0;
  window.addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(() => drawCharts(data, select), 120); });
  window.globularReport = { data, map, ready: true };
  await new Promise((resolve) => setTimeout(resolve));  // let the map be painted first
  await loadPictures(data);
  if (map.selected >= 0) showCluster(panel, data, map.selected, select);
}

// on narrow screens the panel lies below the map: show its beginning, and as much of the map as there is room for
function bringIntoView(panel, map) {
  const top = panel.getBoundingClientRect().top, most = 0.55 * innerHeight;
  if (top > most && top >= map.getBoundingClientRect().bottom) scrollBy({ top: top - most, behavior: glide() });
}
function glide() { return matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth"; }

function mapNote(data) {
  const parts = [];
  if (data.axes[1] === "" ) parts.push(`One column: ${data.axes[0]}.`);
  else if (data.explained < 1) parts.push(`The plane of largest variance of the centres; it shows ${digits(100 * data.explained, 3)} % of it.`);
  else parts.push(`Across: ${data.axes[0]}; upwards: ${data.axes[1]}.`);
  if (data.size_unit) parts.push(`The area of a circle is the ${data.size_unit === "rows" ? "number of rows" : "weight"} of the cluster.`);
  parts.push(data.graph_of_model ? "Lines join neighbours in the model's cluster graph." : "Lines join closest centres.");
  return parts.concat(data.assignment || []).join(" ");
}

function setUpColors(map, data) {
  const field = document.getElementById("color-field"), choice = document.getElementById("color");
  const measures = [];
  if (data.errors) measures.push([data.error_name, data.errors]);
  if (data.size_unit) measures.push(["size", data.sizes]);
  if (!measures.length) { field.hidden = true; return; }
  measures.forEach(([name], i) => choice.add(new Option(name, i)));
  const ramp = document.getElementById("legend-ramp").getContext("2d");
  RAMP.forEach((color, b) => { ramp.fillStyle = color; ramp.fillRect((120 * b) / RAMP.length, 0, 120 / RAMP.length + 1, 8); });
  const apply = () => {
    const [name, values] = measures[Number(choice.value)];
    const sorted = Float64Array.from(values).sort(), bounds = [];
    for (let b = 1; b < RAMP.length; b++) bounds.push(sorted[Math.floor((b * sorted.length) / RAMP.length)]);
    const bucket = new Uint8Array(data.n);
    const flat = sorted[0] === sorted[sorted.length - 1];
    for (let i = 0; i < data.n; i++) { let b = 0; while (!flat && b < bounds.length && values[i] >= bounds[b]) b++; bucket[i] = b; }
    map.colorBy(bucket);
    const show = (value) => (name === "size" && data.size_unit === "share" ? `${digits(100 * value, 3)} %` : digits(value, 3));
    document.getElementById("legend-low").textContent = show(sorted[0]);
    document.getElementById("legend-high").textContent = show(sorted[sorted.length - 1]);
    document.getElementById("legend-name").textContent = `${name}, by rank`;
    document.getElementById("legend").hidden = flat;
  };
  choice.addEventListener("change", apply);
  apply();
}

function drawCharts(data, select) {
  drawConvergence(data);
  drawDistances(data);
  drawMoved(data);
  drawSizes(data);
  drawExtremes(data, select);
}
function hideChart(id) { document.getElementById(id).hidden = true; }

// what a record of the history is called: its number where all rows were looked at, and its stage
function recordName(data, i) {
  const stage = data.history_stage[i], number = data.history_iteration[i];
  const name = stage.charAt(0).toUpperCase() + stage.slice(1);
  if (!number) return name;
  return stage === "iterations" ? `Iteration ${number}` : `${name}, iteration ${number}`;
}
// the stages in their order, with their seconds; nothing where there is only one
function stageNote(data) {
  const spent = new Map();
  data.history_stage.forEach((stage, i) => spent.set(stage, (spent.get(stage) || 0) + data.history_seconds[i] - (i ? data.history_seconds[i - 1] : 0)));
  return spent.size < 2 ? "" : ` Stages: ${Array.from(spent, ([stage, seconds]) => `${stage} ${digits(seconds, 3)} s`).join(", ")}.`;
}

function drawConvergence(data) {
  const figure = document.getElementById("convergence"), plot = figure.querySelector(".plot");
  const n = data.history_iteration.length;
  if (!n) { hideChart("convergence"); return; }
  // the first seeds leave so much that nothing else could be told apart
  const first = Math.min(Math.max(data.history_stage.filter((stage) => stage === "seeds").length - 1, 0), n - 1);
  const perRow = data.history_quantization_error.every(Number.isFinite);
  const y = (perRow ? data.history_quantization_error : data.history_objective).slice(first);
  const steps = Array.from(y, (_, i) => first + i + 1), seconds = data.history_seconds.slice(first), last = y.length - 1;
  const name = perRow ? "mean squared error" : data.objective;
  const draw = (axis) => drawChart(plot, {
    kind: "curve", y, x: axis === "seconds" ? seconds : steps, wholeX: axis === "steps",
    fromX: axis === "seconds" ? 0 : null, xLabel: axis, yLabel: name, yFormat: (v) => digits(v, 4),
    summary: `${name}: ${digits(y[0])} at first, ${digits(y[last])} after ${recordName(data, n - 1).toLowerCase()}`,
    tell: (i) => [recordName(data, first + i), digits(y[i], 6), `${digits(seconds[i], 3)} s`],
  });
  makeSwitch(document.getElementById("convergence-x"), [["seconds", "Seconds"], ["steps", "Steps"]], draw);
  draw("seconds");
  const change = y[0] ? (100 * (y[last] - y[0])) / Math.abs(y[0]) : 0;
  figure.querySelector(".note").textContent = n > 1 ? `From ${digits(y[0])} to ${digits(y[last])} (${change > 0 ? "+" : "−"}${digits(Math.abs(change), 3)} %) in ${whole.format(last + 1)} steps.${stageNote(data)}` : "";
}

function drawDistances(data) {
  const figure = document.getElementById("distances"), y = data.history_n_distances, n = y.length;
  if (!n || !y.some((v) => v > 0)) { hideChart("distances"); return; }
  const most = Math.max(...y), all = data.n_rows ? data.n_rows * data.n : 0;
  const near = all && all <= 1.6 * most;
  drawChart(figure.querySelector(".plot"), {
    kind: n <= 150 ? "bars" : "curve", x: Array.from(y, (_, i) => i + 1), y, fromZero: true, wholeX: true, xLabel: "step", yLabel: "distances",
    yFormat: compact, rule: near ? { value: all, label: "every row with every centre" } : null,
    summary: `Distances per step, at most ${compact(most)}`,
    tell: (i) => [recordName(data, i), `${whole.format(y[i])} distances`, data.n_rows ? `${digits(y[i] / data.n_rows, 3)} per row` : ""],
  });
  figure.querySelector(".note").textContent = all && !near ? `Every row with every centre would be ${compact(all)} an iteration, ${digits(all / most, 3)} times as many.` : "";
}

function drawMoved(data) {
  const y = Array.from(data.history_n_changed, (v) => (data.n_rows ? (100 * v) / data.n_rows : v));
  const known = y.filter((v) => v > 0);
  if (known.length < 2) { hideChart("moved"); return; }
  const log = Math.max(...known) > 30 * Math.min(...known);
  drawChart(document.querySelector("#moved .plot"), {
    kind: "curve", x: y.map((_, i) => i + 1), y: y.map((v) => (v > 0 || !log ? v : NaN)), yLog: log, wholeX: true, xLabel: "step",
    yLabel: data.n_rows ? "per cent of the rows" : "rows", yFormat: (v) => digits(v, 3),
    summary: `Rows that changed cluster: ${digits(y[0], 3)} at first, ${digits(y[y.length - 1], 3)} at last`,
    tell: (i) => [recordName(data, i), `${whole.format(data.history_n_changed[i])} rows`],
  });
}

function drawSizes(data) {
  if (!data.size_unit || data.n < 2) { hideChart("sizes"); return; }
  const filled = Float64Array.from(data.sizes).filter((size) => size > 0).sort();
  if (!filled.length) { hideChart("sizes"); return; }
  const rows = data.size_unit === "rows", low = filled[0], high = filled[filled.length - 1];
  const log = high > 20 * filled[filled.length >> 1] || high > 200 * low;
  let n = Math.max(5, Math.min(48, Math.round(2 * Math.sqrt(filled.length))));
  const edges = [];
  if (high <= low) edges.push(low * 0.9, high * 1.1);
  else if (log) for (let b = 0; b <= n; b++) edges.push(low * (high / low) ** (b / n));
  else {
    const width = rows ? Math.max(1, Math.ceil((high - low + 1) / n)) : (high - low) / n;
    const first = rows ? low - 0.5 : low;
    n = Math.ceil((high - first + (rows ? 0.5 : 0)) / width - 1e-9);
    for (let b = 0; b <= n; b++) edges.push(first + b * width);
  }
  const counts = new Array(edges.length - 1).fill(0);
  for (const size of filled) {
    let b = 0, top = counts.length - 1;
    while (b < top) { const middle = (b + top + 1) >> 1; if (edges[middle] <= size) b = middle; else top = middle - 1; }
    counts[b]++;
  }
  const text = (v) => (rows ? digits(Math.round(v), 3) : `${digits(100 * v, 3)} %`);
  drawChart(document.querySelector("#sizes .plot"), {
    kind: "bars", edges, y: counts, fromZero: true, xLog: log, xLabel: rows ? "rows in the cluster" : "weight of the component", yLabel: "clusters",
    xFormat: (v) => (rows ? compact(v) : `${digits(100 * v, 2)} %`), yFormat: compact,
    summary: `Histogram of cluster sizes from ${text(low)} to ${text(high)}`,
    tell: (i) => [`${text(rows ? Math.ceil(edges[i]) : edges[i])} to ${text(rows ? Math.max(Math.ceil(edges[i]), Math.ceil(edges[i + 1]) - 1) : edges[i + 1])}${rows ? " rows" : ""}`, `${whole.format(counts[i])} clusters`],
  });
}

function drawExtremes(data, select) {
  const choices = [], measures = [];
  if (data.size_unit) {
    choices.push(["large", "Largest"], ["small", "Smallest"]);
    measures.push(["size", (id) => sizeText(data, id)]);
  }
  if (data.errors) {
    choices.push(["error", "Highest error"]);
    measures.push([data.error_name, (id) => digits(data.errors[id])]);
  }
  if (!choices.length) { hideChart("extremes"); return; }
  const plot = document.querySelector("#extremes .plot");
  const draw = (by) => {
    const values = by === "error" ? data.errors : data.sizes, sign = by === "small" ? 1 : -1;
    const ids = Array.from({ length: data.n }, (_, i) => i).sort((a, b) => sign * (values[a] - values[b]) || a - b).slice(0, 8);
    const table = html("table", { className: "rows" }, html("tr", {}, ...cells("th", ["Cluster", ...measures.map(([name]) => name)])));
    for (const id of ids) {
      const button = html("button", { type: "button" }, whole.format(id));
      const row = html("tr", {}, ...cells("td", [button, ...measures.map(([, tell]) => tell(id))]));
      row.dataset.id = id;
      table.append(row);
    }
    table.addEventListener("click", (event) => {
      const row = event.target.closest("tr[data-id]");
      if (!row) return;
      select(Number(row.dataset.id), true);
      document.getElementById("map-section").scrollIntoView({ behavior: glide() });
    });
    plot.replaceChildren(table);
  };
  makeSwitch(document.getElementById("extremes-by"), choices, draw);
  draw(choices[0][0]);
}

start().catch((error) => {
  document.getElementById("map-note").textContent = `This page could not be drawn: ${error.message}. It needs a browser of 2023 or later.`;
  console.error(error);
});
