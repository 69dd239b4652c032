// The atlas at work: searches, sorts and shows clusters a page at a time. All text enters the page as text, never as HTML.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const K = data.sizes.length; // cards: clusters, and noise where there is any
const noise = data.noise; // the number of its card, the last, or null
const clusters = noise === null ? K : noise;
const PER_PAGE = 48;
const MOSAIC = 6; // pictures on a card
const MOSAICS = [1, 2, 4, 6]; // numbers of cells that fill it
const MEMBERS = 400; // file names listed in one cluster
const clustered = data.images - (noise === null ? 0 : data.sizes[noise]);
const even = clustered / clusters;
const twins = new Set(data.twins);
const $ = (id) => document.getElementById(id);
const number = (value, digits = 0) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const label = (index) => data.labels[index];
const purity = (k) => (data.top && data.sizes[k] ? data.top[k][0][1] / data.sizes[k] : null);
const named = (k) => (k === noise ? "Noise" : `Cluster ${k}`);
const title = (k) => (data.top && data.sizes[k] && k !== noise ? label(data.top[k][0][0]) : named(k));

function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "class") made.className = value;
    else if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function picture(image, alt = "", without = "no picture") {
  const found = data.pictures[image];
  return found
    ? element("img", { src: `data:image/jpeg;base64,${found}`, alt, decoding: "async" })
    : element("i", {}, without);
}

// ---- What is shown: query, filter and order -------------------------------------------------------------------------

const byLabel = (a, b) => title(a).localeCompare(title(b), "en", { numeric: true }) || a - b;
const filled = (key) => (a, b) => (data.sizes[b] > 0) - (data.sizes[a] > 0) || key(a, b) || a - b;
const ORDERS = {
  largest: ["Largest first", (a, b) => data.sizes[b] - data.sizes[a] || a - b],
  smallest: ["Smallest first", filled((a, b) => data.sizes[a] - data.sizes[b])],
  ...(data.top && {
    pure: ["Purest first", filled((a, b) => purity(b) - purity(a) || data.sizes[b] - data.sizes[a])],
    mixed: ["Most mixed first", filled((a, b) => purity(a) - purity(b) || data.sizes[b] - data.sizes[a])],
    label: ["Label, A to Z", filled(byLabel)],
  }),
  clear: ["Widest margin first", filled((a, b) => data.margin[b] - data.margin[a])],
  unclear: ["Narrowest margin first", filled((a, b) => data.margin[a] - data.margin[b])],
  tight: ["Closest to centroid first", filled((a, b) => data.similarity[b] - data.similarity[a])],
  number: ["Cluster number", (a, b) => a - b],
};
const inOrder = (order) => (a, b) => (a === noise) - (b === noise) || order(a, b); // noise is always last
const FILTERS = {
  all: ["All", () => true],
  filled: ["Not empty", (k) => data.sizes[k] > 0],
  empty: ["Empty", (k) => data.sizes[k] === 0],
  twins: ["Near duplicates", (k) => twins.has(k)],
};
const everything = Array.from({ length: K }, (_, k) => k);
let shown = [];
let hits = new Map(); // cluster -> how many of its file names match
let current = 0;

function matches(query) {
  hits = new Map();
  if (!query) return null;
  const found = new Set();
  const asked = /^#?(\d+)$/.exec(query);
  if (asked && Number(asked[1]) < clusters) found.add(Number(asked[1]));
  if (data.top) {
    const wanted = new Set(data.labels.flatMap((name, index) => (name.toLowerCase().includes(query) ? [index] : [])));
    if (wanted.size) for (const k of everything) if (data.top[k].some(([index]) => wanted.has(index))) found.add(k);
  }
  data.names.forEach((name, image) => {
    if (!name.toLowerCase().includes(query)) return;
    const k = data.cluster[image];
    found.add(k);
    hits.set(k, (hits.get(k) ?? 0) + 1);
  });
  return found;
}

function refresh() {
  const query = $("query").value.trim().toLowerCase();
  const found = matches(query);
  const keep = FILTERS[$("filter").value][1];
  shown = everything.filter((k) => keep(k) && (!found || found.has(k))).sort(inOrder(ORDERS[$("sort").value][1]));
  current = 0;
  draw();
}

function draw() {
  const pages = Math.max(1, Math.ceil(shown.length / PER_PAGE));
  const start = current * PER_PAGE;
  $("cards").replaceChildren(...shown.slice(start, start + PER_PAGE).map((k) => element("li", {}, card(k))));
  $("count").textContent = shown.length
    ? `${number(shown.filter((k) => k !== noise).length)} of ${number(clusters)} clusters`
    : "No cluster matches. Clear the search, or show all.";
  $("page").textContent = `Page ${number(current + 1)} of ${number(pages)}`;
  $("pages").hidden = pages === 1;
  $("previous").disabled = current === 0;
  $("next").disabled = current === pages - 1;
}

function line(left, right = "") {
  return element("div", { class: "line" }, element("span", {}, left), element("span", {}, right));
}

function meter(share, words = "") {
  const fill = element("b");
  fill.style.width = `${Math.min(100, 100 * share)}%`;
  return element("div", { class: "meter", title: words }, fill);
}

function card(k) {
  const size = data.sizes[k];
  const pure = purity(k);
  const first = data.nearest[k].slice(0, MOSAIC);
  const cells = MOSAICS.find((count) => count >= first.length);
  const mosaic = first.length
    ? element("div", { class: `mosaic m${cells}` }, ...first.map((image) => picture(image, "", "")))
    : element("div", { class: "mosaic none" }, size ? "no picture" : "empty");
  const images = `${number(size)} image${size === 1 ? "" : "s"}`;
  const lines =
    k === noise
      ? [line(images, `${number((100 * size) / data.images, 1)} %`), meter(size / data.images, "share of all images")]
      : [
          line(
            `${data.top && size ? `#${k} · ` : ""}${images}`,
            pure === null ? `${number(size / even, 2)} ×` : `${number(100 * pure)} %`,
          ),
          meter(size / (size + even), `${number(size / even, 2)} × an even share; half is an even share`),
        ];
  const about = element("div", { class: "about" }, element("strong", { class: "two" }, title(k)), ...lines);
  if (twins.has(k)) about.append(element("div", { class: "line mark" }, element("span", {}, "near duplicate")));
  if (hits.get(k)) about.append(line(`${number(hits.get(k))} matching file name${hits.get(k) === 1 ? "" : "s"}`));
  const words = [named(k), images];
  if (pure !== null && k !== noise) words.push(`${number(100 * pure)} % ${title(k)}`);
  return element("a", { class: "card", href: `#c${k}`, "aria-label": words.join(", ") }, mosaic, about);
}

// ---- One cluster ----------------------------------------------------------------------------------------------------

function shot(image, caption) {
  const name = data.names[image];
  return element("figure", { title: name }, picture(image, name), element("figcaption", {}, ...caption));
}

function link(image) {
  const other = data.second[image];
  return element("a", { href: `#c${other}`, title: `Cluster ${other}: ${title(other)}` }, `nearly #${other}`);
}

function section(name, body) {
  return [element("h3", {}, name), body];
}

function body(k) {
  const parts = [];
  if (data.nearest[k].length) {
    const near = (image) => (k === noise ? [link(image)] : []);
    const shots = data.nearest[k].map((image) => shot(image, [...near(image), `z ${number(data.z[image], 3)}`]));
    parts.push(...section(k === noise ? "Nearest to a centroid" : "Nearest to the centroid", element("div", { class: "shots" }, ...shots)));
  }
  if (k !== noise && data.border[k].length) {
    const shots = data.border[k].map((image) =>
      shot(image, [link(image), element("span", {}, `margin ${number(data.gap[image], 4)}`)]),
    );
    parts.push(...section("At the border", element("div", { class: "shots" }, ...shots)));
  }
  if (data.top && data.sizes[k]) {
    const rows = data.top[k].flatMap(([index, count]) => [
      element("span", { class: "name" }, label(index)),
      meter(count / data.sizes[k]),
      element("span", {}, number(count)),
    ]);
    parts.push(...section("Labels", element("div", { class: "shares" }, ...rows)));
  }
  const near = data.near[k].map((other, turn) => {
    const cosine = data.cosines[k][turn];
    const mark = cosine > data.threshold ? ", near duplicate" : "";
    return element(
      "a",
      { href: `#c${other}`, title: `Cluster ${other}, cosine ${number(cosine, 3)}${mark}` },
      picture(data.nearest[other][0], "", data.sizes[other] ? "no picture" : "empty"),
      element("div", { class: "caption two" }, title(other)),
      element("div", { class: "caption" }, `${title(other) === `Cluster ${other}` ? "" : `#${other}, `}cosine ${number(cosine, 3)}`),
    );
  });
  if (k !== noise) parts.push(...section("Neighbouring centroids", element("div", { class: "shots", id: "near" }, ...near)));
  if (data.sizes[k]) parts.push(members(k));
  return parts;
}

function members(k) {
  const query = $("query").value.trim().toLowerCase();
  const all = data.names.flatMap((name, image) => (data.cluster[image] === k ? [image] : []));
  const matching = (image) => query && data.names[image].toLowerCase().includes(query);
  all.sort((a, b) => !!matching(b) - !!matching(a) || data.z[b] - data.z[a]);
  const items = all
    .slice(0, MEMBERS)
    .map((image) => element("li", {}, matching(image) ? element("mark", {}, data.names[image]) : data.names[image]));
  const left = data.sizes[k] - items.length;
  if (left) items.push(element("li", {}, `and ${number(left)} more in assignments.csv`));
  const found = element("details", { open: all.some(matching) }, element("summary", {}, "File names"));
  found.append(element("ul", { class: "names" }, ...items));
  return found;
}

function open(k) {
  const size = data.sizes[k];
  const share = `${number((100 * size) / data.images, 1)} % of all, in no cluster`;
  const facts = [`${number(size)} images`, k === noise ? share : `${number(size / even, 2)} × an even share`];
  if (data.top && k !== noise) facts.unshift(`Cluster ${k}`);
  if (size && data.top && k !== noise) facts.push(`purity ${number(100 * purity(k))} %`);
  if (size && k !== noise) facts.push(`mean z ${number(data.similarity[k], 3)}`, `mean margin ${number(data.margin[k], 3)}`);
  if (twins.has(k)) facts.push("near duplicate");
  $("detail-title").textContent = title(k);
  $("detail-facts").textContent = facts.join(" · ");
  $("detail-body").replaceChildren(...body(k));
  const place = shown.indexOf(k);
  $("back").disabled = place <= 0;
  $("forth").disabled = place < 0 || place === shown.length - 1;
  if (!$("detail").open) $("detail").showModal();
  $("detail-body").scrollTop = 0;
  $("detail-body").focus();
}

function route() {
  const asked = /^#c(\d+)$/.exec(location.hash);
  if (asked && Number(asked[1]) < K) open(Number(asked[1]));
  else if ($("detail").open) $("detail").close();
}

function step(by) {
  const place = shown.indexOf(Number(location.hash.slice(2)));
  const next = shown[place + by];
  if (place < 0 || next === undefined) return;
  current = Math.floor((place + by) / PER_PAGE);
  location.replace(`#c${next}`);
}

function close() {
  const k = location.hash.slice(2);
  history.pushState(null, "", "#all"); // no such place: the page stays where it is
  draw();
  document.querySelector(`a.card[href="#c${Number(k)}"]`)?.focus();
}

// ---- The page -------------------------------------------------------------------------------------------------------

function masthead() {
  const of = data.figures;
  $("subtitle").textContent = `${data.checkpoint} on ${data.data}`;
  document.title = `Cluster atlas: ${data.checkpoint}`;
  const beside = (text) => element("small", {}, ` ${text}`);
  const shownFigures = [
    ["Clusters", number(clusters)],
    ["Images", number(data.images), ...(noise === null ? [] : [`${number(of.noise_percent, 1)} % noise`])],
    ["Empty before balancing", `${number(of.empty_percent_unbalanced, 1)} %`, `${number(of.empty_by_chance_percent, 1)} % by chance`],
    ["Largest", `${number(of.largest_relative_size, 1)} ×`, `${number(of.largest_images)} images`],
    ["Effective number", number(of.effective_clusters)],
    ["Duplicate pairs", number(of.duplicate_pairs), `cosine above ${data.threshold}`],
  ];
  if (data.balanced === false) shownFigures.splice(2, 1);
  if (data.top) {
    shownFigures.push(
      ["Purity", `${number(of.purity_percent, 1)} %`, `${number(of.purity_by_chance_percent, 1)} % by chance`],
      ["NMI", `${number(of.nmi_percent, 1)} %`, `${number(of.nmi_by_chance_percent, 1)} % by chance`],
    );
  }
  $("figures").append(
    ...shownFigures.map(([name, value, more]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value, ...(more ? [beside(more)] : []))),
    ),
  );
  $("notes").append(...data.notes.map((text) => element("p", {}, `${text[0].toUpperCase()}${text.slice(1)}.`)));
}

function curve() {
  const NS = "http://www.w3.org/2000/svg";
  const sorted = data.sizes.slice(0, clusters).sort((a, b) => b - a);
  const points = Math.min(clusters, 500);
  // A log scale, from half an image to the largest cluster or twice an even share.
  const [low, high] = [Math.log(0.5), Math.log(Math.max(2 * even, sorted[0], 1))];
  const height = (size) => 100 - (100 * (Math.log(Math.max(size, 0.5)) - low)) / (high - low);
  let path = "M0,100";
  for (let i = 0; i < points; i += 1) {
    const y = height(sorted[Math.floor((i * clusters) / points)]).toFixed(2);
    path += `L${((100 * i) / points).toFixed(2)},${y}L${((100 * (i + 1)) / points).toFixed(2)},${y}`;
  }
  const svg = document.createElementNS(NS, "svg");
  const shape = document.createElementNS(NS, "path");
  const share = document.createElementNS(NS, "line");
  for (const [made, values] of [
    [svg, { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" }],
    [shape, { d: `${path}L100,100Z` }],
    [share, { x1: 0, x2: 100, y1: height(even), y2: height(even) }],
  ]) {
    for (const [name, value] of Object.entries(values)) made.setAttribute(name, value);
  }
  svg.append(shape, share);
  $("curve").append(svg);
}

function choices(select, from) {
  select.append(...Object.entries(from).map(([value, [text]]) => element("option", { value }, text)));
}

masthead();
curve();
choices($("sort"), ORDERS);
for (const entry of Object.values(FILTERS)) entry[0] += ` (${number(everything.filter((k) => k !== noise && entry[1](k)).length)})`;
choices($("filter"), FILTERS);
let waiting;
$("query").addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(refresh, K + data.names.length > 20000 ? 200 : 0);
});
for (const name of ["sort", "filter"]) $(name).addEventListener("change", refresh);
for (const [name, by] of [["previous", -1], ["next", 1]]) {
  $(name).addEventListener("click", () => {
    current += by;
    draw();
    document.querySelector(".toolbar").scrollIntoView();
    document.querySelector("a.card").focus({ preventScroll: true });
  });
}
$("back").addEventListener("click", () => step(-1));
$("forth").addEventListener("click", () => step(1));
$("close").addEventListener("click", () => $("detail").close());
$("detail").addEventListener("close", () => /^#c\d+$/.test(location.hash) && close());
$("detail").addEventListener("click", (event) => event.target === $("detail") && $("detail").close());
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if ($("detail").open) {
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
  } else if (event.key === "/" && !["INPUT", "SELECT"].includes(document.activeElement.tagName)) {
    event.preventDefault();
    $("query").focus();
  }
});
addEventListener("hashchange", route);
refresh();
route();
