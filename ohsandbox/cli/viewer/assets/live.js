// A live page: new events as they are stored, and what may be done from here. Only where the page has a place for it.
const QUIET_MS = 900;  // a button that has just appeared under the pointer answers nothing
const AGAIN_MS = 2000;
const TOKEN = "ohsandbox-token";

class Ended extends Error {}

const live = byId("live") && (() => {
  const fragment = /^#token=([\w-]+)$/.exec(location.hash);
  if (fragment) {
    sessionStorage.setItem(TOKEN, fragment[1]);
    history.replaceState(null, "", location.pathname);  // it need not be seen, or copied with an address
  }
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(TOKEN) ?? ""}` };
  const words = byId("words"), send = byId("say").querySelector("[type=submit]"), stop = byId("stop"), told = byId("told");
  let shown = "", about = "", state = { can: [] }, later = 0, hasTitle = false;

  const act = async (name, body) => {
    told.textContent = "";
    try {
      const answer = await fetch(`/${name}`, { method: "POST", headers, body: JSON.stringify(body) });
      if (!answer.ok) told.textContent = (await answer.json().catch(() => ({}))).error ?? `refused (${answer.status})`;
      return answer.ok;
    } catch {
      told.textContent = "The server does not answer.";
      return false;
    }
  };

  // As at the terminal, rows of ours begin as no row of a call's own text does: that stands behind a gutter, also where
  // the window folds it.
  const GUTTERS = { "  | ": "", " +| ": "added", " -| ": "removed", "  = ": "bold", "  - ": "" };
  const rowOf = (row) => {
    const gutter = row.slice(0, 4), risk = /^\[\d+\] .*, risk (LOW|MEDIUM|HIGH)$/.exec(row);
    if (gutter in GUTTERS) return make("span", `row ${GUTTERS[gutter]}`, make("span", "gutter", gutter), make("span", "", row.slice(4)));
    return make("span", risk ? `bold risk-${risk[1].toLowerCase()}` : "", row);
  };

  const ask = (question) => {
    const place = byId("question");
    const digest = question?.digest ?? "";
    if (digest === shown) return;
    shown = digest;
    place.hidden = !question;
    document.title = `${question ? "(asks) " : ""}${byId("title").textContent} · ohsandbox`;
    if (!question) { place.replaceChildren(); return; }
    const rows = make("pre", "asked", ...question.rows.map(rowOf));
    rows.tabIndex = 0;
    const reason = make("input");
    reason.placeholder = "Reason, for the agent";
    reason.setAttribute("aria-label", "Reason, for the agent");
    const button = (label, body) => {
      const made = make("button", body.approved ? "yes" : "no", label);
      made.type = "button";
      made.disabled = true;
      made.addEventListener("click", (event) => {
        if (event.isTrusted) act("answer", { digest, ...body, ...(body.approved ? {} : { reason: reason.value }) });
      });
      return made;
    };
    const buttons = [
      button("Allow once", { approved: true }),
      ...question.scopes.map((scope, at) => button(`Allow from now on: ${scope}`, { approved: true, scope: at })),
      button("Refuse", { approved: false }),
    ];
    place.replaceChildren(
      make("h2", "", question.count === 1 ? "May this run?" : `May these ${question.count} calls run?`),
      rows, make("div", "answers", ...buttons, reason), make("p", "note", `What you answer is for exactly this: ${digest.slice(0, 12)}`),
    );
    setTimeout(() => buttons.forEach((one) => { one.disabled = false; }), QUIET_MS);
  };

  const take = {
    about: ({ title, facts }) => {
      if (about && about !== facts) { location.reload(); return; }  // the session went to another conversation
      about = facts;
      byId("facts").textContent = facts;
      if (title) setTitle(title);
    },
    state: (now) => {
      state = now;
      byId("state").textContent = `${now.status[0].toUpperCase()}${now.status.slice(1)}${now.why ? `. ${now.why}` : ""}`;
      words.disabled = send.disabled = !now.can.includes("say");
      stop.disabled = !now.can.includes("stop");
      ask(now.question);
    },
    entries: ({ name, entries }) => {
      const atEnd = innerHeight + scrollY > document.documentElement.scrollHeight - 120;
      if (name && !conversations.has(name)) conversations.set(name, []);
      const place = logOf(name);
      for (const entry of entries) {
        if (!place) continue;
        if (!name && !hasTitle && entry.type === "user_message") setTitle(textOf(entry).slice(0, 80));
        if (place.byNumber.has(entry.n)) continue;  // told again after a break
        const item = place.take(entry);
        place.show(item);
      }
      clearTimeout(later);
      later = setTimeout(() => { drawn = drawTimeline(log.items); tellTotals(); }, 300);
      if (atEnd && !name) scrollTo(0, document.documentElement.scrollHeight);
    },
    now: ({ text }) => { byId("now").textContent = text; },
    end: () => { throw new Ended("The conversation was closed here."); },
  };

  // Made anew each time that it is unfolded: it costs nothing until somebody wants to know.
  const summary = (name, title) => {
    const item = {}, place = make("div");
    const made = fold(item, name, make("span", "says", title), () => [place]);
    made.querySelector("button").addEventListener("click", async () => {
      if (!made.isOpen()) return;
      place.replaceChildren(make("p", "note", "Looking…"));
      const answer = await fetch(`/${name}`, { headers }).catch(() => null);
      const told = answer?.ok ? await answer.json() : { blocks: [{ is: "note", kind: "error", text: "The server does not answer.", warns: true }] };
      place.replaceChildren(...told.blocks.flatMap((block) => shownBlock(block, { open: true })));
    });
    return made;
  };
  byId("summaries").append(summary("changes", "What was changed in all"), summary("network", "What the network was asked for"));

  const setTitle = (title) => {
    hasTitle = true;
    byId("title").textContent = title;
    document.title = `${title} · ohsandbox`;
  };
  const textOf = (entry) => { const texts = []; textsOf(entry.blocks[0]?.text, (text) => texts.push(text)); return texts.filter((text) => !/^(p|code|em|strong)$/.test(text)).join(""); };
  const logOf = (name) => {
    let place = log;
    for (const part of name.split("/").filter(Boolean)) {
      const item = place?.items.find((one) => one.entry.agent === part);
      if (item && !item.inner) { item.inner = new Log([], place.prefix + part); item.inner.outer = item; place.show(item); }
      place = item?.inner;
    }
    return place;
  };

  const follow = async () => {
    const answer = await fetch("/events", { headers });
    if (answer.status === 401) throw new Ended("This page needs the whole address that the command printed.");
    if (!answer.ok) throw new Ended(`The server answers ${answer.status}.`);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("The connection has ended.");
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const [, kind, data] = /^event: (\w+)\ndata: (.*)$/s.exec(part) ?? [];
        take[kind]?.(JSON.parse(data));
      }
    }
  };

  byId("say").addEventListener("submit", async (event) => {
    event.preventDefault();
    if (words.value.trim() && await act("say", { text: words.value })) words.value = "";
  });
  words.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); byId("say").requestSubmit(); }
  });
  stop.addEventListener("click", () => act("stop", {}));

  const followOn = () => follow().catch((error) => {
    const isOver = error instanceof Ended;
    take.now({ text: "" });
    take.state({ status: isOver ? error.message : "The connection is broken; trying again.", why: "", can: [], question: null });
    if (!isOver) setTimeout(followOn, AGAIN_MS);
  });
  followOn();
  return { act };
})();
