// The map at work: colours, pictures, search, selection and export. All text enters the page as text, never as HTML.
"use strict";

const LISTED = 60; // values in the legend
const PICTURES = 48; // selected images that are shown
const TABLEAU = ["#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#eeca3b", "#ff9da6", "#9d755d", "#79706e"];
const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
const NOTHING = "#9a9a9a"; // without a value
const FADED = 0.16; // opacity of points that are not selected
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const N = data.paths.length;
const places = unpacked(data.places, Int32Array);
const sizes = unpacked(data.sizes, Uint8Array);
const columns = data.columns.map((column) => ({
  ...column,
  codes: column.codes !== undefined ? unpacked(column.codes, Int32Array) : null,
  numbers: column.numbers !== undefined ? unpacked(column.numbers, Float32Array) : null,
}));
const lower = data.paths.map((path) => path.toLowerCase());
const colours = new Uint32Array(N); // of the points, as ImageData has them: alpha, blue, green, red
let source, plot, plotView;

function unpacked(text, Kind) {
  const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  return new Kind(bytes.buffer);
}

function element(tag, options = {}, ...children) {
  const made = Object.assign(document.createElement(tag), options);
  made.append(...children);
  return made;
}

const counted = (number) => number.toLocaleString("en");
const short = (number) => Number(number.toPrecision(4)).toString();

function valueOf(column, image) {
  if (column.numbers) return Number.isNaN(column.numbers[image]) ? "" : short(column.numbers[image]);
  return column.codes[image] < 0 ? "" : column.values[column.codes[image]];
}

// ---- Pictures -------------------------------------------------------------------------------------------------------

const texts = document.getElementsByClassName("sheet");
const sheets = [];

function sheet(number) {
  sheets[number] ??= new Promise((done, failed) => {
    const image = new Image();
    image.onload = () => done(image);
    image.onerror = failed;
    image.src = `data:image/jpeg;base64,${texts[number].textContent}`;
  });
  return sheets[number];
}

// Draws an image's picture, `side` CSS pixels on its longer side. A canvas that is asked for another meanwhile keeps that.
async function draw(canvas, image, side) {
  canvas.image = image;
  const place = places[image];
  if (place < 0) {
    canvas.width = canvas.height = 0;
    return;
  }
  const perSheet = data.across * data.across;
  const from = await sheet(Math.floor(place / perSheet));
  if (canvas.image !== image) return;
  const [width, height] = [sizes[2 * image], sizes[2 * image + 1]];
  const scale = side / Math.max(width, height);
  const cell = place % perSheet;
  const dots = Math.min(devicePixelRatio || 1, 2);
  canvas.width = Math.max(1, Math.round(width * scale * dots));
  canvas.height = Math.max(1, Math.round(height * scale * dots));
  canvas.style.width = `${width * scale}px`;
  canvas.getContext("2d").drawImage(
    from, (cell % data.across) * data.side, Math.floor(cell / data.across) * data.side, width, height,
    0, 0, canvas.width, canvas.height,
  );
}

function showCard(image) {
  const card = $("card");
  card.hidden = image === undefined;
  if (card.hidden) return;
  const lines = columns.map((column) => [column.name, valueOf(column, image)]).filter(([, value]) => value !== "");
  const text = [data.paths[image], ...lines.map(([name, value]) => `${name}: ${value}`)];
  if (places[image] < 0) text.unshift("(no picture)");
  card.querySelector("figcaption").textContent = text.join("\n");
  draw(card.querySelector("canvas"), image, Math.max(data.side, 180));
}

// ---- Colours --------------------------------------------------------------------------------------------------------

function mix(position) {
  const at = Math.min(Math.max(position, 0), 1) * (VIRIDIS.length - 1);
  const low = Math.min(Math.floor(at), VIRIDIS.length - 2);
  const part = (colour, start) => parseInt(colour.slice(start, start + 2), 16);
  const channel = (start) => {
    const value = part(VIRIDIS[low], start) + (at - low) * (part(VIRIDIS[low + 1], start) - part(VIRIDIS[low], start));
    return Math.round(value).toString(16).padStart(2, "0");
  };
  return `#${channel(1)}${channel(3)}${channel(5)}`;
}

function categoryColours(count) {
  if (count <= TABLEAU.length) return TABLEAU.slice(0, count);
  const hsl = (hue, saturation, light) => {
    const part = (n) => {
      const k = (n + hue / 30) % 12;
      const value = light - saturation * Math.min(light, 1 - light) * Math.max(-1, Math.min(k - 3, 9 - k, 1));
      return Math.round(255 * value).toString(16).padStart(2, "0");
    };
    return `#${part(0)}${part(8)}${part(4)}`;
  };
  // The golden angle keeps neighbours in the order apart.
  return Array.from({ length: count }, (_, n) => hsl((n * 137.508) % 360, 0.62, [0.48, 0.62, 0.36][n % 3]));
}

const packed = (colour) => (0xff << 24) | ([5, 3, 1].reduce((all, at) => all * 256 + parseInt(colour.slice(at, at + 2), 16), 0));

function colourBy(column) {
  colours.fill(packed(NOTHING));
  const legend = [];
  if (!column) {
    colours.fill(packed(TABLEAU[0]));
  } else if (column.numbers) {
    const known = column.numbers.filter((number) => !Number.isNaN(number)).sort();
    const [low, high] = [known[0], known[known.length - 1]];
    for (let i = 0; i < N; i++) {
      const number = column.numbers[i];
      if (!Number.isNaN(number)) colours[i] = packed(mix((number - low) / (high - low || 1)));
    }
    const bar = element("div", { className: "scale" });
    bar.style.background = `linear-gradient(90deg, ${VIRIDIS.join(", ")})`;
    const ends = element("div", { className: "ends" }, element("span", {}, short(low)), element("span", {}, short(high)));
    legend.push(element("li", {}, bar, ends));
  } else {
    const palette = categoryColours(column.values.length);
    const points = palette.map(packed);
    const sizes = new Array(column.values.length).fill(0);
    for (let i = 0; i < N; i++) {
      const code = column.codes[i];
      if (code < 0) continue;
      colours[i] = points[code];
      sizes[code]++;
    }
    const entry = (code, name, colour, count) => {
      const swatch = element("span", { className: "swatch" });
      swatch.style.background = colour;
      const value = element("span", { className: "value", title: name }, name);
      const button = element("button", { type: "button" }, swatch, value, element("small", {}, counted(count)));
      button.onclick = () => select(images((image) => column.codes[image] === code));
      return element("li", {}, button);
    };
    const order = sizes.map((_, code) => code).sort((a, b) => sizes[b] - sizes[a] || a - b);
    const missing = N - sizes.reduce((all, size) => all + size, 0);
    if (missing) legend.push(entry(-1, `no ${column.name}`, NOTHING, missing));
    for (const code of order.slice(0, LISTED)) legend.push(entry(code, column.values[code], palette[code], sizes[code]));
    if (order.length > LISTED) legend.push(element("li", {}, element("small", {}, `and ${counted(order.length - LISTED)} more`)));
  }
  $("legend").replaceChildren(...legend);
  plotView.request_repaint();
}

// ---- Points ---------------------------------------------------------------------------------------------------------

// Bokeh paints a path for each point, which takes a second for each few hundred thousand. These are written as pixels,
// in a random order, so that no value hides another.
const raster = document.createElement("canvas");
const order = Uint32Array.from({ length: N }, (_, n) => n);
for (let n = N - 1, state = 1; n > 0; n--) {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0; // the same order each time
  const other = state % (n + 1);
  [order[n], order[other]] = [order[other], order[n]];
}

// The pixels of a point, [x, y, opacity of 0 to 255] in a row: at its edge less than the whole is inside.
function disc(diameter, opacity) {
  const [radius, reach] = [diameter / 2, Math.ceil(diameter / 2)];
  const pixels = [];
  for (let y = -reach; y <= reach; y++) {
    for (let x = -reach; x <= reach; x++) {
      const covered = Math.min(1, Math.max(0, radius + 0.5 - Math.hypot(x, y)));
      if (covered > 0.1) pixels.push(x, y, Math.round(255 * covered * opacity));
    }
  }
  return Int32Array.from(pixels);
}

// The innermost loops run for every pixel of every point: plain loops over typed arrays are ten times as fast as others.
function write(pixels, wide, high, sx, sy, marked, shape, full) {
  const length = shape.length;
  for (let n = 0; n < N; n++) {
    const point = order[n];
    if (marked[point] === 0) continue;
    const x = Math.round(sx[point]);
    const y = Math.round(sy[point]);
    const colour = colours[point] & 0xffffff;
    for (let k = 0; k < length; k += 3) {
      const column = x + shape[k];
      const row = y + shape[k + 1];
      if (column < 0 || row < 0 || column >= wide || row >= high) continue;
      const at = row * wide + column;
      const alpha = shape[k + 2];
      if (alpha === full || pixels[at] >>> 24 < alpha) pixels[at] = (alpha << 24) | colour;
    }
  }
}

let content = null; // reused from frame to frame
const marked = new Uint8Array(N);
const across = new Float32Array(N);
const down = new Float32Array(N);

function paint(ctx, glyph, indices, opacity) {
  const { left, top, width, height } = plotView.frame.bbox;
  const dots = ctx.getTransform().a;
  const wide = Math.ceil(width * dots);
  const high = Math.ceil(height * dots);
  if (!indices.length || !wide || !high) return;
  if (raster.width !== wide || raster.height !== high || !content) {
    raster.width = wide;
    raster.height = high;
    content = new ImageData(wide, high);
  }
  const pixels = new Uint32Array(content.data.buffer);
  pixels.fill(0);
  marked.fill(0);
  for (let n = 0; n < indices.length; n++) {
    const point = indices[n];
    marked[point] = 1;
    across[point] = (glyph.sx[point] - left) * dots;
    down[point] = (glyph.sy[point] - top) * dots;
  }
  write(pixels, wide, high, across, down, marked, disc(data.size * dots, opacity), Math.round(255 * opacity));
  raster.getContext("2d").putImageData(content, 0, 0);
  ctx.save();
  ctx.resetTransform();
  ctx.drawImage(raster, Math.round(left * dots), Math.round(top * dots));
  ctx.restore();
}

function paintPoints() {
  const points = plotView.owner.find_one(plot.renderers[0]);
  for (const [glyph, opacity] of [[points.glyph, 0.9], [points.selection_glyph, 1], [points.nonselection_glyph, FADED]]) {
    glyph._paint = (ctx, indices) => paint(ctx, glyph, indices, opacity);
  }
}

// ---- Selection ------------------------------------------------------------------------------------------------------

function images(test) {
  const found = [];
  for (let image = 0; image < N; image++) if (test(image)) found.push(image);
  return found;
}

const selection = () => Array.from(source.selected.indices);

function select(found) {
  source.selected.indices = found;
}

function search(text) {
  const query = text.trim().toLowerCase();
  if (!query) return select([]);
  const hits = columns.map((column) => column.values?.map((value) => value.toLowerCase().includes(query)));
  const found = images((image) => lower[image].includes(query) || hits.some((hit, n) => hit?.[columns[n].codes[image]]));
  select(found);
  if (!found.length) $("count").textContent = "no image matches";
}

function showSelection() {
  const found = selection();
  for (const id of ["zoom", "clear", "export"]) $(id).disabled = !found.length;
  $("count").textContent = found.length
    ? `${counted(found.length)} of ${counted(N)} images selected`
    : `${counted(N)} ${N === 1 ? "image" : "images"}`;
  const shown = found.slice(0, PICTURES).map((image) => {
    const canvas = element("canvas", { width: 72, height: 72 });
    draw(canvas, image, 72);
    const item = element("li", { title: data.paths[image] }, canvas);
    item.onmouseenter = () => showCard(image);
    return item;
  });
  const more = found.length - shown.length;
  if (more > 0) shown.push(element("li", { className: "more" }, `and ${counted(more)} more`));
  $("chosen").replaceChildren(...shown);
  if (found.length === 1) showCard(found[0]);
}

// Shows these images, at one scale in both directions.
function zoomTo(found) {
  const { x, y } = source.data;
  let [left, right, bottom, top] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const image of found) {
    [left, right] = [Math.min(left, x[image]), Math.max(right, x[image])];
    [bottom, top] = [Math.min(bottom, y[image]), Math.max(top, y[image])];
  }
  const half = Math.max(right - left, top - bottom, 0.02) * 0.55;
  const [across, up] = [(left + right) / 2, (bottom + top) / 2];
  const frame = plotView.frame.bbox;
  const wide = Math.max(1, frame.width / frame.height);
  const high = Math.max(1, frame.height / frame.width);
  const range = (middle, reach) => ({ start: middle - reach, end: middle + reach });
  plot.x_range.setv(range(across, half * wide));
  plot.y_range.setv(range(up, half * high));
}

// ---- Export ---------------------------------------------------------------------------------------------------------

// Spreadsheets take a cell that begins so for a formula: a path gets ./ before it, which is the same file.
const formula = /^[=+\-@\t\r]/;
const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

function csvOf(found) {
  const exact = (column, image) => (column.numbers ? (Number.isNaN(column.numbers[image]) ? "" : String(column.numbers[image])) : valueOf(column, image));
  const guarded = (column, text) => (!column.numbers && formula.test(text) ? `'${text}` : text);
  const rows = found.map((image) => {
    const path = data.paths[image];
    return [formula.test(path) ? `./${path}` : path, ...columns.map((column) => guarded(column, exact(column, image)))];
  });
  return [["path", ...columns.map((column) => column.name)], ...rows].map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
}

function exportCsv() {
  const address = URL.createObjectURL(new Blob([csvOf(selection())], { type: "text/csv" }));
  element("a", { href: address, download: "selection.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

// ---- Start ----------------------------------------------------------------------------------------------------------

async function start() {
  const views = await Bokeh.embed.embed_item(data.plot, "plot");
  [plotView] = views.roots ?? [...views];
  plot = plotView.model;
  source = plot.renderers[0].data_source;
  paintPoints();
  columns.forEach((column, number) => $("colour").append(element("option", { value: number }, column.name)));
  $("colour").value = data.first;
  $("colour").closest("label").hidden = !columns.length;
  $("colour").onchange = () => colourBy(columns[$("colour").value]);
  colourBy(columns[data.first]);
  source.selected.properties.indices.change.connect(showSelection);
  source.inspect.connect(() => {
    const [image] = source.inspected.indices;
    if (image !== undefined) showCard(image);
  });
  let waiting;
  $("query").oninput = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => search($("query").value), 150);
  };
  document.onkeydown = (event) => {
    if (event.key !== "/" || event.target.matches?.("input, select")) return;
    event.preventDefault();
    $("query").focus();
  };
  $("zoom").onclick = () => zoomTo(selection());
  $("clear").onclick = () => {
    $("query").value = "";
    select([]);
  };
  $("export").onclick = exportCsv;
  showSelection();
  await new Promise(requestAnimationFrame); // Bokeh has laid it out
  zoomTo(order);
  for (const each of [plot.x_range, plot.y_range]) each.setv({ reset_start: each.start, reset_end: each.end });
}

const ready = start();
