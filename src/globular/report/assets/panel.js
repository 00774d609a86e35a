// The panel beside the map: one cluster, its centre, its rows and its neighbours.
function findShown(data, id) {
  let low = 0, high = data.shown.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (data.shown[middle] === id) return middle;
    if (data.shown[middle] < id) low = middle + 1; else high = middle - 1;
  }
  return -1;
}
function sizeText(data, id) {
  if (data.size_unit === "rows") return `${whole.format(data.sizes[id])} ${data.sizes[id] === 1 ? "row" : "rows"}`;
  return data.size_unit === "share" ? `${digits(100 * data.sizes[id], 3)} %` : "";
}

function showCluster(panel, data, id, select) {
  panel.replaceChildren();
  if (id < 0) {
    panel.append(html("p", { className: "empty" }, "Click a cluster, or type its id and press Enter: its centre, its "
      + (data.has_rows ? "closest rows" : "values") + " and its neighbours appear here."));
    return;
  }
  const close = html("button", { className: "close", type: "button" }, "Close");
  close.addEventListener("click", () => select(-1));
  panel.append(html("div", { className: "name" }, html("strong", {}, `Cluster ${whole.format(id)}`), close), html("dl", {}, ...facts(data, id)));
  const place = data.complete ? findShown(data, id) : -1;
  if (!data.complete) {
    panel.append(html("p", { className: "note" }, "Unpacking …"));
  } else if (place >= 0) {
    panel.append(html("h3", {}, data.has_rows ? "Centre and closest rows" : "Centre"));
    panel.append({ image: showImages, profile: showProfiles, table: showTable }[data.pictures.kind](data, place));
  } else {
    panel.append(html("p", { className: "note" }, `The page holds the values of the ${whole.format(data.shown.length)} largest clusters; this is not one of them.`));
  }
  const width = data.shapes.neighbors[1];
  if (width) {
    panel.append(html("h3", {}, data.graph_of_model ? "Neighbours in the model" : "Closest centres"));
    const chips = html("div", { className: "chips" });
    for (const other of data.neighbors.subarray(id * width, (id + 1) * width)) {
      const chip = html("button", { type: "button", title: sizeText(data, other) }, whole.format(other));
      chip.addEventListener("click", () => select(other, true));
      chips.append(chip);
    }
    panel.append(chips);
  }
}
function facts(data, id) {
  const rows = [];
  const size = sizeText(data, id);
  if (size) {
    let larger = 0;
    for (const other of data.sizes) if (other > data.sizes[id]) larger++;
    rows.push(["size", size], ["rank by size", `${whole.format(larger + 1)} of ${whole.format(data.n)}`]);
  }
  if (data.n_rows && data.size_unit === "rows") rows.splice(1, 0, ["share of the rows", `${digits((100 * data.sizes[id]) / data.n_rows, 3)} %`]);
  if (data.errors) rows.push([data.error_name, digits(data.errors[id])]);
  return rows.map(([key, value]) => html("div", {}, html("dt", {}, key), html("dd", {}, value)));
}
const NO_ROW = 4294967295;
function exemplars(data, place) {
  const n = data.shapes.row_numbers[1], found = [];
  for (let e = 0; e < n; e++) {
    const number = data.row_numbers[place * n + e];
    if (number !== NO_ROW) found.push({ number, distance: data.distances[place * n + e], values: rowValues(data, place * n + e) });
  }
  return found;
}
function rowValues(data, at) { const width = data.shapes.centers[1]; return data.rows.subarray(at * width, (at + 1) * width); }
function centerValues(data, place) { const width = data.shapes.centers[1]; return data.centers.subarray(place * width, (place + 1) * width); }
function rowName(row) { return `row ${whole.format(row.number)}`; }

function showImages(data, place) {
  const box = html("div", { className: "images" }), [height, width, channels] = data.pictures.image;
  const paint = (values) => {
    const canvas = html("canvas", { width, height }), context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    for (let p = 0; p < width * height; p++) {
      for (let k = 0; k < 3; k++) image.data[4 * p + k] = values[channels === 3 ? 3 * p + k : p];
      image.data[4 * p + 3] = 255;
    }
    context.putImageData(image, 0, 0);
    return canvas;
  };
  box.append(html("figure", { className: "first" }, paint(centerValues(data, place)), html("figcaption", {}, "centre")));
  for (const row of exemplars(data, place)) {
    const canvas = paint(row.values);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", rowName(row));
    box.append(html("figure", {}, canvas, html("figcaption", {}, rowName(row), html("br"), `distance ${digits(row.distance, 3)}`)));
  }
  return box;
}
function showProfiles(data, place) {
  const box = html("div"), center = centerValues(data, place);
  const draw = (root, values, color, weight) => {
    const n = values.length;
    let path = "";
    for (let i = 0; i < n; i++) path += `${i ? "L" : "M"}${((300 * i) / Math.max(1, n - 1)).toFixed(1)},${(72 - (70 * values[i]) / 255).toFixed(1)}`;
    svg("path", { d: path, fill: "none", stroke: color, "stroke-width": weight, "vector-effect": "non-scaling-stroke", "stroke-linejoin": "round" }, root);
  };
  const add = (label, ...lines) => {
    const root = svg("svg", { class: "profile", viewBox: "0 0 300 74", preserveAspectRatio: "none", role: "img", "aria-label": label });
    for (const line of lines) draw(root, ...line);
    box.append(html("div", { className: "profile-row" }, root, html("p", {}, label)));
  };
  add(`centre; values from ${digits(data.pictures.low, 3)} to ${digits(data.pictures.high, 3)}`, [center, "var(--accent)", 1.5]);
  for (const row of exemplars(data, place))
    add(`${rowName(row)}, distance ${digits(row.distance, 3)}`, [center, "var(--accent-soft)", 2.5], [row.values, "var(--ink)", 1]);
  return box;
}
function showTable(data, place) {
  const rows = exemplars(data, place), center = centerValues(data, place), names = data.pictures.columns;
  const line = (tag, ...values) => html("tr", {}, ...cells(tag, values));
  const numbers = (values) => Array.from(values, (value) => digits(value));
  const table = html("table", { className: "rows" });
  if (center.length <= 3) {
    const middle = line("td", "centre", ...numbers(center));
    middle.className = "center";
    table.append(line("th", "", ...names), middle, ...rows.map((row) => line("td", rowName(row), ...numbers(row.values))));
  } else {
    const few = rows.slice(0, 3);
    table.append(line("th", "", "centre", ...few.map(rowName)));
    names.forEach((name, d) => table.append(line("td", name, ...numbers([center[d], ...few.map((row) => row.values[d])]))));
  }
  return html("div", { className: "rows-wrap" }, table);
}
