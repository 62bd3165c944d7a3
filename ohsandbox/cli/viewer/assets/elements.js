"use strict";
// Elements of data. Text becomes text nodes and nothing else: no markup is parsed anywhere on this page.
const byId = (id) => document.getElementById(id);

const make = (tag, classes, ...children) => {
  const made = document.createElement(tag);
  if (classes) made.className = classes;
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
};

const LEVELS = { h1: 3, h2: 4, h3: 5, h4: 6, h5: 6, h6: 6 };
const TAGS = new Set(["p", "strong", "em", "s", "ul", "ol", "li", "blockquote", "thead", "tbody", "tr", "th", "td", "hr", "br", "div"]);

const build = (nodes, parent) => {
  for (const node of nodes) {
    if (typeof node === "string") { parent.append(node); continue; }
    const [tag, attributes, ...children] = node;
    if (tag === "a") { parent.append(...link(attributes.href, children)); continue; }
    let made;
    if (LEVELS[tag]) {
      made = make("div", "heading");
      made.setAttribute("role", "heading");
      made.setAttribute("aria-level", LEVELS[tag]);
    } else if (tag === "pre") {
      made = make("pre", "code");
      made.tabIndex = 0;
      if (attributes.lang) made.dataset.lang = attributes.lang;
    } else if (tag === "code") {
      made = make("code");
    } else if (tag === "table") {
      made = make("table", "grid");
      const frame = make("div", "wide", made);
      frame.tabIndex = 0;
      build(children, made);
      parent.append(frame);
      continue;
    } else if (TAGS.has(tag)) {
      made = make(tag);
      if (tag === "ol" && Number.isInteger(attributes.start)) made.start = attributes.start;
    } else {
      continue;
    }
    build(children, made);
    parent.append(made);
  }
  return parent;
};

// A link says where it leads, and tells the other side nothing of this page.
const link = (href, children) => {
  const label = build(children, make("span"));
  if (!href || !/^https?:\/\//i.test(href)) return [label];
  const made = make("a", "away", label);
  made.href = href;
  made.rel = "noopener noreferrer nofollow";
  made.target = "_blank";
  return label.textContent === href ? [made] : [made, make("span", "where", ` (${href})`)];
};

const printed = (text, classes) => {
  const made = make("pre", classes);
  made.tabIndex = 0;
  if (typeof text === "string") {
    if (/^(diff --git |--- .*\n\+\+\+ |@@ -)/m.test(text)) patch(text, made);
    else made.append(text);
    return made;
  }
  for (const [style, piece] of text) made.append(style ? make("span", style, piece) : piece);
  return made;
};

const patch = (text, parent) => {
  for (const line of text.split(/(?<=\n)/)) {
    const kind = /^(\+\+\+ |--- |diff |index )/.test(line) ? "bold" : { "+": "added", "-": "removed", "@": "c-cyan" }[line[0]];
    parent.append(kind ? make("span", kind, line) : line);
  }
};

// Fields, a checklist: what a text would say worse.
const LINE_SIGNS = { done: "☑ ", active: "▶ ", todo: "☐ " };
const linesOf = (lines) => {
  const made = make("div", "lines");
  for (const [kind, text] of lines) made.append(make("div", `line-${kind || "text"}`, (LINE_SIGNS[kind] ?? "") + text));
  return made;
};

const picture = (url) => {
  if (!url) return make("p", "note", "(an image that is not shown: not PNG, JPEG, GIF, WebP or BMP, or too much for one page)");
  const made = make("img");
  made.src = url;
  made.alt = "An image that the tool returned";
  made.loading = "lazy";
  return made;
};

// --- differences ---
const isWide = matchMedia("(min-width: 900px)");

const difference = (found, path = found.path) => {
  const head = make("p", "difference-head", make("bdi", "", path), make("span", "added", ` +${found.added}`), make("span", "removed", ` −${found.removed}`));
  const place = make("div", "wide");
  place.tabIndex = 0;
  const draw = () => place.replaceChildren(isWide.matches ? besides(found.rows) : unified(found.rows));
  draw();
  const made = make("div", "difference", head, place);
  made.redraw = draw;
  if (found.left_out) made.append(make("p", "note", `${found.left_out} more lines are not shown.`));
  return made;
};
isWide.addEventListener("change", () => {
  for (const one of document.querySelectorAll(".difference")) one.redraw();
});

const cell = (kind, text, other) => {
  const made = make("td", kind);
  if (text === null) return made;
  if (other === null || other === undefined || kind === "same") { made.append(text); return made; }
  let first = 0, last = 0;  // what both have at their beginnings and ends
  const most = Math.min(text.length, other.length);
  while (first < most && text[first] === other[first]) first++;
  while (last < most - first && text[text.length - 1 - last] === other[other.length - 1 - last]) last++;
  if (first + last < most / 3) { made.append(text); return made; }
  made.append(text.slice(0, first), make("span", "changed", text.slice(first, text.length - last)), text.slice(text.length - last));
  return made;
};

const number = (value) => make("td", "line-number", value === null ? "" : String(value));
const gap = (columns, text) => {
  const made = make("td", "gap", text);
  made.colSpan = columns;
  return make("tr", "", made);
};

const besides = (rows) => {
  const body = make("tbody");
  for (const row of rows) {
    if (row.length < 4) { body.append(gap(4, row[0])); continue; }
    const [oldNumber, oldText, newNumber, newText] = row;
    const same = oldText === newText;
    body.append(make("tr", "", number(oldNumber), cell(same ? "same" : oldText === null ? "none" : "removed", oldText, newText),
      number(newNumber), cell(same ? "same" : newText === null ? "none" : "added", newText, oldText)));
  }
  return make("table", "sides", body);
};

const unified = (rows) => {
  const body = make("tbody");
  let later = [];
  const flush = () => { body.append(...later); later = []; };
  for (const row of rows) {
    const [oldNumber, oldText, newNumber, newText] = row;
    if (row.length < 4 || oldText === newText) {
      flush();
      body.append(row.length < 4 ? gap(2, row[0]) : make("tr", "", number(newNumber), cell("same", newText)));
      continue;
    }
    if (oldText !== null) body.append(make("tr", "", number(oldNumber), cell("removed", oldText, newText)));
    if (newText !== null) later.push(make("tr", "", number(newNumber), cell("added", newText, oldText)));
  }
  flush();
  return make("table", "unified", body);
};

// --- quantities ---
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const calendar = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const duration = (ms) => {
  const s = ms / 1000;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.round((s % 86400) / 3600)} h`;
};
const dollars = (usd) => `$${usd.toFixed(usd < 1 ? 4 : 2)}`;
const count = (amount, unit) => `${amount.toLocaleString("en")} ${unit}${amount === 1 ? "" : "s"}`;
