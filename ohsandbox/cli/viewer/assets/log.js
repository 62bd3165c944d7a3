// The log: sections that are filled when they come near the window, so that ten thousand events cost what is seen.
const SECTION = 25;
const ENTRY_PX = 46;  // about what a folded call takes
const conversations = new Map();
for (const one of document.querySelectorAll("script.events")) {
  conversations.set(one.dataset.name, JSON.parse(one.textContent));
  one.remove();
}

class Log {
  constructor(entries, prefix) {
    this.prefix = prefix ? `${prefix}/` : "";
    this.items = [];
    this.byNumber = new Map();
    this.place = null;
    this.sections = [];
    this.filter = FILTERS.all;
    for (const entry of entries) this.take(entry);
    this.near = new IntersectionObserver((seen) => {
      for (const one of seen) if (one.isIntersecting) this.fill(one.target);
    }, { rootMargin: "1200px 0px" });
  }

  // Add an entry; returns the item that it made, or changed.
  take(entry) {
    const call = entry.of === undefined ? undefined : this.byNumber.get(entry.of);
    if (call) {
      call.result = entry;
      call.found = undefined;
      this.byNumber.set(entry.n, call);
      return call;
    }
    const item = { entry, log: this, id: `${this.prefix}e${entry.n}`, at: this.items.length };
    if (entry.agent && conversations.has(this.prefix + entry.agent)) {
      item.inner = new Log(conversations.get(this.prefix + entry.agent), this.prefix + entry.agent);
      item.inner.outer = item;
    }
    if (blockOf(entry, "note")?.kind === "prompt") item.open = false;
    this.byNumber.set(entry.n, item);
    this.items.push(item);
    return item;
  }

  attach(place) {
    this.place = place;
    this.rebuild();
  }

  rebuild() {
    this.near.disconnect();
    this.sections = [];
    const shown = this.items.filter(this.filter);
    this.place.replaceChildren();
    for (const item of this.items) item.section = undefined;
    for (let at = 0; at < shown.length; at += SECTION) this.addSection(shown.slice(at, at + SECTION));
  }

  addSection(items) {
    const section = make("section", "events");
    section.items = items;
    for (const item of items) item.section = section;
    section.style.minHeight = `${items.length * ENTRY_PX}px`;
    this.place.append(section);
    this.sections.push(section);
    this.near.observe(section);
  }

  fill(section) {
    if (section.isFull) return;
    section.isFull = true;
    this.near.unobserve(section);
    section.append(...section.items.map(makeEntry));
    section.style.minHeight = "";
  }

  // In a live page: show an item that is new or has changed.
  show(item) {
    if (!this.place || !this.filter(item)) return;
    if (item.section) {
      if (item.section.isFull) byId(item.id)?.replaceWith(makeEntry(item));
      return;
    }
    const last = this.sections.at(-1);
    if (!last || last.items.length >= SECTION) { this.addSection([item]); return; }
    last.items.push(item);
    item.section = last;
    if (last.isFull) last.append(makeEntry(item));
  }

  *everything() {
    for (const item of this.items) {
      yield item;
      if (item.inner) yield* item.inner.everything();
    }
  }
}

const log = new Log(conversations.get("") ?? [], "");
let current = null;
let isUnfolded = false;

// --- moving ---
const elementOf = (item) => {
  const outer = item.log.outer;
  if (outer) elementOf(outer)?.querySelector(":scope > .agent")?.show(true);
  if (!item.section && item.log.place) { byId("show").value = "all"; setFilter(); }
  if (item.section) item.log.fill(item.section);
  return byId(item.id);
};

const go = (item, { open = false, focus = true, block = "center" } = {}) => {
  const article = elementOf(item);
  if (!article) return;
  if (current) byId(current.id)?.classList.remove("current");
  current = item;
  article.classList.add("current");
  if (open) article.querySelectorAll(":scope > .folded").forEach((one) => one.show(true));
  const scroll = () => article.scrollIntoView({ block });
  scroll();
  requestAnimationFrame(() => { scroll(); requestAnimationFrame(scroll); });  // what was filled above has its own height now
  if (focus) article.focus({ preventScroll: true });
};

const visible = () => log.items.filter((item) => item.section);
const step = (by, fits = () => true) => {
  const items = visible();
  let at = items.indexOf(current?.log === log ? current : current?.log.outer);
  if (at < 0) at = by > 0 ? -1 : items.length;
  do at += by; while (items[at] && !fits(items[at]));
  if (items[at]) go(items[at], { block: "nearest" });
};

const findByAddress = () => {
  const wanted = decodeURIComponent(location.hash.slice(1));
  const found = /^((?:[^/]+\/)*)e(\d+(?:\.\d+)?)$/.exec(wanted);
  if (!found) return;
  let place = log;
  for (const name of found[1].split("/").filter(Boolean)) place = place?.items.find((item) => item.entry.agent === name)?.inner;
  const item = place?.byNumber.get(Number(found[2]));
  if (item) go(item, { open: true });
};

// --- search ---
const search = byId("search"), found = byId("found");
let matches = [], matchAt = -1;

const occurrences = (text, wanted) => {
  let times = 0;
  for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + wanted.length)) times++;
  return times;
};

const find = () => {
  const wanted = search.value.trim().toLowerCase();
  matches = [];
  matchAt = -1;
  let times = 0;
  if (wanted) {
    for (const item of log.everything()) {
      const here = occurrences(searchable(item), wanted);
      if (here) matches.push(item);
      times += here;
    }
  }
  tellMatches(times);
  highlight();
};

let foundTimes = 0;
const tellMatches = (times = foundTimes) => {
  foundTimes = times;
  const at = matchAt >= 0 ? `${matchAt + 1} of ` : "";
  found.textContent = search.value.trim() ? (matches.length ? `${at}${count(matches.length, "event")}, ${count(times, "match").replace("matchs", "matches")}` : "no match") : "";
  byId("previous").disabled = byId("next").disabled = !matches.length;
};

const jump = (by) => {
  if (!matches.length) return;
  if (matchAt < 0 && current) {  // from where the reader is
    const after = matches.findIndex((item) => item.log === current.log && item.entry.n >= current.entry.n);
    matchAt = by > 0 ? Math.max(after, 0) - 1 : after;
  }
  matchAt = (matchAt + by + matches.length) % matches.length;
  go(matches[matchAt], { open: true, focus: document.activeElement !== search });
  tellMatches();
  highlight();
};

// What is found is marked by ranges: no element is made or changed.
const highlight = () => {
  if (!window.Highlight) return;
  const wanted = search.value.trim().toLowerCase(), ranges = [];
  const article = wanted && matchAt >= 0 ? byId(matches[matchAt].id) : null;
  if (article) {
    const walker = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node && ranges.length < 1000; node = walker.nextNode()) {
      const text = node.data.toLowerCase();
      if (text.length !== node.data.length) continue;
      for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + wanted.length)) {
        const range = new Range();
        range.setStart(node, at);
        range.setEnd(node, at + wanted.length);
        ranges.push(range);
      }
    }
    const first = ranges[0]?.getBoundingClientRect();
    if (first && (first.top < 80 || first.bottom > innerHeight - 40)) ranges[0].startContainer.parentElement.scrollIntoView({ block: "center" });
  }
  CSS.highlights.set("found", new Highlight(...ranges));
};

// --- controls ---
function setFilter() {
  log.filter = FILTERS[byId("show").value] ?? FILTERS.all;
  log.rebuild();
}

const unfoldAll = () => {
  isUnfolded = !isUnfolded;
  const button = byId("unfold");
  button.setAttribute("aria-pressed", isUnfolded);
  button.textContent = isUnfolded ? "Fold all" : "Unfold all";
  for (const item of log.items) if (!item.inner) item.open = isUnfolded;
  for (const one of document.querySelectorAll("#log .folded:not(.agent)")) one.show(isUnfolded);
};

const THEMES = ["system", "light", "dark"];
const stored = { get: () => { try { return localStorage.getItem("ohsandbox-theme"); } catch { return null; } }, set: (value) => { try { localStorage.setItem("ohsandbox-theme", value); } catch { /* a file may have no storage */ } } };
const setTheme = (name) => {
  document.documentElement.dataset.theme = name;
  byId("theme-name").textContent = `Theme: ${name}`;
};
const nextTheme = () => {
  const name = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  setTheme(name);
  stored.set(name);
};

const tellTotals = () => {
  let calls = 0, tokens = 0, cost = 0, failed = 0;
  const responses = new Set();
  for (const { entry, ...item } of log.items) {
    if (blockOf(entry, "call")) calls++;
    if (item.result && hasFailed(item)) failed++;
    if (entry.response) responses.add(entry.response);
    tokens += entry.tokens ? entry.tokens[0] + entry.tokens[1] : 0;
    cost += entry.cost ?? 0;
  }
  const parts = [count(responses.size, "step"), count(calls, "call"), ...(failed ? [`${failed} failed`] : [])];
  if (tokens) parts.push(count(tokens, "token"));
  if (cost) parts.push(dollars(cost));
  byId("totals").textContent = parts.join(" · ");
};

const KEYS = {
  j: () => step(1), k: () => step(-1),
  J: () => step(1, (item) => item.entry.type === "user_message"), K: () => step(-1, (item) => item.entry.type === "user_message"),
  o: () => { if (current) byId(current.id)?.querySelectorAll(":scope > .folded").forEach((one) => one.show(!one.isOpen())); },
  u: unfoldAll, t: nextTheme,
  g: () => { const items = visible(); if (items.length) go(items[0]); }, G: () => { const items = visible(); if (items.length) go(items.at(-1), { block: "end" }); },
  "/": () => { search.focus(); search.select(); },
  n: () => jump(1), N: () => jump(-1),
  "?": () => byId("help").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const isTyping = event.target.matches?.("input, textarea, select");
  if (isTyping) {
    if (event.key === "Escape") event.target.blur();
    else if (event.key === "Enter" && event.target === search) { event.preventDefault(); jump(event.shiftKey ? -1 : 1); }
    return;
  }
  const act = KEYS[event.key];
  if (act) { event.preventDefault(); act(); }
});

let waiting = 0;
search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(find, 120); });
byId("next").addEventListener("click", () => jump(1));
byId("previous").addEventListener("click", () => jump(-1));
byId("show").addEventListener("change", setFilter);
byId("unfold").addEventListener("click", unfoldAll);
byId("theme").addEventListener("click", nextTheme);
byId("keys").addEventListener("click", () => byId("help").showModal());
addEventListener("hashchange", findByAddress);
addEventListener("beforeprint", () => log.sections.forEach((section) => log.fill(section)));

let drawn = drawTimeline(log.items);
byId("picture").addEventListener("pointermove", (event) => {
  const span = nearest(drawn, event);
  if (!span) return;
  const block = blockOf(span.item.entry, "call");
  const what = typeof block?.text === "string" ? `${block.sign} ${block.text.split("\n")[0].slice(0, 80)}` : span.entry.type.replaceAll("_", " ");
  byId("readout").textContent = `#${span.entry.n} · ${KINDS[span.kind]} ${duration(span.ms)} · ${clock.format(span.entry.t)}${drawn.cost ? ` · ${dollars(span.cost)}` : ""} · ${what}`;
});
byId("picture").addEventListener("pointerleave", () => { byId("readout").textContent = ""; });
byId("picture").addEventListener("click", (event) => { const span = nearest(drawn, event); if (span) go(span.item, { open: true }); });

setTheme(THEMES.includes(stored.get()) ? stored.get() : "system");
tellTotals();
log.attach(byId("log"));
findByAddress();
