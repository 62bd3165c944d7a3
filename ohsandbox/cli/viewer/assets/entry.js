// An entry of the log: an event, with its result where it is a call.
const TROUBLE = new Set(["error", "retry", "notice"]);
const DECISIONS = new Set(["confirmation", "approval", "approval_revoked"]);

const blockOf = (entry, kind) => entry.blocks.find((block) => block.is === kind);
const isTalk = (entry) => entry.type === "user_message" || entry.type === "assistant_message" || entry.blocks.some((block) => block.is === "message" || Array.isArray(block.text));
const isRefused = (item) => item.confirmation?.approved === false;
const hasFailed = (item) => {
  const result = item.result && blockOf(item.result, "result");
  return result ? !result.ok && !isRefused(item) : false;
};

const FILTERS = {
  all: () => true,
  talk: (item) => isTalk(item.entry),
  calls: (item) => Boolean(blockOf(item.entry, "call")),
  changes: (item) => Boolean(item.entry.difference || item.result?.difference || item.entry.type === "checkpoint"),
  trouble: (item) => hasFailed(item) || TROUBLE.has(item.entry.type),
  decisions: (item) => DECISIONS.has(item.entry.type) || Boolean(item.entry.held) || item.entry.blocks.some((block) => block.kind === "allowed"),
};

const textsOf = (value, take) => {
  if (typeof value === "string") take(value);
  else if (Array.isArray(value)) value.forEach((one) => textsOf(one, take));
  else if (value && typeof value === "object") for (const [name, one] of Object.entries(value)) if (name !== "images" && name !== "is") textsOf(one, take);
};
const searchable = (item) => {
  if (item.found === undefined) {
    const texts = [];
    for (const entry of [item.entry, item.result]) {
      if (!entry) continue;
      for (const name of ["blocks", "arguments", "held", "agent"]) textsOf(entry[name], (text) => texts.push(text));
      for (const row of entry.difference?.rows ?? []) texts.push(row[1] ?? "", row[3] === row[1] ? "" : row[3] ?? "");
      if (entry.difference) texts.push(entry.difference.path);
    }
    item.found = texts.join("\n").toLowerCase();
  }
  return item.found;
};

const facts = (item) => {
  const { entry } = item, parts = [];
  // a person's thinking is not the call's time, and what was refused took none
  if (item.result && !isRefused(item)) parts.push(duration(Math.max(0, item.result.t - (item.confirmation ?? entry).t)));
  if (entry.tokens?.some(Boolean)) parts.push(`${(entry.tokens[0] + entry.tokens[1]).toLocaleString("en")} tokens`);
  if (entry.cost) parts.push(dollars(entry.cost));
  return parts.join(" · ");
};

const stateOf = (item) => {
  if (isRefused(item)) return "refused";
  const result = item.result && blockOf(item.result, "result");
  if (result) return result.ok ? "ok" : "bad";
  return item.result ? "ok" : "open";
};
const SIGNS = { ok: "✓", bad: "✗", open: "…", refused: "⊘ refused" };
const SAID = { ok: " done", bad: " failed", open: " no result", refused: "" };

const makeEntry = (item) => {
  const { entry } = item;
  const isMinor = entry.blocks.length === 1 && entry.blocks[0].is === "note" && !entry.blocks[0].details && !entry.agent;
  const article = make("article", `entry type-${entry.type}${isMinor ? " minor" : ""}`);
  article.id = item.id;
  article.tabIndex = -1;
  const at = make("a", "at", `#${entry.n}`);
  at.href = `#${item.id}`;
  at.title = calendar.format(entry.t);
  at.setAttribute("aria-label", `Event ${entry.n}, ${calendar.format(entry.t)}`);
  const meta = make("span", "meta", make("span", "facts", facts(item)), make("time", "", clock.format(entry.t)), at);
  const shown = entry.blocks.flatMap((block) => shownBlock(block, item));
  const who = { user_message: "You", assistant_message: "Agent" }[entry.type];
  if (who) article.append(make("div", "line", make("b", "who", who), meta), ...shown);
  else article.append(meta, ...shown);
  if (entry.agent) article.append(nested(item));
  if (entry.held?.asks) article.append(make("p", "note held", `Asked before it ran; risk ${entry.held.risk.toLowerCase()}${entry.held.why.length ? `: ${entry.held.why.join(" ")}` : ""}`));
  return article;
};

const shownBlock = (block, item) => {
  if (block.is === "message") return block.text.length ? [build(block.text, make("div", `message ${block.kind}`))] : [];
  if (block.is === "call") return Array.isArray(block.text) ? [build(block.text, make("div", "message answer"))] : [call(block, item)];
  if (block.is === "result") return result(block, item.entry);
  const line = make("p", block.warns ? "says warns" : `says ${block.kind}`, block.text);
  return block.details ? [fold(item, "details", make("span", "says", block.text), () => [printed(block.details, "output")])] : [line];
};

const fold = (item, key, title, fill, ...after) => {
  const body = make("div", "body");
  const button = make("button", "fold", make("span", "arrow", "▸"), title, ...after);
  button.type = "button";
  const show = (open) => {
    button.setAttribute("aria-expanded", open);
    body.hidden = !open;
    if (open && !body.childNodes.length) body.append(...fill());
    item.open = open;
  };
  const made = make("div", `folded ${key}`, button, body);
  made.show = show;
  made.isOpen = () => !body.hidden;
  button.addEventListener("click", () => show(body.hidden));
  show(Boolean(item.open));
  return made;
};

const call = (block, item) => {
  const lines = block.text.split("\n");
  const state = stateOf(item);
  const title = make("span", "command", make("span", "sign", block.sign), make("code", "", lines[0]));
  if (lines.length > 1) title.append(make("span", "note", ` ${count(lines.length - 1, "more line")}`));
  const ending = item.result && blockOf(item.result, "result")?.ending;
  const mark = make("span", `mark ${state}`, SIGNS[state], ending && state !== "refused" ? ` ${ending}` : "");
  mark.append(make("span", "unseen", SAID[state]));
  return fold(item, "call", title, () => [
    ...(lines.length > 1 || block.text.length > 100 ? [printed(block.text, "output command-text")] : []),
    ...(item.entry.arguments ? [given(item.entry.arguments)] : []),
    ...(item.entry.difference ? [difference(item.entry.difference)] : []),
    ...(item.result ? item.result.blocks.flatMap((one) => shownBlock(one, { entry: item.result })) : []),
  ], make("span", "name", block.name), mark);
};

const given = (rows) => {
  const list = make("dl", "given");
  for (const [name, text] of rows) list.append(make("dt", "", name), make("dd", "", text.includes("\n") ? printed(text, "output") : make("code", "", text)));
  return list;
};

const result = (block, entry) => {
  const parts = [];
  const isEmpty = typeof block.text === "string" ? !block.text.trim() : !block.text.length;
  if (entry.difference) parts.push(difference(entry.difference));
  else if (!isEmpty) parts.push(printed(block.text, block.ok ? "output" : "output bad"));
  else if (!block.images.length) parts.push(make("p", "note", "No output."));
  return [...parts, ...block.images.map(picture)];
};

const nested = (item) => {
  const events = item.inner?.items.length;
  const title = make("span", "says", `What ${item.entry.agent} did`, events ? `: ${count(events, "event")}` : "");
  return fold(item, "agent", title, () => {
    if (!item.inner) return [make("p", "note", "Its log is not here.")];
    const place = make("div", "nested");
    item.inner.attach(place);
    return [place];
  });
};
