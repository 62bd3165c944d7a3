// An entry of the log: an event, with its result where it is a call.
const TROUBLE = new Set(["error", "retry", "notice", "blocked"]);
const DECISIONS = new Set(["confirmation", "approval", "approval_revoked"]);

const blockOf = (entry, kind) => entry.blocks.find((block) => block.is === kind);
const isTalk = (entry) => entry.type === "user_message" || entry.type === "assistant_message" || entry.blocks.some((block) => block.is === "message" || Array.isArray(block.text));
const resultOf = (item) => item.result && blockOf(item.result, "result");
const hasFailed = (item) => {
  const result = resultOf(item);
  return result ? !result.ok && !result.declined : false;
};
const differenceOf = (item) => resultOf(item)?.difference ?? item.entry.difference;

const FILTERS = {
  all: () => true,
  talk: (item) => isTalk(item.entry),
  calls: (item) => Boolean(blockOf(item.entry, "call")),
  changes: (item) => Boolean((differenceOf(item) && !resultOf(item)?.declined) || item.entry.type === "checkpoint" || item.entry.type === "changes"),
  trouble: (item) => hasFailed(item) || (TROUBLE.has(item.entry.type) && !item.entry.agent),
  decisions: (item) => DECISIONS.has(item.entry.type) || Boolean(item.entry.held) || item.entry.blocks.some((block) => block.kind === "allowed"),
};

const textsOf = (value, take) => {
  if (typeof value === "string") take(value);
  else if (Array.isArray(value)) value.forEach((one) => textsOf(one, take));
  else if (value && typeof value === "object") for (const [name, one] of Object.entries(value)) if (name !== "images" && name !== "is" && name !== "difference" && name !== "word") textsOf(one, take);
};
const searchable = (item) => {
  if (item.found === undefined) {
    const texts = [];
    for (const entry of [item.entry, item.result]) {
      if (!entry) continue;
      for (const name of ["blocks", "arguments", "held", "agent"]) textsOf(entry[name], (text) => texts.push(text));
    }
    const changes = [differenceOf(item), ...(blockOf(item.entry, "changes")?.files.map((file) => file.difference) ?? [])];
    for (const row of changes.flatMap((change) => change?.rows ?? [])) texts.push(row[1] ?? "", row[3] === row[1] ? "" : row[3] ?? "");
    item.found = texts.join("\n").toLowerCase();
  }
  return item.found;
};

const facts = (item) => {
  const { entry } = item, parts = [], result = resultOf(item);
  if (result?.seconds != null) parts.push(duration(result.seconds * 1000));
  if (entry.tokens?.some(Boolean)) parts.push(`${(entry.tokens[0] + entry.tokens[1]).toLocaleString("en")} tokens`);
  if (entry.cost) parts.push(dollars(entry.cost));
  return parts.join(" · ");
};

const stateOf = (item) => {
  const result = resultOf(item);
  if (result) return result.declined ? "refused" : result.ok ? "ok" : "bad";
  return item.result ? "ok" : "open";
};
const SIGNS = { ok: "✓", bad: "✗", open: "…", refused: "⊘" };
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
  if (block.is === "result") return result(block);
  if (block.is === "changes") return [block.files.length ? fold(item, "changes", make("span", "says", block.text), () => [...block.files.map(changedFile), ...notesOf(block)]) : make("p", "says", block.text), ...(block.files.length ? [] : notesOf(block))];
  const line = make("p", block.warns ? "says warns" : `says ${block.kind}`, block.text);
  return block.details ? [fold(item, "details", make("span", "says", block.text), () => [printed(block.details, "output")])] : [line];
};

const notesOf = (block) => block.notes.map((text) => make("p", "note", text));
const changedFile = (file) => {
  const title = make("span", "command", make("span", "sign", file.word === "changed" ? "~" : file.word === "new" ? "+" : "−"), make("bdi", "", file.path));
  const found = file.difference;
  if (!found) return make("p", "says", title, make("span", "note", ` ${file.word}: ${file.note}`));
  const amounts = make("span", "name", make("span", "added", `+${found.added}`), make("span", "removed", ` −${found.removed}`));
  return fold({}, "file", title, () => [difference(found, file.path)], amounts, make("span", "note", file.word));
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
  const ending = resultOf(item)?.ending;
  const mark = make("span", `mark ${state}`, SIGNS[state], ending ? ` ${ending}` : "");
  mark.append(make("span", "unseen", SAID[state]));
  return fold(item, "call", title, () => [
    ...(lines.length > 1 || block.text.length > 100 ? [printed(block.text, "output command-text")] : []),
    ...(item.entry.arguments ? [given(item.entry.arguments)] : []),
    ...(block.lines.length ? [linesOf(block.lines)] : []),
    ...(differenceOf(item) ? [difference(differenceOf(item), item.entry.difference?.path)] : []),
    ...(item.result ? item.result.blocks.flatMap((one) => shownBlock(one, { entry: item.result })) : []),
  ], make("span", "name", block.name), mark);
};

const given = (rows) => {
  const list = make("dl", "given");
  for (const [name, text] of rows) list.append(make("dt", "", name), make("dd", "", text.includes("\n") ? printed(text, "output") : make("code", "", text)));
  return list;
};

const result = (block) => {
  const parts = [];
  const isEmpty = typeof block.text === "string" ? !block.text.trim() : !block.text.length;
  if (block.lines.length) parts.push(linesOf(block.lines));
  else if (!isEmpty && !block.difference) parts.push(printed(block.text, block.ok || block.declined ? "output" : "output bad"));
  else if (!block.images.length && !block.difference) parts.push(make("p", "note", block.declined ? "It did not run." : "No output."));
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
