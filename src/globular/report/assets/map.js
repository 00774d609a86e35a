// The map: a canvas that draws each visible cluster as a circle, and thousands of them as a glow.
//
// Level of detail: beyond GLOW_FROM visible clusters, each adds light to its pixel, and only the largest become circles;
// neighbour lines are drawn for all visible clusters when they are few, else for the cluster under the pointer.
// A grid over the plane finds the clusters of a view, and the one under the pointer, without looking at all of them.
const RAMP = ["#4aa3d9", "#4b86c8", "#6670b9", "#8b5ea9", "#b35496", "#d4597a", "#ea7558", "#f3a03f"];
const GLOW_FROM = 6000, CIRCLES_IN_GLOW = 1500, LINES_UP_TO = 2500, LINES_EACH = 3, NAMES_UP_TO = 60, OUTLINES_UP_TO = 3000;

class ClusterMap {
  constructor(canvas, data, on) {
    Object.assign(this, { canvas, data, on, n: data.n, hover: -1, selected: -1, edges: true, bucket: new Uint8Array(data.n) });
    this.context = canvas.getContext("2d");
    this.x = new Float32Array(this.n);
    this.y = new Float32Array(this.n);
    for (let i = 0; i < this.n; i++) {
      this.x[i] = data.positions[2 * i] / 65535;
      this.y[i] = data.positions[2 * i + 1] / 65535;
    }
    let total = 0;
    for (let i = 0; i < this.n; i++) total += data.sizes[i];
    const mean = total / this.n || 1;
    this.relative = Float32Array.from(data.sizes, (size) => Math.max(0.35, Math.min(4.5, Math.sqrt(size / mean))));
    this.visible = new Int32Array(this.n);
    this.nVisible = 0;
    this.buildGrid();
    this.listen();
    this.resize();
    new ResizeObserver(() => this.resize()).observe(canvas);
  }

  buildGrid() {
    const side = Math.max(1, Math.min(256, Math.round(Math.sqrt(this.n / 4))));
    this.side = side;
    const cell = new Uint32Array(this.n);
    this.starts = new Uint32Array(side * side + 1);
    for (let i = 0; i < this.n; i++) {
      cell[i] = this.row(this.y[i]) * side + this.row(this.x[i]);
      this.starts[cell[i] + 1]++;
    }
    for (let c = 0; c < side * side; c++) this.starts[c + 1] += this.starts[c];
    const next = this.starts.slice();
    this.members = new Uint32Array(this.n);
    for (let i = 0; i < this.n; i++) this.members[next[cell[i]]++] = i;
  }
  row(value) { return Math.max(0, Math.min(this.side - 1, Math.floor(value * this.side))); }

  resize() {
    const box = this.canvas.getBoundingClientRect(), first = !this.width;
    if (!box.width || !box.height) return;
    this.ratio = window.devicePixelRatio || 1;
    this.width = box.width; this.height = box.height;
    this.canvas.width = Math.round(box.width * this.ratio);
    this.canvas.height = Math.round(box.height * this.ratio);
    const [across, up] = this.data.extent.map((size) => Math.max(size, 0.02));
    this.fit = Math.min((this.width - 90) / across, (this.height - 90) / up);
    const spacing = Math.sqrt((this.fit * this.fit * Math.max(across, 0.1) * Math.max(up, 0.1)) / this.n);
    this.baseRadius = Math.min(17, 0.3 * spacing);
    this.spacing = spacing;
    if (first) this.showMost(); else this.draw();
  }
  showAll() { [this.cx, this.cy] = this.data.extent.map((size) => size / 2); this.scale = this.fit; this.draw(); }
  // the first view leaves a few far clusters out if they would make the others small
  showMost() {
    this.showAll();
    if (this.n < 200) return;
    const box = [this.x, this.y].map((values) => {
      const sorted = values.slice().sort(), low = sorted[Math.floor(0.01 * this.n)], high = sorted[Math.ceil(0.99 * this.n) - 1];
      return [low, high, Math.max(high - low, 1e-6)];
    });
    const scale = Math.min((this.width - 60) / (1.3 * box[0][2]), (this.height - 60) / (1.3 * box[1][2]));
    if (scale < 1.1 * this.fit) return;
    this.scale = Math.min(scale, 6 * this.fit);
    this.cx = (box[0][0] + box[0][1]) / 2;
    this.cy = (box[1][0] + box[1][1]) / 2;
  }
  get zoom() { return this.scale / this.fit; }
  screenX(i) { return (this.x[i] - this.cx) * this.scale + this.width / 2; }
  screenY(i) { return this.height / 2 - (this.y[i] - this.cy) * this.scale; }
  radius(i) { return Math.min(44, Math.max(1.1, this.baseRadius * this.relative[i] * this.zoom ** 0.62)); }

  zoomBy(factor, px = this.width / 2, py = this.height / 2) {
    const next = Math.max(this.fit * 0.5, Math.min(this.fit * Math.max(12, Math.sqrt(this.n)), this.scale * factor));
    const wx = this.cx + (px - this.width / 2) / this.scale, wy = this.cy - (py - this.height / 2) / this.scale;
    this.cx = wx - (px - this.width / 2) / next;
    this.cy = wy + (py - this.height / 2) / next;
    this.scale = next;
    this.draw();
  }
  pan(dx, dy) { this.cx -= dx / this.scale; this.cy += dy / this.scale; this.keepInView(); this.draw(); }
  keepInView() { this.cx = Math.max(0, Math.min(this.data.extent[0], this.cx)); this.cy = Math.max(0, Math.min(this.data.extent[1], this.cy)); }
  goTo(i) {
    this.scale = Math.max(this.scale, this.fit * Math.max(1, 46 / this.spacing));
    this.setHover(-1);
    this.cx = this.x[i]; this.cy = this.y[i];
    this.draw();
  }
  select(i) { this.selected = i; this.draw(); this.on.select(i); }
  colorBy(bucket) { this.bucket = bucket; this.draw(); }

  findVisible() {
    const margin = 44 / this.scale, halfW = this.width / 2 / this.scale + margin, halfH = this.height / 2 / this.scale + margin;
    const x0 = this.row(this.cx - halfW), x1 = this.row(this.cx + halfW);
    const y0 = this.row(this.cy - halfH), y1 = this.row(this.cy + halfH);
    let n = 0;
    for (let r = y0; r <= y1; r++)
      for (let k = this.starts[r * this.side + x0]; k < this.starts[r * this.side + x1 + 1]; k++) this.visible[n++] = this.members[k];
    this.nVisible = n;
  }
  nearest(px, py) {
    const reach = Math.max(14, 44) / this.scale, wx = this.cx + (px - this.width / 2) / this.scale;
    const wy = this.cy - (py - this.height / 2) / this.scale;
    let best = -1, bestScore = Infinity;
    for (let r = this.row(wy - reach); r <= this.row(wy + reach); r++)
      for (let k = this.starts[r * this.side + this.row(wx - reach)]; k < this.starts[r * this.side + this.row(wx + reach) + 1]; k++) {
        const i = this.members[k];
        const score = Math.hypot(this.screenX(i) - px, this.screenY(i) - py) - this.radius(i);
        if (score < bestScore) { bestScore = score; best = i; }
      }
    return bestScore < 8 ? best : -1;
  }

  draw() {
    if (this.pending || !this.width) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.paint(); });
  }
  paint() {
    const c = this.context, style = getComputedStyle(document.documentElement);
    this.theme = { sky: style.getPropertyValue("--sky").trim(), edge: style.getPropertyValue("--edge").trim(), ink: style.getPropertyValue("--ink").trim() };
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.clearRect(0, 0, this.width, this.height);
    this.findVisible();
    const glow = this.nVisible > GLOW_FROM;
    const ids = this.visible.subarray(0, this.nVisible);
    if (this.edges && this.nVisible <= LINES_UP_TO) this.paintLines(ids, Math.max(0.07, Math.min(0.4, 45 / ids.length)), this.theme.edge, LINES_EACH);
    if (glow) this.paintGlow(ids);
    if (this.edges) this.paintLines([this.hover, this.selected].filter((i) => i >= 0), 0.8, this.theme.ink, Infinity);
    const circles = glow ? this.largest(ids) : ids;
    if (circles.length <= OUTLINES_UP_TO && !glow) this.paintOutlined(circles); else this.paintCircles(circles, 0.88);
    for (const [i, isSelected] of [[this.hover, false], [this.selected, true]]) if (i >= 0) this.paintFocus(i, isSelected);
    if (this.nVisible <= NAMES_UP_TO) this.paintNames(ids);
  }
  largest(ids) {
    return Array.from(ids).sort((a, b) => this.data.sizes[b] - this.data.sizes[a]).slice(0, CIRCLES_IN_GLOW)
      .filter((i) => this.radius(i) > 1.3);
  }
  paintLines(ids, alpha, color, most) {
    const c = this.context, width = this.data.shapes.neighbors[1];
    c.beginPath();
    for (const i of ids)
      for (let g = 0; g < Math.min(width, most); g++) {
        const j = this.data.neighbors[i * width + g];
        c.moveTo(this.screenX(i), this.screenY(i));
        c.lineTo(this.screenX(j), this.screenY(j));
      }
    c.strokeStyle = color;
    c.globalAlpha = alpha;
    c.lineWidth = 1.1;
    c.stroke();
    c.globalAlpha = 1;
  }
  paintCircles(ids, alpha) {
    const c = this.context, groups = RAMP.map(() => []);
    for (const i of ids) groups[this.bucket[i]].push(i);
    c.globalAlpha = alpha;
    groups.forEach((group, b) => {
      if (!group.length) return;
      c.beginPath();
      for (const i of group) {
        const x = this.screenX(i), y = this.screenY(i), r = this.radius(i);
        if (x < -r || y < -r || x > this.width + r || y > this.height + r) continue;
        c.moveTo(x + r, y);
        c.arc(x, y, r, 0, 6.2832);
      }
      c.fillStyle = RAMP[b];
      c.fill();
    });
    c.globalAlpha = 1;
  }
  // few enough to have an outline each, small ones in front of large ones
  paintOutlined(ids) {
    const c = this.context;
    c.strokeStyle = this.theme.sky;
    c.lineWidth = 1;
    for (const i of Array.from(ids).sort((a, b) => this.relative[b] - this.relative[a])) {
      c.beginPath();
      c.arc(this.screenX(i), this.screenY(i), this.radius(i), 0, 6.2832);
      c.fillStyle = RAMP[this.bucket[i]];
      c.fill();
      c.stroke();
    }
  }
  paintGlow(ids) {
    const w = Math.ceil(this.width), h = Math.ceil(this.height), n = w * h;
    if (!this.light || this.light.length !== 4 * n) {
      this.light = new Float32Array(4 * n);
      this.glow = Object.assign(document.createElement("canvas"), { width: w, height: h });
    }
    const light = this.light.fill(0), colors = RAMP.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
    const add = (x, y, amount, color) => {
      if (x < 0 || y < 0 || x >= w || y >= h) return;
      const at = 4 * (y * w + x);
      light[at] += amount * color[0]; light[at + 1] += amount * color[1]; light[at + 2] += amount * color[2]; light[at + 3] += amount;
    };
    for (const i of ids) {
      const x = Math.round(this.screenX(i)), y = Math.round(this.screenY(i)), color = colors[this.bucket[i]];
      const amount = Math.min(1.6, 0.45 + 0.35 * this.relative[i]);
      add(x, y, amount, color);
      add(x - 1, y, amount * 0.3, color); add(x + 1, y, amount * 0.3, color);
      add(x, y - 1, amount * 0.3, color); add(x, y + 1, amount * 0.3, color);
    }
    let lit = 0, all = 0;
    for (let at = 3; at < 4 * n; at += 4) if (light[at] > 0) { lit++; all += light[at]; }
    const gain = 0.8 / Math.max(0.6, all / lit);  // crowded places stay distinguishable
    const context = this.glow.getContext("2d"), image = context.createImageData(w, h), pixels = image.data;
    for (let at = 0; at < 4 * n; at += 4) {
      const amount = light[at + 3];
      if (amount === 0) continue;
      pixels[at] = light[at] / amount; pixels[at + 1] = light[at + 1] / amount; pixels[at + 2] = light[at + 2] / amount;
      pixels[at + 3] = 255 * (0.3 + 0.7 * (1 - Math.exp(-gain * amount)));
    }
    context.putImageData(image, 0, 0);
    this.context.drawImage(this.glow, 0, 0, w, h);
  }
  paintFocus(i, isSelected) {
    const c = this.context, x = this.screenX(i), y = this.screenY(i), r = Math.max(3, this.radius(i));
    c.strokeStyle = this.theme.ink;
    c.beginPath();
    c.arc(x, y, r, 0, 6.2832);
    c.fillStyle = RAMP[this.bucket[i]];
    c.fill();
    c.beginPath();
    c.arc(x, y, r + (isSelected ? 3.5 : 1.5), 0, 6.2832);
    c.lineWidth = isSelected ? 2.4 : 1.6;
    c.stroke();
  }
  paintNames(ids) {
    const c = this.context;
    c.font = "12px system-ui, sans-serif";
    c.textAlign = "center";
    c.lineWidth = 3;
    c.strokeStyle = this.theme.sky;
    c.fillStyle = this.theme.ink;
    for (const i of ids) {
      const y = this.screenY(i) + this.radius(i) + 15;
      c.strokeText(whole.format(i), this.screenX(i), y);
      c.fillText(whole.format(i), this.screenX(i), y);
    }
  }

  listen() {
    const canvas = this.canvas, fingers = new Map();
    let moved = 0;
    const place = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, place(event));
      moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const [px, py] = place(event), before = fingers.get(event.pointerId);
      if (!before) { this.setHover(this.nearest(px, py)); return; }
      const others = [...fingers].filter(([id]) => id !== event.pointerId);
      fingers.set(event.pointerId, [px, py]);
      moved += Math.hypot(px - before[0], py - before[1]);
      if (others.length) {
        const [ox, oy] = others[0][1];
        this.zoomBy(Math.hypot(px - ox, py - oy) / Math.max(1, Math.hypot(before[0] - ox, before[1] - oy)), (px + ox) / 2, (py + oy) / 2);
      } else if (moved > 4) {
        canvas.classList.add("dragging");
        this.setHover(-1);
        this.pan(px - before[0], py - before[1]);
      }
    });
    const end = (event) => {
      if (!fingers.delete(event.pointerId)) return;
      canvas.classList.remove("dragging");
      if (event.type === "pointerup" && moved <= 4) this.select(this.nearest(...place(event)));
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("pointerleave", () => this.setHover(-1));
    canvas.addEventListener("dblclick", (event) => this.zoomBy(2.2, ...place(event)));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && document.activeElement !== canvas) { this.on.hint(); return; }
      event.preventDefault();
      this.zoomBy(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0018)), ...place(event));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const step = 60, keys = {
        ArrowLeft: () => this.pan(step, 0), ArrowRight: () => this.pan(-step, 0), ArrowUp: () => this.pan(0, step),
        ArrowDown: () => this.pan(0, -step), "+": () => this.zoomBy(1.4), "=": () => this.zoomBy(1.4), "-": () => this.zoomBy(1 / 1.4),
        0: () => this.showAll(), Escape: () => this.select(-1), Enter: () => this.select(this.middle()),
      };
      if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
    });
  }
  middle() {
    let best = -1, distance = Infinity;
    for (let i = 0; i < this.n; i++) {
      const d = Math.hypot(this.x[i] - this.cx, this.y[i] - this.cy);
      if (d < distance) { distance = d; best = i; }
    }
    return best;
  }
  setHover(i) {
    if (i === this.hover) return;
    this.hover = i;
    this.canvas.classList.toggle("over", i >= 0);
    this.on.hover(i);
    this.draw();
  }
}
