// Arrays of the page: gzip in base64 → typed arrays. Everything else in the data is plain JSON.
const TYPES = {
  u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array, f8: Float64Array,
};

async function decodeArray(packed) {
  const text = atob(packed.bytes);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new TYPES[packed.type](await new Response(stream).arrayBuffer());
}

// What the panel shows of a cluster is most of the page: it is unpacked after the map is drawn.
const LATER = new Set(["shown", "centers", "rows", "row_numbers", "distances"]);

async function unpack(data, names) {
  const values = await Promise.all(names.map((name) => decodeArray(data.arrays[name])));
  names.forEach((name, i) => { data[name] = values[i]; delete data.arrays[name]; });
}
async function loadData() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const names = Object.keys(data.arrays);
  data.shapes = Object.fromEntries(names.map((name) => [name, data.arrays[name].shape]));
  await unpack(data, names.filter((name) => !LATER.has(name)));
  return data;
}
async function loadPictures(data) {
  await unpack(data, [...LATER]);
  data.complete = true;
}

// Numbers as people write them.
const whole = new Intl.NumberFormat("en");
function digits(value, n = 4) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e15 || size < 1e-4 ? value.toExponential(Math.max(0, n - 2)).replace("e+", "e")
    : new Intl.NumberFormat("en", { maximumSignificantDigits: n }).format(value);
  return text.replaceAll("-", "−");
}
function compact(value) {
  return new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(value);
}

// An element of the page. Strings become text, never markup: names that come from data and models cannot run anything.
function html(tag, attributes = {}, ...children) {
  const element = Object.assign(document.createElement(tag), attributes);
  element.append(...children);
  return element;
}
function cells(tag, values) { return values.map((value) => html(tag, tag === "th" ? { scope: "col" } : {}, value)); }
function fillTip(tip, heading, ...lines) {
  tip.replaceChildren(html("b", {}, heading), ...lines.filter(Boolean).flatMap((line) => [html("br"), line]));
}
