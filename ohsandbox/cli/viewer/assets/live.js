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

  // The kind of a row comes from where all places take it: no text of a call passes for a row of ours. Text stands
  // behind its gutter, also where the window folds it.
  const RISKS = ["low", "medium", "high", "unknown"];
  const rowOf = ([kind, row]) => RISKS.includes(kind) ? make("span", `bold risk-${kind}`, row)
    : make("span", `row ${kind}`, make("span", "gutter", row.slice(0, 4)), make("span", "", row.slice(4)));

  // Calls ready once the whole of place was shown, piece by piece from its top, in a window in front, and then for a
  // while; calls away when the window goes to the back.
  const watch = (place, { ready, away }) => {
    let seen = 0, timer = 0;
    const look = () => {
      const inFront = document.visibilityState === "visible" && document.hasFocus();
      const box = place.getBoundingClientRect(), all = place.scrollHeight;
      const top = Math.max(box.top, 0) - box.top + place.scrollTop;
      if (inFront && top <= seen + 1 + place.clientTop) seen = Math.max(seen, top + Math.min(box.bottom, innerHeight) - Math.max(box.top, 0));
      if (!inFront) { clearTimeout(timer); timer = 0; away(); }
      else if (seen >= all - 1 && !timer) timer = setTimeout(ready, QUIET_MS);
    };
    const again = () => { if (!timer) seen = 0; look(); };  // folded anew, rows stand elsewhere
    const events = [[place, "scroll", look], [window, "scroll", look], [window, "focus", look], [window, "blur", look],
      [document, "visibilitychange", look], [window, "resize", again]];
    for (const [target, event, heed] of events) target.addEventListener(event, heed);
    look();
    return () => { clearTimeout(timer); for (const [target, event, heed] of events) target.removeEventListener(event, heed); };
  };
  let unwatch = () => {};

  const ask = (question) => {
    const place = byId("question");
    const digest = question?.digest ?? "";
    if (digest === shown) return;
    shown = digest;
    unwatch();
    unwatch = () => {};
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
      button(question.is_whole ? "Allow once" : "Allow once, though it does not show what is removed", { approved: true }),
      ...question.scopes.map((scope, at) => button(`Allow from now on: ${scope}`, { approved: true, scope: at })),
      button("Refuse", { approved: false }),
    ];
    place.replaceChildren(
      make("h2", "", question.count === 1 ? "May this run?" : `May these ${question.count} calls run?`),
      rows, make("div", "answers", ...buttons, reason), make("p", "note", `What you answer is for exactly this: ${digest.slice(0, 12)}. It can be answered once all of it was shown in this window.`),
    );
    place.scrollTop = 0;
    const enable = (are) => buttons.forEach((one) => { one.disabled = !are; });
    unwatch = watch(place, { ready: () => enable(true), away: () => enable(false) });
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
