// The picture: what each moment was spent on, and what it had cost by then.
const SVG = "http://www.w3.org/2000/svg";
const KINDS = { model: "model", tool: "tools", failed: "failed calls", person: "waiting for you", other: "else" };
const BREAK_SHARE = 0.02;  // of the working time, at most: a night between two turns is no part of the work
const MAX_BARS = 1500;

const svg = (tag, attributes) => {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};

const spans = (items) => {
  const entries = items.filter((item) => item.entry.type !== "blocked" && item.entry.type !== "network").flatMap((item) => (item.result ? [[item.entry, item], [item.result, item]] : [[item.entry, item]]));
  entries.sort((a, b) => a[0].n - b[0].n);
  let before = null, cost = 0, isHeld = false;
  return entries.flatMap(([entry, item]) => {
    const ms = before === null ? 0 : Math.max(0, entry.t - before);
    before = entry.t;
    cost += entry.cost ?? 0;
    const result = blockOf(entry, "result");
    let kind = "other";
    if (result) kind = hasFailed(item) ? "failed" : "tool";
    else if (entry.type === "user_message" || DECISIONS.has(entry.type) || isHeld) kind = "person";
    else if (entry.type === "assistant_message" || entry.type === "tool_call" || entry.type === "retry") kind = "model";
    isHeld = Boolean(entry.held) || (isHeld && !DECISIONS.has(entry.type));
    return [{ ms, kind, cost, entry, item }];
  });
};

const drawTimeline = (items) => {
  const all = spans(items);
  const total = { model: 0, tool: 0, failed: 0, person: 0, other: 0 };
  for (const span of all) total[span.kind] += span.ms;
  const working = total.model + total.tool + total.failed || 1;
  const most = working * BREAK_SHARE;
  let x = 0;
  for (const span of all) {
    span.width = span.kind === "person" || span.kind === "other" ? Math.min(span.ms, most) : span.ms;
    span.x = x;
    x += span.width;
  }
  const scale = 1000 / (x || 1);
  const place = byId("picture"), cost = all.at(-1)?.cost ?? 0;
  const drawn = [];
  let bar = null;
  for (const span of all) {
    const left = span.x * scale, right = (span.x + span.width) * scale;
    if (bar && (bar.kind === span.kind || (all.length > MAX_BARS && right - bar.left < 1000 / MAX_BARS))) { bar.right = right; continue; }
    bar = { kind: span.kind, left, right };
    drawn.push(bar);
  }
  const bars = drawn.map((one) => svg("rect", { class: `bar-${one.kind}`, x: one.left.toFixed(2), width: Math.max(0.5, one.right - one.left).toFixed(2), y: 62, height: 46 }));
  const turns = all.filter((span) => span.entry.type === "user_message").slice(0, 500).map((span) => {
    const left = ((span.x + span.width) * scale).toFixed(2);
    return svg("rect", { class: "turn", x: left, width: 1.5, y: 54, height: 62 });
  });
  const parts = [svg("line", { class: "base", x1: 0, x2: 1000, y1: 62, y2: 62 }), ...bars, ...turns];
  if (cost > 0) {
    let last = 0;
    const points = ["0,52"];
    for (const span of all) {
      const at = (span.x + span.width) * scale;
      if (span.entry.cost && (at - last > 0.5 || span === all.at(-1))) {
        const before = points.at(-1).split(",")[1];
        points.push(`${at.toFixed(2)},${before}`, `${at.toFixed(2)},${(52 - (48 * span.cost) / cost).toFixed(2)}`);
        last = at;
      }
    }
    points.push(`1000,${(52 - 48).toFixed(2)}`);
    parts.push(svg("polyline", { class: "cost", points: points.join(" ") }));
  }
  place.replaceChildren(...parts);
  const told = Object.entries(KINDS).filter(([kind]) => total[kind] >= 50).map(([kind, name]) => [kind, `${name} ${duration(total[kind])}`]);
  place.setAttribute("aria-label", `Time: ${told.map(([, text]) => text).join(", ")}${cost ? `; cost ${dollars(cost)}` : ""}`);
  const legend = told.map(([kind, text]) => make("li", "", make("i", `bar-${kind}`), ` ${text}`));
  if (cost) legend.push(make("li", "", make("i", "cost-line"), ` cost ${dollars(cost)}`));
  legend.push(make("li", "", make("i", "turn"), " a message of yours"));
  byId("legend").replaceChildren(...legend);
  byId("timeline").hidden = all.length < 2;
  return { all, scale, cost };
};

const nearest = (drawn, event) => {
  const box = byId("picture").getBoundingClientRect();
  const wanted = (((event.clientX - box.left) / box.width) * 1000) / drawn.scale;
  let low = 0, high = drawn.all.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (drawn.all[middle].x + drawn.all[middle].width < wanted) low = middle + 1;
    else high = middle;
  }
  return drawn.all[low];
};
