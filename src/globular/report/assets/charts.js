// Small charts in SVG: a curve or bars, with round ticks and a value under the pointer.
const SVG = "http://www.w3.org/2000/svg";
function svg(name, attributes, parent, text) {
  const element = document.createElementNS(SVG, name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.appendChild(element);
  return element;
}

function linearTicks(low, high, n = 5) {
  const rough = (high - low) / n || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999) * power;
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) ticks.push(i * step || 0);
  return ticks;
}
function logTicks(low, high) {
  const ticks = [];
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.round((last - first) / 5));
  const factors = last - first > 3 ? [1] : last - first > 1 ? [1, 3] : [1, 2, 5];
  for (let power = first; power <= last; power += every)
    for (const factor of factors) {
      const tick = factor * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  return ticks;
}
function makeScale(low, high, from, to, log) {
  if (high <= low) { const pad = Math.abs(low) * 0.05 || 0.5; low -= log ? 0 : pad; high += pad; }
  const f = log ? Math.log : (v) => v;
  const scale = (v) => from + ((f(v) - f(low)) / (f(high) - f(low))) * (to - from);
  scale.low = low; scale.high = high;
  scale.ticks = (n) => (log ? logTicks(low, high) : linearTicks(low, high, n));
  return scale;
}

// options: x, y (arrays), kind "curve" | "bars", edges (of bars), xLabel, yLabel, fromX, xLog, yLog, fromZero, rule, tell(i) (lines of text), summary
function drawChart(container, options) {
  container.replaceChildren();
  const width = Math.max(260, container.clientWidth), height = 236;
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": options.summary });
  const finite = (values) => Array.from(values).filter(Number.isFinite);
  const ys = finite(options.y).concat(options.rule ? [options.rule.value] : []);
  let low = Math.min(...ys), high = Math.max(...ys);
  if (options.fromZero) low = 0;
  const pad = options.yLog ? 0 : (high - low) * 0.06;
  const xs = finite(options.edges || options.x).concat(Number.isFinite(options.fromX) ? [options.fromX] : []);
  const probe = makeScale(low - (options.fromZero ? 0 : pad), high + pad, 0, 1, options.yLog);
  const labels = probe.ticks(4).map((tick) => (options.yFormat || ((v) => digits(v, 3)))(tick));
  const left = Math.max(26, 7 * Math.max(...labels.map((text) => text.length)) + 10), bottom = 42, top = 22, right = 10;
  const Y = makeScale(probe.low, probe.high, height - bottom, top, options.yLog);
  const barPad = options.kind === "bars" && !options.edges ? 0.5 : 0;
  const X = makeScale(Math.min(...xs) - barPad, Math.max(...xs) + barPad, left, width - right, options.xLog);
  Y.ticks(4).forEach((tick, i) => {
    svg("line", { class: "grid", x1: left, x2: width - right, y1: Y(tick), y2: Y(tick) }, root);
    svg("text", { x: left - 8, y: Y(tick) + 4, "text-anchor": "end" }, root, labels[i]);
  });
  const xTicks = X.ticks(Math.max(2, Math.round(width / 95)));
  for (const tick of options.wholeX ? xTicks.filter((t) => Number.isInteger(t)) : xTicks)
    svg("text", { x: X(tick), y: height - bottom + 18, "text-anchor": "middle" }, root, (options.xFormat || ((v) => digits(v, 3)))(tick));
  svg("text", { x: width - right, y: height - 4, "text-anchor": "end" }, root, options.xLabel);
  svg("text", { x: 0, y: 10 }, root, options.yLabel);
  const points = [];
  if (options.kind === "bars") {
    const baseline = height - bottom;
    for (let i = 0; i < options.y.length; i++) {
      const from = X(options.edges ? options.edges[i] : options.x[i] - 0.5);
      const to = X(options.edges ? options.edges[i + 1] : options.x[i] + 0.5);
      const gap = Math.min(2, (to - from) * 0.15), y = Y(options.y[i]);
      if (options.y[i] > 0)
        svg("rect", { class: "bar dim", x: from + gap / 2, width: Math.max(0.5, to - from - gap), y, height: Math.max(1, baseline - y), rx: Math.min(2, (to - from) / 4) }, root);
      points.push([(from + to) / 2, y]);
    }
  } else {
    let path = "", pen = "M";
    for (let i = 0; i < options.y.length; i++) {
      const known = Number.isFinite(options.y[i]) && (!options.yLog || options.y[i] > 0);
      points.push(known ? [X(options.x[i]), Y(options.y[i])] : null);
      if (!known) { pen = "M"; continue; }
      path += `${pen}${points[i][0].toFixed(1)},${points[i][1].toFixed(1)}`;
      pen = "L";
    }
    svg("path", { class: "curve", d: path }, root);
    if (points.length <= 60) for (const p of points) if (p) svg("circle", { class: "dot", cx: p[0], cy: p[1], r: 4 }, root);
  }
  if (options.rule) {
    const y = Y(options.rule.value);
    svg("line", { class: "rule", x1: left, x2: width - right, y1: y, y2: y }, root);
    svg("text", { x: width - right, y: y - 6, "text-anchor": "end" }, root, options.rule.label);
  }
  container.appendChild(root);
  addPointer(container, root, points, options.tell);
}

function addPointer(container, root, points, tell) {
  const tip = html("div", { className: "tip", hidden: true });
  container.appendChild(tip);
  root.addEventListener("pointermove", (event) => {
    const at = event.clientX - root.getBoundingClientRect().left;
    let best = -1;
    for (let i = 0; i < points.length; i++)
      if (points[i] && (best < 0 || Math.abs(points[i][0] - at) < Math.abs(points[best][0] - at))) best = i;
    if (best < 0) return;
    tip.hidden = false;
    fillTip(tip, ...tell(best));
    const left = Math.min(Math.max(points[best][0] - tip.offsetWidth / 2, 0), container.clientWidth - tip.offsetWidth);
    tip.style.left = `${left}px`;
    tip.style.top = `${Math.max(points[best][1] - tip.offsetHeight - 12, -8)}px`;
  });
  root.addEventListener("pointerleave", () => { tip.hidden = true; });
}

function makeSwitch(element, choices, choose) {
  element.replaceChildren();
  const buttons = choices.map(([value, label], i) => {
    const button = html("button", { type: "button" }, label);
    button.setAttribute("aria-pressed", String(i === 0));
    button.addEventListener("click", () => {
      buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      choose(value);
    });
    element.appendChild(button);
    return button;
  });
}
